//! Probes and metrics over HTTP, port 10665 (node contract §4.13).
//!
//! `/livez` and `/healthz` make a call on the CNI socket, which notices a server that
//! hangs and a deleted socket file; `/readyz` names what is missing; `/metrics` when enabled.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, UnixStream};

use crate::flags::Flags;
use crate::gateway::Counters;
use crate::metrics::Metrics;
use crate::readiness::Readiness;

/// How long the CNI socket may take to answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// What the handlers look at.
#[derive(Clone)]
pub struct Health {
    /// The CNI socket.
    pub socket: PathBuf,
    /// Whether an ADD could succeed.
    pub readiness: Readiness,
    /// Metrics, when they are served.
    pub metrics: Option<Arc<Metrics>>,
    /// Counters that are read when metrics are asked for.
    pub counters: Arc<Counters>,
}

/// The routes.
pub fn router(health: Health) -> Router {
    probes(health.clone()).merge(figures(health))
}

/// Those that kubelet asks.
pub fn probes(health: Health) -> Router {
    Router::new()
        .route("/healthz", get(live))
        .route("/livez", get(live))
        .route("/readyz", get(ready))
        .with_state(health)
}

/// The metrics.
pub fn figures(health: Health) -> Router {
    Router::new().route("/metrics", get(metrics)).with_state(health)
}

async fn live(State(health): State<Health>) -> Response {
    match tokio::time::timeout(CALL_TIMEOUT, call(&health.socket)).await {
        Ok(Ok(())) => "ok".into_response(),
        Ok(Err(error)) => unavailable(format!("the CNI socket {}: {error}", health.socket.display())),
        Err(_) => unavailable(format!("the CNI socket {} does not answer", health.socket.display())),
    }
}

/// Asks the CNI server for its status, as a CNI executable would. Any answer is a sign of life: whether pods can be
/// plugged is the question of `/readyz`.
async fn call(socket: &Path) -> std::io::Result<()> {
    let stream = UnixStream::connect(socket).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(std::io::Error::other)?;
    let request = hyper::Request::get(cni::api::STATUS_PATH)
        .header(hyper::header::HOST, "localhost")
        .body(axum::body::Body::empty())
        .map_err(std::io::Error::other)?;
    tokio::select! {
        answer = sender.send_request(request) => answer.map(drop).map_err(std::io::Error::other),
        ended = connection => Err(std::io::Error::other(format!("it closed the connection: {ended:?}"))),
    }
}

async fn ready(State(health): State<Health>) -> Response {
    let missing = health.readiness.missing();
    if missing.is_empty() {
        return "ok".into_response();
    }
    unavailable(missing.iter().map(|step| format!("{step}\n")).collect())
}

async fn metrics(State(health): State<Health>) -> Response {
    match &health.metrics {
        Some(metrics) => {
            health.counters.sample().await;
            (
                [(
                    axum::http::header::CONTENT_TYPE,
                    "application/openmetrics-text; version=1.0.0; charset=utf-8",
                )],
                metrics.render(),
            )
                .into_response()
        }
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

fn unavailable(text: String) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
}

/// Where to listen: everywhere, or on the pod's own addresses.
pub fn addresses(flags: &Flags, port: u16) -> Vec<SocketAddr> {
    let local = flags.env.enable_bind_local_ip.as_deref() == Some("true");
    let own: Vec<IpAddr> = flags
        .env
        .pod_ips
        .as_deref()
        .filter(|_| local)
        .unwrap_or_default()
        .split(',')
        .filter_map(|ip| ip.trim().parse().ok())
        .collect();
    let own = if own.is_empty() { vec![IpAddr::V6(Ipv6Addr::UNSPECIFIED)] } else { own };
    own.into_iter().map(|ip| SocketAddr::new(ip, port)).collect()
}

/// Binds an address by `bind`; "everywhere" falls back to IPv4 on a host without IPv6.
///
/// # Errors
/// As `bind`.
pub async fn or_ipv4<T, F>(address: SocketAddr, bind: impl Fn(SocketAddr) -> F) -> std::io::Result<T>
where
    F: Future<Output = std::io::Result<T>>,
{
    match bind(address).await {
        Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) && address.ip().is_unspecified() => {
            bind((std::net::Ipv4Addr::UNSPECIFIED, address.port()).into()).await
        }
        result => result,
    }
}

/// Binds an address; "everywhere" falls back to IPv4 on a host without IPv6.
///
/// # Errors
/// When the port is taken.
pub async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    or_ipv4(address, TcpListener::bind).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[tokio::test]
    async fn a_server_that_is_gone_or_hangs_or_hangs_up_is_dead() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.sock");
        let asked = async || tokio::time::timeout(Duration::from_millis(300), call(&path)).await;
        assert!(asked().await.unwrap().is_err(), "its file was deleted");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        assert!(asked().await.is_err(), "it accepts and never answers");
        let closing = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                drop(stream);
            }
        });
        assert!(asked().await.unwrap().is_err(), "it hangs up");
        closing.abort();
        let _ = closing.await;
        std::fs::remove_file(&path).unwrap();
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        // Any answer is a sign of life.
        let router = Router::new().route("/other", get(|| async { "x" }));
        tokio::spawn(async move { axum::serve(listener, router).await });
        asked().await.unwrap().unwrap();
    }

    #[test]
    fn own_addresses_are_used_when_asked_for() {
        let mut flags = Flags::parse_from(["x"]);
        assert_eq!(addresses(&flags, 10665), ["[::]:10665".parse().unwrap()]);
        flags.env.pod_ips = Some("172.30.0.11,fd00::11".into());
        flags.env.enable_bind_local_ip = Some("true".into());
        assert_eq!(
            addresses(&flags, 8100),
            ["172.30.0.11:8100".parse().unwrap(), "[fd00::11]:8100".parse().unwrap()]
        );
    }
}
