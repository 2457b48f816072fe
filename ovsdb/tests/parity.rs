//! The in-process server against a real ovsdb-server: the same random requests to
//! both, then the same replies, the same updates and the same contents.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod wire;

use std::collections::BTreeMap;
use std::path::PathBuf;

use ovsdb::testing::real::{Cluster, Server};
use ovsdb::testing::{Database, MemoryServer, Model};
use ovsdb::{Endpoint, Schema};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value as Json, json};
use wire::requests::{DATABASE, Requests, schema};
use wire::{Client, Names, by_monitor, canonical};

/// The two servers.
struct Pair {
    real: Cluster,
    standalone: Option<Server>,
    ours: MemoryServer,
    _runtime: tokio::runtime::Runtime,
}

impl Pair {
    fn start(model: Model) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("schema");
        std::fs::write(&file, schema().to_string()).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let database = Database::new(Schema::parse(&schema()).unwrap());
        let ours = {
            let _inside = runtime.enter();
            MemoryServer::builder(database).model(model).start().unwrap()
        };
        let (real, standalone) = match model {
            Model::Clustered => (Cluster::start(&file, 1).unwrap(), None),
            Model::Standalone => (Cluster::start(&file, 0).unwrap(), Some(Server::start(&file).unwrap())),
        };
        Self { real, standalone, ours, _runtime: runtime }
    }

    fn paths(&self) -> [PathBuf; 2] {
        let real = self.standalone.as_ref().unwrap_or_else(|| self.real.member(0)).socket();
        match self.ours.endpoints().remove(0) {
            Endpoint::Unix(ours) => [real, ours],
            other => panic!("{other}"),
        }
    }

    /// A connection to each.
    fn connect(&self) -> Both {
        let [real, ours] = self.paths();
        Both { real: Client::connect(&real), ours: Client::connect(&ours) }
    }
}

/// A connection to each of the two.
struct Both {
    real: Client,
    ours: Client,
}

impl Both {
    /// The same request to both; their answers, ours in the other's terms.
    fn call(&mut self, names: &Names, method: &str, params: &Json) -> [(Vec<Json>, Option<Json>); 2] {
        let real = self.real.call(method, params);
        let ours = self.ours.call(method, &names.to_ours(params));
        [real, (ours.0.iter().map(|n| names.to_theirs(n)).collect(), ours.1.map(|r| names.to_theirs(&r)))]
    }

    /// The same request; both must answer the same.
    fn agree(&mut self, names: &Names, method: &str, params: &Json) -> Option<Json> {
        let [real, ours] = self.call(names, method, params);
        let context = format!("{method} {params}\nreal {real:?}\nours {ours:?}");
        assert_eq!(real.1.as_ref().map(canonical), ours.1.as_ref().map(canonical), "{context}");
        assert_eq!(by_monitor(&real.0), by_monitor(&ours.0), "{context}");
        real.1
    }
}

const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);
const TABLES: [&str; 4] = ["Root", "Kid", "Anchor", "Solo"];

/// Every column of every table, for a monitor.
fn everything() -> Json {
    let columns = |table: &Json| table["columns"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let tables = schema()["tables"].as_object().unwrap().clone();
    Json::Object(
        tables.iter().map(|(name, table)| (name.clone(), json!([{"columns": columns(table)}]))).collect(),
    )
}

fn dump() -> Json {
    let selects = TABLES.map(|table| json!({"op": "select", "table": table, "where": []}));
    Json::Array([json!(DATABASE)].into_iter().chain(selects).collect())
}

/// The same random transactions on both, followed by every kind of monitor.
fn transactions(model: Model, seed: u64, count: usize) -> BTreeMap<String, usize> {
    let pair = Pair::start(model);
    let (mut writer, mut watcher) = (pair.connect(), pair.connect());
    let (mut requests, mut names) = (Requests::new(seed), Names::default());
    let mut outcomes: BTreeMap<String, usize> = BTreeMap::new();
    let nothing = "00000000-0000-0000-0000-000000000000";
    watcher.agree(&names, "monitor", &json!([DATABASE, "m1", everything()]));
    let some = json!({"Root": [{"columns": ["name", "i", "ss", "m", "weak"], "where": [["i", ">", 0]]}]});
    watcher.agree(&names, "monitor_cond", &json!([DATABASE, "m2", some]));
    let [real, ours] =
        watcher.call(&names, "monitor_cond_since", &json!([DATABASE, "m3", everything(), nothing]));
    let mut last = [real.1.unwrap()[1].clone(), ours.1.unwrap()[1].clone()];
    for round in 0..count {
        let operations = requests.transaction();
        let params: Json = [json!(DATABASE)].into_iter().chain(operations).collect();
        let context = || format!("{model:?} seed {seed} round {round}: {params}");
        let real = writer.real.call("transact", &params).1.unwrap_or_else(|| panic!("crash: {}", context()));
        let ours = writer.ours.call("transact", &names.to_ours(&params)).1.unwrap();
        for (theirs, own) in real.as_array().into_iter().flatten().zip(ours.as_array().into_iter().flatten())
        {
            if let (Some(theirs), Some(own)) = (theirs["uuid"][1].as_str(), own["uuid"][1].as_str()) {
                names.same(theirs, own);
                // Now and then later requests are about rows whose UUID a server chose.
                if requests.pool.len() < 30 {
                    requests.pool.push(theirs.to_owned());
                }
            }
        }
        let ours = names.to_theirs(&ours);
        assert_eq!(canonical(&real), canonical(&ours), "{}\nreal {real}\nours {ours}", context());
        let error = real.as_array().unwrap().iter().find_map(|r| r["error"].as_str());
        *outcomes.entry(error.unwrap_or("committed").to_owned()).or_default() += 1;
        // Both watchers saw the same.
        let seen = [watcher.real.sync(), watcher.ours.sync().iter().map(|n| names.to_theirs(n)).collect()];
        assert_eq!(by_monitor(&seen[0]), by_monitor(&seen[1]), "{}", context());
        for (last, seen) in last.iter_mut().zip(&seen) {
            let newest = seen.iter().rfind(|n| n["method"] == "update3").map(|n| n["params"][1].clone());
            *last = newest.unwrap_or_else(|| last.clone());
        }
        let contents = [
            writer.real.call("transact", &dump()).1.unwrap(),
            names.to_theirs(&writer.ours.call("transact", &dump()).1.unwrap()),
        ];
        assert_eq!(canonical(&contents[0]), canonical(&contents[1]), "{}", context());
        if round % 10 == 9 {
            let change = json!(["m2", "m2", {"Root": [{"where": requests.good_conditions()}]}]);
            watcher.agree(&names, "monitor_cond_change", &change);
        }
        if round % 25 == 24 {
            resume(&pair, &names, &mut last, &mut writer, &mut requests);
            watcher.real.sync();
            watcher.ours.sync();
        }
    }
    outcomes
}

/// Things happen while nobody looks; who comes back with the last id it knows gets
/// the same from both.
fn resume(pair: &Pair, names: &Names, last: &mut [Json; 2], writer: &mut Both, requests: &mut Requests) {
    for _ in 0..3 {
        // Only such as need no new names.
        let mut operations = requests.transaction();
        operations.retain(|o| o["op"] != "insert");
        let params: Json = [json!(DATABASE)].into_iter().chain(operations).collect();
        writer.agree(names, "transact", &params);
    }
    let mut back = pair.connect();
    let params = |last: &Json| json!([DATABASE, "back", everything(), last]);
    let real = back.real.call("monitor_cond_since", &params(&last[0])).1.unwrap();
    let ours = back.ours.call("monitor_cond_since", &params(&last[1])).1.unwrap();
    *last = [real[1].clone(), ours[1].clone()];
    let content = |json: &Json| canonical(&json!([json[0], json[2]]));
    assert_eq!(content(&real), content(&names.to_theirs(&ours)), "resume");
}

fn rounds() -> (u64, usize) {
    let from_env = |name: &str| std::env::var(name).ok().and_then(|s| s.parse().ok());
    (from_env("WEIR_SEEDS").unwrap_or(4), from_env("WEIR_ROUNDS").unwrap_or(300) as usize)
}

fn every_seed(model: Model, seeds: std::ops::RangeInclusive<u64>, count: usize) {
    let mut all: BTreeMap<String, usize> = BTreeMap::new();
    for seed in seeds {
        for (outcome, count) in transactions(model, seed, count) {
            *all.entry(outcome).or_default() += count;
        }
    }
    println!("{model:?}: {all:?}");
    for outcome in
        ["committed", "constraint violation", "referential integrity violation", "syntax error", "timed out"]
    {
        assert!(all.contains_key(outcome), "no {outcome} among {all:?}");
    }
}

#[test]
fn random_requests_have_the_same_effect_as_on_a_standalone_server() {
    every_seed(Model::Standalone, 1..=2, 300);
}

#[test]
fn random_requests_have_the_same_effect_as_on_a_clustered_server() {
    every_seed(Model::Clustered, 3..=4, 150);
}

#[test]
#[ignore = "long: make soak"]
fn soak_random_requests() {
    let (seeds, count) = rounds();
    every_seed(Model::Standalone, 100..=100 + seeds, count);
    every_seed(Model::Clustered, 10_100..=10_100 + seeds / 4, count);
}

/// Requests beside transactions: the same result, or an error of the same name.
#[test]
fn single_requests_are_answered_alike() {
    let pair = Pair::start(Model::Standalone);
    let names = Names::default();
    let mut both = pair.connect();
    let root = |request: Json| json!({"Root": request});
    let name = json!({"columns": ["name"]});
    let requests = [
        ("nonsense", json!([])),
        ("list_dbs", json!([])),
        ("echo", json!([1, {"a": 2}])),
        ("get_schema", json!(["Nowhere"])),
        ("get_schema", json!([])),
        ("set_db_change_aware", json!([3])),
        ("lock", json!(["l"])),
        ("lock", json!(["l"])),
        ("lock", json!([])),
        ("lock", json!(["no id"])),
        ("lock", json!(["9"])),
        ("lock", json!([5])),
        ("unlock", json!(["l"])),
        ("unlock", json!(["l"])),
        ("steal", json!(["l"])),
        ("steal", json!(["l"])),
        ("transact", json!([])),
        ("transact", json!(["Nowhere"])),
        ("transact", json!([DATABASE])),
        ("transact", json!([1])),
        ("transact", json!([DATABASE, 1])),
        ("transact", json!([DATABASE, {}])),
        ("transact", json!([DATABASE, {"op": "nonsense"}])),
        ("transact", json!([DATABASE, {"op": "assert", "lock": "l"}])),
        ("transact", json!([DATABASE, {"op": "assert", "lock": "k"}])),
        ("transact", json!([DATABASE, {"op": "commit", "durable": true}])),
        ("transact", json!([DATABASE, {"op": "commit"}])),
        ("transact", json!([DATABASE, {"op": "comment", "comment": "x"}, {"op": "abort"}, {"op": "abort"}])),
        (
            "transact",
            json!(["_Server", {"op": "select", "table": "Database", "where": [], "columns": ["name", "model", "connected", "leader", "index", "cid"]}]),
        ),
        ("transact", json!(["_Server", {"op": "delete", "table": "Database", "where": []}])),
        ("monitor", json!([DATABASE, 1, {"Nowhere": {}}])),
        ("monitor", json!([DATABASE, 1, root(name.clone())])),
        ("monitor", json!([DATABASE, 1, root(name.clone())])),
        ("monitor", json!([DATABASE, 2, root(json!([]))])),
        ("monitor", json!([DATABASE, 3, {}])),
        ("monitor_cancel", json!([1])),
        ("monitor_cancel", json!([1])),
        ("monitor_cancel", json!([])),
        ("monitor_cond", json!([DATABASE, 4, root(json!([{"where": [["name", "=="]]}]))])),
        ("monitor_cond", json!([DATABASE, 4, root(json!([{"columns": ["nothing"]}]))])),
        ("monitor_cond", json!([DATABASE, 4, root(json!([{"columns": ["name"], "surplus": 1}]))])),
        ("monitor_cond", json!([DATABASE, 4, root(json!([{"columns": ["name", "name"]}]))])),
        ("monitor_cond", json!([DATABASE, 4, root(json!([{"columns": ["name"]}, {"columns": ["name"]}]))])),
        (
            "monitor_cond",
            json!([
                DATABASE,
                4,
                root(json!([{"columns": ["name"], "select": {"initial": false, "x": true}}]))
            ]),
        ),
        ("monitor_cond", json!([DATABASE])),
        ("monitor_cond_since", json!([DATABASE, 4, root(name.clone())])),
        ("monitor_cond_since", json!([DATABASE, 4, root(name.clone()), "no uuid"])),
        ("monitor_cond_since", json!([DATABASE, 4, root(name), "00000000-0000-0000-0000-000000000000"])),
        ("monitor_cond_change", json!([4, 5, root(json!([{"where": [false]}]))])),
        ("monitor_cond_change", json!([4, 5, root(json!([{"where": [false]}]))])),
        ("monitor_cond_change", json!([5, 5, {"Kid": [{"where": [false]}]}])),
        ("monitor_cond_change", json!([5, 5, root(json!({"where": [true]}))])),
        ("monitor_cond_change", json!([5])),
        ("convert", json!([DATABASE, {}])),
        ("convert", json!(["Nowhere", schema()])),
        ("convert", json!([])),
    ];
    for (method, params) in requests {
        both.agree(&names, method, &params);
    }
    let mut other = schema();
    other["name"] = json!("Other");
    both.agree(&names, "convert", &json!([DATABASE, other]));
    // The same schema, in whatever order.
    let schemas =
        both.call(&names, "get_schema", &json!([DATABASE])).map(|(_, s)| Schema::parse(&s.unwrap()).unwrap());
    let [real, ours] = schemas;
    assert_eq!(real.tables, ours.tables);
}

/// Locks: random requests of three clients, who also come and go.
#[test]
fn locks_go_round_alike() {
    let pair = Pair::start(Model::Standalone);
    let names = Names::default();
    let mut clients: Vec<Both> = (0..3).map(|_| pair.connect()).collect();
    let mut rng = StdRng::seed_from_u64(7);
    let mut stolen = 0;
    let mut history = Vec::new();
    for round in 0..400 {
        let who = rng.random_range(0..3);
        let lock = ["k", "l"][rng.random_range(0..2)];
        match rng.random_range(0..12) {
            0 => {
                history.push(format!("{who} reconnects"));
                clients[who] = pair.connect();
                // Whatever the next in line gets by it, it has before anything else happens.
                clients[who].agree(&names, "echo", &json!([]));
            }
            n => {
                let method = ["lock", "lock", "unlock", "unlock", "unlock", "steal"][n % 6];
                history.push(format!("{who} {method} {lock}"));
                clients[who].agree(&names, method, &json!([lock]));
                let assert = json!([DATABASE, {"op": "assert", "lock": lock}]);
                clients[who].agree(&names, "transact", &assert);
            }
        }
        for client in &mut clients {
            // Each learns of a closed connection in its own time.
            let begin = std::time::Instant::now();
            let (mut real, mut ours) = (client.real.sync(), client.ours.sync());
            while by_monitor(&real) != by_monitor(&ours) {
                assert!(
                    begin.elapsed() < PATIENCE,
                    "round {round} {history:?}\nreal {real:?}\nours {ours:?}"
                );
                real.extend(client.real.sync());
                ours.extend(client.ours.sync());
            }
            stolen += real.iter().filter(|n| n["method"] == "stolen").count();
        }
    }
    assert!(stolen > 0);
}

/// A transaction that waits goes on when what it waits for comes true, fails when its
/// time is over, and is gone without an answer when it is cancelled.
#[test]
fn waits_block_alike() {
    let pair = Pair::start(Model::Standalone);
    let names = Names::default();
    let (mut waiter, mut writer) = (pair.connect(), pair.connect());
    let wait = |n: i64, timeout: Option<u64>| {
        let mut wait = json!({"op": "wait", "table": "Solo", "where": [], "columns": ["n"], "until": "==", "rows": [{"n": n}]});
        if let Some(timeout) = timeout {
            wait["timeout"] = timeout.into();
        }
        json!([DATABASE, wait, {"op": "delete", "table": "Solo", "where": []}])
    };
    let insert = |n: i64| json!([DATABASE, {"op": "insert", "table": "Solo", "uuid": uuid::Uuid::from_u128(n as u128).to_string(), "row": {"n": n}}]);
    let ids = [waiter.real.send("transact", &wait(1, None)), waiter.ours.send("transact", &wait(1, None))];
    assert_eq!([waiter.real.sync().len(), waiter.ours.sync().len()], [0, 0]);
    writer.agree(&names, "transact", &insert(1));
    let replies = [waiter.real.receive().unwrap(), waiter.ours.receive().unwrap()];
    assert_eq!([&replies[0]["id"], &replies[1]["id"]], [&json!(ids[0]), &json!(ids[1])]);
    assert_eq!(replies[0]["result"], json!([{}, {"count": 1}]));
    assert_eq!(replies[0]["result"], replies[1]["result"]);
    // In vain.
    waiter.agree(&names, "transact", &wait(2, Some(30)));
    // Given up.
    let ids = [waiter.real.send("transact", &wait(3, None)), waiter.ours.send("transact", &wait(3, None))];
    waiter.real.notify(&json!({"id": null, "method": "cancel", "params": [ids[0]]}));
    waiter.ours.notify(&json!({"id": null, "method": "cancel", "params": [ids[1]]}));
    // A notification has no reply: something that has one tells that it was read.
    let before = (waiter.real.sync(), waiter.ours.sync());
    assert!(before.0.is_empty() && before.1.is_empty(), "{before:?}");
    writer.agree(&names, "transact", &insert(3));
    let after = (waiter.real.sync(), waiter.ours.sync());
    assert!(after.0.is_empty() && after.1.is_empty(), "{after:?}");
    let left = json!([DATABASE, {"op": "select", "table": "Solo", "where": [], "columns": ["n"]}]);
    assert_eq!(writer.agree(&names, "transact", &left).unwrap()[0]["rows"], json!([{"n": 3}]));
}
