//! JSON-RPC 2.0 over a unix stream, one JSON document per line in both directions:
//! the transport under jsonrpsee's client.

use std::path::Path;

use jsonrpsee::core::client::async_client::ClientBuilder;
use jsonrpsee::core::client::{Client, ReceivedMessage, TransportReceiverT, TransportSenderT};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;

/// A broken connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The other end closed it.
    #[error("the connection was closed")]
    Closed,
    /// Reading or writing failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

struct Sender<W>(W);

impl<W: AsyncWrite + Unpin + Send + 'static> TransportSenderT for Sender<W> {
    type Error = Error;

    async fn send(&mut self, mut message: String) -> Result<(), Error> {
        message.push('\n');
        self.0.write_all(message.as_bytes()).await?;
        Ok(self.0.flush().await?)
    }

    async fn close(&mut self) -> Result<(), Error> {
        Ok(self.0.shutdown().await?)
    }
}

struct Receiver<R>(Lines<BufReader<R>>);

impl<R: AsyncRead + Unpin + Send + 'static> TransportReceiverT for Receiver<R> {
    type Error = Error;

    async fn receive(&mut self) -> Result<ReceivedMessage, Error> {
        self.0.next_line().await?.map(ReceivedMessage::Text).ok_or(Error::Closed)
    }
}

/// Connects to a diagnostics socket. Needs a tokio runtime.
pub(crate) async fn connect(socket: &Path) -> Result<Client, std::io::Error> {
    let (read, write) = UnixStream::connect(socket).await?.into_split();
    Ok(ClientBuilder::default().build_with_tokio(Sender(write), Receiver(BufReader::new(read).lines())))
}

#[cfg(test)]
mod tests {
    use jsonrpsee::core::client::{ClientT, Subscription, SubscriptionClientT};
    use jsonrpsee::core::params::ArrayParams;
    use jsonrpsee::rpc_params;
    use serde_json::{Value, json};
    use tokio::net::UnixListener;

    use super::*;

    /// Answers as the diagnostics servers do: status, explain, and one subscription
    /// with two changes.
    async fn serve(listener: UnixListener) {
        let (stream, _) = listener.accept().await.unwrap();
        let (read, mut write) = stream.into_split();
        let mut lines = BufReader::new(read).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let request: Value = serde_json::from_str(&line).unwrap();
            let mut answers = Vec::new();
            match request["method"].as_str().unwrap() {
                "status" => {
                    answers.push(json!({ "jsonrpc": "2.0", "id": request["id"], "result": { "ok": true } }))
                }
                "explain" => answers.push(
                    json!({ "jsonrpc": "2.0", "id": request["id"], "result": request["params"]["name"] }),
                ),
                "subscribe_changes" => {
                    answers.push(json!({ "jsonrpc": "2.0", "id": request["id"], "result": 7 }));
                    for seq in 1..3 {
                        answers.push(json!({
                            "jsonrpc": "2.0",
                            "method": "changes",
                            "params": { "subscription": 7, "result": { "seq": seq } },
                        }));
                    }
                }
                other => answers.push(json!({
                    "jsonrpc": "2.0",
                    "id": request["id"],
                    "error": { "code": -32601, "message": format!("no method {other}") },
                })),
            }
            for answer in answers {
                // The client may leave without waiting for its last answer.
                if write
                    .write_all(
                        format!(
                            "{answer}
"
                        )
                        .as_bytes(),
                    )
                    .await
                    .is_err()
                {
                    return;
                }
            }
        }
    }

    #[tokio::test]
    async fn requests_and_subscriptions() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let server = tokio::spawn(serve(UnixListener::bind(&socket).unwrap()));
        let client = connect(&socket).await.unwrap();

        let status: Value = client.request("status", ArrayParams::new()).await.unwrap();
        assert_eq!(status["ok"], true);
        let error = client.request::<Value, _>("nothing", rpc_params![]).await.unwrap_err();
        assert!(error.to_string().contains("no method nothing"), "{error}");

        let mut changes: Subscription<Value> =
            client.subscribe("subscribe_changes", rpc_params![], "unsubscribe_changes").await.unwrap();
        assert_eq!(changes.next().await.unwrap().unwrap()["seq"], 1);
        assert_eq!(changes.next().await.unwrap().unwrap()["seq"], 2);
        drop(changes);
        drop(client);
        server.await.unwrap();
    }
}
