use std::collections::VecDeque;
use std::sync::Mutex;

use hyper::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use super::super::cluster::resource;
use super::super::facts::{NodeFacts, SubnetFacts};
use super::*;

/// What an API server answers, one request after another: a status with a body.
#[derive(Clone, Default)]
struct Script(Arc<Mutex<VecDeque<(u16, String)>>>);

impl Script {
    fn then(&self, code: u16, body: &Value) {
        self.0.lock().unwrap().push_back((code, body.to_string()));
    }

    fn refuse(&self, code: u16) {
        self.then(
            code,
            &json!({"kind": "Status", "status": "Failure", "reason": "", "message": "no", "code": code}),
        );
    }

    fn list(&self, names: &[&str]) {
        let items =
            names.iter().map(|name| json!({"metadata": {"name": name}, "spec": {"cidrBlock": "10.0.0.0/8"}}));
        self.then(200, &json!({"metadata": {"resourceVersion": "1"}, "items": items.collect::<Vec<_>>()}));
    }

    /// Follows a kind by this script; at its end the server is silent until there is more.
    fn follow(&self, bounds: Bounds) -> (Arc<Reflection<SubnetFacts>>, AbortOnDropHandle<()>) {
        let script = self.0.clone();
        let service = tower::service_fn(move |_: Request<Body>| {
            let script = script.clone();
            async move {
                let next = || script.lock().unwrap().pop_front();
                let (code, body) = loop {
                    match next() {
                        Some(next) => break next,
                        None => tokio::time::sleep(Duration::from_millis(2)).await,
                    }
                };
                Response::builder().status(code).body(Body::from(body.into_bytes()))
            }
        });
        let api =
            Api::all_with(Client::new(service, "default"), &resource(crds::GROUP, "v1", "Subnet", "subnets"));
        let kind = Reflection::<SubnetFacts> { bounds, ..Reflection::new("subnets").optional() };
        let kind = Arc::new(kind);
        let followed = kind.clone();
        let task = async move {
            followed.follow(api, watcher::Config::default(), CancellationToken::new()).await;
        };
        (kind, AbortOnDropHandle::new(tokio::spawn(task)))
    }
}

async fn until(mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waiting).await.unwrap();
}

fn names(kind: &Reflection<SubnetFacts>) -> Vec<String> {
    kind.get().objects.keys().map(|key| key.to_string()).collect()
}

/// Bounds that a test need not wait for: of a kind that was there the second refusal counts.
fn short() -> Bounds {
    Bounds { forbidden: Duration::ZERO, gone: Duration::from_nanos(1), again: Duration::from_secs(1) }
}

#[tokio::test]
async fn a_refused_watch_takes_nothing_away_and_goes_on() {
    let script = Script::default();
    script.list(&["a", "b"]);
    for _ in 0..3 {
        script.refuse(403);
    }
    let (kind, _task) = script.follow(short());
    until(|| kind.status().breaks == 3).await;
    assert_eq!(names(&kind), ["a", "b"]);
    // It goes on where it was.
    let gone = json!({"metadata": {"name": "b", "resourceVersion": "2"}});
    script.then(200, &json!({"type": "DELETED", "object": gone}));
    until(|| names(&kind) == ["a"]).await;
    assert_eq!(kind.status().refused, None);
}

#[tokio::test]
async fn a_start_during_refusals_knows_nothing_until_the_list_comes() {
    let script = Script::default();
    script.refuse(403);
    let (kind, _task) = script.follow(Bounds::default());
    until(|| kind.unknown() == Some(Unknown { kind: "subnets", refused: Some(403) })).await;
    assert!(!kind.get().settled() && kind.forbidden().is_some());
    script.list(&["a"]);
    until(|| kind.synced()).await;
    assert_eq!((names(&kind), kind.unknown(), kind.forbidden()), (vec!["a".to_owned()], None, None));
}

#[tokio::test]
async fn a_kind_that_stays_forbidden_keeps_nobody_waiting_and_is_not_empty() {
    let script = Script::default();
    script.refuse(403);
    let (kind, _task) = script.follow(short());
    until(|| kind.get().denied).await;
    assert!(!kind.synced() && kind.unknown().is_none() && kind.forbidden().is_some());
    // Somebody permits it.
    script.list(&["a"]);
    until(|| kind.synced()).await;
    assert!(!kind.get().denied && names(&kind) == ["a"]);
}

#[tokio::test]
async fn a_kind_that_comes_goes_and_comes_again_is_listed_each_time() {
    let script = Script::default();
    script.refuse(404);
    script.list(&["a"]);
    let (kind, _task) = script.follow(short());
    until(|| names(&kind) == ["a"]).await;
    script.refuse(404);
    script.refuse(404);
    until(|| names(&kind).is_empty()).await;
    script.list(&["b"]);
    until(|| names(&kind) == ["b"]).await;
}

fn node(name: &str, address: &str) -> NodeFacts {
    NodeFacts { name: name.into(), internal_ips: vec![address.parse().unwrap()], ..NodeFacts::default() }
}

#[test]
fn equal_content_wakes_nobody() {
    let nodes = Reflection::<NodeFacts>::new("nodes");
    nodes.put("a".into(), Some(node("a", "10.0.0.1")));
    let mut receiver = nodes.subscribe();
    nodes.put("a".into(), Some(node("a", "10.0.0.1")));
    nodes.put("b".into(), None);
    assert!(!receiver.has_changed().unwrap());
    nodes.put("a".into(), Some(node("a", "10.0.0.2")));
    assert!(receiver.has_changed().unwrap());
    receiver.mark_unchanged();
    let held = receiver.borrow().objects.clone();
    nodes.put("a".into(), None);
    // A snapshot that someone holds never changes under him.
    assert_eq!(held.len(), 1);
    assert!(nodes.get().objects.is_empty());
}

#[test]
fn a_relist_delivers_deletions() {
    let nodes = Reflection::<NodeFacts>::new("nodes");
    nodes.put("gone".into(), Some(node("gone", "10.0.0.1")));
    nodes.replace(BTreeMap::from([("kept".into(), node("kept", "10.0.0.2"))]));
    let state = nodes.get();
    assert!(state.synced);
    assert_eq!(state.objects.keys().map(|key| &**key).collect::<Vec<_>>(), ["kept"]);
}

#[test]
fn a_bad_object_is_counted_and_left_out() {
    let subnets = Reflection::<SubnetFacts>::new("subnets");
    let bad: Watched<SubnetFacts> = serde_json::from_str(r#"{"spec": 3}"#).unwrap();
    assert!(subnets.take(bad).is_none());
    assert_eq!(subnets.status().undecodable, 1);
    let good: Watched<SubnetFacts> =
        serde_json::from_str(r#"{"metadata": {"name": "s"}, "spec": {"cidrBlock": "10.16.0.0/16"}}"#)
            .unwrap();
    assert!(subnets.take(good).unwrap().1.is_some());
}
