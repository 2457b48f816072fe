//! What agents of before recorded of the tunnel NIC: external ids of its bridge. Only read.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::Deserialize;

use crate::netlink::{Route, Scope};
use crate::ovs::View;

/// The NIC, its addresses (comma-separated), its routes (JSON).
pub(super) const KEYS: [&str; 3] = ["weir-nic", "weir-nic-addresses", "weir-nic-routes"];

/// A route, without link indexes, which a reboot changes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct OldRoute {
    destination: IpNet,
    #[serde(default)]
    gateway: Option<IpAddr>,
    #[serde(default)]
    source: Option<IpAddr>,
    table: u32,
    protocol: u8,
    link_scope: bool,
    #[serde(default)]
    metric: Option<u32>,
    #[serde(default)]
    onlink: bool,
}

impl OldRoute {
    /// The route on a link.
    pub(super) fn on(&self, link: u32) -> Route {
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

/// The record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OldRecord {
    /// The NIC.
    pub(super) nic: String,
    /// Its addresses.
    pub(super) addresses: BTreeSet<IpNet>,
    /// Its routes, in the order in which they must be made.
    pub(super) routes: Vec<OldRoute>,
}

impl OldRecord {
    /// From the bridge's row.
    pub(super) fn read(view: &View, bridge: &str) -> Option<Self> {
        let row = view.bridge(bridge)?;
        let [nic, addresses, routes] = KEYS.map(|key| row.map_get("external_ids", key));
        Some(Self {
            nic: nic?.to_owned(),
            addresses: addresses.unwrap_or_default().split(',').filter_map(|net| net.parse().ok()).collect(),
            routes: serde_json::from_str(routes.unwrap_or_default()).unwrap_or_default(),
        })
    }
}
