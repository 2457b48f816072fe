//! Subnets and Vpcs of users: who reaches whom, through which gateway, and what
//! stays when a node is lost.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use e2e::cluster::{Cluster, PATIENCE};
use e2e::flow::Flow;
use e2e::loss::{bring_back, controller_elsewhere, wait_not_ready};
use e2e::network::{Made, outside_address, reaches, shell_pod, view, views, wait_seen_as};
use e2e::workload::Namespace;
use lab::checks::probe::Source;
use lab::node;
use lab::progress::say;
use serde_json::json;

/// `10.<n>.0.0/24` and/or its IPv6 twin, as the cluster's families want.
fn cidr(cluster: &Cluster, n: u8) -> String {
    cluster.lab.plan.family.join(&format!("10.{n}.0.0/24"), &format!("fd00:10:{n}::/64"))
}

/// Host `h` of that.
fn host(cluster: &Cluster, n: u8, h: u8) -> String {
    cluster.lab.plan.family.join(&format!("10.{n}.0.{h}"), &format!("fd00:10:{n}::{h:x}"))
}

fn families(cluster: &Cluster) -> Vec<bool> {
    cluster.lab.plan.family.select(true, false)
}

#[test]
fn private_subnets_are_entered_by_themselves_and_their_friends_alone() -> Result<()> {
    let cluster = Cluster::open()?;
    let nodes = cluster.nodes()?;
    let mut made = Made::new(&cluster);
    let namespace = Namespace::create(&cluster, "truth")?;
    made.subnet("open", json!({"cidrBlock": cidr(&cluster, 101)}))?;
    made.subnet("closed", json!({"cidrBlock": cidr(&cluster, 102), "private": true}))?;
    let friends: Vec<_> = cidr(&cluster, 101).split(',').map(str::to_owned).collect();
    made.subnet(
        "picky",
        json!({"cidrBlock": cidr(&cluster, 103), "private": true, "allowSubnets": friends}),
    )?;
    let subnets = ["ovn-default", "open", "closed", "picky"];
    let mut pods = Vec::new();
    for subnet in subnets {
        for (i, node) in nodes[..2].iter().enumerate() {
            let annotations = json!({"ovn.kubernetes.io/logical_switch": subnet});
            let mut pod = shell_pod(&namespace, &format!("{subnet}-{i}"), &node.name, &annotations);
            // Ready once its kubelet got in.
            let container = &mut pod["spec"]["containers"][0];
            container["command"] = json!(["httpd", "-f", "-p", "8080"]);
            container["readinessProbe"] = json!({"tcpSocket": {"port": 8080}, "periodSeconds": 1});
            pods.push(pod);
        }
    }
    namespace.apply(&pods)?;
    namespace.wait_ready(pods.len(), PATIENCE)?;
    let views = views(&namespace)?;
    let mut wrong = Vec::new();
    let mut asked = 0;
    for from in subnets {
        for to in subnets {
            let expected = match to {
                "closed" => from == "closed",
                "picky" => from == "picky" || from == "open",
                // A wall keeps out, not in: what its pods open themselves comes back.
                _ => true,
            };
            for v4 in families(&cluster) {
                // From the first node to the second: through both hosts' pipelines.
                let source = view(&views, &format!("{from}-0"))?.source();
                let target = view(&views, &format!("{to}-1"))?.address(v4)?;
                let got = reaches(&cluster, &source, target)?;
                asked += 1;
                if got != expected {
                    wrong.push(format!("{from} to {to} (IPv{}): {got}", if v4 { 4 } else { 6 }));
                }
            }
        }
    }
    // Nodes enter all, their own pods and those of others: kubelets probe.
    for to in subnets {
        for node in &nodes[..2] {
            for i in 0..2 {
                for v4 in families(&cluster) {
                    let target = view(&views, &format!("{to}-{i}"))?.address(v4)?;
                    asked += 1;
                    if !reaches(&cluster, &Source::Node(node.name.clone()), target)? {
                        wrong.push(format!("{} to {to}-{i} (IPv{})", node.name, if v4 { 4 } else { 6 }));
                    }
                }
            }
        }
    }
    ensure!(wrong.is_empty(), "of {asked} answers these are wrong:\n{}", wrong.join("\n"));
    say(format!("private subnets: {asked} answers as in the truth table"));
    namespace.delete_pods(true)
}

#[test]
fn two_vpcs_with_the_same_addresses_do_not_meet() -> Result<()> {
    let cluster = Cluster::open()?;
    let nodes = cluster.nodes()?;
    let mut made = Made::new(&cluster);
    let namespace = Namespace::create(&cluster, "twins")?;
    for vpc in ["red", "blue"] {
        made.vpc(vpc, json!({}))?;
        made.subnet(&format!("{vpc}-net"), json!({"vpc": vpc, "cidrBlock": cidr(&cluster, 110)}))?;
    }
    let mut pods = Vec::new();
    for vpc in ["red", "blue"] {
        for (i, node) in nodes[..2].iter().enumerate() {
            let address = host(&cluster, 110, 10 + u8::try_from(i)?);
            let annotations = json!({
                "ovn.kubernetes.io/logical_switch": format!("{vpc}-net"),
                "ovn.kubernetes.io/ip_address": address,
            });
            pods.push(shell_pod(&namespace, &format!("{vpc}-{i}"), &node.name, &annotations));
        }
    }
    // A third address that only blue has.
    let annotations = json!({
        "ovn.kubernetes.io/logical_switch": "blue-net", "ovn.kubernetes.io/ip_address": host(&cluster, 110, 20),
    });
    pods.push(shell_pod(&namespace, "blue-only", &nodes[1].name, &annotations));
    namespace.apply(&pods)?;
    namespace.wait_ready(pods.len(), PATIENCE)?;
    let views = views(&namespace)?;
    for v4 in families(&cluster) {
        for vpc in ["red", "blue"] {
            let (from, to) = (view(&views, &format!("{vpc}-0"))?, view(&views, &format!("{vpc}-1"))?);
            ensure!(reaches(&cluster, &from.source(), to.address(v4)?)?, "{vpc} does not reach itself");
        }
        let only = view(&views, "blue-only")?.address(v4)?;
        ensure!(reaches(&cluster, &view(&views, "blue-0")?.source(), only)?, "blue does not reach {only}");
        ensure!(!reaches(&cluster, &view(&views, "red-0")?.source(), only)?, "red reaches blue's {only}");
        let node = Source::Node(nodes[0].name.clone());
        ensure!(!reaches(&cluster, &node, only)?, "a node reaches {only} of a custom Vpc");
    }
    namespace.delete_pods(true)
}

#[test]
fn a_centralized_gateway_moves_under_traffic_and_fails_over() -> Result<()> {
    let cluster = Cluster::open()?;
    let nodes = cluster.nodes()?;
    let (first, second) = (nodes[0].clone(), nodes[1].clone());
    controller_elsewhere(&cluster, &second)?;
    let mut made = Made::new(&cluster);
    let namespace = Namespace::create(&cluster, "central")?;
    made.subnet(
        "central",
        json!({
            "cidrBlock": cidr(&cluster, 120), "gatewayType": "centralized", "natOutgoing": true,
            "gatewayNode": second.name,
        }),
    )?;
    let annotations = json!({"ovn.kubernetes.io/logical_switch": "central"});
    namespace.apply(&[shell_pod(&namespace, "p", &first.name, &annotations)])?;
    namespace.wait_ready(1, PATIENCE)?;
    let pod = views(&namespace)?.remove(0);
    let source = pod.source();
    for v4 in families(&cluster) {
        wait_seen_as(&cluster, &source, v4, &second)?;
    }
    // A planned move, under a ping a millisecond.
    let v4 = families(&cluster)[0];
    let target = outside_address(&cluster, v4)?;
    let flow = Flow::start(&cluster, &pod, target)?;
    std::thread::sleep(Duration::from_secs(2));
    let patch = |gateway: &str| {
        let patch = json!({"spec": {"gatewayNode": gateway}}).to_string();
        cluster.kubectl(&["patch", "subnet", "central", "--type=merge", "-p", &patch])
    };
    patch(&first.name)?;
    wait_seen_as(&cluster, &source, v4, &first)?;
    let loss = flow.end()?;
    say(format!("planned move of the gateway: {loss}"));
    // Generous: the machine is shared. What is seen is printed.
    ensure!(loss.outage <= Duration::from_secs(2), "the planned move cut the traffic: {loss}");
    // Both are candidates (the active one stays when another joins it); the active one dies.
    patch(&second.name)?;
    wait_seen_as(&cluster, &source, v4, &second)?;
    patch(&format!("{},{}", second.name, first.name))?;
    wait_seen_as(&cluster, &source, v4, &second)?;
    let flow = Flow::start(&cluster, &pod, target)?;
    std::thread::sleep(Duration::from_secs(1));
    let killed = Instant::now();
    node::stop(&cluster.lab, &second, true)?;
    let moved = (|| -> Result<()> {
        wait_not_ready(&cluster, &second)?;
        let noticed = Instant::now();
        wait_seen_as(&cluster, &source, v4, &first)?;
        let (in_all, after) = (killed.elapsed().as_secs_f64(), noticed.elapsed().as_secs_f64());
        say(format!("fail-over {in_all:.1} s after the node died, {after:.1} s after it was NotReady"));
        Ok(())
    })();
    let loss = flow.end();
    bring_back(&cluster, &second)?;
    moved?;
    say(format!("unplanned loss of the gateway: {}", loss?));
    namespace.delete_pods(true)
}

#[test]
fn static_and_stateful_addresses_survive_the_loss_of_their_node() -> Result<()> {
    let cluster = Cluster::open()?;
    let nodes = cluster.nodes()?;
    let (first, second) = (nodes[0].clone(), nodes[1].clone());
    controller_elsewhere(&cluster, &second)?;
    let mut made = Made::new(&cluster);
    let namespace = Namespace::create(&cluster, "steady")?;
    made.subnet("steady", json!({"cidrBlock": cidr(&cluster, 130)}))?;
    let template = |annotations: serde_json::Value| {
        let mut pod = shell_pod(&namespace, "x", "", &annotations);
        pod["metadata"]["labels"] = json!({"app": "steady"});
        let spec = &mut pod["spec"];
        if let Some(spec) = spec.as_object_mut() {
            spec.remove("nodeName");
        }
        // The second node if it can be had.
        spec["affinity"] = json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
            "weight": 100,
            "preference": {"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": [second.name]},
            ]},
        }]}});
        // Not a dead node's taint, or the successors would wait on it.
        spec["tolerations"] = json!([{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}]);
        json!({"metadata": {"labels": pod["metadata"]["labels"], "annotations": annotations}, "spec": pod["spec"]})
    };
    let set = |name: &str, annotations: serde_json::Value| {
        let mut template = template(annotations);
        template["metadata"]["labels"] = json!({"app": name});
        json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet",
            "metadata": {"name": name, "namespace": "steady"},
            "spec": {
                "replicas": 2, "serviceName": name, "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": {"app": name}}, "template": template,
            },
        })
    };
    let pool = (20..24).map(|h| host(&cluster, 130, h)).collect::<Vec<_>>().join(";");
    namespace.apply(&[
        set("drawn", json!({"ovn.kubernetes.io/logical_switch": "steady"})),
        set(
            "listed",
            json!({"ovn.kubernetes.io/logical_switch": "steady", "ovn.kubernetes.io/ip_pool": pool}),
        ),
    ])?;
    namespace.wait_ready(4, PATIENCE)?;
    let before = views(&namespace)?;
    for (i, name) in ["listed-0", "listed-1"].iter().enumerate() {
        for v4 in families(&cluster) {
            let got = view(&before, name)?.address(v4)?;
            let wanted = host(&cluster, 130, 20 + u8::try_from(i)?);
            ensure!(wanted.split(',').any(|w| w.parse() == Ok(got)), "{name} has {got}, not of {wanted}");
        }
    }
    let there: Vec<_> =
        before.iter().filter(|view| view.node == second.name).map(|v| v.name.clone()).collect();
    ensure!(!there.is_empty(), "no pod of the sets is on {}", second.name);
    node::stop(&cluster.lab, &second, true)?;
    let moved = (|| -> Result<()> {
        wait_not_ready(&cluster, &second)?;
        for pod in &there {
            let delete = ["-n", "steady", "delete", "pod", pod, "--grace-period=0", "--force"];
            cluster.kubectl(&delete)?;
        }
        namespace.wait_ready(4, PATIENCE)?;
        let after = views(&namespace)?;
        for old in &before {
            let new = view(&after, &old.name)?;
            ensure!(new.node == first.name || !there.contains(&old.name), "{} is on a dead node", old.name);
            ensure!(
                new.addresses == old.addresses,
                "{}: {:?}, was {:?}",
                old.name,
                new.addresses,
                old.addresses
            );
        }
        for v4 in families(&cluster) {
            let target = view(&after, &there[0])?.address(v4)?;
            ensure!(
                reaches(&cluster, &Source::Node(first.name.clone()), target)?,
                "{target} does not answer"
            );
        }
        Ok(())
    })();
    bring_back(&cluster, &second)?;
    moved?;
    say(format!("{} pods kept their addresses through the loss of {}", before.len(), second.name));
    cluster.kubectl(&["-n", "steady", "delete", "statefulset", "--all"])?;
    namespace.delete_pods(true)
}
