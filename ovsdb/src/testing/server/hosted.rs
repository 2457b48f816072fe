//! A database with what a server keeps about it: transaction ids and history.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use uuid::Uuid;

use super::Model;
use crate::op::Operation;
use crate::replica::{Row, RowChange};
use crate::testing::builder::{SchemaBuilder, boolean, integer, string};
use crate::testing::database::Database;
use crate::value::Value;

/// One database of a server.
pub(super) struct Hosted {
    pub(super) database: Database,
    model: Model,
    /// Id of the last transaction; nil while there is none, and in a standalone
    /// database, which has no such ids.
    pub(super) last: Uuid,
    /// Commits so far.
    pub(super) index: i64,
    /// Ids and changes of the newest transactions, oldest first.
    history: VecDeque<(Uuid, Vec<RowChange>)>,
    limit: usize,
}

impl Hosted {
    pub(super) fn new(database: Database, model: Model, limit: usize) -> Self {
        let last = if model == Model::Clustered { Uuid::new_v4() } else { Uuid::nil() };
        Self { database, model, last, index: 1, history: VecDeque::new(), limit }
    }

    /// Notes a commit.
    pub(super) fn committed(&mut self, changes: &[RowChange]) {
        self.index += 1;
        if self.model == Model::Clustered {
            // The history tells what came after each id, so it begins with the id before.
            let before = std::mem::replace(&mut self.last, Uuid::new_v4());
            self.history.push_back((before, changes.to_vec()));
            while self.history.len() > self.limit {
                self.history.pop_front();
            }
        }
    }

    /// Forgets which transactions there were.
    pub(super) fn forget(&mut self) {
        self.history.clear();
        if self.model == Model::Clustered {
            self.last = Uuid::new_v4();
        }
    }

    /// What happened after a transaction, each row once; `None` if it is not known.
    pub(super) fn since(&self, last: Uuid) -> Option<Vec<RowChange>> {
        if self.model == Model::Standalone {
            return None;
        }
        if last == self.last {
            return Some(Vec::new());
        }
        let at = self.history.iter().position(|(before, _)| *before == last)?;
        let mut rows: BTreeMap<(Arc<str>, Uuid), RowChange> = BTreeMap::new();
        for change in self.history.iter().skip(at).flat_map(|(_, changes)| changes) {
            rows.entry((change.table.clone(), change.uuid))
                .and_modify(|earlier| earlier.new = change.new.clone())
                .or_insert_with(|| change.clone());
        }
        Some(rows.into_values().filter(|c| c.old != c.new).collect())
    }
}

/// What the `_Server` database of one member says about a database.
pub(super) struct Entry<'a> {
    pub(super) name: &'a str,
    pub(super) model: Model,
    pub(super) leader: bool,
    pub(super) connected: bool,
    pub(super) schema: String,
    pub(super) ids: Option<(Uuid, Uuid)>,
    pub(super) index: i64,
}

impl Entry<'_> {
    /// The transaction that makes the catalogue say so.
    pub(super) fn write(&self, catalogue: &Database) -> Vec<Operation> {
        let clustered = self.model == Model::Clustered;
        let (cid, sid) = self.ids.unzip();
        let columns = [
            ("model", Value::string(if clustered { "clustered" } else { "standalone" })),
            ("leader", Value::boolean(self.leader)),
            ("connected", Value::boolean(self.connected)),
            ("schema", Value::optional(Some(self.schema.as_str()))),
            ("cid", Value::optional(cid)),
            ("sid", Value::optional(sid)),
            ("index", Value::optional(clustered.then_some(self.index))),
        ];
        let name = Value::string(self.name);
        let replica = catalogue.replica();
        let known: Option<Arc<Row>> =
            replica.table("Database").and_then(|t| t.find_one("name", &name)).cloned();
        vec![match known {
            Some(row) => Operation::update("Database").by_uuid(row.uuid).columns(columns).build(),
            None => Operation::insert("Database").column("name", name).columns(columns).build(),
        }]
    }
}

/// An empty `_Server` database.
pub(super) fn catalogue() -> Database {
    let schema = SchemaBuilder::new("_Server", "1.2.0").table("Database", |t| {
        t.root()
            .scalar("name", string())
            .scalar("model", string().one_of(["clustered", "relay", "standalone"]))
            .scalar("connected", boolean())
            .scalar("leader", boolean())
            .optional("schema", string())
            .optional("cid", crate::testing::builder::uuid())
            .optional("sid", crate::testing::builder::uuid())
            .optional("index", integer())
    });
    Database::new(schema.build())
}
