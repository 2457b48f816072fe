//! The loop: when to look, and at which networks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::journal::Journal;
use super::labels::{State, labelled};
use super::managers::Managers;
use super::mappings::{self, BRIDGES};
use super::member::{Membership, Wish, membership};
use super::network::is_provider_bridge;
use crate::flags::Flags;
use crate::frame::{Frame, Objects, Pace};
use crate::netlink::{Change, Link};
use crate::ovs::{BR_INT, View};
use crate::parts::NodeParts;
use crate::told::Told;

/// Everything is looked at this often even if nothing happened.
const VERIFY: Duration = Duration::from_secs(60);
/// Pause before a failed pass is repeated without an event, doubled up to [`RETRY_MAX`].
const RETRY: Duration = Duration::from_secs(2);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// Events of one cause come in bunches: who configures a NIC gives it its addresses one by one.
const GATHER: Duration = Duration::from_millis(100);

/// The loop.
pub struct Underlay {
    pub(super) parts: NodeParts,
    pub(super) flags: Arc<Flags>,
    /// Who else configures NICs.
    pub(super) managers: Managers,
    /// What was told of each network.
    pub(super) told: BTreeMap<String, State>,
    /// What was told of the external gateway.
    pub(super) gateway_told: Option<String>,
    /// What was told of everything else.
    pub(super) lines: Told,
}

/// Links that the networks of this node are made of.
#[derive(Debug, Default)]
struct Concern {
    names: BTreeSet<String>,
    indexes: BTreeSet<u32>,
}

/// Whether a link is a VLAN of one of these. (The peer of others may be in another namespace, which counts by itself.)
fn is_vlan_on(link: &Link, indexes: &BTreeSet<u32>) -> bool {
    link.kind.as_deref() == Some("vlan") && link.peer.is_some_and(|parent| indexes.contains(&parent))
}

impl Concern {
    /// Links of these names, and VLAN links on them.
    fn with_links(names: BTreeSet<String>, links: &[Link]) -> Self {
        let index = |link: &Link| link.index;
        let named: BTreeSet<u32> =
            links.iter().filter(|link| names.contains(&link.name)).map(index).collect();
        let vlans = links.iter().filter(|link| is_vlan_on(link, &named)).map(index);
        let indexes = vlans.chain(named.iter().copied()).collect();
        Self { names, indexes }
    }

    fn concerns(&self, change: &Change) -> bool {
        match change {
            Change::LinkChanged(link) | Change::LinkGone(link) => {
                self.names.contains(&link.name)
                    || self.indexes.contains(&link.index)
                    || is_vlan_on(link, &self.indexes)
            }
            Change::Address(address) => self.indexes.contains(&address.index),
            Change::RouteChanged(route) | Change::RouteGone(route) => {
                let hops = route.multipath.iter().map(|hop| hop.1);
                route.link.into_iter().chain(hops).any(|link| self.indexes.contains(&link))
            }
            Change::Setting(index) => u32::try_from(*index).is_ok_and(|index| self.indexes.contains(&index)),
            Change::Rule | Change::Filter | Change::Sets | Change::Traffic => false,
            Change::Lost => true,
        }
    }
}

/// What of the database concerns provider networks: pods' ports come and go without waking the loop.
fn relevant(view: &View) -> String {
    let mut text = format!("{} {} ", view.is_connected(), view.bridge(BR_INT).is_some());
    for (key, value) in view.root_external_ids() {
        if !key.starts_with("ovn-encap") {
            text.push_str(key);
            text.push_str(value);
        }
    }
    for bridge in view.bridges() {
        let Some(name) = bridge.str("name").filter(|name| is_provider_bridge(view, name)) else { continue };
        text.push_str(name);
        for port in view.port_names(name) {
            let interface = view.interface(&port);
            let state = interface.as_ref().map(|port| (port.ofport(), port.error().map(str::to_owned)));
            text.push_str(&format!("{port}{state:?}"));
        }
    }
    text
}

impl Underlay {
    /// A loop.
    pub fn new(parts: NodeParts, flags: Arc<Flags>, managers: Managers) -> Self {
        Self { parts, flags, managers, told: BTreeMap::new(), gateway_told: None, lines: Told::default() }
    }

    /// Runs until cancelled.
    pub async fn run(mut self, changes: broadcast::Receiver<Change>, cancel: CancellationToken) {
        let cluster = self.parts.cluster.clone();
        let objects = Objects::default()
            .and(cluster.provider_networks.subscribe())
            .and(cluster.vlans.subscribe())
            .and(cluster.subnets.subscribe())
            .and(cluster.own_node.subscribe())
            .and(cluster.external_gateway.subscribe());
        let pace = Pace::new(VERIFY, RETRY, RETRY_MAX);
        let mut frame = Frame::new(objects, &self.parts.ovs.clone(), changes, pace, cancel);
        loop {
            let Some(well) = frame.pass(self.pass()).await else { return };
            // What the pass itself wrote is no news.
            let seen = relevant(&frame.view());
            let concern = self.concern().await;
            let is_news = |view: &View| relevant(view) != seen;
            let concerns = |change: &Change| concern.concerns(change);
            if !frame.wait(well, is_news, concerns, std::future::pending()).await {
                return;
            }
            tokio::time::sleep(GATHER).await;
        }
    }

    /// One pass over all networks; whether all of it could be done.
    pub async fn pass(&mut self) -> bool {
        let view = self.parts.ovs.view();
        let reasons = self.stand_in(&view).await;
        for reason in self.lines.news("stand-in", reasons.iter().map(ToString::to_string)) {
            tracing::warn!(reason, "the node's addresses while the switch is gone");
        }
        let networks = self.parts.cluster.provider_networks.get();
        let vlans = self.parts.cluster.vlans.get();
        let own = self.parts.cluster.own_node.get();
        let Some(node) = own.objects.values().next() else { return true };
        // Not known is not gone.
        if !view.is_connected() || !networks.synced || !vlans.synced || !own.synced {
            return true;
        }
        let mut states: BTreeMap<String, State> = BTreeMap::new();
        let mut members: Vec<Wish> = Vec::new();
        for network in networks.objects.values() {
            let there = self.is_here(&view, &network.name);
            match membership(network, &vlans.objects, &self.parts.node, node) {
                // It keeps what it has until it is gone, and gets nothing new.
                _ if network.deleting && !there => {}
                Membership::Member(wish) => members.push(wish),
                Membership::Excluded => {
                    states.insert(network.name.clone(), State::Excluded);
                }
                Membership::Wrong(reason) => {
                    states.insert(network.name.clone(), State::Failed(reason));
                }
            }
        }
        let mut leaving: BTreeSet<String> =
            self.here(&view).into_iter().chain(labelled(&node.labels)).collect();
        leaving.retain(|name| !networks.objects.contains_key(name.as_str()));
        for name in &leaving {
            states.insert(name.clone(), State::Gone);
        }
        leaving.extend(
            states.iter().filter(|(_, state)| **state == State::Excluded).map(|(name, _)| name.clone()),
        );
        // NICs are free before others want them.
        for name in leaving {
            match self.leave(&name).await {
                Ok(true) => tracing::info!(network = name, "the interface is home; the bridge is gone"),
                Ok(false) => {}
                Err(reason) => {
                    states.insert(name, State::Failed(reason));
                }
            }
        }
        for wish in members {
            let state = match self.ensure(&wish).await {
                Ok(ready) => State::Ready(ready),
                Err(reason) => State::Failed(reason),
            };
            states.insert(wish.network, state);
        }
        let failed = states.values().any(|state| matches!(state, State::Failed(_)));
        let gateways = self.gateways(&node.labels).await;
        let entries = self.entries().await;
        for reason in self.lines.news("entries", entries.as_ref().err().map(ToString::to_string)) {
            tracing::warn!(reason, "static MAC entries of provider bridges");
        }
        self.tell(&states).await && gateways && entries.is_ok() && !failed
    }

    /// The node is left for good: every NIC goes home, with a line in `done` for each. What could not be done, while the
    /// rest was; it can be called again.
    pub async fn clean_up(&self, done: &mut Vec<String>) -> Vec<String> {
        let mut left = Vec::new();
        for network in self.here(&self.parts.ovs.view()) {
            match self.leave(&network).await {
                Ok(true) => done.push(format!(
                    "the NIC of provider network {network} has its addresses and routes back; removed its bridge"
                )),
                Ok(false) => {}
                Err(reason) => left.push(format!("provider network {network}: {reason}")),
            }
        }
        let switch = self.flags.external_gateway_switch.as_str();
        if let Err(reason) = self.leave_gateway(switch, &crds::names::provider_bridge(switch)).await {
            left.push(format!("the external gateway: {reason}"));
        }
        left
    }

    /// Networks that this node has something of.
    pub fn here(&self, view: &View) -> BTreeSet<String> {
        let list = view.root_external_id(BRIDGES).unwrap_or_default();
        let mapped = mappings::all(list).into_iter().filter(|(_, bridge)| is_provider_bridge(view, bridge));
        let mapped = mapped.map(|(network, _)| network.to_owned());
        mapped
            .filter(|name| *name != self.flags.external_gateway_switch)
            .chain(Journal::networks(view))
            .collect()
    }

    fn is_here(&self, view: &View, network: &str) -> bool {
        self.here(view).contains(network)
    }

    async fn concern(&self) -> Concern {
        let view = self.parts.ovs.view();
        let mut names = BTreeSet::new();
        let wanted = self.parts.cluster.provider_networks.get();
        for network in wanted.objects.values() {
            names.insert(network.default_interface.clone());
            names.extend(network.custom_interfaces.iter().map(|(nic, _)| nic.clone()));
            names.extend(network.vlan_interfaces.iter().cloned());
        }
        for network in wanted.objects.keys().map(|name| name.to_string()).chain(self.here(&view)) {
            names.insert(crds::names::provider_bridge(&network));
            if let Ok(Some(journal)) = Journal::read(&view, &network) {
                names.extend(journal.links(&network));
            }
        }
        names.extend(
            self.parts.cluster.external_gateway.get().objects.values().map(|config| config.nic.clone()),
        );
        let links = self.parts.host.netlink.links().await.unwrap_or_default();
        Concern::with_links(names, &links)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str, kind: &str, peer: Option<u32>) -> Link {
        Link {
            index,
            name: name.into(),
            mac: None,
            mtu: 1500,
            up: true,
            running: true,
            kind: Some(kind.into()),
            peer,
            controller: None,
            tx_queue_len: 0,
            alias: None,
        }
    }

    #[test]
    fn vlan_links_on_a_nic_concern_its_network_and_ends_of_pods_do_not() {
        let links = [
            link(2, "eth1", "veth", None),
            link(3, "storage", "vlan", Some(2)),
            link(4, "x_h", "veth", Some(2)),
        ];
        let concern = Concern::with_links(BTreeSet::from(["eth1".to_owned(), "late".to_owned()]), &links);
        let of = |link: Link| concern.concerns(&Change::LinkChanged(link));
        assert!(of(link(3, "storage", "vlan", Some(2))) && of(link(9, "eth1.7", "vlan", Some(2))));
        assert!(of(link(10, "late", "vlan", Some(8))), "the spec names it");
        assert!(!of(link(4, "x_h", "veth", Some(2))) && !of(link(11, "eth0.7", "vlan", Some(8))));
        assert_eq!(concern.indexes, BTreeSet::from([2, 3]));
    }

    #[test]
    fn a_record_names_what_its_network_is_made_of() {
        let sub = |name: &str| super::super::vlans::SubInterface { name: name.into(), ..Default::default() };
        let journal = Journal {
            nic: "eth1".into(),
            vlans: BTreeMap::from([(5, sub("eth1.5")), (6, sub("storage"))]),
            ..Journal::default()
        };
        let named = |exchange| Journal { exchange, ..journal.clone() }.links("net1").join(" ");
        assert_eq!(named(false), "eth1 br-net1 eth1.5 br-net1-vlan5 storage br-net1-vlan6");
        assert_eq!(named(true), "eth1 br-net1 eth1.5 eth1-vlan5 storage eth1-vlan6");
    }
}
