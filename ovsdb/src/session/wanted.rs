//! What a session follows: tables, columns and rows, and changes of it on the run.
//!
//! Flows in: [`Change`]s. Flows out: the `<monitor-cond-requests>` of RFC 7047's
//! successors, for as much of it as a server's schema has.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use super::Options;
use super::filter::Filter;
use crate::replica::Replica;
use crate::schema::Schema;

/// Tables with their wanted columns, and filters of some of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Wanted {
    /// Columns by table; an empty list wants all.
    pub(super) tables: BTreeMap<String, Vec<String>>,
    /// Filters by table; those without one are followed whole.
    pub(super) filters: BTreeMap<String, Filter>,
}

/// A change of what a live session follows: see
/// [`Session::change`](super::Session::change).
#[derive(Clone, Debug, Default)]
pub struct Change {
    tables: BTreeMap<String, Option<Vec<String>>>,
    filters: BTreeMap<String, Filter>,
}

impl Change {
    /// A change of nothing.
    pub fn new() -> Self {
        Self::default()
    }
    /// Follows exactly these columns of a table from now on (none: all).
    pub fn table<'a>(mut self, table: &str, columns: impl IntoIterator<Item = &'a str>) -> Self {
        self.tables.insert(table.into(), Some(columns.into_iter().map(str::to_owned).collect()));
        self
    }
    /// Stops following a table, and forgets its filter.
    pub fn without(mut self, table: &str) -> Self {
        self.tables.insert(table.into(), None);
        self.filters.remove(table);
        self
    }
    /// Follows only the rows of a table that a filter lets through.
    pub fn filter(mut self, table: &str, filter: Filter) -> Self {
        self.filters.insert(table.into(), filter);
        self
    }

    /// The first of its filters that a schema does not allow, as text.
    pub(super) fn unfit(&self, schema: &Schema) -> Option<String> {
        unfit(&self.filters, schema).next()
    }
}

fn unfit<'a>(filters: &'a BTreeMap<String, Filter>, schema: &'a Schema) -> impl Iterator<Item = String> + 'a {
    filters.iter().filter_map(|(table, filter)| {
        let error = filter.check(schema.tables.get(table)?).err()?;
        Some(format!("table {table}: {error}"))
    })
}

impl Wanted {
    pub(super) fn of(options: &Options) -> Self {
        let mut wanted = Self { tables: options.tables.clone(), filters: BTreeMap::new() };
        for (table, filter) in &options.filters {
            wanted.set_filter(table, filter.clone());
        }
        wanted
    }

    fn set_filter(&mut self, table: &str, filter: Filter) {
        // Without an entry two that want the same are equal.
        if filter.is_all() {
            self.filters.remove(table);
        } else {
            self.filters.insert(table.to_owned(), filter);
        }
    }

    /// With a change made.
    pub(super) fn changed(&self, change: Change) -> Self {
        let mut wanted = self.clone();
        for (table, columns) in change.tables {
            match columns {
                Some(columns) => {
                    wanted.tables.insert(table, columns);
                }
                None => {
                    wanted.tables.remove(&table);
                    wanted.filters.remove(&table);
                }
            }
        }
        for (table, filter) in change.filters {
            wanted.set_filter(&table, filter);
        }
        wanted
    }

    /// Filters that a schema does not allow, as text.
    pub(super) fn unfit(&self, schema: &Schema) -> Vec<String> {
        unfit(&self.filters, schema).collect()
    }

    /// The filter of a table as far as a schema allows it: one that it does not allow
    /// lets everything through, since too much is better than too little.
    fn usable(&self, table: &str, schema: &Schema) -> Option<&Filter> {
        let filter = self.filters.get(table)?;
        filter.check(schema.tables.get(table)?).is_ok().then_some(filter)
    }

    /// Monitor requests for the tables and columns that a replica holds; without
    /// conditions for servers that know none.
    pub(super) fn requests(&self, replica: &Replica, conditions: bool) -> serde_json::Map<String, Json> {
        let mut requests = serde_json::Map::new();
        for table in replica.tables().filter(|t| !t.layout().columns().is_empty()) {
            let columns: Vec<&str> = table.layout().columns().iter().map(|(name, _)| &**name).collect();
            let mut request = json!({"columns": columns});
            if let (true, Some(filter)) = (conditions, self.usable(table.name(), replica.schema())) {
                request["where"] = json!(filter);
            }
            requests.insert(table.name().to_string(), json!([request]));
        }
        requests
    }

    /// Requests of `monitor_cond_change` that lead from `self` to `next`.
    pub(super) fn condition_changes(
        &self,
        next: &Wanted,
        replica: &Replica,
    ) -> serde_json::Map<String, Json> {
        let all = Filter::all();
        let mut requests = serde_json::Map::new();
        for table in replica.tables().filter(|t| !t.layout().columns().is_empty()) {
            let of = |wanted: &Wanted| wanted.usable(table.name(), replica.schema()).unwrap_or(&all).clone();
            let (old, new) = (of(self), of(next));
            if old != new {
                requests.insert(table.name().to_string(), json!([{"where": new}]));
            }
        }
        requests
    }

    /// Wanted columns (and columns of filters) that a schema lacks; an empty column
    /// name for a table without which everything of it is wanted.
    pub(super) fn missing(&self, schema: &Schema) -> Vec<(String, String)> {
        let mut missing = Vec::new();
        for (table, columns) in &self.tables {
            if columns.is_empty() && !schema.tables.contains_key(table) {
                missing.push((table.clone(), String::new()));
            }
            for column in columns {
                if schema.column(table, column).is_none() {
                    missing.push((table.clone(), column.clone()));
                }
            }
        }
        missing
    }

    /// Wanted columns that `new` has and `old` has not, or has with another type.
    pub(super) fn gained(&self, old: &Schema, new: &Schema) -> Vec<(String, String)> {
        let mut gained = Vec::new();
        for (table, columns) in &self.tables {
            let Some(schema) = new.tables.get(table) else { continue };
            for (column, content) in &schema.columns {
                let wanted = columns.is_empty() || columns.contains(column);
                if wanted && old.column(table, column).is_none_or(|was| was.ty != content.ty) {
                    gained.push((table.clone(), column.clone()));
                }
            }
        }
        gained
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::testing::northbound;

    fn wanted() -> Wanted {
        let options = Options::new(Vec::new(), "OVN_Northbound")
            .table("Logical_Switch", ["name", "colour"])
            .table("DNS", ["records"])
            .filter("Logical_Switch", Filter::equals("name", "a"));
        Wanted::of(&options)
    }

    #[test]
    fn changes_touch_only_what_they_name() {
        let before = wanted();
        let after = before.changed(
            Change::new().without("DNS").table("Spaceship", []).filter("Logical_Switch", Filter::all()),
        );
        assert_eq!(after.tables.keys().collect::<Vec<_>>(), ["Logical_Switch", "Spaceship"]);
        assert_eq!(after.tables["Logical_Switch"], before.tables["Logical_Switch"]);
        assert!(after.filters.is_empty());
        assert_eq!(before.changed(Change::new()), before);
    }

    #[test]
    fn requests_hold_what_the_schema_has() {
        let (schema, wanted) = (Arc::new(northbound()), wanted());
        let replica = Replica::new(schema.clone(), &wanted.tables, &[]);
        let with = |conditions| wanted.requests(&replica, conditions)["Logical_Switch"].to_string();
        assert_eq!(with(true), r#"[{"columns":["name"],"where":[["name","==","a"]]}]"#);
        assert_eq!(with(false), r#"[{"columns":["name"]}]"#);
        let colour = ("Logical_Switch".to_owned(), "colour".to_owned());
        assert!(wanted.missing(&schema).contains(&colour));
        // A filter that does not fit follows everything, and says so.
        let odd = wanted.changed(Change::new().filter("Logical_Switch", Filter::equals("colour", "red")));
        assert_eq!(odd.requests(&replica, true)["Logical_Switch"].to_string(), r#"[{"columns":["name"]}]"#);
        assert_eq!(odd.unfit(&schema).len(), 1);
        let change = wanted.condition_changes(&odd, &replica);
        assert_eq!(change["Logical_Switch"].to_string(), r#"[{"where":[true]}]"#);
        assert!(wanted.condition_changes(&wanted, &replica).is_empty());
    }

    #[test]
    fn columns_come_and_go_with_the_schema() {
        let (old, wanted) = (northbound(), wanted());
        let mut new = old.clone();
        let columns = &mut new.tables.get_mut("Logical_Switch").unwrap().columns;
        let name = columns.remove("name").unwrap();
        columns.insert("colour".into(), name);
        let pair = |c: &str| vec![("Logical_Switch".to_owned(), c.to_owned())];
        assert_eq!(wanted.gained(&old, &new), pair("colour"));
        assert_eq!(wanted.gained(&new, &old), pair("name"));
        assert_eq!(wanted.gained(&old, &old), []);
    }
}
