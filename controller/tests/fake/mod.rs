//! An API server in memory: enough of the real one's behaviour for the runtime's
//! tests (versions, paging, watches with windows and bookmarks, merge patches,
//! preconditions, finalizers), plus faults on demand.
//!
//! It is given to a client as a service (no port, works with paused time) or served
//! on a TCP listener for tests of the whole binary.
#![allow(dead_code, unreachable_pub)]

#[path = "../../../tests/tls/mod.rs"]
pub mod tls;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::sync::broadcast;

/// Collections that exist unless removed.
const INSTALLED: &[&str] = &["/api/v1/pods", "/api/v1/nodes", "/api/v1/namespaces", "/api/v1/events"];

#[derive(Clone)]
pub struct FakeApi {
    state: Arc<Mutex<State>>,
    wake: broadcast::Sender<()>,
}

#[derive(Default)]
struct State {
    installed: BTreeSet<String>,
    /// By collection, then (namespace, name).
    objects: BTreeMap<String, BTreeMap<(String, String), Value>>,
    /// Events of each collection in order: version, type, object.
    log: BTreeMap<String, Vec<(u64, &'static str, Value)>>,
    version: u64,
    /// Watches from before this version get 410.
    compacted: u64,
    faults: Faults,
    requests: Vec<String>,
}

#[derive(Clone, Default)]
pub struct Faults {
    /// No answer at all, and open watches neither speak nor end.
    pub mute: bool,
    /// Every request is refused with this status.
    pub refuse: Option<u16>,
    /// Watches send a few bytes at a time.
    pub chop: bool,
    /// The next request for a further page of a list finds its token expired.
    pub expire_page: bool,
    /// Requests whose path contains this are refused with 403.
    pub forbid: Option<String>,
}

struct Target {
    collection: String,
    namespace: String,
    name: String,
    subresource: String,
}

/// Takes a path apart: `/apis/<group>/<version>/[namespaces/<ns>/]<plural>[/<name>[/<sub>]]`.
fn target(path: &str) -> Target {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let base = if parts[0] == "api" { 2 } else { 3 };
    let prefix = format!("/{}", parts[..base].join("/"));
    // A group alone, as discovery asks for it.
    let rest = if parts.len() > base { &parts[base..] } else { &[""] };
    let (namespace, rest) =
        if rest[0] == "namespaces" && rest.len() > 2 { (rest[1], &rest[2..]) } else { ("", rest) };
    let at = |index: usize| rest.get(index).copied().unwrap_or_default().to_owned();
    Target {
        collection: format!("{prefix}/{}", rest[0]),
        namespace: namespace.to_owned(),
        name: at(1),
        subresource: at(2),
    }
}

fn merge(into: &mut Value, patch: &Value) {
    match (into, patch) {
        (Value::Object(into), Value::Object(patch)) => {
            for (key, value) in patch {
                if value.is_null() {
                    into.remove(key);
                } else {
                    merge(into.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
        }
        (into, patch) => {
            *into = patch.clone();
            // Nulls inside a new object remove nothing, so they vanish.
            if let Value::Object(fields) = into {
                fields.retain(|_, value| !value.is_null());
            }
        }
    }
}

fn status(code: u16, reason: &str, message: &str, field: Option<&str>) -> (u16, Value) {
    let causes: Vec<Value> = field.iter().map(|field| json!({ "field": field })).collect();
    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
        "message": message, "details": {"causes": causes}});
    (code, body)
}

impl State {
    fn bump(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    fn store(&mut self, collection: &str, kind: &'static str, mut object: Value) -> Value {
        let version = self.bump();
        object["metadata"]["resourceVersion"] = version.to_string().into();
        let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
        let key = (text("namespace"), text("name"));
        let all = self.objects.entry(collection.to_owned()).or_default();
        if kind == "DELETED" {
            all.remove(&key);
        } else {
            all.insert(key, object.clone());
        }
        self.log.entry(collection.to_owned()).or_default().push((version, kind, object.clone()));
        object
    }

    fn create(&mut self, target: &Target, mut object: Value) -> (u16, Value) {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let key = (target.namespace.clone(), name.clone());
        if self.objects.get(&target.collection).is_some_and(|all| all.contains_key(&key)) {
            return status(409, "AlreadyExists", &format!("{name} already exists"), None);
        }
        if !target.namespace.is_empty() {
            object["metadata"]["namespace"] = target.namespace.clone().into();
        }
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = uuid::Uuid::new_v4().to_string().into();
        }
        (201, self.store(&target.collection, "ADDED", object))
    }

    fn patch(&mut self, target: &Target, patch: &Value) -> (u16, Value) {
        let key = (target.namespace.clone(), target.name.clone());
        let Some(old) = self.objects.get(&target.collection).and_then(|all| all.get(&key)).cloned() else {
            return status(404, "NotFound", "not found", None);
        };
        let differs = |field: &str| {
            let wanted = &patch["metadata"][field];
            !wanted.is_null() && *wanted != old["metadata"][field]
        };
        if differs("resourceVersion") {
            return status(409, "Conflict", "the object has been modified", None);
        }
        if differs("uid") {
            return status(422, "Invalid", "metadata.uid: field is immutable", Some("metadata.uid"));
        }
        let mut new = old.clone();
        merge(&mut new, patch);
        if new == old {
            return (200, old);
        }
        let deleting = !new["metadata"]["deletionTimestamp"].is_null();
        let finalizers = new["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty());
        let kind = if deleting && !finalizers { "DELETED" } else { "MODIFIED" };
        (200, self.store(&target.collection, kind, new))
    }

    fn delete(&mut self, target: &Target, options: &Value) -> (u16, Value) {
        let key = (target.namespace.clone(), target.name.clone());
        let Some(mut old) = self.objects.get(&target.collection).and_then(|all| all.get(&key)).cloned()
        else {
            return status(404, "NotFound", "not found", None);
        };
        let uid = &options["preconditions"]["uid"];
        if !uid.is_null() && *uid != old["metadata"]["uid"] {
            let message =
                format!("the UID in the precondition ({uid}) does not match the UID in record (another)");
            return status(409, "Conflict", &message, None);
        }
        let finalizers = old["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty());
        if finalizers {
            old["metadata"]["deletionTimestamp"] = jiff::Timestamp::now().to_string().into();
            return (200, self.store(&target.collection, "MODIFIED", old));
        }
        (200, self.store(&target.collection, "DELETED", old))
    }

    fn list(&self, target: &Target, limit: usize, from: usize) -> Value {
        let all: Vec<&Value> =
            self.objects.get(&target.collection).map(|all| all.values().collect()).unwrap_or_default();
        let page: Vec<&Value> = all.iter().skip(from).take(limit).copied().collect();
        let next = from + page.len();
        let token = if next < all.len() { next.to_string() } else { String::new() };
        json!({"kind": "List", "metadata": {"resourceVersion": self.version.to_string(), "continue": token}, "items": page})
    }
}

impl FakeApi {
    pub fn new() -> Self {
        let mut state = State { version: 100, ..State::default() };
        state.installed = INSTALLED.iter().map(|path| (*path).to_owned()).collect();
        state.installed.insert("/apis/coordination.k8s.io/v1/leases".to_owned());
        for info in crds::KINDS {
            state.installed.insert(format!("/apis/kubeovn.io/v1/{}", info.plural));
        }
        Self { state: Arc::new(Mutex::new(state)), wake: broadcast::Sender::new(16) }
    }

    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state.lock().unwrap());
        let _ = self.wake.send(());
        result
    }

    /// Creates an object below a collection path (with `/namespaces/<ns>/` for namespaced kinds).
    pub fn create(&self, path: &str, object: Value) -> Value {
        let (code, object) = self.with(|state| state.create(&target(path), object));
        assert_eq!(code, 201, "{object}");
        object
    }

    pub fn patch(&self, path: &str, patch: Value) -> Value {
        let (code, object) = self.with(|state| state.patch(&target(path), &patch));
        assert_eq!(code, 200, "{object}");
        object
    }

    pub fn delete(&self, path: &str) {
        let (code, object) = self.with(|state| state.delete(&target(path), &Value::Null));
        assert_eq!(code, 200, "{object}");
    }

    pub fn get(&self, path: &str) -> Option<Value> {
        let target = target(path);
        let state = self.state.lock().unwrap();
        state.objects.get(&target.collection)?.get(&(target.namespace, target.name)).cloned()
    }

    pub fn all(&self, collection: &str) -> Vec<Value> {
        let state = self.state.lock().unwrap();
        state.objects.get(collection).map(|all| all.values().cloned().collect()).unwrap_or_default()
    }

    /// Forgets all events and makes old versions unavailable: open watches are told to
    /// list again.
    pub fn compact(&self) {
        self.with(|state| {
            state.compacted = state.bump();
            state.log.clear();
        });
    }

    pub fn uninstall(&self, collection: &str) {
        self.with(|state| state.installed.remove(collection));
    }

    pub fn install(&self, collection: &str) {
        self.with(|state| state.installed.insert(collection.to_owned()));
    }

    pub fn faults(&self, faults: Faults) {
        self.with(|state| state.faults = faults);
    }

    /// `METHOD path` of every request so far, without watches' queries.
    pub fn requests(&self) -> Vec<String> {
        self.state.lock().unwrap().requests.clone()
    }

    pub fn forget_requests(&self) {
        self.state.lock().unwrap().requests.clear();
    }

    /// Requests that change something, besides the Lease's.
    pub fn writes(&self) -> Vec<String> {
        let lease = |request: &&String| !request.starts_with("GET") && !request.contains("/leases");
        self.requests().iter().filter(lease).cloned().collect()
    }

    /// A client over this server, without a socket.
    pub fn client(&self) -> kube::Client {
        let this = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let this = this.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
                Ok::<_, Infallible>(this.handle(parts.method, parts.uri, body).await)
            }
        });
        kube::Client::new(service, "default")
    }

    /// Serves on a listener until the runtime ends.
    pub fn serve(&self, listener: tokio::net::TcpListener) {
        let this = self.clone();
        let router = axum::Router::new().fallback(move |request: Request<Body>| {
            let this = this.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
                this.handle(parts.method, parts.uri, body).await
            }
        });
        tokio::spawn(async move { axum::serve(listener, router).await });
    }

    async fn handle(&self, method: Method, uri: Uri, body: Bytes) -> Response<Body> {
        let path = uri.path().to_owned();
        let faults = {
            let mut state = self.state.lock().unwrap();
            state.requests.push(format!("{method} {path}"));
            state.faults.clone()
        };
        if faults.mute {
            self.until_unmuted().await;
        }
        let target = target(&path);
        let query: BTreeMap<String, String> = uri
            .query()
            .unwrap_or_default()
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        let object: Value = serde_json::from_slice(&body).unwrap_or_default();
        let review = path.rsplit('/').next().and_then(|plural| tls::review(plural, &object));
        let (code, answer) = if let Some(code) = faults.refuse {
            status(code, "Refused", "refused by the test", None)
        } else if faults.forbid.is_some_and(|part| path.contains(&part)) {
            status(403, "Forbidden", "not allowed by the test", None)
        } else if let Some(review) = review {
            (201, review)
        } else if let Some(group) = self.discovery(&path) {
            (200, group)
        } else if !self.state.lock().unwrap().installed.contains(&target.collection) {
            status(404, "NotFound", "the server could not find the requested resource", None)
        } else if faults.expire_page && query.contains_key("continue") {
            self.state.lock().unwrap().faults.expire_page = false;
            status(410, "Expired", "The provided continue parameter is too old", None)
        } else if method == Method::GET && query.contains_key("watch") {
            return self.watch(target.collection, &query);
        } else {
            let limit = query.get("limit").and_then(|v| v.parse().ok()).unwrap_or(usize::MAX);
            let from = query.get("continue").and_then(|v| v.parse().ok()).unwrap_or(0);
            self.with(|state| match (method.as_str(), target.name.is_empty()) {
                ("GET", true) => (200, state.list(&target, limit, from)),
                ("GET", false) => {
                    let key = (target.namespace.clone(), target.name.clone());
                    match state.objects.get(&target.collection).and_then(|all| all.get(&key)) {
                        Some(object) => (200, object.clone()),
                        None => status(404, "NotFound", "not found", None),
                    }
                }
                ("POST", true) => state.create(&target, object),
                ("PATCH", false) => state.patch(&target, &object),
                ("DELETE", false) => state.delete(&target, &object),
                _ => status(405, "MethodNotAllowed", "not in this fake", None),
            })
        };
        let code = StatusCode::from_u16(code).unwrap();
        Response::builder().status(code).body(Body::from(answer.to_string())).unwrap()
    }

    /// What discovery says about a group and version that has kinds.
    fn discovery(&self, path: &str) -> Option<Value> {
        let state = self.state.lock().unwrap();
        let kinds: Vec<Value> = state
            .installed
            .iter()
            .filter_map(|collection| collection.rsplit_once('/').filter(|(group, _)| *group == path))
            .map(|(_, plural)| json!({ "name": plural }))
            .collect();
        (!kinds.is_empty()).then(|| json!({ "kind": "APIResourceList", "resources": kinds }))
    }

    async fn until_unmuted(&self) {
        let mut wake = self.wake.subscribe();
        while self.state.lock().unwrap().faults.mute {
            let _ = wake.recv().await;
        }
    }

    fn watch(&self, collection: String, query: &BTreeMap<String, String>) -> Response<Body> {
        let from: u64 = query.get("resourceVersion").and_then(|v| v.parse().ok()).unwrap_or(0);
        let window = query.get("timeoutSeconds").and_then(|v| v.parse().ok()).unwrap_or(300);
        let (sender, receiver) = tokio::sync::mpsc::channel::<Result<Bytes, Infallible>>(64);
        let this = self.clone();
        let mut wake = self.wake.subscribe();
        tokio::spawn(async move {
            let end = tokio::time::Instant::now() + Duration::from_secs(window);
            let mut seen = from;
            loop {
                let (expired, muted, chopped, lines) = {
                    let state = this.state.lock().unwrap();
                    let log = state.log.get(&collection).map(Vec::as_slice).unwrap_or_default();
                    let new = &log[log.partition_point(|(version, ..)| *version <= seen)..];
                    let lines: Vec<(u64, String)> = new
                        .iter()
                        .map(|(version, kind, object)| {
                            (*version, json!({"type": kind, "object": object}).to_string() + "\n")
                        })
                        .collect();
                    (seen < state.compacted, state.faults.mute, state.faults.chop, lines)
                };
                if muted {
                    // A connection that was mute once stays dead: this is what a cut one looks like.
                    std::future::pending::<()>().await;
                }
                if expired {
                    let (_, gone) = status(410, "Expired", "too old resource version", None);
                    let line = json!({"type": "ERROR", "object": gone}).to_string() + "\n";
                    let _ = sender.send(Ok(line.into())).await;
                    return;
                }
                for (version, line) in lines {
                    seen = version;
                    let line = Bytes::from(line);
                    let size = if chopped { 5 } else { line.len() };
                    for start in (0..line.len()).step_by(size) {
                        let piece = line.slice(start..line.len().min(start + size));
                        if sender.send(Ok(piece)).await.is_err() {
                            return;
                        }
                    }
                }
                tokio::select! {
                    () = sender.closed() => return,
                    _ = wake.recv() => {}
                    () = tokio::time::sleep_until(end) => {
                        let version = this.state.lock().unwrap().version.to_string();
                        let bookmark = json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": version}}});
                        let _ = sender.send(Ok((bookmark.to_string() + "\n").into())).await;
                        return;
                    }
                }
            }
        });
        let stream = futures::stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|item| (item, receiver))
        });
        Response::builder().status(200).body(Body::from_stream(stream)).unwrap()
    }
}
