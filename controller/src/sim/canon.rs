//! What a cluster looks like to its users, without what differs between equal ones:
//! UUIDs, UIDs, versions, times; on demand with addresses and MACs named after their
//! owners, so that clusters are equal "given the leases".

use std::collections::BTreeMap;

use ovsdb::{Replica, Row, Uuid, Value as Column};
use serde_json::Value;

use super::Bench;
use crate::commit::PARENT_COLUMNS;
use crate::facts::{Kind, ObjectRef};

/// Every row and object as text, by name.
pub(super) fn content(bench: &Bench, by_owner: bool) -> BTreeMap<String, String> {
    let owners = if by_owner { owners(bench) } else { BTreeMap::new() };
    let mut all = rows(&bench.db.replica());
    objects(bench, by_owner, &mut all);
    all.into_iter().map(|(name, text)| (renamed(&name, &owners), renamed(&text, &owners))).collect()
}

/// What differs, in words.
pub(super) fn differences(
    expected: &BTreeMap<String, String>,
    found: &BTreeMap<String, String>,
) -> Vec<String> {
    let mut out = Vec::new();
    for name in expected.keys().chain(found.keys()).collect::<std::collections::BTreeSet<_>>() {
        match (expected.get(name), found.get(name)) {
            (Some(a), Some(b)) if a == b => {}
            (a, b) => out.push(format!("{name}\n  expected {a:?}\n  found    {b:?}")),
        }
    }
    out
}

/// Addresses and MACs with the name of the port that has them.
fn owners(bench: &Bench) -> BTreeMap<String, String> {
    let mut owners = BTreeMap::new();
    for object in bench.api.names(Kind::Ip) {
        let spec = &bench.api.get(&object).unwrap()["spec"];
        for field in ["v4IpAddress", "v6IpAddress", "macAddress"] {
            if let Some(text) = spec[field].as_str().filter(|text| !text.is_empty()) {
                owners.insert(text.to_owned(), format!("<{field} of {}>", object.name));
            }
        }
    }
    let replica = bench.db.replica();
    for row in replica.table("Logical_Router_Port").into_iter().flat_map(ovsdb::Table::rows) {
        let (name, mac) = (row.str("name").unwrap(), row.str("mac").unwrap());
        owners.insert(mac.to_owned(), format!("<mac of {name}>"));
    }
    owners
}

fn renamed(text: &str, owners: &BTreeMap<String, String>) -> String {
    if owners.is_empty() {
        return text.to_owned();
    }
    let part = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == ':';
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(part) {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        let end = rest.find(|c| !part(c)).unwrap_or(rest.len());
        // A sentence's end is no part of an address.
        let word = rest[..end].trim_end_matches(['.', ':']);
        out.push_str(owners.get(word).map_or(word, String::as_str));
        out.push_str(&rest[word.len()..end]);
        rest = &rest[end..];
    }
    out + rest
}

fn rows(replica: &Replica) -> BTreeMap<String, String> {
    let mut parents: BTreeMap<Uuid, Uuid> = BTreeMap::new();
    for (table, column, _) in PARENT_COLUMNS {
        for row in replica.table(table.name()).into_iter().flat_map(ovsdb::Table::rows) {
            parents.extend(
                row.get(column).into_iter().flat_map(Column::set_uuids).map(|child| (child, row.uuid)),
            );
        }
    }
    let mut names: BTreeMap<Uuid, String> = BTreeMap::new();
    // Parents have names; children without one are named after parent and content.
    for named in [true, false] {
        for row in replica.tables().flat_map(ovsdb::Table::rows) {
            if row.str("name").is_some() == named {
                let name = if named {
                    row.str("name").unwrap().to_owned()
                } else {
                    described(row, &parents, &names)
                };
                names.insert(row.uuid, format!("{} {name}", row.table()));
            }
        }
    }
    let mut all = BTreeMap::new();
    for row in replica.tables().flat_map(ovsdb::Table::rows) {
        let columns = row.columns().map(|(column, value)| {
            let mut elements: Vec<String> = match value.as_set() {
                Some(set) => set
                    .iter()
                    .map(|atom| match atom.as_uuid() {
                        Some(uuid) => names.get(&uuid).cloned().unwrap_or_else(|| "dangling".into()),
                        None => format!("{atom:?}"),
                    })
                    .collect(),
                None => {
                    let pairs = value.map_strings().filter(|(key, _)| *key != crate::commit::EPOCH_KEY);
                    let pairs: Vec<String> = pairs.map(|(key, value)| format!("{key}={value}")).collect();
                    if pairs.is_empty() && value.as_map().is_none() {
                        vec![format!("{value:?}")]
                    } else {
                        pairs
                    }
                }
            };
            elements.sort();
            format!("{column}={}", elements.join(","))
        });
        let mut name = names[&row.uuid].clone();
        // Two of one name would hide each other.
        while all.contains_key(&name) {
            name.push('+');
        }
        all.insert(name, columns.collect::<Vec<_>>().join(" "));
    }
    all
}

fn described(row: &Row, parents: &BTreeMap<Uuid, Uuid>, names: &BTreeMap<Uuid, String>) -> String {
    let holder = parents.get(&row.uuid).and_then(|uuid| names.get(uuid)).map_or("", String::as_str);
    let texts = ["route_table", "policy", "ip_prefix", "nexthop", "priority", "match", "direction", "cidr"];
    let parts = texts.iter().filter_map(|column| row.get(column)).map(|value| format!("{value:?}"));
    format!("of {holder}: {}", parts.collect::<Vec<_>>().join(" "))
}

fn objects(bench: &Bench, by_owner: bool, all: &mut BTreeMap<String, String>) {
    let kinds = crate::world::NEEDED;
    for object in kinds.into_iter().flat_map(|kind| bench.api.names(kind)) {
        let mut value = bench.api.get(&object).unwrap().clone();
        strip(&object, &mut value, by_owner);
        all.insert(object.to_string(), value.to_string());
    }
}

fn strip(object: &ObjectRef, value: &mut Value, by_owner: bool) {
    let metadata = value["metadata"].as_object_mut().unwrap();
    for field in ["name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp"] {
        metadata.remove(field);
    }
    for owner in value["metadata"]["ownerReferences"].as_array_mut().into_iter().flatten() {
        owner.as_object_mut().unwrap().remove("uid");
    }
    if value["metadata"]["ownerReferences"].is_null() {
        value["metadata"].as_object_mut().unwrap().remove("ownerReferences");
    }
    let conditions = value["status"]["conditions"].as_array_mut();
    for condition in conditions.into_iter().flatten() {
        let fields = condition.as_object_mut().unwrap();
        for field in ["lastUpdateTime", "lastTransitionTime", "observedGeneration"] {
            fields.remove(field);
        }
        // An empty text and none are the same.
        fields.retain(|_, value| value != "");
    }
    if let Some(list) = value["status"]["conditions"].as_array_mut() {
        list.sort_by_key(|condition| condition["type"].to_string());
    }
    // Ranges depend on which addresses are in use, counts do not.
    if by_owner
        && object.kind == Kind::Subnet
        && let Some(status) = value["status"].as_object_mut()
    {
        status.retain(|field, _| !field.ends_with("range"));
    }
    if value["status"].is_null() {
        value.as_object_mut().unwrap().remove("status");
    }
}
