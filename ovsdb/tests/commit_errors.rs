//! Every way in which a real server refuses a transaction: its name here, whether a
//! retry makes sense, and that the check on our side finds what a schema tells.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::BTreeMap;
use std::process::{Child, Command};
use std::time::Duration;

use ovsdb::error::Retry;
use ovsdb::op::check;
use ovsdb::testing::northbound;
use ovsdb::testing::real::{Root, Server};
use ovsdb::{
    Atom, Endpoint, Mutator, Operation, Options, Session, TransactError, TransactErrorKind,
    TransactionBuilder, Uuid, Value,
};
use support::Generator;

fn connect(endpoint: Endpoint) -> Session {
    let options =
        Options { request_timeout: support::PATIENCE, ..Options::new(vec![endpoint], "OVN_Northbound") };
    // The session lives by its handle; nobody needs the events.
    Session::connect(options).0
}

async fn refused(session: &Session, operations: Vec<Operation>) -> TransactError {
    session.transact(operations).await.expect_err("the server took it")
}

fn set(name: &str) -> Operation {
    Operation::insert("Address_Set").column("name", name).build()
}

#[tokio::test]
async fn each_refusal_has_its_name_and_its_advice() {
    let server = Server::northbound().unwrap();
    let session = connect(server.endpoint());
    let global = Uuid::from_u128(7);
    let insert = Operation::insert("NB_Global").uuid(global).column("nb_cfg", i64::MAX).build();
    session.transact(vec![insert.clone(), set("taken")]).await.unwrap();
    let change = |mutator, value: i64| {
        vec![Operation::mutate("NB_Global").by_uuid(global).mutation("nb_cfg", mutator, value).build()]
    };
    let named =
        |name: &str, set: &str| Operation::insert("Address_Set").uuid_name(name).column("name", set).build();
    use TransactErrorKind as Kind;
    let cases: Vec<(Vec<Operation>, Kind, Option<usize>, Retry)> = vec![
        (
            vec![set("a"), Operation::insert("ACL").column("direction", "sideways").build()],
            Kind::Constraint,
            Some(1),
            Retry::Never,
        ),
        (vec![set("taken")], Kind::Constraint, None, Retry::Recompute),
        (
            vec![Operation::insert("Logical_Switch").column("ports", Uuid::from_u128(9)).build()],
            Kind::Referential,
            None,
            Retry::Recompute,
        ),
        (vec![set("b"), insert], Kind::DuplicateUuid, Some(1), Retry::Recompute),
        (vec![named("x", "c"), named("x", "d")], Kind::DuplicateUuidName, Some(1), Retry::Never),
        (vec![Operation::Assert("lock".into()), set("e")], Kind::NotOwner, Some(0), Retry::Relock),
        (
            vec![Operation::wait("NB_Global").column_equals("name", "other").timeout(0).build(), set("f")],
            Kind::WaitTimedOut,
            Some(0),
            Retry::Recompute,
        ),
        (change(Mutator::Divide, 0), Kind::Domain, Some(0), Retry::Never),
        (change(Mutator::Add, 1), Kind::Range, Some(0), Retry::Recompute),
        (vec![set("g"), Operation::Abort], Kind::Aborted, Some(1), Retry::Never),
        (vec![Operation::insert("Nope").build()], Kind::Syntax, Some(0), Retry::Never),
        (
            vec![Operation::insert("Address_Set").column("nope", 1i64).build()],
            Kind::Other("unknown column".into()),
            Some(0),
            Retry::Never,
        ),
    ];
    for (operations, kind, op_index, retry) in cases {
        let error = refused(&session, operations.clone()).await;
        println!("{error}");
        assert_eq!((&error.kind, error.op_index), (&kind, op_index), "{error}");
        assert_eq!(error.retry(), retry, "{error}");
        assert!(!error.details.is_empty() || kind == Kind::Aborted, "{error}");
    }
    // None of them left anything behind.
    let all =
        session.transact(vec![Operation::select("Address_Set").columns(["name"]).build()]).await.unwrap();
    assert_eq!(all[0].rows.as_ref().unwrap().len(), 1);
}

#[tokio::test]
async fn names_and_durability_are_understood() {
    let server = Server::northbound().unwrap();
    let session = connect(server.endpoint());
    let mut transaction = TransactionBuilder::new();
    let port = transaction.insert_named("port", Operation::insert("Logical_Switch_Port").column("name", "p"));
    let ports = Value::Set([port].into());
    let switch =
        transaction.insert(Operation::insert("Logical_Switch").column("name", "s").column("ports", ports));
    transaction.comment("by name");
    transaction.durably();
    transaction.check(&northbound()).unwrap();
    let results = session.transact(transaction.build()).await.unwrap();
    let port = results[0].uuid.unwrap();
    assert_eq!(results[1].uuid, Some(switch));
    let read = Operation::select("Logical_Switch").by_uuid(switch).columns(["ports"]).build();
    let rows = session.transact(vec![read]).await.unwrap().remove(0).rows.unwrap();
    assert_eq!(rows[0]["ports"], Value::Set([Atom::Uuid(port)].into()));
}

/// What we refuse a server refuses too, and of the values that a server finds fault
/// with we find nearly all.
#[tokio::test]
async fn our_own_check_agrees_with_the_server() {
    let server = Server::northbound().unwrap();
    let session = connect(server.endpoint());
    let schema = session_schema(&server).await;
    let mut generator = Generator::new(northbound(), 11);
    let mut outcomes: BTreeMap<(bool, String), usize> = BTreeMap::new();
    for round in 0..600 {
        let operations = generator.transaction();
        let ours = check(&operations, &schema);
        let theirs = session.transact(operations.clone()).await;
        if let Err(error) = &ours {
            let context = format!("round {round}: refused as {error}, but {theirs:?}\n{operations:#?}");
            assert!(theirs.is_err(), "{context}");
        }
        let label = match &theirs {
            Ok(_) => "committed".to_owned(),
            Err(error) => format!("{} {}", error.kind, if error.op_index.is_some() { "at" } else { "whole" }),
        };
        *outcomes.entry((ours.is_ok(), label)).or_default() += 1;
    }
    println!("{outcomes:?}");
    let count = |ours, label: &str| outcomes.get(&(ours, label.to_owned())).copied().unwrap_or(0);
    assert!(
        count(false, "constraint violation at") > 5 * count(true, "constraint violation at"),
        "{outcomes:?}"
    );
}

async fn session_schema(server: &Server) -> ovsdb::Schema {
    let file = server.root().northbound_schema().unwrap();
    ovsdb::Schema::parse_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

/// A file system of its own for a server; unmounted when dropped.
struct SmallDisk {
    directory: tempfile::TempDir,
    server: Option<Child>,
}

impl SmallDisk {
    fn new() -> Self {
        let disk = Self { directory: tempfile::tempdir().unwrap(), server: None };
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=512k", "tmpfs"])
            .arg(disk.directory.path())
            .status();
        assert!(mounted.unwrap().success(), "mounting needs root");
        disk
    }
    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            let _ = server.kill();
            let _ = server.wait();
        }
        let _ = Command::new("umount").arg(self.directory.path()).status();
    }
}

#[tokio::test]
async fn a_full_disk_is_told_and_the_same_transaction_succeeds_later() {
    let mut disk = SmallDisk::new();
    let root = Root::from_env().unwrap();
    let schema = root.northbound_schema().unwrap().display().to_string();
    let directory = disk.directory.path().to_owned();
    root.run("usr/bin/ovsdb-tool", &directory, &["create", &disk.path("db"), &schema]).unwrap();
    let mut command = root.command("usr/sbin/ovsdb-server", &directory).unwrap();
    command.arg(format!("--remote=punix:{}", disk.path("db.sock")));
    command.arg(format!("--unixctl={}", disk.path("ctl"))).arg(disk.path("db"));
    disk.server = Some(command.spawn().unwrap());
    let session = connect(Endpoint::Unix(disk.path("db.sock").into()));
    assert!(tokio::time::timeout(support::PATIENCE, session.synced()).await.unwrap());
    // Everything but what the server has taken is filled up.
    let filler = disk.path("filler");
    let _ = std::fs::write(&filler, vec![0u8; 1 << 20]);
    let operations = || vec![Operation::insert("Address_Set").column("name", "x".repeat(20_000)).build()];
    let error = refused(&session, operations()).await;
    println!("{error}");
    assert_eq!((&error.kind, error.retry()), (&TransactErrorKind::Io, Retry::Later), "{error}");
    std::fs::remove_file(filler).unwrap();
    let begin = std::time::Instant::now();
    while let Err(error) = session.transact(operations()).await {
        assert!(begin.elapsed() < support::PATIENCE, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
