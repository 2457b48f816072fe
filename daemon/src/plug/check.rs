//! CHECK: is the interface still as ADD left it?

use std::net::IpAddr;
use std::path::Path;

use cni::api::{CheckRequest, PLUGIN_TYPE};

use super::error::{PlugError, Stage};
use super::{Plugger, names};
use crate::netlink::Netlink;
use crate::ovs::Installed;
use crate::sys::Namespace;

fn missing(message: impl Into<String>) -> PlugError {
    PlugError::new(Stage::ConfigureNic, message).remedy("delete the pod; its successor gets a new interface")
}

impl Plugger {
    /// Compares the switch's side and the pod's side with what ADD answered.
    ///
    /// # Errors
    /// The first thing that is not as expected.
    pub async fn check(&self, check: &CheckRequest) -> Result<(), PlugError> {
        let request = &check.request;
        if request.cni_type != PLUGIN_TYPE && !request.cni_type.is_empty() {
            // We are another plugin's IPAM: the interface is its own to check.
            return Ok(());
        }
        let _lock = self.locks.lock(&request.container_id).await;
        let host_nic = names::host_nic(&request.container_id, &request.if_name);
        match self.ovs.view().installed(&host_nic) {
            Installed::Yes => {}
            Installed::Missing => return Err(missing("the OVS port is gone")),
            Installed::Waiting => return Err(missing("ovn-controller has not installed the OVS port")),
            Installed::Broken(error) => {
                return Err(missing(format!("ovs-vswitchd can't use the port: {error}")));
            }
        }
        let failed = |error: &dyn std::fmt::Display| missing(error.to_string());
        let namespace =
            Namespace::open(Path::new(&request.net_ns)).map_err(|error| failed(&error).code(8))?;
        let inside = Netlink::in_namespace(&namespace).await.map_err(|error| failed(&error))?;
        let link = inside
            .link(&request.if_name)
            .await
            .map_err(|error| failed(&error))?
            .ok_or_else(|| missing(format!("the pod has no interface {}", request.if_name)))?;
        if !link.up {
            return Err(missing("the interface is down"));
        }
        let expected = &check.expected;
        let mac = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
        if !expected.mac_address.is_empty() && !expected.mac_address.eq_ignore_ascii_case(&mac) {
            return Err(missing(format!("the MAC is {mac} instead of {}", expected.mac_address)));
        }
        let addresses = inside.addresses(Some(link.index)).await.map_err(|error| failed(&error))?;
        for text in &expected.addresses {
            if !addresses.iter().any(|address| address.net.to_string() == *text) {
                return Err(missing(format!("address {text} is gone")));
            }
        }
        let routes = inside.routes().await.map_err(|error| failed(&error))?;
        for route in &expected.routes {
            let gateway: Option<IpAddr> = route.gw.parse().ok();
            let there = routes.iter().any(|have| {
                let destination = match route.dst.as_str() {
                    "" => have.is_default(),
                    dst => have.destination.to_string() == dst || (have.is_default() && dst.ends_with("/0")),
                };
                have.link == Some(link.index) && destination && (gateway.is_none() || have.gateway == gateway)
            });
            if !there {
                return Err(missing(format!("the route to {:?} by {:?} is gone", route.dst, route.gw)));
            }
        }
        Ok(())
    }
}
