//! The API server's client, with connections that notice when the other side
//! is silent.
//!
//! A watch only reads. If packets are dropped without a reset, nothing tells a
//! reader that its connection is dead, and the server's retransmissions back
//! off for minutes. Keepalive probes find out within ten seconds instead, and
//! the user timeout does the same for requests that wait for an answer.

use std::time::Duration;

use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ClientBuilder, ConfigExt};
use kube::{Client, Config};

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
pub async fn client(kubeconfig: &str) -> anyhow::Result<Client> {
    // A second call finds the provider installed, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut config = if kubeconfig.is_empty() {
        Config::infer().await?
    } else {
        let file = kube::config::Kubeconfig::read_from(kubeconfig)?;
        Config::from_custom_kubeconfig(file, &kube::config::KubeConfigOptions::default()).await?
    };
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    build(config)
}

fn build(config: Config) -> anyhow::Result<Client> {
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
    let builder = ClientBuilder::new(service, config.default_namespace.clone());
    // Layers wrap from the inside: authentication, then the server's base URI.
    Ok(match config.auth_layer()? {
        Some(auth) => builder.with_layer(&auth).with_layer(&config.base_uri_layer()).build(),
        None => builder.with_layer(&config.base_uri_layer()).build(),
    })
}
