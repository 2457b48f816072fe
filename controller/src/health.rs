//! Probes and metrics over HTTP (contract §8.2, port 10660).
//!
//! Flows in: state of watches, database and core loop. Flows out: `/livez` and
//! `/healthz` (the loop around the core still turns), `/readyz` (every watch has
//! loaded and the database is connected, for leader and follower alike; the answer
//! names what is missing), `/metrics` (with `--secure-serving` by TLS alone, to those who may).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::metrics::{Metrics, Shared};
use crate::watch::{Statuses, plural};

/// The loop publishes at least every few seconds; after this silence it is stuck.
const STUCK: Duration = Duration::from_secs(60);

/// What the handlers look at.
#[derive(Clone)]
pub struct Health {
    /// State of core and database.
    pub shared: Shared,
    /// State of watches.
    pub watches: Statuses,
    /// Metrics, when they are served.
    pub metrics: Option<Arc<Metrics>>,
    /// Set when the process is going down: not ready any more.
    pub stopping: CancellationToken,
}

impl Health {
    /// Why the process is not ready; empty when it is.
    pub fn unready(&self) -> Vec<String> {
        let mut reasons: Vec<String> = self
            .watches
            .missing()
            .into_iter()
            .map(|(kind, problem)| match problem.as_str() {
                "" => format!("watch of {} has not loaded", plural(kind)),
                problem => format!("watch of {} has not loaded: {problem}", plural(kind)),
            })
            .collect();
        let database = self.shared.database();
        if !database.synced {
            let problem = database.last_error.map(|error| format!(": {error}")).unwrap_or_default();
            reasons.push(format!("northbound database is not loaded{problem}"));
        }
        if self.stopping.is_cancelled() {
            reasons.push("shutting down".to_owned());
        }
        reasons
    }

    /// Why the process should be restarted; empty when it should not.
    pub fn dead(&self) -> Vec<String> {
        match self.shared.snapshot().at {
            Some(at) if at.elapsed() > STUCK => {
                vec![format!("the core has not answered for {:?}", at.elapsed())]
            }
            _ => Vec::new(),
        }
    }

    /// The HTTP routes of probes.
    fn probes(self) -> Router {
        Router::new()
            .route("/livez", get(live))
            .route("/healthz", get(live))
            .route("/readyz", get(ready))
            .with_state(self)
    }

    /// The HTTP routes of metrics.
    fn figures(self) -> Router {
        Router::new().route("/metrics", get(metrics)).with_state(self)
    }
}

/// How metrics are served with TLS.
#[derive(Clone)]
pub struct Secure {
    /// Certificate and versions.
    pub config: Arc<rustls::ServerConfig>,
    /// Who may read them.
    pub access: secure::Access,
}

fn answer(reasons: &[String]) -> (StatusCode, String) {
    if reasons.is_empty() {
        (StatusCode::OK, "ok\n".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, reasons.join("\n") + "\n")
    }
}

async fn live(State(health): State<Health>) -> impl IntoResponse {
    answer(&health.dead())
}

async fn ready(State(health): State<Health>) -> impl IntoResponse {
    answer(&health.unready())
}

async fn metrics(State(health): State<Health>) -> impl IntoResponse {
    let text = health.metrics.as_ref().map(|metrics| metrics.encode());
    match text {
        Some(Ok(text)) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            (StatusCode::OK, [(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Some(Err(error)) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        None => (StatusCode::NOT_FOUND, "metrics are off (--enable-metrics=false)\n").into_response(),
    }
}

/// Binds all addresses.
///
/// # Errors
/// The address that can't be bound, with the remedy.
pub async fn bind(addresses: &[SocketAddr]) -> Result<Vec<TcpListener>, String> {
    let mut listeners = Vec::new();
    for address in addresses {
        let listener = TcpListener::bind(address).await.map_err(|error| {
            format!("{address}: {error}; free the port, or choose another with --pprof-port")
        })?;
        listeners.push(listener);
    }
    Ok(listeners)
}

/// Serves until `stop`: with TLS what is to be [`Secure`], and probes with and without, since kubelet sends no
/// token.
pub async fn serve(
    listeners: Vec<TcpListener>,
    health: Health,
    secure: Option<Secure>,
    stop: CancellationToken,
) {
    let servers = listeners.into_iter().map(|listener| {
        let (probes, figures) = (health.clone().probes(), health.clone().figures());
        let (secure, stop) = (secure.clone(), stop.clone());
        async move {
            let ended = match secure {
                Some(Secure { config, access }) => {
                    let guard = axum::middleware::from_fn_with_state(access, secure::guard);
                    let whole = probes.clone().merge(figures.layer(guard));
                    secure::serve(listener, config, whole, probes, stop).await
                }
                None => {
                    let whole = probes.merge(figures);
                    axum::serve(listener, whole).with_graceful_shutdown(stop.cancelled_owned()).await
                }
            };
            if let Err(error) = ended {
                tracing::error!(%error, "the probe server ended");
            }
        }
    });
    futures::future::join_all(servers).await;
}
