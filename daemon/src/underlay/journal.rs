//! What a NIC carried before its bridge took it over: written into the switch's database before anything moves.
//!
//! In: what NIC and bridge carry now, what was recorded. Out: what the next pass must work by. Pure.

use std::collections::BTreeMap;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::member::Wish;
use super::not_yet;
use super::settings::Settings;
use super::vlans::{self, SubInterface};
use crate::netlink::{Carried, ExactAddress, ExactRoute, protocol};
use crate::node::NotYet;
use crate::ovs::View;

/// Begin of the keys of `Open_vSwitch:external_ids`.
const KEY: &str = "weir-nic-";

/// Addresses and routes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Addresses, in their order.
    pub addresses: Vec<ExactAddress>,
    /// Routes, in the order in which they can be made.
    pub routes: Vec<ExactRoute>,
}

/// What is recorded of a network's NIC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Journal {
    /// The NIC's own name.
    pub nic: String,
    /// NIC and bridge swap names.
    pub exchange: bool,
    /// The move has come to its end: what the NIC carries later is news.
    pub moved: bool,
    /// What it carries, by itself or by the bridge.
    pub load: Load,
    /// What the bridge has still and is to lose: the host has configured the NIC anew.
    #[serde(default, skip_serializing_if = "Load::is_empty")]
    pub stale: Load,
    /// This process has found that the host configures the NIC anew, and has taken nothing off it: what comes meanwhile is
    /// news as well. A process after this one does not know, and takes nothing for news.
    #[serde(skip)]
    pub renewing: bool,
    /// Settings of the NIC before the move.
    #[serde(default)]
    pub settings: Settings,
    /// VLAN links that are ports of the bridge now, by id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub vlans: BTreeMap<u16, SubInterface>,
    /// The kernel's boot id ([`boot_id`]) when the host last gave the NIC addresses; empty in records of before.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub boot: String,
}

/// What tells one boot of this machine from another; empty where the kernel does not say.
pub fn boot_id() -> String {
    crate::sys::read_sysctl("kernel/random/boot_id").unwrap_or_default()
}

impl Load {
    /// What a link carries.
    pub fn of(carried: &Carried, link: u32) -> Self {
        Self { addresses: carried.addresses(link), routes: carried.routes(link) }
    }

    fn has(&self, net: IpNet) -> bool {
        self.addresses.iter().any(|address| address.net() == net)
    }

    /// Takes in what is not there yet.
    pub fn add(&mut self, other: &Self) {
        for address in &other.addresses {
            if !self.has(address.net()) {
                self.addresses.push(address.clone());
            }
        }
        for route in &other.routes {
            if !self.routes.contains(route) {
                self.routes.push(route.clone());
            }
        }
        self.routes.sort_by_key(ExactRoute::order);
    }

    /// What of it another load lacks.
    pub fn beyond(&self, other: &Self) -> Self {
        Self {
            addresses: self.addresses.iter().filter(|address| !other.has(address.net())).cloned().collect(),
            routes: self.routes.iter().filter(|route| !other.routes.contains(route)).cloned().collect(),
        }
    }

    /// The part of one family.
    pub fn family(&self, ipv6: bool) -> Self {
        Self {
            addresses: self.addresses.iter().filter(|a| a.is_ipv6() == ipv6).cloned().collect(),
            routes: self.routes.iter().filter(|r| r.is_ipv6() == ipv6).cloned().collect(),
        }
    }

    /// Nothing.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.routes.is_empty()
    }

    /// The load after the host has configured the NIC anew. Of a family of which the NIC has new addresses its word counts;
    /// routes that still fit stay, since they may be on their way. A part of the old ones is no news: a process that died
    /// while it gave or took them leaves that. Single addresses (/32, /128) come beside the others: whoever adds such a
    /// one to the NIC (keepalived, kube-vip) has not configured it anew.
    pub(super) fn renewed(&self, nic: &Self) -> Self {
        let mut load = Self::default();
        for ipv6 in [false, true] {
            let (old, new) = (self.family(ipv6), nic.family(ipv6));
            let beside = |net: IpNet| old.has(net) || net.prefix_len() == net.max_prefix_len();
            if new.addresses.iter().all(|address| beside(address.net())) {
                load.add(&old);
                load.add(&new);
                continue;
            }
            let fits = |route: &&ExactRoute| {
                let made = route.summary().is_some_and(|route| route.protocol == protocol::KERNEL);
                let reached = |gateway: &std::net::IpAddr| {
                    new.addresses.iter().any(|address| address.net().trunc().contains(gateway))
                };
                !made && route.gateways().iter().all(reached)
            };
            let kept = old.routes.iter().filter(fits).cloned();
            let kept = kept.map(|route| route.from_one_of(&new.addresses)).collect();
            load.add(&new);
            load.add(&Self { addresses: Vec::new(), routes: kept });
        }
        load
    }
}

impl Journal {
    /// The key that it is kept under.
    pub fn key(network: &str) -> String {
        format!("{KEY}{network}")
    }

    /// What is recorded of a network.
    ///
    /// # Errors
    /// When somebody has changed it to something unreadable.
    pub fn read(view: &View, network: &str) -> Result<Option<Self>, NotYet> {
        Self::read_at(view, &Self::key(network))
    }

    /// What is recorded under a key.
    ///
    /// # Errors
    /// When somebody has changed it to something unreadable.
    pub fn read_at(view: &View, key: &str) -> Result<Option<Self>, NotYet> {
        let Some(text) = view.root_external_id(key) else { return Ok(None) };
        serde_json::from_str(text).map(Some).map_err(|error| {
            not_yet(
                format!("Open_vSwitch external_ids:{key} can't be read: {error}"),
                "remove the key when the NIC has its addresses; else put it right",
            )
        })
    }

    /// Networks of which something is recorded.
    pub fn networks(view: &View) -> Vec<String> {
        view.root_external_ids().filter_map(|(key, _)| key.strip_prefix(KEY)).map(str::to_owned).collect()
    }

    /// Names of the links that the network is made of: NIC, bridge, VLAN links and their ports.
    pub fn links(&self, network: &str) -> Vec<String> {
        let wish = Wish {
            network: network.to_owned(),
            nic: self.nic.clone(),
            exchange: self.exchange,
            ..Wish::default()
        };
        let bridge = wish.bridge();
        let vlans =
            self.vlans.iter().flat_map(|(id, sub)| [sub.name.clone(), vlans::port_name(&bridge, *id)]);
        [self.nic.clone(), crds::names::provider_bridge(network)].into_iter().chain(vlans).collect()
    }

    /// As text.
    ///
    /// # Errors
    /// Never for what [`Journal::read`] gave.
    pub fn text(&self) -> Result<String, NotYet> {
        serde_json::to_string(self).map_err(|error| not_yet(format!("the record of a NIC: {error}"), ""))
    }

    /// Whether the host has configured the NIC since it booted, which the record does not know of: what the NIC carries
    /// is all that it is to carry. A NIC that has nothing yet may get it later.
    pub fn is_of_before(&self, nic: &Load, boot: &str) -> bool {
        !nic.addresses.is_empty() && !self.boot.is_empty() && !boot.is_empty() && self.boot != boot
    }

    /// Of a NIC of which nothing is recorded. `boot` is the [`boot_id`] of now.
    pub fn first(wish: &Wish, nic: Load, settings: Settings, boot: &str) -> Self {
        Self {
            nic: wish.nic.clone(),
            exchange: wish.exchange,
            load: nic,
            settings,
            boot: boot.to_owned(),
            ..Self::default()
        }
    }

    /// What the next pass must work by. `boot` is the [`boot_id`] of now.
    #[must_use]
    pub fn next(mut self, nic: &Load, boot: &str) -> Self {
        let of_before = self.is_of_before(nic, boot);
        if self.boot.is_empty() || !nic.addresses.is_empty() {
            boot.clone_into(&mut self.boot);
        }
        if !of_before && !self.moved && !self.renewing {
            // Some may be on either side still: the record has all.
            self.load.add(nic);
            self.stale = self.stale.beyond(&self.load);
            return self;
        }
        let load = if of_before { nic.clone() } else { self.load.renewed(nic) };
        self.stale.add(&self.load);
        self.stale = self.stale.beyond(&load);
        self.load = load;
        if !nic.is_empty() {
            // What the NIC lacks from now on, a process that died may have taken off.
            self.moved = false;
            self.renewing = true;
        }
        self
    }
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
