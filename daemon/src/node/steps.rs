//! The loop that carries out the node's steps.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;

use super::phy::{self, Journal, Step};
use super::tunnel::{self, HostView, Tunnel, Wish};
use super::{Join, NodeStatus, NotYet, OVN0};
use crate::flags::Flags;
use crate::hostnet::HostNet;
use crate::install::loosen_reverse_path;
use crate::kube::{Cluster, NodeFacts, annotate_node, set_network_unavailable};
use crate::netlink::{Change, Link, Reachability};
use crate::ovs::{BR_INT, BridgeSpec, Ovs, OvsError, PortSpec, View, plan};
use crate::plug::NodeNetwork;

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
    inputs: Inputs,
    reach: Reachability,
    network: watch::Sender<Option<NodeNetwork>>,
    status: watch::Sender<NodeStatus>,
}

/// Pause before a step that failed is tried again without an event.
const RETRY: Duration = Duration::from_secs(2);
/// Everything is looked at this often even if nothing happened.
const VERIFY: Duration = Duration::from_secs(60);
/// How long the join gateways may take to answer.
const GATEWAY_PATIENCE: Duration = Duration::from_secs(3);
/// Transmit queue length of `ovn0` in packets (node contract §3.3).
const TX_QUEUE: u32 = 1000;

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

/// Whether a change of the host's network concerns the node.
fn concerns(change: &Change) -> bool {
    match change {
        Change::LinkChanged(link) | Change::LinkGone(link) => !link.name.ends_with("_h"),
        Change::Address(address) => !address.link_scope,
        Change::RouteChanged(_) | Change::RouteGone(_) | Change::Rule => false,
        Change::Lost => true,
    }
}

fn ovs_error(step: &'static str) -> impl Fn(OvsError) -> NotYet {
    move |error| NotYet::new(step, error.to_string(), "look at ovs-vswitchd's and ovsdb-server's logs")
}

fn host_error(step: &'static str) -> impl Fn(crate::netlink::Error) -> NotYet {
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
        Ok((Self { inputs, reach, network, status }, networks, statuses))
    }

    /// Runs until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        let mut views = self.inputs.ovs.subscribe();
        let mut nodes = self.inputs.cluster.nodes.subscribe();
        let bridge = self.inputs.flags.dpdk_tunnel_iface.clone();
        let mut verify = tokio::time::interval(VERIFY);
        verify.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let seen = relevant(&views.borrow_and_update(), &bridge);
            let node = self.own_node();
            self.pass().await;
            let retry = if self.status.borrow().ready { VERIFY } else { RETRY };
            let sleep = tokio::time::sleep(retry);
            tokio::pin!(sleep);
            loop {
                tokio::select! {
                    () = cancel.cancelled() => return,
                    () = &mut sleep => break,
                    _ = verify.tick() => break,
                    changed = views.changed() => {
                        if changed.is_err() { return }
                        if relevant(&views.borrow_and_update(), &bridge) != seen { break }
                    }
                    changed = nodes.changed() => {
                        if changed.is_err() { return }
                        nodes.mark_unchanged();
                        if self.own_node() != node { break }
                    }
                    change = self.inputs.changes.recv() => match change {
                        Ok(change) if concerns(&change) => break,
                        Ok(_) => {}
                        Err(broadcast::error::RecvError::Lagged(_)) => break,
                        Err(broadcast::error::RecvError::Closed) => return,
                    },
                }
            }
        }
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
        let userspace = view.is_userspace()
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

    async fn host_view(&self) -> Result<HostView, NotYet> {
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
        let wish = tunnel::wish(flags, node)?;
        let host = self.host_view().await?;
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
        if choice.mtu < 1280 && choice.encap_ip.is_ipv6() {
            tracing::warn!(mtu = choice.mtu, "IPv6 needs an MTU of 1280 or more");
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
            if off && let Err(error) = self.offload_off(name) {
                tracing::warn!(device = name, error = %error, "checksum offload could not be turned off");
            }
            if !link.up
                && let Err(error) = self.inputs.host.netlink.set_up(link.index).await
            {
                tracing::warn!(device = name, error = %error, "the tunnel device could not be set up");
            }
        }
    }

    fn offload_off(&self, device: &str) -> std::io::Result<()> {
        let ethtool = &self.inputs.host.ethtool;
        if ethtool.tx_checksum(device)? { ethtool.tx_checksum_off(device) } else { Ok(()) }
    }

    /// Userspace datapath: the bridge that carries tunnels, with the NIC in it.
    async fn userspace_bridge(
        &self,
        view: &View,
        host: HostView,
        wish: &Wish,
    ) -> Result<(HostView, String, Wish), NotYet> {
        let bridge = self.inputs.flags.dpdk_tunnel_iface.clone();
        let recorded = Journal::read(view, &bridge);
        if recorded.is_none() && view.bridge(&bridge).is_some() {
            // Made by somebody else (the DPDK start script): only used.
            return Ok((host, bridge.clone(), Wish::Named(bridge)));
        }
        let nic_name = match (&recorded, wish) {
            (_, Wish::Named(name)) => {
                let named = Wish::Named(name.clone());
                let found = tunnel::find_link(&host, &named).filter(|link| link.name != bridge);
                found
                    .map(|link| link.name.clone())
                    .or_else(|| recorded.as_ref().map(|journal| journal.nic.clone()))
            }
            (Some(journal), Wish::OwnerOf(_)) => Some(journal.nic.clone()),
            (None, Wish::OwnerOf(_)) => {
                return Err(NotYet::new(
                    "tunnel",
                    "the userspace datapath needs a NIC of its own for tunnels",
                    "set --iface to a NIC that does not carry the node's own address, or make bridge br-phy yourself",
                ));
            }
        };
        let nic_name = nic_name.ok_or_else(|| no_link(wish))?;
        let nic = host.link(&nic_name).ok_or_else(|| no_link(&Wish::Named(nic_name.clone())))?.clone();
        // The whole of the old NIC goes home before another one moves in.
        if let Some(old) = recorded.as_ref().filter(|journal| journal.nic != nic.name) {
            self.restore(&host, old, &bridge).await?;
            return Err(NotYet::new(
                "tunnel",
                format!("bridge {bridge} changes from {} to {nic_name}", old.nic),
                "",
            ));
        }
        let journal = phy::journal(&host, &nic, recorded);
        let spec = BridgeSpec {
            name: bridge.clone(),
            datapath_type: "netdev".to_owned(),
            hwaddr: nic.mac.map(|mac| mac.to_string()),
            external_ids: journal.external_ids(),
        };
        let port = PortSpec { bridge: bridge.clone(), name: nic.name.clone(), ..PortSpec::default() };
        let ovs = &self.inputs.ovs;
        ovs.apply(|view| plan::ensure_bridge(view, &spec)).await.map_err(ovs_error("tunnel"))?;
        let mut views = ovs.subscribe();
        let there = views.wait_for(|view| view.bridge(&bridge).is_some());
        let _ = tokio::time::timeout(Duration::from_secs(1), there).await;
        ovs.apply(|view| plan::ensure_port(view, &port)).await.map_err(ovs_error("tunnel"))?;
        let host = self.host_view().await?;
        let Some(inner) = host.link(&bridge) else {
            return Err(NotYet::new(
                "tunnel",
                format!("ovs-vswitchd has not made interface {bridge} yet"),
                "is ovs-vswitchd running?",
            ));
        };
        for device in [nic.name.as_str(), bridge.as_str()] {
            self.offload_off(device).map_err(|error| {
                NotYet::new(
                    "tunnel",
                    format!("checksum offload of {device}: {error}"),
                    "the agent needs CAP_NET_ADMIN",
                )
            })?;
        }
        self.carry_out(phy::move_plan(&host, &journal, &nic, inner)).await?;
        let host = self.host_view().await?;
        Ok((host, bridge.clone(), Wish::Named(bridge)))
    }

    /// The datapath is the kernel's (again): a NIC that we moved goes home.
    async fn undo_bridge(&self, view: &View, host: HostView) -> Result<HostView, NotYet> {
        let bridge = &self.inputs.flags.dpdk_tunnel_iface;
        match Journal::read(view, bridge) {
            None => Ok(host),
            Some(journal) => {
                self.restore(&host, &journal, bridge).await?;
                self.host_view().await
            }
        }
    }

    async fn restore(&self, host: &HostView, journal: &Journal, bridge: &str) -> Result<(), NotYet> {
        let Some(nic) = host.link(&journal.nic) else {
            return Err(no_link(&Wish::Named(journal.nic.clone())));
        };
        let nowhere = Link { index: 0, ..nic.clone() };
        let inner = host.link(bridge).unwrap_or(&nowhere);
        self.carry_out(phy::restore_plan(host, journal, inner, nic)).await?;
        let ovs = &self.inputs.ovs;
        ovs.apply(|view| plan::remove_bridge(view, bridge)).await.map_err(ovs_error("tunnel"))
    }

    async fn carry_out(&self, steps: Vec<Step>) -> Result<(), NotYet> {
        let host = &self.inputs.host.netlink;
        for step in steps {
            tracing::info!(?step, "moves the tunnel NIC");
            let result = match &step {
                Step::Mac(index, mac) => host.set_mac(*index, *mac).await,
                Step::Up(index) => host.set_up(*index).await,
                Step::AddAddress(index, net) => host.add_address(*index, *net, true).await,
                Step::DeleteAddress(index, net) => host.delete_address(*index, *net).await,
                Step::AddRoute(route) => host.replace_route(route).await,
                Step::DeleteRoute(route) => host.delete_route(route).await,
            };
            result.map_err(host_error("tunnel"))?;
        }
        Ok(())
    }

    /// `ovn0` and the join gateways. Returns whether they answer.
    async fn join(
        &mut self,
        node: Option<&NodeFacts>,
        tunnel: Option<&Tunnel>,
        userspace: bool,
    ) -> Result<bool, NotYet> {
        let node = node.ok_or_else(|| NotYet::new("ovn0", "the node is not known yet", ""))?;
        let join = Join::read(node)?;
        let tunnel =
            tunnel.ok_or_else(|| NotYet::new("ovn0", "the tunnel interface is not chosen yet", ""))?;
        let spec = join.port(tunnel.mtu);
        self.inputs.ovs.apply(|view| plan::ensure_port(view, &spec)).await.map_err(|error| {
            NotYet::new("ovn0", error.to_string(), "ovn-controller makes br-int: is it running?")
        })?;
        let link = self.ovn0_link(&join, tunnel.mtu, userspace).await?;
        let mut silent = Vec::new();
        for gateway in &join.gateways {
            let answer = self.reach.resolve(link.index, *gateway, GATEWAY_PATIENCE).await;
            if answer.map_err(host_error("ovn0"))?.is_none() {
                silent.push(gateway.to_string());
            }
        }
        self.condition(node, &join, &silent).await?;
        Ok(silent.is_empty())
    }

    async fn ovn0_link(&self, join: &Join, mtu: u32, userspace: bool) -> Result<Link, NotYet> {
        let host = &self.inputs.host.netlink;
        let error = host_error("ovn0");
        let link = host.link(OVN0).await.map_err(&error)?.ok_or_else(|| {
            NotYet::new("ovn0", "ovs-vswitchd has not made ovn0 yet", "is ovs-vswitchd running?")
        })?;
        if link.mac != Some(join.mac) {
            host.set_mac(link.index, join.mac).await.map_err(&error)?;
        }
        if mtu > 0 && link.mtu != mtu {
            host.set_mtu(link.index, mtu).await.map_err(&error)?;
        }
        if link.tx_queue_len != TX_QUEUE {
            host.set_tx_queue_len(link.index, TX_QUEUE).await.map_err(&error)?;
        }
        if !link.up {
            host.set_up(link.index).await.map_err(&error)?;
        }
        // Answers may come by another way than their questions went.
        let loosened = self.inputs.host.namespace.run_async(|| loosen_reverse_path(OVN0)).await;
        if let Err(e) = loosened.and_then(|result| result) {
            tracing::warn!(error = %e, "the reverse-path filter of ovn0 could not be loosened");
        }
        if userspace {
            self.offload_off(OVN0).map_err(|e| NotYet::new("ovn0", format!("checksum offload: {e}"), ""))?;
        }
        let present = host.addresses(Some(link.index)).await.map_err(&error)?;
        for extra in present.iter().filter(|a| !a.link_scope && !join.addresses.contains(&a.net)) {
            host.delete_address(link.index, extra.net).await.map_err(&error)?;
        }
        for net in join.addresses.iter().filter(|net| !present.iter().any(|a| a.net == **net)) {
            // The kernel makes the on-link route of the prefix with it.
            host.add_address(link.index, *net, true).await.map_err(&error)?;
        }
        let wants_v6 = join.addresses.iter().any(|net| net.addr().is_ipv6());
        if wants_v6 && !present.iter().any(|a| a.link_scope && a.net.addr().is_ipv6()) {
            let local = ipnet::Ipv6Net::new(join.mac.link_local(), 64).map(ipnet::IpNet::V6);
            if let Ok(local) = local {
                host.add_address(link.index, local, true).await.map_err(&error)?;
            }
        }
        Ok(link)
    }

    /// The node's condition, only written when it says something else.
    async fn condition(&self, node: &NodeFacts, join: &Join, silent: &[String]) -> Result<(), NotYet> {
        let (Some(client), false) = (&self.inputs.client, self.inputs.flags.non_primary_cni_mode) else {
            return Ok(());
        };
        let gateways: Vec<String> = join.gateways.iter().map(ToString::to_string).collect();
        let (unavailable, reason, message) = if silent.is_empty() {
            (
                false,
                "JoinSubnetGatewayReachable",
                format!("gateway {} of the join subnet answers", gateways.join(",")),
            )
        } else {
            (
                true,
                "JoinSubnetGatewayUnreachable",
                format!("gateway {} of the join subnet does not answer", silent.join(",")),
            )
        };
        let status = if unavailable { "True" } else { "False" };
        let said = node.network_unavailable.as_ref();
        if said.is_some_and(|said| said.status == status && said.reason == reason && said.message == message)
        {
            return Ok(());
        }
        set_network_unavailable(client, &node.name, unavailable, reason, &message).await.map_err(|error| {
            NotYet::new(
                "condition",
                error.to_string(),
                "the service account must be allowed to patch nodes/status",
            )
        })
    }
}

fn no_link(wish: &Wish) -> NotYet {
    let text = match wish {
        Wish::Named(name) => format!("no interface matches {name:?}"),
        Wish::OwnerOf(ip) => format!("no interface has the node's address {ip}"),
    };
    NotYet::new("tunnel", text, "correct --iface or the node's annotation ovn.kubernetes.io/tunnel_interface")
}

/// The Kube-OVN bridge that holds a NIC.
fn vendor_bridge_of(view: &View, nic: &str) -> Option<String> {
    let port = view.port(nic)?;
    let bridge = view.bridge_of_port(&port.uuid)?;
    (bridge.map_get("external_ids", "vendor") == Some(crds::keys::VENDOR))
        .then(|| bridge.str("name").map(str::to_owned))
        .flatten()
}
