//! Databases to measure on, and how results are printed.

use std::time::Duration;

use ovsdb::testing::real::Server;
use ovsdb::{Endpoint, Event, EventStream, Operation, Options, Replica, Session, Uuid, Value};

/// A real server with one switch and so many ports.
pub struct Filled {
    pub server: Server,
    pub ports: usize,
    pub switch: Uuid,
}

pub const SWITCH: &str = "s";

impl Filled {
    pub async fn standalone(ports: usize) -> Self {
        Self::fill(Server::northbound().unwrap(), ports).await
    }
    pub async fn clustered(ports: usize) -> Self {
        Self::fill(Server::clustered_northbound().unwrap(), ports).await
    }
    async fn fill(server: Server, ports: usize) -> Self {
        let filled = Self { server, ports, switch: Uuid::new_v4() };
        let (session, _events) = Session::connect(Options {
            request_timeout: Duration::from_secs(300),
            ..Options::new(vec![filled.server.endpoint()], "OVN_Northbound")
        });
        let switch = Operation::insert("Logical_Switch").uuid(filled.switch).column("name", SWITCH).build();
        session.transact(vec![switch, Operation::insert("NB_Global").build()]).await.unwrap();
        for first in (0..ports).step_by(500) {
            session.transact(filled.ports_of(first, 500.min(ports - first))).await.unwrap();
        }
        filled
    }

    /// Inserts ports and refers to them by one mutation.
    pub fn ports_of(&self, first: usize, count: usize) -> Vec<Operation> {
        let uuids: Vec<Uuid> = (0..count).map(|_| Uuid::new_v4()).collect();
        let mut operations: Vec<Operation> = uuids.iter().zip(first..).map(|(u, i)| insert(*u, i)).collect();
        let refer = Operation::mutate("Logical_Switch").by_uuid(self.switch);
        operations.push(refer.insert_set("ports", Value::uuids(uuids)).build());
        operations
    }

    /// What each client follows.
    pub fn options(&self) -> Options {
        follow(vec![self.server.endpoint()])
    }
}

/// What each client follows.
pub fn follow(endpoints: Vec<Endpoint>) -> Options {
    let options = Options::new(endpoints, "OVN_Northbound")
        .table("NB_Global", ["nb_cfg"])
        .table("Logical_Switch", ["name", "ports", "other_config", "external_ids"])
        .table(
            "Logical_Switch_Port",
            ["name", "type", "addresses", "port_security", "options", "external_ids"],
        );
    Options { request_timeout: Duration::from_secs(300), max_queued_changes: usize::MAX, ..options }
}

fn insert(uuid: Uuid, i: usize) -> Operation {
    let (high, low) = (i / 256 % 256, i % 256);
    let address = format!("02:00:00:{:02x}:{high:02x}:{low:02x} 10.{}.{high}.{low}", i >> 16, 16 + (i >> 16));
    let ids = [
        ("ls", SWITCH.to_owned()),
        ("pod", format!("namespace-{}/pod-{i}", i % 50)),
        ("vendor", "kube-ovn".to_owned()),
    ];
    Operation::insert("Logical_Switch_Port")
        .uuid(uuid)
        .column("name", format!("pod-{i}.namespace-{}", i % 50))
        .column("addresses", Value::strings([address.clone()]))
        .column("port_security", Value::strings([address]))
        .column("external_ids", Value::string_map(ids))
        .build()
}

/// Waits for content.
pub async fn loaded(events: &mut EventStream) -> Replica {
    loop {
        if let Event::Replaced { replica, .. } = events.next().await.unwrap() {
            return replica;
        }
    }
}

/// A value of `/proc/PID/status` in KiB; 0 once the process is gone.
pub fn status_kib(pid: u32, key: &str) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with(key));
    line.and_then(|l| l.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}

pub fn machine() {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|l| l.strip_prefix("model name"))
        .unwrap_or("")
        .trim_start_matches([' ', '\t', ':']);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    println!("{cores} cores of {model}; load when it began {load}");
}

pub fn row(name: &str, cells: [String; 4]) {
    println!("| {name} | {} |", cells.join(" | "));
}

pub fn millis(time: Duration) -> String {
    match time {
        Duration::ZERO => "–".into(),
        time => format!("{:.2} ms", time.as_secs_f64() * 1e3),
    }
}

pub fn seconds(time: Duration) -> String {
    match time {
        Duration::ZERO => "–".into(),
        time => format!("{:.2} s", time.as_secs_f64()),
    }
}
