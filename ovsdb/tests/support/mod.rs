//! What the integration tests share: random transactions, waiting for events.

#![allow(dead_code, unreachable_pub, missing_docs)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod fake;

use std::collections::BTreeMap;
use std::time::Duration;

use ovsdb::schema::{AtomType, BaseType, ColumnType};
use ovsdb::{
    Atom, AtomMap, AtomSet, Event, EventStream, Function, Mutator, Operation, Options, Replica, RowChange,
    Schema, Session, Uuid, Value,
};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

/// Longest that a test waits for something that must happen.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The next event, which must come.
pub async fn next(events: &mut EventStream) -> Event {
    tokio::time::timeout(PATIENCE, events.next()).await.expect("no event came").expect("the session ended")
}

/// Skips events until the content was (re)loaded.
pub async fn replaced(events: &mut EventStream) -> (Replica, Vec<RowChange>) {
    loop {
        if let Event::Replaced { replica, changes } = next(events).await {
            return (replica, changes);
        }
    }
}

/// Skips events until the connection is lost.
pub async fn disconnected(events: &mut EventStream) -> String {
    loop {
        if let Event::Disconnected { reason } = next(events).await {
            return reason;
        }
    }
}

/// Follows every column that a schema names.
pub fn follow(mut options: Options, schema: &Schema) -> Options {
    for (table, content) in &schema.tables {
        options = options.table(table, content.columns.keys().map(String::as_str));
    }
    options
}

/// A fresh load of what `options` name, through a connection of its own.
pub async fn dump(options: &Options) -> Replica {
    let (_session, mut events) = Session::connect(options.clone());
    replaced(&mut events).await.0
}

/// Applies changes to a replica kept as plain maps: what a consumer would do.
#[derive(Default)]
pub struct Model(pub BTreeMap<(String, Uuid), BTreeMap<String, Value>>);

impl Model {
    pub fn apply(&mut self, changes: &[RowChange]) {
        for change in changes {
            let key = (change.table.to_string(), change.uuid);
            let plain = |row: &ovsdb::Row| -> BTreeMap<String, Value> {
                row.columns().map(|(n, v)| (n.to_string(), v.clone())).collect()
            };
            let was = self.0.remove(&key);
            assert_eq!(was, change.old.as_deref().map(plain), "old row of {key:?}");
            if let Some(new) = &change.new {
                self.0.insert(key, plain(new));
            }
        }
    }
    pub fn assert_matches(&self, replica: &Replica) {
        assert_eq!(self.0.len(), replica.row_count());
        for ((table, uuid), columns) in &self.0 {
            let row = replica.row(table, uuid).expect("row");
            assert!(row.columns().all(|(n, v)| columns.get(&**n) == Some(v)), "{row:?} {columns:?}");
        }
    }
}

/// Makes random transactions that a schema allows, or nearly.
pub struct Generator {
    rng: StdRng,
    schema: Schema,
    /// Tables with the UUIDs that rows may get.
    pool: BTreeMap<String, Vec<Uuid>>,
}

impl Generator {
    pub fn new(schema: Schema, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let pool = schema
            .tables
            .keys()
            .map(|table| (table.clone(), (0..8).map(|_| Uuid::from_u128(rng.random())).collect()))
            .collect();
        Self { rng, schema, pool }
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.rng.random_range(0..100) < percent
    }

    fn uuid(&mut self, table: &str) -> Uuid {
        *self.pool[table].choose(&mut self.rng).unwrap()
    }

    pub fn transaction(&mut self) -> Vec<Operation> {
        let count = self.rng.random_range(1..=5);
        (0..count).flat_map(|_| self.operations()).collect()
    }

    /// One operation, or a row together with what refers to it.
    fn operations(&mut self) -> Vec<Operation> {
        let tables: Vec<String> = self.schema.tables.keys().cloned().collect();
        let table = tables.choose(&mut self.rng).unwrap().clone();
        match self.rng.random_range(0..10) {
            0..=3 => self.insert_with_parent(&table),
            4 => vec![self.update(&table)],
            5..=7 => vec![self.mutate(&table)],
            8 => vec![Operation::delete(table.as_str()).by_uuid(self.uuid(&table)).build()],
            _ => vec![self.look(&table)],
        }
    }

    fn insert_with_parent(&mut self, table: &str) -> Vec<Operation> {
        let uuid = self.uuid(table);
        let mut insert = Operation::insert(table).uuid(uuid);
        let columns = self.schema.tables[table].columns.clone();
        for (name, column) in &columns {
            // Enumerations have no valid default, names must differ.
            let needed = column.ty.is_scalar() && (column.ty.key.one_of.is_some() || name == "name");
            if needed || self.chance(40) {
                insert = insert.column(name.as_str(), self.value(&column.ty));
            }
        }
        let mut operations = vec![insert.build()];
        let is_root = self.schema.tables[table].is_root;
        if !is_root && self.chance(85) {
            let parents: Vec<(String, String)> = self
                .schema
                .tables
                .iter()
                .flat_map(|(t, s)| s.columns.iter().map(move |(c, s)| (t.clone(), c.clone(), &s.ty.key)))
                .filter(|(_, _, key)| key.reference.as_ref().is_some_and(|r| r.strong && r.table == table))
                .map(|(t, c, _)| (t, c))
                .collect();
            if let Some((parent, column)) = parents.choose(&mut self.rng).cloned() {
                let row = self.uuid(&parent);
                let mutate = Operation::mutate(parent).by_uuid(row).insert_set(column, Value::uuids([uuid]));
                operations.push(mutate.build());
            }
        }
        operations
    }

    fn some_column(&mut self, table: &str) -> (String, ColumnType) {
        let columns: Vec<_> = self.schema.tables[table].columns.iter().collect();
        let (name, column) = columns.choose(&mut self.rng).unwrap();
        ((*name).clone(), column.ty.clone())
    }

    fn update(&mut self, table: &str) -> Operation {
        let mut update = Operation::update(table).by_uuid(self.uuid(table));
        for _ in 0..self.rng.random_range(1..3) {
            let (name, ty) = self.some_column(table);
            update = update.column(name, self.value(&ty));
        }
        update.build()
    }

    fn mutate(&mut self, table: &str) -> Operation {
        let (name, ty) = self.some_column(table);
        let mut mutate = Operation::mutate(table);
        mutate = if self.chance(85) {
            mutate.by_uuid(self.uuid(table))
        } else {
            let value = self.value(&ty);
            mutate.filter(name.as_str(), Function::Includes, value)
        };
        let value = self.value(&ty);
        let number = matches!(ty.key.atom, AtomType::Integer) && ty.value.is_none();
        if ty.is_scalar() && !number {
            return Operation::update(table).by_uuid(self.uuid(table)).column(name, value).build();
        }
        if number && self.chance(60) {
            let mutators =
                [Mutator::Add, Mutator::Subtract, Mutator::Multiply, Mutator::Divide, Mutator::Modulo];
            let mutator = *mutators.choose(&mut self.rng).unwrap();
            // A real server (3.5.0) checks products for overflow by dividing by the
            // operand: a negative number times zero ends it with SIGFPE.
            let least = i64::from(mutator == Mutator::Multiply);
            return mutate.mutation(name, mutator, Value::integer(self.rng.random_range(least..4))).build();
        }
        if ty.is_scalar() {
            return Operation::update(table).by_uuid(self.uuid(table)).column(name, value).build();
        }
        let mutator = if self.chance(60) { Mutator::Insert } else { Mutator::Delete };
        match &value {
            Value::Map(map) if mutator == Mutator::Delete && self.chance(50) => {
                let keys: AtomSet = map.keys().cloned().collect();
                mutate.mutation(name, mutator, keys).build()
            }
            _ => mutate.mutation(name, mutator, value).build(),
        }
    }

    /// A select, or a wait that may fail.
    fn look(&mut self, table: &str) -> Operation {
        let (name, ty) = self.some_column(table);
        if self.chance(90) {
            let function = if self.chance(50) { Function::Excludes } else { Function::Equal };
            let value = self.value(&ty);
            return Operation::select(table)
                .filter(name.as_str(), function, value)
                .columns(["_uuid", name.as_str()])
                .build();
        }
        let value = self.value(&ty);
        Operation::wait(table).by_uuid(self.uuid(table)).column_equals(name, value).timeout(0).build()
    }

    pub fn value(&mut self, ty: &ColumnType) -> Value {
        if ty.is_scalar() {
            return Value::Atom(self.atom(&ty.key));
        }
        let most = ty.max.min(4);
        let count = self.rng.random_range(ty.min..=most);
        match &ty.value {
            Some(value) => {
                Value::Map((0..count).map(|_| (self.atom(&ty.key), self.atom(value))).collect::<AtomMap>())
            }
            None => Value::Set((0..count).map(|_| self.atom(&ty.key)).collect()),
        }
    }

    fn atom(&mut self, ty: &BaseType) -> Atom {
        if let Some(allowed) = &ty.one_of
            && !self.chance(2)
        {
            let allowed: Vec<Atom> = allowed.iter().cloned().collect();
            return allowed.choose(&mut self.rng).unwrap().clone();
        }
        match ty.atom {
            AtomType::Integer => {
                let low = ty.min_integer.unwrap_or(-3);
                let low = if self.chance(97) { low } else { low.saturating_sub(2) };
                Atom::Integer(self.rng.random_range(low..low + 6))
            }
            AtomType::Real => Atom::from(f64::from(self.rng.random_range(-8..8)) / 4.0),
            AtomType::Boolean => Atom::Boolean(self.rng.random()),
            AtomType::String => {
                let words = ["", "a", "b", "c", "ö\"\\}", "net1", "10.0.0.1", "10.0.0.0/24", "x y", "\n"];
                Atom::from(*words.choose(&mut self.rng).unwrap())
            }
            AtomType::Uuid => match &ty.reference {
                Some(reference) if self.pool.contains_key(&reference.table) => {
                    Atom::Uuid(self.uuid(&reference.table))
                }
                _ => Atom::Uuid(Uuid::from_u128(self.rng.random())),
            },
        }
    }
}
