//! Holds `docs/controller-checks.md` to the code: every test that it names exists, and every
//! field, key, event and defect of the contract that it is about has a row.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../tests/pages/mod.rs"]
mod pages;

use std::path::Path;

use serde_json::Value;

/// Kinds whose fields all have rows.
const KINDS: [&str; 5] = ["Subnet", "IP", "IPPool", "Vpc", "Vip"];

/// `Kind.field` of the specs and `Kind.status.field` of the statuses.
fn fields() -> Vec<String> {
    let mut all = Vec::new();
    for definition in crds::schema::all() {
        let kind = definition.info.kind;
        if !KINDS.contains(&kind) {
            continue;
        }
        let names = |schema: Value| -> Vec<String> {
            schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect()
        };
        all.extend(names(definition.spec.to_json()).into_iter().map(|field| format!("{kind}.{field}")));
        let status = definition.status.map(|status| names(status.to_json())).unwrap_or_default();
        all.extend(status.into_iter().map(|field| format!("{kind}.status.{field}")));
    }
    all
}

#[test]
fn every_check_of_the_table_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let folders = [
        "controller/src",
        "secure/src",
        "controller/tests",
        "controller/benches",
        "crds/src",
        "ovsdb/src",
        "ovsdb/tests",
        "cli/src",
        "daemon/src",
        "daemon/tests",
        "tests/e2e/src",
        "tests/e2e/tests",
    ];
    let pains = [
        "01", "02", "04", "06", "07", "08", "10", "11", "13", "14", "16", "17", "25", "26", "27", "28", "30",
    ];
    let pains = pains.into_iter().chain(["48", "54", "67"]).map(|id| format!("U{id}"));
    let galaxy = [3, 5, 6].into_iter().chain(20..=27).map(|id| format!("GI-{id:02}")).chain(["C94".into()]);
    let sections = [
        "§1", "§2.1", "§2.2", "§2.3", "§2.5", "§2.6", "§3.1", "§3.2", "§3.3", "§3.4", "§3.5", "§3.6", "§3.7",
        "§4", "§4.1", "§4.2", "§4.3", "§4.4", "§4.6", "§4.7", "§4.8", "§4.9", "§4.10", "§5.1", "§5.2",
        "§5.3", "§5.5", "§6.5", "§8.4", "§8.7", "§8.9", "§10",
    ];
    let keys = crds::keys::ALL.iter().map(|key| key.trim_start_matches("ovn.kubernetes.io/").to_owned());
    let events = controller::events::CONTRACT_REASONS.iter().map(|reason| (*reason).to_owned());
    let list = fields()
        .into_iter()
        .chain(pains)
        .chain(galaxy)
        .chain(sections.map(str::to_owned))
        .chain(keys)
        .chain(events);
    pages::Page::read(root, "docs/controller-checks.md").hold(root, &folders, list);
}
