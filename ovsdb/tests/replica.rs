//! The replica of a session against what real servers have, through every fault
//! that a database or a cluster of them shows.
//!
//! No acknowledged write is lost, no partial replica is visible, nothing is
//! applied twice: see `mirror`. Longer runs: `make soak`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod mirror;
mod support;

use mirror::{Load, Mirror, leader_dump, options, server_dump};
use ovsdb::testing::real::{Cluster, Place, Root, Server};
use ovsdb::{Endpoint, Event, Operation, Session};

const DATABASE: &str = "OVN_Northbound";

fn from_env(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(usual)
}

/// What a member of a cluster suffers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Blow {
    Transfer,
    KillLeader,
    PauseLeader,
    StopLeader,
    KillFollower,
}

const BLOWS: [Blow; 5] =
    [Blow::Transfer, Blow::KillLeader, Blow::PauseLeader, Blow::StopLeader, Blow::KillFollower];

/// Deals a blow, waits for whoever leads then, and heals the member; whether
/// the leader changed.
fn strike(cluster: &mut Cluster, blow: Blow) -> bool {
    let leader = cluster.wait_leader().unwrap();
    let victim = if blow == Blow::KillFollower { (leader + 1) % cluster.len() } else { leader };
    match blow {
        Blow::Transfer => {
            cluster.transfer_leadership().unwrap();
        }
        Blow::KillLeader | Blow::KillFollower => cluster.member_mut(victim).kill(),
        Blow::PauseLeader => cluster.member_mut(victim).pause().unwrap(),
        Blow::StopLeader => cluster.member_mut(victim).stop().unwrap(),
    }
    let next = cluster.wait_leader().unwrap();
    match blow {
        Blow::Transfer => {}
        Blow::PauseLeader => cluster.member_mut(victim).unpause().unwrap(),
        _ => {
            cluster.member_mut(victim).resume().unwrap();
            cluster.wait_connected(victim).unwrap();
        }
    }
    next != leader
}

/// Random transactions on a 3-member raft through so many leader changes.
async fn leader_changes(wanted: u64, steps: u64, seed: u64) {
    let mut cluster = tokio::task::block_in_place(|| Cluster::northbound(3)).unwrap();
    let schema = cluster.member(0).schema(DATABASE).unwrap();
    let mut writer = options(cluster.endpoints(), &schema);
    writer.leader_only = true;
    let mut writer = Mirror::connect(writer);
    let mut reader = Mirror::connect(options(cluster.endpoints(), &schema));
    writer.begin().await;
    let mut load = Load::new(schema, seed);
    let (mut changes, mut blows) = (0, 0);
    while changes < wanted {
        for _ in 0..steps {
            writer.step(&mut load, || leader_dump(&mut cluster)).await;
        }
        // Some are in flight when it happens, some come while it lasts.
        (0..10).for_each(|_| writer.submit(load.transaction()));
        let blow = BLOWS[(blows % 5) as usize];
        blows += 1;
        changes += u64::from(tokio::task::block_in_place(|| strike(&mut cluster, blow)));
        (0..3).for_each(|_| writer.submit(load.transaction()));
        writer.answers().await;
        writer.settle(|| leader_dump(&mut cluster)).await;
        reader.settle(|| leader_dump(&mut cluster)).await;
    }
    // Every member has the same in the end.
    for member in 0..cluster.len() {
        writer.settle(|| cluster.dump(member).ok()).await;
    }
    println!("leader changes {changes} in {blows} blows");
    writer.summary("writer");
    reader.summary("reader");
    assert!(writer.counts.committed > wanted, "{:?}", writer.counts);
    // However a server ended, the next one knows where we were.
    assert_eq!(writer.session.state().loads, 1, "{:?}", writer.session.state());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_leader_changes_lose_and_double_nothing() {
    leader_changes(10, 5, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make soak"]
async fn soak_leader_changes() {
    leader_changes(from_env("WEIR_LEADER_CHANGES", 200), 10, from_env("WEIR_SEED", 2)).await;
}

/// A standalone server: compared after every step, through kills.
async fn standalone(steps: u64, seed: u64) {
    let mut server = tokio::task::block_in_place(Server::northbound).unwrap();
    let schema = server.schema(DATABASE).unwrap();
    let mut mirror = Mirror::connect(options(vec![server.endpoint()], &schema));
    mirror.begin().await;
    let mut load = Load::new(schema, seed);
    for step in 1..=steps {
        mirror.step(&mut load, || server_dump(&server)).await;
        if step % 60 == 0 {
            (0..5).for_each(|_| mirror.submit(load.transaction()));
            tokio::task::block_in_place(|| server.kill());
            mirror.answers().await;
            tokio::task::block_in_place(|| server.resume()).unwrap();
            mirror.settle(|| server_dump(&server)).await;
        }
    }
    mirror.summary("standalone");
    assert!(mirror.counts.committed > steps / 4, "{:?}", mirror.counts);
    assert!(mirror.counts.refused > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standalone_server_is_mirrored_after_every_step() {
    standalone(240, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make soak"]
async fn soak_standalone() {
    standalone(from_env("WEIR_STEPS", 20_000), from_env("WEIR_SEED", 4)).await;
}

/// The schema changes and changes back while transactions are under way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conversions_under_load_lose_and_double_nothing() {
    let mut cluster = tokio::task::block_in_place(|| Cluster::northbound(3)).unwrap();
    // As the cluster has it: without ephemeral columns, which clusters refuse.
    let original = cluster.member(0).call("get_schema", &serde_json::json!([DATABASE])).unwrap();
    let mut wider = original.clone();
    wider["version"] = "7.99.0".into();
    wider["tables"]["Logical_Switch"]["columns"]["colour"] = serde_json::json!({"type": "string"});
    let schema = cluster.member(0).schema(DATABASE).unwrap();
    let mut writer = options(cluster.endpoints(), &schema);
    writer.leader_only = true;
    let mut writer = Mirror::connect(writer);
    // Follows tables that stay as they are: it could resume if a server let it.
    let mut untouched = schema.clone();
    untouched.tables.retain(|name, _| ["NB_Global", "Address_Set"].contains(&name.as_str()));
    let mut reader = Mirror::connect(options(cluster.endpoints(), &untouched));
    writer.begin().await;
    let mut load = Load::new(schema, 5);
    for round in 0..6 {
        for _ in 0..5 {
            writer.step(&mut load, || leader_dump(&mut cluster)).await;
        }
        (0..10).for_each(|_| writer.submit(load.transaction()));
        let next = if round % 2 == 0 { &wider } else { &original };
        let leader = tokio::task::block_in_place(|| cluster.wait_leader()).unwrap();
        tokio::task::block_in_place(|| cluster.member(leader).convert(DATABASE, next)).unwrap();
        (0..3).for_each(|_| writer.submit(load.transaction()));
        writer.answers().await;
        writer.settle(|| leader_dump(&mut cluster)).await;
        reader.settle(|| leader_dump(&mut cluster)).await;
        let switches = writer.replica.as_ref().unwrap().table("Logical_Switch").unwrap();
        assert_eq!(switches.layout().position("colour").is_some(), round % 2 == 0);
    }
    writer.summary("conversions");
    reader.summary("follows unchanged tables");
    assert_eq!(writer.session.state().connections, 1, "a conversion needs no new connection");
}

/// `u24`: the leader is lost for good with its address, under load; the others
/// restart, and one with a new address joins. A session that knows all four
/// addresses from the start goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn u24_a_lost_member_and_a_new_one_under_a_live_session() {
    let schema = Root::from_env().unwrap().northbound_schema().unwrap();
    let places: Vec<Place> = (0..4).map(|_| Place::loopback().unwrap()).collect();
    let fourth = places[3].clone();
    let (address, port) = fourth.listen.unwrap();
    let mut cluster =
        tokio::task::block_in_place(|| Cluster::start_at(&schema, places[..3].to_vec(), None)).unwrap();
    let mut endpoints = cluster.endpoints();
    endpoints.push(Endpoint::Tcp { host: address.to_string(), port });
    let schema = cluster.member(0).schema(DATABASE).unwrap();
    let mut writer = options(endpoints, &schema);
    writer.leader_only = true;
    let mut writer = Mirror::connect(writer);
    writer.begin().await;
    let mut load = Load::new(schema, 6);
    for _ in 0..5 {
        writer.step(&mut load, || leader_dump(&mut cluster)).await;
    }
    (0..10).for_each(|_| writer.submit(load.transaction()));
    let lost = tokio::task::block_in_place(|| {
        let leader = cluster.wait_leader().unwrap();
        cluster.lose(leader)
    });
    for kicked in [false, true] {
        if kicked {
            tokio::task::block_in_place(|| cluster.kick(&lost)).unwrap();
        }
        (0..5).for_each(|_| writer.submit(load.transaction()));
        tokio::task::block_in_place(|| {
            (0..2).for_each(|i| cluster.member_mut(i).kill());
            (0..2).for_each(|i| cluster.member_mut(i).resume().unwrap());
            cluster.wait_leader().unwrap();
        });
        writer.answers().await;
        writer.settle(|| leader_dump(&mut cluster)).await;
        writer.step(&mut load, || leader_dump(&mut cluster)).await;
    }
    tokio::task::block_in_place(|| cluster.join(fourth)).unwrap();
    let joined = cluster.len() - 1;
    // With one of the old two away the new one is needed for a quorum.
    tokio::task::block_in_place(|| {
        while cluster.wait_leader().unwrap() != joined {
            cluster.transfer_leadership().unwrap();
        }
        cluster.member_mut(0).kill();
    });
    for _ in 0..10 {
        writer.step(&mut load, || leader_dump(&mut cluster)).await;
    }
    writer.settle(|| leader_dump(&mut cluster)).await;
    assert_eq!(writer.session.state().endpoint, Some(cluster.member(joined).endpoint()));
    writer.summary("u24");
}

/// What the design leans on: an answer that never came may still turn into a commit,
/// and who looks at the content of the next connection learns which.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_dies_after_replicating_has_committed() {
    let mut cluster = tokio::task::block_in_place(|| Cluster::northbound(3)).unwrap();
    let leader = tokio::task::block_in_place(|| cluster.wait_leader()).unwrap();
    let schema = cluster.member(0).schema(DATABASE).unwrap();
    let mut options = options(cluster.endpoints(), &schema);
    options.leader_only = true;
    let (session, mut events) = Session::connect(options);
    assert!(session.synced().await);
    let scenario = ["crash-after-sending-append-request"];
    tokio::task::block_in_place(|| cluster.member(leader).control("cluster/failure-test", &scenario))
        .unwrap();
    session.submit(7, vec![Operation::insert("Address_Set").column("name", "late").build()]);
    let (mut replied, mut seen) = (false, false);
    while !(replied && seen) {
        match support::next(&mut events).await {
            Event::Reply { tag: 7, result } => {
                let error = result.unwrap_err();
                assert!(!error.retryable(), "blind repetition would write twice: {error}");
                replied = true;
            }
            Event::Replaced { replica, .. } | Event::Updated { replica, .. } if replied => {
                seen = !replica.table("Address_Set").unwrap().is_empty();
            }
            _ => {}
        }
    }
    assert_ne!(tokio::task::block_in_place(|| cluster.wait_leader()).unwrap(), leader);
}
