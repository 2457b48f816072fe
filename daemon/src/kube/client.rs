//! The API server's client, with connections that notice when the other side
//! is silent.
//!
//! A watch only reads. If packets are dropped without a reset, nothing tells a
//! reader that its connection is dead, and the server's retransmissions back
//! off for minutes. Keepalive probes find out within ten seconds instead, and
//! the user timeout does the same for requests that wait for an answer.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ClientBuilder, ConfigExt};
use kube::{Client, Config};

use crate::metrics::Metrics;

/// Idle time after which a connection is probed.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(4);
/// Time between probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
/// Unanswered probes that end a connection.
const KEEPALIVE_RETRIES: u32 = 2;
/// Unacknowledged data ends a connection after this long.
const USER_TIMEOUT: Duration = Duration::from_secs(8);
/// A connection attempt, so that one begun during an outage ends soon after it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Makes the client: from `kubeconfig` if given, else from the environment
/// (the pod's service account, then the user's kubeconfig).
///
/// # Errors
/// When no configuration is found or it can't be used.
pub async fn client(kubeconfig: &str, metrics: Arc<Metrics>) -> anyhow::Result<Client> {
    // A second call finds the provider installed, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut config = if kubeconfig.is_empty() {
        Config::infer().await?
    } else {
        let file = kube::config::Kubeconfig::read_from(kubeconfig)?;
        Config::from_custom_kubeconfig(file, &kube::config::KubeConfigOptions::default()).await?
    };
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    build(config, metrics)
}

fn build(config: Config, metrics: Arc<Metrics>) -> anyhow::Result<Client> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_keepalive(Some(KEEPALIVE_IDLE));
    http.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    http.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    http.set_tcp_user_timeout(Some(USER_TIMEOUT));
    http.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let https = config.rustls_https_connector_with_connector(http)?;
    let service = HyperClient::builder(TokioExecutor::new()).build::<_, Body>(https);
    let service = tower::ServiceExt::<hyper::Request<Body>>::map_err(service, Into::<tower::BoxError>::into);
    let service = Metered { inner: service, metrics };
    let builder = ClientBuilder::new(service, config.default_namespace.clone());
    // Layers wrap from the inside: authentication, then the server's base URI.
    Ok(match config.auth_layer()? {
        Some(auth) => builder.with_layer(&auth).with_layer(&config.base_uri_layer()).build(),
        None => builder.with_layer(&config.base_uri_layer()).build(),
    })
}

/// Measures requests until their answer begins.
#[derive(Clone)]
struct Metered<S> {
    inner: S,
    metrics: Arc<Metrics>,
}

impl<S, B> tower::Service<hyper::Request<Body>> for Metered<S>
where
    S: tower::Service<hyper::Request<Body>, Response = hyper::Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: hyper::Request<Body>) -> Self::Future {
        let (verb, url) = (request.method().to_string(), template(request.uri().path()));
        let host = request.uri().authority().map(ToString::to_string).unwrap_or_default();
        let (started, metrics) = (Instant::now(), self.metrics.clone());
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            let code =
                answer.as_ref().map_or("<error>".to_owned(), |answer| answer.status().as_u16().to_string());
            metrics.rest_request(&verb, &url, &host, &code, started.elapsed());
            answer
        })
    }
}

/// A path without names, which would make every object a series of its own.
fn template(path: &str) -> String {
    let mut parts: Vec<&str> = path.split('/').collect();
    // "", "api", version … or "", "apis", group, version …
    let first = if parts.get(1) == Some(&"apis") { 4 } else { 3 };
    let scoped = parts.get(first) == Some(&"namespaces") && parts.len() > first + 2;
    if scoped && let Some(namespace) = parts.get_mut(first + 1) {
        *namespace = "{namespace}";
    }
    let name = if scoped { first + 3 } else { first + 1 };
    if let Some(name) = parts.get_mut(name) {
        *name = "{name}";
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lose_their_names() {
        for (path, template_of) in [
            ("/api/v1/pods", "/api/v1/pods"),
            ("/api/v1/nodes/n1/status", "/api/v1/nodes/{name}/status"),
            ("/api/v1/namespaces/web/events", "/api/v1/namespaces/{namespace}/events"),
            ("/api/v1/namespaces/web/events/e.1", "/api/v1/namespaces/{namespace}/events/{name}"),
            ("/api/v1/namespaces/web", "/api/v1/namespaces/{name}"),
            ("/apis/kubeovn.io/v1/subnets", "/apis/kubeovn.io/v1/subnets"),
            ("/apis/kubeovn.io/v1/subnets/join", "/apis/kubeovn.io/v1/subnets/{name}"),
            ("/version", "/version"),
        ] {
            assert_eq!(template(path), template_of);
        }
    }
}
