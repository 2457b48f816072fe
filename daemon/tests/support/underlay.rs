//! A NIC with a physical network behind it, on a [`Node`](super::Node), and the agent's part that bridges it.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use daemon::flags::Flags;
use daemon::hostnet::HostNet;
use daemon::kube::{OwnNodeFacts, ProviderNetworkFacts};
use daemon::netlink::{Change, Netlink, Veth};
use daemon::node::NodeStatus;
use daemon::parts::NodeParts;
use daemon::sys::{EthtoolSocket, Namespace};
use daemon::underlay::Underlay;
use daemon::underlay::managers::Managers;
use ovsdb::{Operation, Uuid, Value};
use tokio::sync::{broadcast, watch};

use super::{Node, new_namespace, wait_view};

/// The wire's other end has 10.9.0.1, 10.9.1.1 and fd09::1.
pub struct Wire {
    pub namespace: Namespace,
}

/// Runs a script in a namespace and returns what it printed.
pub fn sh(namespace: &Namespace, script: &str) -> String {
    let script = script.to_owned();
    let run = move || {
        let output = Command::new("sh").args(["-ec", &script]).stdin(Stdio::null()).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{script}: {error}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    namespace.run(run).unwrap()
}

/// What the host configures on its NIC at boot: two addresses of a prefix and one of another, with label, broadcast and a
/// route metric; IPv6; default routes; a table of its own with a rule; a route with an MTU.
pub const CONFIGURE: &str = "ip addr add 10.9.0.11/24 brd 10.9.0.255 dev NIC
ip addr add 10.9.0.12/24 dev NIC label NIC:1
ip addr add 10.9.1.11/24 dev NIC metric 300
ip addr add fd09::11/64 dev NIC nodad
ip addr add fd09::12/64 dev NIC nodad
ip addr change fd09::12/64 dev NIC
ip route add default via 10.9.0.1 dev NIC proto dhcp src 10.9.0.11 metric 100
ip route add 10.77.0.0/16 via 10.9.0.1 dev NIC mtu lock 1300
ip route add 10.78.0.0/16 dev NIC scope link table 100
ip route add default via 10.9.1.1 dev NIC table 100
ip -6 route add default via fd09::1 dev NIC metric 50
ip -6 route add fd99::/64 via fd09::1 dev NIC table 100";

impl Wire {
    /// Makes `nic` on the node, configured as by the host.
    pub async fn plug(node: &Node, nic: &str) -> Self {
        let wire = Self::bare(node, nic).await;
        sh(&node.namespace, &CONFIGURE.replace("NIC", nic));
        wire
    }

    /// The same, but the NIC appears with everything that it carries.
    pub async fn plug_at_once(node: &Namespace, host: &HostNet, nic: &str) -> Self {
        let wire = Self::bare_on(host, "early").await;
        sh(node, &CONFIGURE.replace("NIC", "early").replace("label early:1", &format!("label {nic}:1")));
        sh(node, &format!("ip link set early name {nic}"));
        wire
    }

    /// Makes `nic` on the node, up and without addresses.
    pub async fn bare(node: &Node, nic: &str) -> Self {
        Self::bare_on(&node.host, nic).await
    }

    /// The same on any host.
    pub async fn bare_on(host: &HostNet, nic: &str) -> Self {
        let namespace = new_namespace();
        let veth =
            Veth { name: nic, peer: "wire", peer_mac: None, peer_namespace: Some(&namespace), mtu: None };
        host.netlink.add_veth(&veth).await.unwrap();
        namespace.run(|| EthtoolSocket::open().unwrap().tx_checksum_off("wire").unwrap()).unwrap();
        let inside = Netlink::in_namespace(&namespace).await.unwrap();
        let link = inside.require_link("wire").await.unwrap();
        inside.set_up(link.index).await.unwrap();
        for net in ["10.9.0.1/24", "10.9.1.1/24", "fd09::1/64"] {
            inside.add_address(link.index, net.parse().unwrap(), true).await.unwrap();
        }
        Self { namespace }
    }
}

/// [`carried`] without what says how it came to be: labels, and that the kernel made no on-link route.
pub fn plain(carried: &str) -> Vec<String> {
    let word = |word: &&str| !["noprefixroute", "nodad"].contains(word);
    let line = |line: &str| {
        let words = line.split_whitespace().filter(word);
        let words = words.map(|word| if word.starts_with("LINK:") { "LINK" } else { word });
        words
            .map(|word| word.trim_end_matches('\\'))
            .filter(|word| !word.is_empty())
            .collect::<Vec<_>>()
            .join(" ")
    };
    let mut lines: Vec<String> = carried.lines().map(line).collect();
    lines.sort();
    lines
}

/// Everything movable that a link carries, without its name; and settings of a NIC.
pub fn carried(namespace: &Namespace, link: &str) -> String {
    let script = format!(
        "ip -o addr show dev {link} | sed 's/^[0-9]*: //' | grep -v 'inet6 fe80'
        ip -4 route show table all dev {link} | grep -vE '^(local|broadcast|multicast)'
        ip -6 route show table all dev {link} | grep -vE '^(local|anycast|multicast|fe80|ff00)' || true"
    );
    sh(namespace, &format!("({script}) || true")).replace(link, "LINK")
}

/// A node never is without its address and its way out, wherever they are; IPv6 may be on its way home, written down.
pub fn reachable(node: &Node, record: &str, what: &str, leaving: bool) {
    let mut there = sh(&node.namespace, "ip -o addr show; ip route show; ip -6 route show");
    let view = node.ovs.view();
    if leaving && let Some(record) = view.root_external_id(record) {
        there.push_str(&record.replace("::/0 via fd09::1", "via fd09::1 dev"));
    }
    let v4 = ["10.9.0.11/24", "10.9.0.12/24", "10.9.1.11/24", "default via 10.9.0.1"];
    let own = sh(&node.namespace, "ip -o addr show; ip route show");
    for needed in v4 {
        assert!(own.contains(needed), "{what}: {needed} is lost\n{own}");
    }
    for needed in ["fd09::11/64", "fd09::12/64", "via fd09::1 dev"] {
        assert!(there.contains(needed), "{what}: {needed} is lost\n{there}");
    }
}

/// The agent's part, and what it is told.
pub struct Agent {
    pub cluster: Arc<daemon::kube::Cluster>,
    status: watch::Sender<NodeStatus>,
}

impl Agent {
    pub fn new(node: &Node) -> Self {
        let cluster = node.plugger.cluster.clone();
        cluster.provider_networks.replace(BTreeMap::new());
        cluster.vlans.replace(BTreeMap::new());
        cluster.own_node.replace(BTreeMap::from([("n1".into(), OwnNodeFacts::default())]));
        cluster.external_gateway.replace(BTreeMap::new());
        Self { cluster, status: watch::Sender::default() }
    }

    /// What its loops work with.
    pub fn parts(&self, node: &Node) -> NodeParts {
        let (ovs, host) = (node.ovs.clone(), node.host.clone());
        let alone = NodeParts::alone("n1".into(), ovs, host, self.status.subscribe());
        NodeParts { cluster: self.cluster.clone(), ..alone }
    }

    /// A process of it.
    pub fn start(&self, node: &Node) -> Underlay {
        let flags = Flags::parse_from(["x", &format!("--ovs-socket={}", node.server.socket().display())]);
        Underlay::new(self.parts(node), Arc::new(flags), Managers::none())
    }

    pub fn want(&self, name: &str, nic: &str) {
        self.put(ProviderNetworkFacts {
            name: name.into(),
            uid: "u".into(),
            default_interface: nic.into(),
            ..ProviderNetworkFacts::default()
        });
    }

    pub fn put(&self, network: ProviderNetworkFacts) {
        self.cluster.provider_networks.put(network.name.as_str().into(), Some(network.clone()));
    }

    pub fn drop(&self, name: &str) {
        self.cluster.provider_networks.put(name.into(), None);
    }

    pub fn label(&self, labels: &[(&str, &str)]) {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        self.cluster.own_node.put("n1".into(), Some(OwnNodeFacts { labels, ..OwnNodeFacts::default() }));
    }
}

/// What the kernel reports, as the agent gets it.
pub async fn changes(node: &Node) -> broadcast::Sender<Change> {
    let sender = broadcast::Sender::new(4096);
    let mut monitor = node.host.monitor().await.unwrap();
    let feed = sender.clone();
    tokio::spawn(async move {
        while let Some(change) = monitor.next().await {
            let _ = feed.send(change);
        }
    });
    sender
}

/// Waits for something that must become true soon.
pub async fn until(what: &str, holds: impl FnMut() -> bool) {
    until_shown(what, holds, String::new).await;
}

/// As [`until`], and shows what there is when it does not become true.
pub async fn until_shown(what: &str, mut holds: impl FnMut() -> bool, shown: impl FnOnce() -> String) {
    // A disk that is busy holds databases up for long.
    for _ in 0..12_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}\n{}", shown());
}

/// A pair of patch ports, as ovn-controller makes them.
pub async fn patch(node: &Node, bridge: &str, name: &str, peer_bridge: &str, peer: &str) {
    let view = node.ovs.view();
    let mut operations = Vec::new();
    for (bridge, name, peer) in [(bridge, name, peer), (peer_bridge, peer, name)] {
        let [port, interface] = [Uuid::new_v4(), Uuid::new_v4()];
        operations.extend([
            Operation::insert("Interface")
                .uuid(interface)
                .column("name", name)
                .column("type", "patch")
                .column("options", Value::string_map([("peer", peer)]))
                .build(),
            Operation::insert("Port")
                .uuid(port)
                .column("name", name)
                .column("interfaces", Value::uuids([interface]))
                .build(),
            Operation::mutate("Bridge")
                .by_uuid(view.bridge(bridge).unwrap().uuid)
                .insert_set("ports", Value::uuids([port]))
                .build(),
        ]);
    }
    node.ovs.commit(operations).await.unwrap();
    wait_view(&node.ovs, "the patch port", |view| {
        view.interface(name).is_some_and(|interface| interface.ofport() > Some(0))
    })
    .await;
}
