//! CHECK: is the interface still as ADD left it?

use std::net::IpAddr;
use std::path::Path;

use cni::api::{CheckRequest, CniRequest, ExpectedState, PLUGIN_TYPE, Route as ApiRoute};

use super::del::ports_of_call;
use super::error::{PlugError, Stage};
use super::{Plugger, names};
use crate::netlink::{Link, Netlink, Route};
use crate::ovs::{Interface, View};
use crate::sys::Namespace;

fn missing(message: impl Into<String>) -> PlugError {
    PlugError::new(Stage::ConfigureNic, message).remedy("delete the pod; its successor gets a new interface")
}

fn refused(error: impl std::fmt::Display) -> PlugError {
    missing(error.to_string())
}

/// The interface's port in the switch, whatever its name.
fn port(view: &View, request: &CniRequest) -> Option<Interface> {
    let ports = ports_of_call(view, request);
    let mut found: Vec<Interface> = ports.iter().filter_map(|port| view.interface(port)).collect();
    // A row with the container's own marks is newer than one by name alone.
    found.sort_by_key(|interface| !names::is_marked(interface, &request.container_id, &request.if_name));
    found.into_iter().next()
}

impl Plugger {
    /// Compares the switch's side and the pod's side with what ADD answered.
    /// Additions of later plugins are no fault. A port that OVN is still at
    /// work on (right after ADD, or after a restart of the switch) is waited for.
    ///
    /// # Errors
    /// The first thing that is not as expected.
    pub async fn check(&self, check: &CheckRequest) -> Result<(), PlugError> {
        self.compare(check).await.map_err(|error| error.about(&check.request))
    }

    async fn compare(&self, check: &CheckRequest) -> Result<(), PlugError> {
        let request = &check.request;
        if request.cni_type != PLUGIN_TYPE && !request.cni_type.is_empty() {
            // We are another plugin's IPAM: the interface is its own to check.
            return Ok(());
        }
        let _lock = self.locks.lock(&request.container_id).await;
        if !self.switch_is_known().await {
            return Err(PlugError::new(Stage::ConfigureNic, "the local OVS database is not there").remedy(
                "see whether ovsdb-server runs on this node; nothing is known to be wrong with the pod",
            ));
        }
        let port = port(&self.ovs.view(), request).ok_or_else(|| missing("the OVS port is gone"))?;
        if port.external_id("iface-id").is_none() {
            return Err(missing(format!(
                "OVS port {} has no iface-id: a newer sandbox of the pod owns the logical port",
                port.name()
            )));
        }
        self.wait_installed(port.name(), self.patience.installed)
            .await
            .map_err(|error| missing(error.message))?;
        let namespace =
            Namespace::open(Path::new(&request.net_ns)).map_err(|error| refused(error).code(8))?;
        let inside = Netlink::in_namespace(&namespace).await.map_err(refused)?;
        let link = inside
            .link(&request.if_name)
            .await
            .map_err(refused)?
            .ok_or_else(|| missing(format!("the pod has no interface {}", request.if_name)))?;
        if port.kind().is_empty() {
            self.check_pair(port.name(), &link).await?;
        }
        check_inside(&inside, &link, &check.expected).await
    }

    /// The host's end must be the other end of the pod's.
    async fn check_pair(&self, name: &str, inside: &Link) -> Result<(), PlugError> {
        let host = self.host.netlink.link(name).await.map_err(refused)?;
        let host = host.ok_or_else(|| missing(format!("the host has no interface {name}")))?;
        if host.peer != Some(inside.index) || inside.peer != Some(host.index) {
            return Err(missing(format!("{} of the pod is not the other end of {name}", inside.name)));
        }
        if host.up { Ok(()) } else { Err(missing(format!("{name} on the host is down"))) }
    }
}

async fn check_inside(inside: &Netlink, link: &Link, expected: &ExpectedState) -> Result<(), PlugError> {
    if !link.up {
        return Err(missing("the interface is down"));
    }
    let mac = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
    if !expected.mac_address.is_empty() && !expected.mac_address.eq_ignore_ascii_case(&mac) {
        return Err(missing(format!("the MAC is {mac} instead of {}", expected.mac_address)));
    }
    // A later plugin of the chain (tuning) may have made it smaller, and does not say so in the result.
    if expected.mtu > 0 && expected.mtu < i64::from(link.mtu) {
        return Err(missing(format!("the MTU is {} instead of {}", link.mtu, expected.mtu)));
    }
    let addresses = inside.addresses(Some(link.index)).await.map_err(refused)?;
    for text in &expected.addresses {
        if !addresses.iter().any(|address| address.net.to_string() == *text) {
            return Err(missing(format!("address {text} is gone")));
        }
    }
    let routes = inside.routes().await.map_err(refused)?;
    for route in &expected.routes {
        if !routes.iter().any(|have| have.link == Some(link.index) && is_route(have, route)) {
            return Err(missing(format!("the route to {:?} by {:?} is gone", route.dst, route.gw)));
        }
    }
    Ok(())
}

fn is_route(have: &Route, wanted: &ApiRoute) -> bool {
    let gateway: Option<IpAddr> = wanted.gw.parse().ok();
    let destination = match wanted.dst.as_str() {
        "" => have.is_default(),
        dst => have.destination.to_string() == dst || (have.is_default() && dst.ends_with("/0")),
    };
    destination && (gateway.is_none() || have.gateway == gateway)
}
