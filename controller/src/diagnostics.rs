//! Diagnostics: JSON-RPC 2.0 on a local unix socket, for `weir`, the lab and tests.
//!
//! Flows in: requests of a person on this host (mode 0600: root only). Flows out:
//! what the controller sees and why it wants what it wants. Nothing can be changed.
//!
//! # Transport
//!
//! Newline-delimited JSON in both directions: every request is one line, every
//! response and every notification is one line. A client is therefore a loop over
//! lines (`echo '{"jsonrpc":"2.0","id":1,"method":"status"}' | socat - UNIX:…` works).
//! Answers may come in another order than their requests (match them by `id`);
//! notifications of a subscription come between them. Batches are not taken.
//!
//! # Methods
//!
//! - `status` → `{identity, version, leadership, watches, database, core, …}`: each
//!   watch with its age in seconds and the checksum of its content
//!   ([`crate::watch::fingerprint`]); `core.checksums` are those of the world that the
//!   pipeline works on, so a difference shows objects that are on their way.
//! - `explain {"kind", "namespace", "name"}` → the facts of an object and the unit that made each.
//! - `plan` → lines about the rows that the pipeline would change now; on a follower, what it
//!   would do if it led. Empty when database and desired state agree.
//! - `verify` → `{verified, units, seconds, differences, first}`: compiles everything anew and compares it
//!   with what is kept step by step. `differences` is 0 unless Weir has a bug; `first` tells the first
//!   hundred in words. The pipeline stands still meanwhile (about a second per 20,000 pods).
//! - `counters` → the core's numbers.
//! - `subscribe_changes` → a subscription id; then notifications `changes`, whose
//!   `params.result` is one change `{seq, unix_ms, change, …}`; `unsubscribe_changes [id]` ends
//!   it. A subscriber that is too slow loses changes and gets `{"change": "lagged", "missed": n}`.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use futures::future::BoxFuture;
use jsonrpsee::core::to_json_raw_value;
use jsonrpsee::types::ErrorObjectOwned;
use jsonrpsee::{Methods, RpcModule};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{broadcast, mpsc};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::facts::ObjectRef;
use crate::kube_io::resource::Resource;

/// Longest request line.
const LINE_LIMIT: u64 = 1 << 20;
/// Messages that may wait for one slow client.
const BUFFER: usize = 1_024;
/// Pause between attempts to bind.
const RETRY: std::time::Duration = std::time::Duration::from_secs(2);
/// JSON-RPC's codes.
const PARSE_ERROR: i32 = -32_700;
const INVALID_PARAMS: i32 = -32_602;
/// Our own: the core is gone (shutting down).
const UNAVAILABLE: i32 = -32_001;

/// What diagnostics ask for. Implemented by the runtime.
pub trait Source: Send + Sync + 'static {
    /// The whole state; `None` when the core does not answer any more.
    fn status(&self) -> BoxFuture<'_, Option<Value>>;
    /// What would change in the database.
    fn plan(&self) -> BoxFuture<'_, Option<Value>>;
    /// Whether what is kept step by step equals what follows from nothing.
    fn verify(&self) -> BoxFuture<'_, Option<Value>>;
    /// The facts of an object.
    fn explain(&self, object: ObjectRef) -> BoxFuture<'_, Option<Value>>;
    /// The core's numbers.
    fn counters(&self) -> BoxFuture<'_, Option<Value>>;
    /// A subscription to changes.
    fn changes(&self) -> broadcast::Receiver<Arc<Value>>;
}

#[derive(Deserialize)]
struct ExplainParams {
    kind: String,
    #[serde(default)]
    namespace: String,
    name: String,
}

fn error(code: i32, message: impl Into<String>) -> ErrorObjectOwned {
    ErrorObjectOwned::owned(code, message.into(), None::<()>)
}

fn unavailable() -> ErrorObjectOwned {
    error(UNAVAILABLE, "the controller is shutting down; ask again when it is back")
}

/// The methods over a source.
///
/// # Errors
/// A name that is registered twice, which would be a bug.
pub fn module(source: Arc<dyn Source>) -> Result<Methods, jsonrpsee::core::RegisterMethodError> {
    let mut module = RpcModule::new(source);
    module.register_async_method("status", |_, source, _| async move {
        source.status().await.ok_or_else(unavailable)
    })?;
    module.register_async_method("explain", |params, source, _| async move {
        let asked: ExplainParams = params.parse()?;
        let Some(resource) = Resource::find(&asked.kind) else {
            let text =
                format!("kind `{}` is unknown; give a plural or kind such as pods or Subnet", asked.kind);
            return Err(error(INVALID_PARAMS, text));
        };
        if resource.namespaced && asked.namespace.is_empty() {
            return Err(error(
                INVALID_PARAMS,
                format!("{} live in namespaces; give `namespace`", resource.plural),
            ));
        }
        let namespace = if resource.namespaced { asked.namespace } else { String::new() };
        let object = ObjectRef::namespaced(resource.kind, namespace, asked.name);
        source.explain(object).await.ok_or_else(unavailable)
    })?;
    module.register_async_method("plan", |_, source, _| async move {
        source.plan().await.ok_or_else(unavailable)
    })?;
    module.register_async_method("verify", |_, source, _| async move {
        source.verify().await.ok_or_else(unavailable)
    })?;
    module.register_async_method("counters", |_, source, _| async move {
        source.counters().await.ok_or_else(unavailable)
    })?;
    module.register_subscription(
        "subscribe_changes",
        "changes",
        "unsubscribe_changes",
        |_, pending, source, _| async move {
            let mut changes = source.changes();
            let sink = pending.accept().await?;
            loop {
                let change = tokio::select! {
                    () = sink.closed() => break,
                    change = changes.recv() => change,
                };
                let message = match change {
                    Ok(change) => to_json_raw_value(&change)?,
                    Err(broadcast::error::RecvError::Lagged(missed)) => {
                        to_json_raw_value(&json!({ "change": "lagged", "missed": missed }))?
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

/// Binds the socket: mode 0600, replacing a socket that nobody serves any more.
///
/// # Errors
/// A text that names the path and the remedy; also when another process serves it.
pub async fn bind(path: &Path) -> Result<UnixListener, String> {
    let wrong = |what: &str, error: &dyn std::fmt::Display| {
        format!(
            "diagnostics socket {}: {what}: {error}; choose another with --diagnostics-socket",
            path.display()
        )
    };
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(|error| wrong("folder", &error))?;
    }
    if path.exists() && UnixStream::connect(path).await.is_ok() {
        return Err(wrong("in use", &"another controller answers there"));
    }
    // Bound under another name, restricted, then moved into place: at no time is there a socket
    // that others may open, nor a moment without one when an old one is replaced.
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}", std::process::id()));
    let temporary = Path::new(&temporary);
    let _ = std::fs::remove_file(temporary);
    let listener = UnixListener::bind(temporary).map_err(|error| wrong("bind", &error))?;
    let placed = std::fs::set_permissions(temporary, std::fs::Permissions::from_mode(0o600))
        .and_then(|()| std::fs::rename(temporary, path));
    placed.map_err(|error| {
        let _ = std::fs::remove_file(temporary);
        wrong("place", &error)
    })?;
    Ok(listener)
}

/// Binds the socket, serves it until `stop`, and removes it. A process that still
/// answers there (the one we replace) is waited for; whatever else is wrong is said
/// once and tried again: the network must not depend on somebody being able to look
/// at it.
pub async fn run(path: &Path, methods: Methods, stop: CancellationToken) {
    let mut said = String::new();
    let listener = loop {
        match bind(path).await {
            Ok(listener) => break listener,
            Err(problem) if problem != said => {
                warn!(problem, "no diagnostics for now");
                said = problem;
            }
            Err(_) => {}
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RETRY) => {}
        }
    };
    let inode = || std::fs::metadata(path).map(|meta| meta.ino()).ok();
    let ours = inode();
    serve(listener, methods, stop).await;
    // A successor may have put its own socket there already.
    if ours.is_some() && inode() == ours {
        let _ = std::fs::remove_file(path);
    }
}

/// Serves connections until `stop`.
pub async fn serve(listener: UnixListener, methods: Methods, stop: CancellationToken) {
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let methods = methods.clone();
                let stop = stop.clone();
                tokio::spawn(async move {
                    tokio::select! {
                        () = stop.cancelled() => {}
                        result = connection(stream, methods) => {
                            if let Err(error) = result {
                                debug!(%error, "diagnostics connection ended");
                            }
                        }
                    }
                });
            }
            Err(error) => {
                // Out of file descriptors, most likely: wait for some to come back.
                warn!(%error, "diagnostics connection not accepted");
                tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            }
        }
    }
}

/// One client: reads request lines, writes answer and notification lines.
async fn connection(stream: UnixStream, methods: Methods) -> std::io::Result<()> {
    let (read, mut write) = stream.into_split();
    let (answers, mut outgoing) = mpsc::channel::<Box<RawValue>>(BUFFER);
    // Ends with the last sender: when the client stopped asking and no subscription is left.
    let writer = tokio::spawn(async move {
        while let Some(message) = outgoing.recv().await {
            write.write_all(message.get().as_bytes()).await?;
            write.write_all(b"\n").await?;
        }
        write.shutdown().await
    });
    let gone = CancellationToken::new();
    let _end_subscriptions = gone.clone().drop_guard();
    let mut reader = BufReader::new(read);
    let mut line = String::new();
    loop {
        line.clear();
        if (&mut reader).take(LINE_LIMIT).read_line(&mut line).await? == 0 {
            break;
        }
        if line.trim().is_empty() {
            continue;
        }
        let request = std::mem::take(&mut line);
        let (methods, answers, gone) = (methods.clone(), answers.clone(), gone.clone());
        tokio::spawn(async move {
            match methods.raw_json_request(request.trim(), BUFFER).await {
                Ok((answer, mut notifications)) => {
                    if answers.send(answer).await.is_err() {
                        return;
                    }
                    loop {
                        // Dropping the receiver ends the subscription.
                        let next = tokio::select! {
                            () = gone.cancelled() => break,
                            () = answers.closed() => break,
                            next = notifications.recv() => next,
                        };
                        let Some(notification) = next else { break };
                        if answers.send(notification).await.is_err() {
                            break;
                        }
                    }
                }
                Err(problem) => {
                    let text = json!({"jsonrpc": "2.0", "id": null,
                        "error": {"code": PARSE_ERROR, "message": format!("no JSON-RPC request: {problem}")}});
                    if let Ok(answer) = to_json_raw_value(&text) {
                        let _ = answers.send(answer).await;
                    }
                }
            }
        });
    }
    // The client closed its sending half: what it asked is still answered, subscriptions end.
    drop(answers);
    drop(_end_subscriptions);
    writer.await.map_err(std::io::Error::other)?
}
