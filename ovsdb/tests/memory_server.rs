//! The in-process server's faults, seen through a session: each does what it says,
//! and the session survives it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::time::Duration;

use ovsdb::testing::{Database, Fault, MemoryServer, Model, Pace, northbound};
use ovsdb::{Event, Operation, Options, Replica, Session, TransactErrorKind, Value};
use support::{Model as Plain, next, replaced};

const DATABASE: &str = "OVN_Northbound";

fn options(server: &MemoryServer) -> Options {
    let mut options = Options::new(server.endpoints(), DATABASE).table("Logical_Switch", ["name", "ports"]);
    options.request_timeout = Duration::from_millis(500);
    options.probe_interval = Duration::from_millis(500);
    options.max_backoff = Duration::from_millis(100);
    options
}

fn switch(name: &str) -> Operation {
    Operation::insert("Logical_Switch").column("name", name).build()
}

fn names(replica: &Replica) -> Vec<String> {
    let rows = replica.table("Logical_Switch").unwrap().rows();
    let mut names: Vec<String> = rows.map(|row| row.str("name").unwrap().to_owned()).collect();
    names.sort();
    names
}

/// A server, a session that is in sync, and its consumer.
struct Rig {
    server: MemoryServer,
    session: Session,
    events: ovsdb::EventStream,
    model: Plain,
    replica: Replica,
    resyncs: usize,
}

impl Rig {
    async fn new(server: MemoryServer) -> Self {
        let (session, mut events) = Session::connect(options(&server));
        let (replica, changes) = replaced(&mut events).await;
        let mut model = Plain::default();
        model.apply(&changes);
        Self { server, session, events, model, replica, resyncs: 0 }
    }

    /// Follows until these switches are there, and no others.
    async fn until(&mut self, wanted: &[&str]) {
        while names(&self.replica) != wanted {
            match next(&mut self.events).await {
                Event::Replaced { replica, changes } | Event::Updated { replica, changes } => {
                    self.model.apply(&changes);
                    self.model.assert_matches(&replica);
                    self.replica = replica;
                }
                Event::Resync { .. } => self.resyncs += 1,
                _ => {}
            }
        }
        assert_eq!(names(&self.server.replica(DATABASE).unwrap()), wanted);
    }

    /// A transaction that is hit by a fault; how it ended.
    async fn hit(&mut self, fault: Fault, name: &str) -> Result<(), TransactErrorKind> {
        self.server.on("transact", fault);
        let result = self.session.transact(vec![switch(name)]).await;
        assert!(self.server.is_script_done());
        result.map(drop).map_err(|e| e.kind)
    }
}

fn server() -> MemoryServer {
    MemoryServer::start(Database::new(northbound())).unwrap()
}

#[tokio::test]
async fn connections_lost_around_a_commit_leave_no_doubt_behind() {
    let mut rig = Rig::new(server()).await;
    let lost = Err(TransactErrorKind::Disconnected);
    assert_eq!(rig.hit(Fault::DropBefore, "never").await, lost);
    assert_eq!(rig.hit(Fault::DropAfter, "a").await, lost);
    rig.until(&["a"]).await;
    assert_eq!(rig.hit(Fault::DropBeforeReply, "b").await, lost);
    rig.until(&["a", "b"]).await;
    assert_eq!(rig.hit(Fault::NeverAnswer, "c").await, lost);
    rig.until(&["a", "b", "c"]).await;
    assert_eq!(rig.hit(Fault::Ignore, "never").await, lost);
    assert_eq!(rig.hit(Fault::Partial(9), "d").await, lost);
    rig.until(&["a", "b", "c", "d"]).await;
    let refused = Err(TransactErrorKind::Other("not leader".into()));
    assert_eq!(rig.hit(Fault::Refuse("not leader".into()), "never").await, refused);
    rig.session.transact(vec![switch("e")]).await.unwrap();
    rig.until(&["a", "b", "c", "d", "e"]).await;
    let traffic = rig.server.traffic();
    assert_eq!(traffic.loads, 1, "{traffic:?}");
    assert_eq!(traffic.resumes, traffic.connections - 1, "{traffic:?}");
    assert_eq!(traffic.commits, 5);
}

#[tokio::test]
async fn updates_that_make_no_sense_lead_to_a_fresh_load() {
    let mut rig = Rig::new(server()).await;
    assert_eq!(rig.hit(Fault::RepeatUpdate, "a").await, Ok(()));
    rig.until(&["a"]).await;
    rig.server.transact(DATABASE, &[switch("b")]).unwrap();
    rig.until(&["a", "b"]).await;
    assert_eq!(rig.resyncs, 1, "a second insert of the same row");
    // The second within ten seconds costs the connection.
    assert_eq!(rig.hit(Fault::UnknownRow, "c").await, Ok(()));
    rig.server.traffic_until(|t| t.loads == 3).await;
    rig.server.transact(DATABASE, &[switch("d")]).unwrap();
    rig.until(&["a", "b", "c", "d"]).await;
    assert_eq!(rig.session.state().resyncs, 2);
}

#[tokio::test]
async fn a_monitor_without_an_answer_is_asked_for_again() {
    let server = server();
    server.on("monitor_cond_since", Fault::Ignore);
    server.on("monitor_cond_since", Fault::NeverAnswer);
    server.on("monitor_cond_since", Fault::Partial(20));
    let rig = Rig::new(server).await;
    assert_eq!(rig.server.traffic().of("monitor_cond_since"), 4);
}

#[tokio::test]
async fn writers_follow_the_leader_and_leave_members_that_are_cut_off() {
    let server = MemoryServer::builder(Database::new(northbound())).members(3).tcp().start().unwrap();
    let mut wanted = options(&server);
    wanted.leader_only = true;
    let (session, _events) = Session::connect(wanted);
    let at = |member: usize| {
        let (session, endpoint) = (session.clone(), server.endpoints()[member].clone());
        async move {
            let begin = std::time::Instant::now();
            while session.state().endpoint.as_ref() != Some(&endpoint) || !session.state().synced {
                assert!(begin.elapsed() < support::PATIENCE, "{:?}", session.state());
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    };
    at(0).await;
    server.on("transact", Fault::MoveLeader);
    session.transact(vec![switch("a")]).await.unwrap();
    at(1).await;
    server.lead(2);
    at(2).await;
    server.set_connected(2, false);
    server.lead(0);
    at(0).await;
    server.set_down(0, true);
    server.lead(1);
    at(1).await;
    session.transact(vec![switch("b")]).await.unwrap();
    assert_eq!(server.replica(DATABASE).unwrap().row_count(), 2);
}

#[tokio::test]
async fn a_member_that_lost_its_cluster_answers_when_it_is_back() {
    let server = MemoryServer::builder(Database::new(northbound())).members(2).start().unwrap();
    let mut wanted = options(&server);
    wanted.endpoints.truncate(1);
    wanted.request_timeout = Duration::from_secs(30);
    let (session, mut events) = Session::connect(wanted);
    replaced(&mut events).await;
    // Sent, not answered; the session leaves the member that says it is cut off.
    server.set_connected(0, false);
    let outcome = session.transact(vec![switch("a")]);
    server.traffic_until(|t| t.attempts > 2).await;
    server.set_connected(0, true);
    let _ = outcome.await;
    session.transact(vec![switch("b")]).await.unwrap();
}

#[tokio::test]
async fn bytes_in_small_pieces_are_the_same_messages() {
    let server = server();
    let ports: Vec<Operation> = (0..20).map(|i| switch(&format!("{i:02}"))).collect();
    server.transact(DATABASE, &ports).unwrap();
    server.set_pace(Some(Pace { piece: 7, pause: Duration::from_micros(20) }));
    let mut wanted = options(&server);
    wanted.request_timeout = Duration::from_secs(30);
    let (session, mut events) = Session::connect(wanted);
    assert_eq!(replaced(&mut events).await.0.row_count(), 20);
    session.transact(vec![switch("last")]).await.unwrap();
    let Event::Updated { replica, .. } = next(&mut events).await else { panic!("no update") };
    assert_eq!(replica.row_count(), 21);
}

#[tokio::test]
async fn a_frozen_server_is_left_and_found_again() {
    let mut rig = Rig::new(server()).await;
    rig.server.freeze(true);
    let before = rig.server.traffic().connections;
    rig.server.traffic_until(|t| t.connections > before).await;
    rig.server.freeze(false);
    rig.server.transact(DATABASE, &[switch("a")]).unwrap();
    rig.until(&["a"]).await;
}

#[tokio::test]
async fn a_schema_that_changes_is_followed() {
    let mut rig = Rig::new(server()).await;
    rig.session.transact(vec![switch("a")]).await.unwrap();
    rig.until(&["a"]).await;
    let mut schema = northbound();
    schema.version = "8.0.0".into();
    for table in schema.tables.values_mut() {
        table.columns.remove("ports");
    }
    rig.server.convert(DATABASE, schema).unwrap();
    loop {
        if let Event::Connected { schema, missing, .. } = next(&mut rig.events).await {
            assert_eq!(schema.version, "8.0.0");
            assert_eq!(missing, [("Logical_Switch".to_owned(), "ports".to_owned())]);
            break;
        }
    }
    rig.session.transact(vec![switch("b")]).await.unwrap();
    assert_eq!(rig.session.state().connections, 1);
    // What does not fit is refused, and nothing happens.
    let mut narrow = northbound();
    let name = narrow.tables.get_mut("Logical_Switch").unwrap().columns.get_mut("name").unwrap();
    name.ty.key.max_length = Some(0);
    assert_eq!(rig.server.convert(DATABASE, narrow).unwrap_err().kind, TransactErrorKind::Constraint);
    assert_eq!(rig.server.replica(DATABASE).unwrap().row_count(), 2);
}

#[tokio::test]
async fn what_can_be_resumed_is_and_what_cannot_is_loaded() {
    let rig = Rig::new(MemoryServer::builder(Database::new(northbound())).history(3).start().unwrap()).await;
    let reconnect = |server: &MemoryServer| {
        let before = server.traffic();
        server.disconnect();
        before
    };
    let before = reconnect(&rig.server);
    rig.server.traffic_until(|t| t.resumes > before.resumes).await;
    rig.server.forget_history();
    let before = reconnect(&rig.server);
    rig.server.traffic_until(|t| t.loads > before.loads).await;
    // More than the history holds, while the session is away.
    rig.server.set_down(0, true);
    (0..5).for_each(|i| drop(rig.server.transact(DATABASE, &[switch(&format!("s{i}"))]).unwrap()));
    let before = rig.server.traffic();
    rig.server.set_down(0, false);
    rig.server.traffic_until(|t| t.loads > before.loads).await;
    let standalone =
        MemoryServer::builder(Database::new(northbound())).model(Model::Standalone).start().unwrap();
    let rig = Rig::new(standalone).await;
    let before = reconnect(&rig.server);
    rig.server.traffic_until(|t| t.loads > before.loads).await;
    assert_eq!(rig.server.traffic().resumes, 0);
}

#[tokio::test]
async fn several_databases_are_served_side_by_side() {
    let other = ovsdb::testing::SchemaBuilder::new("Other", "1.0.0")
        .table("T", |t| t.root().scalar("name", ovsdb::testing::string()))
        .build();
    let server =
        MemoryServer::builder(Database::new(northbound())).database(Database::new(other)).start().unwrap();
    let (session, mut events) = Session::connect(Options::new(server.endpoints(), "Other").table("T", []));
    replaced(&mut events).await;
    session.transact(vec![Operation::insert("T").column("name", "x").build()]).await.unwrap();
    server.transact(DATABASE, &[switch("not for us")]).unwrap();
    let Event::Updated { replica, .. } = next(&mut events).await else { panic!("no update") };
    let found = replica.table("T").unwrap().find_one("name", &Value::string("x")).is_some();
    assert!(found && replica.row_count() == 1);
    let unknown = server.transact("Nowhere", &[]).unwrap_err();
    assert_eq!(unknown.kind, TransactErrorKind::UnknownDatabase);
}
