//! Which pod, and which of its attachments, a port of the switch serves.
//!
//! In: an interface of the switch, the pods of this node. Out: the pod and the provider under which its annotations
//! speak of this interface. Pure. Ports of Kube-OVN have no `ifname` and no UID among their external ids; they are
//! recognised by their `iface-id`.

use std::sync::Arc;

use crate::kube::{Fact, Loaded, PodFacts};
use crate::ovs::Interface;
use crate::plug::{IF_NAME, POD_UID};

/// Annotations that every attachment has.
const MARKS: [&str; 3] = ["ip_address", "allocated", "mac_address"];

/// The pod of an interface, unless it is gone or another one of its name.
pub fn pod_of(interface: &Interface, pods: &Loaded<PodFacts>) -> Option<Arc<PodFacts>> {
    let key = PodFacts::key(interface.external_id("pod_namespace")?, interface.external_id("pod_name")?);
    let pod = pods.objects.get(&key)?;
    let same = interface.external_id(POD_UID).is_none_or(|uid| uid == pod.uid);
    same.then(|| pod.clone())
}

/// The provider by which the pod's annotations speak of the interface: `ovn`, `<nad>.<ns>.ovn`, or either with the
/// interface's name behind it when the pod has the attachment more than once.
pub fn provider_of(interface: &Interface, pod: &PodFacts) -> Option<String> {
    let id = interface.external_id("iface-id")?;
    let suffix = interface.external_id(IF_NAME).map(|name| format!(".{name}"));
    providers(pod).find(|provider| {
        let owner = pod.annotation(provider, "virtualmachine").unwrap_or(&pod.name);
        let port = |provider: &str| crds::names::pod_port(owner, &pod.namespace, provider);
        let named = suffix.as_deref().and_then(|suffix| {
            let base = provider.strip_suffix(suffix)?;
            Some(format!("{}{suffix}", port(base)))
        });
        named.as_deref() == Some(id) || port(provider) == id
    })
}

/// All providers that the pod's annotations name. Longer names first: `nad.ns.ovn.net1` before `nad.ns.ovn`.
fn providers(pod: &PodFacts) -> impl Iterator<Item = String> {
    let mut names: Vec<String> = pod
        .annotations
        .keys()
        .filter_map(|key| {
            let (provider, mark) = key.split_once(".kubernetes.io/")?;
            MARKS.contains(&mark).then(|| provider.to_owned())
        })
        .collect();
    names.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
    names.dedup();
    names.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    use crate::ovs::View;
    use ovsdb::testing::{Database, SchemaBuilder, string};
    use ovsdb::{Operation, Value};

    fn interface(ids: &[(&str, &str)]) -> Interface {
        let schema = SchemaBuilder::new("Open_vSwitch", "8.8.0")
            .table("Interface", |t| {
                t.root().unique(["name"]).scalar("name", string()).map("external_ids", string(), string())
            })
            .build();
        let mut database = Database::new(schema);
        let row = Operation::insert("Interface").column("name", "a_h");
        let ids = Value::string_map(ids.iter().copied());
        database.must(&[row.column("external_ids", ids).build()]);
        View::new(database.replica()).interface("a_h").unwrap()
    }

    fn pod(providers: &[&str]) -> PodFacts {
        PodFacts {
            namespace: "web".into(),
            name: "a".into(),
            uid: "u1".into(),
            annotations: providers
                .iter()
                .map(|provider| (crds::keys::pod_key(provider, "ip_address"), "10.16.0.5".to_owned()))
                .collect(),
            ..PodFacts::default()
        }
    }

    #[test]
    fn attachments_are_told_apart() {
        let pod = pod(&["ovn", "net.web.ovn", "twice.web.ovn.net1", "twice.web.ovn.net2", "ovn.net3"]);
        for (id, ifname, provider) in [
            ("a.web", Some("eth0"), Some("ovn")),
            ("a.web", None, Some("ovn")),
            ("a.web.net.web.ovn", None, Some("net.web.ovn")),
            ("a.web.twice.web.ovn.net2", Some("net2"), Some("twice.web.ovn.net2")),
            ("a.web.twice.web.ovn.net1", None, Some("twice.web.ovn.net1")),
            ("a.web.net3", Some("net3"), Some("ovn.net3")),
            ("b.web", Some("eth0"), None),
        ] {
            let mut ids = vec![("iface-id", id)];
            ids.extend(ifname.map(|name| (IF_NAME, name)));
            assert_eq!(provider_of(&interface(&ids), &pod).as_deref(), provider, "{id}");
        }
        assert_eq!(provider_of(&interface(&[]), &pod), None);
    }

    #[test]
    fn a_machines_port_has_the_machines_name() {
        let mut pod = pod(&["ovn"]);
        pod.annotations.insert(crds::keys::VIRTUAL_MACHINE.into(), "vm".into());
        assert_eq!(provider_of(&interface(&[("iface-id", "vm.web")]), &pod).as_deref(), Some("ovn"));
    }

    #[test]
    fn a_successor_of_the_same_name_is_another_pod() {
        let objects = BTreeMap::from([(PodFacts::key("web", "a"), Arc::new(pod(&["ovn"])))]);
        let pods = Loaded { objects: Arc::new(objects), synced: true, denied: false };
        let ids = |uid| [("pod_namespace", "web"), ("pod_name", "a"), (POD_UID, uid)];
        assert!(pod_of(&interface(&ids("u1")), &pods).is_some());
        assert!(pod_of(&interface(&ids("u0")), &pods).is_none());
        assert!(pod_of(&interface(&ids("u1")[..2]), &pods).is_some(), "Kube-OVN wrote no UID");
    }
}
