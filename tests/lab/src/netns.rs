//! A lab's networks: namespaces, bridges, veth pairs, built with `ip`.
//!
//! In: the plan. Out: links and addresses. The bridges of a lab live in a
//! namespace of their own (`net`), so the machine's namespace gets exactly one
//! link: its way to the API server.
//!
//! ```text
//!  machine ──weirlabI── br0 ──┬── cp   eth0      br1 ──┬── out  eth1
//!                             ├── out  eth0            ├── node eth1
//!                             └── node eth0            └── node ...
//! ```
//!
//! `br2` with everybody's eth2 is like `br1`.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::sched::{CloneFlags, setns};

use crate::plan::{HOST_CONTROL, HOST_MACHINE, HOST_OUTSIDE, Net, Plan};
use crate::run::{capture, capture_with_input, command, run, succeeds};

/// Where `ip netns` keeps its names.
const FOLDER: &str = "/run/netns";

/// The file of a named namespace.
pub fn path(name: &str) -> PathBuf {
    Path::new(FOLDER).join(name)
}

/// Moves the calling thread into a named network namespace.
pub fn enter(name: &str) -> Result<()> {
    let path = path(name);
    let file = File::open(&path).with_context(|| format!("no network namespace {name}"))?;
    setns(file, CloneFlags::CLONE_NEWNET).with_context(|| format!("cannot enter {}", path.display()))
}

/// Claims a lab index: creating its switch namespace either succeeds or says
/// that another lab has it, whatever state folder that one uses.
pub fn claim(plan: &Plan) -> bool {
    !path(&plan.netns("net")).exists() && succeeds("ip", ["netns", "add", &plan.netns("net")])
}

/// Runs a list of `ip` commands in a namespace (none: the machine's own).
fn batch(netns: Option<&str>, lines: &[String]) -> Result<()> {
    let mut ip = command("ip", [""; 0]);
    if let Some(netns) = netns {
        ip.args(["-n", netns]);
    }
    ip.args(["-batch", "-"]);
    let input = lines.join("\n") + "\n";
    capture_with_input(&mut ip, input.as_bytes())
        .map(drop)
        .with_context(|| format!("ip said no to:\n{input}"))
}

/// Builds the switches, the machine's link, and the namespaces of the control
/// plane and the outside host. The index must have been claimed.
pub fn build(plan: &Plan) -> Result<()> {
    let switches = plan.netns("net");
    let mut lines = vec!["link set lo up".to_owned()];
    for net in Net::ALL {
        // Nobody else is on these bridges: no spanning tree, no snooping, and
        // forwarding at once.
        let bridge = format!("br{}", net.number());
        lines.push(format!("link add {bridge} type bridge forward_delay 0 mcast_snooping 0"));
        lines.push(format!("link set {bridge} up"));
    }
    batch(Some(&switches), &lines)?;

    let link = plan.machine_link();
    let mut lines = vec![format!("link add {link} type veth peer name machine netns {switches}")];
    for prefix in plan.prefixes(Net::Management, HOST_MACHINE) {
        lines.push(format!("address add {prefix} dev {link}{}", nodad(&prefix)));
    }
    lines.push(format!("link set {link} up"));
    batch(None, &lines)?;
    batch(Some(&switches), &["link set machine master br0 up".to_owned()])?;

    run("ip", ["netns", "add", &plan.netns("cp")])?;
    attach(plan, "cp", "cp", HOST_CONTROL, &[Net::Management])?;
    run("ip", ["netns", "add", &plan.netns("out")])?;
    attach(plan, "out", "out", HOST_OUTSIDE, &Net::ALL)
}

/// Makes a node's namespace with its NICs.
pub fn add_node(plan: &Plan, node: &str, number: u8) -> Result<()> {
    run("ip", ["netns", "add", &plan.netns(node)])?;
    attach(plan, node, &format!("n{number}"), crate::plan::HOST_NODES + number, &Net::ALL)
}

/// Removes a node's namespace and links.
pub fn remove_node(plan: &Plan, node: &str, number: u8) -> Result<()> {
    for net in Net::ALL {
        let port = port(&format!("n{number}"), net);
        if succeeds("ip", ["-n", &plan.netns("net"), "link", "show", &port]) {
            run("ip", ["-n", &plan.netns("net"), "link", "del", &port])?;
        }
    }
    remove(&plan.netns(node))
}

/// The switch's port of a member: `MEMBER-NET`.
fn port(member: &str, net: Net) -> String {
    format!("{member}-{}", net.number())
}

/// Gives a namespace its NICs and addresses. The outside host is everyone's
/// default gateway: packets to nowhere end there and not on a real network.
fn attach(plan: &Plan, what: &str, member: &str, host: u8, nets: &[Net]) -> Result<()> {
    let (switches, netns) = (plan.netns("net"), plan.netns(what));
    let mut outer = Vec::new();
    let mut inner = vec!["link set lo up".to_owned()];
    for &net in nets {
        let (port, nic) = (port(member, net), format!("eth{}", net.number()));
        outer.push(format!("link add {port} type veth peer name {nic} netns {netns}"));
        outer.push(format!("link set {port} master br{} up", net.number()));
        for prefix in plan.prefixes(net, host) {
            inner.push(format!("address add {prefix} dev {nic}{}", nodad(&prefix)));
        }
        inner.push(format!("link set {nic} up"));
    }
    batch(Some(&switches), &outer)?;
    for &net in nets.iter().filter(|net| **net != Net::Management) {
        // A real NIC sends finished checksums; a veth would hand the promise of
        // one to a userspace switch, which can't keep it.
        let ethtool = |netns: &str, nic: &str| {
            capture(&mut command("ip", ["netns", "exec", netns, "ethtool", "-K", nic, "tx", "off"]))
        };
        ethtool(&netns, &format!("eth{}", net.number()))?;
        ethtool(&switches, &port(member, net))?;
    }
    batch(Some(&netns), &inner)?;
    if what != "out" {
        let gateways = plan.addresses(Net::Management, HOST_OUTSIDE);
        let lines: Vec<_> =
            gateways.iter().map(|gateway| format!("route add default via {gateway}")).collect();
        batch(Some(&netns), &lines)?;
    }
    Ok(())
}

/// IPv6 addresses are usable at once: they are unique by construction.
fn nodad(prefix: &str) -> &'static str {
    if prefix.contains(':') { " nodad" } else { "" }
}

/// Takes a member (`n3`, `cp`, `out`) off the given networks: its port leaves
/// the bridge, its link stays up. Nobody is told: packets just vanish.
pub fn cut(plan: &Plan, member: &str, nets: &[Net]) -> Result<()> {
    for &net in nets {
        run("ip", ["-n", &plan.netns("net"), "link", "set", &port(member, net), "nomaster"])?;
    }
    Ok(())
}

/// Puts a member's ports back.
pub fn heal(plan: &Plan, member: &str, nets: &[Net]) -> Result<()> {
    for &net in nets {
        let bridge = format!("br{}", net.number());
        run("ip", ["-n", &plan.netns("net"), "link", "set", &port(member, net), "master", &bridge])?;
    }
    Ok(())
}

/// Routes the pod network from the control plane through a node, so that the
/// API server reaches webhooks and aggregated APIs that run in pods.
pub fn route_pods(plan: &Plan, node_host: u8) -> Result<()> {
    use crate::plan::POD_CIDR;
    let gateways = plan.addresses(Net::Management, node_host);
    let cidrs = plan.family.select(POD_CIDR.0, POD_CIDR.1);
    let lines: Vec<_> = cidrs
        .iter()
        .zip(gateways)
        .map(|(cidr, gateway)| format!("route replace {cidr} via {gateway}"))
        .collect();
    batch(Some(&plan.netns("cp")), &lines)
}

/// Removes a named namespace; absent is fine.
pub fn remove(name: &str) -> Result<()> {
    if path(name).exists() { run("ip", ["netns", "del", name]) } else { Ok(()) }
}

/// Whether any lab has its networks on this machine.
pub fn any_lab() -> bool {
    let names = std::fs::read_dir(FOLDER).into_iter().flatten().flatten();
    names.filter_map(|entry| entry.file_name().into_string().ok()).any(|name| is_switches(&name))
}

/// Whether a namespace is one that [`Plan::netns`] calls `net`.
fn is_switches(name: &str) -> bool {
    let index = name.strip_prefix("weir").and_then(|rest| rest.strip_suffix("-net"));
    index.is_some_and(|index| index.parse::<u8>().is_ok())
}

/// Removes every namespace and link of a lab.
pub fn destroy(plan: &Plan) -> Result<()> {
    let prefix = plan.netns("");
    let names = std::fs::read_dir(FOLDER).into_iter().flatten().flatten();
    let mut names: Vec<_> = names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| name.starts_with(&prefix));
    // The switches last: their namespace is the claim on the index.
    names.sort_by_key(|name| *name == plan.netns("net"));
    let link = plan.machine_link();
    if Path::new("/sys/class/net").join(&link).exists() {
        run("ip", ["link", "del", &link])?;
    }
    names.iter().try_for_each(|name| remove(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Family;

    #[test]
    fn switches_are_known_by_name() {
        let plan = Plan { name: "x".into(), index: 7, family: Family::Dual };
        assert!(is_switches(&plan.netns("net")));
        assert!(!is_switches(&plan.netns("n1")));
        assert!(!is_switches("weir-net"));
    }
}
