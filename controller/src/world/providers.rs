//! ProviderNetworks (contract §1.5): how they stand on each node, as the nodes' agents say.
//!
//! Flows in: ProviderNetworks, Vlans, labels of nodes and what their annotations ask for, the errors in the annotations
//! of agents' pods. Flows out: one view a network. All of that changes seldom; a heartbeat looks at nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use crds::{CustomInterface, keys};

use super::renew::renew_all;
use super::{ByName, ReadKey, World, bindings, vlans};
use crate::objects::{Meta, Pod, ProviderNetwork};
use crate::view::{ProviderFold, ProviderNode, ProviderView};

/// Label `app` of the agents' pods.
const AGENTS: &str = "kube-ovn-cni";
const ERROR: &str = ".provider-network.kubernetes.io/err_mesg";
/// In keys of annotations of nodes that are about a network.
const ABOUT: &str = ".provider-network.kubernetes.io/";

/// All provider networks.
#[derive(Default)]
pub(super) struct Providers {
    pub(super) objects: ByName<Arc<ProviderNetwork>>,
    pub(super) views: ByName<Arc<ProviderView>>,
    /// Errors of agents' pods, by namespace and name, with the node.
    errors: BTreeMap<(Arc<str>, Arc<str>), Said>,
    pub(super) stale: bool,
}

/// What went wrong, by network.
type Errors = BTreeMap<Arc<str>, Arc<str>>;

/// The same with the node that says it.
type Said = (Arc<str>, Errors);

/// What an agent's pod says went wrong.
fn errors(pod: &Pod) -> Errors {
    if pod.meta.labels.get("app").is_none_or(|app| &**app != AGENTS) {
        return Errors::new();
    }
    let all = pod.meta.annotations.iter();
    all.filter_map(|(key, message)| Some((key.strip_suffix(ERROR)?.into(), message.clone()))).collect()
}

/// What a node's annotations say about networks.
pub(super) fn asks(meta: &Meta) -> Vec<(Arc<str>, Arc<str>)> {
    let all = meta.annotations.iter().filter(|(key, _)| key.contains(ABOUT));
    all.map(|(key, value)| (key.clone(), value.clone())).collect()
}

impl World {
    pub(super) fn set_provider(&mut self, network: Arc<ProviderNetwork>) {
        self.providers.objects.insert(network.meta.name.clone(), network);
        self.providers.stale = true;
    }

    pub(super) fn remove_provider(&mut self, name: &Arc<str>) {
        self.providers.objects.remove(name);
        self.providers.stale = true;
    }

    /// A pod came, changed or (`None`) went.
    pub(super) fn note_agent(&mut self, namespace: &Arc<str>, name: &Arc<str>, pod: Option<&Pod>) {
        let said = pod.map(errors).filter(|said| !said.is_empty());
        if said.is_none() && self.providers.errors.is_empty() {
            return;
        }
        let key = (namespace.clone(), name.clone());
        let before = match (said, pod) {
            (Some(said), Some(pod)) => {
                let now = (pod.node.clone(), said);
                let before = self.providers.errors.insert(key.clone(), now);
                if before.as_ref() == self.providers.errors.get(&key) {
                    return;
                }
                true
            }
            _ => self.providers.errors.remove(&key).is_some(),
        };
        self.providers.stale |= before;
    }

    /// Makes the views anew if something that they show may have changed.
    pub(super) fn project_providers(&mut self) {
        if !std::mem::take(&mut self.providers.stale) {
            return;
        }
        let now: ByName<ProviderView> = self
            .providers
            .objects
            .iter()
            .map(|(name, network)| (name.clone(), self.provider(network)))
            .collect();
        renew_all(&mut self.providers.views, &mut self.changed, ReadKey::ProviderNetwork, now);
    }

    pub(super) fn provider(&self, network: &ProviderNetwork) -> ProviderView {
        let name = &network.meta.name;
        let ready = keys::provider_network_key(name, "ready");
        let users = self.vlans.objects.values().filter(|vlan| vlans::place(vlan).1 == *name);
        let users = users.map(|vlan| vlan.meta.name.clone()).collect();
        let deleting = network.meta.deleting_at.is_some();
        let fold = if deleting { ProviderFold::default() } else { self.fold(network) };
        let nodes = self.nodes.iter().filter_map(|(node, stored)| {
            let labels = &stored.object.meta.labels;
            let member = match &network.spec.node_selector {
                Some(selector) => bindings::matches(selector, labels),
                None => !network.spec.exclude_nodes.iter().any(|excluded| **excluded == **node),
            };
            let ready = labels.get(&ready).is_some_and(|value| &**value == "true");
            let said = self.providers.errors.values().find(|(on, _)| on == node);
            let error = said.and_then(|(_, errors)| errors.get(name)).filter(|_| !ready).cloned();
            member.then(|| ProviderNode { name: node.clone(), ready, error: error.unwrap_or_default() })
        });
        ProviderView { uid: network.meta.uid.clone(), deleting, nodes: nodes.collect(), users, fold }
    }

    /// What annotations of nodes make of the spec. With a selector nobody is excluded by name.
    fn fold(&self, network: &ProviderNetwork) -> ProviderFold {
        let spec = &network.spec;
        let [exclude, interface] =
            ["exclude", "interface"].map(|what| keys::provider_network_key(&network.meta.name, what));
        let mut excluded = spec.exclude_nodes.clone();
        let mut custom = spec.custom_interfaces.clone();
        let mut fold = ProviderFold::default();
        for (name, stored) in &self.nodes {
            let meta = &stored.object.meta;
            let asks = |key: &str| meta.annotations.get(key).filter(|value| !value.is_empty());
            let mut done = |key: &str| fold.done.push((name.clone(), meta.uid.clone(), key.into()));
            if spec.node_selector.is_none() && asks(&exclude).is_some_and(|value| &**value == "true") {
                match excluded.iter().any(|node| **node == **name) {
                    true => done(&exclude),
                    false => excluded.push(name.to_string()),
                }
            }
            if let Some(nic) = asks(&interface) {
                let listed = |entry: &&CustomInterface| entry.nodes.iter().any(|node| **node == **name);
                // The first entry that lists a node counts.
                match custom.iter().find(listed).is_some_and(|entry| *entry.interface == **nic) {
                    true => done(&interface),
                    false => give(&mut custom, name, nic),
                }
            }
        }
        fold.exclude_nodes = Some(excluded).filter(|now| *now != spec.exclude_nodes);
        fold.custom_interfaces = Some(custom).filter(|now| *now != spec.custom_interfaces);
        fold
    }
}

/// Gives a node a NIC of its own; the NIC that it had goes, and an entry without nodes with it.
fn give(custom: &mut Vec<CustomInterface>, node: &str, nic: &str) {
    for entry in custom.iter_mut() {
        entry.nodes.retain(|other| other != node);
    }
    match custom.iter_mut().find(|entry| entry.interface == nic) {
        Some(entry) => entry.nodes.push(node.to_owned()),
        None => custom.push(CustomInterface { interface: nic.to_owned(), nodes: vec![node.to_owned()] }),
    }
    custom.retain(|entry| !entry.nodes.is_empty());
}
