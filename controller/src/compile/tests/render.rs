//! Facts as text that people can read in a golden file.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::facts::{Column, Facts, Fields, Gone, Keep};

/// One line per row, column, membership and field, in the order stated.
pub(crate) fn render(facts: &Facts) -> String {
    let mut out = String::new();
    for row in &facts.rows {
        let _ = write!(out, "{}", row.row);
        if let Some((parent, column)) = &row.parent {
            let _ = write!(out, "  in {parent} {column}");
        }
        out.push('\n');
        for (name, column) in &row.columns {
            let _ = match column {
                Column::Whole(value) => writeln!(out, "    {name} = {value:?}"),
                Column::Keys(keys) => writeln!(out, "    {name} has {keys:?}"),
                Column::Initial(value) => writeln!(out, "    {name} at first {value:?}"),
                Column::Refs(rows) => writeln!(
                    out,
                    "    {name} refers to {:?}",
                    rows.iter().map(ToString::to_string).collect::<Vec<_>>()
                ),
                Column::Map(map) => {
                    let crate::facts::MapColumn { keys, initial, gone } = &**map;
                    let gone = match gone {
                        Gone::Keys(gone) => {
                            let gone = gone.iter().filter(|key| !keys.contains_key(key));
                            format!("Keys({:?})", gone.collect::<BTreeSet<_>>())
                        }
                        Gone::Others => "Others".to_owned(),
                    };
                    writeln!(out, "    {name} has {keys:?}, at first {initial:?}, without {gone}")
                }
            };
        }
    }
    for member in &facts.members {
        let _ = writeln!(out, "{} {} has {}", member.row, member.column, member.element);
    }
    for fact in &facts.kube {
        let uid = fact.uid.as_deref().unwrap_or("-");
        let _ = writeln!(out, "{} ({uid}) {:?}: {}", fact.object, fact.gate, fields(&fact.fields));
    }
    for event in &facts.events {
        let kind = if event.warning { "Warning" } else { "Normal" };
        let _ = writeln!(out, "event {} {kind} {}: {}", event.object, event.reason, event.message);
    }
    for keep in &facts.keeps {
        let _ = match keep {
            Keep::Row(row) => writeln!(out, "keep {row}"),
            Keep::Marked(table, key, value) => writeln!(out, "keep {} with {key}={value}", table.name()),
        };
    }
    out
}

fn fields(fields: &Fields) -> String {
    let lines = |pairs: &mut dyn Iterator<Item = (String, String)>| -> String {
        pairs.map(|(key, value)| format!("\n    {key}={value}")).collect()
    };
    match fields {
        Fields::Annotations(map) => {
            let pairs = map.iter().map(|(k, v)| (k.to_string(), format!("{:?}", v.as_deref())));
            format!("annotations{}", lines(&mut pairs.into_iter()))
        }
        Fields::AnnotationsOnce { marker, values } => {
            let pairs = values.iter().map(|(k, v)| (k.to_string(), format!("{v:?}")));
            format!("annotations until {marker}{}", lines(&mut pairs.into_iter()))
        }
        Fields::Labels(map) => format!("labels {map:?}"),
        Fields::Finalizer(on) => format!("finalizer {on}"),
        Fields::Status(map) => {
            format!("status{}", lines(&mut map.iter().map(|(k, v)| (k.to_string(), v.to_string()))))
        }
        Fields::Spec(map) => {
            format!("spec{}", lines(&mut map.iter().map(|(k, v)| (k.to_string(), v.to_string()))))
        }
        Fields::Condition { r#type, status, reason, message } => {
            format!("condition {}={status} {reason} {message:?}", r#type)
        }
        Fields::NodeConditions(nodes) => format!("conditions of nodes {nodes:?}"),
        Fields::Object(value) => format!("object {}", pretty(value)),
        Fields::Created(value) => format!("made once {}", pretty(value)),
        Fields::Absent => "absent".into(),
    }
}

fn pretty(value: &serde_json::Value) -> String {
    serde_json::to_string_pretty(value).unwrap().replace('\n', "\n    ")
}
