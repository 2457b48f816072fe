//! The pure parts of ADD: checks of the request, choices, the answer.

use std::net::IpAddr;

use cni::api::{CniRequest, CniResponse, IpConfig};
use ipnet::IpNet;

use super::error::{PlugError, Stage};
use super::wanted::Wanted;
use super::{NodeNetwork, names};
use crate::kube::SubnetFacts;

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

/// What is in a request must make names and paths.
pub(super) fn validate(request: &CniRequest) -> Result<(), PlugError> {
    let invalid = |message: &str| Err(PlugError::new(Stage::ValidateRequest, message).code(4));
    if !is_container_id(&request.container_id) {
        return invalid("container_id is empty or has characters other than letters, digits, '_', '.', '-'");
    }
    if request.pod_name.is_empty() || request.pod_namespace.is_empty() {
        return invalid("pod_name and pod_namespace are needed");
    }
    if request.net_ns.is_empty() {
        return invalid("net_ns is needed");
    }
    if request.if_name.len() > 15
        || request.if_name.contains(['/', ' ', ':'])
        || request.if_name.starts_with('.')
    {
        return invalid("if_name is no interface name");
    }
    Ok(())
}

/// As the CNI specification defines it.
pub(super) fn is_container_id(id: &str) -> bool {
    id.starts_with(|c: char| c.is_ascii_alphanumeric())
        && id.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
}

/// Container id, namespace and host names would make every event unique.
pub(super) fn redact(message: &str, request: &CniRequest) -> String {
    let host_nic = names::host_nic(&request.container_id, &request.if_name);
    let container_nic = names::container_nic(&request.container_id, &request.if_name);
    [&host_nic, &container_nic, &request.container_id, &request.net_ns, &request.device_id]
        .into_iter()
        .filter(|secret| !secret.is_empty())
        .fold(message.to_owned(), |text, secret| text.replace(secret.as_str(), "<redacted>"))
}

/// u2o subnets leave through the interconnection address.
pub(super) fn default_gateways(wanted: &Wanted, subnet: &SubnetFacts) -> Vec<IpAddr> {
    if !wanted.default_route {
        return Vec::new();
    }
    let u2o: Vec<IpAddr> = if subnet.is_underlay() && subnet.u2o_interconnection {
        subnet.u2o_interconnection_ip.split(',').filter_map(|ip| ip.trim().parse().ok()).collect()
    } else {
        Vec::new()
    };
    wanted
        .gateways
        .iter()
        .map(|gateway| *u2o.iter().find(|ip| ip.is_ipv6() == gateway.is_ipv6()).unwrap_or(gateway))
        .collect()
}

pub(super) fn gateway_check(subnet: &SubnetFacts) -> GatewayCheck {
    match subnet {
        subnet if subnet.disable_gateway_check => GatewayCheck::BestEffort,
        // A physical gateway's silence is none of the pod's business.
        subnet if subnet.is_underlay() => GatewayCheck::BestEffort,
        _ => GatewayCheck::Required,
    }
}

/// Pods of a subnet on a node network tunnel from that network's address.
pub(super) fn encap_ip(subnet: &SubnetFacts, network: &NodeNetwork) -> Result<Option<IpAddr>, PlugError> {
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

pub(super) fn api_routes(routes: &[(Option<IpNet>, Option<IpAddr>)]) -> Vec<cni::api::Route> {
    routes
        .iter()
        .map(|(dst, gw)| cni::api::Route {
            dst: dst.map(|net| net.to_string()).unwrap_or_default(),
            gw: gw.map(|ip| ip.to_string()).unwrap_or_default(),
        })
        .collect()
}

pub(super) fn answer(wanted: &Wanted, nic: &str, mtu: i64, routes: Vec<cni::api::Route>) -> CniResponse {
    let ips = wanted
        .addresses
        .iter()
        .zip(&wanted.cidrs)
        .map(|(net, cidr)| {
            let gateway = wanted.gateways.iter().find(|ip| ip.is_ipv6() == net.addr().is_ipv6());
            IpConfig {
                protocol: if net.addr().is_ipv6() { "IPv6" } else { "IPv4" }.to_owned(),
                ip: net.addr().to_string(),
                cidr: cidr.to_string(),
                gateway: gateway
                    .filter(|_| wanted.default_route)
                    .map(|gateway| gateway.to_string())
                    .unwrap_or_default(),
            }
        })
        .collect();
    CniResponse {
        ips,
        mac_address: wanted.mac.to_string(),
        nicname: nic.to_owned(),
        routes,
        mtu,
        ..CniResponse::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_ids_follow_the_specification() {
        assert!(is_container_id("abc-1.2_3"));
        for bad in ["", "-a", "a/b", "a b", "é"] {
            assert!(!is_container_id(bad), "{bad}");
        }
    }

    #[test]
    fn events_carry_nothing_that_is_unique_to_a_sandbox() {
        let request = CniRequest {
            container_id: "0123456789abcdef".into(),
            if_name: "eth0".into(),
            net_ns: "/run/netns/cni-1".into(),
            ..CniRequest::default()
        };
        let text = redact("create veth 0123456789ab_h in /run/netns/cni-1 of 0123456789abcdef", &request);
        assert_eq!(text, "create veth <redacted> in <redacted> of <redacted>");
    }

    #[test]
    fn a_node_network_must_be_known() {
        let subnet = SubnetFacts { node_network: "storage".into(), ..SubnetFacts::default() };
        let mut network =
            NodeNetwork { mtu: 1400, userspace: false, node_networks: std::collections::BTreeMap::new() };
        assert_eq!(encap_ip(&subnet, &network).unwrap_err().stage, Stage::EncapIp);
        let ip: IpAddr = "10.9.0.1".parse().unwrap();
        network.node_networks.insert("storage".into(), ip);
        assert_eq!(encap_ip(&subnet, &network).unwrap(), Some(ip));
        assert_eq!(encap_ip(&SubnetFacts::default(), &network).unwrap(), None);
    }
}
