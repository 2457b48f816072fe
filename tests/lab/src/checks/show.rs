//! The show: the list of what a first look at a cluster with Weir should find.
//!
//! In: a lab with Weir installed. Out: outcomes for the table. Its objects stay
//! in namespace `show`, so a person can look around and a second show is quick.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::probe::{self, PodView, Source};
use super::{Check, Outcome, ask_all};
use crate::progress::{Look, quiet_step, wait_for};
use crate::state::{Lab, Node};
use crate::{api, life, outside, source_folder};

/// The namespace of everything the show makes.
pub const NAMESPACE: &str = "show";
/// The port that its web pods serve on.
pub const PORT: u16 = 8080;

/// Ports that no pod may reach on any node: the databases with their raft
/// ports, the controller's and the daemon's.
pub const GUARDED_PORTS: [u16; 6] = [6641, 6642, 6643, 6644, 10660, 10665];

/// Where the databases listen.
const DATABASE_PORTS: [u16; 2] = [6641, 6642];

/// What the checks share.
struct Stage<'a> {
    lab: &'a Lab,
    nodes: Vec<Node>,
    /// Web pods, at least one per node; the first two are on one node.
    web: Vec<PodView>,
    /// The Service's only backend; on the second node.
    backend: PodView,
    /// The Service's addresses.
    service: Vec<std::net::IpAddr>,
}

/// Sets the stage and asks everything.
pub fn run(lab: &Lab) -> Result<Vec<Outcome>> {
    let stage = quiet_step("show: pods ready", || set_stage(lab))?;
    let checks = network_checks(&stage)?;
    let closing = cluster_checks(lab);
    quiet_step(&format!("show: {} checks", checks.len() + closing.len()), || {
        let mut outcomes = ask_all(&checks);
        // Only now: while pods come and go, not every pod runs.
        outcomes.extend(ask_all(&closing));
        Ok(outcomes)
    })
}

/// Reads one of our manifests with a placeholder filled in.
pub fn manifest(file: &str, placeholder: &str, value: &str) -> Result<String> {
    let path = source_folder().join("manifests").join(file);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(text.replace(placeholder, value))
}

fn set_stage(lab: &Lab) -> Result<Stage<'_>> {
    let nodes = lab.nodes()?;
    ensure!(nodes.len() >= 2, "the show needs two nodes, lab {} has {}", lab.plan.name, nodes.len());
    let far = nodes.get(1).context("no second node")?;
    api::apply(lab, &manifest("show.yaml", "@BACKEND_NODE@", &far.name)?)?;
    let (web, backend) = wait_for("the show's pods to be Ready", Duration::from_secs(120), || {
        let web = probe::pods(lab, NAMESPACE, "web")?;
        let backend = probe::pods(lab, NAMESPACE, "backend")?;
        let ready = web.iter().chain(&backend).filter(|pod| pod.ready).count();
        let nodes_used = nodes.iter().filter(|node| web.iter().any(|pod| pod.node == node.name)).count();
        if web.len() == 4 && backend.len() == 1 && ready == 5 && nodes_used >= 2 {
            return Ok(Look::Ready((web, backend)));
        }
        let unwell = life::unwell_pods(lab)?.into_iter().filter(|pod| pod.starts_with("show/"));
        Ok(Look::NotYet(format!("{ready} of 5; {}", unwell.collect::<Vec<_>>().join("; "))))
    })?;
    let service = api::get(lab, &format!("/api/v1/namespaces/{NAMESPACE}/services/backend"))?;
    let addresses = service.pointer("/spec/clusterIPs").and_then(serde_json::Value::as_array);
    let service =
        addresses.into_iter().flatten().filter_map(|address| address.as_str()?.parse().ok()).collect();
    let backend = backend.into_iter().next().context("no backend")?;
    Ok(Stage { lab, nodes, web: neighbours_first(web), backend, service })
}

/// Sorts pods so that the first two share a node and the third does not.
fn neighbours_first(mut pods: Vec<PodView>) -> Vec<PodView> {
    let node = pods.first().map(|pod| pod.node.clone()).unwrap_or_default();
    pods.sort_by_key(|pod| pod.node != node);
    pods
}

fn network_checks<'a>(stage: &'a Stage<'_>) -> Result<Vec<Check<'a>>> {
    // The longest first: the others fill the time.
    let mut checks = vec![coming_and_going(stage)];
    for v4 in stage.lab.plan.family.select(true, false) {
        traffic(stage, v4, &mut checks)?;
        services(stage, v4, &mut checks)?;
        guards(stage, v4, &mut checks);
    }
    Ok(checks)
}

/// What should hold of the cluster as a whole.
fn cluster_checks(lab: &Lab) -> Vec<Check<'_>> {
    vec![
        Check::new("CoreDNS is Ready", move || {
            let pods =
                api::list(lab, "/api/v1/namespaces/kube-system/pods?labelSelector=k8s-app%3Dkube-dns")?;
            let ready = pods.iter().filter(|pod| api::condition(pod, "Ready") == "True").count();
            ensure!(ready > 0 && ready == pods.len(), "{ready} of {} pods", pods.len());
            Ok(format!("{ready} pod(s)"))
        })
        .within(Duration::from_secs(30)),
        Check::new("every node is Ready", move || {
            life::wait_nodes_ready(lab, Duration::ZERO)?;
            Ok(format!("{} nodes", lab.nodes()?.len()))
        })
        .within(Duration::from_secs(30)),
        Check::new("every pod of the cluster runs", move || {
            let unwell = life::unwell_pods(lab)?;
            ensure!(unwell.is_empty(), "{}", unwell.join("; "));
            Ok(format!("{} pods", api::list(lab, "/api/v1/pods")?.len()))
        })
        .within(Duration::from_secs(45)),
    ]
}

/// "IPv4" or "IPv6".
fn label(v4: bool) -> &'static str {
    if v4 { "IPv4" } else { "IPv6" }
}

fn traffic<'a>(stage: &'a Stage<'_>, v4: bool, checks: &mut Vec<Check<'a>>) -> Result<()> {
    let lab = stage.lab;
    let family = label(v4);
    let (here, there) = neighbours(stage)?;
    for (what, target) in [("same node", here), ("other node", there)] {
        let (from, to) = (pod(stage, 0)?.source(), target.address(v4)?);
        let asker = from.clone();
        checks.push(Check::new(format!("{family} pod to pod, {what}: ping"), move || {
            probe::ping(lab, &asker, to)
        }));
        checks.push(Check::new(format!("{family} pod to pod, {what}: HTTP, 64 KiB"), move || {
            probe::fetch_blob(lab, &from, to, PORT)
        }));
    }
    for node in &stage.nodes {
        for (what, target) in reachable_from(stage, node) {
            let (from, to) = (Source::Node(node.name.clone()), target.address(v4)?);
            checks.push(Check::new(
                format!("{family} node {} to {what} pod: ping, HTTP", node.name),
                move || {
                    let times = probe::ping(lab, &from, to)?;
                    Ok(format!("{times}; {}", probe::fetch_blob(lab, &from, to, PORT)?))
                },
            ));
        }
    }
    for node in &stage.nodes {
        let (from, to) = (pod(stage, 0)?.source(), probe::node_address(lab, node, v4));
        checks.push(Check::new(format!("{family} pod to node {}: ping, HTTP", node.name), move || {
            let times = probe::ping(lab, &from, to)?;
            // kube-proxy's health page, served by a host process.
            probe::fetch(lab, &from, &probe::url(to, 10256, "/healthz"))?;
            Ok(times)
        }));
    }
    for node in &stage.nodes {
        let Some(pod) = stage.web.iter().find(|pod| pod.node == node.name) else { continue };
        let (from, expected) = (pod.source(), probe::node_address(lab, node, v4));
        let to = outside::addresses(lab).into_iter().find(|address| address.is_ipv4() == v4);
        let to = to.context("the outside host lacks a family")?;
        checks.push(Check::new(
            format!("{family} pod on {} to outside host: ping, HTTP both ways", node.name),
            move || {
                probe::ping(lab, &from, to)?;
                let seen = probe::outside(lab, &from, to)?;
                ensure!(seen == expected, "seen there as {seen} and not as the node {expected}");
                Ok(format!("seen there as {seen}, the node"))
            },
        ));
    }
    Ok(())
}

fn pod<'a>(stage: &'a Stage<'_>, index: usize) -> Result<&'a PodView> {
    stage.web.get(index).context("too few web pods")
}

/// For the first web pod: a pod on its node and one on another.
fn neighbours<'a>(stage: &'a Stage<'_>) -> Result<(&'a PodView, &'a PodView)> {
    let node = &pod(stage, 0)?.node;
    let here = stage.web.iter().skip(1).find(|pod| pod.node == *node);
    let there = stage.web.iter().find(|pod| pod.node != *node);
    Ok((here.context("no two pods share a node")?, there.context("all pods are on one node")?))
}

/// One pod on the node and one on another.
fn reachable_from<'a>(stage: &'a Stage<'_>, node: &Node) -> Vec<(&'static str, &'a PodView)> {
    let local = stage.web.iter().find(|pod| pod.node == node.name).map(|pod| ("its own", pod));
    let remote = stage.web.iter().find(|pod| pod.node != node.name).map(|pod| ("another's", pod));
    local.into_iter().chain(remote).collect()
}

fn services<'a>(stage: &'a Stage<'_>, v4: bool, checks: &mut Vec<Check<'a>>) -> Result<()> {
    let lab = stage.lab;
    let family = label(v4);
    let near = stage.web.iter().find(|pod| pod.node != stage.backend.node);
    let from = near.context("all web pods are on the backend's node")?.source();
    let service = stage.service.iter().copied().find(|address| address.is_ipv4() == v4);
    let service = service.with_context(|| format!("the Service has no {family} address"))?;
    let backend = stage.backend.node.clone();
    checks.push(
        Check::new(format!("{family} pod to ClusterIP, backend on {backend}: HTTP, 64 KiB"), {
            let from = from.clone();
            move || probe::fetch_blob(lab, &from, service, 80)
        })
        .within(Duration::from_secs(20)),
    );
    checks.push(
        Check::new(format!("{family} pod resolves the Service's name"), {
            let from = from.clone();
            move || {
                let name = format!("backend.{NAMESPACE}.svc.cluster.local");
                let kind = if v4 { "a" } else { "aaaa" };
                let answer = from.shell(lab, &format!("timeout 5 nslookup -type={kind} {name}"))?;
                ensure!(answer.contains(&service.to_string()), "no {service} in {answer:?}");
                Ok(service.to_string())
            }
        })
        .within(Duration::from_secs(30)),
    );
    checks.push(
        Check::new(format!("{family} cluster: pod fetches the Service by name"), move || {
            probe::fetch_blob_at(lab, &from, &format!("backend.{NAMESPACE}.svc.cluster.local"))
        })
        .within(Duration::from_secs(30)),
    );
    Ok(())
}

fn guards<'a>(stage: &'a Stage<'_>, v4: bool, checks: &mut Vec<Check<'a>>) {
    let lab = stage.lab;
    let family = label(v4);
    for node in &stage.nodes {
        for web in stage.web.iter().take(1) {
            let (from, to) = (web.source(), probe::node_address(lab, node, v4));
            checks.push(Check::new(
                format!("{family} pod may not reach databases, metrics of {}", node.name),
                move || {
                    let open = probe::open_ports(lab, &from, to, &GUARDED_PORTS)?;
                    ensure!(open.is_empty(), "ports {open:?} of {to} are open to pods");
                    Ok(format!("ports {GUARDED_PORTS:?} closed"))
                },
            ));
        }
    }
    // Closed to pods must not mean that nothing listens.
    let Some(master) = stage.nodes.first() else { return };
    if (lab.plan.primary(crate::plan::Net::Management, master.host())).is_ipv4() == v4 {
        for node in &stage.nodes {
            let (from, to) = (Source::Node(node.name.clone()), probe::node_address(lab, master, v4));
            checks.push(Check::new(
                format!("{family} node {} reaches the databases", node.name),
                move || {
                    let open = probe::open_ports(lab, &from, to, &DATABASE_PORTS)?;
                    ensure!(open == DATABASE_PORTS, "{to}: only {open:?} of {DATABASE_PORTS:?} are open");
                    Ok(format!("{to} 6641, 6642"))
                },
            ));
        }
    }
}

/// A pod with probes becomes Ready; after its deletion everything of it goes.
fn coming_and_going<'a>(stage: &'a Stage<'_>) -> Check<'a> {
    let lab = stage.lab;
    Check::new("pod with probes: Ready; deleted: address, ports gone", move || {
        let name = "guest";
        api::kubectl(lab, ["-n", NAMESPACE, "delete", "pod", name, "--ignore-not-found", "--wait"])?;
        api::apply(lab, &manifest("guest.yaml", "@NAME@", name)?)?;
        let guest = wait_for("the guest pod to be Ready", Duration::from_secs(45), || {
            let found = probe::pods(lab, NAMESPACE, "guest")?.into_iter().find(|pod| pod.ready);
            Ok(found.map_or_else(|| Look::NotYet("not Ready".into()), Look::Ready))
        })?;
        let there = traces(lab, &guest)?;
        ensure!(there.len() == 3, "while it runs there is only: {}", there.join(", "));
        api::kubectl(lab, ["-n", NAMESPACE, "delete", "pod", name, "--wait"])?;
        let left = wait_for("the guest pod's traces to go", Duration::from_secs(20), || {
            let left = traces(lab, &guest)?;
            Ok(if left.is_empty() { Look::Ready(()) } else { Look::NotYet(left.join(", ")) })
        });
        if let Err(error) = left {
            bail!("after its deletion: {error:#}");
        }
        Ok(format!("{} gone", there.join(", ")))
    })
    .within(Duration::ZERO)
}

/// What there is of a pod besides itself: its IP object, its logical port, its
/// interface in the node's OVS.
pub fn traces(lab: &Lab, pod: &PodView) -> Result<Vec<String>> {
    let port = format!("{}.{}", pod.name, pod.namespace);
    let mut traces = Vec::new();
    let objects = api::list(lab, "/apis/kubeovn.io/v1/ips")?;
    if objects.iter().any(|object| api::text(object, "/metadata/name") == port) {
        traces.push(format!("IP object {port}"));
    }
    if !probe::northbound(lab, "Logical_Switch_Port", &format!("name=\"{port}\""))?.is_empty() {
        traces.push(format!("logical port {port}"));
    }
    let interfaces = probe::ovs_interfaces(lab, &pod.node, &port)?;
    if !interfaces.is_empty() {
        traces.push(format!("OVS interface {}", interfaces.join(" ")));
    }
    Ok(traces)
}
