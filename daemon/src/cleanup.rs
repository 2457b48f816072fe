//! `--cleanup`: everything of ours leaves a node, and nothing else.
//!
//! In: the host, its switch, its files; no API server is needed. Out: a line for each thing that was taken away. Ours
//! is what carries our mark: ports with our external ids, chains and sets of our names, the bridge whose journal says
//! what it took over, the configuration and the executable that we installed. Interfaces that were moved into a bridge
//! of ours get their addresses and routes back first. Every step can be repeated, so a clean-up that was cut off is
//! called again; on a clean node it does nothing.
//!
//! Pods that still run lose their network, so it refuses while the agent serves: its DaemonSet goes first.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use ovsdb::Endpoint;
use tokio::net::UnixStream;
use tokio::sync::broadcast;

use crate::exit::{Exit, OVNEXT0, Place};
use crate::firewall::Tools;
use crate::flags::Flags;
use crate::gateway::Gateway;
use crate::hostnet::HostNet;
use crate::install;
use crate::kube::Cluster;
use crate::node::{Initialiser, Inputs, OVN0};
use crate::ovs::{BR_INT, Interface, Ovs, View, plan};
use crate::parts::NodeParts;
use crate::qos::{NODE_SHAPER, NODE_SHAPER_ALIAS};
use crate::underlay::Underlay;
use crate::underlay::managers::Managers;

/// How long the switch's database may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Keys of `Open_vSwitch:external_ids` that the agent writes.
const ROOT_KEYS: [&str; 4] = ["ovn-encap-ip", "ovn-encap-ip-default", "ovn-encap-csum", "ovn-is-interconn"];

/// Cleans the node up and returns what was done, a line each.
///
/// # Errors
/// While the agent serves; and when something could not be taken away: the rest was done nevertheless, and the error
/// names all that is left.
pub async fn run(flags: &Flags, host: HostNet) -> anyhow::Result<Vec<String>> {
    if UnixStream::connect(&flags.bind_socket).await.is_ok() {
        bail!(
            "the agent still serves on {}; delete its DaemonSet (kubectl -n kube-system delete ds kube-ovn-cni) or \
             stop it on this node first, or it would make everything again",
            flags.bind_socket.display()
        );
    }
    let mut done = Vec::new();
    let mut left = Vec::new();
    // First the configuration: the runtime must not send pods here any more.
    files(flags, &mut done, &mut left);
    note(switch(flags, &host, &mut done, &mut left).await, "the switch", &mut left);
    note(firewall(&host, &mut done).await, "the firewall", &mut left);
    if left.is_empty() {
        return Ok(done);
    }
    for line in &done {
        tracing::info!("{line}");
    }
    bail!("not everything could be taken away; mend this and call it again: {}", left.join("; "))
}

fn note(result: anyhow::Result<()>, what: &str, left: &mut Vec<String>) {
    if let Err(error) = result {
        left.push(format!("{what}: {error:#}"));
    }
}

fn files(flags: &Flags, done: &mut Vec<String>, left: &mut Vec<String>) {
    let conflist = flags.cni_conf_dir.join(&flags.cni_conf_name);
    if conflist.exists() {
        match install::conflist::remove(&flags.cni_conf_dir, &flags.cni_conf_name) {
            Ok(()) => done.push(format!("removed {}", conflist.display())),
            Err(error) => left.push(format!("{}: {error:#}", conflist.display())),
        }
    }
    for file in [&flags.cni_bin_dir.join("kube-ovn"), &flags.bind_socket, &flags.diagnostics_socket] {
        match std::fs::remove_file(file) {
            Ok(()) => done.push(format!("removed {}", file.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => left.push(format!("{}: {error}", file.display())),
        }
    }
}

/// Whether a port of the switch is ours: plugged for a pod, or the node's own join interface.
fn is_ours(interface: &Interface) -> bool {
    let join = interface.name() == OVN0
        && interface.external_id("iface-id").is_some_and(|id| id.starts_with("node-"));
    interface.is_pod_port() || join
}

/// What can't be taken away is told in `left`; an error is what nothing can be done without.
async fn switch(
    flags: &Flags,
    host: &HostNet,
    done: &mut Vec<String>,
    left: &mut Vec<String>,
) -> anyhow::Result<()> {
    let endpoint = flags.ovs_endpoint();
    let ovs = Ovs::connect(Endpoint::parse_list(&endpoint).context("--ovs-socket")?);
    if tokio::time::timeout(PATIENCE, ovs.connected()).await.is_err() {
        bail!(
            "its database does not answer on {endpoint}; start Open vSwitch, for what it keeps comes back with it"
        );
    }
    note(mirror(flags, &ovs, done).await, "the mirror", left);
    let ports: Vec<String> =
        ovs.view().interfaces().filter(is_ours).map(|interface| interface.name().to_owned()).collect();
    for name in ports {
        match port(&ovs, host, &name).await {
            Ok(()) => done.push(format!("removed port {name}")),
            Err(error) => left.push(format!("port {name}: {error:#}")),
        }
    }
    note(shaper(host, done).await, &format!("link {NODE_SHAPER}"), left);
    if ovs.view().interface(OVNEXT0).is_some() {
        let (_told, status) = tokio::sync::watch::channel(crate::node::NodeStatus::default());
        let parts = NodeParts::alone(flags.node_name(), ovs.clone(), host.clone(), status);
        let mut exit = Exit::new(parts, Place::of(&flags.netns_dir));
        match exit.clean_up().await {
            Ok(()) => done.push(format!("removed port {OVNEXT0} and its namespace")),
            Err(missing) => left.push(format!("port {OVNEXT0}: {missing}")),
        }
    }
    note(interfaces(flags, &ovs, host, done, left).await, "the tunnel interface", left);
    let keys = owned_keys(&ovs.view());
    if !keys.is_empty() {
        ovs.apply(|view| plan::delete_root_external_ids(view, &ROOT_KEYS)).await.context("external_ids")?;
        done.push(format!("removed Open_vSwitch external_ids {}", keys.join(", ")));
    }
    Ok(())
}

/// The agent makes the mirror's port on br-int; one of that name elsewhere is somebody else's.
async fn mirror(flags: &Flags, ovs: &Ovs, done: &mut Vec<String>) -> anyhow::Result<()> {
    let (name, view) = (&flags.mirror_iface, ovs.view());
    let internal = |port: Interface| port.column("type").and_then(ovsdb::Value::as_str) == Some("internal");
    if !view.port_names(BR_INT).contains(name) || !view.interface(name).is_some_and(internal) {
        return Ok(());
    }
    ovs.apply(|view| Ok(crate::ovs::mirror::remove(view, BR_INT, name))).await?;
    ovs.apply(|view| Ok(plan::remove_port(view, name))).await.with_context(|| format!("port {name}"))?;
    done.push(format!("removed mirror port {name}"));
    Ok(())
}

async fn port(ovs: &Ovs, host: &HostNet, name: &str) -> anyhow::Result<()> {
    ovs.apply(|view| Ok(plan::remove_port(view, name))).await?;
    // The pod's end goes with it; an internal port's link goes with the port.
    match host.netlink.link(name).await? {
        Some(link) if link.kind.as_deref() == Some("veth") => {
            Ok(host.netlink.delete_link(&link.name).await?)
        }
        _ => Ok(()),
    }
}

async fn shaper(host: &HostNet, done: &mut Vec<String>) -> anyhow::Result<()> {
    let link = host.netlink.link(NODE_SHAPER).await?;
    if link.is_some_and(|link| link.alias.as_deref() == Some(NODE_SHAPER_ALIAS)) {
        host.netlink.delete_link(NODE_SHAPER).await?;
        done.push(format!("removed link {NODE_SHAPER}"));
    }
    Ok(())
}

/// Interfaces that a bridge of ours took over go home.
async fn interfaces(
    flags: &Flags,
    ovs: &Ovs,
    host: &HostNet,
    done: &mut Vec<String>,
    left: &mut Vec<String>,
) -> anyhow::Result<()> {
    let (_sender, changes) = broadcast::channel(1);
    let inputs = Inputs {
        flags: Arc::new(flags.clone()),
        node: flags.node_name(),
        client: None,
        cluster: Arc::new(Cluster::default()),
        ovs: ovs.clone(),
        host: host.clone(),
        changes,
    };
    let (initialiser, _network, status) = Initialiser::new(inputs).await?;
    let parts = NodeParts::alone(flags.node_name(), ovs.clone(), host.clone(), status);
    let underlay = Underlay::new(parts, Arc::new(flags.clone()), Managers::default());
    left.extend(underlay.clean_up(done).await);
    if let Some(nic) = initialiser.leave().await.map_err(|missing| anyhow::anyhow!("{missing}"))? {
        done.push(format!(
            "{nic} has its addresses and routes back; removed bridge {}",
            flags.dpdk_tunnel_iface
        ));
    }
    Ok(())
}

fn owned_keys(view: &View) -> Vec<&'static str> {
    ROOT_KEYS.into_iter().filter(|key| view.root_external_id(key).is_some()).collect()
}

async fn firewall(host: &HostNet, done: &mut Vec<String>) -> anyhow::Result<()> {
    let mut gateway = Gateway::new(Tools::system(), Some(host.netlink.clone())).await?;
    let clean = gateway.is_clean().await?;
    gateway.remove().await?;
    if clean {
        return Ok(());
    }
    done.push("removed chains, rules and sets of ours; everybody else's are as they were".to_owned());
    Ok(())
}
