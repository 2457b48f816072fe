//! The connection to the API server: how requests are sent, how a dead peer is
//! noticed, how answers become errors.
//!
//! Flows in: a path and maybe a body. Flows out: the answer's bytes, or an
//! [`ApiError`]. The `kube` crate supplies configuration, authentication and TLS;
//! the sockets below are made here, since its own wait minutes for a peer whose
//! packets are silently dropped.
//!
//! # How a dead connection is noticed
//!
//! 1. *Idle connection* (a quiet watch): TCP keepalive probes after
//!    [`KEEPALIVE_IDLE`], and `TCP_USER_TIMEOUT` ends the connection when nothing was
//!    acknowledged for [`USER_TIMEOUT`].
//! 2. *Connection with data under way* (a request sent into the hole): the same
//!    `TCP_USER_TIMEOUT`; it is shorter than what is left of a Lease when its leader has
//!    to stop, so no write of a deposed leader arrives late from a kernel buffer.
//! 3. *New connections*: [`CONNECT_TIMEOUT`], so that an attempt that began in the
//!    hole does not sleep in the kernel's growing SYN back-off after it healed.
//! 4. *A peer behind a proxy that terminates TCP*: the kernel's means end at the
//!    proxy, so every request has a deadline here, and every watch a window (see
//!    [`crate::watch`]).

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ClientBuilder, ConfigExt};
use serde::Deserialize;
use thiserror::Error;
use tower::{BoxError, ServiceExt as _};

use crate::metrics::Metrics;

/// Silence after which TCP probes an idle connection.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(2);
/// Time between TCP's probes.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// Time without acknowledgement after which the kernel gives a connection up.
pub const USER_TIMEOUT: Duration = Duration::from_secs(4);
/// How long connecting may take.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Who we are in the API server's audit log.
const USER_AGENT: &str = concat!("kube-ovn-controller/", env!("CARGO_PKG_VERSION"), " (weir)");
/// How long an unused connection is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a request failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ApiError {
    /// The API server answered with an error.
    #[error("{code} {reason}: {message}")]
    Status {
        /// HTTP status.
        code: u16,
        /// `reason` of the Status object, for instance `AlreadyExists`.
        reason: String,
        /// Its message.
        message: String,
        /// Fields named by its causes, for instance `metadata.uid`.
        fields: Vec<String>,
    },
    /// Sending or receiving failed. The outcome of a write is unknown.
    #[error("connection: {0}")]
    Transport(String),
    /// No answer in time. The outcome of a write is unknown.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The answer is not what was asked for.
    #[error("unexpected answer: {0}")]
    Decode(String),
}

impl ApiError {
    /// HTTP status, when the API server answered.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Status { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// There is no such object, or no such kind.
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// Somebody else wrote first.
    pub fn is_conflict(&self) -> bool {
        self.code() == Some(409)
    }

    /// The resource version is too old: list again.
    pub fn is_expired(&self) -> bool {
        self.code() == Some(410)
    }

    /// Makes an error from a failed answer's status and body.
    pub fn from_answer(code: u16, body: &[u8]) -> Self {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Status {
            reason: Option<String>,
            message: Option<String>,
            details: Option<Details>,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Details {
            causes: Option<Vec<Cause>>,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Cause {
            field: Option<String>,
        }
        let status: Status = serde_json::from_slice(body).unwrap_or_default();
        let fields = status
            .details
            .and_then(|details| details.causes)
            .unwrap_or_default()
            .into_iter()
            .filter_map(|cause| cause.field)
            .collect();
        let message = status.message.unwrap_or_else(|| {
            let text = String::from_utf8_lossy(body);
            text.chars().take(200).collect::<String>().trim().to_owned()
        });
        Self::Status { code, reason: status.reason.unwrap_or_default(), message, fields }
    }
}

/// A client of the API server. Cheap to clone; all clones share connections.
#[derive(Clone)]
pub struct Api {
    client: kube::Client,
    metrics: Arc<OnceLock<Arc<Metrics>>>,
}

impl Api {
    /// A client over any service, for tests.
    pub fn new(client: kube::Client) -> Self {
        Self { client, metrics: Arc::default() }
    }

    /// The client of the `kube` crate below.
    pub fn kube(&self) -> kube::Client {
        self.client.clone()
    }

    /// The same client, telling the latency of its requests to metrics that may be
    /// made later.
    #[must_use]
    pub fn observed(self, metrics: Arc<OnceLock<Arc<Metrics>>>) -> Self {
        Self { metrics, ..self }
    }

    /// Connects as `config` says (nothing is sent yet).
    ///
    /// # Errors
    /// Certificates or credentials that can't be read.
    pub fn connect(config: &kube::Config) -> Result<Self, kube::Error> {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_keepalive(Some(KEEPALIVE_IDLE));
        connector.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
        connector.set_keepalive_retries(Some(3));
        connector.set_tcp_user_timeout(Some(USER_TIMEOUT));
        let https = config.rustls_https_connector_with_connector(connector)?;
        let http: HttpClient<_, Body> = HttpClient::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .build(https);
        let namespace = config.default_namespace.clone();
        let builder = ClientBuilder::new(http.map_err(BoxError::from), namespace);
        // The layer added last is the outermost: the address is filled in before the token.
        let client = match config.auth_layer()? {
            Some(auth) => builder.with_layer(&auth).with_layer(&config.base_uri_layer()).build(),
            None => builder.with_layer(&config.base_uri_layer()).build(),
        };
        Ok(Self::new(client))
    }

    /// Reads one object or page.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn get(&self, path: &str, timeout: Duration) -> Result<Vec<u8>, ApiError> {
        self.call("GET", path, None, timeout).await
    }

    /// Creates an object below the collection `path`.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn create(
        &self,
        path: &str,
        body: &serde_json::Value,
        timeout: Duration,
    ) -> Result<Vec<u8>, ApiError> {
        self.call("POST", path, Some(("application/json", body)), timeout).await
    }

    /// Merges `body` into the object at `path`.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn merge_patch(
        &self,
        path: &str,
        body: &serde_json::Value,
        timeout: Duration,
    ) -> Result<Vec<u8>, ApiError> {
        self.call("PATCH", path, Some(("application/merge-patch+json", body)), timeout).await
    }

    /// Deletes the object at `path` with delete options.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn delete(
        &self,
        path: &str,
        options: &serde_json::Value,
        timeout: Duration,
    ) -> Result<Vec<u8>, ApiError> {
        self.call("DELETE", path, Some(("application/json", options)), timeout).await
    }

    /// Starts a request whose answer is a stream (a watch). `timeout` is for the
    /// answer's head alone.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn stream(&self, path: &str, timeout: Duration) -> Result<Body, ApiError> {
        let answer = tokio::time::timeout(timeout, self.send("GET", path, None))
            .await
            .map_err(|_| ApiError::Timeout(timeout))??;
        if answer.status().is_success() {
            return Ok(answer.into_body());
        }
        let code = answer.status().as_u16();
        let body = tokio::time::timeout(timeout, collect(answer.into_body()))
            .await
            .map_err(|_| ApiError::Timeout(timeout))??;
        Err(ApiError::from_answer(code, &body))
    }

    async fn call(
        &self,
        method: &str,
        path: &str,
        body: Option<(&str, &serde_json::Value)>,
        timeout: Duration,
    ) -> Result<Vec<u8>, ApiError> {
        let work = async {
            let answer = self.send(method, path, body).await?;
            let status = answer.status();
            let bytes = collect(answer.into_body()).await?;
            if status.is_success() { Ok(bytes) } else { Err(ApiError::from_answer(status.as_u16(), &bytes)) }
        };
        let started = Instant::now();
        let result = tokio::time::timeout(timeout, work).await.unwrap_or(Err(ApiError::Timeout(timeout)));
        if let Some(metrics) = self.metrics.get() {
            metrics.api_request(method, path, started.elapsed());
        }
        result
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        body: Option<(&str, &serde_json::Value)>,
    ) -> Result<hyper::Response<Body>, ApiError> {
        let mut request = hyper::Request::builder()
            .method(method)
            .uri(path)
            .header("accept", "application/json")
            .header("user-agent", USER_AGENT);
        let body = match body {
            None => Vec::new(),
            Some((content_type, body)) => {
                request = request.header("content-type", content_type);
                serde_json::to_vec(body).map_err(|error| ApiError::Decode(error.to_string()))?
            }
        };
        let request = request.body(Body::from(body)).map_err(|error| ApiError::Decode(error.to_string()))?;
        self.client.send(request).await.map_err(|error| ApiError::Transport(chain(&error)))
    }
}

async fn collect(body: Body) -> Result<Vec<u8>, ApiError> {
    let collected = body.collect().await.map_err(|error| ApiError::Transport(chain(&error)))?;
    Ok(collected.to_bytes().to_vec())
}

/// An error with its causes in one line; what a person needs is at the end
/// ("connection refused").
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

/// Where the API server is and who we are: a kubeconfig file, or the pod's service
/// account (`KUBERNETES_SERVICE_HOST` and `_PORT` decide the address, so that a
/// node can name a real one where ClusterIPs do not work yet).
///
/// # Errors
/// A text that names the file or variable and the remedy.
pub async fn load_config(kubeconfig: Option<&std::path::Path>) -> Result<kube::Config, String> {
    match kubeconfig {
        Some(path) => {
            let file = kube::config::Kubeconfig::read_from(path).map_err(|error| {
                format!("--kubeconfig={}: {}; give a readable kubeconfig file", path.display(), chain(&error))
            })?;
            kube::Config::from_custom_kubeconfig(file, &kube::config::KubeConfigOptions::default())
                .await
                .map_err(|error| {
                    format!("--kubeconfig={}: {}; repair the file", path.display(), chain(&error))
                })
        }
        None => kube::Config::incluster_env().map_err(|error| {
            format!("service account: {}; run in a pod, or give --kubeconfig", chain(&error))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_keep_what_the_status_says() {
        let body = br#"{"kind":"Status","reason":"Invalid","message":"Pod \"a\" is invalid: metadata.uid",
            "details":{"causes":[{"reason":"FieldValueInvalid","field":"metadata.uid"}]},"code":422}"#;
        let error = ApiError::from_answer(422, body);
        let ApiError::Status { code: 422, reason, fields, .. } = &error else { panic!("{error:?}") };
        assert_eq!((reason.as_str(), fields.as_slice()), ("Invalid", ["metadata.uid".to_owned()].as_slice()));
    }

    #[test]
    fn an_answer_that_is_no_status_still_says_something() {
        let error = ApiError::from_answer(502, b"<html>bad gateway</html>");
        assert!(error.to_string().contains("bad gateway"), "{error}");
        assert_eq!(ApiError::from_answer(404, b"").code(), Some(404));
    }
}
