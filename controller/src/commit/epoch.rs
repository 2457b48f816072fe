//! The fence: who may write (DESIGN: two controllers).
//!
//! A new leader writes its token to `NB_Global.external_ids:weir-epoch`, comparing
//! with the token it has seen before, and every transaction starts by waiting, for
//! no time at all, that the token is still its own. A leader that was paused and
//! wakes up after a hand-over is refused by the database itself.

use std::sync::Arc;

use ovsdb::{Condition, Function, Mutator, Operation, Row, Uuid, Value};

use crate::facts::Table;

/// Key of the token in `NB_Global.external_ids`.
pub const EPOCH_KEY: &str = "weir-epoch";

const COLUMN: &str = "external_ids";

/// Where we stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Epoch {
    /// Not the leader.
    #[default]
    Follower,
    /// The leader, token not yet in the database.
    Elected(Arc<str>),
    /// The token is being written: tag of the transaction, token, and the token
    /// that it replaces.
    Writing(u64, Arc<str>, Option<Arc<str>>),
    /// The token is in the database: we write.
    Held(Arc<str>),
    /// Another token replaced ours. Final until elected again.
    Fenced,
}

/// The token that the replica shows.
pub(super) fn token(row: Option<&Arc<Row>>) -> Option<&str> {
    row?.map_get(COLUMN, EPOCH_KEY)
}

/// First operation of every transaction: fails unless the token is ours. The wait
/// is for a non-empty selection, so that other keys of the column don't matter.
pub(super) fn fence(token: &str) -> Operation {
    holds(vec![includes(token)])
}

fn includes(token: &str) -> Condition {
    Condition::new(COLUMN, Function::Includes, Value::string_map([(EPOCH_KEY, token)]))
}

fn holds(where_: Vec<Condition>) -> Operation {
    Operation::Wait {
        table: Table::NbGlobal.name().into(),
        where_,
        columns: vec![COLUMN.into()],
        equal: false,
        rows: Vec::new(),
        timeout: Some(0),
    }
}

/// The transaction that makes the token ours, provided that the database still
/// shows what the replica shows.
pub(super) fn take_over(row: Option<&Arc<Row>>, token_: &str, fresh: Uuid) -> Vec<Operation> {
    let table = Table::NbGlobal.name();
    let ours = Value::string_map([(EPOCH_KEY, token_)]);
    let Some(row) = row else {
        return vec![Operation::insert(table).uuid(fresh).column(COLUMN, ours).build()];
    };
    let unchanged = match token(Some(row)) {
        Some(old) => holds(vec![Condition::uuid(row.uuid), includes(old)]),
        // A key's absence can't be asked for; the whole column can.
        None => {
            let column = row.get(COLUMN).cloned().unwrap_or_else(Value::empty_map);
            Operation::wait(table).by_uuid(row.uuid).column_equals(COLUMN, column).timeout(0).build()
        }
    };
    let write = Operation::mutate(table)
        .by_uuid(row.uuid)
        .mutation(COLUMN, Mutator::Delete, Value::strings([EPOCH_KEY]))
        .insert_map(COLUMN, ours);
    vec![unchanged, write.build()]
}
