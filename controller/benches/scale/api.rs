//! An API server that holds 150,000 pods: objects as text, as long as real ones,
//! lists in pages, watches, merge patches. Serves on a TCP port of this host.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes};
use axum::http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::sync::watch;

/// Events kept per collection for watches that lag.
const KEPT: usize = 400_000;

const PODS: &str = "/api/v1/pods";

#[derive(Default)]
struct Collection {
    objects: BTreeMap<(String, String), Arc<str>>,
    log: VecDeque<(u64, &'static str, Arc<str>)>,
}

#[derive(Default)]
struct State {
    collections: BTreeMap<String, Collection>,
    version: u64,
    /// Requests that change something, by verb and collection; the Lease's excepted.
    writes: BTreeMap<String, u64>,
    routed: usize,
}

#[derive(Clone)]
pub struct Api {
    state: Arc<Mutex<State>>,
    wake: watch::Sender<u64>,
}

struct Target {
    collection: String,
    namespace: String,
    name: String,
}

/// What a path is about; `None` for one that asks which kinds there are.
fn target(path: &str) -> Option<Target> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let base = if parts[0] == "api" { 2 } else { 3 };
    if parts.len() <= base {
        return None;
    }
    let prefix = format!("/{}", parts[..base].join("/"));
    let rest = &parts[base..];
    let (namespace, rest) =
        if rest[0] == "namespaces" && rest.len() > 2 { (rest[1], &rest[2..]) } else { ("", rest) };
    let name = rest.get(1).copied().unwrap_or_default();
    Some(Target {
        collection: format!("{prefix}/{}", rest[0]),
        namespace: namespace.into(),
        name: name.into(),
    })
}

/// Applies a merge patch (RFC 7386), as both API servers of this bench do.
pub fn merge(into: &mut Value, patch: &Value) {
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
        (into, patch) => *into = patch.clone(),
    }
}

fn routed(object: &Value) -> bool {
    object["metadata"]["annotations"]["ovn.kubernetes.io/routed"] == "true"
}

impl State {
    fn store(&mut self, target: &Target, kind: &'static str, object: &mut Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let text: Arc<str> = object.to_string().into();
        let collection = self.collections.entry(target.collection.clone()).or_default();
        let key = (target.namespace.clone(), target.name.clone());
        if kind == "DELETED" {
            collection.objects.remove(&key);
        } else {
            collection.objects.insert(key, text.clone());
        }
        collection.log.push_back((self.version, kind, text));
        if collection.log.len() > KEPT {
            collection.log.pop_front();
        }
    }

    fn change(&mut self, method: &Method, mut target: Target, body: &[u8]) -> (u16, String) {
        if !target.collection.contains("/leases") {
            *self.writes.entry(format!("{method} {}", target.collection)).or_default() += 1;
        }
        let Ok(mut object) = serde_json::from_slice::<Value>(body) else { return (400, "{}".into()) };
        if *method == Method::POST {
            target.name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        }
        let key = (target.namespace.clone(), target.name.clone());
        let all = self.collections.get(&target.collection);
        let old = all.and_then(|all| all.objects.get(&key)).map(|text| serde_json::from_str::<Value>(text));
        let pod = target.collection == PODS;
        match (method.as_str(), old) {
            ("POST", Some(_)) => (409, json!({"reason": "AlreadyExists", "code": 409}).to_string()),
            ("POST", None) => {
                object["metadata"]["namespace"] = target.namespace.clone().into();
                object["metadata"]["uid"] = uuid::Uuid::new_v4().to_string().into();
                self.store(&target, "ADDED", &mut object);
                (201, object.to_string())
            }
            ("PATCH", Some(Ok(mut old))) => {
                let (before, was) = (old.clone(), routed(&old));
                let version = &object["metadata"]["resourceVersion"];
                if !version.is_null() && *version != old["metadata"]["resourceVersion"] {
                    return (409, json!({"reason": "Conflict", "code": 409}).to_string());
                }
                merge(&mut old, &object);
                if old != before {
                    let leaving = !old["metadata"]["deletionTimestamp"].is_null()
                        && old["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty);
                    self.routed += usize::from(pod && !was && routed(&old));
                    self.store(&target, if leaving { "DELETED" } else { "MODIFIED" }, &mut old);
                }
                (200, old.to_string())
            }
            ("DELETE", Some(Ok(mut old))) => {
                self.routed -= usize::from(pod && routed(&old));
                let held = old["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty());
                if held {
                    old["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
                }
                self.store(&target, if held { "MODIFIED" } else { "DELETED" }, &mut old);
                (200, old.to_string())
            }
            _ => (404, json!({"reason": "NotFound", "code": 404}).to_string()),
        }
    }

    fn list(&self, collection: &str, limit: usize, after: Option<(String, String)>) -> String {
        let empty = Collection::default();
        let all = self.collections.get(collection).unwrap_or(&empty);
        let from = match after {
            Some(key) => std::ops::Bound::Excluded(key),
            None => std::ops::Bound::Unbounded,
        };
        let mut text = String::from("{\"kind\":\"List\",\"items\":[");
        let mut last = None;
        let mut range = all.objects.range((from, std::ops::Bound::Unbounded));
        for (key, object) in range.by_ref().take(limit) {
            if last.is_some() {
                text.push(',');
            }
            text.push_str(object);
            last = Some(key);
        }
        let next = last.filter(|_| range.next().is_some()).map(|(ns, name)| format!("{ns}.{name}"));
        text.push_str(&format!(
            "],\"metadata\":{}}}",
            json!({"resourceVersion": self.version.to_string(), "continue": next.unwrap_or_default()})
        ));
        text
    }
}

impl Api {
    pub fn new() -> Self {
        let state = State { version: 100, ..State::default() };
        Self { state: Arc::new(Mutex::new(state)), wake: watch::Sender::new(0) }
    }

    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock().unwrap();
        let result = change(&mut state);
        self.wake.send_replace(state.version);
        result
    }

    pub fn write(&self, method: Method, path: &str, body: &Value) {
        let text = body.to_string();
        let target = target(path).unwrap();
        let (code, answer) = self.with(|state| state.change(&method, target, text.as_bytes()));
        assert!(code < 300, "{path}: {answer}");
    }

    pub fn create(&self, path: &str, body: &Value) {
        self.write(Method::POST, path, body);
    }

    pub fn forget_writes(&self) {
        self.state.lock().unwrap().writes.clear();
    }

    pub fn writes(&self) -> BTreeMap<String, u64> {
        self.state.lock().unwrap().writes.clone()
    }

    /// Pods with the annotation `routed`.
    pub fn routed(&self) -> usize {
        self.state.lock().unwrap().routed
    }

    /// Becomes true at every change.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.wake.subscribe()
    }

    pub fn serve(&self, listener: tokio::net::TcpListener) {
        let this = self.clone();
        let router = axum::Router::new().fallback(move |request: Request<Body>| {
            let this = this.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
                this.handle(&parts.method, &parts.uri, &body)
            }
        });
        tokio::spawn(async move { axum::serve(listener, router).await });
    }

    fn handle(&self, method: &Method, uri: &Uri, body: &Bytes) -> Response<Body> {
        let Some(target) = target(uri.path()) else {
            // Groups that are not installed are asked for: KubeVirt's.
            return Response::builder().status(404).body(Body::empty()).unwrap();
        };
        let query: BTreeMap<&str, &str> =
            uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('=')).collect();
        let (code, answer) = match (method.as_str(), target.name.is_empty()) {
            ("GET", true) if query.contains_key("watch") => return self.watch(target.collection, &query),
            ("GET", true) => {
                let limit = query.get("limit").and_then(|v| v.parse().ok()).unwrap_or(usize::MAX);
                let after = query.get("continue").and_then(|v| v.split_once('.'));
                let after = after.map(|(ns, name)| (ns.to_owned(), name.to_owned()));
                (200, self.state.lock().unwrap().list(&target.collection, limit, after))
            }
            ("GET", false) => {
                let state = self.state.lock().unwrap();
                let all = state.collections.get(&target.collection);
                match all.and_then(|all| all.objects.get(&(target.namespace, target.name))) {
                    Some(object) => (200, object.to_string()),
                    None => (404, json!({"reason": "NotFound", "code": 404}).to_string()),
                }
            }
            _ => self.with(|state| state.change(method, target, body)),
        };
        let code = StatusCode::from_u16(code).unwrap();
        Response::builder().status(code).body(Body::from(answer)).unwrap()
    }

    fn watch(&self, collection: String, query: &BTreeMap<&str, &str>) -> Response<Body> {
        let from: u64 = query.get("resourceVersion").and_then(|v| v.parse().ok()).unwrap_or(0);
        let (sender, receiver) = tokio::sync::mpsc::channel::<Result<Bytes, Infallible>>(8);
        let (this, mut wake) = (self.clone(), self.wake.subscribe());
        tokio::spawn(async move {
            let mut seen = from;
            loop {
                wake.borrow_and_update();
                let mut text = String::new();
                {
                    let state = this.state.lock().unwrap();
                    if let Some(all) = state.collections.get(&collection) {
                        let start = all.log.partition_point(|(version, ..)| *version <= seen);
                        for (version, kind, object) in all.log.range(start..).take(1000) {
                            seen = *version;
                            text.push_str(&format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n"));
                        }
                    }
                }
                if !text.is_empty() {
                    if sender.send(Ok(text.into())).await.is_err() {
                        return;
                    }
                    continue;
                }
                tokio::select! {
                    () = sender.closed() => return,
                    changed = wake.changed() => if changed.is_err() { return },
                    // A window never ends here: the controller asks anew after its own time.
                    () = tokio::time::sleep(std::time::Duration::from_secs(30)) => {
                        let version = this.state.lock().unwrap().version.to_string();
                        let mark = json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": version}}});
                        let _ = sender.send(Ok((mark.to_string() + "\n").into())).await;
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
