//! The whole protocol from the client's side, against a real ovsdb-server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use ovsdb::testing::northbound;
use ovsdb::testing::real::Server;
use ovsdb::{
    CallError, Change, Condition, Event, EventStream, Filter, Function, LockState, Operation, Options,
    Session, TransactErrorKind, Uuid, Value,
};
use serde_json::json;
use support::fake::Fake;
use support::{Generator, Model, disconnected, dump, next, replaced};

const SWITCH: &str = "Logical_Switch";

fn options(server: &Server) -> Options {
    Options::new(vec![server.endpoint()], "OVN_Northbound").table(SWITCH, ["name", "other_config"])
}

fn switch(name: &str) -> Operation {
    Operation::insert(SWITCH).column("name", name).build()
}

/// A `wait` that never comes true.
fn for_ever() -> Operation {
    Operation::wait(SWITCH).column_equals("name", "never").timeout(600_000).build()
}

async fn lock_event(events: &mut EventStream) -> LockState {
    loop {
        if let Event::Lock { name, state } = next(events).await {
            assert_eq!(&*name, "l");
            return state;
        }
    }
}

#[tokio::test]
async fn calls_about_the_server_are_answered() {
    let mut server = Server::northbound().unwrap();
    let (session, mut events) = Session::connect(options(&server));
    // Asked before there is a connection: they wait for one.
    assert_eq!(session.list_databases().await.unwrap(), ["OVN_Northbound", "_Server"]);
    assert_eq!(session.get_schema("OVN_Northbound").await.unwrap().name, "OVN_Northbound");
    let CallError::Refused { method: "get_schema", error, .. } = session.get_schema("No").await.unwrap_err()
    else {
        panic!("not refused")
    };
    assert_eq!(error, "unknown database");
    let id = session.server_id().await.unwrap();
    assert_eq!(session.server_id().await.unwrap(), id);
    assert!(session.echo().await.unwrap() < support::PATIENCE);
    replaced(&mut events).await;
    server.resume().unwrap();
    disconnected(&mut events).await;
    // Another life of the server has another id.
    assert_ne!(session.server_id().await.unwrap(), id);
}

#[tokio::test]
async fn a_transaction_in_flight_can_be_cancelled() {
    let server = Server::northbound().unwrap();
    let (session, mut events) = Session::connect(options(&server));
    replaced(&mut events).await;
    session.submit(1, vec![for_ever(), switch("one")]);
    session.submit(2, vec![for_ever(), switch("two")]);
    let third = session.begin(vec![for_ever(), switch("three")]).unwrap();
    session.cancel(1);
    let Event::Reply { tag: 1, result: Err(error) } = next(&mut events).await else { panic!("no reply") };
    assert_eq!(error.kind, TransactErrorKind::Canceled);
    assert!(!error.retryable());
    third.cancel();
    assert_eq!(third.outcome().await.unwrap_err().kind, TransactErrorKind::Canceled);
    // Too late, or of nothing: no effect. Nor on those that were not meant.
    let done = session.begin(vec![switch("done")]).unwrap();
    session.cancel(99);
    done.outcome().await.unwrap();
    session.submit(4, vec![Operation::delete(SWITCH).by("name", "nobody").build()]);
    let outcome = loop {
        match next(&mut events).await {
            Event::Reply { tag, result } => break (tag, result.is_ok()),
            Event::Updated { .. } => {}
            other => panic!("unexpected {other:?}"),
        }
    };
    assert_eq!(outcome, (4, true), "the second still waits");
    session.cancel(2);
    let Event::Reply { tag: 2, result: Err(_) } = next(&mut events).await else { panic!("no reply") };
    let names: Vec<_> = dump(&options(&server)).await.table(SWITCH).unwrap().rows().cloned().collect();
    assert_eq!(names.iter().map(|r| r.str("name").unwrap()).collect::<Vec<_>>(), ["done"]);
}

#[tokio::test]
async fn cancelled_before_it_was_sent() {
    let fake = Fake::new();
    let (session, _events) = Session::connect(Options::new(vec![fake.endpoint()], "Db").table("T", ["name"]));
    let _silent = fake.accept().await;
    let waiting = session.begin(vec![Operation::Comment("c".into())]).unwrap();
    waiting.cancel();
    assert_eq!(waiting.outcome().await.unwrap_err().kind, TransactErrorKind::Canceled);
}

#[tokio::test]
async fn locks_change_hands_and_come_back_after_a_reconnect() {
    let mut server = Server::northbound().unwrap();
    let (first, mut first_events) = Session::connect(options(&server));
    let (second, mut second_events) = Session::connect(options(&server));
    let guarded = || vec![Operation::Assert("l".into()), Operation::Comment("mine".into())];
    first.lock("l").unwrap();
    assert!(first.lock("no good").is_err());
    assert_eq!(lock_event(&mut first_events).await, LockState::Held);
    second.lock("l").unwrap();
    assert_eq!(lock_event(&mut second_events).await, LockState::Waiting);
    first.transact(guarded()).await.unwrap();
    assert_eq!(second.transact(guarded()).await.unwrap_err().kind, TransactErrorKind::NotOwner);
    // By force.
    second.steal("l").unwrap();
    assert_eq!(lock_event(&mut second_events).await, LockState::Held);
    assert_eq!(lock_event(&mut first_events).await, LockState::Stolen);
    second.transact(guarded()).await.unwrap();
    assert_eq!(first.transact(guarded()).await.unwrap_err().kind, TransactErrorKind::NotOwner);
    assert!(first.state().locks.is_empty());
    // Back to the victim, who is at the head of the queue.
    second.unlock("l");
    assert_eq!(lock_event(&mut second_events).await, LockState::Released);
    assert_eq!(lock_event(&mut first_events).await, LockState::Held);
    // The server forgets locks with its clients; they are asked for again.
    server.resume().unwrap();
    assert_eq!(lock_event(&mut first_events).await, LockState::Lost);
    assert_eq!(lock_event(&mut first_events).await, LockState::Held);
    assert!(first.synced().await);
    first.transact(guarded()).await.unwrap();
    assert!(first.state().locks.contains("l"));
    first.unlock("l");
    assert_eq!(lock_event(&mut first_events).await, LockState::Released);
    assert_eq!(first.transact(guarded()).await.unwrap_err().kind, TransactErrorKind::NotOwner);
}

/// For every column and comparison: the rows that a monitor with that condition has are
/// those that a `select` with it finds, at first and through changes.
#[tokio::test]
async fn conditions_on_every_column_follow_what_a_select_finds() {
    let server = Server::northbound().unwrap();
    let schema = northbound();
    let mut generator = Generator::new(schema.clone(), 11);
    let table = &schema.tables["Logical_Switch_Port"];
    let mut filters = Vec::new();
    for (name, column) in &table.columns {
        for function in [Function::Equal, Function::NotEqual, Function::Includes, Function::Excludes] {
            let value = generator.value(&column.ty);
            let condition = Condition::new(name.as_str(), function, value);
            if Filter::any([condition.clone()]).check(table).is_ok() {
                filters.push(condition);
            }
        }
    }
    let (writer, _) = Session::connect(Options::new(vec![server.endpoint()], "OVN_Northbound"));
    let (session, mut events) = Session::connect(
        Options::new(vec![server.endpoint()], "OVN_Northbound").table("Logical_Switch_Port", []),
    );
    let mut model = Model::default();
    model.apply(&replaced(&mut events).await.1);
    let shared = Arc::new(Mutex::new(model));
    let consumer = keep(shared.clone(), events);
    writer.transact(vec![switch("parent")]).await.unwrap();
    let mut ports = Vec::new();
    let (mut some, mut all) = (0, 0);
    for (round, condition) in filters.iter().enumerate() {
        session
            .change(Change::new().filter("Logical_Switch_Port", Filter::any([condition.clone()])))
            .await
            .unwrap();
        for step in 0..3 {
            // A new port, and another that changes. Some are refused, by constraints.
            let uuid = Uuid::from_u128((round * 3 + step + 1) as u128);
            let mut insert = Operation::insert("Logical_Switch_Port").uuid(uuid);
            for (name, column) in &table.columns {
                if column.ty.key.reference.is_none() {
                    insert = insert.column(name.as_str(), generator.value(&column.ty));
                }
            }
            let name = format!("{round}.{step}");
            let insert = insert.column("name", name).column("type", "").build();
            let adopt =
                Operation::mutate(SWITCH).by("name", "parent").insert_set("ports", Value::uuids([uuid]));
            let _ = writer.transact(vec![insert, adopt.build()]).await;
            ports.push(uuid);
            let other = ports[(round * 7 + step) % ports.len()];
            let again = Operation::update("Logical_Switch_Port").by_uuid(other);
            let again = again
                .column(condition.column.clone(), generator.value(&table.columns[&*condition.column].ty));
            let _ = writer.transact(vec![again.build()]).await;
        }
        let select = Operation::select("Logical_Switch_Port")
            .filter(condition.column.clone(), condition.function, condition.value.clone())
            .columns(["_uuid"])
            .build();
        // On the session's own connection: updates of earlier transactions come before.
        let found = session.commit(vec![select]).await.unwrap();
        session.wait_visible(found.position).await.unwrap();
        let found: BTreeSet<Uuid> = uuids(&found.results[0]);
        let held: BTreeSet<Uuid> = shared.lock().unwrap().0.keys().map(|(_, uuid)| *uuid).collect();
        assert_eq!(held, found, "round {round}: {condition:?}");
        some += usize::from(!found.is_empty());
        all += 1;
    }
    println!("{all} conditions, {some} with rows");
    assert!(all > 30 && some > 5, "{all} {some}");
    assert_eq!(session.state().resyncs, 0);
    drop(session);
    consumer.await.unwrap();
}

fn uuids(result: &ovsdb::OperationResult) -> BTreeSet<Uuid> {
    result.rows.iter().flatten().filter_map(|row| row["_uuid"].as_uuid()).collect()
}

/// A task that keeps a model of the content.
fn keep(shared: Arc<Mutex<Model>>, mut events: EventStream) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        while let Some(event) = events.next().await {
            if let Event::Updated { replica, changes } | Event::Replaced { replica, changes } = event {
                let mut model = shared.lock().unwrap();
                model.apply(&changes);
                model.assert_matches(&replica);
            }
        }
    })
}

#[tokio::test]
async fn what_is_followed_changes_under_a_stream_of_transactions() {
    let server = Server::northbound().unwrap();
    let start = options(&server).filter(SWITCH, Filter::includes("other_config", ids("a")));
    let (session, mut events) = Session::connect(start);
    let mut model = Model::default();
    model.apply(&replaced(&mut events).await.1);
    let shared = Arc::new(Mutex::new(model));
    let consumer = keep(shared.clone(), events);
    let count = 400;
    let writes: Vec<_> = (0..count)
        .map(|i| {
            let colour = if i % 2 == 0 { "a" } else { "b" };
            let row =
                Operation::insert(SWITCH).column("name", format!("s{i}")).column("other_config", ids(colour));
            session.begin(vec![row.build()]).unwrap()
        })
        .collect();
    let both = Filter::includes("other_config", ids("a")).or_includes("other_config", ids("b"));
    let changes = [
        Change::new().filter(SWITCH, Filter::includes("other_config", ids("b"))),
        // Another table and another column: a new monitor beside the old one.
        Change::new().table("NB_Global", ["name"]).table(SWITCH, ["name", "other_config", "external_ids"]),
        Change::new().filter(SWITCH, Filter::none()),
        Change::new().filter(SWITCH, both),
        Change::new().without("NB_Global").table(SWITCH, ["name"]),
    ];
    let mut last = None;
    for change in changes {
        let changed = session.change(change).await.unwrap();
        assert_eq!(changed.missing, []);
        last = Some(changed.position);
    }
    session.wait_visible(last.unwrap()).await.unwrap();
    let mut position = None;
    for write in writes {
        position = Some(write.outcome().await.unwrap().position);
    }
    session.wait_visible(position.unwrap()).await.unwrap();
    {
        let model = shared.lock().unwrap();
        assert_eq!(model.0.len(), count);
        assert!(model.0.values().all(|columns| columns.keys().eq(["name"])));
    }
    // What does not fit is refused, and changes nothing.
    let odd = session.change(Change::new().filter(SWITCH, Filter::equals("colour", "red"))).await;
    assert!(matches!(&odd, Err(CallError::Unfit(text)) if text.contains("colour")), "{odd:?}");
    let missing = session.change(Change::new().table("Spaceship", ["name"])).await.unwrap().missing;
    assert_eq!(missing, [("Spaceship".to_owned(), "name".to_owned())]);
    assert_eq!(shared.lock().unwrap().0.len(), count);
    assert_eq!((session.state().connections, session.state().resyncs), (1, 0));
    drop(session);
    consumer.await.unwrap();
}

fn ids(colour: &str) -> Value {
    Value::string_map([("colour", colour)])
}

#[tokio::test]
async fn a_filter_survives_a_reconnect_and_a_conversion() {
    let mut server = Server::northbound().unwrap();
    let (session, mut events) =
        Session::connect(options(&server).filter(SWITCH, Filter::equals("name", "a")));
    replaced(&mut events).await;
    session.transact(vec![switch("a"), switch("b"), switch("c")]).await.unwrap();
    session.change(Change::new().filter(SWITCH, Filter::equals("name", "b"))).await.unwrap();
    server.resume().unwrap();
    disconnected(&mut events).await;
    let names = |replica: &ovsdb::Replica| -> Vec<String> {
        replica.table(SWITCH).unwrap().rows().map(|r| r.str("name").unwrap().to_owned()).collect()
    };
    let (replica, changes) = replaced(&mut events).await;
    assert_eq!((names(&replica), changes.len()), (vec!["b".to_owned()], 0));
    convert(&server, |schema| {
        schema["version"] = json!("7.99.0");
        let columns = schema["tables"][SWITCH]["columns"].as_object_mut().unwrap();
        columns.remove("other_config");
        columns.insert("colour".into(), json!({"type": "string"}));
    });
    let (present, absent) = loop {
        if let Event::SchemaChanged { schema, present, absent } = next(&mut events).await {
            assert_eq!(schema.version, "7.99.0");
            break (present, absent);
        }
    };
    assert_eq!((present, absent), (vec![], vec![(SWITCH.to_owned(), "other_config".to_owned())]));
    let (replica, changes) = replaced(&mut events).await;
    assert_eq!(names(&replica), ["b"]);
    // The row has lost a column: that is its difference.
    assert_eq!(changes.len(), 1);
    // Changes of the filter are still served, by a column of the new schema too.
    session.change(Change::new().table(SWITCH, ["name", "colour"])).await.unwrap();
    session.change(Change::new().filter(SWITCH, Filter::equals("colour", "red"))).await.unwrap();
    let red = Operation::update(SWITCH).by("name", "c").column("colour", "red").build();
    let position = session.commit(vec![red]).await.unwrap().position;
    let mut last = None;
    while events.position() < position {
        if let Event::Updated { replica, .. } | Event::Replaced { replica, .. } = next(&mut events).await {
            last = Some(replica);
        }
    }
    assert_eq!(names(&last.unwrap()), ["c"]);
}

#[tokio::test]
async fn columns_come_and_go_with_conversions_on_one_connection() {
    let server = Server::northbound().unwrap();
    let wanted = options(&server).table(SWITCH, ["colour"]);
    let (session, mut events) = Session::connect(wanted);
    let Event::Connected { missing, .. } = next(&mut events).await else { panic!("not connected") };
    let colour = (SWITCH.to_owned(), "colour".to_owned());
    assert_eq!(missing, std::slice::from_ref(&colour));
    let mut model = Model::default();
    model.apply(&replaced(&mut events).await.1);
    session.transact(vec![switch("s")]).await.unwrap();
    for round in 0..4 {
        let adding = round % 2 == 0;
        convert(&server, |schema| {
            schema["version"] = json!(format!("7.99.{round}"));
            if adding {
                schema["tables"][SWITCH]["columns"]["colour"] = json!({"type": "string"});
            }
        });
        let mut told = None;
        let replica = loop {
            match next(&mut events).await {
                Event::SchemaChanged { present, absent, .. } => told = Some((present, absent)),
                Event::Disconnected { reason } => panic!("disconnected: {reason}"),
                Event::Updated { changes, .. } => model.apply(&changes),
                Event::Replaced { replica, changes } => {
                    model.apply(&changes);
                    break replica;
                }
                _ => {}
            }
        };
        let one = vec![colour.clone()];
        assert_eq!(told, Some(if adding { (one, vec![]) } else { (vec![], one) }));
        model.assert_matches(&replica);
        let row = replica.table(SWITCH).unwrap().rows().next().unwrap().clone();
        assert_eq!(row.get("colour").is_some(), adding);
    }
    assert_eq!(session.state().connections, 1);
}

/// Converts the database as an administrator would.
fn convert(server: &Server, change: impl FnOnce(&mut serde_json::Value)) {
    let text = std::fs::read_to_string(server.root().northbound_schema().unwrap()).unwrap();
    let mut schema: serde_json::Value = serde_json::from_str(&text).unwrap();
    change(&mut schema);
    let file = server.directory().join("new.ovsschema");
    std::fs::write(&file, schema.to_string()).unwrap();
    let remote = format!("unix:{}", server.socket().display());
    let args = ["convert", &remote, &file.display().to_string()];
    server.root().run("usr/bin/ovsdb-client", server.directory(), &args).unwrap();
}

#[tokio::test]
async fn a_commit_is_visible_once_its_position_is_acknowledged() {
    let server = Server::northbound().unwrap();
    let (session, mut events) = Session::connect(options(&server));
    let mut model = Model::default();
    model.apply(&replaced(&mut events).await.1);
    let shared = Arc::new(Mutex::new(model));
    let consumer = keep(shared.clone(), events);
    for round in 0..200u32 {
        let uuid = Uuid::from_u128(u128::from(round) + 1);
        let insert = Operation::insert(SWITCH).uuid(uuid).column("name", format!("s{round}")).build();
        let committed = session.commit(vec![insert]).await.unwrap();
        session.wait_visible(committed.position).await.unwrap();
        assert!(shared.lock().unwrap().0.contains_key(&(SWITCH.to_owned(), uuid)), "round {round}");
    }
    assert!(session.acknowledged() >= session.position());
    consumer.abort();
    let _ = consumer.await;
    // Nobody will come to see it.
    let committed = session.commit(vec![switch("late")]).await.unwrap();
    if committed.position > session.acknowledged() {
        session.wait_visible(committed.position).await.unwrap_err();
    }
}

#[tokio::test]
async fn a_server_that_knows_only_rfc_7047_will_do() {
    let fake = Fake::new();
    let options = Options::new(vec![fake.endpoint()], "Db").table("T", ["name", "tags", "one", "ids"]);
    let (session, mut events) = Session::connect(options.filter("T", Filter::equals("name", "a")));
    let mut server = fake.accept().await;
    let (id, _) = server.greet("monitor_cond_since").await;
    server.error(&id, json!("unknown method")).await;
    let (id, _) = server.expect("monitor_cond").await;
    server.error(&id, json!("unknown method")).await;
    let (id, params) = server.expect("monitor").await;
    assert!(params[2]["T"][0].get("where").is_none(), "{params}");
    let row = Uuid::from_u128(1).to_string();
    server
        .result(
            &id,
            json!({"T": {&row: {"new": {"name": "a", "tags": ["set", []], "one": 3, "ids": ["map", []]}}}}),
        )
        .await;
    let mut model = Model::default();
    let (replica, changes) = replaced(&mut events).await;
    model.apply(&changes);
    assert_eq!(replica.row("T", &Uuid::from_u128(1)).unwrap().i64("one"), Some(3));
    let update =
        |row: serde_json::Value| json!({"id": null, "method": "update", "params": [params[1], {"T": row}]});
    server
        .send(update(json!({&row: {"old": {"name": "a"}, "new": {"name": "b", "tags": "x", "one": 3, "ids": ["map", []]}}})))
        .await;
    let Event::Updated { replica, changes } = next(&mut events).await else { panic!("no update") };
    model.apply(&changes);
    model.assert_matches(&replica);
    // Conditions can't be told to it: every row comes, and that is said to be done.
    session.change(Change::new().filter("T", Filter::equals("name", "z"))).await.unwrap();
    // Other columns can.
    let change = session.change(Change::new().table("T", ["name"]));
    let serve = async {
        let (id, params) = server.expect("monitor").await;
        assert_eq!(params[2]["T"][0]["columns"], json!(["name"]));
        server.result(&id, json!({"T": {&row: {"new": {"name": "b"}}}})).await;
        server.expect("monitor_cancel").await.1
    };
    let (changed, cancelled) = tokio::join!(change, serve);
    changed.unwrap();
    assert_eq!(cancelled, json!([params[1]]));
    let Event::Replaced { replica, changes } = next(&mut events).await else { panic!("not replaced") };
    model.apply(&changes);
    model.assert_matches(&replica);
}
