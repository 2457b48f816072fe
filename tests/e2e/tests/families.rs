//! Who reaches whom, in each of the cluster's families: the same test runs in
//! clusters of IPv4, of IPv6 and of both (`make conformance`).

use anyhow::{Context, Result, ensure};
use e2e::cluster::{Cluster, PATIENCE};
use e2e::network::{reaches, shell_pod, view, views};
use e2e::workload::Namespace;
use lab::api;
use lab::checks::probe::{self, Source};
use lab::outside;
use lab::progress::say;
use serde_json::json;

fn family(v4: bool) -> &'static str {
    if v4 { "IPv4" } else { "IPv6" }
}

#[test]
fn pods_reach_pods_gateways_nodes_the_world_and_names() -> Result<()> {
    let cluster = Cluster::open()?;
    let nodes = cluster.nodes()?;
    let namespace = Namespace::create(&cluster, "families")?;
    let mut pods = Vec::new();
    for (name, node) in [("a", 0), ("b", 0), ("c", 1)] {
        let mut pod = shell_pod(&namespace, name, &nodes[node].name, &json!({}));
        pod["metadata"]["labels"] = json!({"app": "families"});
        pods.push(pod);
    }
    // No virtual address: names of pods, answered by CoreDNS asked at its own pod's address.
    pods.push(json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "headless", "namespace": namespace.name},
        "spec": {
            "clusterIP": "None", "selector": {"app": "families"}, "ports": [{"port": 8080}],
            "ipFamilyPolicy": "PreferDualStack",
        },
    }));
    namespace.apply(&pods)?;
    namespace.wait_ready(3, PATIENCE)?;
    let views = views(&namespace)?;
    let dns: Vec<_> =
        api::list(&cluster.lab, "/api/v1/namespaces/kube-system/pods?labelSelector=k8s-app%3Dkube-dns")?
            .iter()
            .map(probe::pod_view)
            .collect();
    let dns = dns.iter().find(|pod| pod.ready).context("no CoreDNS is ready")?;
    let gateways = |subnet: &str| -> Result<Vec<std::net::IpAddr>> {
        let object = api::get(&cluster.lab, &format!("/apis/kubeovn.io/v1/subnets/{subnet}"))?;
        let text = api::text(&object, "/spec/gateway").to_owned();
        text.split(',').map(|ip| ip.parse().with_context(|| format!("{subnet}: gateway {text:?}"))).collect()
    };
    let gateways = [gateways("ovn-default")?, gateways("join")?].concat();
    let mut wrong = Vec::new();
    let mut asked = 0;
    let mut ask = |from: &Source, to: std::net::IpAddr, what: String| -> Result<()> {
        asked += 1;
        if !reaches(&cluster, from, to)? {
            wrong.push(format!("{what} ({to})"));
        }
        Ok(())
    };
    for v4 in cluster.lab.plan.family.select(true, false) {
        for from in &views {
            for to in views.iter().filter(|to| to.name != from.name) {
                let what = format!("{} pod {} to pod {}", family(v4), from.name, to.name);
                ask(&from.source(), to.address(v4)?, what)?;
            }
            for gateway in gateways.iter().filter(|ip| ip.is_ipv4() == v4) {
                ask(&from.source(), *gateway, format!("{} pod {} to gateway", family(v4), from.name))?;
            }
            for node in &nodes {
                let address = probe::node_address(&cluster.lab, node, v4);
                ask(&from.source(), address, format!("{} pod {} to {}", family(v4), from.name, node.name))?;
                let what = format!("{} {} to pod {}", family(v4), node.name, from.name);
                ask(&Source::Node(node.name.clone()), from.address(v4)?, what)?;
            }
            for world in outside::addresses(&cluster.lab).into_iter().filter(|ip| ip.is_ipv4() == v4) {
                ask(&from.source(), world, format!("{} pod {} to the world", family(v4), from.name))?;
            }
        }
        let client = view(&views, "a")?.source();
        let (kind, server) = (if v4 { "a" } else { "aaaa" }, dns.address(v4)?);
        let name = format!("headless.{}.svc.cluster.local", namespace.name);
        let answer = lab::progress::wait_for("the pods' names", PATIENCE, || {
            let answer = client
                .shell(&cluster.lab, &format!("timeout 5 nslookup -type={kind} {name} {server} || true"))?;
            let all =
                views.iter().all(|pod| pod.address(v4).is_ok_and(|ip| answer.contains(&ip.to_string())));
            Ok(if all { lab::progress::Look::Ready(answer) } else { lab::progress::Look::NotYet(answer) })
        })?;
        ensure!(!answer.is_empty(), "no answer");
    }
    ensure!(wrong.is_empty(), "of {asked} ways these do not work:\n{}", wrong.join("\n"));
    say(format!("{} cluster: {asked} ways work, and names without a Service", cluster.lab.plan.family));
    namespace.delete_pods(true)
}
