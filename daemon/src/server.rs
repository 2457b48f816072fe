//! The API that the CNI executable calls, HTTP/1.1 on a unix socket (node
//! contract §2.1).
//!
//! In: JSON requests. Out: JSON answers with the contract's status codes. The
//! work of a call runs in a task of its own: an executable that is killed
//! half-way (its runtime gave up) leaves a call that ends as it would have,
//! finished or rolled back, instead of one cut off in the middle.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use cni::api::{
    ADD_PATH, CHECK_PATH, CheckRequest, CniRequest, CniResponse, DEL_PATH, GC_PATH, GcRequest, STATUS_PATH,
    StatusResponse,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::changes::Changes;
use crate::plug::{PlugError, Plugger, Stage};
use crate::readiness::Readiness;

/// What handlers use.
#[derive(Clone)]
pub struct Api {
    /// Does the work.
    pub plugger: Arc<Plugger>,
    /// Whether an ADD could succeed now.
    pub readiness: Readiness,
    /// The feed of diagnostics.
    pub changes: Changes,
}

/// The routes.
pub fn router(api: Api) -> Router {
    Router::new()
        .route(ADD_PATH, post(add))
        .route(DEL_PATH, post(del))
        .route(CHECK_PATH, post(check))
        .route(GC_PATH, post(gc))
        .route(STATUS_PATH, get(status).post(status))
        .with_state(api)
}

fn reply(code: u16, body: &impl Serialize) -> Response {
    let status = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    match serde_json::to_vec(body) {
        Ok(bytes) => (status, [(header::CONTENT_TYPE, "application/json")], bytes).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

fn failure(error: &PlugError) -> Response {
    reply(error.stage.status(), &error.response())
}

fn decode<T: DeserializeOwned>(body: &Bytes) -> Result<T, PlugError> {
    serde_json::from_slice(body).map_err(|error| {
        PlugError::new(Stage::ValidateRequest, format!("the request is not understood: {error}"))
            .code(6)
            .remedy("who calls this socket must send what the CNI executable sends: is that of this version or Kube-OVN's?")
    })
}

/// Runs a call in a task of its own and waits for it.
async fn detached<T: Send + 'static>(
    work: impl Future<Output = Result<T, PlugError>> + Send + 'static,
    about: impl FnOnce(PlugError) -> PlugError,
) -> Result<T, PlugError> {
    tokio::spawn(work).await.unwrap_or_else(|error| {
        // A panic is a bug of ours; the runtime tries again.
        Err(about(PlugError::new(Stage::ConfigureNic, format!("the call ended unexpectedly: {error}"))))
    })
}

impl Api {
    /// The request; one that is not understood is counted and logged as any other, and answered.
    fn decode<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &Bytes,
        started: Instant,
    ) -> Result<T, Box<Response>> {
        decode(body).map_err(|error| {
            tracing::warn!(call = path, error = error.message, "a call can't be read");
            let response = failure(&error);
            self.finished(path, &CniRequest::default(), &response, started);
            Box::new(response)
        })
    }

    fn finished(&self, path: &str, request: &CniRequest, response: &Response, started: Instant) {
        let (code, took) = (response.status().as_u16(), started.elapsed());
        self.plugger.metrics.operation(path, code, took);
        tracing::info!(
            call = path,
            status = code,
            took_ms = took.as_secs_f64() * 1000.0,
            namespace = request.pod_namespace,
            pod = request.pod_name,
            container = request.container_id,
            interface = request.if_name,
        );
        self.changes.say(
            path.rsplit('/').next().unwrap_or_default(),
            json!({
                "namespace": request.pod_namespace, "pod": request.pod_name,
                "container": request.container_id, "status": code, "took_ms": took.as_secs_f64() * 1000.0,
            }),
        );
    }
}

async fn add(State(api): State<Api>, body: Bytes) -> Response {
    let started = Instant::now();
    let request: CniRequest = match api.decode(ADD_PATH, &body, started) {
        Ok(request) => request,
        Err(response) => return *response,
    };
    let (plugger, call) = (api.plugger.clone(), request.clone());
    let response =
        match detached(async move { plugger.add(&call).await }, |error| error.about(&request)).await {
            Ok(answer) => reply(200, &answer),
            Err(error) => {
                tracing::warn!(
                    stage = error.stage.as_str(),
                    error = error.message,
                    namespace = request.pod_namespace,
                    pod = request.pod_name,
                    "ADD failed"
                );
                failure(&error)
            }
        };
    api.finished(ADD_PATH, &request, &response, started);
    response
}

async fn del(State(api): State<Api>, body: Bytes) -> Response {
    let started = Instant::now();
    let request: CniRequest = match api.decode(DEL_PATH, &body, started) {
        Ok(request) => request,
        Err(response) => return *response,
    };
    let (plugger, call) = (api.plugger.clone(), request.clone());
    let response =
        match detached(async move { plugger.del(&call).await }, |error| error.about(&request)).await {
            Ok(()) => StatusCode::NO_CONTENT.into_response(),
            Err(error) => {
                tracing::warn!(
                    stage = error.stage.as_str(),
                    error = error.message,
                    container = request.container_id,
                    "DEL failed"
                );
                failure(&error)
            }
        };
    api.finished(DEL_PATH, &request, &response, started);
    response
}

async fn check(State(api): State<Api>, body: Bytes) -> Response {
    let started = Instant::now();
    let request: CheckRequest = match api.decode(CHECK_PATH, &body, started) {
        Ok(request) => request,
        Err(response) => return *response,
    };
    let response = match api.plugger.check(&request).await {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => failure(&error),
    };
    api.finished(CHECK_PATH, &request.request, &response, started);
    response
}

async fn gc(State(api): State<Api>, body: Bytes) -> Response {
    let started = Instant::now();
    let request: GcRequest = match api.decode(GC_PATH, &body, started) {
        Ok(request) => request,
        Err(response) => return *response,
    };
    let plugger = api.plugger.clone();
    let network = request.network.clone();
    let collect = async move { plugger.gc(&request).await };
    let response = match detached(collect, |error| error.about_network(&network)).await {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => failure(&error),
    };
    // Of no single pod.
    api.finished(GC_PATH, &CniRequest::default(), &response, started);
    response
}

async fn status(State(api): State<Api>) -> Response {
    let missing = api.readiness.missing();
    let Some(first) = missing.first() else {
        return reply(200, &StatusResponse { ready: true, ..StatusResponse::default() });
    };
    let reasons: Vec<String> =
        missing.iter().map(|missing| format!("{}: {}", missing.step, missing.reason)).collect();
    let response = StatusResponse {
        ready: false,
        // Flows live in the switch and follow their pods by ovn-controller: without either running pods suffer too.
        limited: missing
            .iter()
            .any(|missing| matches!(missing.step, "ovs" | "br-int" | "vswitchd" | "ovn-controller")),
        reason: reasons.join("; "),
        remedy: first.remedy.clone(),
    };
    reply(503, &response)
}

/// An error answer for a path that does not exist, in the API's own shape.
pub async fn not_found() -> Response {
    reply(404, &CniResponse::failure("no such call"))
}
