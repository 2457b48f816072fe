//! Monitors: what a client follows, and how a change looks to it (RFC 7047 §4.1.5 and
//! the extensions `monitor_cond`, `monitor_cond_since`, `monitor_cond_change`).

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value as Json, json};

use super::members::{Members, syntax};
use super::parse::{Reader, Symbols, columns_of};
use crate::error::TransactError;
use crate::replica::{Replica, Row, RowChange};
use crate::schema::ColumnType;
use crate::testing::clause::{Clause, is_implicit, version};
use crate::value::{Atom, AtomMap, Value};

/// The generations of the notation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notation {
    /// `monitor`: `update`, whole rows.
    Update,
    /// `monitor_cond`: `update2`, differences.
    Update2,
    /// `monitor_cond_since`: `update3`, differences with transaction ids.
    Update3,
}

/// Which kinds of change a column is wanted for.
#[derive(Clone, Copy, Debug)]
struct Select {
    initial: bool,
    insert: bool,
    delete: bool,
    modify: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Initial,
    Insert,
    Delete,
    Modify,
}

impl Select {
    fn wants(self, kind: Kind) -> bool {
        match kind {
            Kind::Initial => self.initial,
            Kind::Insert => self.insert,
            Kind::Delete => self.delete,
            Kind::Modify => self.modify,
        }
    }
}

/// A table that is followed.
#[derive(Debug, Default)]
struct Watched {
    columns: Vec<(Arc<str>, Select)>,
    /// One must hold; none: all rows.
    clauses: Vec<Clause>,
}

impl Watched {
    fn sees(&self, row: Option<&Arc<Row>>) -> bool {
        row.is_some_and(|row| self.clauses.is_empty() || self.clauses.iter().any(|c| c.matches(row)))
    }
}

/// A monitor of one connection.
#[derive(Debug)]
pub(super) struct Monitor {
    pub(super) id: Json,
    pub(super) database: String,
    pub(super) notation: Notation,
    tables: BTreeMap<String, Watched>,
}

/// Something that a table's request may be: one object, or several.
fn each(json: &Json) -> impl Iterator<Item = &Json> {
    match json {
        Json::Array(all) => all.iter().collect::<Vec<_>>().into_iter(),
        one => vec![one].into_iter(),
    }
}

impl Monitor {
    /// Reads `<monitor-requests>`.
    pub(super) fn new(
        id: Json,
        database: &str,
        notation: Notation,
        requests: &Json,
        replica: &Replica,
    ) -> Result<Self, TransactError> {
        let requests = requests.as_object().ok_or_else(|| syntax("monitor-requests must be object"))?;
        let mut tables = BTreeMap::new();
        for (name, requests) in requests {
            let table = replica.table(name).ok_or_else(|| syntax(format!("no table named {name}")))?;
            let mut watched = None;
            for request in each(requests) {
                let watched = watched.get_or_insert_with(Watched::default);
                let mut members = Members::new("monitor request", request)?;
                let columns = members.optional("columns", Json::as_array)?;
                let select = members.optional("select", Some)?;
                let where_ = match notation {
                    Notation::Update => None,
                    _ => members.optional("where", Json::as_array)?,
                };
                members.end()?;
                let select = select.map(read_select).transpose()?.unwrap_or(ALL);
                let columns = match columns {
                    Some(columns) => columns_of(table.layout(), columns)?,
                    None => {
                        let named = table.layout().columns().iter().map(|(name, _)| name.clone());
                        named.chain(["_version".into()]).collect()
                    }
                };
                for column in columns {
                    if watched.columns.iter().any(|(c, _)| *c == column) {
                        return Err(syntax(format!("column {column} mentioned more than once")));
                    }
                    watched.columns.push((column, select));
                }
                let mut reader = Reader { symbols: &mut Symbols::default(), replica, is_free: &|_, _| true };
                watched.clauses.extend(reader.clauses(table, where_.map_or(&[][..], Vec::as_slice))?);
            }
            tables.extend(watched.map(|watched| (name.clone(), watched)));
        }
        Ok(Self { id, database: database.to_owned(), notation, tables })
    }

    /// The content at the beginning.
    pub(super) fn initial(&self, replica: &Replica) -> Json {
        let mut out = Map::new();
        for (name, watched) in &self.tables {
            let Some(table) = replica.table(name) else { continue };
            let mut rows = Map::new();
            for row in table.rows().filter(|row| watched.sees(Some(row))) {
                if let Some(update) = self.row(watched, Kind::Initial, None, Some(row)) {
                    rows.insert(row.uuid.to_string(), update);
                }
            }
            if !rows.is_empty() {
                out.insert(name.clone(), Json::Object(rows));
            }
        }
        Json::Object(out)
    }

    /// What changes look like; `None` if there is nothing to see.
    pub(super) fn changes(&self, changes: &[RowChange]) -> Option<Json> {
        let mut out: BTreeMap<&str, Map<String, Json>> = BTreeMap::new();
        for change in changes {
            let Some(watched) = self.tables.get(&*change.table) else { continue };
            // A row that comes into sight is inserted, one that leaves it deleted.
            let old = change.old.as_ref().filter(|row| watched.sees(Some(row)));
            let new = change.new.as_ref().filter(|row| watched.sees(Some(row)));
            let kind = match (old, new) {
                (None, None) => continue,
                (None, Some(_)) => Kind::Insert,
                (Some(_), None) => Kind::Delete,
                (Some(_), Some(_)) => Kind::Modify,
            };
            if let Some(update) = self.row(watched, kind, old, new) {
                out.entry(&change.table).or_default().insert(change.uuid.to_string(), update);
            }
        }
        let out: Map<String, Json> = out.into_iter().map(|(t, r)| (t.to_owned(), Json::Object(r))).collect();
        (!out.is_empty()).then_some(Json::Object(out))
    }

    /// Reads `<monitor-cond-update-requests>` and changes the conditions; what comes into
    /// sight or leaves it by that.
    pub(super) fn change_conditions(
        &mut self,
        requests: &Json,
        replica: &Replica,
    ) -> Result<Option<Json>, TransactError> {
        let requests = requests.as_object().ok_or_else(|| syntax("monitor-cond-change must be object"))?;
        let mut new = Vec::new();
        for (name, requests) in requests {
            let table = replica.table(name).filter(|_| self.tables.contains_key(name));
            let table = table.ok_or_else(|| syntax(format!("no table named {name} in monitor session")))?;
            let requests = requests.as_array();
            let requests =
                requests.ok_or_else(|| syntax(format!("table {name}: no monitor-cond-change JSON array")))?;
            for request in requests {
                let mut members = Members::new("monitor-cond-change", request)?;
                let where_ = members.optional("where", Json::as_array)?;
                members.end()?;
                let mut reader = Reader { symbols: &mut Symbols::default(), replica, is_free: &|_, _| true };
                let clauses = reader.clauses(table, where_.map_or(&[][..], Vec::as_slice))?;
                new.push((name.clone(), clauses));
            }
        }
        let mut out = Map::new();
        for (name, clauses) in new {
            let (Some(watched), Some(table)) = (self.tables.get_mut(&name), replica.table(&name)) else {
                continue;
            };
            let seen: Vec<bool> = table.rows().map(|row| watched.sees(Some(row))).collect();
            watched.clauses = clauses;
            let Some(watched) = self.tables.get(&name) else { continue };
            let mut rows = Map::new();
            for (row, was) in table.rows().zip(seen) {
                let update = match (was, watched.sees(Some(row))) {
                    (false, true) => self.row(watched, Kind::Insert, None, Some(row)),
                    (true, false) => self.row(watched, Kind::Delete, Some(row), None),
                    _ => None,
                };
                if let Some(update) = update {
                    rows.insert(row.uuid.to_string(), update);
                }
            }
            if !rows.is_empty() {
                out.insert(name, Json::Object(rows));
            }
        }
        Ok((!out.is_empty()).then_some(Json::Object(out)))
    }

    /// The notification that carries an update.
    pub(super) fn notification(&self, last: &str, updates: &Json) -> Json {
        let (method, params) = match self.notation {
            Notation::Update => ("update", json!([self.id, updates])),
            Notation::Update2 => ("update2", json!([self.id, updates])),
            Notation::Update3 => ("update3", json!([self.id, last, updates])),
        };
        json!({"id": null, "method": method, "params": params})
    }

    /// An update of a row that nobody ever had: a server out of its mind.
    pub(super) fn nonsense(&self, uuid: uuid::Uuid) -> Option<Json> {
        let table = self.tables.keys().next()?;
        let row = match self.notation {
            Notation::Update => json!({"old": {}}),
            _ => json!({"delete": null}),
        };
        Some(json!({table: {uuid.to_string(): row}}))
    }

    /// One row's update; `None` if the change is not wanted or touches no column.
    fn row(
        &self,
        watched: &Watched,
        kind: Kind,
        old: Option<&Arc<Row>>,
        new: Option<&Arc<Row>>,
    ) -> Option<Json> {
        let wanted = || watched.columns.iter().filter(move |(_, s)| s.wants(kind)).map(|(name, _)| name);
        if !watched.columns.is_empty() && wanted().next().is_none() {
            return None;
        }
        let differs = |name: &Arc<str>| old.zip(new).is_none_or(|(a, b)| held(a, name) != held(b, name));
        let mut followed = watched.columns.iter().map(|(name, _)| name).filter(|name| &***name != "_version");
        if kind == Kind::Modify && !followed.any(differs) {
            return None;
        }
        match self.notation {
            Notation::Update => whole(wanted(), old, new),
            _ => difference(wanted(), kind, old, new),
        }
    }
}

const ALL: Select = Select { initial: true, insert: true, delete: true, modify: true };

fn read_select(json: &Json) -> Result<Select, TransactError> {
    let mut members = Members::new("select", json)?;
    let mut flag = |name: &'static str| -> Result<bool, TransactError> {
        Ok(members.optional(name, Json::as_bool)?.unwrap_or(true))
    };
    let select = Select {
        initial: flag("initial")?,
        insert: flag("insert")?,
        delete: flag("delete")?,
        modify: flag("modify")?,
    };
    members.end()?;
    Ok(select)
}

/// The value of a column, the implicit ones included.
fn held(row: &Row, name: &str) -> Value {
    match name {
        "_uuid" => Value::Atom(Atom::Uuid(row.uuid)),
        "_version" => Value::Atom(Atom::Uuid(version(row))),
        name => row.get(name).cloned().unwrap_or_else(Value::empty_set),
    }
}

/// `<row-update>`: the columns before (only those that changed) and after.
fn whole<'a>(
    columns: impl Iterator<Item = &'a Arc<str>>,
    old: Option<&Arc<Row>>,
    new: Option<&Arc<Row>>,
) -> Option<Json> {
    let (mut before, mut after) = (Map::new(), Map::new());
    for name in columns {
        let (was, is) = (old.map(|r| held(r, name)), new.map(|r| held(r, name)));
        if let Some(was) = was.as_ref().filter(|_| was != is) {
            before.insert(name.to_string(), was.to_json());
        }
        if let Some(is) = is {
            after.insert(name.to_string(), is.to_json());
        }
    }
    let mut out = Map::new();
    if old.is_some() {
        out.insert("old".into(), Json::Object(before));
    }
    if new.is_some() {
        out.insert("new".into(), Json::Object(after));
    }
    Some(Json::Object(out))
}

/// `<row-update2>`: differences.
fn difference<'a>(
    columns: impl Iterator<Item = &'a Arc<str>>,
    kind: Kind,
    old: Option<&Arc<Row>>,
    new: Option<&Arc<Row>>,
) -> Option<Json> {
    let Some(new) = new else { return Some(json!({"delete": null})) };
    let mut out = Map::new();
    for name in columns {
        let is = held(new, name);
        let layout = new.layout();
        let ty = layout.position(name).and_then(|p| layout.columns().get(p)).map(|(_, ty)| ty);
        match (old, ty) {
            (Some(old), _) => {
                let was = held(old, name);
                if was != is {
                    out.insert(name.to_string(), delta(&was, is, ty).to_json());
                }
            }
            // Defaults are left out.
            (None, Some(ty)) if is == ty.default_value() => {}
            (None, _) => drop(out.insert(name.to_string(), is.to_json())),
        }
    }
    let name = match kind {
        Kind::Initial => "initial",
        Kind::Insert => "insert",
        Kind::Modify if out.keys().all(|name| is_implicit(name)) => return None,
        Kind::Delete | Kind::Modify => "modify",
    };
    Some(json!({name: out}))
}

/// The difference of a column: the new value of one that holds at most one, else what
/// turns the old into the new (elements or pairs that go, come or change).
fn delta(old: &Value, new: Value, ty: Option<&ColumnType>) -> Value {
    match (old, new) {
        (_, new) if ty.is_none_or(|ty| ty.max == 1) => new,
        (Value::Set(old), Value::Set(new)) => {
            let gone = old.iter().filter(|atom| !new.contains(atom));
            let come = new.iter().filter(|atom| !old.contains(atom));
            Value::Set(gone.chain(come).cloned().collect())
        }
        (Value::Map(old), Value::Map(new)) => {
            let gone = old.iter().filter(|(key, _)| !new.contains_key(key));
            let set = new.iter().filter(|(key, value)| old.get(key) != Some(value));
            Value::Map(gone.chain(set).map(|(k, v)| (k.clone(), v.clone())).collect::<AtomMap>())
        }
        (_, new) => new,
    }
}
