//! Measures the client against a real server with many ports:
//!
//! ```text
//! WEIR_OVS_ROOT=… cargo run --release -p ovsdb --example measure -- 30000 1000
//! ```
//!
//! The numbers are ports in the database and single updates. Prints times for filling the database, a fresh load, single updates in that
//! big a database (snapshots held by the consumer), and the memory per port.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::{Duration, Instant};

use ovsdb::testing::real::Server;
use ovsdb::{Event, EventStream, Operation, Options, Replica, Session, Uuid, Value};

const BATCH: usize = 100;

#[tokio::main]
async fn main() {
    let ports: usize = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(30_000);
    let server = Server::northbound().expect("real ovsdb-server");
    let mut options = Options::new(vec![server.endpoint()], "OVN_Northbound")
        .table("Logical_Switch", ["name", "ports", "other_config", "external_ids"])
        .table(
            "Logical_Switch_Port",
            ["name", "type", "addresses", "port_security", "options", "external_ids", "enabled"],
        );
    options.request_timeout = Duration::from_secs(300);
    options.max_queued_changes = usize::MAX;
    let switch = Uuid::new_v4();
    let (session, mut events) = Session::connect(options.clone());
    load(&mut events).await;
    session
        .transact(vec![Operation::insert("Logical_Switch").uuid(switch).column("name", "s").build()])
        .await
        .unwrap();

    let begin = Instant::now();
    let mut sent = 0;
    while sent < ports {
        let count = BATCH.min(ports - sent);
        session.submit(sent as u64, ports_of(switch, sent, count));
        sent += count;
    }
    let mut replica = await_ports(&mut events, ports).await;
    report("fill", begin.elapsed(), ports);

    apply(&replica, switch);
    let before = rss();
    let (begin, cpu_begin) = (Instant::now(), cpu());
    let (_fresh, mut fresh_events) = Session::connect(options);
    let fresh = load(&mut fresh_events).await;
    report("fresh load", begin.elapsed(), ports);
    println!("our own CPU time in that: {:.1} µs each", (cpu() - cpu_begin) * 1e6 / ports as f64);
    assert_eq!(fresh, replica);
    println!("memory of the second replica: {} bytes a port", (rss() - before) * 1024 / ports.max(1));
    drop((fresh, fresh_events, _fresh));
    // Its task frees the second replica; not to be counted below.
    tokio::time::sleep(Duration::from_secs(3)).await;

    let rounds = std::env::args().nth(2).and_then(|a| a.parse().ok()).unwrap_or(1000usize);
    let (begin, cpu_begin) = (Instant::now(), cpu());
    let mut kept = Vec::new();
    for i in 0..rounds {
        session.submit(i as u64, ports_of(switch, ports + i, 1));
        replica = await_ports(&mut events, ports + i + 1).await;
        kept.push(replica.clone());
    }
    report("one port at a time, round trip, snapshots kept", begin.elapsed(), rounds);
    println!("our own CPU time in that: {:.1} µs each", (cpu() - cpu_begin) * 1e6 / rounds as f64);
    drop(kept);
}

/// Applies updates to the replica without a server, each while the content
/// before it is still held.
fn apply(replica: &Replica, switch: Uuid) {
    let rounds = 2000;
    let mut interner = ovsdb::notation::Interner::default();
    let updates: Vec<String> = (0..rounds)
        .map(|i| {
            let uuid = Uuid::new_v4();
            format!(
                r#"{{"Logical_Switch":{{"{switch}":{{"modify":{{"ports":["uuid","{uuid}"]}}}}}},"Logical_Switch_Port":{{"{uuid}":{{"insert":{{"name":"new-{i}","addresses":"02:00:00:00:00:01 10.0.0.1"}}}}}}}}"#
            )
        })
        .collect();
    let mut newest = replica.clone();
    let mut times = Vec::new();
    for update in &updates {
        let before = newest.clone();
        let begin = Instant::now();
        newest.apply_updates(update, &mut interner).unwrap();
        times.push(begin.elapsed());
        drop(before);
    }
    times.sort();
    println!(
        "apply one port: p50 {:?}, p90 {:?}, p99 {:?}",
        times[rounds / 2],
        times[rounds * 9 / 10],
        times[rounds * 99 / 100]
    );
}

/// Inserts ports and refers to them by one mutation.
fn ports_of(switch: Uuid, first: usize, count: usize) -> Vec<Operation> {
    let uuids: Vec<Uuid> = (0..count).map(|_| Uuid::new_v4()).collect();
    let mut operations: Vec<Operation> =
        uuids.iter().zip(first..).map(|(uuid, i)| insert(*uuid, i)).collect();
    operations.push(
        Operation::mutate("Logical_Switch").by_uuid(switch).insert_set("ports", Value::uuids(uuids)).build(),
    );
    operations
}

fn insert(uuid: Uuid, i: usize) -> Operation {
    let (high, low) = (i / 256 % 256, i % 256);
    let address = format!("02:00:00:00:{high:02x}:{low:02x} 10.16.{high}.{low}");
    let external_ids = [
        ("ls", "ovn-default".to_owned()),
        ("pod", format!("namespace-{}/pod-{i}", i % 50)),
        ("vendor", "kube-ovn".to_owned()),
    ];
    Operation::insert("Logical_Switch_Port")
        .uuid(uuid)
        .column("name", format!("pod-{i}.namespace-{}", i % 50))
        .column("addresses", Value::strings([address.clone()]))
        .column("port_security", Value::strings([address]))
        .column("external_ids", Value::string_map(external_ids))
        .build()
}

async fn load(events: &mut EventStream) -> Replica {
    loop {
        if let Event::Replaced { replica, .. } = events.next().await.unwrap() {
            return replica;
        }
    }
}

async fn await_ports(events: &mut EventStream, count: usize) -> Replica {
    loop {
        match events.next().await.unwrap() {
            Event::Updated { replica, .. }
                if replica.table("Logical_Switch_Port").unwrap().len() >= count =>
            {
                return replica;
            }
            Event::Reply { result, .. } => drop(result.unwrap()),
            Event::Disconnected { reason } => panic!("{reason}"),
            _ => {}
        }
    }
}

fn report(what: &str, time: Duration, count: usize) {
    println!("{what}: {time:.3?}, {:.1} µs each", time.as_secs_f64() * 1e6 / count.max(1) as f64);
}

/// Resident memory in KiB.
fn rss() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// CPU time of this process in seconds.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap();
    let own: f64 = stat.split_whitespace().next().unwrap().parse().unwrap();
    // Every thread has its own line; the first is the main thread's.
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let all = tasks.flatten().filter_map(|t| std::fs::read_to_string(t.path().join("schedstat")).ok());
    all.filter_map(|s| s.split_whitespace().next()?.parse::<f64>().ok()).sum::<f64>().max(own) / 1e9
}
