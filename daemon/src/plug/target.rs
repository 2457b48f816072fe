//! One interface to be made, everything decided. Pure.
//!
//! In: the request, what the annotations say ([`Wanted`]), subnet, node and
//! what initialisation has found out. Out: [`Target`], which the executing
//! parts ([`super::device`], [`super::container`], [`super::port`]) make true;
//! or why it can't be.

use std::net::IpAddr;
use std::time::Duration;

use cni::api::CniRequest;
use ipnet::IpNet;

use super::container::Interface;
use super::error::{PlugError, Stage};
use super::wanted::{NicKind, Wanted};
use super::{NodeNetwork, names};
use crate::gateway::policy::{PolicyRule, rules_of_pod};
use crate::kube::{NodeFacts, SubnetFacts};
use crate::ovs::BR_INT;

/// Below this the kernel has no IPv6 (RFC 8200 §5).
const IPV6_MIN_MTU: u32 = 1280;

/// How the gateways are checked before the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GatewayCheck {
    /// A silent gateway fails the ADD.
    Required,
    /// Asked once, to warm the neighbour's entry.
    BestEffort,
    /// Not asked.
    Off,
}

impl GatewayCheck {
    /// How long silent gateways are waited for when `patience` is for those
    /// that have to answer.
    pub(super) fn patience(self, patience: Duration) -> Duration {
        match self {
            Self::Required => patience,
            Self::BestEffort | Self::Off => Duration::from_millis(50).min(patience),
        }
    }
}

/// An interface to be made.
#[derive(Clone, Debug)]
pub(super) struct Target<'a> {
    /// The call; its routes and network are recorded for those who make the
    /// interface again.
    pub request: &'a CniRequest,
    /// The annotations.
    pub wanted: &'a Wanted,
    /// Name of the OVS port and of the device on the host.
    pub port: String,
    /// Pods are switched in userspace.
    pub userspace: bool,
    /// Source address of the pod's tunnels, where the subnet has a network of its own.
    pub encap_ip: Option<IpAddr>,
    /// The pod's side.
    pub interface: Interface,
    /// Addresses that have to answer before the pod is told to go ahead.
    pub gateways: Vec<IpAddr>,
    /// How much they have to.
    pub check: GatewayCheck,
    /// Addresses and routes come when the port is connected to the physical network: that is not OVN's, and somebody
    /// there may have them.
    pub late: bool,
    /// Ask that network for other owners of the IPv4 ones. (IPv6 always has the kernel's own detection.)
    pub detect: bool,
    /// Routing rules on the host that the pod's first packet needs.
    pub rules: Vec<PolicyRule>,
    /// The port by which the subnet reaches the physical network.
    pub localnet: Option<String>,
}

impl<'a> Target<'a> {
    /// Decides.
    ///
    /// # Errors
    /// Stages `get-subnet`, `u2o-address`, `get-node`, `mtu`, `encap-ip`: what is missing or contradicts itself.
    pub(super) fn new(
        request: &'a CniRequest,
        wanted: &'a Wanted,
        subnet: &SubnetFacts,
        network: &NodeNetwork,
        node: Option<&NodeFacts>,
        detect_conflicts: bool,
    ) -> Result<Self, PlugError> {
        let mtu = mtu(wanted, subnet, network, node)?;
        let u2o = u2o_addresses(subnet)?;
        let underlay = subnet.is_underlay();
        let late = underlay && !wanted.migrating && !wanted.addresses.is_empty();
        let mut gateways: Vec<IpAddr> =
            u2o.iter().chain(&wanted.gateways).filter(|ip| has_family(wanted, ip)).copied().collect();
        gateways.dedup();
        Ok(Self {
            request,
            wanted,
            port: match wanted.nic {
                NicKind::Veth => names::host_nic(&request.container_id, &wanted.if_name),
                NicKind::Internal => names::container_nic(&request.container_id, &wanted.if_name),
            },
            userspace: network.userspace,
            encap_ip: encap_ip(subnet, network)?,
            interface: Interface {
                name: wanted.if_name.clone(),
                mac: wanted.mac,
                mtu: (mtu > 0).then_some(mtu),
                addresses: wanted.addresses.clone(),
                default_gateways: default_gateways(wanted, &u2o),
                routes: wanted.routes.clone(),
                // OVN vouches for its own addresses; a machine on the move has
                // its address at the source still.
                no_dad: !underlay || wanted.migrating,
                alias: names::container_nic(&request.container_id, &wanted.if_name),
            },
            check: match () {
                () if wanted.migrating || wanted.addresses.is_empty() => GatewayCheck::Off,
                () if subnet.disable_gateway_check => GatewayCheck::BestEffort,
                () => GatewayCheck::Required,
            },
            gateways,
            late,
            detect: detect_conflicts && late,
            rules: rules_of_pod(subnet, &wanted.addresses),
            localnet: underlay
                .then(|| format!("patch-{}-to-{BR_INT}", crds::names::localnet_port(&subnet.name))),
        })
    }

    /// Each address has the gateway of its family, where gateways have to answer (node contract §2.4 step 9): without, a
    /// pod would start that no other network can reach by that family. Not asked of a pod that runs already.
    ///
    /// # Errors
    /// Stage `configure-nic`, with the addresses and gateways that do not fit.
    pub(super) fn has_its_gateways(&self) -> Result<(), PlugError> {
        if self.check != GatewayCheck::Required {
            return Ok(());
        }
        let (addresses, gateways) = (&self.wanted.addresses, &self.wanted.gateways);
        for (ipv6, family) in [(false, "IPv4"), (true, "IPv6")] {
            let addresses: Vec<IpAddr> =
                addresses.iter().map(IpNet::addr).filter(|ip| ip.is_ipv6() == ipv6).collect();
            let gateways: Vec<IpAddr> = gateways.iter().filter(|ip| ip.is_ipv6() == ipv6).copied().collect();
            if addresses.len() != gateways.len() {
                let subnet = &self.wanted.subnet;
                let message = format!(
                    "of {family} the pod has the addresses {addresses:?} and the gateways {gateways:?} of subnet {subnet}: \
                     each address needs one"
                );
                return Err(PlugError::new(Stage::ConfigureNic, message).code(7).remedy(format!(
                    "name one gateway for each family of spec.cidrBlock in spec.gateway of subnet {subnet} and make the pod \
                     anew, or set spec.disableGatewayCheck there"
                )));
            }
        }
        Ok(())
    }

    /// The same for a pod that runs, and has its addresses: nothing is asked before it has them again.
    pub(super) fn of_a_running_pod(self) -> Self {
        Self { late: false, detect: false, check: GatewayCheck::Off, ..self }
    }

    /// Whether all gateways of at least one family answer, when those in `silent` do not: with that the pod can work.
    pub(super) fn one_family_answers(&self, silent: &[IpAddr]) -> bool {
        [false, true].into_iter().any(|ipv6| {
            let mut own = self.gateways.iter().filter(|ip| ip.is_ipv6() == ipv6).peekable();
            own.peek().is_some() && own.all(|ip| !silent.contains(ip))
        })
    }

    /// Takes the port that is there, or is free, whatever its name.
    pub(super) fn take_port(&mut self, name: &str) {
        if let Some(stem) = [names::HOST, names::INTERNAL].iter().find_map(|end| name.strip_suffix(end)) {
            self.interface.alias = format!("{stem}{}", names::INTERNAL);
        }
        name.clone_into(&mut self.port);
    }

    /// The name of the device in the pod's namespace before anything names it
    /// there: what its sysctl folder is called.
    pub(super) fn device_inside(&self) -> &str {
        // The kernel's datapath knows an internal port by its device's name.
        if self.wanted.nic == NicKind::Internal && !self.userspace {
            &self.port
        } else {
            &self.interface.name
        }
    }
}

fn has_family(wanted: &Wanted, ip: &IpAddr) -> bool {
    wanted.addresses.iter().any(|net| net.addr().is_ipv6() == ip.is_ipv6())
}

/// The addresses through which an underlay subnet reaches the overlay, if it does.
fn u2o_addresses(subnet: &SubnetFacts) -> Result<Vec<IpAddr>, PlugError> {
    if !subnet.is_underlay() || !subnet.u2o_interconnection {
        return Ok(Vec::new());
    }
    let ips: Vec<IpAddr> =
        subnet.u2o_interconnection_ip.split(',').filter_map(|ip| ip.trim().parse().ok()).collect();
    if ips.is_empty() {
        let message = format!("subnet {} has no status.u2oInterconnectionIP yet", subnet.name);
        return Err(PlugError::new(Stage::U2oAddress, message)
            .remedy("wait for the controller, or switch spec.u2oInterconnection off"));
    }
    Ok(ips)
}

/// u2o subnets leave through the interconnection address.
fn default_gateways(wanted: &Wanted, u2o: &[IpAddr]) -> Vec<IpAddr> {
    if !wanted.default_route {
        return Vec::new();
    }
    wanted
        .gateways
        .iter()
        .map(|gateway| *u2o.iter().find(|ip| ip.is_ipv6() == gateway.is_ipv6()).unwrap_or(gateway))
        .collect()
}

/// The provider network whose MTU the pod gets, if it is that one's to say.
pub(super) fn physical_network<'a>(wanted: &'a Wanted, subnet: &SubnetFacts) -> Option<&'a str> {
    let routed = subnet.logical_gateway || subnet.u2o_interconnection;
    wanted.provider_network.as_deref().filter(|_| subnet.mtu == 0 && !routed)
}

/// No MTU can be told without the node.
pub(super) fn node_unknown() -> PlugError {
    PlugError::new(
        Stage::GetNode,
        "this node is not known, whose label tells the MTU of the provider network",
    )
}

/// The subnet's MTU; else that of the provider network on this node, for pods
/// that sit on it; else that of the tunnels (node contract §2.2 step 8).
///
/// A provider network's is asked of the node; a node that has no label of it leaves the kernel's default.
fn mtu(
    wanted: &Wanted,
    subnet: &SubnetFacts,
    network: &NodeNetwork,
    node: Option<&NodeFacts>,
) -> Result<u32, PlugError> {
    let physical =
        physical_network(wanted, subnet).map(|network| crds::keys::provider_network_key(network, "mtu"));
    let mtu = match physical {
        None if subnet.mtu > 0 => subnet.mtu,
        None => network.mtu,
        Some(label) => match node.ok_or_else(node_unknown)?.labels.get(&label) {
            None => 0,
            Some(text) => text.parse().ok().filter(|mtu| *mtu > 0).ok_or_else(|| {
                PlugError::new(Stage::Mtu, format!("label {label} of this node is {text:?}, which is no MTU"))
                    .remedy("remove the label; the node agent writes it again")
            })?,
        },
    };
    if (1..IPV6_MIN_MTU).contains(&mtu) && wanted.addresses.iter().any(|net| net.addr().is_ipv6()) {
        let message = format!("subnet {} has MTU {mtu}, and IPv6 needs {IPV6_MIN_MTU}", subnet.name);
        return Err(PlugError::new(Stage::Mtu, message)
            .code(7)
            .remedy("raise spec.mtu of the subnet, or the MTU of the underlying network"));
    }
    Ok(mtu)
}

/// Pods of a subnet on a node network tunnel from that network's address.
fn encap_ip(subnet: &SubnetFacts, network: &NodeNetwork) -> Result<Option<IpAddr>, PlugError> {
    if subnet.node_network.is_empty() {
        return Ok(None);
    }
    network.node_networks.get(&subnet.node_network).copied().map(Some).ok_or_else(|| {
        PlugError::new(
            Stage::EncapIp,
            format!("this node has no address in node network {}", subnet.node_network),
        )
        .remedy("set the node's annotation ovn.kubernetes.io/node_networks")
    })
}

#[cfg(test)]
#[path = "target_tests.rs"]
mod tests;
