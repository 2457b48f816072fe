//! The mirror `m0` of `br-int` (node contract §2.9): traffic of all ports, or of the pods that ask for it, is copied to
//! an internal port.
//!
//! In: a view, the output port, what is wanted. Out: operations, none if it is so already. Only `m0` is touched, mirrors
//! of others stay; members of `m0` that are no pods' ports are somebody's wish and stay too.

use std::collections::BTreeSet;

use ovsdb::{Operation, Uuid, Value};

use super::plan::PlanError;
use super::view::View;

/// Name of the mirror.
pub const NAME: &str = "m0";

/// What is mirrored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection<'a> {
    /// Everything on the bridge.
    All,
    /// What goes to these ports, by name; others of the second set are not to be members.
    Towards {
        /// Members.
        members: &'a BTreeSet<String>,
        /// Ports whose membership is ours to decide.
        managed: &'a BTreeSet<String>,
    },
}

/// Makes the mirror as wanted. The output port has to exist.
///
/// # Errors
/// Without the bridge. Without the output port there is nothing to do yet.
pub fn ensure(
    view: &View,
    bridge: &str,
    output: &str,
    selection: &Selection<'_>,
) -> Result<Vec<Operation>, PlanError> {
    let row = view.bridge(bridge).ok_or_else(|| PlanError::NoBridge(bridge.to_owned()))?;
    let Some(output) = view.port(output).map(|port| port.uuid) else { return Ok(Vec::new()) };
    let on_bridge: BTreeSet<Uuid> = row.get("mirrors").into_iter().flat_map(Value::set_uuids).collect();
    let named = |uuid: &&Uuid| view.mirror(uuid).is_some_and(|mirror| mirror.str("name") == Some(NAME));
    let uuid_of = |name: &String| view.port(name).map(|port| port.uuid);
    let mut mirrors = on_bridge.iter().filter(named);
    let Some(mirror) = mirrors.next().and_then(|uuid| view.mirror(uuid)) else {
        let uuid = Uuid::new_v4();
        let mut insert = Operation::insert("Mirror")
            .uuid(uuid)
            .column("name", NAME)
            .column("output_port", Value::uuids([output]))
            .column("select_all", Value::boolean(*selection == Selection::All));
        if let Selection::Towards { members, .. } = selection {
            insert = insert.column("select_dst_port", Value::uuids(members.iter().filter_map(uuid_of)));
        }
        return Ok(vec![
            insert.build(),
            Operation::mutate("Bridge").by_uuid(row.uuid).insert_set("mirrors", Value::uuids([uuid])).build(),
        ]);
    };
    let mut operations = Vec::new();
    // Of several of our name, one is enough (K171).
    let extra: Vec<Uuid> = mirrors.copied().collect();
    if !extra.is_empty() {
        operations.push(
            Operation::mutate("Bridge").by_uuid(row.uuid).delete_set("mirrors", Value::uuids(extra)).build(),
        );
    }
    let mut columns = vec![
        ("output_port", Value::uuids([output])),
        ("select_all", Value::boolean(*selection == Selection::All)),
    ];
    columns.retain(|(column, value)| mirror.get(column) != Some(value));
    if !columns.is_empty() {
        operations.push(Operation::update("Mirror").by_uuid(mirror.uuid).columns(columns).build());
    }
    if let Selection::Towards { members, managed } = selection {
        let present: BTreeSet<Uuid> =
            mirror.get("select_dst_port").into_iter().flat_map(Value::set_uuids).collect();
        let wanted: BTreeSet<Uuid> = members.iter().filter_map(uuid_of).collect();
        let ours: BTreeSet<Uuid> = managed.iter().filter_map(uuid_of).collect();
        let come: Vec<Uuid> = wanted.difference(&present).copied().collect();
        let go: Vec<Uuid> =
            present.iter().filter(|uuid| ours.contains(uuid) && !wanted.contains(uuid)).copied().collect();
        let row = Operation::mutate("Mirror").by_uuid(mirror.uuid);
        if !come.is_empty() {
            operations.push(row.clone().insert_set("select_dst_port", Value::uuids(come)).build());
        }
        if !go.is_empty() {
            operations.push(row.delete_set("select_dst_port", Value::uuids(go)).build());
        }
    }
    Ok(operations)
}

/// Takes the mirror away that copies to `output`; a mirror of that name with another output is somebody else's.
pub fn remove(view: &View, bridge: &str, output: &str) -> Vec<Operation> {
    let (Some(row), Some(output)) = (view.bridge(bridge), view.port(output).map(|port| port.uuid)) else {
        return Vec::new();
    };
    let ours: Vec<Uuid> = row
        .get("mirrors")
        .into_iter()
        .flat_map(Value::set_uuids)
        .filter(|uuid| {
            view.mirror(uuid).is_some_and(|mirror| {
                let copies = mirror.get("output_port").into_iter().flat_map(Value::set_uuids);
                mirror.str("name") == Some(NAME) && copies.into_iter().any(|port| port == output)
            })
        })
        .collect();
    if ours.is_empty() {
        return Vec::new();
    }
    vec![Operation::mutate("Bridge").by_uuid(row.uuid).delete_set("mirrors", Value::uuids(ours)).build()]
}

#[cfg(test)]
#[path = "mirror_tests.rs"]
mod tests;
