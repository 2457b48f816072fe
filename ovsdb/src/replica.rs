//! The replica: a database's monitored content as a value.
//!
//! Cloning a [`Replica`] takes a snapshot at the price of two reference counts,
//! and keeping snapshots does not make later updates dear: tables are persistent
//! hash tries (crate `rpds`), big sets are chunked ([`crate::AtomSet`]), so an
//! update copies a few hundred bytes however many rows there are and however many
//! snapshots are held.
//!
//! Rows hold their values by column position, in the order of the table's
//! [layout](TableLayout), which all rows of a table share.

mod table;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

use crate::schema::{ColumnType, Schema, TableSchema};
use crate::value::{AtomMap, AtomSet, Value};

pub(crate) use table::PersistentMap;
pub use table::Table;

/// The columns of a table that are held, and its indexes.
#[derive(Debug, PartialEq)]
pub struct TableLayout {
    name: Arc<str>,
    columns: Vec<(Arc<str>, ColumnType)>,
    /// Positions of the columns of each index, ascending.
    indexed: Vec<Vec<usize>>,
}

impl TableLayout {
    /// All columns among `wanted` that the table has; `None` takes all. Indexes are on
    /// `indexes`, as far as their columns are held.
    pub(crate) fn new<'a>(
        name: &str,
        schema: &'a TableSchema,
        wanted: Option<&[String]>,
        indexes: impl Iterator<Item = &'a Vec<String>>,
    ) -> Self {
        let columns: Vec<(Arc<str>, ColumnType)> = schema
            .columns
            .iter()
            .filter(|(column, _)| wanted.is_none_or(|w| w.contains(column)))
            .map(|(column, schema)| (column.as_str().into(), schema.ty.clone()))
            .collect();
        let mut layout = Self { name: name.into(), columns, indexed: Vec::new() };
        for index in indexes {
            if let Some(positions) = layout.index_positions(index)
                && !layout.indexed.contains(&positions)
            {
                layout.indexed.push(positions);
            }
        }
        layout
    }

    /// Positions of these columns, ascending and each once; `None` if one is not held.
    fn index_positions(&self, columns: &[impl AsRef<str>]) -> Option<Vec<usize>> {
        let mut positions: Vec<usize> =
            columns.iter().map(|c| self.position(c.as_ref())).collect::<Option<_>>()?;
        positions.sort_unstable();
        positions.dedup();
        (!positions.is_empty()).then_some(positions)
    }
    /// The columns of each index.
    pub fn indexes(&self) -> impl Iterator<Item = Vec<&str>> + '_ {
        self.indexed.iter().map(|index| index.iter().map(|&p| &*self.columns[p].0).collect())
    }

    /// Name of the table.
    pub fn table(&self) -> &Arc<str> {
        &self.name
    }
    /// Names and types of the columns held, sorted by name.
    pub fn columns(&self) -> &[(Arc<str>, ColumnType)] {
        &self.columns
    }
    /// Position of a column.
    pub fn position(&self, column: &str) -> Option<usize> {
        self.columns.binary_search_by(|(name, _)| (**name).cmp(column)).ok()
    }
    pub(crate) fn defaults(&self) -> Box<[Value]> {
        self.columns.iter().map(|(_, ty)| ty.default_value()).collect()
    }
}

/// One row. Held in `Arc`s: cloning those is cheap.
#[derive(Clone)]
pub struct Row {
    /// The row's UUID.
    pub uuid: Uuid,
    layout: Arc<TableLayout>,
    values: Box<[Value]>,
}

impl Row {
    pub(crate) fn new(uuid: Uuid, layout: Arc<TableLayout>, values: Box<[Value]>) -> Self {
        Self { uuid, layout, values }
    }
    /// Name of the row's table.
    pub fn table(&self) -> &Arc<str> {
        &self.layout.name
    }
    /// The value of a column; `None` for a column that is not held.
    pub fn get(&self, column: &str) -> Option<&Value> {
        self.layout.position(column).map(|i| &self.values[i])
    }
    /// The string of a scalar or of a filled optional column.
    pub fn str(&self, column: &str) -> Option<&str> {
        self.get(column)?.as_str()
    }
    /// The integer of a scalar or of a filled optional column.
    pub fn i64(&self, column: &str) -> Option<i64> {
        self.get(column)?.as_i64()
    }
    /// The boolean of a scalar or of a filled optional column.
    pub fn bool(&self, column: &str) -> Option<bool> {
        self.get(column)?.as_bool()
    }
    /// The reference of a scalar or of a filled optional column.
    pub fn reference(&self, column: &str) -> Option<Uuid> {
        self.get(column)?.as_uuid()
    }
    /// The set of a set column.
    pub fn set(&self, column: &str) -> Option<&AtomSet> {
        self.get(column)?.as_set()
    }
    /// The map of a map column.
    pub fn map(&self, column: &str) -> Option<&AtomMap> {
        self.get(column)?.as_map()
    }
    /// The value of a key in a map column of strings.
    pub fn map_get(&self, column: &str, key: &str) -> Option<&str> {
        self.get(column)?.map_get(key)
    }
    /// Names and values of all columns held, sorted by name.
    pub fn columns(&self) -> impl Iterator<Item = (&Arc<str>, &Value)> + '_ {
        self.layout.columns.iter().map(|(name, _)| name).zip(self.values.iter())
    }
    /// Values in the order of the layout.
    pub(crate) fn values(&self) -> &[Value] {
        &self.values
    }
    pub(crate) fn layout(&self) -> &Arc<TableLayout> {
        &self.layout
    }
}

impl PartialEq for Row {
    fn eq(&self, other: &Self) -> bool {
        self.uuid == other.uuid
            && if Arc::ptr_eq(&self.layout, &other.layout) {
                self.values == other.values
            } else {
                self.columns().eq(other.columns())
            }
    }
}
impl Eq for Row {}

impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ", self.layout.name, self.uuid)?;
        f.debug_map().entries(self.columns()).finish()
    }
}

/// One change of one row: inserted (`old` is `None`), deleted (`new` is `None`) or
/// modified.
#[derive(Clone, Debug, PartialEq)]
pub struct RowChange {
    /// The table.
    pub table: Arc<str>,
    /// The row.
    pub uuid: Uuid,
    /// Before.
    pub old: Option<Arc<Row>>,
    /// After.
    pub new: Option<Arc<Row>>,
}

/// The monitored content of a database at one instant.
#[derive(Clone)]
pub struct Replica {
    schema: Arc<Schema>,
    /// Sorted by name.
    tables: Arc<Vec<Arc<Table>>>,
}

impl Replica {
    /// An empty replica that holds the given columns (an empty list: all) of the
    /// given tables, as far as the schema has them, with an index for each of the
    /// schema's own and for each list of columns in `indexes` (table, columns).
    pub fn new(
        schema: Arc<Schema>,
        tables: &BTreeMap<String, Vec<String>>,
        indexes: &[(String, Vec<String>)],
    ) -> Self {
        Self::with_indexes(schema, tables, indexes, true)
    }

    /// The same, with or without those of the schema.
    pub(crate) fn with_indexes(
        schema: Arc<Schema>,
        tables: &BTreeMap<String, Vec<String>>,
        indexes: &[(String, Vec<String>)],
        of_schema: bool,
    ) -> Self {
        let tables = tables.iter().filter_map(|(name, columns)| {
            let extra = indexes.iter().filter(|(table, _)| table == name).map(|(_, columns)| columns);
            let wanted = (!columns.is_empty()).then_some(columns.as_slice());
            let table = schema.tables.get(name)?;
            let own: &[Vec<String>] = if of_schema { &table.indexes } else { &[] };
            let layout = TableLayout::new(name, table, wanted, own.iter().chain(extra));
            Some(Arc::new(Table::new(Arc::new(layout))))
        });
        let tables = Arc::new(tables.collect());
        Self { schema, tables }
    }

    /// The server's schema.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }
    /// A table; `None` when it is not monitored or the server lacks it.
    pub fn table(&self, name: &str) -> Option<&Table> {
        self.position(name).map(|i| &*self.tables[i])
    }
    /// All tables, sorted by name.
    pub fn tables(&self) -> impl Iterator<Item = &Table> + '_ {
        self.tables.iter().map(|t| &**t)
    }
    /// A row of a table.
    pub fn row(&self, table: &str, uuid: &Uuid) -> Option<&Arc<Row>> {
        self.table(table)?.get(uuid)
    }
    /// Number of rows in all tables.
    pub fn row_count(&self) -> usize {
        self.tables.iter().map(|t| t.len()).sum()
    }

    /// The same tables without rows.
    pub(crate) fn emptied(&self) -> Replica {
        let tables = self.tables.iter().map(|t| Arc::new(Table::new(t.layout().clone()))).collect();
        Self { schema: self.schema.clone(), tables: Arc::new(tables) }
    }
    /// The same content under another edition of the schema.
    pub(crate) fn with_schema(&self, schema: Arc<Schema>) -> Replica {
        Self { schema, tables: self.tables.clone() }
    }
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.tables.binary_search_by(|t| (**t.name()).cmp(name)).ok()
    }
    pub(crate) fn table_mut(&mut self, position: usize) -> &mut Table {
        Arc::make_mut(&mut Arc::make_mut(&mut self.tables)[position])
    }
    pub(crate) fn table_at(&self, position: usize) -> &Table {
        &self.tables[position]
    }
    /// Whether both hold the same columns with the same types and indexes.
    pub(crate) fn same_layout(&self, other: &Replica) -> bool {
        self.tables.len() == other.tables.len()
            && self.tables.iter().zip(other.tables.iter()).all(|(a, b)| a.layout() == b.layout())
    }

    /// Applies `<table-updates2>` of a monitor in text form, as `update2` and
    /// `update3` carry it: what a session does with each. On an error the replica is
    /// to be thrown away, since part of the update may have been applied.
    pub fn apply_updates(
        &mut self,
        json: &str,
        interner: &mut crate::notation::Interner,
    ) -> Result<Vec<RowChange>, crate::delta::UpdateError> {
        let deltas = crate::delta::parse(json, self, interner)?;
        crate::delta::apply(self, deltas)
    }

    /// Applies `<table-updates>` of RFC 7047 §4.1.6, which a plain `monitor` brings:
    /// whole rows, old and new. For servers that know no newer monitor. Like
    /// [`Self::apply_updates`] otherwise.
    pub fn apply_plain_updates(
        &mut self,
        json: &str,
        interner: &mut crate::notation::Interner,
    ) -> Result<Vec<RowChange>, crate::delta::UpdateError> {
        let deltas = crate::delta::parse_plain(json, self, interner)?;
        crate::delta::apply(self, deltas)
    }

    /// What turns `old` into `self`, by table and UUID.
    pub fn changes_since(&self, old: &Replica) -> Vec<RowChange> {
        let mut changes = Vec::new();
        for table in self.tables.iter() {
            let before = old.table(table.name());
            if before.is_some_and(|b| std::ptr::eq(b, &**table)) {
                continue;
            }
            for row in table.rows() {
                let was = before.and_then(|b| b.get(&row.uuid));
                if was.is_none_or(|w| !Arc::ptr_eq(w, row) && w != row) {
                    changes.push(RowChange {
                        table: table.name().clone(),
                        uuid: row.uuid,
                        old: was.cloned(),
                        new: Some(row.clone()),
                    });
                }
            }
        }
        for before in old.tables.iter() {
            let table = self.table(before.name());
            if table.is_some_and(|t| std::ptr::eq(t, &**before)) {
                continue;
            }
            for row in before.rows().filter(|row| table.is_none_or(|t| t.get(&row.uuid).is_none())) {
                changes.push(RowChange {
                    table: before.name().clone(),
                    uuid: row.uuid,
                    old: Some(row.clone()),
                    new: None,
                });
            }
        }
        changes.sort_unstable_by(|a, b| (&a.table, a.uuid).cmp(&(&b.table, b.uuid)));
        changes
    }
}

impl PartialEq for Replica {
    /// Same rows in the same tables.
    fn eq(&self, other: &Self) -> bool {
        self.tables.len() == other.tables.len()
            && self.tables.iter().zip(other.tables.iter()).all(|(a, b)| a.name() == b.name())
            && self.changes_since(other).is_empty()
    }
}

impl fmt::Debug for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.tables.iter().map(|t| (t.name(), t.rows().collect::<Vec<_>>()))).finish()
    }
}
