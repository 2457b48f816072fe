//! What sessions do when endpoints change, calls hang, and others misbehave.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::time::{Duration, Instant};

use ovsdb::testing::real::{Cluster, Server};
use ovsdb::{Change, Event, Filter, Operation, Options, Session, TransactErrorKind, Value};
use serde_json::json;
use support::fake::{Fake, Proxy};
use support::{Model, disconnected, dump, next, replaced};

fn options(endpoints: Vec<ovsdb::Endpoint>) -> Options {
    let mut options = Options::new(endpoints, "OVN_Northbound").table("Logical_Switch", ["name", "ports"]);
    options.probe_interval = Duration::from_millis(600);
    options
}

fn switch(name: &str) -> Operation {
    Operation::insert("Logical_Switch").column("name", name).build()
}

#[tokio::test]
async fn a_silence_in_the_middle_of_a_transaction_is_noticed_by_the_probe() {
    let server = Server::northbound().unwrap();
    let proxy = Proxy::new(server.socket());
    let mut options = options(vec![proxy.endpoint()]);
    // Its own bound is far away.
    options.request_timeout = Duration::from_secs(3600);
    let (session, mut events) = Session::connect(options);
    replaced(&mut events).await;
    for round in 0..3 {
        session.transact(vec![switch(&format!("before {round}"))]).await.unwrap();
        proxy.cut();
        let begin = Instant::now();
        session.submit(1, vec![switch("unknown outcome")]);
        let reply = loop {
            if let Event::Reply { result, .. } = next(&mut events).await {
                break result;
            }
        };
        assert_eq!(reply.unwrap_err().kind, TransactErrorKind::Disconnected);
        let reason = disconnected(&mut events).await;
        assert!(reason.contains("no sign of life"), "{reason}");
        println!("noticed after {:?}", begin.elapsed());
        proxy.heal();
        replaced(&mut events).await;
    }
}

/// A server answers probes while a transaction of ours waits: that is no silence.
#[tokio::test]
async fn a_transaction_that_waits_longer_than_the_probes_is_let_wait() {
    let server = Server::northbound().unwrap();
    let mut options = options(vec![server.endpoint()]);
    options.probe_interval = Duration::from_millis(200);
    let (session, mut events) = Session::connect(options.clone());
    replaced(&mut events).await;
    let wait =
        Operation::wait("Logical_Switch").by("name", "late").column_equals("name", "late").timeout(60_000);
    let waiting = session.begin(vec![wait.build(), switch("after")]).unwrap();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let (other, _) = Session::connect(options);
    other.transact(vec![switch("late")]).await.unwrap();
    waiting.outcome().await.unwrap();
    assert_eq!(session.state().connections, 1);
}

#[tokio::test]
async fn a_call_that_is_never_answered_is_made_again_elsewhere() {
    let (mute, other) = (Fake::new(), Fake::new());
    let mut options = Options::new(vec![mute.endpoint(), other.endpoint()], "Db").table("T", ["name"]);
    options.request_timeout = Duration::from_millis(300);
    let (session, mut events) = Session::connect(options);
    let mut first = mute.accept().await;
    let (id, _) = first.greet("monitor_cond_since").await;
    first.result(&id, json!([false, "0", {}])).await;
    replaced(&mut events).await;
    let call = session.server_id();
    let serve = async {
        first.expect("get_server_id").await;
        // Never answered: the connection is given up and the next server is asked.
        let mut second = other.accept().await;
        second.expect("set_db_change_aware").await;
        second.expect("monitor_cond").await;
        second.expect("get_schema").await;
        let (id, _) = second.expect("get_server_id").await;
        second.result(&id, json!("00000000-0000-0000-0000-000000000007")).await;
        second
    };
    let (id, _second) = tokio::join!(call, serve);
    assert_eq!(id.unwrap(), ovsdb::Uuid::from_u128(7));
    assert!(disconnected(&mut events).await.contains("get_server_id"));
    // Nobody answers anywhere: that ends too, with the method's name.
    drop((mute, other));
    let error = session.list_databases().await.unwrap_err();
    assert!(error.to_string().contains("list_dbs"), "{error}");
}

#[tokio::test]
async fn a_session_is_moved_to_other_endpoints_while_it_runs() {
    let (one, two) = (Server::northbound().unwrap(), Server::northbound().unwrap());
    let (session, mut events) = Session::connect(options(vec![one.endpoint()]));
    let mut model = Model::default();
    model.apply(&replaced(&mut events).await.1);
    session.transact(vec![switch("on one")]).await.unwrap();
    // One more, and the one in use stays: nothing happens.
    session.set_endpoints(vec![two.endpoint(), one.endpoint()]);
    session.transact(vec![switch("still on one")]).await.unwrap();
    assert_eq!(session.state().connections, 1);
    // The one in use goes: it is left at once for the other.
    session.set_endpoints(vec![two.endpoint()]);
    let mut reason = None;
    let replica = loop {
        match next(&mut events).await {
            Event::Updated { changes, .. } => model.apply(&changes),
            Event::Disconnected { reason: why } => reason = Some(why),
            Event::Replaced { replica, changes } => {
                model.apply(&changes);
                break replica;
            }
            _ => {}
        }
    };
    assert!(reason.unwrap().contains("removed"));
    assert_eq!(replica.row_count(), 0);
    session.transact(vec![switch("on two")]).await.unwrap();
    assert_eq!(session.state().endpoint, Some(two.endpoint()));
    // None at all, then one again.
    session.set_endpoints(Vec::new());
    disconnected(&mut events).await;
    session.set_endpoints(vec![two.endpoint()]);
    let (replica, _) = replaced(&mut events).await;
    assert_eq!(replica.row_count(), 1);
    // An endpoint where nobody is does not hold up the move away from it.
    drop(two);
    disconnected(&mut events).await;
    session.set_endpoints(vec![one.endpoint()]);
    assert_eq!(replaced(&mut events).await.0.row_count(), 2);
}

#[tokio::test]
async fn sessions_of_one_database_do_not_notice_each_other() {
    let server = Server::northbound().unwrap();
    let proxy = Proxy::new(server.socket());
    let narrow = Options::new(vec![proxy.endpoint()], "OVN_Northbound").table("NB_Global", ["name"]);
    let mut narrow = narrow;
    narrow.probe_interval = Duration::from_millis(600);
    let (unlucky, mut unlucky_events) = Session::connect(narrow);
    let (lucky, mut events) = Session::connect(options(vec![server.endpoint()]));
    let mut model = Model::default();
    model.apply(&replaced(&mut events).await.1);
    replaced(&mut unlucky_events).await;
    for round in 0..3 {
        proxy.cut();
        lucky.transact(vec![switch(&format!("during {round}"))]).await.unwrap();
        disconnected(&mut unlucky_events).await;
        proxy.heal();
        let (replica, changes) = replaced(&mut unlucky_events).await;
        assert_eq!((replica.tables().count(), changes.len()), (1, 0));
    }
    lucky.transact(vec![switch("last")]).await.unwrap();
    let mut rows = 0;
    while rows < 4 {
        // Nothing but updates, ever.
        let Event::Updated { replica, changes } = next(&mut events).await else { panic!("disturbed") };
        model.apply(&changes);
        model.assert_matches(&replica);
        rows = replica.row_count();
    }
    assert_eq!((lucky.state().connections, unlucky.state().connections), (1, 4));
}

/// Memory of a consumer that does nothing is bounded, and it finds the truth when it wakes.
#[tokio::test]
async fn a_consumer_that_sleeps_costs_a_bounded_queue() {
    let server = Server::northbound().unwrap();
    let mut options = options(vec![server.endpoint()]);
    options.max_queued_changes = 50;
    let (session, mut events) = Session::connect(options.clone());
    let mut model = Model::default();
    model.apply(&replaced(&mut events).await.1);
    for round in 0..40 {
        let operations = (0..50).map(|i| switch(&format!("s{round}.{i}"))).collect();
        session.transact(operations).await.unwrap();
    }
    session.transact(vec![Operation::delete("Logical_Switch").by("name", "s0.0").build()]).await.unwrap();
    let (mut resyncs, mut delivered) = (0, 0);
    let truth = dump(&options).await;
    loop {
        match next(&mut events).await {
            Event::Resync { .. } => resyncs += 1,
            Event::Replaced { replica, changes } | Event::Updated { replica, changes } => {
                delivered += 1;
                model.apply(&changes);
                model.assert_matches(&replica);
                if replica == truth {
                    break;
                }
            }
            other => panic!("unexpected {other:?}"),
        }
    }
    // 2,000 changes, of which no more than a queue's worth was ever kept.
    assert!(resyncs >= 1 && delivered <= 4, "{resyncs} resyncs, {delivered} contents");
    assert!(session.state().resyncs >= 1);
}

/// A clustered server resumes: with the filter that was asked for last, through changes of
/// the filter, of rows that come into it and go, and of connections at any moment.
#[tokio::test]
async fn a_filter_and_a_resume_agree() {
    let server = Server::clustered_northbound().unwrap();
    let (writer, _) = Session::connect(Options::new(vec![server.endpoint()], "OVN_Northbound"));
    let names: Vec<String> = (0..30).map(|i| format!("s{i}")).collect();
    let colour = |i: usize| Value::string_map([("colour", ["red", "green", "blue"][i % 3])]);
    let inserts = names.iter().enumerate().map(|(i, name)| {
        Operation::insert("Logical_Switch")
            .column("name", name.as_str())
            .column("other_config", colour(i))
            .build()
    });
    writer.transact(inserts.collect()).await.unwrap();
    let wanted = Options::new(vec![server.endpoint()], "OVN_Northbound")
        .table("Logical_Switch", ["name", "other_config"])
        .filter("Logical_Switch", Filter::includes("other_config", colour(0)));
    let (session, mut events) = Session::connect(wanted);
    let mut model = Model::default();
    model.apply(&replaced(&mut events).await.1);
    for round in 0..40usize {
        if round % 4 == 1 {
            let filter = Filter::includes("other_config", colour(round / 4));
            session.change(Change::new().filter("Logical_Switch", filter)).await.unwrap();
        }
        if round % 3 == 0 {
            session.reconnect("to see what a resume brings");
        }
        for step in 0..5 {
            let name = names[(round * 7 + step * 11) % names.len()].as_str();
            let paint = Operation::update("Logical_Switch").by("name", name);
            writer.transact(vec![paint.column("other_config", colour(round + step)).build()]).await.unwrap();
        }
        let now = colour(if round == 0 { 0 } else { (round - 1) / 4 });
        let read = Operation::select("Logical_Switch")
            .filter("other_config", ovsdb::Function::Includes, now)
            .columns(["_uuid"])
            .build();
        // The answer to a question in a broken connection is another question.
        let found = loop {
            match session.commit(vec![read.clone()]).await {
                Ok(found) => break found,
                Err(error) => assert_eq!(error.kind, TransactErrorKind::Disconnected),
            }
        };
        while events.position() < found.position {
            if let Event::Updated { replica, changes } | Event::Replaced { replica, changes } =
                next(&mut events).await
            {
                model.apply(&changes);
                model.assert_matches(&replica);
            }
        }
        let mut found: Vec<_> =
            found.results[0].rows.iter().flatten().map(|row| row["_uuid"].as_uuid().unwrap()).collect();
        found.sort();
        let mut held: Vec<_> = model.0.keys().map(|(_, uuid)| *uuid).collect();
        held.sort();
        assert_eq!(held, found, "round {round}");
    }
    assert_eq!(session.state().resyncs, 0);
    assert!(session.state().connections > 10);
}

/// A conversion on one member of a cluster is noticed on every member.
#[tokio::test]
async fn a_conversion_reaches_the_clients_of_every_member() {
    let mut cluster = Cluster::northbound(3).unwrap();
    let leader = cluster.wait_leader().unwrap();
    let mut sessions = Vec::new();
    for endpoint in cluster.endpoints() {
        let mut options = Options::new(vec![endpoint], "OVN_Northbound");
        options = options.table("Logical_Switch", ["name", "colour"]);
        let (session, mut events) = Session::connect(options);
        replaced(&mut events).await;
        sessions.push((session, events));
    }
    sessions[0].0.transact(vec![switch("before")]).await.unwrap();
    let path = cluster.member(leader).root().northbound_schema().unwrap();
    let mut schema: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    schema["version"] = json!("7.99.0");
    schema["tables"]["Logical_Switch"]["columns"]["colour"] = json!({"type": "string"});
    // Clusters know no ephemeral columns; only `ovsdb-tool create-cluster` looks away.
    for table in schema["tables"].as_object_mut().unwrap().values_mut() {
        for column in table["columns"].as_object_mut().unwrap().values_mut() {
            column.as_object_mut().unwrap().remove("ephemeral");
        }
    }
    // By a client that says it is aware of conversions: others are hung up on.
    let member = cluster.member(leader);
    let file = member.directory().join("new.ovsschema");
    std::fs::write(&file, schema.to_string()).unwrap();
    let (remote, file) = (format!("unix:{}", member.socket().display()), file.display().to_string());
    member.root().run("usr/bin/ovsdb-client", member.directory(), &["convert", &remote, &file]).unwrap();
    for (session, events) in &mut sessions {
        let mut told = false;
        loop {
            match next(events).await {
                Event::SchemaChanged { present, .. } => {
                    assert_eq!(present, [("Logical_Switch".to_owned(), "colour".to_owned())]);
                    told = true;
                }
                Event::Replaced { replica, .. } if told => {
                    let row = replica.table("Logical_Switch").unwrap().rows().next().unwrap().clone();
                    assert_eq!((row.str("name"), row.str("colour")), (Some("before"), Some("")));
                    break;
                }
                _ => {}
            }
        }
        let paint = Operation::update("Logical_Switch").by("name", "before").column("colour", "red").build();
        session.transact(vec![paint]).await.unwrap();
    }
}
