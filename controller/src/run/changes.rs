//! The feed of changes for diagnostics: what goes into the core and what comes out.
//!
//! Flows in: inputs and outputs as they pass. Flows out: one JSON value each, to
//! whoever subscribed. Without a subscriber nothing is built.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use tokio::sync::broadcast;

use crate::io::{Input, KubeWrite, Output};
use crate::watch::plural;

/// Changes kept for a slow subscriber.
const KEPT: usize = 4_096;

/// The feed. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Changes {
    feed: broadcast::Sender<Arc<Value>>,
    seq: Arc<AtomicU64>,
}

impl Default for Changes {
    fn default() -> Self {
        Self { feed: broadcast::Sender::new(KEPT), seq: Arc::default() }
    }
}

impl Changes {
    /// A new subscription.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Value>> {
        self.feed.subscribe()
    }

    fn publish(&self, unix_ms: i64, build: impl FnOnce() -> Option<Value>) {
        let seq = self.seq.fetch_add(1, Ordering::Relaxed);
        if self.feed.receiver_count() == 0 {
            return;
        }
        if let Some(Value::Object(mut fields)) = build() {
            fields.insert("seq".to_owned(), seq.into());
            fields.insert("unix_ms".to_owned(), unix_ms.into());
            let _ = self.feed.send(Arc::new(Value::Object(fields)));
        }
    }

    /// An input on its way into the core.
    pub fn input(&self, unix_ms: i64, input: &Input) {
        self.publish(unix_ms, || input_json(input));
    }

    /// An output of the core.
    pub fn output(&self, unix_ms: i64, output: &Output) {
        self.publish(unix_ms, || output_json(output));
    }
}

fn input_json(input: &Input) -> Option<Value> {
    Some(match input {
        Input::Applied(object) => json!({
            "change": "applied",
            "object": object.reference().to_string(),
            "version": &*object.meta().resource_version,
        }),
        Input::Deleted(object) => json!({ "change": "deleted", "object": object.to_string() }),
        Input::Listed(kind, objects) => {
            json!({ "change": "listed", "kind": plural(*kind), "objects": objects.len() })
        }
        Input::NbLoaded { changes, .. } => json!({ "change": "database loaded", "rows": changes.len() }),
        Input::NbChanged { changes, .. } => json!({
            "change": "database changed",
            "rows": changes.iter().map(|change| json!({
                "table": &*change.table,
                "uuid": change.uuid.to_string(),
                "what": match (&change.old, &change.new) {
                    (None, _) => "inserted",
                    (_, None) => "deleted",
                    _ => "modified",
                },
            })).collect::<Vec<_>>(),
        }),
        Input::NbLost => json!({ "change": "database lost" }),
        Input::NbReply { tag, result } => json!({
            "change": "transaction answered",
            "tag": tag,
            "error": result.as_ref().err().map(|error| format!("{error:?}")),
        }),
        Input::Elected { epoch } => json!({ "change": "elected", "epoch": &**epoch }),
        Input::Fresh(kind, number) => {
            json!({ "change": "known anew", "kind": plural(*kind), "number": number })
        }
        Input::Deposed => json!({ "change": "deposed" }),
        Input::KubeReply { id, result } => json!({
            "change": "write answered",
            "id": id,
            "error": result.as_ref().err().map(|error| format!("{error:?}")),
        }),
        Input::Silent(nodes) => json!({ "change": "silent gateways", "nodes": nodes.len() }),
        Input::Tick => return None,
    })
}

fn output_json(output: &Output) -> Option<Value> {
    Some(match output {
        Output::Transact { tag, operations } => json!({
            "change": "transaction",
            "tag": tag,
            "operations": operations.iter().map(ovsdb::Operation::to_json).collect::<Vec<_>>(),
        }),
        Output::Kube { id, write } => {
            let (object, verb, content) = match write {
                KubeWrite::Patch { object, status: true, patch, .. } => (object, "patch status", Some(patch)),
                KubeWrite::Patch { object, patch, .. } => (object, "patch", Some(patch)),
                KubeWrite::Create { object, body } => (object, "create", Some(body)),
                KubeWrite::Delete { object, .. } => (object, "delete", None),
            };
            json!({ "change": "write", "id": id, "verb": verb, "object": object.to_string(), "content": content })
        }
        Output::Event(event) => json!({
            "change": "event",
            "object": event.object.to_string(),
            "reason": &*event.reason,
            "message": &*event.message,
        }),
        Output::Refresh(kind, number) => json!({ "change": "list", "kind": plural(*kind), "number": number }),
        Output::Fenced => json!({ "change": "fenced" }),
        Output::WakeAt(_) => return None,
    })
}
