//! What the node says about its provider networks: labels, events, an annotation of the agent's pod (node contract §3.5
//! step 11).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::network::Ready;
use super::run::Underlay;
use crate::kube::{EventType, ObjectRef, annotate_pod, label_node};
use crate::node::NotYet;

/// How it stands with a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It works here.
    Ready(Ready),
    /// It should, and does not.
    Failed(NotYet),
    /// The node is no member.
    Excluded,
    /// There is no such network any more.
    Gone,
}

/// Labels of a network on its node.
const NAMES: [&str; 5] = ["ready", "interface", "mtu", "vlan_interfaces", "exclude"];

fn key(network: &str, name: &str) -> String {
    crds::keys::provider_network_key(network, name)
}

/// The labels that say how a network stands; `None` for those that must not be there.
pub(super) fn labels(network: &str, state: &State) -> BTreeMap<String, Option<String>> {
    let mut wanted: BTreeMap<String, Option<String>> =
        NAMES.iter().map(|name| (key(network, name), None)).collect();
    let mut say = |name: &str, value: String| wanted.insert(key(network, name), Some(value));
    match state {
        State::Ready(ready) => {
            say("ready", "true".to_owned());
            say("interface", ready.interface.clone());
            say("mtu", ready.mtu.to_string());
            if ready.vlan_interfaces {
                say("vlan_interfaces", "true".to_owned());
            }
        }
        State::Excluded => {
            say("exclude", "true".to_owned());
        }
        State::Failed(_) | State::Gone => {}
    }
    wanted
}

/// Networks that labels speak of.
pub(super) fn labelled(labels: &BTreeMap<String, String>) -> BTreeSet<String> {
    let network = |key: &String| Some(key.split_once(".provider-network.kubernetes.io/")?.0.to_owned());
    labels.keys().filter_map(network).collect()
}

impl Underlay {
    /// Tells everybody; whether it could be done.
    pub(super) async fn tell(&mut self, states: &BTreeMap<String, State>) -> bool {
        let own = self.parts.cluster.own_node.get();
        let Some(node) = own.objects.values().next() else { return true };
        let (mut changes, mut changed) = (BTreeMap::new(), BTreeSet::new());
        for (network, state) in states {
            let mut wanted = labels(network, state);
            wanted.retain(|key, value| node.labels.get(key) != value.as_ref());
            if !wanted.is_empty() {
                changed.insert(network.as_str());
            }
            changes.append(&mut wanted);
        }
        let mut well = true;
        if !changes.is_empty()
            && let Some(client) = &self.parts.client
            && let Err(error) = label_node(client, &self.parts.node, &changes).await
        {
            tracing::warn!(error = %error, "labels of provider networks can't be written; trying again");
            well = false;
        }
        for (network, state) in states {
            if self.told.get(network) != Some(state) {
                self.tell_one(network, state, changed.contains(network.as_str())).await;
            }
        }
        self.told.clone_from(states);
        self.told.retain(|_, state| *state != State::Gone);
        well
    }

    /// A network's state; that it works is an event when the labels change, so that a restart of the agent repeats none.
    async fn tell_one(&self, network: &str, state: &State, changed: bool) {
        let uid =
            self.parts.cluster.provider_networks.object(&network.into()).map(|object| object.uid.clone());
        let object = ObjectRef {
            api_version: "kubeovn.io/v1",
            kind: "ProviderNetwork",
            namespace: String::new(),
            name: network.to_owned(),
            uid: uid.unwrap_or_default(),
        };
        let message = match state {
            State::Ready(ready) => {
                tracing::info!(network, nic = ready.interface, mtu = ready.mtu, "the provider network works");
                if changed {
                    let message =
                        format!("node {}: interface {} is bridged", self.parts.node, ready.interface);
                    self.parts.recorder.record(object, EventType::Normal, "InitOVSBridgeSucceeded", message);
                }
                None
            }
            State::Failed(reason) => {
                let why = match reason.remedy.as_str() {
                    "" => reason.reason.clone(),
                    remedy => format!("{} ({remedy})", reason.reason),
                };
                tracing::warn!(network, why, "the provider network does not work");
                let message = format!("node {}: {why}", self.parts.node);
                self.parts.recorder.record(object, EventType::Warning, "InitOVSBridgeFailed", message);
                Some(why)
            }
            State::Excluded | State::Gone => None,
        };
        let (text, known) = match state {
            State::Ready(_) => ("ready", true),
            State::Failed(_) => ("failed", true),
            State::Excluded => ("excluded", true),
            State::Gone => ("gone", false),
        };
        self.parts.feed.say(
            "provider-network",
            json!({"network": network, "state": text, "known": known, "error": message}),
        );
        self.annotate(network, message).await;
    }

    /// The controller copies the error of a node from the annotation of the agent's pod there.
    async fn annotate(&self, network: &str, message: Option<String>) {
        let env = &self.flags.env;
        let (Some(client), Some(pod), Some(namespace)) =
            (&self.parts.client, &env.pod_name, &env.pod_namespace)
        else {
            return;
        };
        let change = BTreeMap::from([(key(network, "err_mesg"), message)]);
        if let Err(error) = annotate_pod(client, namespace, pod, &change).await {
            tracing::debug!(error = %error, "the error could not be put on the agent's pod");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(state: &State) -> Vec<(String, String)> {
        labels("net1", state)
            .into_iter()
            .filter_map(|(key, value)| Some((key.rsplit_once('/')?.1.to_owned(), value?)))
            .collect()
    }

    #[test]
    fn k_102_labels_say_how_a_network_stands() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let ready = State::Ready(Ready { interface: "eth1".into(), mtu: 9000, vlan_interfaces: false });
        assert_eq!(said(&ready), [pair("interface", "eth1"), pair("mtu", "9000"), pair("ready", "true")]);
        assert_eq!(said(&State::Excluded), [pair("exclude", "true")]);
        assert!(said(&State::Failed(NotYet::new("x", "y", "z"))).is_empty() && said(&State::Gone).is_empty());
        assert_eq!(labels("net1", &State::Gone).len(), 5, "all are taken away");
        let node = [("net1.provider-network.kubernetes.io/ready", "true"), ("kubernetes.io/os", "linux")];
        let node = node.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        assert_eq!(labelled(&node), BTreeSet::from(["net1".to_owned()]));
    }
}
