use super::*;
use crate::ovs::BridgeSpec;
use crate::ovs::plan::tests::{carry_out, database, pod_port, view};
use crate::ovs::plan::{ensure_bridge, ensure_port};
use ovsdb::testing::Database;

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn switch() -> Database {
    let mut database = database();
    for (name, id) in [("mirror0", "m"), ("a_h", "a.web"), ("b_h", "b.web"), ("tap9", "t")] {
        carry_out(&mut database, |view| ensure_port(view, &pod_port(name, id)));
    }
    database
}

fn mirror_towards(database: &mut Database, members: &[&str]) {
    let (members, managed) = (names(members), names(&["a_h", "b_h"]));
    let selection = Selection::Towards { members: &members, managed: &managed };
    carry_out(database, |view| ensure(view, "br-int", "mirror0", &selection));
}

/// Members of `m0`, by name.
fn members(database: &Database) -> Vec<String> {
    let view = view(database);
    let row = view.bridge("br-int").unwrap().clone();
    let mirror = row
        .get("mirrors")
        .into_iter()
        .flat_map(Value::set_uuids)
        .find_map(|uuid| view.mirror(&uuid).filter(|mirror| mirror.str("name") == Some(NAME)).cloned())
        .unwrap();
    let of = |uuid: Uuid| {
        let port = view.ports().find(|port| port.uuid == uuid);
        port.and_then(|port| port.str("name")).unwrap_or_default().to_owned()
    };
    let mut names: Vec<String> = mirror.get("select_dst_port").unwrap().set_uuids().map(of).collect();
    names.sort();
    names
}

#[test]
fn k_171_pods_come_and_go_one_by_one() {
    let mut database = switch();
    mirror_towards(&mut database, &["a_h"]);
    assert_eq!(members(&database), ["a_h"]);
    mirror_towards(&mut database, &["a_h", "b_h"]);
    mirror_towards(&mut database, &["b_h"]);
    assert_eq!(members(&database), ["b_h"]);
    assert_eq!(database.replica().table("Mirror").unwrap().len(), 1);
}

#[test]
fn members_and_mirrors_of_others_stay() {
    let mut database = switch();
    mirror_towards(&mut database, &["a_h"]);
    let before = view(&database);
    let (bridge, foreign) = (before.bridge("br-int").unwrap().uuid, Uuid::new_v4());
    let mirror = database.replica().table("Mirror").unwrap().rows().next().unwrap().uuid;
    database.must(&[
        Operation::insert("Mirror").uuid(foreign).column("name", "theirs").build(),
        Operation::mutate("Bridge").by_uuid(bridge).insert_set("mirrors", Value::uuids([foreign])).build(),
        Operation::mutate("Mirror")
            .by_uuid(mirror)
            .insert_set("select_dst_port", Value::uuids([before.port("tap9").unwrap().uuid]))
            .build(),
    ]);
    mirror_towards(&mut database, &[]);
    assert_eq!(members(&database), ["tap9"]);
    assert!(view(&database).mirror(&foreign).is_some());
}

#[test]
fn all_and_some_change_into_each_other() {
    let mut database = switch();
    let all = |database: &Database| {
        database.replica().table("Mirror").unwrap().rows().next().unwrap().bool("select_all")
    };
    carry_out(&mut database, |view| ensure(view, "br-int", "mirror0", &Selection::All));
    assert_eq!(all(&database), Some(true));
    mirror_towards(&mut database, &["a_h"]);
    assert_eq!((all(&database), members(&database)), (Some(false), vec!["a_h".to_owned()]));
}

#[test]
fn k_171_one_mirror_of_the_name_is_enough() {
    let mut database = switch();
    mirror_towards(&mut database, &[]);
    let (bridge, second) = (view(&database).bridge("br-int").unwrap().uuid, Uuid::new_v4());
    database.must(&[
        Operation::insert("Mirror").uuid(second).column("name", NAME).build(),
        Operation::mutate("Bridge").by_uuid(bridge).insert_set("mirrors", Value::uuids([second])).build(),
    ]);
    mirror_towards(&mut database, &["a_h"]);
    assert_eq!(members(&database), ["a_h"]);
    let row = view(&database).bridge("br-int").unwrap().clone();
    assert_eq!(row.get("mirrors").unwrap().set_uuids().count(), 1);
}

#[test]
fn without_bridge_or_output_nothing_is_made() {
    let mut database = database();
    assert_eq!(
        ensure(&view(&database), "br-none", "mirror0", &Selection::All),
        Err(PlanError::NoBridge("br-none".into()))
    );
    carry_out(&mut database, |view| ensure(view, "br-int", "mirror0", &Selection::All));
    let other = BridgeSpec { name: "br-x".into(), ..BridgeSpec::default() };
    carry_out(&mut database, |view| ensure_bridge(view, &other));
    assert_eq!(database.replica().table("Mirror").unwrap().len(), 0);
}
