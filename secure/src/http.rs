//! HTTP/1.1 on a listener, with a bound on the time in which a request's head has to come (node contract §2.1): whoever
//! connects and says nothing must not use up the process's descriptors.

use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

/// From the connection, or the last answer on it, to the end of the next request's head.
const HEAD: Duration = Duration::from_secs(3);

/// Serves until cancelled; then no connection is accepted any more, and requests that have come are answered.
pub async fn http<L: Listener>(mut listener: L, router: Router, cancel: CancellationToken) {
    let connections = TaskTracker::new();
    while let Some((stream, _)) = cancel.run_until_cancelled(listener.accept()).await {
        let router = router.clone();
        let service = service_fn(move |request| router.clone().oneshot(request));
        let mut connection = Box::pin(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD)
                .serve_connection(TokioIo::new(stream), service),
        );
        let stop = cancel.clone();
        connections.spawn(async move {
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                () = stop.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                tracing::debug!(error = %error, "an HTTP connection ended");
            }
        });
    }
    // Clients that connect from now on are refused instead of waiting.
    drop(listener);
    connections.close();
    connections.wait().await;
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::Notify;

    async fn answer(mut stream: TcpStream) -> String {
        let mut text = String::new();
        let read = stream.read_to_string(&mut text);
        tokio::time::timeout(Duration::from_secs(60), read).await.unwrap().unwrap();
        text
    }

    #[tokio::test]
    async fn who_says_nothing_is_hung_up_on_and_who_asked_gets_an_answer_at_the_end() {
        let (come, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (told, wait) = (come.clone(), go.clone());
        let slow = get(|| async move {
            told.notify_one();
            wait.notified().await;
            "x"
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cancel = CancellationToken::new();
        let serving = tokio::spawn(http(listener, Router::new().route("/", slow), cancel.clone()));
        let connect = async |text: &str| {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(text.as_bytes()).await.unwrap();
            stream
        };
        for half in ["", "GET / HTTP/1.1\r\nhost: x\r\n"] {
            assert_eq!(answer(connect(half).await).await, "", "{half:?}");
        }
        let asked = connect("GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
        come.notified().await;
        cancel.cancel();
        // No more are accepted.
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
        assert!(!serving.is_finished(), "the call runs yet");
        go.notify_one();
        assert!(answer(asked).await.ends_with("\r\n\r\nx"));
        serving.await.unwrap();
    }
}
