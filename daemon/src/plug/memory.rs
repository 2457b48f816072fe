//! What the agent remembers of pods' ports, so that one that somebody takes out of the switch, or whose marks somebody
//! changes, can be told from one that we removed.
//!
//! In: views of the switch, and our own removals. Out: ports that somebody else touched, with the call that made them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use cni::api::{CniRequest, PLUGIN_TYPE};

use super::{CONTAINER_ID, IF_NAME, NETWORK, POD_UID, PROVIDER, ROUTES};
use crate::ovs::{Interface, PortSpec, View};

/// External ids that are ours to set.
const MARKS: [&str; 13] = [
    "iface-id",
    "vendor",
    "pod_name",
    "pod_namespace",
    "pod_netns",
    "ip",
    "encap-ip",
    POD_UID,
    PROVIDER,
    CONTAINER_ID,
    IF_NAME,
    NETWORK,
    ROUTES,
];

/// What we did ourselves since the last look.
#[derive(Debug, Default)]
pub struct Own(Mutex<Doings>);

#[derive(Debug, Default)]
struct Doings {
    removed: BTreeSet<String>,
    made: BTreeMap<String, Seen>,
}

impl Own {
    fn doings(&self) -> std::sync::MutexGuard<'_, Doings> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// We are about to remove a port.
    pub(super) fn removes(&self, port: &str) {
        let mut doings = self.doings();
        doings.made.remove(port);
        doings.removed.insert(port.to_owned());
    }

    /// We make a port (again).
    pub(super) fn makes(&self, port: &str) {
        self.doings().removed.remove(port);
    }

    /// A pod has its port: it is known from now on, also if somebody removes or changes it before it was looked at.
    pub(super) fn made(&self, spec: &PortSpec, request: &CniRequest) {
        let marks = MARKS.iter().map(|key| spec.external_ids.get(*key).cloned()).collect();
        let seen = Seen { request: request.clone(), internal: spec.kind == "internal", marks };
        self.doings().made.insert(spec.name.clone(), seen);
    }

    pub(super) fn has_removed(&self, port: &str) -> bool {
        self.doings().removed.contains(port)
    }
}

/// The call that made a port, as far as the row tells. `None`: a port that
/// Weir has not made.
pub(super) fn request_of(interface: &Interface) -> Option<CniRequest> {
    request_from(|key| interface.external_id(key).map(str::to_owned))
}

/// The same from the row's external ids.
pub(super) fn request_from(id: impl Fn(&str) -> Option<String>) -> Option<CniRequest> {
    Some(CniRequest {
        cni_type: PLUGIN_TYPE.to_owned(),
        pod_name: id("pod_name")?,
        pod_namespace: id("pod_namespace")?,
        container_id: id(CONTAINER_ID)?,
        if_name: id(IF_NAME)?,
        net_ns: id("pod_netns")?,
        provider: id(PROVIDER)?,
        network: id(NETWORK).unwrap_or_default(),
        routes: id(ROUTES).and_then(|json| serde_json::from_str(&json).ok()).unwrap_or_default(),
        pod_uid: id(POD_UID).unwrap_or_default(),
        ..CniRequest::default()
    })
}

/// A port as it was last seen.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    /// The call that made it.
    pub(super) request: CniRequest,
    /// The device is made by ovs-vswitchd.
    pub(super) internal: bool,
    marks: Vec<Option<String>>,
}

fn marks(interface: &Interface) -> Vec<Option<String>> {
    MARKS.iter().map(|key| interface.external_id(key).map(str::to_owned)).collect()
}

/// Pods' ports as they were last seen.
#[derive(Debug, Default)]
pub struct Memory(BTreeMap<String, Seen>);

impl Memory {
    /// Takes a view in. Returns ports that are gone without our doing, and ports whose marks differ from before; what
    /// has to become of them is for the caller to find out.
    pub(super) fn look(&mut self, view: &View, own: &Own) -> BTreeMap<String, Seen> {
        let mut touched = BTreeMap::new();
        let mut now = BTreeMap::new();
        let made = std::mem::take(&mut own.doings().made);
        self.0.extend(made);
        for interface in view.interfaces() {
            let Some(before) = self.0.get(interface.name()) else {
                if let Some(request) = request_of(&interface).filter(|_| interface.is_pod_port()) {
                    let internal = interface.kind() == "internal";
                    let seen = Seen { request, internal, marks: marks(&interface) };
                    now.insert(interface.name().to_owned(), seen);
                }
                continue;
            };
            let mut seen = before.clone();
            let same =
                before.marks.iter().zip(MARKS).all(|(was, key)| was.as_deref() == interface.external_id(key));
            if !same {
                touched.insert(interface.name().to_owned(), before.clone());
                seen.marks = marks(&interface);
                // A call of ours that makes it otherwise leaves a whole row behind.
                seen.request = request_of(&interface).unwrap_or(seen.request);
            }
            now.insert(interface.name().to_owned(), seen);
        }
        for (name, seen) in &self.0 {
            if !now.contains_key(name) && !own.has_removed(name) {
                touched.insert(name.clone(), seen.clone());
            }
        }
        own.doings().removed.retain(|name| now.contains_key(name));
        self.0 = now;
        touched
    }

    /// What was told of could not be mended: the next look tells it again.
    pub(super) fn put_back(&mut self, port: &str, seen: Seen) {
        self.0.insert(port.to_owned(), seen);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ovsdb::testing::{Database, SchemaBuilder, string};
    use ovsdb::{Operation, Value};

    fn database() -> Database {
        let schema = SchemaBuilder::new("Open_vSwitch", "8.8.0")
            .table("Interface", |t| {
                t.root().unique(["name"]).scalar("name", string()).scalar("type", string()).map(
                    "external_ids",
                    string(),
                    string(),
                )
            })
            .build();
        Database::new(schema)
    }

    fn insert(database: &mut Database, name: &str, extra: &[(&str, &str)]) {
        let ids = [
            ("iface-id", "a.web"),
            ("vendor", "kube-ovn"),
            ("pod_name", "a"),
            ("pod_namespace", "web"),
            ("pod_netns", "/n"),
            (CONTAINER_ID, "c"),
            (IF_NAME, "eth0"),
            (PROVIDER, "ovn"),
        ];
        let ids = Value::string_map(ids.into_iter().chain(extra.iter().copied()));
        database
            .must(&[Operation::insert("Interface").column("name", name).column("external_ids", ids).build()]);
    }

    fn delete(database: &mut Database, name: &str) {
        let view = View::new(database.replica());
        let uuid = view.interface(name).unwrap().uuid();
        database.must(&[Operation::delete("Interface").by_uuid(uuid).build()]);
    }

    #[test]
    fn what_others_take_away_is_told_and_what_we_take_is_not() {
        let (mut database, own, mut memory) = (database(), Own::default(), Memory::default());
        let look = |memory: &mut Memory, database: &Database| {
            let touched = memory.look(&View::new(database.replica()), &own);
            touched.into_keys().collect::<Vec<_>>()
        };
        insert(&mut database, "a_h", &[]);
        insert(&mut database, "b_h", &[]);
        assert!(look(&mut memory, &database).is_empty());
        assert!(look(&mut memory, &database).is_empty(), "nothing happened");
        own.removes("a_h");
        delete(&mut database, "a_h");
        delete(&mut database, "b_h");
        assert_eq!(look(&mut memory, &database), ["b_h"]);
        assert!(!own.has_removed("a_h"), "a removal is forgotten once it was seen");
        assert!(look(&mut memory, &database).is_empty(), "it is told once");
        // One that we made goes before anybody has looked.
        let request = CniRequest { container_id: "d".into(), ..CniRequest::default() };
        let ids = std::collections::BTreeMap::from([("iface-id".to_owned(), "d.web".to_owned())]);
        let spec = PortSpec { name: "d_h".into(), external_ids: ids, ..PortSpec::default() };
        own.made(&spec, &request);
        assert_eq!(look(&mut memory, &database), ["d_h"]);
        own.made(&spec, &request);
        own.removes("d_h");
        assert!(look(&mut memory, &database).is_empty(), "we removed it");
        // Or is changed before.
        own.made(&spec, &request);
        database.must(&[Operation::insert("Interface").column("name", "d_h").build()]);
        assert_eq!(look(&mut memory, &database), ["d_h"]);
        assert!(look(&mut memory, &database).is_empty(), "it is told once");
        insert(&mut database, "c_h", &[]);
        look(&mut memory, &database);
        delete(&mut database, "c_h");
        let seen = memory.look(&View::new(database.replica()), &own).remove("c_h").unwrap();
        memory.put_back("c_h", seen);
        assert_eq!(look(&mut memory, &database), ["c_h"], "what failed is tried again");
    }

    #[test]
    fn changed_marks_are_told_and_the_switchs_own_are_not() {
        let (mut database, own, mut memory) = (database(), Own::default(), Memory::default());
        insert(&mut database, "a_h", &[]);
        memory.look(&View::new(database.replica()), &own);
        delete(&mut database, "a_h");
        insert(&mut database, "a_h", &[("ovn-installed", "true")]);
        assert!(memory.look(&View::new(database.replica()), &own).is_empty());
        delete(&mut database, "a_h");
        insert(&mut database, "a_h", &[("iface-id", "other")]);
        let touched = memory.look(&View::new(database.replica()), &own);
        assert_eq!(touched["a_h"].request.container_id, "c");
        // A row that lost all its marks is still known.
        delete(&mut database, "a_h");
        database.must(&[Operation::insert("Interface").column("name", "a_h").build()]);
        assert_eq!(memory.look(&View::new(database.replica()), &own).len(), 1);
    }
}
