//! What a pod costs, at several sizes. Measures, so not part of the usual run:
//! `WEIR_SCALE_PODS=150000 cargo test --release -p controller scale -- --ignored --nocapture`

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ovsdb::testing::{Database, northbound};

use super::Api;
use super::api::{Change, EPOCH_S, decode};
use super::bench::{config, pod};
use crate::core::Core;
use crate::facts::{Kind, ObjectRef};
use crate::io::{Input, Output};
use crate::world::NEEDED;

struct Line {
    core: Core,
    inputs: VecDeque<Input>,
    spent: Duration,
    longest: Duration,
    transactions: usize,
    now_ms: u64,
    /// Time and number by kind of input.
    by_input: BTreeMap<&'static str, (Duration, u32)>,
}

fn kind_of(input: &Input) -> &'static str {
    match input {
        Input::Applied(object) => match object.kind() {
            Kind::Pod => "applied pod",
            Kind::Ip => "applied ip",
            Kind::Subnet => "applied subnet",
            Kind::Node => "applied node",
            _ => "applied other",
        },
        Input::Deleted(_) => "deleted",
        Input::Listed(..) => "listed",
        Input::NbLoaded { .. } => "loaded",
        Input::NbChanged { .. } => "changed",
        Input::NbReply { .. } => "reply",
        Input::KubeReply { .. } => "kube reply",
        _ => "other",
    }
}

impl Line {
    fn new() -> Self {
        Self {
            core: Core::new(config(), crate::compile::compile),
            inputs: VecDeque::new(),
            spent: Duration::ZERO,
            longest: Duration::ZERO,
            transactions: 0,
            now_ms: 0,
            by_input: BTreeMap::new(),
        }
    }

    fn load(&mut self, api: &Api, db: &Database) {
        for kind in NEEDED {
            self.inputs.push_back(Input::Listed(kind, api.list(kind)));
        }
        let (replica, schema) = (db.replica(), db.schema().clone());
        let changes = replica.changes_since(&Database::new(northbound()).replica());
        self.inputs.push_back(Input::NbLoaded { replica, changes, schema });
    }

    fn run(&mut self, api: &mut Api, db: &mut Database) {
        let mut wake = None;
        loop {
            let input = match (self.inputs.pop_front(), wake.take()) {
                (Some(input), _) => input,
                (None, Some(at)) if !self.core.quiet() => {
                    self.now_ms = self.now_ms.max(at);
                    Input::Tick
                }
                _ => return,
            };
            let kind = kind_of(&input);
            let start = cpu();
            let outputs = self.core.handle(self.now_ms, EPOCH_S, input);
            let took = cpu().saturating_sub(start);
            self.spent += took;
            self.longest = self.longest.max(took);
            let (sum, count) = self.by_input.entry(kind).or_default();
            *sum += took;
            *count += 1;
            for output in outputs {
                match output {
                    Output::Transact { tag, operations } => {
                        self.transactions += 1;
                        let (result, changes) = db.execute(&operations);
                        if !changes.is_empty() {
                            self.inputs.push_back(Input::NbChanged { replica: db.replica(), changes });
                        }
                        self.inputs.push_back(Input::NbReply { tag, result });
                    }
                    Output::Kube { id, write } => {
                        let result = api.write(&write);
                        for (kind, log) in std::mem::take(&mut api.log) {
                            self.inputs.extend(log.into_iter().map(|change| match change {
                                Change::Applied(text) => Input::Applied(decode(kind, &text)),
                                Change::Deleted(object) => Input::Deleted(object),
                            }));
                        }
                        self.inputs.push_back(Input::KubeReply { id, result });
                    }
                    Output::WakeAt(at) => wake = Some(at),
                    Output::Event(_) | Output::Fenced => {}
                }
            }
        }
    }
}

/// CPU time of this thread, which a busy machine doesn't change.
fn cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

fn create_pod(api: &mut Api, i: usize, nodes: usize) {
    let body = serde_json::json!({ "spec": { "nodeName": format!("n-{}", i % nodes) } });
    api.create(&pod("web", &format!("p-{i}")), body).unwrap();
}

#[test]
#[ignore = "measures; run it in release mode"]
fn a_pod_costs_the_same_at_every_size() {
    let pods: usize = std::env::var("WEIR_SCALE_PODS").map_or(5000, |n| n.parse().unwrap());
    let nodes = (pods / 75).max(2);
    let (mut api, mut db) = (Api::new(), Database::new(northbound()));
    api.create(&ObjectRef::cluster(Kind::Namespace, "web"), serde_json::json!({})).unwrap();
    for n in 0..nodes {
        let body = serde_json::json!({ "status": { "addresses": [
            { "type": "InternalIP", "address": format!("172.{}.{}.{}", 16 + n / 65025, n / 255 % 255, n % 255) }] } });
        api.create(&ObjectRef::cluster(Kind::Node, format!("n-{n}")), body).unwrap();
    }
    let mut line = Line::new();
    line.core = Core::new(
        crate::io::Config { default_cidr: "10.0.0.0/12".into(), ..config() },
        crate::compile::compile,
    );
    api.log.clear();
    line.load(&api, &db);
    line.inputs.push_back(Input::Elected { epoch: "e".into() });
    line.run(&mut api, &mut db);
    println!("{nodes} nodes: {:?}, longest step {:?}", line.spent, line.longest);
    for i in 0..pods {
        create_pod(&mut api, i, nodes);
    }
    for log in std::mem::take(&mut api.log).into_values() {
        line.inputs.extend(log.into_iter().map(|change| match change {
            Change::Applied(text) => Input::Applied(decode(Kind::Pod, &text)),
            Change::Deleted(object) => Input::Deleted(object),
        }));
    }
    (line.spent, line.longest, line.transactions) = (Duration::ZERO, Duration::ZERO, 0);
    line.run(&mut api, &mut db);
    let each = line.spent / u32::try_from(pods).unwrap();
    println!(
        "{pods} pods at once: {:?}, {each:?} a pod, longest step {:?}, {} transactions",
        line.spent, line.longest, line.transactions
    );
    println!("{:#?}", std::mem::take(&mut line.by_input));
    (line.spent, line.longest, line.transactions) = (Duration::ZERO, Duration::ZERO, 0);
    for i in pods..pods + 100 {
        create_pod(&mut api, i, nodes);
        for change in api.log.remove(&Kind::Pod).unwrap() {
            if let Change::Applied(text) = change {
                line.inputs.push_back(Input::Applied(decode(Kind::Pod, &text)));
            }
        }
        line.run(&mut api, &mut db);
    }
    println!("100 pods one by one: {:?} a pod, longest step {:?}", line.spent / 100, line.longest);
    println!("{:#?}", line.by_input);
    println!("{}", serde_json::to_string(&line.core.counters()).unwrap());
    // The first one stays, so that the second one's memory is all new.
    let first = line;

    api.log.clear();
    api.writes.clear();
    let before = resident();
    let mut line = Line::new();
    line.core = Core::new(
        crate::io::Config { default_cidr: "10.0.0.0/12".into(), ..config() },
        crate::compile::compile,
    );
    line.load(&api, &db);
    line.inputs.push_back(Input::Elected { epoch: "f".into() });
    line.run(&mut api, &mut db);
    println!(
        "restart: {:?}, longest step {:?}, {} transactions, {} writes, {} bytes a pod",
        line.spent,
        line.longest,
        line.transactions,
        api.writes.len(),
        resident().saturating_sub(before) / pods
    );
    assert_eq!((line.transactions, api.writes.len()), (1, 0));
    drop(first);
}
