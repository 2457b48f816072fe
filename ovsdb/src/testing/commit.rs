//! What happens when a transaction of the in-memory database commits:
//! references are counted, garbage is collected, weak references are pruned,
//! uniqueness is checked (RFC 7047 §3.2, §4.1.3).

use std::cmp::Ordering;
use std::sync::Arc;

use uuid::Uuid;

use super::database::Touched;
use super::evaluate::{constraint, size};
use crate::error::{TransactError, TransactErrorKind};
use crate::replica::{PersistentMap, Replica, Row};
use crate::schema::{BaseType, Schema};
use crate::value::{Atom, Value};

/// What commit needs to know of a schema, by table position.
pub(super) struct Plan {
    tables: Vec<TablePlan>,
}

struct TablePlan {
    is_root: bool,
    max_rows: usize,
    references: Vec<ReferenceColumn>,
    /// Positions of the columns of each unique index.
    indexes: Vec<Vec<usize>>,
}

struct ReferenceColumn {
    column: usize,
    /// Whether the map's value refers, instead of the key or element.
    in_value: bool,
    table: usize,
    strong: bool,
}

impl Plan {
    pub(super) fn new(schema: &Schema) -> Self {
        let position = |name: &str| schema.tables.keys().position(|k| k == name);
        let tables = schema.tables.values().map(|table| {
            let mut references = Vec::new();
            for (column, schema) in table.columns.values().enumerate() {
                let mut add = |base: &BaseType, in_value| {
                    let target = base.reference.as_ref().and_then(|r| Some((position(&r.table)?, r.strong)));
                    if let Some((table, strong)) = target {
                        references.push(ReferenceColumn { column, in_value, table, strong });
                    }
                };
                add(&schema.ty.key, false);
                if let Some(value) = &schema.ty.value {
                    add(value, true);
                }
            }
            let column = |name: &String| table.columns.keys().position(|k| k == name);
            let indexes = table.indexes.iter().map(|i| i.iter().filter_map(column).collect()).collect();
            TablePlan { is_root: table.is_root, max_rows: table.max_rows, references, indexes }
        });
        Self { tables: tables.collect() }
    }

    /// The rows that a row refers to through strong (or weak) columns.
    fn targets(&self, table: usize, row: Option<&Arc<Row>>, strong: bool) -> Vec<(usize, Uuid)> {
        let mut targets = Vec::new();
        let Some(row) = row else { return targets };
        for reference in self.tables[table].references.iter().filter(|r| r.strong == strong) {
            // A server does not count references of a row to itself, and tells "itself"
            // by the UUID alone.
            let other = |u: &Uuid| !strong || *u != row.uuid;
            let mut add =
                |atom: &Atom| targets.extend(atom.as_uuid().filter(other).map(|u| (reference.table, u)));
            match &row.values()[reference.column] {
                Value::Map(map) if reference.in_value => map.values().for_each(&mut add),
                Value::Map(map) => map.keys().for_each(&mut add),
                value => value.atoms().for_each(&mut add),
            }
        }
        targets
    }

    /// Rows that a row refers to no more, and those that it refers to now and did not before. A
    /// set of thousands of which one element changes costs one look each in what counts them.
    fn changes(
        &self,
        table: usize,
        old: Option<&Arc<Row>>,
        new: Option<&Arc<Row>>,
        strong: bool,
    ) -> (Vec<RowId>, Vec<RowId>) {
        let sorted = |row| {
            let mut targets = self.targets(table, row, strong);
            targets.sort_unstable();
            targets
        };
        let (old, new) = (sorted(old), sorted(new));
        let (mut gone, mut come) = (Vec::new(), Vec::new());
        let (mut a, mut b) = (old.as_slice(), new.as_slice());
        while let ([x, rest_a @ ..], [y, rest_b @ ..]) = (a, b) {
            match x.cmp(y) {
                Ordering::Equal => (a, b) = (rest_a, rest_b),
                Ordering::Less => {
                    gone.push(*x);
                    a = rest_a;
                }
                Ordering::Greater => {
                    come.push(*y);
                    b = rest_b;
                }
            }
        }
        gone.extend(a);
        come.extend(b);
        (gone, come)
    }
}

type RowId = (usize, Uuid);

/// Who refers to whom, and which values of unique indexes are taken.
#[derive(Clone, Default)]
pub(super) struct References {
    strong: PersistentMap<RowId, usize>,
    /// Referrers of each target of weak references, with how often.
    weak: PersistentMap<RowId, PersistentMap<RowId, usize>>,
    unique: PersistentMap<(usize, usize, Vec<Value>), Uuid>,
}

impl References {
    /// Completes a transaction: `replica` holds its result, `touched` the rows as
    /// they were. Adds collected and pruned rows to both.
    pub(super) fn commit(
        &mut self,
        plan: &Plan,
        replica: &mut Replica,
        touched: &mut Touched,
    ) -> Result<(), TransactError> {
        let left = self.count_strong(plan, replica, touched)?;
        self.collect(plan, replica, touched, left);
        self.prune_weak(plan, replica, touched)?;
        for &(table, _) in touched.keys() {
            let max = plan.tables[table].max_rows;
            if replica.table_at(table).len() > max {
                let name = replica.table_at(table).name();
                return Err(constraint(format!("table {name} may have at most {max} rows")));
            }
        }
        self.check_unique(plan, replica, touched)
    }

    /// Returns the rows that somebody refers to no more.
    fn count_strong(
        &mut self,
        plan: &Plan,
        replica: &Replica,
        touched: &Touched,
    ) -> Result<Vec<RowId>, TransactError> {
        let mut left = Vec::new();
        let violation = |details: String| Err(TransactError::new(TransactErrorKind::Referential, details));
        for (&(table, uuid), old) in touched {
            let new = replica.table_at(table).get(&uuid);
            let (gone, come) = plan.changes(table, old.as_ref(), new, true);
            for target in come {
                if replica.table_at(target.0).get(&target.1).is_none() {
                    let name = replica.table_at(table).name();
                    let to = replica.table_at(target.0).name();
                    return violation(format!(
                        "{name} {uuid} refers to {to} {}, which does not exist",
                        target.1
                    ));
                }
                self.adjust(target, true);
            }
            for target in &gone {
                self.adjust(*target, false);
            }
            left.extend(gone);
        }
        for &(table, uuid) in touched.keys() {
            if replica.table_at(table).get(&uuid).is_none() && self.strong.get(&(table, uuid)).is_some() {
                let name = replica.table_at(table).name();
                return violation(format!("cannot delete {name} {uuid}: it is referred to"));
            }
        }
        Ok(left)
    }

    fn adjust(&mut self, target: RowId, up: bool) {
        let count = self.strong.get(&target).copied().unwrap_or(0);
        match (up, count) {
            (true, _) => self.strong.insert_mut(target, count + 1),
            (false, 0 | 1) => {
                self.strong.remove_mut(&target);
            }
            (false, _) => self.strong.insert_mut(target, count - 1),
        }
    }

    /// Removes rows of non-root tables that nothing refers to, and what only they
    /// referred to.
    fn collect(&mut self, plan: &Plan, replica: &mut Replica, touched: &mut Touched, left: Vec<RowId>) {
        let mut suspects = left;
        suspects.extend(touched.keys().copied());
        while let Some((table, uuid)) = suspects.pop() {
            if plan.tables[table].is_root || self.strong.get(&(table, uuid)).is_some() {
                continue;
            }
            if let Some(row) = replica.table_mut(table).take(&uuid) {
                for target in plan.targets(table, Some(&row), true) {
                    self.adjust(target, false);
                    suspects.push(target);
                }
                touched.entry((table, uuid)).or_insert(Some(row));
            }
        }
    }

    fn prune_weak(
        &mut self,
        plan: &Plan,
        replica: &mut Replica,
        touched: &mut Touched,
    ) -> Result<(), TransactError> {
        // Rows that hold a weak reference to a row that is not there: those that are
        // written so, and referrers of those deleted.
        let mut suspects: Vec<RowId> = Vec::new();
        for (&(table, uuid), old) in touched.iter() {
            let new = replica.table_at(table).get(&uuid);
            let come = plan.changes(table, old.as_ref(), new, false).1;
            if come.iter().any(|target| replica.table_at(target.0).get(&target.1).is_none()) {
                suspects.push((table, uuid));
            }
            if new.is_none()
                && let Some(referrers) = self.weak.get(&(table, uuid))
            {
                suspects.extend(referrers.keys().copied());
            }
        }
        suspects.sort_unstable();
        suspects.dedup();
        for (table, uuid) in suspects {
            let Some(row) = replica.table_at(table).get(&uuid).cloned() else { continue };
            if let Some(pruned) = pruned(plan, replica, table, &row)? {
                touched.entry((table, uuid)).or_insert(Some(row));
                replica.table_mut(table).put(Arc::new(pruned));
            }
        }
        for (&(table, uuid), old) in touched.iter() {
            let new = replica.table_at(table).get(&uuid);
            let (gone, come) = plan.changes(table, old.as_ref(), new, false);
            for target in gone {
                self.adjust_weak(target, (table, uuid), false);
            }
            for target in come {
                self.adjust_weak(target, (table, uuid), true);
            }
        }
        Ok(())
    }

    fn adjust_weak(&mut self, target: RowId, referrer: RowId, up: bool) {
        let mut referrers = self.weak.get(&target).cloned().unwrap_or_default();
        let count = referrers.get(&referrer).copied().unwrap_or(0);
        match (up, count) {
            (true, _) => referrers.insert_mut(referrer, count + 1),
            (false, 0 | 1) => {
                referrers.remove_mut(&referrer);
            }
            (false, _) => referrers.insert_mut(referrer, count - 1),
        }
        if referrers.is_empty() {
            self.weak.remove_mut(&target);
        } else {
            self.weak.insert_mut(target, referrers);
        }
    }

    fn check_unique(
        &mut self,
        plan: &Plan,
        replica: &Replica,
        touched: &Touched,
    ) -> Result<(), TransactError> {
        let key = |table: usize, index: usize, row: &Row| {
            let columns = &plan.tables[table].indexes[index];
            (table, index, columns.iter().map(|&c| row.values()[c].clone()).collect::<Vec<_>>())
        };
        for (&(table, _), old) in touched {
            for index in 0..plan.tables[table].indexes.len() {
                if let Some(old) = old {
                    self.unique.remove_mut(&key(table, index, old));
                }
            }
        }
        for &(table, uuid) in touched.keys() {
            let Some(row) = replica.table_at(table).get(&uuid) else { continue };
            for index in 0..plan.tables[table].indexes.len() {
                let key = key(table, index, row);
                if let Some(other) = self.unique.get(&key) {
                    let name = replica.table_at(table).name();
                    return Err(constraint(format!("{name} {uuid} and {other} have the same {:?}", key.2)));
                }
                self.unique.insert_mut(key, uuid);
            }
        }
        Ok(())
    }
}

/// The row without weak references to rows that do not exist; `None` if it has none.
fn pruned(plan: &Plan, replica: &Replica, table: usize, row: &Row) -> Result<Option<Row>, TransactError> {
    let mut values: Option<Vec<Value>> = None;
    for reference in plan.tables[table].references.iter().filter(|r| !r.strong) {
        let target = replica.table_at(reference.table);
        let exists = |atom: &Atom| atom.as_uuid().is_none_or(|u| target.get(&u).is_some());
        let held = values.as_ref().map_or(&row.values()[reference.column], |v| &v[reference.column]);
        let kept = match held {
            Value::Map(map) => Value::Map(
                map.iter()
                    .filter(|(k, v)| exists(if reference.in_value { v } else { k }))
                    .map(|(k, v)| (k.clone(), v.clone()))
                    .collect(),
            ),
            Value::Set(set) => Value::Set(set.iter().filter(|a| exists(a)).cloned().collect()),
            Value::Atom(atom) if exists(atom) => held.clone(),
            Value::Atom(_) => Value::empty_set(),
        };
        if size(&kept) == size(held) {
            continue;
        }
        let (name, ty) = &row.layout().columns()[reference.column];
        if size(&kept) < ty.min {
            let details = format!("{} {}: weak references leave {name} too small", row.table(), row.uuid);
            return Err(constraint(details));
        }
        values.get_or_insert_with(|| row.values().to_vec())[reference.column] = kept;
    }
    Ok(values.map(|v| Row::new(row.uuid, row.layout().clone(), v.into())))
}
