//! The diagnostics API over a real unix socket.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use controller::diagnostics::{self, Source};
use controller::facts::{Kind, ObjectRef};
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

struct Fixed {
    changes: broadcast::Sender<Arc<Value>>,
}

impl Source for Fixed {
    fn status(&self) -> BoxFuture<'_, Option<Value>> {
        Box::pin(async { Some(json!({"version": "test"})) })
    }
    fn plan(&self) -> BoxFuture<'_, Option<Value>> {
        Box::pin(async { Some(json!(["insert Logical_Switch join"])) })
    }
    fn verify(&self) -> BoxFuture<'_, Option<Value>> {
        Box::pin(async { Some(json!({"differences": 0})) })
    }
    fn explain(&self, object: ObjectRef) -> BoxFuture<'_, Option<Value>> {
        Box::pin(async move { (object.kind != Kind::Node).then(|| json!({"object": object.to_string()})) })
    }
    fn counters(&self) -> BoxFuture<'_, Option<Value>> {
        Box::pin(async { Some(json!({"compiled": 7})) })
    }
    fn changes(&self) -> broadcast::Receiver<Arc<Value>> {
        self.changes.subscribe()
    }
}

struct Served {
    path: PathBuf,
    changes: broadcast::Sender<Arc<Value>>,
    _folder: tempfile::TempDir,
    _stop: tokio_util::sync::DropGuard,
}

async fn served(kept: usize) -> Served {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run/controller.sock");
    let changes = broadcast::Sender::new(kept);
    let methods = diagnostics::module(Arc::new(Fixed { changes: changes.clone() })).unwrap();
    let stop = CancellationToken::new();
    let listener = diagnostics::bind(&path).await.unwrap();
    tokio::spawn(diagnostics::serve(listener, methods, stop.clone()));
    Served { path, changes, _folder: folder, _stop: stop.drop_guard() }
}

struct Client {
    lines: Lines<BufReader<OwnedReadHalf>>,
    write: OwnedWriteHalf,
}

impl Client {
    async fn connect(served: &Served) -> Self {
        let (read, write) = UnixStream::connect(&served.path).await.unwrap().into_split();
        Self { lines: BufReader::new(read).lines(), write }
    }

    async fn send(&mut self, line: &str) {
        self.write.write_all(line.as_bytes()).await.unwrap();
        self.write.write_all(b"\n").await.unwrap();
    }

    async fn next(&mut self) -> Value {
        let line = tokio::time::timeout(Duration::from_secs(20), self.lines.next_line()).await;
        serde_json::from_str(&line.expect("in time").unwrap().expect("a line")).unwrap()
    }

    async fn call(&mut self, method: &str, params: Value) -> Value {
        self.send(&json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string()).await;
        self.next().await
    }
}

#[tokio::test]
async fn questions_are_answered_on_one_line_each() {
    let served = served(8).await;
    let mut client = Client::connect(&served).await;
    assert_eq!(client.call("status", json!([])).await["result"]["version"], "test");
    assert_eq!(client.call("counters", json!([])).await["result"]["compiled"], 7);
    assert_eq!(client.call("plan", json!([])).await["result"][0], "insert Logical_Switch join");
    assert_eq!(client.call("verify", json!([])).await["result"]["differences"], 0);
    let asked = json!({"kind": "pods", "namespace": "a", "name": "b"});
    assert_eq!(client.call("explain", asked).await["result"]["object"], "Pod a/b");
    let asked = json!({"kind": "Subnet", "name": "s"});
    assert_eq!(client.call("explain", asked).await["result"]["object"], "Subnet s");
    client.send(r#"{"jsonrpc":"2.0","id":"x","method":"status"}"#).await;
    assert_eq!(client.next().await["id"], "x", "params may be absent");
}

#[tokio::test]
async fn mistakes_are_named() {
    let served = served(8).await;
    let mut client = Client::connect(&served).await;
    client.send("not json").await;
    assert_eq!(client.next().await["error"]["code"], -32_700);
    assert_eq!(client.call("no_such", json!([])).await["error"]["code"], -32_601);
    let error = client.call("explain", json!({"kind": "cows", "name": "b"})).await;
    assert!(error["error"]["message"].as_str().unwrap().contains("cows"), "{error}");
    let error = client.call("explain", json!({"kind": "pods", "name": "b"})).await;
    assert!(error["error"]["message"].as_str().unwrap().contains("namespace"), "{error}");
    let error = client.call("explain", json!({"kind": "Node", "name": "n"})).await;
    assert!(error["error"]["message"].as_str().unwrap().contains("shutting down"), "{error}");
    assert!(client.call("status", json!([])).await["result"].is_object(), "the connection survives all that");
}

#[tokio::test]
async fn subscriptions_deliver_and_end() {
    let served = served(8).await;
    let mut client = Client::connect(&served).await;
    let id = client.call("subscribe_changes", json!([])).await["result"].clone();
    assert_eq!(served.changes.receiver_count(), 1);
    served.changes.send(Arc::new(json!({"change": "applied"}))).unwrap();
    let note = client.next().await;
    assert_eq!(note["method"], "changes");
    assert_eq!(note["params"], json!({"subscription": id, "result": {"change": "applied"}}));
    // Other questions are answered meanwhile.
    assert_eq!(client.call("counters", json!([])).await["result"]["compiled"], 7);
    assert_eq!(client.call("unsubscribe_changes", json!([id])).await["result"], true);
    while served.changes.receiver_count() > 0 {
        tokio::task::yield_now().await;
    }
    // A client that goes away ends its subscriptions too.
    client.call("subscribe_changes", json!([])).await;
    drop(client);
    while served.changes.receiver_count() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_client_that_stops_asking_still_gets_its_answers() {
    let served = served(8).await;
    let mut client = Client::connect(&served).await;
    client.send(r#"{"jsonrpc":"2.0","id":1,"method":"status"}"#).await;
    client.write.shutdown().await.unwrap();
    assert_eq!(client.next().await["result"]["version"], "test");
    assert!(client.lines.next_line().await.unwrap().is_none(), "then the connection ends");
}

#[tokio::test]
async fn the_socket_is_private_and_a_stale_one_is_replaced() {
    let served = served(8).await;
    let mode = std::fs::metadata(&served.path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let error = diagnostics::bind(&served.path).await.unwrap_err();
    assert!(error.contains("in use") && error.contains("--diagnostics-socket"), "{error}");

    let stale = served.path.with_file_name("stale.sock");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    assert!(UnixStream::connect(&stale).await.is_err());
    let _listener = diagnostics::bind(&stale).await.unwrap();
    assert!(UnixStream::connect(&stale).await.is_ok());
    let left: Vec<_> =
        std::fs::read_dir(stale.parent().unwrap()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "no temporary name is left: {left:?}");
}
