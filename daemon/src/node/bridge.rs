//! Carries out the plans of [`super::phy`]: the tunnel NIC on its userspace
//! bridge, and home again.

use super::NotYet;
use super::phy::{self, Journal, Step};
use super::steps::{Initialiser, host_error, no_link, ovs_error, vendor_bridge_of};
use super::tunnel::{self, HostView, Wish};
use crate::netlink::Link;
use crate::ovs::{BridgeSpec, PortSpec, View, plan};

impl Initialiser {
    /// Userspace datapath: the bridge that carries tunnels, with the NIC in it.
    pub(super) async fn userspace_bridge(
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
        // A provider network has taken it over: its bridge carries the tunnels too.
        if let Some(holder) = vendor_bridge_of(view, &nic_name).filter(|holder| *holder != bridge)
            && recorded.is_none()
        {
            return Ok((host, holder.clone(), Wish::Named(holder)));
        }
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
            ..BridgeSpec::default()
        };
        let port = PortSpec { bridge: bridge.clone(), name: nic.name.clone(), ..PortSpec::default() };
        let ovs = &self.inputs.ovs;
        let make = |view: &View| plan::and_apply(view, |view| plan::ensure_bridge(view, &spec));
        ovs.apply(make).await.map_err(ovs_error("tunnel"))?;
        self.applied("tunnel").await?;
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
    pub(super) async fn undo_bridge(&self, view: &View, host: HostView) -> Result<HostView, NotYet> {
        let bridge = &self.inputs.flags.dpdk_tunnel_iface;
        match Journal::read(view, bridge) {
            None => Ok(host),
            Some(journal) => {
                self.restore(&host, &journal, bridge).await?;
                self.host_view().await
            }
        }
    }

    /// The node is left for good: a NIC that we moved goes home. Its name, if there was one.
    ///
    /// # Errors
    /// When a step fails; the journal is still there then, and it can be called again.
    pub async fn leave(&self) -> Result<Option<String>, NotYet> {
        let view = self.inputs.ovs.view();
        let Some(journal) = Journal::read(&view, &self.inputs.flags.dpdk_tunnel_iface) else {
            return Ok(None);
        };
        let host = self.host_view().await?;
        self.restore(&host, &journal, &self.inputs.flags.dpdk_tunnel_iface).await?;
        Ok(Some(journal.nic))
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
}
