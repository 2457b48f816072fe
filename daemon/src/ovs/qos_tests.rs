use super::*;
use crate::ovs::plan::tests::{carry_out, database, pod_port, view};
use crate::ovs::plan::{ensure_port, remove_port};
use ovsdb::testing::Database;

const HTB_2M: Discipline = Discipline::Htb { max_rate: 2_000_000, burst: 200_000 };

fn spec(qos: PortQos) -> crate::ovs::PortSpec {
    let mut spec = pod_port("a_h", "a.web");
    for (key, value) in [("pod_namespace", "web"), ("pod_name", "a")] {
        spec.external_ids.insert(key.into(), value.into());
    }
    spec.qos = Some(qos);
    spec
}

fn shaped(discipline: Discipline) -> PortQos {
    PortQos { discipline: Some(discipline), ..PortQos::default() }
}

/// The port's QoS row and its queue 0.
fn rows(database: &Database) -> (Option<Row>, Option<Row>) {
    let view = view(database);
    let port = view.port("a_h").unwrap().clone();
    let qos = qos_of(&view, &port).cloned();
    let queue = qos.as_ref().and_then(|qos| view.queue(view.queues_of(&qos.uuid).first()?).cloned());
    (qos, queue)
}

fn counts(database: &Database) -> (usize, usize) {
    let count = |table| database.replica().table(table).unwrap().len();
    (count("QoS"), count("Queue"))
}

fn config(row: &Row) -> Vec<String> {
    row.get("other_config").unwrap().map_strings().map(|(key, value)| format!("{key}={value}")).collect()
}

#[test]
fn k_162_the_rate_stands_on_the_qos_and_on_queue_0() {
    let mut database = database();
    carry_out(&mut database, |view| ensure_port(view, &spec(shaped(HTB_2M))));
    let (qos, queue) = rows(&database);
    let (qos, queue) = (qos.unwrap(), queue.unwrap());
    assert_eq!(qos.str("type"), Some("linux-htb"));
    assert_eq!(config(&qos), ["max-rate=2000000"]);
    assert_eq!(config(&queue), ["burst=200000", "max-rate=2000000"]);
    for row in [&qos, &queue] {
        assert_eq!(row.map_get("external_ids", "iface-id"), Some("a.web"));
        assert_eq!(row.map_get("external_ids", "pod"), Some("web/a"));
    }
    let queues = qos.map("queues").unwrap();
    assert_eq!(queues.get(&Atom::from(0i64)).and_then(Atom::as_uuid), Some(queue.uuid));
}

#[test]
fn what_was_written_is_read_as_it_was() {
    let netem = Discipline::Netem { latency: 5000, jitter: 0, limit: 7, loss: 1.5 };
    for discipline in [None, Some(HTB_2M), Some(netem)] {
        let mut database = database();
        let wanted = PortQos { policing_rate: 3000, policing_burst: 2400, discipline };
        carry_out(&mut database, |view| ensure_port(view, &spec(wanted.clone())));
        assert_eq!(of(&view(&database), "a_h"), wanted);
    }
    assert_eq!(of(&view(&database()), "a_h"), PortQos::default());
}

#[test]
fn k_164_a_change_edits_the_rows_and_the_end_removes_them() {
    let mut database = database();
    carry_out(&mut database, |view| ensure_port(view, &spec(shaped(HTB_2M))));
    let before = rows(&database).0.unwrap().uuid;
    let faster = shaped(Discipline::Htb { max_rate: 9_000_000, burst: 1000 });
    carry_out(&mut database, |view| Ok(set(view, "a_h", &faster)));
    let (qos, queue) = rows(&database);
    assert_eq!(qos.as_ref().map(|row| row.uuid), Some(before), "edited, not duplicated");
    assert_eq!(config(&qos.unwrap()), ["max-rate=9000000"]);
    assert_eq!(config(&queue.unwrap()), ["burst=1000", "max-rate=9000000"]);
    assert_eq!(counts(&database), (1, 1));
    carry_out(&mut database, |view| Ok(set(view, "a_h", &PortQos::default())));
    assert_eq!(counts(&database), (0, 0));
    assert!(rows(&database).0.is_none());
}

#[test]
fn a_port_takes_its_rows_along() {
    for discipline in [HTB_2M, Discipline::Netem { latency: 1000, jitter: 0, limit: 0, loss: 0.5 }] {
        let mut database = database();
        carry_out(&mut database, |view| ensure_port(view, &spec(shaped(discipline))));
        carry_out(&mut database, |view| Ok(remove_port(view, "a_h")));
        assert_eq!(counts(&database), (0, 0));
    }
}

#[test]
fn delays_and_rates_replace_each_other() {
    let mut database = database();
    let netem = Discipline::Netem { latency: 10_000, jitter: 500, limit: 100, loss: 0.5 };
    carry_out(&mut database, |view| ensure_port(view, &spec(shaped(netem))));
    let qos = rows(&database).0.unwrap();
    assert_eq!(qos.str("type"), Some("linux-netem"));
    assert_eq!(config(&qos), ["jitter=500", "latency=10000", "limit=100", "loss=0.5"]);
    assert_eq!(counts(&database), (1, 0));
    carry_out(&mut database, |view| Ok(set(view, "a_h", &shaped(HTB_2M))));
    assert_eq!(rows(&database).0.unwrap().str("type"), Some("linux-htb"));
    assert_eq!(counts(&database), (1, 1));
    let only_loss = Discipline::Netem { latency: 0, jitter: 0, limit: 0, loss: 2.0 };
    carry_out(&mut database, |view| Ok(set(view, "a_h", &shaped(only_loss))));
    assert_eq!(config(&rows(&database).0.unwrap()), ["loss=2"]);
    assert_eq!(counts(&database), (1, 0));
}

#[test]
fn rows_are_read_as_they_were_written() {
    let netem = Discipline::Netem { latency: 10_000, jitter: 500, limit: 100, loss: 0.5 };
    let policed = PortQos { policing_rate: 1000, policing_burst: 800, discipline: None };
    for wanted in [PortQos::default(), shaped(HTB_2M), shaped(netem), policed] {
        let mut database = database();
        assert_eq!(read(&view(&database), "a_h"), None);
        carry_out(&mut database, |view| ensure_port(view, &spec(wanted.clone())));
        assert_eq!(read(&view(&database), "a_h"), Some(wanted));
    }
    let mut database = database();
    carry_out(&mut database, |view| ensure_port(view, &spec(shaped(HTB_2M))));
    let queue = rows(&database).1.unwrap();
    let pairs: AtomMap = [(Atom::from("burst"), Atom::from("much"))].into_iter().collect();
    database.must(&[Operation::mutate("Queue").by_uuid(queue.uuid).set_map("other_config", pairs).build()]);
    assert_eq!(read(&view(&database), "a_h"), None);
}

/// Other values reach the kernel only if the switch has let go of the old ones.
#[test]
fn another_netem_comes_after_none() {
    let mut database = database();
    let netem = |latency| shaped(Discipline::Netem { latency, jitter: 0, limit: 0, loss: 0.0 });
    carry_out(&mut database, |view| ensure_port(view, &spec(netem(10_000))));
    let old = rows(&database).0.unwrap().uuid;
    assert_eq!(before(&view(&database), "a_h", &netem(10_000)), None, "the same");
    for at_once in [shaped(HTB_2M), PortQos::default()] {
        assert_eq!(before(&view(&database), "a_h", &at_once), None);
    }
    let policed = PortQos { policing_rate: 1000, policing_burst: 800, ..netem(20_000) };
    let first = before(&view(&database), "a_h", &policed).unwrap();
    assert_eq!(first, PortQos { discipline: None, ..policed.clone() });
    // A key that nobody reads keeps nothing in place.
    let pairs: AtomMap = [(Atom::from("x"), Atom::from("1"))].into_iter().collect();
    database.must(&[Operation::mutate("QoS").by_uuid(old).set_map("other_config", pairs).build()]);
    carry_out(&mut database, |view| Ok(set(view, "a_h", &first)));
    assert_eq!((rows(&database).0, counts(&database)), (None, (0, 0)), "a transaction of its own");
    assert_eq!(before(&view(&database), "a_h", &policed), None);
    carry_out(&mut database, |view| Ok(set(view, "a_h", &policed)));
    let new = rows(&database).0.unwrap();
    assert_ne!(new.uuid, old);
    assert_eq!(config(&new), ["latency=20000"]);
    // From and to a shaper of another type the switch does both itself.
    carry_out(&mut database, |view| Ok(set(view, "a_h", &shaped(HTB_2M))));
    assert_eq!(before(&view(&database), "a_h", &policed), None);
}

#[test]
fn a_queue_that_holds_more_than_ours_stays() {
    let mut database = database();
    carry_out(&mut database, |view| ensure_port(view, &spec(shaped(HTB_2M))));
    let queue = rows(&database).1.unwrap();
    let pairs: AtomMap = [(Atom::from("dscp"), Atom::from("8"))].into_iter().collect();
    database.must(&[Operation::mutate("Queue").by_uuid(queue.uuid).set_map("other_config", pairs).build()]);
    carry_out(&mut database, |view| Ok(set(view, "a_h", &PortQos::default())));
    let (qos, queue) = rows(&database);
    assert_eq!(config(&qos.unwrap()), Vec::<String>::new());
    assert_eq!(config(&queue.unwrap()), ["dscp=8"]);
}

#[test]
fn somebody_elses_qos_is_let_go_and_kept() {
    let mut database = database();
    carry_out(&mut database, |view| ensure_port(view, &spec(PortQos::default())));
    let (port, theirs) = (view(&database).port("a_h").unwrap().uuid, Uuid::new_v4());
    database.must(&[
        Operation::insert("QoS").uuid(theirs).column("type", "linux-htb").build(),
        Operation::update("Port").by_uuid(port).column("qos", Value::uuids([theirs])).build(),
    ]);
    carry_out(&mut database, |view| Ok(set(view, "a_h", &PortQos::default())));
    assert_eq!(rows(&database).0.unwrap().uuid, theirs, "nothing is wanted: theirs stays in use");
    carry_out(&mut database, |view| Ok(set(view, "a_h", &shaped(HTB_2M))));
    assert_ne!(rows(&database).0.unwrap().uuid, theirs);
    assert!(view(&database).qos(&theirs).is_some(), "it is not ours to delete");
}

#[test]
fn policing_is_set_and_taken_away() {
    let mut database = database();
    let policed = PortQos { policing_rate: 1000, policing_burst: 800, discipline: None };
    carry_out(&mut database, |view| ensure_port(view, &spec(policed.clone())));
    let column = |database: &Database, name: &str| {
        view(database).interface("a_h").unwrap().column(name).and_then(Value::as_i64)
    };
    assert_eq!(column(&database, "ingress_policing_rate"), Some(1000));
    // Another wish about the same port that says nothing of limits.
    let mut other = spec(PortQos::default());
    other.qos = None;
    carry_out(&mut database, |view| ensure_port(view, &other));
    assert_eq!(column(&database, "ingress_policing_burst"), Some(800));
    carry_out(&mut database, |view| Ok(set(view, "a_h", &PortQos::default())));
    assert_eq!(column(&database, "ingress_policing_rate"), Some(0));
}

#[test]
fn rows_of_dead_ports_are_swept_and_others_kept() {
    let mut database = database();
    carry_out(&mut database, |view| ensure_port(view, &spec(shaped(HTB_2M))));
    let marks = Value::string_map([("iface-id", "gone.web"), ("pod", "web/gone")]);
    let row = |table: &str, marks: Value| Operation::insert(table).column("external_ids", marks).build();
    database.must(&[
        row("QoS", marks.clone()),
        row("Queue", marks),
        row("QoS", Value::string_map([("owner", "x")])),
        row("Queue", Value::string_map([("owner", "x")])),
    ]);
    carry_out(&mut database, |view| Ok(sweep(view)));
    assert_eq!(counts(&database), (2, 2));
    assert!(rows(&database).0.is_some() && rows(&database).1.is_some());
}
