//! The device itself: a veth pair, or an internal port of the switch that is
//! moved into the pod.
//!
//! In: a [`Target`] and the pod's namespace. Out: the device in the pod under
//! its name, its other side in the host's namespace or inside the switch.
//! Either converges: what a crashed call left half-made is kept or made anew.

use std::path::Path;
use std::time::Duration;

use cni::api::CniRequest;

use super::add::{Made, failed};
use super::error::PlugError;
use super::target::Target;
use super::{Plugger, names};
use crate::netlink::{Link, Netlink, Veth};
use crate::sys::Namespace;

/// An internal port whose device is nowhere is made anew this often.
const ATTEMPTS: u32 = 2;

impl Plugger {
    /// Makes the veth pair, or keeps the one that an earlier call made. What a
    /// crashed call left half-made is removed first.
    pub(super) async fn ensure_veth(
        &self,
        target: &Target<'_>,
        namespace: &Namespace,
        made: &mut Made,
    ) -> Result<(), PlugError> {
        let name = target.port.as_str();
        let veth = Veth {
            name,
            peer: &target.interface.name,
            peer_mac: Some(target.interface.mac),
            peer_namespace: Some(namespace),
            mtu: target.interface.mtu,
        };
        made.link = true;
        match self.host.add_port_veth(&veth, target.userspace).await {
            Ok(()) => return Ok(()),
            Err(error) if error.is_existing() => {}
            Err(error) => return Err(failed(error)),
        }
        made.link = false;
        let inside = Netlink::in_namespace(namespace).await.map_err(failed)?;
        let there = inside.link(&target.interface.name).await.map_err(failed)?;
        let here = self.host.netlink.link(name).await.map_err(failed)?;
        match (&here, &there) {
            (Some(here), Some(there)) if here.peer == Some(there.index) && there.peer == Some(here.index) => {
                if !here.up {
                    self.host.netlink.set_up_port(here.index).await.map_err(failed)?;
                }
            }
            // Of a call that died after it had put a port made ready into the
            // pod, and before the row said so.
            (None, Some(there)) if is_ours(there, target) => {
                inside.delete_link(&target.interface.name).await.map_err(failed)?;
                made.link = true;
                self.host.add_port_veth(&veth, target.userspace).await.map_err(failed)?;
            }
            (None, Some(_)) => return Err(of_another_plugin(target)),
            _ => {
                self.is_free(target)?;
                self.host.netlink.delete_link(name).await.map_err(failed)?;
                made.link = true;
                self.host.add_port_veth(&veth, target.userspace).await.map_err(failed)?;
            }
        }
        self.without_checksums(target)
    }

    /// The userspace datapath needs complete checksums from either end.
    pub(super) fn without_checksums(&self, target: &Target<'_>) -> Result<(), PlugError> {
        if !target.userspace {
            return Ok(());
        }
        self.host
            .ethtool
            .tx_checksum_off(&target.port)
            .map_err(|error| failed(format!("checksum offload of the host end: {error}")))
    }

    /// Puts an internal port's device into the pod. The port is in the
    /// database already; ovs-vswitchd makes its device in the host's namespace,
    /// also after its own restart, when the one in the pod died with it.
    pub(super) async fn ensure_internal(
        &self,
        target: &Target<'_>,
        namespace: &Namespace,
        patience: Duration,
    ) -> Result<(), PlugError> {
        let inside = Netlink::in_namespace(namespace).await.map_err(failed)?;
        for attempt in 1.. {
            self.wait_opened(&target.port, patience).await?;
            let here = self.host.netlink.link(&target.port).await.map_err(failed)?;
            let there = inside.link(&target.interface.name).await.map_err(failed)?;
            match (here, there) {
                (_, Some(there)) if !is_ours(&there, target) => return Err(of_another_plugin(target)),
                (None, Some(_)) => return Ok(()),
                (Some(here), dead) => {
                    // ovs-vswitchd leaves its device behind when it is killed.
                    if dead.is_some() {
                        inside.delete_link(&target.interface.name).await.map_err(failed)?;
                    }
                    let name = (target.device_inside() == target.interface.name)
                        .then_some(target.interface.name.as_str());
                    let moved = self
                        .host
                        .netlink
                        .move_link(here.index, namespace, name, &target.interface.alias)
                        .await;
                    match moved {
                        Ok(()) if name.is_some() => return Ok(()),
                        Ok(()) => {}
                        // ovs-vswitchd was restarted at this moment.
                        Err(error) if error.is_missing() && attempt < ATTEMPTS => continue,
                        Err(error) => return Err(failed(error)),
                    }
                    // The kernel's datapath would take a renamed device for a
                    // port that nobody wants.
                    let moved = inside.require_link(&target.port).await.map_err(failed)?;
                    return inside.add_altname(moved.index, &target.interface.name).await.map_err(failed);
                }
                (None, None) if attempt < ATTEMPTS => {
                    // Someone deleted the device; ovs-vswitchd makes another
                    // only for another row.
                    self.forget_port(&target.port).await?;
                    self.ensure_port(target).await?;
                }
                (None, None) => break,
            }
        }
        Err(failed(format!("ovs-vswitchd made no device for internal port {}", target.port))
            .remedy("look at ovs-vswitchd's log on this node"))
    }
}

/// Deletes the device of an internal port from its pod, if one of the ports is that. Usually it goes with
/// the port; not while ovs-vswitchd is down. Best effort: it goes with the
/// namespace at the latest.
pub(super) async fn delete_inside(request: &CniRequest, ports: &[String]) {
    let internal: Vec<&String> = ports.iter().filter(|port| port.ends_with(names::INTERNAL)).collect();
    if internal.is_empty() {
        return;
    }
    let Ok(namespace) = Namespace::open(Path::new(&request.net_ns)) else { return };
    let Ok(inside) = Netlink::in_namespace(&namespace).await else { return };
    if let Ok(Some(link)) = inside.link(&request.if_name).await
        && link.alias.as_ref().is_some_and(|alias| internal.contains(&alias))
        && let Err(error) = inside.delete_link(&request.if_name).await
    {
        tracing::debug!(error = %error, "an internal port's device could not be deleted from its pod");
    }
}

/// Whether a link in the pod is the internal port's device.
fn is_ours(link: &Link, target: &Target<'_>) -> bool {
    link.name == target.port || link.alias.as_deref() == Some(&target.interface.alias)
}

fn of_another_plugin(target: &Target<'_>) -> PlugError {
    failed(format!("the pod already has an interface {} of another plugin", target.interface.name))
        .code(7)
        .remedy("keep one of the two networks that use this interface name")
}
