//! What a session does when servers, networks and consumers misbehave.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::atomic::Ordering;
use std::time::Duration;

use ovsdb::testing::northbound;
use ovsdb::testing::real::{Cluster, Server};
use ovsdb::{Event, Operation, Options, Session, TransactErrorKind, Uuid, Value};
use serde_json::json;
use support::fake::{Fake, Proxy};
use support::{Model, disconnected, dump, follow, next, replaced};

/// Impatient, so that tests are quick; nothing here depends on exact times.
fn options(endpoints: Vec<ovsdb::Endpoint>) -> Options {
    let mut options = Options::new(endpoints, "OVN_Northbound").table("Logical_Switch", ["name", "ports"]);
    options.probe_interval = Duration::from_millis(600);
    options
}

fn scripted(fake: &Fake) -> Options {
    Options::new(vec![fake.endpoint()], "Db").table("T", ["name", "tags", "one", "ids"])
}

fn switch(name: &str) -> Operation {
    Operation::insert("Logical_Switch").column("name", name).build()
}

#[tokio::test]
async fn a_server_that_never_answers_is_left_for_the_next() {
    let (mute, server) = (Fake::new(), Server::northbound().unwrap());
    let (_session, mut events) = Session::connect(options(vec![mute.endpoint(), server.endpoint()]));
    let mut first = mute.accept().await;
    let Event::Connected { endpoint, .. } = next(&mut events).await else { panic!("not connected") };
    assert_eq!(endpoint, server.endpoint());
    assert!(first.is_closed().await);
}

#[tokio::test]
async fn a_monitor_that_is_never_answered_times_out() {
    let fake = Fake::new();
    let mut options = scripted(&fake);
    options.request_timeout = Duration::from_millis(200);
    let (session, mut events) = Session::connect(options);
    let mut first = fake.accept().await;
    first.greet("monitor_cond_since").await;
    let reason = disconnected(&mut events).await;
    assert!(reason.contains("monitor_cond_since"), "{reason}");
    // It tries again, and this time gets its answer.
    let mut second = fake.accept().await;
    let (id, _) = second.greet("monitor_cond_since").await;
    second.result(&id, json!([false, "0", {}])).await;
    replaced(&mut events).await;
    assert!(session.state().synced);
}

#[tokio::test]
async fn a_transaction_that_is_never_answered_ends_the_connection() {
    let fake = Fake::new();
    let mut options = scripted(&fake);
    options.request_timeout = Duration::from_millis(200);
    let (session, mut events) = Session::connect(options);
    let mut server = fake.accept().await;
    let (id, _) = server.greet("monitor_cond_since").await;
    server.result(&id, json!([false, "0", {}])).await;
    replaced(&mut events).await;
    session.submit(7, vec![Operation::Comment("into the void".into())]);
    server.expect("transact").await;
    let Event::Reply { tag: 7, result: Err(error) } = next(&mut events).await else { panic!("no reply") };
    assert_eq!(error.kind, TransactErrorKind::Disconnected);
    assert!(!error.retryable());
    assert!(disconnected(&mut events).await.contains("transact"));
    // Without a connection the answer comes at once.
    session.submit(8, vec![]);
    assert!(matches!(next(&mut events).await, Event::Reply { tag: 8, result: Err(_) }));
}

#[tokio::test]
async fn silently_dropped_packets_are_noticed_and_healed() {
    let server = Server::northbound().unwrap();
    let proxy = Proxy::new(server.socket());
    let (_session, mut events) = Session::connect(options(vec![proxy.endpoint()]));
    let mut model = Model::default();
    model.apply(&replaced(&mut events).await.1);
    proxy.cut();
    let reason = disconnected(&mut events).await;
    assert!(reason.contains("no sign of life"), "{reason}");
    // Attempts during the cut go nowhere; the database changes meanwhile.
    let before = proxy.accepted.load(Ordering::Relaxed);
    while proxy.accepted.load(Ordering::Relaxed) < before + 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (direct, _) = Session::connect(options(vec![server.endpoint()]));
    direct.transact(vec![switch("meanwhile")]).await.unwrap();
    proxy.heal();
    let (mut replica, changes) = replaced(&mut events).await;
    model.apply(&changes);
    // What the cut held back may still be delivered, as after a retransmission.
    let direct_options = options(vec![server.endpoint()]);
    while replica != dump(&direct_options).await {
        let Event::Updated { replica: newer, changes } = next(&mut events).await else { panic!("no update") };
        model.apply(&changes);
        replica = newer;
    }
    model.assert_matches(&replica);
}

#[tokio::test]
async fn a_transaction_in_a_silent_cut_has_an_unknown_outcome() {
    let server = Server::northbound().unwrap();
    let proxy = Proxy::new(server.socket());
    let mut options = options(vec![proxy.endpoint()]);
    options.request_timeout = Duration::from_millis(400);
    let (session, mut events) = Session::connect(options);
    replaced(&mut events).await;
    proxy.cut();
    session.submit(1, vec![switch("unknown outcome")]);
    let reply = next(&mut events).await;
    assert!(
        matches!(&reply, Event::Reply { tag: 1, result: Err(e) } if e.kind == TransactErrorKind::Disconnected)
    );
    assert!(disconnected(&mut events).await.contains("transact"));
    proxy.heal();
    replaced(&mut events).await;
    session.transact(vec![switch("after")]).await.unwrap();
}

#[tokio::test]
async fn a_slow_consumer_gets_one_difference() {
    let server = Server::northbound().unwrap();
    let mut options = follow(Options::new(vec![server.endpoint()], "OVN_Northbound"), &northbound());
    options.max_queued_changes = 100;
    let (session, mut events) = Session::connect(options.clone());
    let mut model = Model::default();
    model.apply(&replaced(&mut events).await.1);
    let count = 1000;
    for tag in 0..count {
        session.submit(tag, vec![switch(&format!("s{tag}"))]);
    }
    // Nothing is taken until the last is acknowledged.
    session.transact(vec![switch("last")]).await.unwrap();
    let (mut resyncs, mut expected, mut seen) = (0, 0, 0);
    while expected < count || seen < count as usize + 1 {
        match next(&mut events).await {
            Event::Resync { .. } => resyncs += 1,
            Event::Replaced { replica, changes } | Event::Updated { replica, changes } => {
                model.apply(&changes);
                model.assert_matches(&replica);
                seen = replica.row_count();
            }
            Event::Reply { tag, result } => {
                result.unwrap();
                assert_eq!(tag, expected);
                assert!(seen > tag as usize, "reply {tag} before its own update");
                expected += 1;
            }
            other => panic!("unexpected {other:?}"),
        }
    }
    assert!(resyncs >= 1);
    assert_eq!(model.0.len(), dump(&options).await.row_count());
}

#[tokio::test]
async fn an_update_that_does_not_fit_leads_to_a_fresh_load() {
    let fake = Fake::new();
    let (session, mut events) = Session::connect(scripted(&fake));
    let mut server = fake.accept().await;
    let (id, params) = server.greet("monitor_cond_since").await;
    let first_monitor = params[1].clone();
    let (a, b) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let content =
        json!({"T": {a.to_string(): {"initial": {"name": "a", "tags": ["set", ["x", "y"]], "one": 1}}}});
    server.result(&id, json!([false, "t1", content])).await;
    let mut model = Model::default();
    model.apply(&replaced(&mut events).await.1);
    // Differences of every kind.
    let change = json!({"T": {
        a.to_string(): {"modify": {"tags": ["set", ["y", "z"]], "one": ["set", []], "ids": ["map", [["k", "v"]]]}},
        b.to_string(): {"insert": {"tags": "only"}}
    }});
    server.send(json!({"id": null, "method": "update3", "params": [first_monitor, "t2", change]})).await;
    let Event::Updated { replica, changes } = next(&mut events).await else { panic!("no update") };
    model.apply(&changes);
    let row = replica.row("T", &a).unwrap();
    assert_eq!(row.get("tags"), Some(&Value::strings(["x", "z"])));
    assert_eq!((row.i64("one"), row.map_get("ids", "k")), (None, Some("v")));
    assert_eq!(replica.row("T", &b).unwrap().str("tags"), Some("only"));
    // A change of a row that we never saw.
    let ghost = json!({"T": {Uuid::from_u128(3).to_string(): {"modify": {"name": "ghost"}}}});
    server.send(json!({"id": null, "method": "update3", "params": [first_monitor, "t3", ghost]})).await;
    assert!(matches!(next(&mut events).await, Event::Resync { .. }));
    server.expect("monitor_cancel").await;
    let (id, params) = server.expect("monitor_cond_since").await;
    assert_eq!(params[3], "00000000-0000-0000-0000-000000000000");
    // Updates of the cancelled monitor are ignored.
    server.send(json!({"id": null, "method": "update3", "params": [first_monitor, "t4", ghost]})).await;
    let content = json!({"T": {b.to_string(): {"initial": {"tags": "only"}}}});
    server.result(&id, json!([false, "t4", content])).await;
    let (replica, changes) = replaced(&mut events).await;
    assert_eq!(changes.len(), 1);
    model.apply(&changes);
    model.assert_matches(&replica);
    assert_eq!(session.state().resyncs, 1);
    // Back in sync, the next reconnect asks from where it was.
    drop(server);
    let mut server = fake.accept().await;
    let (id, params) = server.greet("monitor_cond_since").await;
    assert_eq!(params[3], "t4");
    let difference = json!({"T": {b.to_string(): {"modify": {"name": "b"}}}});
    server.result(&id, json!([true, "t5", difference])).await;
    let (replica, changes) = replaced(&mut events).await;
    model.apply(&changes);
    model.assert_matches(&replica);
    assert_eq!(replica.row("T", &b).unwrap().str("name"), Some("b"));
}

#[tokio::test]
async fn an_old_server_without_monitor_cond_since_will_do() {
    let fake = Fake::new();
    let (_session, mut events) = Session::connect(scripted(&fake));
    let mut server = fake.accept().await;
    let (id, _) = server.greet("monitor_cond_since").await;
    server.error(&id, json!("unknown method")).await;
    let (id, params) = server.expect("monitor_cond").await;
    let row = Uuid::from_u128(1).to_string();
    server.result(&id, json!({"T": {&row: {"initial": {"name": "a"}}}})).await;
    assert_eq!(replaced(&mut events).await.1.len(), 1);
    server
        .send(
            json!({"id": null, "method": "update2", "params": [params[1], {"T": {&row: {"delete": null}}}]}),
        )
        .await;
    let Event::Updated { replica, .. } = next(&mut events).await else { panic!("no update") };
    assert_eq!(replica.row_count(), 0);
    // Probes of the server are answered with their own parameters.
    server.send(json!({"id": "echo", "method": "echo", "params": ["x"]})).await;
    let answer = server.receive().await;
    assert_eq!((&answer["id"], &answer["result"]), (&json!("echo"), &json!(["x"])));
}

#[tokio::test]
async fn a_converted_schema_is_followed_on_the_same_connection() {
    let server = Server::northbound().unwrap();
    let (session, mut events) = Session::connect(options(vec![server.endpoint()]).table("DNS", ["records"]));
    replaced(&mut events).await;
    session.transact(vec![switch("s")]).await.unwrap();
    let text = std::fs::read_to_string(server.root().northbound_schema().unwrap()).unwrap();
    let mut schema: serde_json::Value = serde_json::from_str(&text).unwrap();
    schema["tables"]["DNS"]["columns"].as_object_mut().unwrap().remove("records");
    schema["version"] = json!("7.99.0");
    let file = server.directory().join("new.ovsschema");
    std::fs::write(&file, schema.to_string()).unwrap();
    let remote = server.endpoint().to_string();
    let args = ["convert", &remote, &file.display().to_string()];
    server.root().run("usr/bin/ovsdb-client", server.directory(), &args).unwrap();
    let connected = loop {
        match next(&mut events).await {
            Event::Connected { schema, missing, .. } => break (schema, missing),
            Event::Disconnected { reason } => panic!("disconnected: {reason}"),
            _ => {}
        }
    };
    assert_eq!(connected.0.version, "7.99.0");
    assert_eq!(connected.1, [("DNS".to_owned(), "records".to_owned())]);
    let (replica, _) = replaced(&mut events).await;
    assert_eq!(replica.table("Logical_Switch").unwrap().len(), 1);
    session.transact(vec![switch("after")]).await.unwrap();
    let Event::Updated { replica, .. } = next(&mut events).await else { panic!("no update") };
    assert_eq!(replica.table("Logical_Switch").unwrap().len(), 2);
}

#[tokio::test]
async fn a_writer_follows_the_leader() {
    let mut cluster = Cluster::northbound(3).unwrap();
    let mut options = options(cluster.endpoints());
    options.leader_only = true;
    let (session, mut events) = Session::connect(options.clone());
    let mut model = Model::default();
    model.apply(&replaced(&mut events).await.1);
    session.transact(vec![switch("one")]).await.unwrap();
    let Event::Updated { changes, .. } = next(&mut events).await else { panic!("no update") };
    model.apply(&changes);
    let leader = session.state().endpoint.unwrap();
    let position = cluster.position(&leader).unwrap();
    cluster.member_mut(position).kill();
    disconnected(&mut events).await;
    let mut names = 0;
    session.transact(vec![switch("two")]).await.unwrap();
    while names < 2 {
        match next(&mut events).await {
            Event::Replaced { replica, changes } | Event::Updated { replica, changes } => {
                model.apply(&changes);
                model.assert_matches(&replica);
                names = replica.row_count();
            }
            _ => {}
        }
    }
    assert_ne!(session.state().endpoint, Some(leader));
}

#[tokio::test]
async fn a_session_ends_when_its_handles_are_dropped() {
    let server = Server::northbound().unwrap();
    let (session, mut events) = Session::connect(options(vec![server.endpoint()]));
    replaced(&mut events).await;
    drop(session.clone());
    session.transact(vec![switch("still there")]).await.unwrap();
    drop(session);
    while events.next().await.is_some() {}
}
