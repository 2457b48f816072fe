//! An API server that knows just what the agent asks for: lists, watches,
//! merge patches, events. Listens inside a node's namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, patch, post};
use daemon::sys::Namespace;
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::sync::{broadcast, watch};

use super::tls;

#[derive(Clone)]
pub struct FakeApi(Arc<Inner>);

struct Inner {
    state: Mutex<Objects>,
    editing: Mutex<()>,
    /// (plural, watch event)
    events: broadcast::Sender<(String, Value)>,
    /// Wakes those who wait for a write of the agent.
    writes: watch::Sender<u64>,
    /// Kinds whose lists and watches are not answered for now.
    held: watch::Sender<BTreeSet<String>>,
}

#[derive(Default)]
struct Objects {
    /// By plural and `namespace/name`.
    objects: BTreeMap<(String, String), Value>,
    version: u64,
    /// What a watch that resumes has missed: version, plural, watch event.
    history: Vec<(u64, String, Value)>,
    /// Events that the agent created.
    events: Vec<Value>,
    /// Single objects that it asked for: plural and `namespace/name`.
    asked: Vec<(String, String)>,
    /// What it asked for: plural and query of each list and watch.
    queries: Vec<(String, String)>,
    /// Lists and watches that are refused yet: by plural, status and how many.
    refusals: BTreeMap<String, (u16, usize)>,
}

fn key(object: &Value) -> String {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    format!("{}/{}", text("/metadata/namespace"), text("/metadata/name"))
}

/// RFC 7386; conditions are merged by type, as a strategic merge would.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let target = target.as_object_mut().unwrap();
    for (name, value) in patch {
        match value {
            Value::Null => {
                target.remove(name);
            }
            Value::Array(new) if name == "conditions" => {
                let mut all = target.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
                all.retain(|old| !new.iter().any(|condition| condition["type"] == old["type"]));
                all.extend(new.iter().cloned());
                target.insert(name.clone(), Value::Array(all));
            }
            value => merge(target.entry(name.clone()).or_insert(Value::Null), value),
        }
    }
}

impl FakeApi {
    /// Listens on some port of an address in the namespace; returns the URL too.
    pub fn start(namespace: &Namespace, ip: &'static str) -> (Self, String) {
        let listener = namespace.run(move || std::net::TcpListener::bind((ip, 0)).unwrap()).unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let inner = Inner {
            state: Mutex::default(),
            editing: Mutex::default(),
            events: broadcast::Sender::new(4096),
            writes: watch::Sender::new(0),
            held: watch::Sender::default(),
        };
        let api = Self(Arc::new(inner));
        let router = Router::new()
            .route("/api/v1/{plural}", get(list_core))
            .route("/apis/{group}/v1/{plural}", get(list_group).post(review))
            .route("/api/v1/namespaces/{namespace}/pods/{name}", get(get_pod))
            .route("/api/v1/nodes/{name}", patch(patch_node))
            .route("/api/v1/nodes/{name}/status", patch(patch_node))
            .route("/apis/{group}/v1/{plural}/{name}/status", patch(patch_object))
            .route("/api/v1/namespaces/{namespace}/events", post(create_event))
            .route("/api/v1/namespaces/{namespace}/events/{name}", patch(patch_event))
            .with_state(api.clone());
        tokio::spawn(async move {
            axum::serve(tokio::net::TcpListener::from_std(listener).unwrap(), router).await.unwrap();
        });
        (api, url)
    }

    /// Creates or replaces an object.
    pub fn put(&self, plural: &str, mut object: Value) {
        let mut state = self.0.state.lock().unwrap();
        state.version += 1;
        object["metadata"]["resourceVersion"] = json!(state.version.to_string());
        let id = (plural.to_owned(), key(&object));
        let kind = if state.objects.contains_key(&id) { "MODIFIED" } else { "ADDED" };
        state.objects.insert(id, object.clone());
        let event = json!({"type": kind, "object": object});
        let version = state.version;
        state.history.push((version, plural.to_owned(), event.clone()));
        let _ = self.0.events.send((plural.to_owned(), event));
    }

    /// Merges a patch into an object, one at a time, as a server does; the result.
    pub fn edit(&self, plural: &str, namespace: &str, name: &str, patch: &Value) -> Option<Value> {
        let _one = self.0.editing.lock().unwrap();
        let mut object = self.get(plural, namespace, name)?;
        merge(&mut object, patch);
        self.put(plural, object.clone());
        Some(object)
    }

    /// Deletes an object.
    pub fn delete(&self, plural: &str, namespace: &str, name: &str) {
        let mut state = self.0.state.lock().unwrap();
        state.version += 1;
        let version = state.version;
        if let Some(mut object) = state.objects.remove(&(plural.to_owned(), format!("{namespace}/{name}"))) {
            object["metadata"]["resourceVersion"] = json!(version.to_string());
            let event = json!({"type": "DELETED", "object": object});
            state.history.push((version, plural.to_owned(), event.clone()));
            let _ = self.0.events.send((plural.to_owned(), event));
        }
    }

    /// Answers the next lists and watches of a kind with that status.
    pub fn refuse(&self, plural: &str, code: u16, times: usize) {
        self.0.state.lock().unwrap().refusals.insert(plural.to_owned(), (code, times));
    }

    /// How many are to be refused yet.
    pub fn refusals_left(&self, plural: &str) -> usize {
        self.0.state.lock().unwrap().refusals.get(plural).map_or(0, |(_, times)| *times)
    }

    /// Ends all watches, as a server does every few minutes, and when it starts again.
    pub fn hang_up(&self) {
        let _ = self.0.events.send((String::new(), Value::Null));
    }

    /// Has an object without telling the watches of it, until it is [`FakeApi::put`].
    pub fn put_silently(&self, plural: &str, object: Value) {
        self.0.state.lock().unwrap().objects.insert((plural.to_owned(), key(&object)), object);
    }

    /// Lists and watches of a kind that are asked for from now on wait until [`FakeApi::release`].
    pub fn hold(&self, plural: &str) {
        self.0.held.send_modify(|held| _ = held.insert(plural.to_owned()));
    }

    /// Answers them.
    pub fn release(&self, plural: &str) {
        self.0.held.send_modify(|held| _ = held.remove(plural));
    }

    async fn wait_released(&self, plural: &str) {
        let mut held = self.0.held.subscribe();
        let _ = held.wait_for(|held| !held.contains(plural)).await;
    }

    /// How often a single object was asked for.
    pub fn asked(&self, plural: &str, name: &str) -> usize {
        let state = self.0.state.lock().unwrap();
        state.asked.iter().filter(|(of, object)| of == plural && object == name).count()
    }

    /// Waits until a single object was asked for so often.
    pub async fn wait_asked(&self, plural: &str, name: &str, times: usize) {
        let asked = || self.asked(plural, name);
        for _ in 0..1200 {
            if asked() >= times {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{plural} {name}: asked for {} times, not {times}", asked());
    }

    /// An object as it is now.
    pub fn get(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        let state = self.0.state.lock().unwrap();
        state.objects.get(&(plural.to_owned(), format!("{namespace}/{name}"))).cloned()
    }

    /// Waits until the agent's writes have made something true.
    pub async fn wait_node(&self, what: &str, condition: impl Fn(&Value) -> bool) {
        let mut writes = self.0.writes.subscribe();
        let wait = writes.wait_for(|_| self.get("nodes", "", "n1").is_some_and(|node| condition(&node)));
        tokio::time::timeout(Duration::from_secs(30), wait)
            .await
            .unwrap_or_else(|_| panic!("timed out: {what}"))
            .unwrap();
    }

    /// Reasons of the events that the agent created.
    pub fn reasons(&self) -> Vec<String> {
        let reason = |event: &Value| event["reason"].as_str().unwrap_or_default().to_owned();
        self.0.state.lock().unwrap().events.iter().map(reason).collect()
    }

    /// Events that the agent created.
    pub fn told(&self) -> Vec<Value> {
        self.0.state.lock().unwrap().events.clone()
    }

    /// Queries of lists and watches of a kind.
    pub fn queries(&self, plural: &str) -> Vec<String> {
        let state = self.0.state.lock().unwrap();
        state.queries.iter().filter(|(of, _)| of == plural).map(|(_, query)| query.clone()).collect()
    }

    /// Writes that the agent made, events apart.
    pub fn writes(&self) -> u64 {
        *self.0.writes.borrow()
    }

    fn list(&self, plural: &str, query: &str) -> Response {
        let mut state = self.0.state.lock().unwrap();
        state.queries.push((plural.to_owned(), query.to_owned()));
        if let Some((code, times)) = state.refusals.get_mut(plural)
            && *times > 0
        {
            *times -= 1;
            return refusal(*code);
        }
        if query.split('&').any(|pair| pair == "watch=true" || pair == "watch=1") {
            let (receiver, plural) = (self.0.events.subscribe(), plural.to_owned());
            let from: u64 = query
                .split('&')
                .find_map(|pair| pair.strip_prefix("resourceVersion=")?.parse().ok())
                .unwrap_or(0);
            let missed: Vec<_> = state
                .history
                .iter()
                .filter(|(version, of, _)| *version > from && *of == plural)
                .map(|(_, _, event)| Ok(Bytes::from(format!("{event}\n"))))
                .collect();
            let stream = futures::stream::unfold((receiver, plural), |(mut receiver, plural)| async move {
                loop {
                    let (of, event) = receiver.recv().await.ok()?;
                    if of.is_empty() {
                        return None;
                    }
                    if of == plural {
                        let line = Bytes::from(format!("{event}\n"));
                        return Some((Ok::<_, std::io::Error>(line), (receiver, plural)));
                    }
                }
            });
            return Body::from_stream(futures::stream::iter(missed).chain(stream).boxed()).into_response();
        }
        let items: Vec<&Value> =
            state.objects.iter().filter(|((of, _), _)| of == plural).map(|(_, object)| object).collect();
        let body = json!({"metadata": {"resourceVersion": state.version.to_string()}, "items": items});
        axum::Json(body).into_response()
    }
}

fn refusal(code: u16) -> Response {
    let reason = if code == 403 { "Forbidden" } else { "NotFound" };
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason,
        "message": "refused by the test", "code": code});
    (StatusCode::from_u16(code).unwrap(), axum::Json(status)).into_response()
}

async fn list_core(
    State(api): State<FakeApi>,
    Path(plural): Path<String>,
    RawQuery(query): RawQuery,
) -> Response {
    api.wait_released(&plural).await;
    api.list(&plural, query.as_deref().unwrap_or_default())
}

async fn list_group(
    State(api): State<FakeApi>,
    Path((_, plural)): Path<(String, String)>,
    RawQuery(query): RawQuery,
) -> Response {
    api.wait_released(&plural).await;
    api.list(&plural, query.as_deref().unwrap_or_default())
}

async fn review(
    State(api): State<FakeApi>,
    Path((_, plural)): Path<(String, String)>,
    body: Bytes,
) -> Response {
    let Some(review) = tls::review(&plural, &serde_json::from_slice(&body).unwrap()) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    api.0.state.lock().unwrap().asked.push((plural, String::new()));
    (StatusCode::CREATED, axum::Json(review)).into_response()
}

async fn get_pod(State(api): State<FakeApi>, Path((namespace, name)): Path<(String, String)>) -> Response {
    let id = ("pods".to_owned(), format!("{namespace}/{name}"));
    let mut state = api.0.state.lock().unwrap();
    state.asked.push(id.clone());
    match state.objects.get(&id) {
        Some(pod) => axum::Json(pod.clone()).into_response(),
        None => {
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound",
                "message": format!("pods {name:?} not found"), "code": 404});
            (StatusCode::NOT_FOUND, axum::Json(status)).into_response()
        }
    }
}

async fn patch_node(State(api): State<FakeApi>, Path(name): Path<String>, body: Bytes) -> Response {
    let Some(node) = api.edit("nodes", "", &name, &serde_json::from_slice(&body).unwrap()) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    api.0.writes.send_modify(|writes| *writes += 1);
    axum::Json(node).into_response()
}

async fn patch_object(
    State(api): State<FakeApi>,
    Path((_, plural, name)): Path<(String, String, String)>,
    body: Bytes,
) -> Response {
    let Some(mut object) = api.get(&plural, "", &name) else { return StatusCode::NOT_FOUND.into_response() };
    merge(&mut object, &serde_json::from_slice(&body).unwrap());
    api.put(&plural, object.clone());
    api.0.writes.send_modify(|writes| *writes += 1);
    axum::Json(object).into_response()
}

async fn create_event(State(api): State<FakeApi>, body: Bytes) -> Response {
    let event: Value = serde_json::from_slice(&body).unwrap();
    let mut state = api.0.state.lock().unwrap();
    let id = |event: &Value| (event["metadata"]["namespace"].clone(), event["metadata"]["name"].clone());
    if state.events.iter().any(|other| id(other) == id(&event)) {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 409,
            "reason": "AlreadyExists", "message": "it exists already"});
        return (StatusCode::CONFLICT, axum::Json(status)).into_response();
    }
    state.events.push(event.clone());
    (StatusCode::CREATED, axum::Json(event)).into_response()
}

async fn patch_event(
    State(api): State<FakeApi>,
    Path((namespace, name)): Path<(String, String)>,
    body: Bytes,
) -> Response {
    let mut state = api.0.state.lock().unwrap();
    let is_it = |event: &&mut Value| {
        event["metadata"]["name"] == name.as_str() && event["metadata"]["namespace"] == namespace.as_str()
    };
    let Some(event) = state.events.iter_mut().find(is_it) else { return refusal(404) };
    merge(event, &serde_json::from_slice(&body).unwrap());
    axum::Json(event.clone()).into_response()
}
