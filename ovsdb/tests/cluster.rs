//! The real clusters that other tests rely on: every handle of `real::Cluster`
//! does what it says.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use ovsdb::Endpoint;
use ovsdb::testing::real::{Cluster, Place, Root};
use serde_json::json;

/// Adds a switch by way of one member, without the client of this crate.
fn write(cluster: &Cluster, member: usize, name: &str) {
    let insert = json!({"op": "insert", "table": "Logical_Switch", "row": {"name": name}});
    let reply = cluster.member(member).call("transact", &json!([cluster.database(), insert])).unwrap();
    assert!(reply[0]["uuid"].is_array() && reply[1].is_null(), "{reply}");
}

fn names(cluster: &Cluster, member: usize) -> Vec<String> {
    let dump = cluster.dump(member).unwrap();
    let switches = dump.table("Logical_Switch").unwrap();
    let mut names: Vec<_> = switches.rows().map(|r| r.str("name").unwrap().to_owned()).collect();
    names.sort();
    names
}

#[test]
fn leaders_change_members_come_and_go_and_everything_ends() {
    let mut cluster = Cluster::northbound(3).unwrap();
    let first = cluster.wait_leader().unwrap();
    write(&cluster, first, "a");
    let second = cluster.transfer_leadership().unwrap();
    assert_ne!(first, second);
    assert!(cluster.status(second).unwrap().term > 1);
    write(&cluster, second, "b");
    cluster.member_mut(second).kill();
    let third = cluster.wait_leader().unwrap();
    assert_ne!(second, third);
    write(&cluster, third, "c");
    cluster.member_mut(second).resume().unwrap();
    cluster.wait_connected(second).unwrap();
    // A stopped leader is mute, and the others go on.
    let leader = cluster.wait_leader().unwrap();
    cluster.member_mut(leader).pause().unwrap();
    let next = cluster.wait_leader().unwrap();
    assert_ne!(leader, next);
    write(&cluster, next, "d");
    cluster.member_mut(leader).unpause().unwrap();
    cluster.member_mut(next).stop().unwrap();
    assert!(cluster.member(next).pid().is_none());
    cluster.member_mut(next).resume().unwrap();
    cluster.wait_connected(next).unwrap();
    // One more, and one less.
    let joined = cluster.join(Place::default()).unwrap();
    assert_eq!(cluster.status(joined).unwrap().addresses.len(), 4);
    cluster.leave(0).unwrap();
    assert_eq!(cluster.len(), 3);
    let leader = cluster.wait_leader().unwrap();
    write(&cluster, leader, "e");
    assert_eq!(names(&cluster, leader), ["a", "b", "c", "d", "e"]);
    let pids: Vec<u32> = (0..3).filter_map(|i| cluster.member(i).pid()).collect();
    let directory = cluster.member(0).directory().to_owned();
    assert_eq!(pids.len(), 3);
    drop(cluster);
    assert!(!directory.exists());
    assert!(pids.iter().all(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists()));
}

#[test]
fn members_speak_tcp_too() {
    let schema = Root::from_env().unwrap().northbound_schema().unwrap();
    let places = (0..3).map(|_| Place::loopback().unwrap()).collect();
    let mut cluster = Cluster::start_at(&schema, places, None).unwrap();
    assert!(cluster.endpoints().iter().all(|e| matches!(e, Endpoint::Tcp { .. })));
    let leader = cluster.transfer_leadership().unwrap();
    write(&cluster, leader, "a");
    assert!(cluster.status(leader).unwrap().addresses.iter().all(|a| a.starts_with("tcp:127.0.0.1:")));
}

/// `u24`: a member and its address are lost for good.
#[test]
fn u24_survivors_of_a_lost_member_restart_keep_quorum_and_take_another() {
    let mut cluster = Cluster::northbound(3).unwrap();
    let leader = cluster.wait_leader().unwrap();
    write(&cluster, leader, "before");
    // The leader itself is lost: the worst case.
    let lost = cluster.lose(leader);
    let leader = cluster.wait_leader().unwrap();
    write(&cluster, leader, "with two");
    // Both restart at once while the list still names the lost one.
    (0..2).for_each(|i| cluster.member_mut(i).kill());
    (0..2).for_each(|i| cluster.member_mut(i).resume().unwrap());
    let leader = cluster.wait_leader().unwrap();
    write(&cluster, leader, "restarted");
    cluster.kick(&lost).unwrap();
    // And again after it was taken off.
    (0..2).for_each(|i| cluster.member_mut(i).kill());
    (0..2).for_each(|i| cluster.member_mut(i).resume().unwrap());
    let leader = cluster.wait_leader().unwrap();
    write(&cluster, leader, "restarted again");
    let joined = cluster.join(Place::default()).unwrap();
    assert!(!cluster.status(joined).unwrap().addresses.contains(&lost.address));
    // The new one counts: with it there is a quorum when one of the old is away.
    cluster.member_mut(leader).kill();
    let leader = cluster.wait_leader().unwrap();
    write(&cluster, leader, "with the new one");
    let all = ["before", "restarted", "restarted again", "with the new one", "with two"];
    assert_eq!(names(&cluster, leader), all);
}
