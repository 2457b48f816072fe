//! The tunnel NIC on a userspace bridge.
//!
//! With `datapath_type=netdev` the tunnel address must sit on an OVS bridge,
//! or ovs-vswitchd can't send a tunnelled packet. So the NIC becomes a port of
//! `br-phy`, and its addresses and routes move to the bridge's own interface.
//! This is the one step that can cut a node off, hence:
//!
//! 1. a **journal** (external ids of the bridge) is committed together with
//!    the bridge, before anything moves;
//! 2. addresses and routes are added to the bridge before they leave the NIC;
//! 3. every pass looks at what is there and goes on from that, so a crash, a
//!    restart of the agent or of OVS (which makes the bridge's interface anew,
//!    without addresses) and a reboot (which gives the NIC its addresses back)
//!    all end in the same state;
//! 4. [`restore_plan`] undoes it exactly.
//!
//! Planning is pure; the module `bridge` carries plans out.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::tunnel::HostView;
use crate::netlink::{Link, Mac, Route, RouteKind, Scope, protocol};
use crate::ovs::View;

/// External id of the bridge: the NIC that it took over.
pub const JOURNAL_NIC: &str = "weir-nic";
/// External id of the bridge: the addresses, comma-separated.
pub const JOURNAL_ADDRESSES: &str = "weir-nic-addresses";
/// External id of the bridge: the routes, as JSON.
pub const JOURNAL_ROUTES: &str = "weir-nic-routes";

/// A route as the journal keeps it: without link indexes, which a reboot
/// changes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SavedRoute {
    destination: IpNet,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gateway: Option<IpAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source: Option<IpAddr>,
    table: u32,
    protocol: u8,
    link_scope: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    metric: Option<u32>,
    #[serde(default)]
    onlink: bool,
}

impl SavedRoute {
    fn save(route: &Route) -> Self {
        Self {
            destination: route.destination,
            gateway: route.gateway,
            source: route.source,
            table: route.table,
            protocol: route.protocol,
            link_scope: route.scope != Scope::Universe,
            metric: route.metric,
            onlink: route.onlink,
        }
    }

    /// The route on a link.
    pub fn on(&self, link: u32) -> Route {
        Route {
            gateway: self.gateway,
            source: self.source,
            link: Some(link),
            table: self.table,
            protocol: self.protocol,
            scope: if self.link_scope { Scope::Link } else { Scope::Universe },
            metric: self.metric,
            onlink: self.onlink,
            ..Route::new(self.destination)
        }
    }
}

/// What moved, or is to move.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Journal {
    /// The NIC.
    pub nic: String,
    /// Its addresses.
    pub addresses: BTreeSet<IpNet>,
    /// Its routes, in the order in which they must be made.
    pub routes: Vec<SavedRoute>,
}

impl Journal {
    /// From the bridge's external ids.
    pub fn read(view: &View, bridge: &str) -> Option<Self> {
        let row = view.bridge(bridge)?;
        let nic = row.map_get("external_ids", JOURNAL_NIC)?.to_owned();
        let addresses = row.map_get("external_ids", JOURNAL_ADDRESSES).unwrap_or_default();
        let routes = row.map_get("external_ids", JOURNAL_ROUTES).unwrap_or_default();
        Some(Self {
            nic,
            addresses: addresses.split(',').filter_map(|net| net.parse().ok()).collect(),
            routes: serde_json::from_str(routes).unwrap_or_default(),
        })
    }

    /// As external ids.
    pub fn external_ids(&self) -> BTreeMap<String, String> {
        let addresses: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        BTreeMap::from([
            ("vendor".to_owned(), crds::keys::VENDOR.to_owned()),
            (JOURNAL_NIC.to_owned(), self.nic.clone()),
            (JOURNAL_ADDRESSES.to_owned(), addresses.join(",")),
            (JOURNAL_ROUTES.to_owned(), serde_json::to_string(&self.routes).unwrap_or_default()),
        ])
    }
}

/// Movable addresses of a link: link-local IPv6 belongs to the link itself.
fn addresses(host: &HostView, link: &Link) -> BTreeSet<IpNet> {
    host.addresses_of(link.index)
        .filter(|address| !matches!(address.net.addr(), IpAddr::V6(ip) if ip.is_unicast_link_local()))
        .map(|address| address.net)
        .collect()
}

/// Movable routes of a link: what the kernel derives from addresses follows
/// them by itself. On-link routes first, since gateways hang on them.
fn routes(host: &HostView, link: &Link) -> Vec<SavedRoute> {
    let mut routes: Vec<SavedRoute> = host
        .routes
        .iter()
        .filter(|route| route.link == Some(link.index) && route.multipath.is_empty())
        .filter(|route| route.kind == RouteKind::Unicast && route.protocol != protocol::KERNEL)
        .filter(|route| !matches!(route.destination, IpNet::V6(net) if net.addr().is_unicast_link_local()))
        .map(SavedRoute::save)
        .collect();
    routes.sort_by_key(|route| (route.gateway.is_some(), route.clone()));
    routes.dedup();
    routes
}

/// The journal that the next pass must work by: what the NIC has now, if it
/// has addresses (the first time, and after a reboot), else what was recorded.
pub fn journal(host: &HostView, nic: &Link, recorded: Option<Journal>) -> Journal {
    let (addresses, routes) = (addresses(host, nic), routes(host, nic));
    match recorded {
        // A crash in the middle leaves some on either side: the record has all.
        Some(recorded) if recorded.nic == nic.name && addresses.is_subset(&recorded.addresses) => {
            let mut journal = recorded;
            journal.routes.extend(
                routes.into_iter().filter(|route| !journal.routes.contains(route)).collect::<Vec<_>>(),
            );
            journal.routes.sort_by_key(|route| (route.gateway.is_some(), route.clone()));
            journal
        }
        // The host was configured anew: its word replaces the record. A link
        // without any address leaves the record in force.
        _ => Journal { nic: nic.name.clone(), addresses, routes },
    }
}

/// Steps on the kernel's side, in order. Each is idempotent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Set a link's MAC.
    Mac(u32, Mac),
    /// Set a link up.
    Up(u32),
    /// Add an address to a link.
    AddAddress(u32, IpNet),
    /// Make a route, replacing one of the same destination and metric.
    AddRoute(Route),
    /// Take a route away.
    DeleteRoute(Route),
    /// Take an address away.
    DeleteAddress(u32, IpNet),
}

/// Moves addresses and routes from one link to another.
pub fn move_plan(host: &HostView, journal: &Journal, from: &Link, to: &Link) -> Vec<Step> {
    let mut steps = Vec::new();
    if let Some(mac) = from.mac
        && to.mac != Some(mac)
    {
        steps.push(Step::Mac(to.index, mac));
    }
    for link in [from, to] {
        if !link.up {
            steps.push(Step::Up(link.index));
        }
    }
    let there = addresses(host, to);
    let left = addresses(host, from);
    for net in journal.addresses.iter().filter(|net| !there.contains(net)) {
        steps.push(Step::AddAddress(to.index, *net));
    }
    let have: BTreeSet<SavedRoute> = routes(host, to).into_iter().collect();
    let missing = journal.routes.iter().filter(|route| !have.contains(route));
    steps.extend(missing.map(|route| Step::AddRoute(route.on(to.index))));
    steps.extend(routes(host, from).iter().map(|route| Step::DeleteRoute(route.on(from.index))));
    steps.extend(
        left.iter()
            .filter(|net| journal.addresses.contains(net))
            .map(|net| Step::DeleteAddress(from.index, *net)),
    );
    // The kernel drops routes whose source address left: say the missing ones
    // again, now that the old ones can't be in the way.
    if !left.is_empty() {
        steps.extend(journal.routes.iter().map(|route| Step::AddRoute(route.on(to.index))));
    }
    steps
}

/// Gives the NIC back what it had.
pub fn restore_plan(host: &HostView, journal: &Journal, bridge: &Link, nic: &Link) -> Vec<Step> {
    let mut steps = move_plan(host, journal, bridge, nic);
    // The NIC has its own MAC already; the bridge borrowed it.
    steps.retain(|step| !matches!(step, Step::Mac(..)));
    steps
}

#[cfg(test)]
#[path = "phy_tests.rs"]
mod tests;
