//! Chassis of the southbound database: which node each belongs to (contract §4.9),
//! and one chassis per node (`pain.md` U54).
//!
//! Flows in: nodes with the chassis that their agents announced, rows of table
//! `Chassis`. Flows out: one transaction that tags what is untagged and deletes what
//! a node left behind. Pure: [`plan`] is called again whenever either side changes,
//! [`session`] does the I/O.
//!
//! A chassis is deleted only when it is known to be nobody's: its tag names a node
//! that is gone, or its tag or host name is that of a node whose own chassis, another
//! one, is in the database. Everything else stays: chassis of other zones and vendors,
//! of hosts that are no nodes, of nodes that have not announced theirs yet.

pub mod session;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crds::keys::VENDOR;
use ovsdb::{Operation, Replica, Row, Value};

/// Table of chassis.
pub const TABLE: &str = "Chassis";
/// Table of what chassis report, a row of the same name each.
pub const PRIVATE: &str = "Chassis_Private";

/// A node as far as chassis are concerned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeChassis {
    /// UID.
    pub uid: Arc<str>,
    /// Annotation `ovn.kubernetes.io/chassis`, written by the node's agent.
    pub chassis: Option<Arc<str>>,
    /// Its addresses in the join subnet, comma separated; empty until given.
    pub join: Arc<str>,
}

/// All nodes by name.
pub type Nodes = BTreeMap<Arc<str>, NodeChassis>;

/// What has to be done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Chassis to be tagged, with their nodes.
    pub tags: Vec<(String, Arc<str>)>,
    /// Chassis to be deleted.
    pub removals: Vec<Removal>,
    /// Chassis that several nodes announced: the chassis, the node that has it, and
    /// one that does not.
    pub conflicts: BTreeSet<(Arc<str>, Arc<str>, Arc<str>)>,
}

/// A chassis to be deleted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Removal {
    /// Its name.
    pub chassis: String,
    /// Whose it was.
    pub node: Arc<str>,
    /// The node's chassis now; `None` when the node is gone.
    pub successor: Option<Arc<str>>,
}

impl Plan {
    /// Nothing to write.
    pub fn is_empty(&self) -> bool {
        self.tags.is_empty() && self.removals.is_empty()
    }

    /// The one transaction: northd computes everything anew after a change of a
    /// chassis' external_ids, so all of them change at once.
    pub fn operations(&self) -> Vec<Operation> {
        let tags = self.tags.iter().map(|(chassis, node)| {
            Operation::mutate(TABLE)
                .by("name", Value::string(&**chassis))
                .delete_map_keys("external_ids", ["vendor", "node"])
                .insert_map("external_ids", Value::string_map([("vendor", VENDOR), ("node", &**node)]))
                .build()
        });
        let removals = self.removals.iter().flat_map(|removal| {
            [TABLE, PRIVATE]
                .map(|table| Operation::delete(table).by("name", Value::string(&*removal.chassis)).build())
        });
        tags.chain(removals).collect()
    }
}

/// Not a chassis of this cluster: of another availability zone, or of another vendor.
fn foreign(row: &Row) -> bool {
    let remote = |column| row.map_get(column, "is-remote") == Some("true");
    remote("other_config")
        || remote("external_ids")
        || row.map_get("external_ids", "vendor").is_some_and(|vendor| vendor != VENDOR)
}

/// What has to change, given all nodes and all chassis.
pub fn plan(nodes: &Nodes, replica: &Replica) -> Plan {
    let mut plan = Plan::default();
    let Some(table) = replica.table(TABLE) else { return plan };
    let rows: BTreeMap<&str, &Row> =
        table.rows().filter_map(|row| Some((row.str("name")?, &**row))).collect();
    // Of several nodes with one chassis (a cloned disk) the first by name has it.
    let mut owners: BTreeMap<&str, &Arc<str>> = BTreeMap::new();
    for (node, at) in nodes {
        let Some(chassis) = &at.chassis else { continue };
        match owners.get(&**chassis) {
            None => {
                owners.insert(chassis, node);
            }
            Some(owner) => {
                plan.conflicts.insert((chassis.clone(), (*owner).clone(), node.clone()));
            }
        }
    }
    for (chassis, row) in rows.iter().filter(|(_, row)| !foreign(row)) {
        let id = |key: &str| row.map_get("external_ids", key);
        if let Some(node) = owners.get(chassis) {
            if id("vendor") != Some(VENDOR) || id("node") != Some(node) {
                plan.tags.push(((*chassis).to_owned(), (*node).clone()));
            }
            continue;
        }
        // Our own tag says whose it is; without one the host name may.
        let tagged = id("vendor").and(id("node"));
        let Some(name) = tagged.or(row.str("hostname")).filter(|name| !name.is_empty()) else { continue };
        let remove = |node: Arc<str>, successor| Removal { chassis: (*chassis).to_owned(), node, successor };
        match nodes.get_key_value(name) {
            Some((node, at)) => {
                // Only when the node's own one is there: which of two is right must be known.
                let own = at.chassis.clone().filter(|own| rows.contains_key(&**own));
                if let Some(own) = own.filter(|own| owners.get(&**own) == Some(&node)) {
                    plan.removals.push(remove(node.clone(), Some(own)));
                }
            }
            None if tagged.is_some() => plan.removals.push(remove(name.into(), None)),
            None => {}
        }
    }
    plan
}

/// How long a chassis that keeps coming back is left alone: its ovn-controller is
/// still running, and would otherwise be fought with at full speed.
#[derive(Debug, Default)]
pub struct Patience {
    removed: BTreeMap<String, (u32, u64)>,
}

/// First and longest time between two deletions of one chassis, milliseconds.
const PAUSE_MS: (u64, u64) = (1_000, 60_000);

impl Patience {
    /// Drops removals whose time has not come. Returns when the next one's comes.
    pub fn filter(&mut self, now_ms: u64, plan: &mut Plan) -> Option<u64> {
        let mut next: Option<u64> = None;
        plan.removals.retain(|removal| match self.removed.get(&removal.chassis) {
            Some((_, until)) if *until > now_ms => {
                next = Some(next.map_or(*until, |next: u64| next.min(*until)));
                false
            }
            _ => true,
        });
        next
    }

    /// These were deleted now.
    pub fn removed(&mut self, now_ms: u64, removals: &[Removal]) {
        // Long forgotten ones may be fought anew.
        self.removed.retain(|_, (_, until)| *until + PAUSE_MS.1 > now_ms);
        for removal in removals {
            let (times, until) = self.removed.entry(removal.chassis.clone()).or_default();
            *times += 1;
            *until = now_ms + PAUSE_MS.0.saturating_mul(1 << (*times - 1).min(6)).min(PAUSE_MS.1);
        }
    }
}

#[cfg(test)]
mod tests {
    use ovsdb::testing::{Database, SchemaBuilder, string};
    use rstest::rstest;

    use super::*;

    /// Name, host name, external_ids.
    type Chassis<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)]);

    fn database(rows: &[Chassis<'_>]) -> Database {
        let schema = SchemaBuilder::new("OVN_Southbound", "20.0.0")
            .table(TABLE, |table| {
                table
                    .root()
                    .unique(["name"])
                    .scalar("name", string())
                    .scalar("hostname", string())
                    .map("external_ids", string(), string())
                    .map("other_config", string(), string())
            })
            .table(PRIVATE, |table| table.root().unique(["name"]).scalar("name", string()))
            .build();
        let mut database = Database::new(schema);
        for (name, hostname, ids) in rows {
            let remote = ids.iter().filter(|(key, _)| *key == "is-remote").copied();
            let row = Operation::insert(TABLE)
                .column("name", Value::string(*name))
                .column("hostname", Value::string(*hostname))
                .column("external_ids", Value::string_map(ids.iter().copied()))
                .column("other_config", Value::string_map(remote))
                .build();
            let private = Operation::insert(PRIVATE).column("name", Value::string(*name)).build();
            database.must(&[row, private]);
        }
        database
    }

    fn nodes(all: &[(&str, &str)]) -> Nodes {
        let chassis = |text: &str| Some(Arc::from(text)).filter(|_| !text.is_empty());
        all.iter()
            .map(|(name, id)| {
                ((*name).into(), NodeChassis { uid: "u".into(), chassis: chassis(id), join: "".into() })
            })
            .collect()
    }

    const NONE: &[(&str, &str)] = &[];
    const OTHER: &[(&str, &str)] = &[("vendor", "other"), ("node", "n9")];
    const REMOTE: &[(&str, &str)] = &[("is-remote", "true")];
    const OURS: &[(&str, &str)] = &[("vendor", "kube-ovn"), ("node", "n1")];

    /// U54: what is deleted, and what is not.
    #[rstest]
    #[case::old_id_of_a_node_by_tag(&[("n1", "new")], &[("new", "n1", NONE), ("old", "x", OURS)], &["old"])]
    #[case::old_id_of_a_node_by_host_name(&[("n1", "new")], &[("new", "n1", NONE), ("old", "n1", NONE)], &["old"])]
    #[case::node_gone(&[("n2", "c2")], &[("c1", "n1", OURS), ("c2", "n2", NONE)], &["c1"])]
    #[case::new_one_not_there_yet(&[("n1", "new")], &[("old", "n1", OURS)], &[])]
    #[case::not_announced_yet(&[("n1", "")], &[("a", "n1", OURS), ("b", "n1", NONE)], &[])]
    #[case::host_that_is_no_node(&[("n1", "c1")], &[("c1", "n1", OURS), ("gw", "gateway-7", NONE)], &[])]
    #[case::other_vendor(&[("n1", "c1")], &[("c1", "n1", OURS), ("x", "n1", OTHER)], &[])]
    #[case::other_zone(&[("n1", "c1")], &[("c1", "n1", OURS), ("x", "n1", REMOTE)], &[])]
    #[case::host_name_differs(&[("n1", "c1")], &[("c1", "n1.example", NONE)], &[])]
    #[case::host_name_of_another_node(&[("n1", "c1"), ("n2", "c2")], &[("c1", "n2", NONE), ("c2", "n2", NONE)], &[])]
    fn u54_only_what_is_nobodys_goes(
        #[case] all: &[(&str, &str)],
        #[case] rows: &[Chassis<'_>],
        #[case] gone: &[&str],
    ) {
        let mut database = database(rows);
        let first = plan(&nodes(all), &database.replica());
        assert_eq!(first.removals.iter().map(|r| &*r.chassis).collect::<Vec<_>>(), gone);
        if !first.is_empty() {
            database.must(&first.operations());
        }
        let replica = database.replica();
        assert!(plan(&nodes(all), &replica).is_empty(), "done in one transaction");
        assert_eq!(replica.table(TABLE).unwrap().len(), rows.len() - gone.len());
        assert_eq!(replica.table(PRIVATE).unwrap().len(), rows.len() - gone.len());
    }

    #[test]
    fn tags_are_written_once_and_other_keys_stay() {
        let mut database = database(&[("c1", "n1", &[("mine", "1"), ("node", "wrong")]), ("c2", "n2", NONE)]);
        let all = nodes(&[("n1", "c1"), ("n2", "c2"), ("n3", "c3")]);
        let first = plan(&all, &database.replica());
        assert_eq!(first.tags.len(), 2);
        database.must(&first.operations());
        let replica = database.replica();
        let row = replica.table(TABLE).unwrap().find_one("name", &Value::string("c1")).unwrap().clone();
        let ids: Vec<_> = row.get("external_ids").unwrap().map_strings().collect();
        assert_eq!(ids, [("mine", "1"), ("node", "n1"), ("vendor", "kube-ovn")]);
        assert!(plan(&all, &replica).is_empty());
    }

    #[test]
    fn one_chassis_of_two_nodes_is_told_and_left_to_the_first() {
        let database = database(&[("c1", "n2", NONE)]);
        let found = plan(&nodes(&[("n1", "c1"), ("n2", "c1")]), &database.replica());
        assert_eq!(found.tags, [("c1".to_owned(), "n1".into())]);
        assert_eq!(found.conflicts, [("c1".into(), "n1".into(), "n2".into())].into());
        assert!(found.removals.is_empty());
    }

    #[test]
    fn a_chassis_that_comes_back_is_fought_patiently() {
        let mut patience = Patience::default();
        let removal = Removal { chassis: "old".into(), node: "n1".into(), successor: Some("new".into()) };
        let due = |patience: &mut Patience, now| {
            let mut plan = Plan { removals: vec![removal.clone()], ..Plan::default() };
            let next = patience.filter(now, &mut plan);
            (plan.removals.len(), next)
        };
        assert_eq!(due(&mut patience, 0), (1, None));
        let mut now = 0;
        let mut times = 0;
        while now < 300_000 {
            match due(&mut patience, now) {
                (1, _) => {
                    patience.removed(now, std::slice::from_ref(&removal));
                    times += 1;
                    now += 1;
                }
                (_, next) => now = next.unwrap(),
            }
        }
        assert_eq!(times, 10, "1, 2, 4 … 60 seconds apart");
    }
}
