//! A replica that follows updates holds what a plain model holds: contents,
//! indexes, reported changes, snapshots.
//!
//! Input: notation (that of `update2`/`update3`, or the plain `update`), then steps:
//! updates that a server could send, updates that do not fit, arbitrary text,
//! snapshots.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use ovsdb::notation::Interner;
use ovsdb::schema::ColumnType;
use ovsdb::testing::{SchemaBuilder, boolean, integer, real_number, string, weak};
use ovsdb::{Atom, AtomMap, AtomSet, Replica, RowChange, Schema, Uuid, Value};
use serde_json::{Map, Value as Json, json};

use super::Input;

/// Rows that may exist, by table and number.
type RowId = (usize, u8);
/// Values of a row, in the order of its table's columns.
type Values = Vec<Value>;
type Model = BTreeMap<RowId, Values>;

const TABLES: [&str; 2] = ["A", "B"];
const ROWS: usize = 6;
const MOST_STEPS: usize = 40;

thread_local! {
    static INTERNER: RefCell<Interner> = RefCell::default();
}

fn schema() -> &'static Arc<Schema> {
    static SCHEMA: OnceLock<Arc<Schema>> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let schema = SchemaBuilder::new("Fuzz", "1.0.0")
            .table("A", |t| {
                t.root()
                    .unique(["int"])
                    .unique(["str", "bool"])
                    .scalar("int", integer())
                    .scalar("real", real_number())
                    .scalar("bool", boolean())
                    .scalar("str", string())
                    .scalar("ref", weak("B"))
                    .optional("opt", string())
                    .set("set", string())
                    .bounded("few", integer(), 1, 3)
                    .strings("map")
            })
            .table("B", |t| {
                t.set("refs", weak("A")).set("reals", real_number()).map("ints", integer(), integer())
            });
        Arc::new(schema.build())
    })
}

fn empty() -> Replica {
    let tables = TABLES.map(|t| (t.to_owned(), Vec::new())).into();
    let index =
        |table: &str, columns: &[&str]| (table.to_owned(), columns.iter().map(|&c| c.to_owned()).collect());
    let indexes =
        [index("A", &["opt"]), index("A", &["set", "map"]), index("B", &["refs"]), index("A", &["nope"])];
    Replica::new(schema().clone(), &tables, &indexes)
}

/// Checks one input.
pub fn check(data: &[u8]) {
    let mut input = Input::new(data);
    let plain = input.byte() % 2 == 1;
    let mut replica = empty();
    let mut model = Model::new();
    let mut snapshots = vec![(replica.clone(), model.clone())];
    for _ in 0..MOST_STEPS {
        if input.is_empty() {
            break;
        }
        match input.below(8) {
            0..=3 => good(&mut input, plain, &mut replica, &mut model),
            4 | 5 => bad(&mut input, plain, &replica, &model),
            6 => {
                let length = usize::from(input.byte());
                if let Ok(text) = std::str::from_utf8(input.take(length)) {
                    drop(apply(&mut replica.clone(), text, plain));
                }
            }
            _ if snapshots.len() < 4 => snapshots.push((replica.clone(), model.clone())),
            _ => {}
        }
    }
    // Snapshots did not move, and what changed since then is what differs.
    for (snapshot, held) in &snapshots {
        compare(snapshot, held);
        find(snapshot, held, held.keys());
        let mut followed = held.clone();
        follow(&mut followed, &replica.changes_since(snapshot));
        assert_eq!(followed, model);
        assert_eq!(*snapshot == replica, *held == model);
    }
}

fn uuid((table, row): RowId) -> Uuid {
    Uuid::from_u64_pair(table as u64, row.into())
}

fn columns(table: usize) -> impl Iterator<Item = (&'static str, &'static ColumnType)> {
    schema().tables[TABLES[table]].columns.iter().map(|(name, column)| (name.as_str(), &column.ty))
}

fn apply(
    replica: &mut Replica,
    text: &str,
    plain: bool,
) -> Result<Vec<RowChange>, ovsdb::delta::UpdateError> {
    INTERNER.with_borrow_mut(|interner| match plain {
        true => replica.apply_plain_updates(text, interner),
        false => replica.apply_updates(text, interner),
    })
}

/// An update of one to four rows that a server could send.
fn good(input: &mut Input<'_>, plain: bool, replica: &mut Replica, model: &mut Model) {
    let before = model.clone();
    let mut update: BTreeMap<&str, Map<String, Json>> = BTreeMap::new();
    let mut touched = Vec::new();
    for _ in 0..1 + input.below(4) {
        let id: RowId = (input.below(TABLES.len()), input.below(ROWS) as u8);
        let rows = update.entry(TABLES[id.0]).or_default();
        let key = uuid(id).to_string();
        if rows.contains_key(&key) {
            continue;
        }
        touched.push(id);
        let old = model.get(&id);
        if old.is_some() && input.below(4) == 0 {
            rows.insert(key, if plain { json!({"old": {}}) } else { json!({"delete": null}) });
            model.remove(&id);
            continue;
        }
        let mut new =
            old.cloned().unwrap_or_else(|| columns(id.0).map(|(_, ty)| ty.default_value()).collect());
        let mask = usize::from(input.byte()) | usize::from(input.byte()) << 8;
        for (at, (_, ty)) in columns(id.0).enumerate() {
            if mask >> at & 1 == 1 {
                new[at] = value(input, ty);
            }
        }
        if old == Some(&new) {
            continue;
        }
        let initial = input.byte().is_multiple_of(2);
        rows.insert(key, written(id.0, old, &new, plain, initial));
        model.insert(id, new);
    }
    let text = serde_json::to_string(&update).unwrap();
    let snapshot = replica.clone();
    let changes = apply(replica, &text, plain).unwrap_or_else(|e| panic!("{e}: {text}"));
    let mut followed = before;
    follow(&mut followed, &changes);
    assert_eq!(followed, *model, "after {text}");
    compare(replica, model);
    find(replica, model, touched.iter());
    // What is told is what differs. (Both are in the order of tables and UUIDs.)
    assert_eq!(replica.changes_since(&snapshot), changes, "after {text}");
}

/// A row update, as a server writes it.
fn written(table: usize, old: Option<&Values>, new: &Values, plain: bool, initial: bool) -> Json {
    let names = columns(table).zip(new);
    let Some(old) = old else {
        // Defaults may be left out.
        let row: Map<String, Json> = names
            .filter(|((_, ty), value)| initial || **value != ty.default_value())
            .map(|((name, _), value)| (name.to_owned(), value.to_json()))
            .collect();
        return match (plain, initial) {
            (true, _) => json!({"new": row}),
            (false, true) => json!({"initial": row}),
            (false, false) => json!({"insert": row}),
        };
    };
    if plain {
        let row: Map<String, Json> =
            names.map(|((name, _), value)| (name.to_owned(), value.to_json())).collect();
        return json!({"new": row, "old": {}});
    }
    let row: Map<String, Json> = names
        .zip(old)
        .filter(|((_, value), old)| old != value)
        .map(|(((name, ty), value), old)| (name.to_owned(), difference(old, value, ty).to_json()))
        .collect();
    json!({"modify": row})
}

/// The difference that a server sends, by the letter of its manual.
fn difference(old: &Value, new: &Value, ty: &ColumnType) -> Value {
    match (old, new) {
        (Value::Set(old), Value::Set(new)) if ty.max > 1 => {
            let gone = old.iter().filter(|a| !new.contains(a));
            Value::Set(gone.chain(new.iter().filter(|a| !old.contains(a))).cloned().collect())
        }
        (Value::Map(old), Value::Map(new)) if ty.max > 1 => {
            let gone = old.iter().filter(|(k, _)| !new.contains_key(k));
            let set = new.iter().filter(|(k, v)| old.get(k) != Some(v));
            Value::Map(gone.chain(set).map(|(k, v)| (k.clone(), v.clone())).collect())
        }
        _ => new.clone(),
    }
}

/// An update that no server may send in this state: an error, and no panic.
fn bad(input: &mut Input<'_>, plain: bool, replica: &Replica, model: &Model) {
    let id: RowId = (input.below(TABLES.len()), input.below(ROWS) as u8);
    let update = match (model.contains_key(&id), input.below(3), plain) {
        (true, _, true) => json!({"new": {}}),
        (true, _, false) => json!({"insert": {}}),
        (false, 0, true) => json!({"old": {}, "new": {}}),
        (false, 0, false) => json!({"modify": {}}),
        (false, 1, true) => json!({"old": {}}),
        (false, 1, false) => json!({"delete": null}),
        (false, _, true) => json!({"new": {"nope": 1}}),
        (false, _, false) => json!({"insert": {"nope": 1}}),
    };
    let text = json!({TABLES[id.0]: {uuid(id).to_string(): update}}).to_string();
    assert!(apply(&mut replica.clone(), &text, plain).is_err(), "{text} was taken");
}

fn atom(input: &mut Input<'_>, like: &Atom) -> Atom {
    let byte = input.byte();
    match like {
        Atom::Integer(_) if byte == 255 => Atom::Integer(i64::MIN),
        Atom::Integer(_) => Atom::Integer(i64::from(byte) % 7 - 3),
        Atom::Real(_) => Atom::from(f64::from(byte as i8) / 8.0),
        Atom::Boolean(_) => Atom::Boolean(byte.is_multiple_of(2)),
        Atom::String(_) => {
            Atom::from(["", "a", "b", "ö\"\\}\u{0}", "neutron:network", "\n"][usize::from(byte) % 6])
        }
        Atom::Uuid(_) => Atom::Uuid(uuid((usize::from(byte) % 2, byte % 5))),
        Atom::Named(name) => Atom::Named(name.clone()),
    }
}

fn value(input: &mut Input<'_>, ty: &ColumnType) -> Value {
    let key = ty.key.atom.default_atom();
    if ty.is_scalar() {
        return Value::Atom(atom(input, &key));
    }
    let count = ty.min.max(input.below(ty.max.min(5) + 1));
    match &ty.value {
        None => {
            let set: AtomSet = (0..count).map(|_| atom(input, &key)).collect();
            Value::Set(set)
        }
        Some(value) => {
            let like = value.atom.default_atom();
            let map: AtomMap = (0..count).map(|_| (atom(input, &key), atom(input, &like))).collect();
            Value::Map(map)
        }
    }
}

/// Does to the model what changes say, and checks what they say was there.
fn follow(model: &mut Model, changes: &[RowChange]) {
    let values = |row: &ovsdb::Row| -> Values { row.columns().map(|(_, value)| value.clone()).collect() };
    for change in changes {
        let table = TABLES.iter().position(|t| **t == *change.table).unwrap();
        let id: RowId = (table, change.uuid.as_u64_pair().1 as u8);
        let was = match &change.new {
            Some(new) => model.insert(id, values(new)),
            None => model.remove(&id),
        };
        assert_eq!(was, change.old.as_deref().map(values), "old row of {id:?}");
    }
}

/// Same rows with the same values.
fn compare(replica: &Replica, model: &Model) {
    assert_eq!(replica.row_count(), model.len());
    for (id, values) in model {
        let row = replica.row(TABLES[id.0], &uuid(*id)).unwrap();
        assert!(row.columns().map(|(_, value)| value).eq(values.iter()), "{row:?} is not {values:?}");
    }
}

/// Every way to find these rows (those that exist) finds them, and all like them.
fn find<'a>(replica: &Replica, model: &Model, ids: impl Iterator<Item = &'a RowId>) {
    for id in ids.filter(|id| model.contains_key(id)) {
        let table = replica.table(TABLES[id.0]).unwrap();
        let row = table.get(&uuid(*id)).unwrap();
        // By each index, and by a column without one.
        for index in table.layout().indexes().chain([vec![["few", "reals"][id.0]]]) {
            let wanted: Vec<(&str, &Value)> = index.iter().map(|c| (*c, row.get(c).unwrap())).collect();
            let mut found: Vec<Uuid> = table.find_by_all(&wanted).map(|r| r.uuid).collect();
            found.sort();
            let positions: Vec<usize> = index.iter().map(|c| table.layout().position(c).unwrap()).collect();
            let alike =
                |values: &Values| positions.iter().zip(&wanted).all(|(&p, (_, value))| values[p] == **value);
            let expected: Vec<Uuid> =
                model.iter().filter(|(o, v)| o.0 == id.0 && alike(v)).map(|(o, _)| uuid(*o)).collect();
            assert_eq!(found, expected, "by {index:?}");
        }
    }
}
