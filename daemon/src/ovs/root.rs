//! Wishes for maps of the root row and of bridges, and the question whether the switch has acted. Pure, as [`super::plan`],
//! which hands them on.

use std::collections::BTreeMap;

use ovsdb::{Atom, AtomMap, Mutator, Operation};

use super::plan::{PlanError, differing_keys};
use super::view::View;

/// Sets keys of `Open_vSwitch:external_ids`.
///
/// # Errors
/// Without a root row.
pub fn set_root_external_ids(
    view: &View,
    wanted: &BTreeMap<String, String>,
) -> Result<Vec<Operation>, PlanError> {
    let root = view.root().ok_or(PlanError::NoRoot)?;
    let change = differing_keys(root, "external_ids", wanted);
    Ok(change
        .map(|pairs| {
            Operation::mutate("Open_vSwitch").by_uuid(root.uuid).set_map("external_ids", pairs).build()
        })
        .into_iter()
        .collect())
}

/// Changes keys of `Open_vSwitch:external_ids` by what they are now (`None` takes one away), and only if nobody changed
/// any meanwhile: the transaction fails then.
///
/// # Errors
/// Without a root row.
pub fn edit_root_external_ids(
    view: &View,
    edit: impl Fn(&dyn Fn(&str) -> Option<String>) -> Vec<(String, Option<String>)>,
) -> Result<Vec<Operation>, PlanError> {
    let root = view.root().ok_or(PlanError::NoRoot)?;
    let now = |key: &str| root.map_get("external_ids", key).map(str::to_owned);
    let mut edits = edit(&now);
    edits.retain(|(key, value)| now(key) != *value);
    if edits.is_empty() {
        return Ok(Vec::new());
    }
    let mut operations = Vec::new();
    if let Some(all) = root.get("external_ids") {
        let unchanged = Operation::wait("Open_vSwitch").by_uuid(root.uuid);
        operations.push(unchanged.column_equals("external_ids", all.clone()).timeout(0).build());
    }
    let (set, gone): (Vec<_>, Vec<_>) = edits.into_iter().partition(|(_, value)| value.is_some());
    let row = Operation::mutate("Open_vSwitch").by_uuid(root.uuid);
    if !set.is_empty() {
        let pairs: AtomMap = set
            .into_iter()
            .filter_map(|(key, value)| Some((Atom::from(key.as_str()), Atom::from(value?.as_str()))))
            .collect();
        operations.push(row.clone().set_map("external_ids", pairs).build());
    }
    if !gone.is_empty() {
        let keys = gone.iter().map(|(key, _)| key.as_str());
        operations.push(row.delete_map_keys("external_ids", keys).build());
    }
    Ok(operations)
}

/// A wish with [`ask_for_applying`] in it, if there is anything to do.
///
/// # Errors
/// Those of the wish.
pub fn and_apply(
    view: &View,
    wish: impl FnOnce(&View) -> Result<Vec<Operation>, PlanError>,
) -> Result<Vec<Operation>, PlanError> {
    let mut operations = wish(view)?;
    if !operations.is_empty() {
        operations.extend(ask_for_applying(view));
    }
    Ok(operations)
}

/// Asks ovs-vswitchd to tell, by `cur_cfg`, when it has acted on the transaction that this is part of.
pub fn ask_for_applying(view: &View) -> Option<Operation> {
    let root = view.root()?;
    Some(
        Operation::mutate("Open_vSwitch").by_uuid(root.uuid).mutation("next_cfg", Mutator::Add, 1i64).build(),
    )
}

/// Takes keys of `Open_vSwitch:external_ids` away.
///
/// # Errors
/// Without a root row.
pub fn delete_root_external_ids(view: &View, keys: &[&str]) -> Result<Vec<Operation>, PlanError> {
    let root = view.root().ok_or(PlanError::NoRoot)?;
    let there: Vec<&str> =
        keys.iter().copied().filter(|key| root.map_get("external_ids", key).is_some()).collect();
    if there.is_empty() {
        return Ok(Vec::new());
    }
    Ok(vec![
        Operation::mutate("Open_vSwitch").by_uuid(root.uuid).delete_map_keys("external_ids", there).build(),
    ])
}

/// Takes keys of a bridge's external ids away; of a missing one there are none.
pub fn forget_bridge_ids(view: &View, name: &str, keys: &[&str]) -> Vec<Operation> {
    let Some(bridge) = view.bridge(name) else { return Vec::new() };
    let there = keys.iter().copied().filter(|key| bridge.map_get("external_ids", key).is_some());
    let there: Vec<&str> = there.collect();
    if there.is_empty() {
        return Vec::new();
    }
    vec![Operation::mutate("Bridge").by_uuid(bridge.uuid).delete_map_keys("external_ids", there).build()]
}
