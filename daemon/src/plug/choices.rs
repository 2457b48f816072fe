//! The pure parts of ADD: checks of the request, choices, the answer.

use std::net::IpAddr;

use cni::api::{CniRequest, CniResponse, IpConfig, PLUGIN_TYPE};
use ipnet::IpNet;

use super::error::{PlugError, Stage};
use super::names;
use super::wanted::Wanted;

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
    let ours = request.cni_type == PLUGIN_TYPE || request.cni_type.is_empty();
    match hardware(request) {
        // Another plugin makes the interface, for which we only give addresses.
        Some(what) if ours => Err(PlugError::new(
            Stage::ValidateRequest,
            format!("{what} are not supported by this version of Weir"),
        )
        .code(7)
        .remedy("use a plain interface: remove deviceID, vf_driver and vhost_user_socket_volume_name from the network configuration")),
        _ => Ok(()),
    }
}

/// What a request wants that no veth pair or internal port can be.
fn hardware(request: &CniRequest) -> Option<&'static str> {
    if !request.device_id.is_empty() || !request.vf_driver.is_empty() {
        return Some("SR-IOV virtual functions (deviceID, vf_driver)");
    }
    let vhost = !request.vhost_user_socket_volume_name.is_empty()
        || !request.vhost_user_socket_consumption.is_empty();
    vhost.then_some("DPDK and vhost-user ports (vhost_user_socket_volume_name)")
}

/// As the CNI specification defines it.
pub(super) fn is_container_id(id: &str) -> bool {
    id.starts_with(|c: char| c.is_ascii_alphanumeric())
        && id.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
}

/// Container id, namespace and host names would make every event unique.
pub(super) fn redact(message: &str, request: &CniRequest) -> String {
    names::all(&request.container_id, &request.if_name)
        .iter()
        .chain([&request.container_id, &request.net_ns, &request.device_id])
        .filter(|secret| !secret.is_empty())
        .fold(message.to_owned(), |text, secret| text.replace(secret.as_str(), "<redacted>"))
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
    .with_joined()
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

    fn plain() -> CniRequest {
        CniRequest {
            cni_type: PLUGIN_TYPE.into(),
            container_id: "c".into(),
            pod_name: "p".into(),
            pod_namespace: "n".into(),
            net_ns: "/run/netns/x".into(),
            if_name: "eth0".into(),
            ..CniRequest::default()
        }
    }

    /// K142: accepted as fields, and refused in words where they would have to be acted on.
    #[test]
    fn k_142_hardware_is_refused_with_the_remedy() {
        validate(&plain()).unwrap();
        let requests = [
            CniRequest { device_id: "0000:01:00.2".into(), ..plain() },
            CniRequest { vf_driver: "vfio-pci".into(), ..plain() },
            CniRequest { vhost_user_socket_volume_name: "sockets".into(), ..plain() },
            CniRequest { vhost_user_socket_consumption: "kubevirt".into(), ..plain() },
        ];
        for request in requests {
            let error = validate(&request).unwrap_err();
            assert_eq!((error.code, error.stage), (7, Stage::ValidateRequest));
            assert!(error.message.contains("not supported") && !error.remedy.is_empty(), "{error}");
            // As the IPAM of a plugin for such devices we have nothing to do with them.
            validate(&CniRequest { cni_type: "sriov".into(), ..request }).unwrap();
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
}
