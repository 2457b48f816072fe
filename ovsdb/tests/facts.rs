//! Facts about servers that users of OVSDB stumble over, each shown by a real one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::time::Duration;

use ovsdb::testing::real::{Cluster, Server};
use ovsdb::{Event, EventStream, LockState, Operation, Options, Session, TransactErrorKind, Uuid, Value};
use support::{dump, next, replaced};

fn switch(name: &str) -> Operation {
    Operation::insert("Logical_Switch").column("name", name).build()
}

fn follow(endpoint: ovsdb::Endpoint) -> Options {
    Options::new(vec![endpoint], "OVN_Northbound")
        .table("Logical_Switch", ["name", "ports"])
        .table("NB_Global", ["name"])
}

async fn held(events: &mut EventStream) {
    loop {
        if let Event::Lock { state, .. } = next(events).await {
            assert_eq!(state, LockState::Held);
            return;
        }
    }
}

/// A lock is the server's, not the cluster's: it is no guard of a cluster's content.
#[tokio::test]
async fn two_members_give_the_same_lock_to_two_clients() {
    let cluster = Cluster::northbound(2).unwrap();
    let (one, mut one_events) = Session::connect(follow(cluster.member(0).endpoint()));
    let (two, mut two_events) = Session::connect(follow(cluster.member(1).endpoint()));
    one.lock("only_me").unwrap();
    two.lock("only_me").unwrap();
    held(&mut one_events).await;
    held(&mut two_events).await;
    // Both pass the assertion at the same time.
    for session in [&one, &two] {
        session.synced().await;
        session.transact(vec![Operation::Assert("only_me".into()), switch("both")]).await.unwrap();
    }
}

#[tokio::test]
async fn weak_references_to_missing_rows_vanish_and_the_commit_succeeds() {
    let server = Server::northbound().unwrap();
    let (session, _events) = Session::connect(follow(server.endpoint()));
    let (group, port, nobody) = (Uuid::new_v4(), Uuid::new_v4(), Uuid::new_v4());
    // Port_Group.ports refers weakly, Logical_Switch.ports strongly.
    let results = session
        .transact(vec![
            Operation::insert("Logical_Switch_Port").uuid(port).column("name", "p").build(),
            Operation::insert("Logical_Switch").column("ports", Value::uuids([port])).build(),
            Operation::insert("Port_Group")
                .uuid(group)
                .column("name", "g")
                .column("ports", Value::uuids([port, nobody]))
                .build(),
        ])
        .await
        .unwrap();
    assert_eq!(results[2].uuid, Some(group));
    let add = Operation::mutate("Port_Group").by_uuid(group).insert_set("ports", Value::uuids([nobody]));
    let added = session.transact(vec![add.build()]).await.unwrap();
    // It even counts as done.
    assert_eq!(added[0].count, Some(1));
    let read = Operation::select("Port_Group").by_uuid(group).columns(["ports"]).build();
    let ports = session.transact(vec![read]).await.unwrap()[0].rows.clone().unwrap();
    assert_eq!(ports[0]["ports"], Value::uuids([port]));
    // A strong one is refused.
    let strong = Operation::insert("Logical_Switch").column("ports", Value::uuids([nobody])).build();
    assert_eq!(session.transact(vec![strong]).await.unwrap_err().kind, TransactErrorKind::Referential);
}

#[tokio::test]
async fn one_transaction_cannot_delete_and_insert_the_same_uuid() {
    let server = Server::northbound().unwrap();
    let (session, _events) = Session::connect(follow(server.endpoint()));
    let uuid = Uuid::new_v4();
    let insert = |name: &str| Operation::insert("Logical_Switch").uuid(uuid).column("name", name).build();
    let delete = || Operation::delete("Logical_Switch").by_uuid(uuid).build();
    session.transact(vec![insert("a")]).await.unwrap();
    let error = session.transact(vec![delete(), insert("b")]).await.unwrap_err();
    assert_eq!((error.kind, error.op_index), (TransactErrorKind::DuplicateUuid, Some(1)));
    // In two transactions it works, and one after the other is seen by followers.
    session.transact(vec![delete()]).await.unwrap();
    session.transact(vec![insert("b")]).await.unwrap();
}

fn claim(token: &str) -> Operation {
    Operation::update("NB_Global").column("name", token).build()
}

fn fence(token: &str) -> Operation {
    Operation::wait("NB_Global").column_equals("name", token).timeout(0).build()
}

fn names(replica: &ovsdb::Replica) -> Vec<String> {
    replica.table("Logical_Switch").unwrap().rows().map(|r| r.str("name").unwrap().to_owned()).collect()
}

/// A writer that stalled and does not know of its successor writes nothing: its `wait`
/// of the token it once wrote fails at once, in the same transaction.
#[tokio::test]
async fn a_wait_of_zero_fences_off_a_writer_that_was_replaced() {
    let server = Server::northbound().unwrap();
    let (old, _old_events) = Session::connect(follow(server.endpoint()));
    let (new, _new_events) = Session::connect(follow(server.endpoint()));
    old.transact(vec![Operation::insert("NB_Global").column("name", "old").build()]).await.unwrap();
    old.transact(vec![fence("old"), switch("by old")]).await.unwrap();
    new.transact(vec![claim("new")]).await.unwrap();
    let error = old.transact(vec![fence("old"), switch("late")]).await.unwrap_err();
    assert_eq!((error.kind, error.op_index), (TransactErrorKind::WaitTimedOut, Some(0)));
    new.transact(vec![fence("new"), switch("by new")]).await.unwrap();
    let mut names = names(&dump(&follow(server.endpoint())).await);
    names.sort();
    assert_eq!(names, ["by new", "by old"]);
}

/// The same across a cluster: the member that an old writer writes to is stopped, another
/// one leads and a new writer takes over; when the member goes on, what the old writer
/// had sent in the meantime must not be committed.
#[tokio::test]
async fn a_fence_holds_across_a_stalled_leader() {
    let mut cluster = Cluster::northbound(3).unwrap();
    let leader = cluster.wait_leader().unwrap();
    let mut stubborn = follow(cluster.member(leader).endpoint());
    // The old writer notices nothing.
    stubborn.probe_interval = Duration::ZERO;
    stubborn.request_timeout = Duration::from_secs(120);
    let (old, mut old_events) = Session::connect(stubborn);
    replaced(&mut old_events).await;
    old.transact(vec![Operation::insert("NB_Global").column("name", "old").build()]).await.unwrap();
    cluster.member_mut(leader).pause().unwrap();
    old.submit(1, vec![fence("old"), switch("late")]);
    // Elsewhere life goes on.
    let others: Vec<_> = (0..3).filter(|&i| i != leader).map(|i| cluster.member(i).endpoint()).collect();
    let (new, mut new_events) = Session::connect(Options {
        endpoints: others,
        leader_only: true,
        ..follow(cluster.member(leader).endpoint())
    });
    replaced(&mut new_events).await;
    new.transact(vec![claim("new")]).await.unwrap();
    new.transact(vec![fence("new"), switch("by new")]).await.unwrap();
    cluster.member_mut(leader).unpause().unwrap();
    let outcome = loop {
        if let Event::Reply { tag: 1, result } = next(&mut old_events).await {
            break result;
        }
    };
    println!("the old writer got {outcome:?}");
    outcome.unwrap_err();
    cluster.wait_connected(leader).unwrap();
    // A write through the old member: after it, whatever it had in store is decided.
    let (last, _) = Session::connect(follow(cluster.member(leader).endpoint()));
    last.transact(vec![fence("new"), switch("by last")]).await.unwrap();
    let mut names = names(&dump(&follow(cluster.member(leader).endpoint())).await);
    names.sort();
    assert_eq!(names, ["by last", "by new"]);
}

/// Through real leader moves: of two writers that take turns to claim the token, none
/// ever commits under the other's.
#[tokio::test]
async fn a_fence_holds_through_leader_moves() {
    let mut cluster = Cluster::northbound(3).unwrap();
    let mut options = follow(cluster.member(0).endpoint());
    options.endpoints = cluster.endpoints();
    options.leader_only = true;
    let (one, _one_events) = Session::connect(options.clone());
    let (two, _two_events) = Session::connect(options.clone());
    one.transact(vec![Operation::insert("NB_Global").column("name", "start").build()]).await.unwrap();
    let writers = [(&one, "one"), (&two, "two")];
    for round in 0..3 {
        let (writer, name) = writers[round % 2];
        let (other, other_name) = writers[(round + 1) % 2];
        let (mine, theirs) = (format!("{name}{round}"), format!("{other_name}{round}"));
        certainly(writer, || vec![claim(&mine)]).await;
        // A pipeline of fenced writes runs into the move of the leader.
        let flight: Vec<_> = (0..40)
            .map(|i| writer.begin(vec![fence(&mine), switch(&format!("{mine}.{i}"))]).unwrap())
            .collect();
        cluster.transfer_leadership().unwrap();
        certainly(other, || vec![claim(&theirs)]).await;
        let before: usize = count(&dump(&options).await, &mine);
        let mut committed = 0;
        for transaction in flight {
            committed += usize::from(transaction.outcome().await.is_ok());
        }
        // What was acknowledged is there; nothing came after the claim.
        let after = dump(&options).await;
        assert!(count(&after, &mine) >= committed);
        assert_eq!(count(&after, &mine), before, "a write under a token that was gone");
        let late = writer.transact(vec![fence(&mine), switch("late")]).await;
        assert!(late.is_err());
        assert!(!names(&dump(&options).await).contains(&"late".to_owned()));
        println!("round {round}: {committed} acknowledged, {before} committed of 40");
    }
}

fn count(replica: &ovsdb::Replica, prefix: &str) -> usize {
    names(replica).iter().filter(|name| name.starts_with(&format!("{prefix}."))).count()
}

/// Repeats an idempotent transaction until it is known to be committed.
async fn certainly(session: &Session, operations: impl Fn() -> Vec<Operation>) {
    let begin = std::time::Instant::now();
    while let Err(error) = session.transact(operations()).await {
        assert!(begin.elapsed() < support::PATIENCE, "{error}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
