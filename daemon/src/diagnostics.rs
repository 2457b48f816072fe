//! Diagnostics: JSON-RPC 2.0 on a local unix socket, one document a line in
//! both directions; the same shape as the controller's.
//!
//! - `status` → version, what is missing, the node's steps, watches with age
//!   and checksum, the switch's session.
//! - `explain {"kind": "Pod", "namespace", "name"}` → the pod as watched, what
//!   an ADD would make of it or waits for, and its interfaces in the switch.
//!   `{"kind": "Subnet" | "Node", "name"}` → the object as watched.
//! - `log {"filter": "info,daemon=debug"}` → the log's filter from now on; without `filter` only what it is, with an
//!   empty one back to that of the start.
//! - `subscribe_changes` → notifications `changes`; `unsubscribe_changes [id]`.

use std::sync::Arc;

use cni::api::CniRequest;
use jsonrpsee::core::to_json_raw_value;
use jsonrpsee::types::ErrorObjectOwned;
use jsonrpsee::{Methods, RpcModule};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{broadcast, mpsc};

use crate::changes::Changes;
use crate::kube::{Fact, PodFacts};
use crate::plug::{Plugger, wanted};
use crate::readiness::Readiness;

/// Longest request line in bytes.
const LINE_LIMIT: u64 = 1 << 16;
/// Messages that may wait for one slow client.
const BUFFER: usize = 256;
const PARSE_ERROR: i32 = -32_700;
const INVALID_PARAMS: i32 = -32_602;

/// What diagnostics look at.
pub struct Source {
    /// What is missing.
    pub readiness: Readiness,
    /// Pods, subnets, switch.
    pub plugger: Arc<Plugger>,
    /// The feed.
    pub changes: Changes,
}

#[derive(Deserialize)]
struct Log {
    #[serde(default)]
    filter: Option<String>,
}

#[derive(Deserialize)]
struct Explain {
    kind: String,
    #[serde(default)]
    namespace: String,
    name: String,
}

impl Source {
    fn status(&self) -> Value {
        let session = self.plugger.ovs.session_state();
        let missing = self.readiness.missing();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "node": self.plugger.node,
            "ready": missing.is_empty(),
            "missing": missing,
            "network": *self.readiness.node.borrow(),
            "watches": self.plugger.cluster.status(),
            "ovs": {
                "endpoint": session.endpoint.map(|endpoint| format!("{endpoint:?}")),
                "synced": session.synced,
                "connections": session.connections,
                "resyncs": session.resyncs,
                "last_error": session.last_error,
            },
            "events_dropped": self.plugger.recorder.dropped(),
        })
    }

    fn explain(&self, asked: &Explain) -> Result<Value, ErrorObjectOwned> {
        let name: Arc<str> = asked.name.as_str().into();
        let debug = |object: Option<String>| json!({"object": object});
        match asked.kind.to_lowercase().as_str() {
            "pod" | "pods" => Ok(self.explain_pod(&asked.namespace, &asked.name)),
            "subnet" | "subnets" => {
                Ok(debug(self.plugger.cluster.subnets.object(&name).map(|object| format!("{object:?}"))))
            }
            "node" | "nodes" => {
                let object = self.plugger.cluster.nodes.object(&name).map(|object| format!("{object:?}"));
                let own = asked.name == self.plugger.node;
                let limits = if own { self.plugger.limits.get(crate::node::OVN0) } else { None };
                Ok(json!({"object": object, "limits": limits}))
            }
            other => Err(ErrorObjectOwned::owned(
                INVALID_PARAMS,
                format!("kind {other:?} is unknown here; ask for Pod, Subnet or Node"),
                None::<()>,
            )),
        }
    }

    fn explain_pod(&self, namespace: &str, name: &str) -> Value {
        let pod = self.plugger.cluster.pods.object(&PodFacts::key(namespace, name));
        let interfaces: Vec<Value> = self
            .plugger
            .ovs
            .view()
            .interfaces()
            .filter(|interface| {
                interface.external_id("pod_name") == Some(name)
                    && interface.external_id("pod_namespace") == Some(namespace)
            })
            .map(|interface| {
                let ids: serde_json::Map<String, Value> =
                    interface.external_ids().map(|(key, value)| (key.to_owned(), json!(value))).collect();
                json!({
                    "name": interface.name(), "external_ids": ids, "ofport": interface.ofport(),
                    "link_state": interface.link_state(), "error": interface.error(),
                    "limits": self.plugger.limits.get(interface.name()),
                })
            })
            .collect();
        let request = CniRequest {
            cni_type: cni::api::PLUGIN_TYPE.to_owned(),
            pod_name: name.to_owned(),
            pod_namespace: namespace.to_owned(),
            if_name: "eth0".to_owned(),
            ..CniRequest::default()
        };
        let add = pod.as_ref().map(|pod| match wanted::readiness(&request, pod) {
            wanted::Readiness::Ready(wanted) => json!({"ready": format!("{wanted:?}")}),
            wanted::Readiness::Waiting(stage, reason) => json!({"waits": stage.as_str(), "reason": reason}),
            wanted::Readiness::Failed(error) => json!({"fails": error.to_string()}),
        });
        json!({
            "known": pod.is_some(),
            "uid": pod.as_ref().map(|pod| pod.uid.clone()),
            "annotations": pod.as_ref().map(|pod| pod.annotations.clone()),
            "add": add,
            "interfaces": interfaces,
        })
    }
}

/// The methods over a source.
///
/// # Errors
/// A name that is registered twice, which would be a bug.
pub fn module(source: Source) -> Result<Methods, jsonrpsee::core::RegisterMethodError> {
    let mut module = RpcModule::new(source);
    module.register_method("status", |_, source, _| source.status())?;
    module.register_method("explain", |params, source, _| {
        let asked: Explain = params.parse()?;
        source.explain(&asked)
    })?;
    module.register_method("log", |params, _, _| {
        let asked: Log = params.parse()?;
        let filter = match asked.filter {
            None => Ok(crate::logs::filter()),
            Some(text) => crate::logs::set_filter(&text),
        };
        filter
            .map(|filter| json!({"filter": filter}))
            .map_err(|why| ErrorObjectOwned::owned(INVALID_PARAMS, why, None::<()>))
    })?;
    module.register_subscription(
        "subscribe_changes",
        "changes",
        "unsubscribe_changes",
        |_, pending, source, _| async move {
            let mut changes = source.changes.subscribe();
            let sink = pending.accept().await?;
            loop {
                let change = tokio::select! {
                    () = sink.closed() => break,
                    change = changes.recv() => change,
                };
                let message = match change {
                    Ok(change) => to_json_raw_value(&change)?,
                    Err(broadcast::error::RecvError::Lagged(missed)) => {
                        to_json_raw_value(&json!({"change": "lagged", "missed": missed}))?
                    }
                    Err(broadcast::error::RecvError::Closed) => break,
                };
                if sink.send(message).await.is_err() {
                    break;
                }
            }
            Ok(())
        },
    )?;
    Ok(module.into())
}

/// Serves connections for ever.
pub async fn serve(listener: UnixListener, methods: Methods) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let methods = methods.clone();
                tokio::spawn(async move {
                    if let Err(error) = connection(stream, methods).await {
                        tracing::debug!(error = %error, "a diagnostics connection ended");
                    }
                });
            }
            Err(error) => {
                // Out of descriptors, most likely: some come back.
                tracing::warn!(error = %error, "a diagnostics connection was not accepted");
                tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            }
        }
    }
}

/// One client: request lines in, answer and notification lines out, until the
/// client closes its side.
async fn connection(stream: UnixStream, methods: Methods) -> std::io::Result<()> {
    let (read, mut write) = stream.into_split();
    let (answers, mut outgoing) = mpsc::channel::<Box<RawValue>>(BUFFER);
    let writer = tokio::spawn(async move {
        while let Some(message) = outgoing.recv().await {
            write.write_all(message.get().as_bytes()).await?;
            write.write_all(b"\n").await?;
        }
        Ok::<_, std::io::Error>(())
    });
    // Dropped with this function: ends the calls and subscriptions.
    let mut calls = tokio::task::JoinSet::new();
    let mut reader = BufReader::new(read);
    loop {
        let mut line = String::new();
        if (&mut reader).take(LINE_LIMIT).read_line(&mut line).await? == 0 {
            break;
        }
        if line.trim().is_empty() {
            continue;
        }
        let (methods, answers) = (methods.clone(), answers.clone());
        calls.spawn(async move { call(&methods, line.trim(), &answers).await });
        while calls.try_join_next().is_some() {}
    }
    drop(answers);
    // What was asked is answered; subscriptions have no end of their own.
    let _ = tokio::time::timeout(std::time::Duration::from_millis(200), async {
        while calls.join_next().await.is_some() {}
    })
    .await;
    calls.shutdown().await;
    writer.await.map_err(std::io::Error::other)?
}

async fn call(methods: &Methods, request: &str, answers: &mpsc::Sender<Box<RawValue>>) {
    match methods.raw_json_request(request, BUFFER).await {
        Ok((answer, mut notifications)) => {
            if answers.send(answer).await.is_err() {
                return;
            }
            while let Some(notification) = notifications.recv().await {
                if answers.send(notification).await.is_err() {
                    return;
                }
            }
        }
        Err(problem) => {
            let text = json!({"jsonrpc": "2.0", "id": null,
                "error": {"code": PARSE_ERROR, "message": format!("no JSON-RPC request: {problem}")}});
            if let Ok(answer) = to_json_raw_value(&text) {
                // The client may be gone.
                let _ = answers.send(answer).await;
            }
        }
    }
}
