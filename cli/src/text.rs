//! JSON for people: nested by indentation, lists of like objects as tables.

use serde_json::{Map, Value};

/// The value as text that ends with a newline.
pub(crate) fn render(value: &Value) -> String {
    let mut out = String::new();
    write(value, 0, &mut out);
    out
}

fn indent(depth: usize, out: &mut String) {
    out.extend(std::iter::repeat_n("  ", depth));
}

fn write(value: &Value, depth: usize, out: &mut String) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, value)| write_field(key, value, depth, out)),
        Value::Array(items) => match columns(items) {
            Some(columns) => write_table(items, &columns, depth, out),
            None => items.iter().for_each(|item| write_item(item, depth, out)),
        },
        scalar => {
            indent(depth, out);
            out.push_str(&cell(scalar));
            out.push('\n');
        }
    }
}

fn write_field(key: &str, value: &Value, depth: usize, out: &mut String) {
    indent(depth, out);
    out.push_str(key);
    out.push(':');
    if is_short(value) {
        out.push(' ');
        out.push_str(&cell(value));
        out.push('\n');
    } else {
        out.push('\n');
        write(value, depth + 1, out);
    }
}

/// An item of a list that is no table: its first line is marked.
fn write_item(item: &Value, depth: usize, out: &mut String) {
    indent(depth, out);
    out.push_str("- ");
    if is_short(item) {
        out.push_str(&cell(item));
        out.push('\n');
    } else {
        let mut text = String::new();
        write(item, depth + 1, &mut text);
        out.push_str(text.trim_start());
    }
}

/// Fits on the line of its key: scalars, empty collections, lists of scalars.
fn is_short(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.iter().all(|item| !item.is_object() && !item.is_array()),
        _ => true,
    }
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) if text.is_empty() => "\"\"".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) if items.is_empty() => "none".to_owned(),
        Value::Object(fields) if fields.is_empty() => "none".to_owned(),
        Value::Array(items) => items.iter().map(cell).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

/// Columns of a list that makes a table: at least two objects with short values only.
fn columns(items: &[Value]) -> Option<Vec<&str>> {
    let objects: Option<Vec<&Map<String, Value>>> = items.iter().map(Value::as_object).collect();
    let objects = objects.filter(|objects| objects.len() > 1)?;
    let mut columns: Vec<&str> = Vec::new();
    for (key, value) in objects.iter().flat_map(|object| object.iter()) {
        if !is_short(value) {
            return None;
        }
        if !columns.contains(&key.as_str()) {
            columns.push(key);
        }
    }
    // What a row is about comes first.
    columns.sort_by_key(|column| !matches!(*column, "kind" | "name" | "row"));
    Some(columns)
}

fn write_table(items: &[Value], columns: &[&str], depth: usize, out: &mut String) {
    let head = columns.iter().map(|column| column.to_uppercase()).collect();
    let rows = items.iter().map(|item| columns.iter().map(|column| cell(&item[*column])).collect());
    let lines: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
    let widths: Vec<usize> = (0..columns.len())
        .map(|at| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or_default())
        .collect();
    for line in lines {
        let mut text = String::new();
        for (cell, width) in line.iter().zip(&widths) {
            text.push_str(cell);
            text.extend(std::iter::repeat_n(' ', width + 2 - cell.chars().count()));
        }
        indent(depth, out);
        out.push_str(text.trim_end());
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nested_values_and_tables() {
        let value = json!({
            "ready": true,
            "database": { "endpoint": "tcp:192.0.2.1:6641", "error": null, "missing": [] },
            "watches": [
                { "age": 3, "kind": "pods", "objects": 120 },
                { "age": 14, "kind": "nodes", "objects": 2, "problem": "slow" },
            ],
            "units": [{ "unit": "Pod", "rows": [{ "columns": { "a": 1 } }] }],
        });
        let expected = "\
database:
  endpoint: tcp:192.0.2.1:6641
  error: -
  missing: none
ready: true
units:
  - rows:
      - columns:
          a: 1
    unit: Pod
watches:
  KIND   AGE  OBJECTS  PROBLEM
  pods   3    120      -
  nodes  14   2        slow
";
        assert_eq!(render(&value), expected);
    }

    #[test]
    fn any_value_has_a_text() {
        assert_eq!(render(&json!(7)), "7\n");
        assert_eq!(render(&json!([1, "x"])), "- 1\n- x\n");
        assert_eq!(render(&json!({})), "");
        assert_eq!(render(&json!([[1], {}])), "- 1\n- none\n");
    }
}
