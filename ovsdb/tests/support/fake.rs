//! A scripted server, and a proxy that can go silent.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ovsdb::Endpoint;
use ovsdb::framer::Framer;
use serde_json::{Value as Json, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

/// A listener on a temporary socket.
pub struct Fake {
    listener: UnixListener,
    path: PathBuf,
    _directory: tempfile::TempDir,
}

impl Fake {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        Self { listener: UnixListener::bind(&path).unwrap(), path, _directory: directory }
    }
    pub fn endpoint(&self) -> Endpoint {
        Endpoint::Unix(self.path.clone())
    }
    pub async fn accept(&self) -> Connection {
        let (stream, _) = tokio::time::timeout(super::PATIENCE, self.listener.accept())
            .await
            .expect("nobody connects")
            .unwrap();
        Connection { stream, framer: Framer::new(1 << 20) }
    }
}

pub struct Connection {
    stream: UnixStream,
    framer: Framer,
}

impl Connection {
    pub async fn receive(&mut self) -> Json {
        loop {
            if let Some(message) = self.framer.next_message().unwrap() {
                return serde_json::from_slice(&message).unwrap();
            }
            let read = tokio::time::timeout(super::PATIENCE, self.stream.read_buf(self.framer.buffer()));
            assert_ne!(read.await.expect("client is silent").unwrap(), 0, "client hung up");
        }
    }
    /// The next request, which must be this one; answers probes on the way.
    pub async fn expect(&mut self, method: &str) -> (Json, Json) {
        loop {
            let mut message = self.receive().await;
            let id = message["id"].take();
            if message["method"] == "echo" && method != "echo" {
                self.result(&id, json!([])).await;
                continue;
            }
            assert_eq!(message["method"], method, "{message}");
            return (id, message["params"].take());
        }
    }
    /// Whether the client has hung up.
    pub async fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        tokio::time::timeout(super::PATIENCE, self.stream.read_to_end(&mut rest)).await.is_ok()
    }
    pub async fn send(&mut self, message: Json) {
        self.stream.write_all(message.to_string().as_bytes()).await.unwrap();
    }
    pub async fn result(&mut self, id: &Json, result: Json) {
        self.send(json!({"id": id, "result": result, "error": null})).await;
    }
    pub async fn error(&mut self, id: &Json, error: Json) {
        self.send(json!({"id": id, "result": null, "error": error})).await;
    }
    /// Answers everything up to the monitor; its request's id and parameters.
    pub async fn greet(&mut self, monitor: &str) -> (Json, Json) {
        let (id, _) = self.expect("set_db_change_aware").await;
        self.result(&id, json!({})).await;
        let (id, _) = self.expect("monitor_cond").await;
        self.error(&id, json!("unknown database")).await;
        let (id, _) = self.expect("get_schema").await;
        self.result(&id, schema()).await;
        self.expect(monitor).await
    }
}

/// The schema that the scripted server has.
pub fn schema() -> Json {
    json!({"name": "Db", "version": "1.0.0", "tables": {"T": {"isRoot": true, "columns": {
        "name": {"type": "string"},
        "tags": {"type": {"key": "string", "min": 0, "max": "unlimited"}},
        "one": {"type": {"key": "integer", "min": 0, "max": 1}},
        "ids": {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}},
    }}}})
}

/// Passes connections on to a server until told to swallow everything: no byte
/// passes and nothing is closed, as when packets are dropped on the way.
pub struct Proxy {
    path: PathBuf,
    open: watch::Sender<bool>,
    pub accepted: Arc<AtomicUsize>,
    _directory: tempfile::TempDir,
}

impl Proxy {
    pub fn new(server: PathBuf) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("p");
        let listener = UnixListener::bind(&path).unwrap();
        let (open, is_open) = watch::channel(true);
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = accepted.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                let Ok(upstream) = UnixStream::connect(&server).await else { continue };
                let (client_read, client_write) = client.into_split();
                let (up_read, up_write) = upstream.into_split();
                tokio::spawn(pass(client_read, up_write, is_open.clone()));
                tokio::spawn(pass(up_read, client_write, is_open.clone()));
            }
        });
        Self { path, open, accepted, _directory: directory }
    }
    pub fn endpoint(&self) -> Endpoint {
        Endpoint::Unix(self.path.clone())
    }
    pub fn cut(&self) {
        self.open.send_replace(false);
    }
    pub fn heal(&self) {
        self.open.send_replace(true);
    }
}

async fn pass(
    mut from: tokio::net::unix::OwnedReadHalf,
    mut to: tokio::net::unix::OwnedWriteHalf,
    mut open: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        // What arrives during a cut waits, like a retransmission.
        if open.wait_for(|open| *open).await.is_err() || to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
    // The end of a connection does not get through a cut either.
    let _ = open.wait_for(|open| *open).await;
}
