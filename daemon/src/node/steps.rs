//! The loop that carries out the node's steps.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;

use super::tunnel::{self, HostView, Tunnel, Wish};
use super::{NodeStatus, NotYet, OVN0};
use crate::flags::Flags;
use crate::frame::{Frame, Objects, Pace};
use crate::hostnet::HostNet;
use crate::kube::{Cluster, NodeFacts, annotate_node};
use crate::netlink::{Change, Link, Reachability};
use crate::ovs::{BR_INT, Ovs, OvsError, View, plan};
use crate::plug::NodeNetwork;
use crate::told::Told;
use crate::underlay::Underlay;

/// What the loop works with.
pub struct Inputs {
    /// Flags.
    pub flags: Arc<Flags>,
    /// This node.
    pub node: String,
    /// The API server; `None` writes nothing (tests).
    pub client: Option<kube::Client>,
    /// Watched objects.
    pub cluster: Arc<Cluster>,
    /// The local switch.
    pub ovs: Ovs,
    /// The host's network.
    pub host: HostNet,
    /// Changes of it.
    pub changes: broadcast::Receiver<Change>,
}

/// The loop.
pub struct Initialiser {
    pub(super) inputs: Inputs,
    pub(super) reach: Reachability,
    network: watch::Sender<Option<NodeNetwork>>,
    pub(super) status: watch::Sender<NodeStatus>,
    /// Since when the join gateways don't answer.
    pub(super) silent_since: Option<Instant>,
    /// What moves the tunnel NIC.
    pub(super) mover: Underlay,
    lines: Told,
}

/// Pause before a step that failed is tried again without an event.
const RETRY: Duration = Duration::from_secs(2);
/// Events of one cause come in bunches.
const GATHER: Duration = Duration::from_millis(50);
/// Everything is looked at this often even if nothing happened.
const VERIFY: Duration = Duration::from_secs(60);

/// What of the database concerns the node: pods' ports come and go without
/// waking the loop.
fn relevant(view: &View, bridge: &str) -> String {
    let row = |row: Option<&Arc<ovsdb::Row>>, columns: &[&str]| {
        columns.iter().map(|column| format!("{:?};", row.and_then(|row| row.get(column)))).collect::<String>()
    };
    let ovn0 = view.interface(OVN0);
    let ovn0 = ["external_ids", "mac", "mtu_request", "ofport"]
        .map(|column| format!("{:?}", ovn0.as_ref().and_then(|interface| interface.column(column))));
    format!(
        "{} {} {} {} {:?}",
        view.is_connected(),
        row(view.root(), &["external_ids"]),
        row(view.bridge(BR_INT), &["datapath_type"]),
        row(view.bridge(bridge), &["ports", "external_ids", "datapath_type"]),
        ovn0,
    )
}

/// Whether a change of the host's network concerns the node. The addresses of `silent` links do not.
fn concerns(change: &Change, silent: &BTreeSet<u32>) -> bool {
    match change {
        Change::LinkChanged(link) | Change::LinkGone(link) => !crate::plug::names::is_host_end(&link.name),
        Change::Address(address) => !address.link_scope && !silent.contains(&address.index),
        Change::Lost => true,
        _ => false,
    }
}

pub(super) fn ovs_error(step: &'static str) -> impl Fn(OvsError) -> NotYet {
    move |error| NotYet::new(step, error.to_string(), "look at ovs-vswitchd's and ovsdb-server's logs")
}

pub(super) fn host_error(step: &'static str) -> impl Fn(crate::netlink::Error) -> NotYet {
    move |error| NotYet::new(step, error.to_string(), "the agent needs CAP_NET_ADMIN in the host's namespace")
}

impl Initialiser {
    /// A loop and what it publishes.
    ///
    /// # Errors
    /// When a socket can't be opened.
    pub async fn new(
        inputs: Inputs,
    ) -> anyhow::Result<(Self, watch::Receiver<Option<NodeNetwork>>, watch::Receiver<NodeStatus>)> {
        let (network, networks) = watch::channel(None);
        let (status, statuses) = watch::channel(NodeStatus::default());
        let reach = inputs.host.reachability().await?;
        let mover = super::bridge::mover(&inputs, status.subscribe());
        let lines = Told::default();
        Ok((Self { inputs, reach, network, status, silent_since: None, mover, lines }, networks, statuses))
    }

    /// Runs until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        let mut nodes = self.inputs.cluster.nodes.subscribe();
        let bridge = self.inputs.flags.dpdk_tunnel_iface.clone();
        let changes = std::mem::replace(&mut self.inputs.changes, broadcast::channel(1).1);
        let pace = Pace::new(VERIFY, RETRY, RETRY);
        let mut frame = Frame::new(Objects::default(), &self.inputs.ovs.clone(), changes, pace, cancel);
        loop {
            let seen = relevant(&frame.view(), &bridge);
            let node = self.own_node();
            let pass = async {
                self.pass().await;
                let status = self.status.borrow();
                status.ready && status.gateway_reachable == Some(true)
            };
            let Some(well) = frame.pass(pass).await else { return };
            let silent = self.silent_links().await;
            // Other nodes come and go.
            let own_node = async { while self.own_node() == node && nodes.changed().await.is_ok() {} };
            let is_news = |view: &View| relevant(view, &bridge) != seen;
            if !frame.wait(well, is_news, |change| concerns(change, &silent), own_node).await {
                return;
            }
            tokio::time::sleep(GATHER).await;
        }
    }

    /// Links whose addresses say nothing about the node: kube-proxy gives its own each Service's.
    async fn silent_links(&self) -> BTreeSet<u32> {
        let links = self.inputs.host.netlink.links().await.unwrap_or_default();
        let silent = |link: &Link| link.name != OVN0 && tunnel::never_carries_tunnels(link);
        links.into_iter().filter(silent).map(|link| link.index).collect()
    }

    fn own_node(&self) -> Option<Arc<NodeFacts>> {
        self.inputs.cluster.nodes.object(&Arc::from(self.inputs.node.as_str()))
    }

    /// One pass over all steps. Steps that don't need a failed one are done.
    pub async fn pass(&mut self) {
        let mut status =
            NodeStatus { gateway_reachable: self.status.borrow().gateway_reachable, ..NodeStatus::default() };
        let mut miss = |missing: NotYet| {
            status.missing.insert(missing.step, missing);
        };
        let view = self.inputs.ovs.view();
        if !view.is_connected() {
            miss(NotYet::new(
                "ovs",
                "no connection to the local OVS database",
                "is the ovs-ovn pod running here?",
            ));
            self.publish(status);
            return;
        }
        let node = self.own_node();
        if let Err(missing) = self.chassis(&view, node.as_deref()).await {
            miss(missing);
        }
        // A NIC on its bridge stays there until br-int itself says otherwise.
        let moved = view.bridge(BR_INT).is_none()
            && crate::underlay::tunnel_is_recorded(&view, &self.inputs.flags.dpdk_tunnel_iface);
        let userspace = moved
            || view.is_userspace()
            || node.as_ref().is_some_and(|node| {
                node.labels.get(crds::keys::OVS_DP_TYPE_LABEL).is_some_and(|kind| kind == "userspace")
            });
        let tunnel = match self.tunnel(&view, node.as_deref(), userspace).await {
            Ok(tunnel) => Some(tunnel),
            Err(missing) => {
                miss(missing);
                None
            }
        };
        if let Some(tunnel) = &tunnel {
            status.tunnel_interface = Some(tunnel.interface.clone());
            status.encap_ip = Some(tunnel.encap_ip.to_string());
            status.mtu = Some(tunnel.mtu);
        }
        status.userspace = userspace;
        match self.join(node.as_deref(), tunnel.as_ref(), userspace).await {
            Ok(reachable) => status.gateway_reachable = Some(reachable),
            Err(missing) => {
                status.missing.insert(missing.step, missing);
            }
        }
        status.ready = status.missing.is_empty();
        self.publish(status);
    }

    fn publish(&self, status: NodeStatus) {
        self.status.send_if_modified(|old| {
            if *old == status {
                return false;
            }
            for missing in
                status.missing.values().filter(|missing| old.missing.get(missing.step) != Some(missing))
            {
                tracing::info!(
                    step = missing.step,
                    reason = missing.reason,
                    remedy = missing.remedy,
                    "not ready yet"
                );
            }
            if status.ready && !old.ready {
                tracing::info!(encap_ip = status.encap_ip, mtu = status.mtu, "the node's network is ready");
            }
            *old = status;
            true
        });
    }

    /// The chassis annotation: the switch's system-id on the Node.
    async fn chassis(&self, view: &View, node: Option<&NodeFacts>) -> Result<(), NotYet> {
        let system_id = view.root_external_id("system-id").ok_or_else(|| {
            NotYet::new(
                "chassis",
                "the switch has no system-id",
                "ovs-ctl sets it when the ovs-ovn pod starts",
            )
        })?;
        let node = node.ok_or_else(|| {
            NotYet::new(
                "chassis",
                format!("node {} is not known", self.inputs.node),
                "check NODE_NAME and the API server",
            )
        })?;
        if node.annotation(crds::keys::CHASSIS) == Some(system_id) {
            return Ok(());
        }
        let Some(client) = &self.inputs.client else { return Ok(()) };
        annotate_node(client, &node.name, crds::keys::CHASSIS, system_id).await.map_err(|error| {
            NotYet::new("chassis", error.to_string(), "the service account must be allowed to patch nodes")
        })
    }

    pub(super) async fn host_view(&self) -> Result<HostView, NotYet> {
        let host = &self.inputs.host.netlink;
        let (links, addresses, routes) = tokio::join!(host.links(), host.addresses(None), host.routes());
        let error = host_error("tunnel");
        Ok(HostView {
            links: links.map_err(&error)?,
            addresses: addresses.map_err(&error)?,
            routes: routes.map_err(&error)?,
        })
    }

    /// Tunnel interface, its address in the database, MTU for pods.
    async fn tunnel(&self, view: &View, node: Option<&NodeFacts>, userspace: bool) -> Result<Tunnel, NotYet> {
        let flags = &self.inputs.flags;
        let host = self.host_view().await?;
        let wish = tunnel::wish(flags, &host, node)?;
        let (host, link_name, wish) = if userspace {
            self.userspace_bridge(view, host, &wish).await?
        } else {
            let host = self.undo_bridge(view, host).await?;
            let link = tunnel::find_link(&host, &wish).ok_or_else(|| no_link(&wish))?;
            // A NIC that a provider network has taken over lends its bridge.
            let name = vendor_bridge_of(view, &link.name).unwrap_or_else(|| link.name.clone());
            (host, name, wish)
        };
        let link = host.link(&link_name).ok_or_else(|| no_link(&Wish::Named(link_name.clone())))?;
        let choice = tunnel::choose(flags, &host, link, &wish)?;
        let small = (choice.mtu < 1280 && choice.encap_ip.is_ipv6()).then(|| choice.mtu.to_string());
        for mtu in self.lines.news("mtu", small) {
            tracing::warn!(mtu, "IPv6 needs an MTU of 1280 or more");
        }
        let networks = tunnel::node_networks(node);
        let ids = tunnel::external_ids(&choice, &networks, flags.encap_checksum);
        self.inputs
            .ovs
            .apply(|view| plan::set_root_external_ids(view, &ids))
            .await
            .map_err(ovs_error("tunnel"))?;
        self.tunnel_devices(&host).await;
        let network = NodeNetwork { mtu: choice.mtu, userspace, node_networks: networks };
        self.network.send_if_modified(|old| {
            let differs = old.as_ref() != Some(&network);
            *old = Some(network);
            differs
        });
        Ok(choice)
    }

    /// The kernel's tunnel devices: up, and without TX checksum offload where
    /// the contract wants it (§3.1 step 9), whenever they appear.
    async fn tunnel_devices(&self, host: &HostView) {
        let vxlan_off = self.inputs.flags.set_vxlan_tx_off;
        for (name, off) in [("genev_sys_6081", true), ("vxlan_sys_4789", vxlan_off)] {
            let Some(link) = host.link(name) else { continue };
            let mut failed = Vec::new();
            if off && let Err(error) = self.offload_off(name) {
                failed.push(format!("checksum offload could not be turned off: {error}"));
            }
            if !link.up
                && let Err(error) = self.inputs.host.netlink.set_up(link.index).await
            {
                failed.push(format!("it could not be set up: {error}"));
            }
            for reason in self.lines.news(name, failed) {
                tracing::warn!(device = name, reason, "the tunnel device");
            }
        }
    }

    pub(super) fn offload_off(&self, device: &str) -> std::io::Result<()> {
        let ethtool = &self.inputs.host.ethtool;
        if ethtool.tx_checksum(device)? { ethtool.tx_checksum_off(device) } else { Ok(()) }
    }
}

pub(super) fn no_link(wish: &Wish) -> NotYet {
    let text = match wish {
        Wish::Named(name) => format!("no interface matches {name:?}"),
        Wish::OwnerOf(ip) => format!("no interface has the node's address {ip}"),
    };
    NotYet::new("tunnel", text, "correct --iface or the node's annotation ovn.kubernetes.io/tunnel_interface")
}

/// The Kube-OVN bridge that holds a NIC.
pub(super) fn vendor_bridge_of(view: &View, nic: &str) -> Option<String> {
    let port = view.port(nic)?;
    let bridge = view.bridge_of_port(&port.uuid)?;
    (bridge.map_get("external_ids", "vendor") == Some(crds::keys::VENDOR))
        .then(|| bridge.str("name").map(str::to_owned))
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::tunnel::tests::address;

    #[test]
    fn what_a_proxy_does_on_its_own_link_does_not_concern_the_node() {
        let silent = BTreeSet::from([9]);
        let of = |index, net| concerns(&Change::Address(address(index, net)), &silent);
        assert_eq!([of(9, "10.96.0.1/32"), of(2, "10.96.0.1/32"), of(2, "fe80::1/64")], [false, true, false]);
    }
}
