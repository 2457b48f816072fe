//! The northbound database as text: rows by name, references by name, columns
//! that hold their default left out.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ovsdb::{Replica, Row, Uuid, Value};

fn label(row: &Row) -> String {
    let text = |column: &str| row.str(column).unwrap_or_default().to_owned();
    match &**row.table() {
        "Logical_Router_Policy" => format!("{} {}", row.i64("priority").unwrap_or_default(), text("match")),
        "Logical_Router_Static_Route" => format!("{} via {}", text("ip_prefix"), text("nexthop")),
        "ACL" => format!("{} {}", row.i64("priority").unwrap_or_default(), text("match")),
        "BFD" => format!("{} {}", text("logical_port"), text("dst_ip")),
        "NB_Global" => ".".into(),
        _ => text("name"),
    }
}

/// Everything in the database.
pub(super) fn render(replica: &Replica) -> String {
    let mut names: BTreeMap<Uuid, String> = BTreeMap::new();
    for table in replica.tables() {
        names.extend(table.rows().map(|row| (row.uuid, label(row))));
    }
    let mut out = String::new();
    for table in replica.tables() {
        let mut rows: Vec<_> = table.rows().collect();
        rows.sort_by_key(|row| label(row));
        for row in rows {
            let _ = writeln!(out, "{} {}", table.name(), label(row));
            for (column, value) in row.columns() {
                let default =
                    value.is_empty() || matches!(value.as_str(), Some("")) || value.as_i64() == Some(0);
                if !default && &**column != "name" {
                    let _ = writeln!(out, "    {column} = {}", show(value, &names));
                }
            }
        }
    }
    out
}

fn show(value: &Value, names: &BTreeMap<Uuid, String>) -> String {
    let mut references: Vec<&str> =
        value.set_uuids().filter_map(|uuid| names.get(&uuid)).map(String::as_str).collect();
    if references.is_empty() {
        return format!("{value:?}");
    }
    references.sort_unstable();
    format!("{references:?}")
}
