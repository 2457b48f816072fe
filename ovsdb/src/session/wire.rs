//! Messages of JSON-RPC 1.0 as OVSDB speaks it (RFC 7047 §4).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{BufMut, BytesMut};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::error::{OperationResult, TransactError};
use crate::op::Operation;
use crate::schema::Schema;
use crate::value::Value;

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(default)]
    error: Option<RpcError>,
}

/// An error instead of a result: an object, or just a string.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum RpcError {
    Named {
        error: String,
        #[serde(default)]
        details: String,
    },
    Text(String),
    Other(serde_json::Value),
}

impl RpcError {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Named { error, .. } | Self::Text(error) => error,
            Self::Other(_) => "error",
        }
    }
    pub(super) fn details(&self) -> String {
        match self {
            Self::Named { details, .. } => details.clone(),
            Self::Text(_) => String::new(),
            Self::Other(json) => json.to_string(),
        }
    }
}

/// An incoming message, borrowing from its text.
pub(super) enum Message<'a> {
    Request { id: &'a RawValue, method: Cow<'a, str>, params: Option<&'a RawValue> },
    Notification { method: Cow<'a, str>, params: Option<&'a RawValue> },
    Reply { id: u64, result: Result<Option<&'a RawValue>, RpcError> },
}

/// Reads a message.
pub(super) fn parse(text: &[u8]) -> Result<Message<'_>, String> {
    let e: Envelope<'_> = serde_json::from_slice(text).map_err(|e| format!("unreadable message: {e}"))?;
    match (e.method, e.id) {
        (Some(method), Some(id)) => Ok(Message::Request { id, method, params: e.params }),
        (Some(method), None) => Ok(Message::Notification { method, params: e.params }),
        (None, Some(id)) => {
            // Our ids are numbers; any other is no reply to us.
            let id = id.get().parse().map_err(|_| format!("reply with the unknown id {}", id.get()))?;
            Ok(Message::Reply { id, result: e.error.map_or(Ok(e.result), Err) })
        }
        (None, None) => Err("message without method and id".into()),
    }
}

#[derive(Serialize)]
struct OutRequest<'a, P> {
    method: &'a str,
    params: P,
    id: u64,
}

#[derive(Serialize)]
struct OutNotification<'a, P> {
    method: &'a str,
    params: P,
    id: Option<()>,
}

#[derive(Serialize)]
struct OutReply<'a> {
    result: Option<&'a RawValue>,
    error: Option<()>,
    id: &'a RawValue,
}

/// `[database, operation, …]`
struct TransactParams<'a>(&'a str, &'a [Operation]);

impl Serialize for TransactParams<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeSeq;
        let mut seq = s.serialize_seq(Some(1 + self.1.len()))?;
        seq.serialize_element(self.0)?;
        for operation in self.1 {
            seq.serialize_element(operation)?;
        }
        seq.end()
    }
}

fn write(out: &mut BytesMut, message: &impl Serialize) {
    // Maps have string keys and the buffer grows: there is nothing to fail.
    let _ = serde_json::to_writer(out.writer(), message);
}

/// Appends a request.
pub(super) fn write_request(out: &mut BytesMut, id: u64, method: &str, params: impl Serialize) {
    write(out, &OutRequest { method, params, id });
}

/// Appends a notification: a request that has no answer.
pub(super) fn write_notification(out: &mut BytesMut, method: &str, params: impl Serialize) {
    write(out, &OutNotification { method, params, id: None });
}

/// Appends a `transact` request.
pub(super) fn write_transact(out: &mut BytesMut, id: u64, database: &str, operations: &[Operation]) {
    write_request(out, id, "transact", TransactParams(database, operations));
}

/// Appends the answer to a server's `echo`.
pub(super) fn write_echo_reply(out: &mut BytesMut, id: &RawValue, params: Option<&RawValue>) {
    write(out, &OutReply { result: params, error: None, id });
}

#[derive(Deserialize)]
struct InResult {
    count: Option<u64>,
    uuid: Option<(String, Uuid)>,
    rows: Option<Vec<BTreeMap<Arc<str>, serde_json::Value>>>,
    error: Option<String>,
    #[serde(default)]
    details: String,
}

/// Reads the result of a `transact` of `count` operations. `tables` gives the
/// table of each operation that returns rows.
pub(super) fn parse_results(
    result: Option<&RawValue>,
    count: usize,
    tables: &[Option<Arc<str>>],
    schema: Option<&Schema>,
) -> Result<Vec<OperationResult>, TransactError> {
    let unreadable = |details: String| TransactError::from_wire("unreadable reply", None, details);
    let text = result.map_or("[]", RawValue::get);
    let items: Vec<Option<InResult>> = serde_json::from_str(text).map_err(|e| unreadable(e.to_string()))?;
    // A failed commit is one element more than there were operations.
    if let Some((index, error, details)) = items
        .iter()
        .enumerate()
        .find_map(|(i, r)| r.as_ref().and_then(|r| Some((i, r.error.as_ref()?, &r.details))))
    {
        return Err(TransactError::from_wire(error, (index < count).then_some(index), details.clone()));
    }
    let mut results = Vec::with_capacity(count);
    for (index, item) in items.into_iter().take(count).enumerate() {
        let Some(item) = item else { return Err(unreadable(format!("no result of operation {index}"))) };
        let table = tables.get(index).cloned().flatten();
        let rows = item.rows.map(|rows| rows.into_iter().map(|row| read_row(row, table.as_deref(), schema)));
        let rows = rows.map(Iterator::collect::<Result<Vec<_>, _>>).transpose();
        results.push(OperationResult {
            count: item.count,
            uuid: item.uuid.map(|(_, uuid)| uuid),
            rows: rows.map_err(|e| unreadable(e.to_string()))?,
        });
    }
    if results.len() == count {
        Ok(results)
    } else {
        Err(unreadable(format!("{} results of {count} operations", results.len())))
    }
}

fn read_row(
    row: BTreeMap<Arc<str>, serde_json::Value>,
    table: Option<&str>,
    schema: Option<&Schema>,
) -> Result<BTreeMap<Arc<str>, Value>, serde_json::Error> {
    row.into_iter()
        .map(|(name, json)| {
            let column = table.and_then(|t| schema?.column(t, &name));
            let value = match column {
                Some(column) => Value::from_json(&json, &column.ty)?,
                None => Value::from_json_untyped(&json)?,
            };
            Ok((name, value))
        })
        .collect()
}
