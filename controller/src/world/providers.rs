//! ProviderNetworks (contract §1.5): how they stand on each node, as the nodes' agents say.
//!
//! Flows in: ProviderNetworks, labels of nodes, the errors in the annotations of agents' pods. Flows out: one view a
//! network. Labels change seldom; a heartbeat looks at nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use crds::keys;

use super::renew::renew_all;
use super::{ByName, ReadKey, World, bindings};
use crate::objects::{Pod, ProviderNetwork};
use crate::view::{ProviderNode, ProviderView};

/// Label `app` of the agents' pods.
const AGENTS: &str = "kube-ovn-cni";
const ERROR: &str = ".provider-network.kubernetes.io/err_mesg";

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
        ProviderView { uid: network.meta.uid.clone(), nodes: nodes.collect() }
    }
}
