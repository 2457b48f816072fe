//! External networks of VPCs (`docs/external.md`): a VPC leaves by the nodes that answer BFD, the world answers, and a
//! node that loses the physical network is left out until it has it back.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::cluster::{Cluster, PATIENCE};
use e2e::flow::{Flow, Loss};
use e2e::network::{Made, shell_pod, view, views, wait_condition};
use e2e::workload::Namespace;
use lab::checks::probe::{PodView, Source, outside};
use lab::plan::{HOST_OUTSIDE, Net};
use lab::progress::{Look, say, wait_for};
use lab::state::Node;
use lab::{api, netns};
use serde_json::{Value, json};

const WIRES: &str = "out-wires";
const WAN: &str = "e2e-wan";
const VPC: &str = "e2e-out";
const INSIDE: &str = "e2e-out-inside";
const BLOCKS: [&str; 2] = ["10.199.0.0/24", "fd00:10:199::/64"];
/// The longest outage when a node loses its wire: BFD tells within a second; the router's port may have to move.
const CUT: Duration = Duration::from_secs(15);

/// Labels of nodes, routes of the outside host and wires, put back when dropped.
struct Restored<'a> {
    cluster: &'a Cluster,
    nodes: Vec<Node>,
}

impl Drop for Restored<'_> {
    fn drop(&mut self) {
        for node in &self.nodes {
            let healed = netns::heal(&self.cluster.lab.plan, &node.member(), &[Net::Physical]);
            let label = format!("{}-", crds::keys::EXTERNAL_GW_LABEL);
            let label = self.cluster.kubectl(&["label", "node", &node.name, &label]);
            if let Err(error) = healed.and(label.map(drop)) {
                eprintln!("{} is not as it was: {error:#}", node.name);
            }
        }
        let routes = BLOCKS.map(|block| format!("ip route del {block} 2>/dev/null")).join("; ");
        let _ = Source::Outside.shell(&self.cluster.lab, &format!("{routes}; true"));
    }
}

/// Peers and states of the routers' BFD sessions.
fn sessions(cluster: &Cluster) -> Result<BTreeMap<IpAddr, String>> {
    let args = [
        "ovn-nbctl",
        "--format=csv",
        "--data=bare",
        "--no-headings",
        "--columns=dst_ip,status",
        "list",
        "BFD",
    ];
    let text = cluster.in_central(&args)?;
    let rows = text.lines().filter_map(|line| line.trim().split_once(','));
    rows.map(|(peer, status)| Ok((peer.parse()?, status.to_owned()))).collect()
}

fn wait_sessions(cluster: &Cluster, wanted: &BTreeMap<IpAddr, String>) -> Result<Duration> {
    let began = Instant::now();
    wait_for(&format!("BFD {wanted:?}"), PATIENCE, || {
        let now = sessions(cluster)?;
        Ok(if now == *wanted { Look::Ready(()) } else { Look::NotYet(format!("{now:?}")) })
    })?;
    Ok(began.elapsed())
}

/// Addresses of an OvnEip that is ready.
fn wait_eip(cluster: &Cluster, name: &str) -> Result<Vec<IpAddr>> {
    wait_for(&format!("OvnEip {name} to be ready"), PATIENCE, || {
        let eip = api::get(&cluster.lab, &format!("/apis/kubeovn.io/v1/ovn-eips/{name}"))?;
        let addresses = ["/status/v4Ip", "/status/v6Ip"].map(|at| api::text(&eip, at).parse::<IpAddr>());
        let addresses: Vec<IpAddr> = addresses.into_iter().flatten().collect();
        let families = cluster.lab.plan.family.select((), ()).len();
        let ready = eip["status"]["ready"] == json!(true) && addresses.len() == families;
        Ok(if ready { Look::Ready(addresses) } else { Look::NotYet(eip["status"].to_string()) })
    })
}

fn flows(cluster: &Cluster, pods: &[PodView], world: &[IpAddr]) -> Result<Vec<Flow>> {
    let pairs = pods.iter().flat_map(|pod| world.iter().map(move |to| (pod, *to)));
    pairs.map(|(pod, to)| Flow::start(cluster, pod, to)).collect()
}

/// What they lost, said aloud.
fn end(flows: Vec<Flow>, what: &str) -> Result<Vec<Loss>> {
    let losses = flows.into_iter().map(Flow::end).collect::<Result<Vec<_>>>()?;
    losses.iter().for_each(|loss| say(format!("{what}: {loss}")));
    Ok(losses)
}

fn within(losses: &[Loss], limit: Duration) -> Result<()> {
    let longest = losses.iter().max_by_key(|loss| loss.outage).context("no flow")?;
    ensure!(longest.outage <= limit, "more than {limit:?}: {longest}");
    Ok(())
}

/// Provider network, external network, a VPC that leaves by it, and a pod of it on each node.
fn build<'a>(cluster: &'a Cluster, nodes: &[Node], namespace: &Namespace<'_>) -> Result<Made<'a>> {
    let plan = &cluster.lab.plan;
    let family = plan.family;
    let label = format!("{}=true", crds::keys::EXTERNAL_GW_LABEL);
    let mut made = Made::new(cluster);
    made.object("ProviderNetwork", "provider-networks", WIRES, json!({"defaultInterface": "eth2"}))?;
    for node in nodes {
        cluster.kubectl(&["label", "node", &node.name, &label, "--overwrite"])?;
    }
    made.object("Vlan", "vlans", WIRES, json!({"id": 0, "provider": WIRES}))?;
    // Hosts of the physical network have the first addresses of its block.
    let (v4, v6) = (plan.v4(Net::Physical, 0).octets(), plan.v6(Net::Physical, 0).segments());
    let v4 = format!("{}.{}.{}.", v4[0], v4[1], v4[2]);
    let v6 = format!("{:x}:{:x}:{:x}:{:x}::", v6[0], v6[1], v6[2], v6[3]);
    let world: Vec<String> =
        plan.addresses(Net::Physical, HOST_OUTSIDE).iter().map(ToString::to_string).collect();
    let taken = family.select(format!("{v4}1..{v4}99"), format!("{v6}1..{v6}ff"));
    let wan = json!({
        "protocol": family.select("IPv4", "IPv6").join(",").replace("IPv4,IPv6", "Dual"),
        "cidrBlock": family.select(format!("{v4}0/24"), format!("{v6}/64")).join(","),
        "gateway": world.join(","), "excludeIps": taken, "vlan": WIRES, "enableExternalLBAddress": true,
    });
    made.object("Subnet", "subnets", WAN, wan)?;
    for node in nodes {
        made.object("OvnEip", "ovn-eips", &node.name, json!({"externalSubnet": WAN, "type": "lsp"}))?;
    }
    made.vpc(VPC, json!({"extraExternalSubnets": [WAN], "enableBfd": true}))?;
    let block = family.select(BLOCKS[0], BLOCKS[1]).join(",");
    made.subnet(INSIDE, json!({"vpc": VPC, "cidrBlock": block, "enableEcmp": true}))?;
    let annotations = json!({"ovn.kubernetes.io/logical_switch": INSIDE});
    let pods: Vec<Value> = nodes
        .iter()
        .map(|node| shell_pod(namespace, &format!("on-{}", node.name), &node.name, &annotations))
        .collect();
    namespace.apply(&pods)?;
    Ok(made)
}

/// A Service at an address of the network: every node has the flow of its TCP port, and that SCTP can't be served, which
/// every node finds, is one event.
fn a_service_is_told_of_once(cluster: &Cluster, nodes: &[Node], namespace: &Namespace<'_>) -> Result<()> {
    let plan = &cluster.lab.plan;
    // Nobody has this one: behind the hosts, and excluded from the Subnet's addresses.
    let address = *plan.addresses(Net::Physical, 90).first().context("no family")?;
    let port = |protocol: &str, port: u16| json!({"name": protocol.to_lowercase(), "protocol": protocol, "port": port});
    namespace.apply(&[json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "outside", "namespace": namespace.name},
        "spec": {"type": "LoadBalancer", "selector": {"app": "nobody"}, "ports": [port("TCP", 80), port("SCTP", 81)]},
    })])?;
    let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": address.to_string()}]}}}).to_string();
    let patch = ["patch", "service", "outside", "--subresource=status", "--type=merge", "-p", &status];
    cluster.kubectl(&[&["-n", &namespace.name], &patch[..]].concat())?;
    for node in nodes {
        let dump = [
            "ovs-ofctl",
            "-O",
            "OpenFlow14",
            "dump-flows",
            "br-out-wires",
            "cookie=0x1000/0xfffffffffffffffe",
        ];
        wait_for(&format!("{} to have the flow of {address}", node.name), PATIENCE, || {
            let shown = cluster.in_switch(node, &dump)?;
            let there = shown.contains(&address.to_string()) && shown.contains("tp_dst=80");
            Ok(if there { Look::Ready(()) } else { Look::NotYet(shown) })
        })?;
    }
    let told = || -> Result<Vec<Value>> {
        let list = api::get(&cluster.lab, &format!("/api/v1/namespaces/{}/events", namespace.name))?;
        let items = list["items"].as_array().cloned().unwrap_or_default();
        Ok(items.into_iter().filter(|event| event["reason"] == "UnderlayServiceFlowFailed").collect())
    };
    wait_for("the event of the Service", PATIENCE, || {
        Ok(if told()?.is_empty() { Look::NotYet("none".into()) } else { Look::Ready(()) })
    })?;
    let told = told()?;
    ensure!(told.len() == 1, "{told:#?}");
    let text = api::text(&told[0], "/message");
    ensure!(text.contains("81/SCTP") && text.contains(&address.to_string()), "{text}");
    say(format!("{} tells: {text}", api::text(&told[0], "/source/component")));
    cluster.kubectl(&["-n", &namespace.name, "delete", "service", "outside"])?;
    Ok(())
}

#[test]
fn a_vpc_leaves_by_the_nodes_that_answer() -> Result<()> {
    let cluster = Cluster::open()?;
    let nodes = cluster.nodes()?;
    let restored = Restored { cluster: &cluster, nodes: nodes.clone() };
    let namespace = Namespace::create(&cluster, "e2e-external")?;
    let made = build(&cluster, &nodes, &namespace)?;
    namespace.wait_ready(nodes.len(), PATIENCE)?;
    let pods = views(&namespace)?;

    // Every node has its port in the network, and the router watches all of them.
    let port = wait_eip(&cluster, &format!("{VPC}-{WAN}"))?;
    let mut up = BTreeMap::new();
    for node in &nodes {
        let addresses = wait_eip(&cluster, &node.name)?;
        up.extend(addresses.into_iter().map(|address| (address, "up".to_owned())));
    }
    say(format!("all sessions are up after {:?}", wait_sessions(&cluster, &up)?));
    wait_condition(&cluster, "vpcs", VPC, "Ready", "True")?;
    a_service_is_told_of_once(&cluster, &nodes, &namespace)?;

    // The world knows the way back.
    for (block, via) in cluster.lab.plan.family.select(BLOCKS[0], BLOCKS[1]).iter().zip(&port) {
        Source::Outside.shell(&cluster.lab, &format!("ip route replace {block} via {via}"))?;
    }
    let world = cluster.lab.plan.addresses(Net::Physical, HOST_OUTSIDE);
    for pod in &pods {
        for to in &world {
            let seen = wait_for(&format!("{} to reach {to}", pod.name), PATIENCE, || {
                Ok(match outside(&cluster.lab, &pod.source(), *to) {
                    Ok(seen) => Look::Ready(seen),
                    Err(error) => Look::NotYet(format!("{error:#}")),
                })
            })?;
            ensure!(seen == pod.address(to.is_ipv4())?, "{} is seen as {seen}: nobody translates", pod.name);
        }
    }
    let quiet = flows(&cluster, &pods, &world)?;
    std::thread::sleep(Duration::from_secs(5));
    within(&end(quiet, "nothing happens")?, Duration::from_millis(200))?;

    // One node after the other loses the physical network, and has it again: the one that serves the router's port,
    // and one that is only a next hop.
    for cut in &nodes {
        let mut left = up.clone();
        for address in wait_eip(&cluster, &cut.name)? {
            left.insert(address, "down".to_owned());
        }
        let running = flows(&cluster, &pods, &world)?;
        std::thread::sleep(Duration::from_secs(2));
        netns::cut(&cluster.lab.plan, &cut.member(), &[Net::Physical])?;
        say(format!(
            "{} is cut; its sessions alone are down after {:?}",
            cut.name,
            wait_sessions(&cluster, &left)?
        ));
        within(&end(running, "a node is cut")?, CUT)?;
        let running = flows(&cluster, &pods, &world)?;
        std::thread::sleep(Duration::from_secs(2));
        within(&end(running, "by the other node")?, Duration::from_millis(200))?;
        let running = flows(&cluster, &pods, &world)?;
        std::thread::sleep(Duration::from_secs(1));
        netns::heal(&cluster.lab.plan, &cut.member(), &[Net::Physical])?;
        say(format!("{} is back; its sessions are up after {:?}", cut.name, wait_sessions(&cluster, &up)?));
        within(&end(running, "a node is back")?, Duration::from_secs(2))?;
    }

    // In the wrong order: what is in use says so and waits.
    cluster.kubectl(&["delete", "provider-network", WIRES, "--wait=false"])?;
    wait_for("the ProviderNetwork to say for what it waits", PATIENCE, || {
        let network = api::get(&cluster.lab, &format!("/apis/kubeovn.io/v1/provider-networks/{WIRES}"))?;
        let conditions = network["status"]["conditions"].to_string();
        let says = conditions.contains("InUse") && conditions.contains(&format!("Vlan {WIRES}"));
        Ok(if says { Look::Ready(()) } else { Look::NotYet(conditions) })
    })?;
    ensure!(view(&pods, &pods[0].name)?.node == pods[0].node);
    outside(&cluster.lab, &pods[0].source(), *world.first().context("no world")?)?;
    drop(namespace);
    drop(made);
    for node in &nodes {
        let bridges = cluster.in_switch(node, &["ovs-vsctl", "list-br"])?;
        wait_for(&format!("{} to have its NIC again", node.name), PATIENCE, || {
            let there = cluster.sh(node, "ip -o addr show dev eth2")?;
            Ok(if there.contains("inet") { Look::Ready(()) } else { Look::NotYet(bridges.clone()) })
        })?;
        let left = cluster.sh(node, "ip netns list")?;
        ensure!(!left.contains("ovnext"), "{}: {left}", node.name);
    }
    drop(restored);
    Ok(())
}
