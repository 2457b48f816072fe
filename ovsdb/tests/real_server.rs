//! The client and the in-memory database against a real ovsdb-server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::BTreeMap;

use ovsdb::testing::real::Server;
use ovsdb::testing::{Database, northbound};
use ovsdb::{Event, Operation, Options, Session, TransactErrorKind, Uuid, Value};
use support::{Generator, Model, disconnected, dump, follow, next, replaced};

fn options(server: &Server) -> Options {
    follow(Options::new(vec![server.endpoint()], "OVN_Northbound"), &northbound())
}

#[tokio::test]
async fn the_northbound_schema_for_tests_has_the_real_columns() {
    let server = Server::northbound().unwrap();
    let (_session, mut events) = Session::connect(options(&server));
    let Event::Connected { schema, missing, .. } = next(&mut events).await else { panic!("not connected") };
    assert_eq!(missing, []);
    let ours = northbound();
    assert_eq!(schema.name, ours.name);
    for (name, table) in &ours.tables {
        let real = &schema.tables[name];
        assert_eq!((real.is_root, real.max_rows), (table.is_root, table.max_rows), "{name}");
        assert_eq!(real.indexes, table.indexes, "{name}");
        for (column, schema) in &table.columns {
            let mut expected = real.columns[column].clone();
            // Bounds on the length of names differ in how "none" is written.
            if expected.ty.key.max_length == Some(63) {
                expected.ty.key.min_length = Some(0);
            }
            assert_eq!((&expected.ty, expected.mutable), (&schema.ty, schema.mutable), "{name}.{column}");
        }
    }
}

/// The same random transactions on a real server and on the in-memory database
/// give the same results and contents; the replica follows both.
async fn differential(seed: u64, transactions: usize) {
    let server = Server::northbound().unwrap();
    let options = options(&server);
    let (session, mut events) = Session::connect(options.clone());
    let mut model = Model::default();
    let (mut replica, changes) = replaced(&mut events).await;
    model.apply(&changes);
    let mut memory = Database::new(northbound());
    let mut generator = Generator::new(northbound(), seed);
    let mut outcomes: BTreeMap<String, usize> = BTreeMap::new();
    for round in 0..transactions {
        let operations = generator.transaction();
        session.submit(round as u64, operations.clone());
        let real = loop {
            match next(&mut events).await {
                Event::Updated { replica: newer, changes } => {
                    model.apply(&changes);
                    replica = newer;
                }
                Event::Reply { tag, result } => {
                    assert_eq!(tag, round as u64);
                    break result;
                }
                other => panic!("unexpected {other:?}"),
            }
        };
        let (ours, _) = memory.execute(&operations);
        let label = match &real {
            Ok(_) => "committed".to_owned(),
            Err(error) => error.kind.to_string(),
        };
        *outcomes.entry(label).or_default() += 1;
        match (&real, &ours) {
            (Ok(real), Ok(ours)) => {
                for ((real, ours), operation) in real.iter().zip(ours).zip(&operations) {
                    let (mut real, mut ours) = (real.clone(), ours.clone());
                    for rows in [&mut real.rows, &mut ours.rows].into_iter().flatten() {
                        rows.sort();
                    }
                    assert_eq!(real, ours, "seed {seed} round {round} {operation:?}");
                }
            }
            (Err(real), Err(ours)) => {
                let context = format!("seed {seed} round {round}\n{real}\n{ours}\n{operations:#?}");
                assert_eq!(real.kind, ours.kind, "{context}");
                assert_eq!(real.op_index, ours.op_index, "{context}");
            }
            _ => panic!("seed {seed} round {round}\nreal {real:?}\nours {ours:?}\n{operations:#?}"),
        }
        let differences = replica.changes_since(&memory.replica());
        assert!(differences.is_empty(), "seed {seed} round {round} {operations:#?}\n{differences:#?}");
        if round % 50 == 49 {
            assert_eq!(dump(&options).await, replica);
        }
    }
    model.assert_matches(&replica);
    println!("seed {seed}: {outcomes:?}, {} rows", replica.row_count());
    assert!(outcomes["committed"] > transactions / 10, "{outcomes:?}");
}

#[tokio::test]
async fn random_transactions_end_the_same_in_memory_and_on_a_server() {
    // More for a soak: WEIR_SEEDS=200.
    let seeds = std::env::var("WEIR_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(4);
    for seed in 1..=seeds {
        differential(seed, 400).await;
    }
}

fn switch(name: &str) -> Operation {
    Operation::insert("Logical_Switch").column("name", name).build()
}

#[tokio::test]
async fn a_killed_server_leads_to_one_difference() {
    let mut server = Server::northbound().unwrap();
    let options = options(&server);
    let (session, mut events) = Session::connect(options.clone());
    let mut model = Model::default();
    model.apply(&replaced(&mut events).await.1);
    session.transact(vec![switch("stays"), switch("goes")]).await.unwrap();
    let Event::Updated { changes, .. } = next(&mut events).await else { panic!("no update") };
    model.apply(&changes);
    server.kill();
    disconnected(&mut events).await;
    assert!(!session.state().synced);
    // While we cannot see it, the database changes.
    server.resume().unwrap();
    let (other, _) = Session::connect(Options::new(vec![server.endpoint()], "OVN_Northbound"));
    let edit = vec![Operation::delete("Logical_Switch").by("name", "goes").build(), switch("new")];
    other.transact(edit).await.unwrap();
    // Our session may have been back before that: then it comes as an update.
    loop {
        let (replica, changes) = match next(&mut events).await {
            Event::Replaced { replica, changes } | Event::Updated { replica, changes } => (replica, changes),
            _ => continue,
        };
        assert!(changes.len() <= 2, "{changes:?}");
        model.apply(&changes);
        model.assert_matches(&replica);
        let names: Vec<_> = replica.table("Logical_Switch").unwrap().rows().map(|r| r.str("name")).collect();
        if names.contains(&Some("new")) {
            assert_eq!(replica, dump(&options).await);
            break;
        }
    }
    assert_eq!(session.state().connections, 2);
}

#[tokio::test]
async fn a_clustered_server_resumes_where_it_was() {
    let mut server = Server::clustered_northbound().unwrap();
    let mut options = options(&server);
    options.leader_only = true;
    let (session, mut events) = Session::connect(options.clone());
    replaced(&mut events).await;
    session.transact(vec![switch("a")]).await.unwrap();
    server.kill();
    disconnected(&mut events).await;
    server.resume().unwrap();
    let (replica, changes) = replaced(&mut events).await;
    assert_eq!(changes, []);
    assert_eq!(replica, dump(&options).await);
    session.transact(vec![switch("b")]).await.unwrap();
    let Event::Updated { changes, .. } = next(&mut events).await else { panic!("no update") };
    assert_eq!(changes.len(), 1);
}

#[tokio::test]
async fn errors_have_names_and_places() {
    let server = Server::northbound().unwrap();
    let (session, _events) = Session::connect(Options::new(vec![server.endpoint()], "OVN_Northbound"));
    let uuid = Uuid::new_v4();
    let insert = Operation::insert("Logical_Switch").uuid(uuid).column("name", "s").build();
    session.transact(vec![insert.clone()]).await.unwrap();
    let duplicate = session.transact(vec![Operation::Comment("c".into()), insert]).await.unwrap_err();
    assert_eq!((duplicate.kind, duplicate.op_index), (TransactErrorKind::DuplicateUuid, Some(1)));
    let dangling =
        Operation::update("Logical_Switch").by_uuid(uuid).column("ports", Value::uuids([Uuid::new_v4()]));
    let dangling = session.transact(vec![dangling.build()]).await.unwrap_err();
    assert_eq!((dangling.kind, dangling.op_index), (TransactErrorKind::Referential, None));
    let global = |token: &str| Operation::insert("NB_Global").column("name", token).build();
    session.transact(vec![global("me")]).await.unwrap();
    let fence = |token: &str| Operation::wait("NB_Global").column_equals("name", token).timeout(0).build();
    session.transact(vec![fence("me")]).await.unwrap();
    let stale = session.transact(vec![fence("you"), switch("late")]).await.unwrap_err();
    assert_eq!((stale.kind, stale.op_index), (TransactErrorKind::WaitTimedOut, Some(0)));
    let twice = session.transact(vec![global("x")]).await.unwrap_err();
    assert_eq!(twice.kind, TransactErrorKind::Constraint);
    let owner = session.transact(vec![Operation::Assert("lock".into())]).await.unwrap_err();
    assert_eq!(owner.kind, TransactErrorKind::NotOwner);
    let found =
        session.transact(vec![Operation::select("Logical_Switch").columns(["name", "ports"]).build()]).await;
    let rows = found.unwrap().remove(0).rows.unwrap();
    // Read in the schema's shape, though the wire writes an empty set and a string.
    assert_eq!(rows[0]["ports"], Value::empty_set());
    assert_eq!(rows[0]["name"], Value::string("s"));
}

#[tokio::test]
async fn missing_columns_are_reported_and_left_out() {
    let server = Server::northbound().unwrap();
    let options = Options::new(vec![server.endpoint()], "OVN_Northbound")
        .table("Logical_Switch", ["name", "colour"])
        .table("Spaceship", ["name"]);
    let (_session, mut events) = Session::connect(options);
    let Event::Connected { missing, .. } = next(&mut events).await else { panic!("not connected") };
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(missing, [pair("Logical_Switch", "colour"), pair("Spaceship", "name")]);
    let (replica, _) = replaced(&mut events).await;
    assert!(replica.table("Spaceship").is_none());
    assert_eq!(replica.table("Logical_Switch").unwrap().layout().columns().len(), 1);
}

#[tokio::test]
async fn thousands_of_pipelined_transactions_are_answered_in_order() {
    let server = Server::northbound().unwrap();
    let (session, mut events) = Session::connect(options(&server));
    replaced(&mut events).await;
    let count = 3000u64;
    for tag in 0..count {
        session.submit(tag, vec![switch(&format!("s{tag}"))]);
    }
    let (mut expected, mut rows) = (0, 0);
    while expected < count {
        match next(&mut events).await {
            Event::Updated { replica, .. } => rows = replica.table("Logical_Switch").unwrap().len() as u64,
            Event::Reply { tag, result } => {
                assert_eq!(tag, expected);
                result.unwrap();
                expected += 1;
                assert!(rows >= expected, "reply before its own update");
            }
            other => panic!("unexpected {other:?}"),
        }
    }
    assert_eq!(rows, count);
}

#[tokio::test]
async fn control_sockets_answer() {
    let server = Server::northbound().unwrap();
    let socket = server.control_socket();
    let version = ovsdb::unixctl::call(&socket, "version", &[], support::PATIENCE).await.unwrap();
    assert!(version.contains("ovsdb-server"), "{version}");
    let dbs = ovsdb::unixctl::call(&socket, "ovsdb-server/list-dbs", &[], support::PATIENCE).await.unwrap();
    assert!(dbs.contains("OVN_Northbound"), "{dbs}");
    let refused = ovsdb::unixctl::call(&socket, "no/such", &["x"], support::PATIENCE).await.unwrap_err();
    assert!(matches!(refused, ovsdb::unixctl::Error::Refused(_)), "{refused}");
}
