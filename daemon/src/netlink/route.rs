//! Routes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteNextHopFlags, RouteProtocol, RouteScope,
    RouteType,
};
use rtnetlink::{RouteMessageBuilder, RouteNextHopBuilder};

use super::{Error, Netlink, Result};
use crate::steps;

/// The main routing table.
pub const MAIN_TABLE: u32 = 254;

/// Who made a route (`rtm_protocol`).
pub mod protocol {
    /// By the kernel.
    pub const KERNEL: u8 = 2;
    /// By hand or at boot.
    pub const BOOT: u8 = 3;
    /// By an administrator or an agent.
    pub const STATIC: u8 = 4;
}

/// How far a route's destination is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Beyond a gateway.
    Universe,
    /// On the link.
    Link,
    /// On this host.
    Host,
}

/// What a route does with packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RouteKind {
    /// Forwards.
    Unicast,
    /// Delivers locally.
    Local,
    /// Discards silently.
    Blackhole,
    /// Discards with an ICMP error.
    Unreachable,
    /// Anything else.
    Other,
}

/// A route. `Default` values: main table, protocol static, scope universe.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Route {
    /// Destination; `0.0.0.0/0` or `::/0` is the default route.
    pub destination: IpNet,
    /// Next hop.
    pub gateway: Option<IpAddr>,
    /// Outgoing link.
    pub link: Option<u32>,
    /// Preferred source address.
    pub source: Option<IpAddr>,
    /// Table number.
    pub table: u32,
    /// Who made it, see [`protocol`].
    pub protocol: u8,
    /// Scope.
    pub scope: Scope,
    /// Priority; lower wins. IPv6 reports the kernel's default 1024.
    pub metric: Option<u32>,
    /// The gateway is reachable without a connected prefix.
    pub onlink: bool,
    /// What it does.
    pub kind: RouteKind,
    /// Further next hops `(gateway, link, weight)` of a multipath route.
    pub multipath: Vec<(Option<IpAddr>, u32, u8)>,
}

impl Route {
    /// A static route of the main table.
    pub fn new(destination: IpNet) -> Self {
        Self {
            destination: destination.trunc(),
            gateway: None,
            link: None,
            source: None,
            table: MAIN_TABLE,
            protocol: protocol::STATIC,
            scope: Scope::Universe,
            metric: None,
            onlink: false,
            kind: RouteKind::Unicast,
            multipath: Vec::new(),
        }
    }

    /// The default route of the gateway's family.
    pub fn default_via(gateway: IpAddr) -> Self {
        Self { gateway: Some(gateway), ..Self::new(unspecified(gateway.is_ipv6())) }
    }

    /// Whether it is a default route.
    pub fn is_default(&self) -> bool {
        self.destination.prefix_len() == 0
    }

    pub(super) fn from_message(message: &RouteMessage) -> Option<Self> {
        let ipv6 = message.header.address_family == rtnetlink::packet_route::AddressFamily::Inet6;
        let mut route = Self::new(unspecified(ipv6));
        route.table = u32::from(message.header.table);
        route.protocol = message.header.protocol.into();
        route.scope = match message.header.scope {
            RouteScope::Universe => Scope::Universe,
            RouteScope::Link => Scope::Link,
            _ => Scope::Host,
        };
        route.kind = match message.header.kind {
            RouteType::Unicast => RouteKind::Unicast,
            RouteType::Local => RouteKind::Local,
            RouteType::BlackHole => RouteKind::Blackhole,
            RouteType::Unreachable => RouteKind::Unreachable,
            _ => RouteKind::Other,
        };
        route.onlink = message.header.flags.contains(RouteFlags::Onlink);
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Destination(address) => {
                    let ip = address_of(address)?;
                    route.destination = IpNet::new(ip, message.header.destination_prefix_length).ok()?;
                }
                RouteAttribute::Gateway(address) => route.gateway = address_of(address),
                RouteAttribute::PrefSource(address) => route.source = address_of(address),
                RouteAttribute::Oif(index) => route.link = Some(*index),
                RouteAttribute::Priority(metric) => route.metric = Some(*metric),
                RouteAttribute::Table(table) => route.table = *table,
                RouteAttribute::MultiPath(hops) => {
                    route.multipath = hops
                        .iter()
                        .map(|hop| {
                            let gateway = hop.attributes.iter().find_map(|attribute| match attribute {
                                RouteAttribute::Gateway(address) => address_of(address),
                                _ => None,
                            });
                            (gateway, hop.interface_index, hop.hops)
                        })
                        .collect();
                }
                _ => {}
            }
        }
        Some(route)
    }

    fn message(&self) -> Result<RouteMessage> {
        // The library has several types for "invalid route"; their text is enough.
        let invalid = |error: &dyn std::fmt::Display| {
            Error::io(format!("route to {}", self.destination), std::io::Error::other(error.to_string()))
        };
        let mut builder = RouteMessageBuilder::<IpAddr>::new()
            .destination_prefix(self.destination.addr(), self.destination.prefix_len())
            .map_err(|error| invalid(&error))?
            .table_id(self.table)
            .protocol(RouteProtocol::from(self.protocol))
            .scope(match self.scope {
                Scope::Universe => RouteScope::Universe,
                Scope::Link => RouteScope::Link,
                Scope::Host => RouteScope::Host,
            })
            .kind(match self.kind {
                RouteKind::Unicast | RouteKind::Other => RouteType::Unicast,
                RouteKind::Local => RouteType::Local,
                RouteKind::Blackhole => RouteType::BlackHole,
                RouteKind::Unreachable => RouteType::Unreachable,
            });
        if let Some(gateway) = self.gateway {
            builder = builder.gateway(gateway).map_err(|error| invalid(&error))?;
        }
        if let Some(source) = self.source {
            builder = builder.pref_source(source).map_err(|error| invalid(&error))?;
        }
        if let Some(link) = self.link {
            builder = builder.output_interface(link);
        }
        if let Some(metric) = self.metric {
            builder = builder.priority(metric);
        }
        if self.onlink {
            builder = builder.onlink();
        }
        if !self.multipath.is_empty() {
            let hops = self.multipath.iter().map(|(gateway, link, weight)| {
                let hop = match gateway {
                    Some(IpAddr::V4(gateway)) => {
                        RouteNextHopBuilder::new_ipv4().interface(*link).via((*gateway).into())
                    }
                    Some(IpAddr::V6(gateway)) => {
                        RouteNextHopBuilder::new_ipv6().interface(*link).via((*gateway).into())
                    }
                    None if self.destination.addr().is_ipv6() => {
                        Ok(RouteNextHopBuilder::new_ipv6().interface(*link))
                    }
                    None => Ok(RouteNextHopBuilder::new_ipv4().interface(*link)),
                };
                hop.map(|builder| {
                    let mut hop = builder.build();
                    hop.hops = *weight;
                    if self.onlink {
                        hop.flags.insert(RouteNextHopFlags::Onlink);
                    }
                    hop
                })
                .map_err(|error| invalid(&error))
            });
            builder = builder.multipath(hops.collect::<Result<_>>()?);
        }
        Ok(builder.build())
    }
}

fn unspecified(ipv6: bool) -> IpNet {
    if ipv6 {
        IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 0))
    } else {
        IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0))
    }
}

fn address_of(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(ip) => Some(IpAddr::V4(*ip)),
        RouteAddress::Inet6(ip) => Some(IpAddr::V6(*ip)),
        _ => None,
    }
}

impl Netlink {
    /// Routes of all tables and both families (cached clones excluded by the
    /// kernel).
    ///
    /// # Errors
    /// When the kernel refuses the dump.
    pub async fn routes(&self) -> Result<Vec<Route>> {
        Ok(self.route_messages().await?.iter().filter_map(Route::from_message).collect())
    }

    /// Routes of both families and all tables, as the kernel tells of them.
    pub(super) async fn route_messages(&self) -> Result<Vec<RouteMessage>> {
        let families =
            [RouteMessageBuilder::<Ipv4Addr>::new().build(), RouteMessageBuilder::<Ipv6Addr>::new().build()];
        let mut routes = Vec::new();
        for family in families {
            routes
                .extend(self.list("list routes", |handle| handle.route().get(family).execute(), Some).await?);
        }
        Ok(routes)
    }

    /// Adds a route, or replaces the one of the same destination, metric and
    /// table (`ip route replace`).
    ///
    /// # Errors
    /// When the kernel refuses (no such link, gateway not reachable).
    pub async fn replace_route(&self, route: &Route) -> Result<()> {
        let message = route.message()?;
        self.handle
            .route()
            .add(message)
            .replace()
            .execute()
            .await
            .map_err(|error| Error::netlink(format!("set the route to {}", route.destination), error))?;
        steps::done("set route").await;
        Ok(())
    }

    /// Deletes exactly this route; a missing one is a success.
    ///
    /// # Errors
    /// Any other refusal.
    pub async fn delete_route(&self, route: &Route) -> Result<()> {
        let message = route.message()?;
        match self.handle.route().del(message).execute().await {
            Ok(()) => {
                steps::done("delete route").await;
                Ok(())
            }
            Err(error) => {
                let error = Error::netlink(format!("delete the route to {}", route.destination), error);
                if error.is_missing() { Ok(()) } else { Err(error) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip() {
        let mut route = Route::new("10.16.0.0/16".parse().unwrap());
        route.gateway = Some("100.64.0.1".parse().unwrap());
        route.source = Some("172.30.0.11".parse().unwrap());
        route.link = Some(7);
        route.table = 1000;
        route.metric = Some(5);
        assert_eq!(Route::from_message(&route.message().unwrap()).unwrap(), route);
        let default = Route { link: Some(3), ..Route::default_via("fd00::1".parse().unwrap()) };
        let back = Route::from_message(&default.message().unwrap()).unwrap();
        assert_eq!(back, default);
        assert!(back.is_default());
    }
}
