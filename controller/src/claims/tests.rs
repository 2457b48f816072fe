//! Every row class of the contract, one by one.

use std::collections::BTreeMap;
use std::sync::Arc;

use ovsdb::Replica;

use super::legacy::{Class, Legacy};
use super::*;
use crate::compile::compile;
use crate::compile::tests::fake::{Cluster, Families, config};
use crate::facts::{Column, RowFact};

/// The row that holds this one.
fn parent(replica: &Replica, uuid: ovsdb::Uuid) -> Option<(Table, Arc<str>)> {
    crate::commit::PARENT_COLUMNS.into_iter().find_map(|(table, column, _)| {
        let rows = replica.table(table.name())?;
        let holder =
            rows.rows().find(|row| row.get(column).is_some_and(|v| v.set_uuids().any(|u| u == uuid)))?;
        Some((table, natural_key(table, holder, None)?))
    })
}

fn holder(parent: &Option<(Table, Arc<str>)>) -> Option<Holder<'_>> {
    parent.as_ref().map(|(table, name)| Holder { table: *table, name })
}

fn table(name: &str) -> Option<Table> {
    Table::ALL.into_iter().find(|table| table.name() == name)
}

#[test]
fn only_rows_of_our_classes_are_claimed() {
    let legacy = Legacy::new();
    let replica = legacy.replica();
    let config = config(Families::V4);
    for row in &legacy.rows {
        let stored = replica.row(row.table, &row.uuid).unwrap_or_else(|| panic!("{row:?} is gone"));
        let Some(table) = table(row.table) else {
            assert!(row.class == Class::Foreign, "{row:?}");
            continue;
        };
        // Unmarked: ours where what they belong to is stated. Sessions go with their port.
        if matches!(table, Table::Bfd | Table::GatewayChassis) {
            assert!(!claim(&config, table, stored, holder(&parent(&replica, row.uuid))), "{row:?}");
            continue;
        }
        let claimed = claim(&config, table, stored, holder(&parent(&replica, row.uuid)));
        let wanted = row.class != Class::Foreign && table != Table::NbGlobal;
        assert_eq!(claimed, wanted, "{row:?}");
    }
    for table in Table::ALL {
        let rows = replica.table(table.name()).unwrap().len();
        let listed = legacy.rows.iter().filter(|row| row.table == table.name()).count();
        assert_eq!(rows, listed, "{}", table.name());
    }
}

/// What units state about the worked example is what Kube-OVN left, row by row
/// and column by column: taking over writes nothing.
#[test]
fn what_units_state_is_what_kube_ovn_left() {
    let legacy = Legacy::new();
    let replica = legacy.replica();
    let mut cluster = Cluster::worked_example(Families::V4);
    cluster.add_more();
    let mut stated: BTreeMap<_, RowFact> = BTreeMap::new();
    for unit in cluster.units() {
        let facts = compile(&cluster, &unit);
        stated.extend(facts.rows.into_iter().map(|row| (row.row.clone(), row)));
    }
    for row in legacy.rows.iter().filter(|row| row.class == Class::Ours) {
        let table = table(row.table).expect("one of ours");
        let stored = replica.row(row.table, &row.uuid).expect("in the database");
        let held_by = parent(&replica, row.uuid);
        let key = natural_key(table, stored, holder(&held_by)).expect("has a key");
        let fact = stated.remove(&crate::facts::RowKey::new(table, key.clone()));
        let fact = fact.unwrap_or_else(|| panic!("{row:?} is not stated as {key}"));
        assert_eq!(
            fact.parent.as_ref().map(|(parent, _)| (parent.table, parent.key.clone())),
            held_by,
            "{row:?}"
        );
        for (name, column) in &fact.columns {
            let value = stored.get(name).unwrap_or_else(|| panic!("no column {name}"));
            let holds = match column {
                Column::Whole(wanted) => value == wanted,
                Column::Keys(wanted) => wanted.iter().all(|(k, v)| value.map_get(k) == Some(&**v)),
                Column::Initial(_) => true,
                Column::Refs(rows) => value.as_set().is_some_and(|set| set.len() == rows.len()),
                Column::Map(map) => map.keys.iter().all(|(k, v)| value.map_get(k) == Some(&**v)),
            };
            assert!(holds, "{row:?} column {name}: {value:?}, stated {column:?}");
        }
    }
    // What a private subnet has beside (D56).
    let more: Vec<String> = stated.keys().map(ToString::to_string).collect();
    assert_eq!(
        more,
        [
            "Address_Set weir_nodes_v4",
            "ACL Logical_Switch:sub1|to-lport|2|1001|outport == \"sub1-ovn-cluster\"",
            "ACL Logical_Switch:sub1|to-lport|2|3000|ip4.src == $weir_nodes_v4",
        ],
        "Kube-OVN has no such rows"
    );
}

/// A claim needs every part of the pattern: without any one of its marks a row of
/// ours is nobody's.
#[test]
fn rows_that_lost_a_mark_are_not_claimed() {
    let legacy = Legacy::new();
    let replica = legacy.replica();
    let config = config(Families::V4);
    let mut checked = 0;
    for row in legacy.rows.iter().filter(|row| row.class != Class::Foreign) {
        let Some(table) = table(row.table).filter(|table| *table != Table::NbGlobal) else { continue };
        // A policy without its other marks could be an entry of a Vpc's spec.
        let entry = |marks: &[String]| table == Table::Policy && marks.len() == 1;
        let stored = replica.row(row.table, &row.uuid).expect("in the database");
        let held_by = parent(&replica, row.uuid);
        let marks: Vec<String> =
            stored.get("external_ids").unwrap().map_strings().map(|(key, _)| key.to_owned()).collect();
        for mark in marks.clone() {
            let mut database = legacy.database.clone();
            let remove = ovsdb::Operation::mutate(row.table)
                .by_uuid(row.uuid)
                .delete_map_keys("external_ids", [mark.as_str()]);
            database.must(&[remove.build()]);
            let after = database.replica();
            let changed = after.row(row.table, &row.uuid).expect("still there");
            // Groups of nodes and ACLs had no vendor mark in older versions; ACLs of a private
            // subnet have no mark of the subnet.
            let node = changed.str("name").is_some_and(|name| name.starts_with("node."));
            let optional = (mark == "vendor" && (node || table == Table::Acl))
                || (mark == "subnet" && table == Table::Acl);
            let rest: Vec<String> = marks.iter().filter(|other| **other != mark).cloned().collect();
            let optional = optional || (mark != "vendor" && entry(&rest));
            assert_eq!(claim(&config, table, changed, holder(&held_by)), optional, "{row:?} without {mark}");
            checked += 1;
        }
        // Entries of specs may be on any router.
        let anywhere = held_by.is_none() || matches!(table, Table::Policy | Table::StaticRoute);
        let elsewhere = held_by.as_ref().map(|(table, _)| Holder { table: *table, name: "elsewhere" });
        assert!(!claim(&config, table, stored, elsewhere) || anywhere, "{row:?} elsewhere");
    }
    assert!(checked > 30, "{checked}");
}

#[test]
fn of_address_sets_those_of_nodes_are_ours_while_no_other_mark_is_on_them() {
    let mut database = ovsdb::testing::Database::new(ovsdb::testing::northbound());
    let mut claimed = |name: &str, marks: &[(&'static str, &'static str)]| {
        let uuid = ovsdb::Uuid::new_v5(&ovsdb::Uuid::NAMESPACE_OID, format!("{name} {marks:?}").as_bytes());
        let row = ovsdb::Operation::insert("Address_Set")
            .uuid(uuid)
            .column("name", ovsdb::Value::string(name))
            .column("external_ids", ovsdb::Value::string_map(marks.iter().copied()));
        database.must(&[row.build()]);
        let replica = database.replica();
        let claimed = claim(
            &config(Families::V4),
            Table::AddressSet,
            replica.row("Address_Set", &uuid).expect("made"),
            None,
        );
        database.must(&[ovsdb::Operation::delete("Address_Set").by_uuid(uuid).build()]);
        claimed
    };
    let vendor = ("vendor", "kube-ovn");
    assert!(claimed("weir_nodes_v4", &[vendor]) && claimed("weir_nodes_v6", &[vendor]));
    assert!(!claimed("weir_nodes_v4", &[]), "made by hand");
    assert!(!claimed("weir_nodes_v4", &[vendor, ("np", "a/b")]));
    assert!(!claimed("weir_nodes", &[vendor]));
}

#[test]
fn natural_keys() {
    let legacy = Legacy::new();
    let replica = legacy.replica();
    let key = |table: Table, what: &str| {
        let uuid = legacy.uuid(table.name(), what);
        let held_by = parent(&replica, uuid);
        natural_key(table, replica.row(table.name(), &uuid).unwrap(), holder(&held_by))
    };
    let route = key(Table::StaticRoute, "ovn-cluster learned").unwrap();
    assert_eq!(&*route, "ovn-cluster||dst-ip|10.99.0.0/16|169.254.100.2", "no policy means dst-ip");
    let policy = key(Table::Policy, "vpc-1 31000 ip4.dst == 10.18.0.0/16").unwrap();
    assert_eq!(&*policy, "vpc-1|31000|ip4.dst == 10.18.0.0/16");
    assert_eq!(key(Table::NbGlobal, "global").as_deref(), Some("."));
    let orphan = replica.table("Logical_Router_Policy").unwrap().rows().next().unwrap();
    assert_eq!(natural_key(Table::Policy, orphan, None), None);
}
