//! Networks of a pod beside the default one (contract §2.1, Multus): which
//! interfaces it has, by its annotations and NetworkAttachmentDefinitions.
//!
//! Flows in: pods with the annotations, definitions. Flows out: interfaces with
//! their provider, port and requests. Pods without the annotations cost nothing here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crds::{keys, names};
use serde::Deserialize;

use super::leases::Owner;
use super::{ReadKey, World};
use crate::objects::{Meta, Nad, NadKind, StringMap};
use crate::view::{Interface, Interfaces};

/// Namespace and name.
type Name = (Arc<str>, Arc<str>);

/// Definitions, and what pods make of them.
#[derive(Default)]
pub(super) struct Attachments {
    pub(super) nads: BTreeMap<Name, Arc<Nad>>,
    pub(super) pods: BTreeMap<Name, Arc<Interfaces>>,
    /// Pods that name a definition.
    by_nad: BTreeMap<Name, BTreeSet<Name>>,
    /// Definitions that a pod names.
    of_pod: BTreeMap<Name, BTreeSet<Name>>,
}

/// One element of the annotation `k8s.v1.cni.cncf.io/networks`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
struct Selection {
    name: String,
    namespace: Option<String>,
    interface: Option<String>,
    ips: Option<Vec<String>>,
    mac: Option<String>,
}

/// The annotation, as JSON or in its short form `ns/name@interface,…`.
fn selections(text: &str) -> Result<Vec<Selection>, String> {
    let text = text.trim();
    if text.starts_with('[') {
        let list: Vec<Selection> = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if list.iter().any(|selection| selection.name.is_empty()) {
            return Err("an element has no name".into());
        }
        return Ok(list);
    }
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let list = parts.map(|part| {
        let (rest, interface) = match part.split_once('@') {
            Some((rest, interface)) => (rest, Some(interface.to_owned())),
            None => (part, None),
        };
        let (namespace, name) = match rest.split_once('/') {
            Some((namespace, name)) => (Some(namespace.to_owned()), name),
            None => (None, rest),
        };
        if name.is_empty() || name.contains('/') {
            return Err(format!(
                "{part:?} is no network; write name, namespace/name or namespace/name@interface"
            ));
        }
        Ok(Selection { name: name.to_owned(), namespace, interface, ..Selection::default() })
    });
    list.collect()
}

/// Requests that may be made for any interface.
const REQUESTS: [(&str, &str); 13] = [
    ("ip_address", keys::IP_ADDRESS),
    ("mac_address", keys::MAC_ADDRESS),
    ("ip_pool", keys::IP_POOL),
    ("ip_family", keys::IP_FAMILY),
    ("logical_switch", keys::LOGICAL_SWITCH),
    ("pod_nic_type", keys::POD_NIC_TYPE),
    ("port_security", keys::PORT_SECURITY),
    ("port_vips", keys::PORT_VIPS),
    ("layer2_forward", keys::LAYER2_FORWARD),
    ("security_groups", keys::SECURITY_GROUPS),
    ("activation_strategy", keys::ACTIVATION_STRATEGY),
    ("dhcp-v4-options", keys::DHCP_V4_OPTIONS),
    ("dhcp-v6-options", keys::DHCP_V6_OPTIONS),
];

/// The controller has written the address of that interface.
pub(super) fn told(meta: &Meta, provider: &str) -> bool {
    let value = if provider == keys::DEFAULT_PROVIDER {
        meta.annotations.get(keys::ALLOCATED)
    } else {
        meta.annotations.get(&keys::pod_key(provider, "allocated"))
    };
    value.is_some_and(|value| &**value == "true")
}

fn requests(meta: &Meta, provider: &str, selection: &Selection, base: &str) -> StringMap {
    let told = told(meta, provider);
    let mut requests = StringMap::new();
    for (name, key) in &REQUESTS {
        let answered = matches!(*name, "ip_address" | "mac_address" | "logical_switch" | "pod_nic_type");
        if told && answered {
            continue;
        }
        if let Some(value) = meta.annotations.get(&keys::pod_key(provider, name)) {
            requests.insert((*key).into(), value.clone());
        }
    }
    if told {
        return requests;
    }
    // The element overrides the annotation; the key of the interface overrides both.
    let mut put = |key: &str, value: Option<Arc<str>>| {
        if let Some(value) = value.filter(|value| !value.trim().is_empty()) {
            requests.insert(key.into(), value);
        }
    };
    let ips = selection.ips.iter().flatten().map(|ip| ip.split('/').next().unwrap_or(ip));
    put(keys::IP_ADDRESS, Some(ips.collect::<Vec<_>>().join(",").into()));
    put(keys::MAC_ADDRESS, selection.mac.as_deref().map(Into::into));
    if let Some(interface) = &selection.interface {
        let own = |name: &str| {
            let key = format!("{base}.kubernetes.io/{name}.{interface}");
            meta.annotations.get(&key).cloned()
        };
        put(keys::IP_ADDRESS, own("ip_address"));
        put(keys::MAC_ADDRESS, own("mac_address"));
    }
    requests
}

impl World {
    pub(super) fn set_nad(&mut self, nad: Arc<Nad>) {
        let name = (nad.meta.namespace.clone(), nad.meta.name.clone());
        let old = self.attachments.nads.insert(name.clone(), nad.clone());
        if old.is_none_or(|old| old.kind != nad.kind) {
            self.networks_changed(&name);
        }
    }

    pub(super) fn remove_nad(&mut self, name: &Name) {
        self.attachments.nads.remove(name);
        self.networks_changed(name);
    }

    fn networks_changed(&mut self, nad: &Name) {
        for (namespace, name) in self.attachments.by_nad.get(nad).cloned().unwrap_or_default() {
            self.project_interfaces(&namespace, &name);
        }
    }

    /// Interfaces of a pod that came, changed or went. Returns `true` when they
    /// differ from before.
    pub(super) fn project_interfaces(&mut self, namespace: &Arc<str>, name: &Arc<str>) {
        let pod: Name = (namespace.clone(), name.clone());
        let stored = self.stored_pod(namespace, name);
        let concerned = stored.is_some_and(|stored| stored.view.networks);
        if !concerned && !self.attachments.pods.contains_key(&pod) {
            return;
        }
        let (interfaces, nads) = match stored.filter(|_| concerned) {
            Some(stored) => self.interfaces_of(&stored.object.meta),
            None => (None, BTreeSet::new()),
        };
        for nad in self.attachments.of_pod.remove(&pod).unwrap_or_default() {
            if let Some(pods) = self.attachments.by_nad.get_mut(&nad) {
                pods.remove(&pod);
                if pods.is_empty() {
                    self.attachments.by_nad.remove(&nad);
                }
            }
        }
        for nad in &nads {
            self.attachments.by_nad.entry(nad.clone()).or_default().insert(pod.clone());
        }
        if !nads.is_empty() {
            self.attachments.of_pod.insert(pod.clone(), nads);
        }
        let old = self.attachments.pods.get(&pod).cloned();
        if old.as_deref() != interfaces.as_ref() {
            match interfaces {
                Some(interfaces) => self.attachments.pods.insert(pod, Arc::new(interfaces)),
                None => self.attachments.pods.remove(&pod),
            };
            self.changed.insert(ReadKey::Interfaces(namespace.clone(), name.clone()));
            self.ports_changed(namespace, name);
        }
        self.want_interfaces(namespace, name, old.as_deref());
    }

    fn interfaces_of(&self, meta: &Meta) -> (Option<Interfaces>, BTreeSet<Name>) {
        let mut interfaces = Interfaces { default: true, ..Interfaces::default() };
        let mut nads = BTreeSet::new();
        let owner = self.base_name(&meta.namespace, &meta.name);
        let text = |key: &str| meta.annotations.get(key).map_or("", |value| value.trim());
        let mut all: Vec<(Selection, bool)> = Vec::new();
        for (key, default) in [(keys::DEFAULT_NETWORK, true), (keys::NETWORKS, false)] {
            match selections(text(key)) {
                Ok(list) => all.extend(list.into_iter().map(|selection| (selection, default))),
                Err(error) => {
                    let problem = format!("annotation {key}: {error}");
                    interfaces.problem.get_or_insert_with(|| problem.into());
                }
            }
        }
        interfaces.default = !all.iter().any(|(_, default)| *default);
        let target = |selection: &Selection| -> Name {
            let namespace = selection.namespace.as_deref().unwrap_or(&meta.namespace);
            (namespace.into(), selection.name.as_str().into())
        };
        for (selection, _) in &all {
            let nad = target(selection);
            let twice = all.iter().filter(|(other, _)| target(other) == nad).count() > 1;
            let suffix = selection.interface.as_ref().filter(|_| twice);
            let base = format!("{}.{}", nad.1, nad.0);
            let of = |kind: NadKind| match (kind, suffix) {
                (NadKind::Ovn, Some(interface)) => Some((format!("{base}.ovn.{interface}"), true)),
                (NadKind::Ovn, None) => Some((format!("{base}.ovn"), true)),
                (NadKind::Ipam, _) => Some((base.clone(), false)),
                (NadKind::Other, _) => None,
            };
            let found = match self.attachments.nads.get(&nad) {
                Some(object) => of(object.kind),
                None => {
                    let problem = format!(
                        "NetworkAttachmentDefinition {}/{} does not exist; create it, or correct annotation {}",
                        nad.0,
                        nad.1,
                        keys::NETWORKS
                    );
                    interfaces.problem.get_or_insert_with(|| problem.into());
                    // What the pod has already stays, whatever became of the definition.
                    [NadKind::Ovn, NadKind::Ipam]
                        .into_iter()
                        .filter_map(of)
                        .find(|(provider, _)| told(meta, provider))
                }
            };
            nads.insert(nad);
            let Some((provider, ovn)) = found else { continue };
            if interfaces.list.iter().any(|interface| *interface.provider == *provider) {
                continue;
            }
            let port = names::pod_port(&owner, &meta.namespace, &provider);
            interfaces.list.push(Interface {
                requests: requests(meta, &provider, selection, &base),
                provider: provider.into(),
                port: port.into(),
                ovn,
            });
        }
        // Interfaces that were unplugged: their annotations go with them.
        for provider in super::project::told_providers(meta) {
            if !interfaces.list.iter().any(|interface| *interface.provider == *provider)
                && interfaces.problem.is_none()
            {
                let prefix = format!("{provider}.kubernetes.io/");
                interfaces
                    .stale
                    .extend(meta.annotations.keys().filter(|key| key.starts_with(&prefix)).cloned());
            }
        }
        if interfaces.default
            && let Some(taken) = self.port_taken(&meta.namespace, &owner)
        {
            (interfaces.default, interfaces.problem) = (false, Some(taken.into()));
        }
        (Some(interfaces), nads)
    }

    fn want_interfaces(&mut self, namespace: &Arc<str>, name: &Arc<str>, old: Option<&Interfaces>) {
        if let Some(machine) = self.machines.of_pod(namespace, name).cloned() {
            return self.want_machine(&(namespace.clone(), machine));
        }
        self.requeue_kept_of(namespace, name);
        let wants = self.pod(namespace, name).is_some_and(|pod| pod.wants_network);
        let pod: Name = (namespace.clone(), name.clone());
        let new = self.attachments.pods.get(&pod).filter(|_| wants).cloned();
        let list = new.iter().flat_map(|interfaces| &interfaces.list);
        let wanted: BTreeMap<Arc<str>, Arc<str>> =
            list.map(|i| (i.port.clone(), i.provider.clone())).collect();
        for interface in old.into_iter().flat_map(|old| &old.list) {
            if !wanted.contains_key(&interface.port) {
                let owner = Owner::Attachment(namespace.clone(), name.clone(), interface.provider.clone());
                if !self.leases.unwant(&interface.port, |of| *of == owner) {
                    continue;
                }
                if self.ipam.lease(&interface.port).is_some() {
                    let whose = (namespace.clone(), name.clone(), interface.provider.clone());
                    self.leases.departed.insert(interface.port.clone(), whose);
                }
                self.leases.changed(interface.port.clone());
                self.reconsider_name(&interface.port);
            }
        }
        for (port, provider) in wanted {
            let owner = Owner::Attachment(namespace.clone(), name.clone(), provider);
            self.leases.departed.remove(&port);
            self.note_owner_of(&port, namespace, name);
            self.claim(&port, owner);
            self.leases.changed(port);
        }
    }

    /// The subnet of an attachment: the first whose provider is the interface's.
    pub(super) fn subnets_of_provider(&self, provider: &str) -> Vec<Arc<str>> {
        self.all_of_provider(provider).take(1).cloned().collect()
    }

    /// All of them.
    pub(super) fn all_of_provider(&self, provider: &str) -> impl Iterator<Item = &Arc<str>> {
        let whole = provider.find(".ovn.").map_or(provider, |at| provider.get(..at + 4).unwrap_or(provider));
        self.subnet_views
            .iter()
            .filter(move |(_, view)| [provider, whole].contains(&&*view.spec.provider))
            .map(|(name, _)| name)
    }

    pub(super) fn interface(&self, namespace: &str, name: &str, provider: &str) -> Option<&Interface> {
        let pod: Name = (namespace.into(), name.into());
        self.attachments.pods.get(&pod)?.list.iter().find(|interface| &*interface.provider == provider)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("a", &[("a", None, None)])]
    #[case("ns/a@net1, b", &[("a", Some("ns"), Some("net1")), ("b", None, None)])]
    #[case(r#"[{"name":"a","namespace":"ns","interface":"net1"},{"name":"b"}]"#, &[("a", Some("ns"), Some("net1")), ("b", None, None)])]
    #[case("", &[])]
    fn both_forms(#[case] text: &str, #[case] expected: &[(&str, Option<&str>, Option<&str>)]) {
        let found = selections(text).unwrap();
        let found: Vec<_> =
            found.iter().map(|s| (&*s.name, s.namespace.as_deref(), s.interface.as_deref())).collect();
        assert_eq!(found, expected);
    }

    #[rstest]
    #[case("[{]")]
    #[case(r#"[{"namespace":"x"}]"#)]
    #[case("a/b/c")]
    #[case("ns/")]
    fn what_is_no_network_is_refused(#[case] text: &str) {
        assert!(selections(text).is_err());
    }
}
