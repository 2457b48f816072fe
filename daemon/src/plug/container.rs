//! The pod's side of an interface: sysctls, addresses, routes, announcement,
//! gateway check (node contract §2.4).
//!
//! One short-lived thread enters the namespace, writes what only a thread
//! inside can write, and opens the sockets; all the rest runs on the main
//! runtime over those sockets.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use cni::api::Route as ApiRoute;
use ipnet::{IpNet, Ipv6Net};

use super::error::{PlugError, Stage};
use crate::netlink::{self, Link, MAIN_TABLE, Mac, Netlink, Pace, Reachability, Route, Scope};
use crate::steps;
use crate::sys::{
    EthtoolSocket, Namespace, PacketSocket, gratuitous_arp, unsolicited_neighbour_advertisement, write_sysctl,
};

/// What the interface has to look like.
#[derive(Clone, Debug)]
pub struct Interface {
    /// Name.
    pub name: String,
    /// MAC.
    pub mac: Mac,
    /// MTU in bytes; the kernel's default if absent.
    pub mtu: Option<u32>,
    /// Addresses with prefix lengths.
    pub addresses: Vec<IpNet>,
    /// Next hops of the default route, one per family; none leaves it alone.
    pub default_gateways: Vec<IpAddr>,
    /// Extra routes.
    pub routes: Vec<(Option<IpNet>, Option<IpAddr>)>,
    /// OVN vouches for the addresses: no duplicate detection.
    pub no_dad: bool,
    /// The device's alias: its name before it came into the pod.
    pub alias: String,
}

/// A pod's namespace with the sockets that reach into it.
#[derive(Debug)]
pub struct Container {
    /// Netlink inside.
    pub netlink: Netlink,
    reach: Reachability,
    packets: io::Result<PacketSocket>,
    /// Where TX checksums have to be off.
    ethtool: Option<EthtoolSocket>,
}

/// Frames that tell neighbours where addresses are now.
#[derive(Debug)]
pub struct Announcement {
    socket: PacketSocket,
    link: u32,
    frames: Vec<Vec<u8>>,
}

impl Announcement {
    /// Sends them. Best effort: caches of an address's former owner expire anyway.
    pub fn send(&self) {
        for frame in &self.frames {
            if let Err(error) = self.socket.send(self.link, frame) {
                tracing::debug!(error = %error, "an address could not be announced");
            }
        }
    }
}

/// What could not be done on the way in.
fn failed(error: impl std::fmt::Display) -> PlugError {
    PlugError::new(Stage::ConfigureNic, error.to_string())
}

impl Container {
    /// Enters the namespace once: IPv6 on, router advertisements off (for
    /// `all`, `default` and the interface, `interface` being the device's own
    /// name), sockets open. An interface that comes later takes it from
    /// `default`. With `tx_checksum_off`, which the userspace datapath needs,
    /// [`Container::bring_up`] turns that offload off.
    ///
    /// # Errors
    /// When the namespace can't be entered or a sysctl not be set.
    pub async fn enter(
        namespace: &Namespace,
        interface: &str,
        tx_checksum_off: bool,
    ) -> Result<Self, PlugError> {
        let runtime = tokio::runtime::Handle::current();
        let interface = interface.to_owned();
        let entered = namespace
            .run_async(move || {
                for scope in ["all", "default", &interface] {
                    for (key, value) in [("disable_ipv6", "0"), ("accept_ra", "0")] {
                        write_sysctl(&format!("net/ipv6/conf/{scope}/{key}"), value)
                            .map_err(|error| failed(format!("sysctl {scope}/{key}: {error}")))?;
                    }
                }
                let ethtool = tx_checksum_off.then(EthtoolSocket::open).transpose();
                let ethtool = ethtool.map_err(|error| failed(format!("open an ethtool socket: {error}")))?;
                let reach = Reachability::open_on(&runtime).map_err(failed)?;
                Ok(Self { netlink: reach.netlink().clone(), reach, packets: PacketSocket::open(), ethtool })
            })
            .await
            .map_err(failed)?;
        steps::done("enter the pod").await;
        entered
    }

    /// Makes the interface as wanted, whatever it was before. Link-local
    /// addresses are left alone.
    ///
    /// # Errors
    /// When the interface is missing or the kernel refuses.
    pub async fn configure(&self, wanted: &Interface) -> Result<Link, PlugError> {
        let link = self.bring_up(wanted, true).await?;
        self.route(&link, wanted).await?;
        Ok(link)
    }

    /// Brings the interface up with its MAC, its MTU and, if `addressed`, its
    /// addresses. They come before the link is up: the kernel then reports all
    /// their multicast groups at once, before the switch listens, which would
    /// flood each report to all its ports.
    ///
    /// # Errors
    /// When the interface is missing or the kernel refuses.
    pub async fn bring_up(&self, wanted: &Interface, addressed: bool) -> Result<Link, PlugError> {
        self.try_bring_up(wanted, addressed).await.map_err(failed)
    }

    /// Gives the interface, up already, its routes.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub async fn route(&self, link: &Link, wanted: &Interface) -> Result<(), PlugError> {
        self.try_route(link, wanted).await.map_err(failed)
    }

    async fn try_bring_up(&self, wanted: &Interface, addressed: bool) -> Result<Link, netlink::Error> {
        let mut link = self.netlink.require_link(&wanted.name).await?;
        if let Some(ethtool) = &self.ethtool {
            ethtool
                .tx_checksum_off(&link.name)
                .map_err(|source| netlink::Error::io(format!("checksum offload of {}", link.name), source))?;
        }
        if link.mac != Some(wanted.mac) {
            self.netlink.set_mac(link.index, wanted.mac).await?;
        }
        if let Some(mtu) = wanted.mtu
            && link.mtu != mtu
        {
            self.netlink.set_mtu(link.index, mtu).await?;
            link.mtu = mtu;
        }
        // The kernel asks for neighbours with the link-local address, which
        // duplicate detection would hold back for a second or two.
        if wanted.no_dad
            && wanted.addresses.iter().any(|net| net.addr().is_ipv6())
            && let Ok(local) = Ipv6Net::new(wanted.mac.link_local(), 64)
        {
            self.netlink.add_address(link.index, local.into(), true).await?;
        }
        if addressed {
            self.address(&link, wanted).await?;
        }
        if !link.up || link.alias.as_ref() != Some(&wanted.alias) {
            self.netlink.set_up_as(link.index, &wanted.alias).await?;
        }
        Ok(link)
    }

    async fn address(&self, link: &Link, wanted: &Interface) -> Result<(), netlink::Error> {
        let present: BTreeSet<IpNet> = self
            .netlink
            .addresses(Some(link.index))
            .await?
            .into_iter()
            .filter(|address| !address.link_scope)
            .map(|address| address.net)
            .collect();
        for extra in present.iter().filter(|net| !wanted.addresses.contains(net)) {
            self.netlink.delete_address(link.index, *extra).await?;
        }
        for net in wanted.addresses.iter().filter(|net| !present.contains(net)) {
            self.netlink.add_address(link.index, *net, wanted.no_dad).await?;
        }
        Ok(())
    }

    async fn try_route(&self, link: &Link, wanted: &Interface) -> Result<(), netlink::Error> {
        for gateway in &wanted.default_gateways {
            let mut route = Route { link: Some(link.index), ..Route::default_via(*gateway) };
            // A gateway outside of the prefix is reachable on the link all the same.
            route.onlink = !wanted.addresses.iter().any(|net| net.contains(gateway));
            self.netlink.replace_route(&route).await?;
        }
        for (destination, gateway) in &wanted.routes {
            let Some(route) = extra_route(*destination, *gateway, link.index) else { continue };
            // As upstream: a route that the kernel refuses is no reason to fail the pod.
            if let Err(error) = self.netlink.replace_route(&route).await {
                tracing::warn!(error = %error, "an extra route of a pod was refused");
            }
        }
        Ok(())
    }

    /// What tells neighbours where the addresses are now; once, and nothing
    /// when the kernel gave no socket for it.
    pub fn announcement(&mut self, link: &Link, mac: Mac, addresses: &[IpNet]) -> Option<Announcement> {
        let taken = Err(io::Error::from(io::ErrorKind::NotConnected));
        let socket = std::mem::replace(&mut self.packets, taken).ok()?;
        let frame = |net: &IpNet| match net.addr() {
            IpAddr::V4(ip) => gratuitous_arp(mac.0, ip),
            IpAddr::V6(ip) => unsolicited_neighbour_advertisement(mac.0, ip),
        };
        Some(Announcement { socket, link: link.index, frames: addresses.iter().map(frame).collect() })
    }

    /// Gateways that did not answer ARP or ND within `patience`.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    pub async fn silent_gateways(
        &mut self,
        link: &Link,
        gateways: &[IpAddr],
        patience: Duration,
    ) -> Result<Vec<IpAddr>, PlugError> {
        let found =
            self.reach.resolve_all(link.index, gateways, patience, Pace::Brisk).await.map_err(failed)?;
        Ok(gateways.iter().filter(|gateway| !found.contains_key(gateway)).copied().collect())
    }

    /// The routes of the interface, as the answer reports them (§2.4 step 8).
    ///
    /// # Errors
    /// When the kernel refuses the dump.
    pub async fn routes(&self, link: u32) -> Result<Vec<ApiRoute>, PlugError> {
        let routes = self.netlink.routes().await.map_err(failed)?;
        Ok(routes
            .iter()
            .filter(|route| route.table == MAIN_TABLE && route.link == Some(link))
            .filter_map(reported)
            .collect())
    }

    /// Deletes the default routes of a family, for a plugin that brings its own.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub async fn delete_default_routes(&self, ipv6: bool) -> Result<(), PlugError> {
        let error = |error: netlink::Error| PlugError::new(Stage::RemoveDefaultRoute, error.to_string());
        for route in self.netlink.routes().await.map_err(error)? {
            let ours = route.table == MAIN_TABLE && route.destination.addr().is_ipv6() == ipv6;
            if ours && route.is_default() {
                self.netlink.delete_route(&route).await.map_err(error)?;
            }
        }
        Ok(())
    }
}

/// Universe scope behind a gateway, link scope without one.
fn extra_route(destination: Option<IpNet>, gateway: Option<IpAddr>, link: u32) -> Option<Route> {
    let mut route = match (destination, gateway) {
        (Some(destination), _) => Route::new(destination),
        (None, Some(gateway)) => Route::default_via(gateway),
        (None, None) => return None,
    };
    route.gateway = gateway;
    route.link = Some(link);
    if gateway.is_none() && !route.destination.addr().is_ipv6() {
        route.scope = Scope::Link;
    }
    Some(route)
}

fn reported(route: &Route) -> Option<ApiRoute> {
    if route.destination.addr().is_multicast() {
        return None;
    }
    let link_local = matches!(route.destination, IpNet::V6(net) if net.addr().is_unicast_link_local());
    let dst = if route.is_default() { String::new() } else { route.destination.to_string() };
    let gw = route.gateway.map(|gateway| gateway.to_string()).unwrap_or_default();
    let empty = dst.is_empty() && gw.is_empty();
    (!link_local && !empty).then_some(ApiRoute { dst, gw })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reported_routes_leave_out_link_local_prefixes() {
        let route = |text: &str| Route { link: Some(1), ..Route::new(text.parse().unwrap()) };
        assert_eq!(reported(&route("fe80::/64")), None);
        assert_eq!(reported(&route("0.0.0.0/0")), None);
        assert_eq!(reported(&route("10.16.0.0/16")).unwrap().dst, "10.16.0.0/16");
        let default = reported(&Route::default_via("10.16.0.1".parse().unwrap())).unwrap();
        assert_eq!((default.dst.as_str(), default.gw.as_str()), ("", "10.16.0.1"));
    }

    #[test]
    fn a_route_needs_a_destination_or_a_gateway() {
        assert_eq!(extra_route(None, None, 1), None);
        let on_link = extra_route(Some("192.168.0.0/24".parse().unwrap()), None, 1).unwrap();
        assert_eq!(on_link.scope, Scope::Link);
    }
}
