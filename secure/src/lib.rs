//! The metrics port with TLS (`--secure-serving`, node contract §4.13, controller contract §8.1), of both programs.
//!
//! In: a TCP listener, the flags, the API server. Out: `/metrics` by TLS for those whom the API server lets read it
//! (a bearer token, asked about by TokenReview and SubjectAccessReview); probes by TLS and without, since kubelet sends
//! no token and its scheme is the manifest's. The certificate is made at start and lives in memory.

mod access;
mod http;
mod tls;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

pub use access::{Access, guard};
pub use http::http;
pub use tls::{Terms, server_config};

/// For the first byte, and then for the handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Connections that shook hands and wait to be served.
const WAITING: usize = 32;
/// First byte of a TLS connection (RFC 8446 §5.1, record type handshake).
const TLS: u8 = 22;

/// Serves until cancelled: `whole` to those who come by TLS, of others `probes` alone.
///
/// # Errors
/// When the listener breaks.
pub async fn serve(
    listener: TcpListener,
    config: Arc<rustls::ServerConfig>,
    whole: Router,
    probes: Router,
    cancel: CancellationToken,
) -> io::Result<()> {
    let address = listener.local_addr()?;
    let (secure, secured) = mpsc::channel(WAITING);
    let (plain, plainly) = mpsc::channel(WAITING);
    let probes = probes.fallback(|| async {
        (StatusCode::FORBIDDEN, "metrics are served by https alone (--secure-serving)\n").into_response()
    });
    let acceptor = TlsAcceptor::from(config);
    let stop = cancel.clone();
    let accepting = tokio::spawn(async move {
        stop.run_until_cancelled(accept(listener, acceptor, secure, plain)).await;
    });
    let by_tls = http(Sorted { streams: secured, address }, whole, cancel.clone());
    let others = http(Sorted { streams: plainly, address }, probes, cancel);
    tokio::join!(by_tls, others);
    accepting.abort();
    Ok(())
}

async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    secure: mpsc::Sender<(TlsStream<TcpStream>, SocketAddr)>,
    plain: mpsc::Sender<(TcpStream, SocketAddr)>,
) {
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Of the process's or the kernel's limits; they pass.
                tracing::warn!(error = %error, "a connection to the metrics port can't be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (acceptor, secure, plain) = (acceptor.clone(), secure.clone(), plain.clone());
        tokio::spawn(async move {
            let sorted = async {
                let mut first = [0];
                stream.peek(&mut first).await?;
                if first == [TLS] {
                    let stream = acceptor.accept(stream).await?;
                    let _ = secure.send((stream, peer)).await;
                } else {
                    let _ = plain.send((stream, peer)).await;
                }
                io::Result::Ok(())
            };
            match tokio::time::timeout(HANDSHAKE, sorted).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%peer, error = %error, "no TLS with the metrics port"),
                Err(_) => tracing::debug!(%peer, "a connection to the metrics port said nothing"),
            }
        });
    }
}

/// Connections of one kind, for axum.
struct Sorted<S> {
    streams: mpsc::Receiver<(S, SocketAddr)>,
    address: SocketAddr,
}

impl<S> axum::serve::Listener for Sorted<S>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    type Io = S;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (S, SocketAddr) {
        match self.streams.recv().await {
            Some(accepted) => accepted,
            // Nobody accepts any more: the process ends.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}
