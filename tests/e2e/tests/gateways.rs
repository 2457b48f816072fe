//! Gateways that change under traffic: type, nodes, members of a shared one. The new way is there before the old one is
//! gone; what is lost is counted, a packet a millisecond.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::cluster::{Cluster, PATIENCE};
use e2e::flow::{Flow, Loss};
use e2e::loss::{bring_back, controller_elsewhere, wait_not_ready};
use e2e::network::{Made, outside_address, reaches, shell_pod, views, wait_seen_as};
use e2e::workload::Namespace;
use lab::checks::probe::{self, PodView};
use lab::node;
use lab::progress::{Look, say, wait_for};
use lab::state::Node;
use serde_json::{Value, json};

const SUBNET: &str = "turning";
/// The longest outage of a planned change. Seen are 0 to 2 packets, since nodes hear of it one by one.
const PLANNED: Duration = Duration::from_millis(250);
/// A member of a shared gateway that dies is left out after this: the controller's probe, every second, has to
/// miss it three times (D79 of `docs/compatibility.md`), and the machine is shared.
const PROBED: Duration = Duration::from_secs(15);

fn families(cluster: &Cluster) -> Vec<bool> {
    cluster.lab.plan.family.select(true, false)
}

fn patch(cluster: &Cluster, spec: Value) -> Result<()> {
    let patch = json!({"spec": spec}).to_string();
    cluster.kubectl(&["patch", "subnet", SUBNET, "--type=merge", "-p", &patch]).map(drop)
}

/// A subnet with these fields and pods in it, so many on each of the first nodes.
fn pods<'a>(
    cluster: &'a Cluster,
    made: &mut Made<'a>,
    spec: Value,
    counts: &[usize],
) -> Result<Namespace<'a>> {
    let cidr = cluster.lab.plan.family.join("10.125.0.0/24", "fd00:10:125::/64");
    let mut all = json!({"cidrBlock": cidr, "natOutgoing": true});
    for (key, value) in spec.as_object().into_iter().flatten() {
        all[key] = value.clone();
    }
    made.subnet(SUBNET, all)?;
    let namespace = Namespace::create(cluster, "turning")?;
    let annotations = json!({"ovn.kubernetes.io/logical_switch": SUBNET});
    let mut pods = Vec::new();
    for (node, count) in cluster.nodes()?.iter().zip(counts) {
        for i in 0..*count {
            pods.push(shell_pod(&namespace, &format!("{}-{i}", node.name), &node.name, &annotations));
        }
    }
    namespace.apply(&pods)?;
    namespace.wait_ready(pods.len(), PATIENCE)?;
    Ok(namespace)
}

/// Pings from pods to the outside host, in every family.
fn to_the_world(cluster: &Cluster, pods: &[PodView]) -> Result<Vec<Flow>> {
    let mut flows = Vec::new();
    for pod in pods {
        for v4 in families(cluster) {
            flows.push(Flow::start(cluster, pod, outside_address(cluster, v4)?)?);
        }
    }
    std::thread::sleep(Duration::from_secs(1));
    Ok(flows)
}

fn end(flows: Vec<Flow>, what: &str) -> Result<Vec<Loss>> {
    let losses = flows.into_iter().map(Flow::end).collect::<Result<Vec<_>>>()?;
    losses.iter().for_each(|loss| say(format!("{what}: {loss}")));
    Ok(losses)
}

fn planned(losses: &[Loss], what: &str) -> Result<()> {
    let wrong: Vec<_> = losses.iter().filter(|loss| loss.outage > PLANNED).map(Loss::to_string).collect();
    ensure!(wrong.is_empty(), "{what} cut the traffic: {}", wrong.join("; "));
    Ok(())
}

/// Waits until each pod leaves through the node that `through` gives it, in every family.
fn wait_exits(cluster: &Cluster, pods: &[PodView], through: &dyn Fn(&PodView) -> Result<Node>) -> Result<()> {
    for pod in pods {
        for v4 in families(cluster) {
            wait_seen_as(cluster, &pod.source(), v4, &through(pod)?)?;
        }
    }
    Ok(())
}

#[test]
fn type_and_node_of_a_gateway_change_under_traffic() -> Result<()> {
    let cluster = Cluster::open()?;
    let nodes = cluster.nodes()?;
    let mut made = Made::new(&cluster);
    let namespace = pods(&cluster, &mut made, json!({"gatewayType": "distributed"}), &[1, 1])?;
    let views = views(&namespace)?;
    let own = |pod: &PodView| cluster.lab.node(&pod.node);
    wait_exits(&cluster, &views, &own)?;
    let mut wrong = Vec::new();
    let steps = [
        (
            "distributed to centralized",
            json!({"gatewayType": "centralized", "gatewayNode": nodes[1].name}),
            Some(1),
        ),
        ("another node", json!({"gatewayNode": nodes[0].name}), Some(0)),
        ("back", json!({"gatewayNode": nodes[1].name}), Some(1)),
        ("centralized to distributed", json!({"gatewayType": "distributed", "gatewayNode": ""}), None),
    ];
    for (what, change, through) in steps {
        let flows = to_the_world(&cluster, &views)?;
        patch(&cluster, change)?;
        let exit = |pod: &PodView| match through {
            Some(number) => Ok(nodes[number].clone()),
            None => own(pod),
        };
        wait_exits(&cluster, &views, &exit)?;
        std::thread::sleep(Duration::from_secs(1));
        if let Err(error) = planned(&end(flows, what)?, what) {
            wrong.push(error.to_string());
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    namespace.delete_pods(true)
}

/// Waits until the policies of the subnet lead to exactly so many nodes.
fn wait_members(cluster: &Cluster, count: usize) -> Result<()> {
    let condition = format!("external_ids:subnet={SUBNET}");
    let args = ["ovn-nbctl", "--bare", "--columns=nexthops", "find", "Logical_Router_Policy", &condition];
    wait_for(&format!("{count} members of the gateway"), PATIENCE, || {
        let text = cluster.in_central(&args)?;
        let policies: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let well = policies.len() == families(cluster).len()
            && policies.iter().all(|hops| hops.split_whitespace().count() == count);
        Ok(if well { Look::Ready(()) } else { Look::NotYet(text) })
    })
}

/// Whether what a pod sends to the world, in the cluster's first family, leaves by that node.
fn through(cluster: &Cluster, pod: &PodView, node: &Node) -> Result<bool> {
    let v4 = families(cluster)[0];
    let target = outside_address(cluster, v4)?;
    ensure!(reaches(cluster, &pod.source(), target)?, "{} is cut off", pod.name);
    let (family, source) = (if v4 { "ipv4" } else { "ipv6" }, pod.address(v4)?);
    let known = cluster.sh(node, &format!("conntrack -L -f {family} -s {source} -d {target} 2>/dev/null"))?;
    // The reply goes to the node's own address: it was translated there.
    let own = probe::node_address(&cluster.lab, node, v4);
    Ok(known.contains(&format!("dst={own} ")))
}

#[test]
fn a_member_of_a_shared_gateway_is_planned_away_and_lost() -> Result<()> {
    let cluster = Cluster::open()?;
    let nodes = cluster.nodes()?;
    let (first, second) = (nodes[0].clone(), nodes[1].clone());
    controller_elsewhere(&cluster, &second)?;
    let mut made = Made::new(&cluster);
    let both = format!("{},{}", first.name, second.name);
    let spec = json!({"gatewayType": "centralized", "gatewayNode": both, "enableEcmp": true});
    // Of several, some take each way: it is chosen by addresses.
    let namespace = pods(&cluster, &mut made, spec, &[10])?;
    let all = views(&namespace)?;
    wait_members(&cluster, 2)?;
    cluster.settle_flows()?;
    let (near, far): (Vec<_>, Vec<_>) = {
        let mut ways = Vec::new();
        for pod in &all {
            ways.push((pod.clone(), through(&cluster, pod, &second)?));
        }
        ways.into_iter().partition(|(_, far)| !far)
    };
    say(format!("{} pods leave by {}, {} by {}", near.len(), first.name, far.len(), second.name));
    ensure!(!near.is_empty() && !far.is_empty(), "all take one way");
    // A flood from each would be more than the machine takes.
    let staying: Vec<PodView> =
        near.into_iter().take(2).chain(far.into_iter().take(2)).map(|(pod, _)| pod).collect();
    let flows = to_the_world(&cluster, &staying)?;
    patch(&cluster, json!({"gatewayNode": first.name}))?;
    wait_members(&cluster, 1)?;
    cluster.settle_flows()?;
    std::thread::sleep(Duration::from_secs(1));
    planned(&end(flows, "a member leaves")?, "a member that leaves")?;
    let flows = to_the_world(&cluster, &staying)?;
    patch(&cluster, json!({"gatewayNode": both}))?;
    wait_members(&cluster, 2)?;
    cluster.settle_flows()?;
    std::thread::sleep(Duration::from_secs(1));
    planned(&end(flows, "a member joins")?, "a member that joins")?;

    let flows = to_the_world(&cluster, &staying)?;
    let killed = Instant::now();
    node::stop(&cluster.lab, &second, true)?;
    let left = (|| -> Result<Duration> {
        wait_members(&cluster, 1)?;
        let after = killed.elapsed();
        std::thread::sleep(Duration::from_secs(3));
        Ok(after)
    })();
    let losses = end(flows, "a member's node dies");
    // Known to be dead by then, or its return would be no news.
    let dead = wait_not_ready(&cluster, &second);
    bring_back(&cluster, &second)?;
    let (after, losses) = (left?, losses?);
    dead?;
    say(format!("left out {:.1} s after its node died", after.as_secs_f64()));
    let cut: Vec<&Loss> = losses.iter().filter(|loss| loss.outage > PLANNED).collect();
    say(format!("{} of {} ways led through it", cut.len(), losses.len()));
    let longest = cut.iter().map(|loss| loss.outage).max().context("no way led through the dead node")?;
    ensure!(longest <= PROBED, "{longest:?} without an answer");
    wait_members(&cluster, 2)?;
    for pod in &staying {
        for v4 in families(&cluster) {
            let target = probe::node_address(&cluster.lab, &second, v4);
            ensure!(reaches(&cluster, &pod.source(), target)?, "{} does not reach {target}", pod.name);
        }
    }
    namespace.delete_pods(true)
}
