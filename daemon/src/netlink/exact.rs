//! Addresses and routes with everything the kernel tells of them, for moving them to another link and back.
//!
//! In: dumps of the kernel. Out: [`ExactAddress`] and [`ExactRoute`], which know no link until they are put on one, can
//! be written down as text (a journal survives a restart), and are equal when the kernel would not tell them apart.
//! What says how an address fares (lifetimes, duplicate detection) is no part of it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::{Emitable, Nla, Parseable};
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage};
use rtnetlink::packet_route::route::{
    RouteAttribute, RouteFlags, RouteMessage, RouteNextHop, RouteNextHopFlags, RouteType,
};
use serde::{Deserialize, Serialize};

use super::{Address, Route};

/// An address, without its link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct ExactAddress {
    net: IpNet,
    message: AddressMessage,
}

/// How an address is put on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// As it was: with its label, and the kernel makes the on-link route if it did before.
    AsItWas,
    /// On another link: no label; of IPv6 no on-link route, which is a route to be moved like all others.
    Elsewhere,
}

/// A route that leaves by one link of interest, which is called 0 in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct ExactRoute {
    message: RouteMessage,
    /// Names of other links in it, by index (of multipath routes).
    others: BTreeMap<u32, String>,
}

/// As text: what people read, and the kernel's own words.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Written {
    is: String,
    raw: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    others: BTreeMap<u32, String>,
}

fn hex(message: &impl Emitable) -> String {
    let mut bytes = vec![0; message.buffer_len()];
    message.emit(&mut bytes);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> std::result::Result<Vec<u8>, String> {
    let digits = text.as_bytes().chunks(2);
    digits
        .map(|pair| {
            let pair = std::str::from_utf8(pair).map_err(|error| error.to_string())?;
            u8::from_str_radix(pair, 16).map_err(|error| format!("{pair:?}: {error}"))
        })
        .collect()
}

impl From<ExactAddress> for Written {
    fn from(address: ExactAddress) -> Self {
        Self { is: address.net.to_string(), raw: hex(&address.message), others: BTreeMap::new() }
    }
}

impl TryFrom<Written> for ExactAddress {
    type Error = String;
    fn try_from(written: Written) -> std::result::Result<Self, String> {
        let message =
            AddressMessage::parse(unhex(&written.raw)?.as_slice()).map_err(|error| error.to_string())?;
        Self::of(&message, None).ok_or_else(|| format!("{:?} is no address", written.is))
    }
}

impl From<ExactRoute> for Written {
    fn from(route: ExactRoute) -> Self {
        Self { is: route.to_string(), raw: hex(&route.message), others: route.others }
    }
}

impl TryFrom<Written> for ExactRoute {
    type Error = String;
    fn try_from(written: Written) -> std::result::Result<Self, String> {
        let bytes = unhex(&written.raw)?;
        // The parser trusts the length of the header.
        if bytes.len() < 12 {
            return Err(format!("{:?} is no route", written.is));
        }
        let message = RouteMessage::parse(bytes.as_slice()).map_err(|error| error.to_string())?;
        Ok(Self { message, others: written.others })
    }
}

/// Flags of an address that its owner chose.
fn chosen() -> AddressFlags {
    AddressFlags::Noprefixroute
        | AddressFlags::Nodad
        | AddressFlags::Mcautojoin
        | AddressFlags::Homeaddress
        | AddressFlags::Managetempaddr
}

impl ExactAddress {
    /// From the kernel's message, without link and fate; `None` for what is no address of a link. A label that is the
    /// link's own name is none.
    fn of(message: &AddressMessage, name: Option<&String>) -> Option<Self> {
        let net = Address::from_message(message)?.net;
        let mut kept = message.clone();
        kept.header.index = 0;
        kept.header.flags = AddressHeaderFlags::empty();
        kept.attributes.clear();
        for attribute in &message.attributes {
            match attribute {
                AddressAttribute::Label(label) if Some(label) == name => {}
                AddressAttribute::Address(_)
                | AddressAttribute::Local(_)
                | AddressAttribute::Label(_)
                | AddressAttribute::Broadcast(_)
                | AddressAttribute::RoutePriority(_) => kept.attributes.push(attribute.clone()),
                AddressAttribute::Flags(flags) if flags.intersects(chosen()) => {
                    kept.attributes.push(AddressAttribute::Flags(*flags & chosen()));
                }
                _ => {}
            }
        }
        Some(Self { net, message: kept })
    }

    /// Address and prefix length.
    pub fn net(&self) -> IpNet {
        self.net
    }

    /// Its family.
    pub fn is_ipv6(&self) -> bool {
        self.net.addr().is_ipv6()
    }

    /// On a link, with flags changed.
    fn with(&self, link: u32, placed: Placed, change: impl FnOnce(&mut AddressFlags)) -> AddressMessage {
        let mut message = self.message.clone();
        message.header.index = link;
        let mut flags = AddressFlags::empty();
        message.attributes.retain(|attribute| match attribute {
            AddressAttribute::Flags(kept) => {
                flags |= *kept;
                false
            }
            AddressAttribute::Label(_) => placed == Placed::AsItWas,
            _ => true,
        });
        change(&mut flags);
        if !flags.is_empty() {
            message.attributes.push(AddressAttribute::Flags(flags));
        }
        message
    }

    pub(super) fn on(&self, link: u32, placed: Placed) -> AddressMessage {
        self.with(link, placed, |flags| {
            if self.is_ipv6() {
                // The node has it already: nobody else may.
                *flags |= AddressFlags::Nodad;
                if placed == Placed::Elsewhere {
                    *flags |= AddressFlags::Noprefixroute;
                }
            }
        })
    }

    /// Skipping duplicate detection leaves a mark that this address did not have.
    pub(super) fn unmarked(&self, link: u32) -> Option<AddressMessage> {
        let message = self.with(link, Placed::AsItWas, |_| {});
        (self.is_ipv6() && message != self.on(link, Placed::AsItWas)).then_some(message)
    }
}

impl std::fmt::Display for ExactAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.net.fmt(f)
    }
}

impl std::fmt::Display for ExactRoute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Some(route) = self.summary() else { return f.write_str("a route") };
        write!(f, "{}", route.destination)?;
        if let Some(gateway) = route.gateway {
            write!(f, " via {gateway}")?;
        }
        if let Some(source) = route.source {
            write!(f, " src {source}")?;
        }
        if let Some(metric) = route.metric {
            write!(f, " metric {metric}")?;
        }
        if !route.multipath.is_empty() {
            write!(f, " over {} hops", route.multipath.len())?;
        }
        write!(f, " table {} proto {}", route.table, route.protocol)
    }
}

/// A route over one hop is a plain route: so is one whose other hops were others'.
fn flatten(message: &mut RouteMessage) {
    let hop = message.attributes.iter_mut().find_map(|attribute| match attribute {
        RouteAttribute::MultiPath(hops) if hops.len() == 1 => hops.pop(),
        _ => None,
    });
    let Some(hop) = hop else { return };
    message.attributes.retain(|attribute| !matches!(attribute, RouteAttribute::MultiPath(_)));
    message.attributes.extend(hop.attributes);
    message.attributes.push(RouteAttribute::Oif(hop.interface_index));
    if hop.flags.contains(RouteNextHopFlags::Onlink) {
        message.header.flags |= RouteFlags::Onlink;
    }
}

impl ExactRoute {
    /// From the kernel's message: routes to elsewhere (no local ones, no clones, no link-local prefixes) that leave by
    /// `link`. `names` knows the other links.
    fn of(message: &RouteMessage, link: u32, names: &BTreeMap<u32, String>) -> Option<Self> {
        if message.header.kind != RouteType::Unicast || message.header.flags.contains(RouteFlags::Cloned) {
            return None;
        }
        let route = Route::from_message(message)?;
        if matches!(route.destination, IpNet::V6(net) if net.addr().is_unicast_link_local() || net.addr().is_multicast())
        {
            return None;
        }
        let mut message = message.clone();
        message.header.flags &= RouteFlags::Onlink;
        let ipv6 = message.header.address_family == AddressFamily::Inet6;
        let (mut leaves, mut others) = (false, BTreeMap::new());
        message.attributes.retain_mut(|attribute| match attribute {
            RouteAttribute::CacheInfo(_) | RouteAttribute::Expires(_) | RouteAttribute::Uid(_) => false,
            RouteAttribute::Oif(index) => {
                leaves |= *index == link;
                *index = if *index == link { 0 } else { *index };
                true
            }
            RouteAttribute::MultiPath(hops) => {
                leaves |= hops.iter().any(|hop| hop.interface_index == link);
                // Of IPv6 each hop is a route of its own.
                hops.retain(|hop| !ipv6 || hop.interface_index == link);
                for hop in hops {
                    hop.flags &= RouteNextHopFlags::Onlink;
                    if hop.interface_index == link {
                        hop.interface_index = 0;
                    } else if let Some(name) = names.get(&hop.interface_index) {
                        others.insert(hop.interface_index, name.clone());
                    }
                }
                true
            }
            _ => true,
        });
        if ipv6 {
            flatten(&mut message);
        }
        // The kernel's order depends on how the route came to be.
        message.attributes.sort_by_key(Nla::kind);
        leaves.then_some(Self { message, others })
    }

    /// What it says.
    pub fn summary(&self) -> Option<Route> {
        Route::from_message(&self.message)
    }

    /// Its family.
    pub fn is_ipv6(&self) -> bool {
        self.message.header.address_family == AddressFamily::Inet6
    }

    /// Next hops of it.
    pub fn gateways(&self) -> Vec<IpAddr> {
        let Some(route) = self.summary() else { return Vec::new() };
        route.gateway.into_iter().chain(route.multipath.iter().filter_map(|hop| hop.0)).collect()
    }

    /// Without a preferred source that none of `addresses` is: the kernel refuses, and deletes, such routes.
    #[must_use]
    pub fn from_one_of(mut self, addresses: &[ExactAddress]) -> Self {
        let source = self.summary().and_then(|route| route.source);
        if source.is_some_and(|source| addresses.iter().all(|address| address.net().addr() != source)) {
            self.message.attributes.retain(|attribute| !matches!(attribute, RouteAttribute::PrefSource(_)));
        }
        self
    }

    /// Where it comes in the order of making: the kernel wants a gateway's own route first.
    pub fn order(&self) -> (u8, bool) {
        (u8::MAX - u8::from(self.message.header.scope), !self.gateways().is_empty())
    }

    /// On a link; `None` when another link of it is gone. `by_id` names a route by its next hop object, as the kernel
    /// wants it for a deletion; else the object is left behind with the old link.
    pub(super) fn on(&self, link: u32, links: &BTreeMap<String, u32>, by_id: bool) -> Option<RouteMessage> {
        let mut message = self.message.clone();
        for attribute in &mut message.attributes {
            match attribute {
                RouteAttribute::Oif(index) if *index == 0 => *index = link,
                RouteAttribute::MultiPath(hops) => {
                    for hop in hops.iter_mut() {
                        self.turn(hop, link, links)?;
                    }
                }
                _ => {}
            }
        }
        if !by_id {
            message.attributes.retain(|attribute| !matches!(attribute, RouteAttribute::NhId(_)));
        }
        Some(message)
    }

    fn turn(&self, hop: &mut RouteNextHop, link: u32, links: &BTreeMap<String, u32>) -> Option<()> {
        hop.interface_index = match hop.interface_index {
            0 => link,
            other => match self.others.get(&other) {
                Some(name) => *links.get(name)?,
                None => other,
            },
        };
        Some(())
    }
}

/// What the links of a namespace carry, as the kernel tells it.
#[derive(Clone, Debug, Default)]
pub struct Carried {
    pub(super) addresses: Vec<AddressMessage>,
    pub(super) routes: Vec<RouteMessage>,
    pub(super) names: BTreeMap<u32, String>,
}

impl Carried {
    /// A link's addresses but the link-local ones, primaries first.
    pub fn addresses(&self, link: u32) -> Vec<ExactAddress> {
        let is_local = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        };
        self.addresses
            .iter()
            .filter(|message| message.header.index == link)
            .filter_map(|message| ExactAddress::of(message, self.names.get(&link)))
            .filter(|address| !is_local(address.net.addr()))
            .collect()
    }

    /// Routes of all tables that leave by a link, in the order of making.
    pub fn routes(&self, link: u32) -> Vec<ExactRoute> {
        let mut routes: Vec<ExactRoute> =
            self.routes.iter().filter_map(|message| ExactRoute::of(message, link, &self.names)).collect();
        routes.sort_by_key(ExactRoute::order);
        routes
    }

    pub(super) fn links(&self) -> BTreeMap<String, u32> {
        self.names.iter().map(|(index, name)| (name.clone(), *index)).collect()
    }
}

#[cfg(test)]
#[path = "exact_tests.rs"]
pub(crate) mod tests;
