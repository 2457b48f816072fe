//! The tunnel NIC on its userspace bridge, and home again: which NIC, which bridge. How it moves is
//! [`crate::underlay`]'s.

use tokio::sync::watch;

use super::steps::{Initialiser, Inputs, no_link, vendor_bridge_of};
use super::tunnel::{self, HostView, Wish};
use super::{NodeStatus, NotYet};
use crate::ovs::View;
use crate::parts::NodeParts;
use crate::underlay::Underlay;
use crate::underlay::managers::Managers;

/// What the mover says, as a reason of this step.
fn in_tunnel(missing: NotYet) -> NotYet {
    NotYet { step: "tunnel", ..missing }
}

/// What moves the tunnel NIC.
pub(super) fn mover(inputs: &Inputs, status: watch::Receiver<NodeStatus>) -> Underlay {
    let (node, ovs, host) = (inputs.node.clone(), inputs.ovs.clone(), inputs.host.clone());
    let parts = NodeParts::alone(node, ovs, host, status);
    Underlay::new(parts, inputs.flags.clone(), Managers::default())
}

impl Initialiser {
    /// Userspace datapath: the bridge that carries tunnels, with the NIC in it.
    pub(super) async fn userspace_bridge(
        &self,
        view: &View,
        host: HostView,
        wish: &Wish,
    ) -> Result<(HostView, String, Wish), NotYet> {
        let bridge = self.inputs.flags.dpdk_tunnel_iface.clone();
        let mover = &self.mover;
        let recorded = mover.tunnel_record(view, &bridge).await.map_err(in_tunnel)?;
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
        if let Some(old) = recorded.clone().filter(|journal| journal.nic != nic.name) {
            let from = old.nic.clone();
            mover.tunnel_home(&bridge, old).await.map_err(in_tunnel)?;
            return Err(NotYet::new(
                "tunnel",
                format!("bridge {bridge} changes from {from} to {nic_name}"),
                "",
            ));
        }
        mover.tunnel_in(&bridge, &nic, recorded).await.map_err(in_tunnel)?;
        let host = self.host_view().await?;
        Ok((host, bridge.clone(), Wish::Named(bridge)))
    }

    /// The datapath is the kernel's (again): a NIC that we moved goes home.
    pub(super) async fn undo_bridge(&self, view: &View, host: HostView) -> Result<HostView, NotYet> {
        match self.bring_home(view).await? {
            None => Ok(host),
            Some(_) => self.host_view().await,
        }
    }

    /// The node is left for good: a NIC that we moved goes home. Its name, if there was one.
    ///
    /// # Errors
    /// When a step fails; the record is still there then, and it can be called again.
    pub async fn leave(&self) -> Result<Option<String>, NotYet> {
        self.bring_home(&self.inputs.ovs.view()).await
    }

    async fn bring_home(&self, view: &View) -> Result<Option<String>, NotYet> {
        let (mover, bridge) = (&self.mover, &self.inputs.flags.dpdk_tunnel_iface);
        let Some(journal) = mover.tunnel_record(view, bridge).await.map_err(in_tunnel)? else {
            return Ok(None);
        };
        let nic = journal.nic.clone();
        mover.tunnel_home(bridge, journal).await.map_err(in_tunnel)?;
        Ok(Some(nic))
    }
}
