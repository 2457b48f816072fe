//! U43 (`pain.md`): pods' MTU fits the tunnel, for both encapsulations over both
//! families, and follows the NIC's.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use e2e::cluster::{Cluster, PATIENCE};
use e2e::flow::netns;
use e2e::network::{shell_pod, views};
use e2e::settings::{Changed, set_argument};
use e2e::workload::Namespace;
use lab::api;
use lab::checks::probe::PodView;
use lab::plan::{HOST_NODES, Net};
use lab::progress::{Look, say, wait_for};
use lab::state::Node;
use serde_json::json;

/// MTU of the nodes' NICs.
const NIC: usize = 1500;
/// The bridge that has the tunnel's NIC (userspace datapath).
const BRIDGE: &str = "br-phy";
/// What the agent keeps of the tunnel NIC (docs/node-underlay.md).
const RECORD: &str = "weir-tunnel-nic";
/// IPv6 is off on a NIC whose addresses are on its bridge (docs/node-underlay.md).
const IPV6_ON: &str = "sysctl -qw net.ipv6.conf.eth1.disable_ipv6=0";
const CONTROLLER: (&str, &str) = ("deployment", "kube-ovn-controller");
const AGENTS: (&str, &str) = ("daemonset", "kube-ovn-cni");

/// What a tunnel takes: outer IP, UDP, the encapsulation with OVN's options, the inner Ethernet header, and for Geneve
/// what Kube-OVN leaves free beside that.
fn overhead(kind: &str, outer_v4: bool) -> usize {
    let of_v4 = if kind == "geneve" { 100 } else { 50 };
    if outer_v4 { of_v4 } else { of_v4 + 20 }
}

/// An external id of a node's switch.
fn external_id(cluster: &Cluster, node: &Node, key: &str) -> Result<String> {
    let text = cluster
        .in_switch(node, &["ovs-vsctl", "get", "Open_vSwitch", ".", &format!("external_ids:{key}")])?;
    Ok(text.trim().trim_matches('"').to_owned())
}

/// The MTU of a pod's interface.
fn mtu_of(cluster: &Cluster, pod: &PodView) -> Result<usize> {
    let node = cluster.lab.node(&pod.node)?;
    let inside = netns(cluster, &node, pod)?;
    let show = format!("nsenter --net={inside} ip -o link show eth0 | sed -E 's/.* mtu ([0-9]+) .*/\\1/'");
    let shown = cluster.sh(&node, &show)?;
    shown.trim().parse().with_context(|| format!("no MTU in {shown:?}"))
}

/// New pods on both nodes: their MTU is `expected`, packets of exactly that pass between them unfragmented, and of one
/// byte more do not.
fn exact(cluster: &Cluster, what: &str, expected: usize) -> Result<()> {
    let nodes = cluster.nodes()?;
    let namespace = Namespace::create(cluster, "exact")?;
    namespace.apply(&[
        shell_pod(&namespace, "a", &nodes[0].name, &json!({})),
        shell_pod(&namespace, "b", &nodes[1].name, &json!({})),
    ])?;
    namespace.wait_ready(2, PATIENCE)?;
    cluster.settle_flows()?;
    let views = views(&namespace)?;
    for pod in &views {
        let mtu = mtu_of(cluster, pod)?;
        ensure!(mtu == expected, "{what}: pod {} has an MTU of {mtu}, not {expected}", pod.name);
    }
    let inside = netns(cluster, &nodes[0], &views[0])?;
    for v4 in cluster.lab.plan.family.select(true, false) {
        let target = views[1].address(v4)?;
        let headers = if v4 { 28 } else { 48 };
        let passes = |size: usize| -> Result<bool> {
            let ping = format!("ping -n -M do -c 3 -i 0.2 -W 2 -s {size} {target}");
            let script = format!("nsenter --net={inside} {ping} >/dev/null 2>&1 && echo yes || echo no");
            Ok(cluster.sh(&nodes[0], &script)?.trim() == "yes")
        };
        wait_for(&format!("{what}: a packet of {expected} bytes to {target}"), PATIENCE, || {
            Ok(if passes(expected - headers)? { Look::Ready(()) } else { Look::NotYet("no answer".into()) })
        })?;
        ensure!(!passes(expected - headers + 1)?, "{what}: a packet of {} bytes passes", expected + 1);
    }
    say(format!("{what}: pods have {expected}, exactly that passes, a byte more does not"));
    namespace.delete_pods(true)
}

/// The switches' encapsulation, as it was when dropped.
struct Encapsulation<'a>(&'a Cluster);

impl<'a> Encapsulation<'a> {
    fn set(cluster: &'a Cluster, kind: &str) -> Result<Self> {
        let changed = Self(cluster);
        changed.write(kind)?;
        Ok(changed)
    }

    fn write(&self, kind: &str) -> Result<()> {
        for node in self.0.nodes()? {
            let setting = format!("external_ids:ovn-encap-type={kind}");
            self.0.in_switch(&node, &["ovs-vsctl", "set", "Open_vSwitch", ".", &setting])?;
        }
        Ok(())
    }
}

impl Drop for Encapsulation<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.write("geneve") {
            eprintln!("the encapsulation is not geneve again: {error:#}");
        }
    }
}

/// Addresses of the nodes' tunnel NICs, given back when dropped.
struct Addresses<'a>(&'a Cluster);

impl Addresses<'_> {
    fn of(&self, node: &Node) -> Vec<String> {
        self.0.lab.plan.prefixes(Net::Underlay, node.host())
    }

    /// An IPv6 address that only a test gives out.
    fn spare(&self, node: &Node) -> String {
        format!("{}/64", self.0.lab.plan.v6(Net::Underlay, HOST_NODES + 100 + node.number))
    }

    fn wait_tunnel_over(&self, v4: bool) -> Result<()> {
        for node in self.0.nodes()? {
            wait_for(&format!("tunnels of {} over the other family", node.name), PATIENCE, || {
                let address = external_id(self.0, &node, "ovn-encap-ip")?;
                Ok(if address.contains(':') == v4 { Look::NotYet(address) } else { Look::Ready(()) })
            })?;
        }
        Ok(())
    }

    /// The nodes have booted with another configuration: their tunnel NICs have IPv6 alone.
    fn leave_ipv6(&self) -> Result<()> {
        for node in self.0.nodes()? {
            let record = external_id(self.0, &node, RECORD)?;
            let boot = self.0.sh(&node, "cat /proc/sys/kernel/random/boot_id")?;
            ensure!(
                record.contains(boot.trim()),
                "the record of {}'s tunnel NIC has no boot: {record}",
                node.name
            );
            // As ovs-vsctl prints it, so it reads it.
            let before = record.replace(boot.trim(), "before");
            let setting = format!("external_ids:{RECORD}=\"{before}\"");
            self.0.in_switch(&node, &["ovs-vsctl", "set", "Open_vSwitch", ".", &setting])?;
            self.0.sh(&node, &format!("{IPV6_ON}; ip address add {} dev eth1 nodad", self.spare(&node)))?;
            let old: Vec<_> = self.of(&node).into_iter().filter(|net| !net.contains(':')).collect();
            wait_for("IPv6 alone on the bridge", PATIENCE, || {
                let there = self.0.sh(&node, &format!("ip -o address show dev {BRIDGE}"))?;
                let alone =
                    there.contains(&self.spare(&node)) && !old.iter().any(|net| there.contains(&**net));
                Ok(if alone { Look::Ready(()) } else { Look::NotYet(there) })
            })?;
        }
        self.wait_tunnel_over(false)
    }

    fn restore(&self) -> Result<()> {
        for node in self.0.nodes()? {
            let nets = self.of(&node);
            let adds = nets.iter().map(|net| {
                let nodad = if net.contains(':') { "nodad" } else { "" };
                format!("ip address replace {net} dev eth1 {nodad}")
            });
            self.0.sh(&node, &format!("{IPV6_ON}; {}", adds.collect::<Vec<_>>().join(" && ")))?;
            wait_for("the old addresses on the bridge", PATIENCE, || {
                let there = self.0.sh(&node, &format!("ip -o address show dev {BRIDGE}"))?;
                let all =
                    nets.iter().all(|net| there.contains(&**net)) && !there.contains(&self.spare(&node));
                Ok(if all { Look::Ready(()) } else { Look::NotYet(there) })
            })?;
        }
        self.wait_tunnel_over(true)
    }
}

impl Drop for Addresses<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.restore() {
            eprintln!("the tunnels' addresses are not as before: {error:#}");
        }
    }
}

#[test]
fn u43_the_mtu_fits_each_encapsulation_over_each_family() -> Result<()> {
    let cluster = Cluster::open()?;
    let plan = cluster.lab.plan.clone();
    for kind in ["geneve", "vxlan"] {
        // Geneve is what the lab was installed with.
        let _changed = if kind == "geneve" {
            None
        } else {
            let set = |arguments: &mut Vec<String>| set_argument(arguments, "network-type", kind);
            Some((
                Changed::arguments(&cluster, CONTROLLER, set)?,
                Changed::arguments(&cluster, AGENTS, set)?,
                Encapsulation::set(&cluster, kind)?,
            ))
        };
        let v4 = plan.family.v4();
        exact(&cluster, &format!("{kind} over IPv{}", if v4 { 4 } else { 6 }), NIC - overhead(kind, v4))?;
        if plan.family.v4() && plan.family.v6() {
            let addresses = Addresses(&cluster);
            addresses.leave_ipv6()?;
            exact(&cluster, &format!("{kind} over IPv6"), NIC - overhead(kind, false))?;
            addresses.restore()?;
        }
    }
    Ok(())
}

/// The tunnel NICs' MTU, as before when dropped.
struct NicMtu<'a>(&'a Cluster);

impl NicMtu<'_> {
    fn set(&self, mtu: usize) -> Result<()> {
        for node in self.0.nodes()? {
            self.0.sh(&node, &format!("ip link set eth1 mtu {mtu}"))?;
        }
        Ok(())
    }
}

impl Drop for NicMtu<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.set(NIC) {
            eprintln!("the NICs' MTU is not as before: {error:#}");
        }
    }
}

/// How often an event of that reason was told of each node.
fn told(cluster: &Cluster, reason: &str) -> Result<BTreeMap<String, Vec<String>>> {
    let path = format!("/api/v1/events?fieldSelector=reason%3D{reason}");
    let mut told = BTreeMap::<String, Vec<String>>::new();
    for event in api::list(&cluster.lab, &path)? {
        let node = api::text(&event, "/involvedObject/name").to_owned();
        told.entry(node).or_default().push(api::text(&event, "/message").to_owned());
    }
    Ok(told)
}

#[test]
fn u43_new_pods_follow_the_nics_mtu_and_an_event_says_so() -> Result<()> {
    const SMALLER: usize = 1460;
    let cluster = Cluster::open()?;
    let nodes = cluster.nodes()?;
    let outer_v4 = cluster.lab.plan.family.v4();
    let (before, after) = (NIC - overhead("geneve", outer_v4), SMALLER - overhead("geneve", outer_v4));
    let namespace = Namespace::create(&cluster, "shrink")?;
    namespace.apply(&[shell_pod(&namespace, "old", &nodes[0].name, &json!({}))])?;
    namespace.wait_ready(1, PATIENCE)?;
    let nics = NicMtu(&cluster);
    nics.set(SMALLER)?;
    let says = |mtu: usize, had: usize| {
        wait_for(&format!("event PodMtuChanged with {mtu} on all nodes"), PATIENCE, || {
            let told = told(&cluster, "PodMtuChanged")?;
            let all = nodes.iter().all(|node| {
                let messages = told.get(&node.name).map(Vec::as_slice).unwrap_or_default();
                messages
                    .iter()
                    .any(|m| m.contains(&format!("of {mtu} from")) && m.contains(&format!("had {had}")))
            });
            Ok(if all { Look::Ready(()) } else { Look::NotYet(format!("{told:?}")) })
        })
    };
    says(after, before)?;
    exact(&cluster, &format!("NIC of {SMALLER}"), after)?;
    let old = views(&namespace)?.remove(0);
    ensure!(mtu_of(&cluster, &old)? == before, "the MTU of a running pod changed");
    drop(nics);
    says(before, after)?;
    exact(&cluster, &format!("NIC of {NIC} again"), before)?;
    namespace.delete_pods(true)
}
