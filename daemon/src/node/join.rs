//! `ovn0` in the switch and on the host, and the node's condition.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::ovn0::Join;
use super::steps::{Initialiser, host_error};
use super::tunnel::Tunnel;
use super::{NotYet, OVN0};
use crate::install::loosen_reverse_path;
use crate::kube::{NodeFacts, set_network_unavailable};
use crate::netlink::{Link, Pace};
use crate::ovs::{Installed, View, plan};

/// How long the join gateways may take to answer.
const GATEWAY_PATIENCE: Duration = Duration::from_secs(3);
/// Silence of this length makes the node unavailable: a node that starts, or
/// whose switch does, gets time to come up.
const SILENCE: Duration = Duration::from_secs(15);
/// Transmit queue length of `ovn0` in packets (node contract §3.3).
const TX_QUEUE: u32 = 1000;

impl Initialiser {
    /// `ovn0` and the join gateways. Returns whether they answer.
    pub(super) async fn join(
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
        let make = |view: &View| plan::and_apply(view, |view| plan::ensure_port(view, &spec));
        self.inputs.ovs.apply(make).await.map_err(|error| {
            NotYet::new("ovn0", error.to_string(), "ovn-controller makes br-int: is it running?")
        })?;
        super::acted(&self.inputs.ovs, "ovn0", OVN0).await?;
        let link = self.ovn0_link(&join, tunnel.mtu, userspace).await?;
        // Before ovn-controller has installed the port nobody can answer; its
        // doing so wakes the loop.
        let installed = self.inputs.ovs.view().installed(OVN0) == Installed::Yes;
        let found = if installed {
            self.reach
                .resolve_all(link.index, &join.gateways, GATEWAY_PATIENCE, Pace::Gentle)
                .await
                .map_err(host_error("ovn0"))?
        } else {
            BTreeMap::new()
        };
        let silent: Vec<String> = join
            .gateways
            .iter()
            .filter(|gateway| !found.contains_key(gateway))
            .map(ToString::to_string)
            .collect();
        if silent.is_empty() {
            self.silent_since = None;
        } else {
            let since = *self.silent_since.get_or_insert_with(Instant::now);
            if since.elapsed() < SILENCE {
                return Ok(false);
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
        // Before the link is up: the kernel's own link-local address would have
        // to pass duplicate detection first.
        let local = ipnet::Ipv6Net::new(join.mac.link_local(), 64).map(ipnet::IpNet::V6);
        if let Ok(local) = local
            && join.addresses.iter().any(|net| net.addr().is_ipv6())
        {
            host.add_address(link.index, local, true).await.map_err(&error)?;
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
