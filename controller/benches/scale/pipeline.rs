//! The pipeline alone, between an API server and a database in memory: processor
//! time and allocations of each step, without anybody else's.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use controller::core::Core;
use controller::facts::{Kind, ObjectRef};
use controller::io::{Config, Input, KubeError, KubeWrite, Output};
use controller::objects::Object;
use controller::watch::decode::Decoder;
use controller::world::NEEDED;
use ovsdb::testing::{Database, northbound};
use serde_json::{Value, json};
use stats_alloc::Region;

use crate::ALLOCATOR;
use crate::api::merge;
use crate::cluster::{self, Size};
use crate::cpu;

fn config() -> Config {
    let flags = controller::flags::Flags::parse_from([
        "controller",
        "--default-cidr=10.0.0.0/12",
        "--service-cluster-ip-range=10.240.0.0/16",
    ])
    .unwrap();
    let environment = |name: &str| {
        let values = [
            ("POD_NAME", "a"),
            ("POD_NAMESPACE", "kube-system"),
            ("OVN_DB_IPS", "127.0.0.1"),
            ("POD_IPS", "127.0.0.1"),
        ];
        values.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    };
    controller::flags::settings::Settings::new(&flags, environment).unwrap().core
}

/// Objects as text, as an API server keeps them.
#[derive(Default)]
struct Api {
    objects: BTreeMap<ObjectRef, String>,
    version: u64,
    /// One a kind for its whole life, as watches have them: it shares what is equal.
    decoders: BTreeMap<Kind, Decoder>,
    /// By what it is and what it is about.
    writes: BTreeMap<String, u64>,
}

impl Api {
    fn put(&mut self, object: &ObjectRef, mut body: Value) -> Object {
        self.version += 1;
        body["metadata"]["name"] = (*object.name).into();
        if !object.namespace.is_empty() {
            body["metadata"]["namespace"] = (*object.namespace).into();
        }
        if body["metadata"]["uid"].is_null() {
            body["metadata"]["uid"] = format!("uid-{}", self.version).into();
        }
        body["metadata"]["resourceVersion"] = self.version.to_string().into();
        let text = body.to_string();
        let decoder = self.decoders.entry(object.kind).or_insert_with(|| Decoder::new(object.kind));
        let decoded = decoder.object(&text).unwrap();
        self.objects.insert(object.clone(), text);
        decoded
    }

    fn write(&mut self, write: KubeWrite) -> (Result<(), KubeError>, Option<Input>) {
        let (what, object) = match &write {
            KubeWrite::Create { object, .. } => ("create", object),
            KubeWrite::Patch { object, .. } => ("patch", object),
            KubeWrite::Delete { object, .. } => ("delete", object),
        };
        *self.writes.entry(format!("{what} {:?}", object.kind)).or_default() += 1;
        match write {
            KubeWrite::Create { object, body } => {
                if self.objects.contains_key(&object) {
                    return (Err(KubeError::Exists), None);
                }
                let object = self.put(&object, body);
                (Ok(()), Some(Input::Applied(object)))
            }
            KubeWrite::Patch { object, mut patch, .. } => {
                let Some(text) = self.objects.get(&object) else { return (Err(KubeError::Gone), None) };
                let mut value: Value = serde_json::from_str(text).unwrap();
                if let Some(metadata) = patch.get_mut("metadata").and_then(Value::as_object_mut) {
                    metadata.remove("resourceVersion");
                }
                merge(&mut value, &patch);
                let leaving = !value["metadata"]["deletionTimestamp"].is_null()
                    && value["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty);
                if leaving {
                    self.objects.remove(&object);
                    return (Ok(()), Some(Input::Deleted(object)));
                }
                let object = self.put(&object, value);
                (Ok(()), Some(Input::Applied(object)))
            }
            KubeWrite::Delete { object, .. } => {
                let Some(text) = self.objects.get(&object) else { return (Err(KubeError::Gone), None) };
                let mut value: Value = serde_json::from_str(text).unwrap();
                if value["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty()) {
                    value["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
                    let object = self.put(&object, value);
                    return (Ok(()), Some(Input::Applied(object)));
                }
                self.objects.remove(&object);
                (Ok(()), Some(Input::Deleted(object)))
            }
        }
    }

    fn list(&self, kind: Kind) -> Vec<Object> {
        let mut decoder = Decoder::new(kind);
        let of_kind = self.objects.iter().filter(|(object, _)| object.kind == kind);
        of_kind.map(|(_, text)| decoder.object(text).unwrap()).collect()
    }
}

/// One core and what it costs.
struct Line {
    core: Core,
    inputs: VecDeque<Input>,
    now_ms: u64,
    spent: Duration,
    longest: Duration,
    allocations: usize,
    bytes: usize,
}

impl Line {
    fn new() -> Self {
        Self {
            core: Core::new(config(), controller::compile::compile),
            inputs: VecDeque::new(),
            now_ms: 0,
            spent: Duration::ZERO,
            longest: Duration::ZERO,
            allocations: 0,
            bytes: 0,
        }
    }

    fn load(&mut self, api: &Api, db: &Database, epoch: &str) {
        for kind in NEEDED {
            self.inputs.push_back(Input::Listed(kind, api.list(kind)));
        }
        let (replica, schema) = (db.replica(), db.schema().clone());
        let changes = replica.changes_since(&Database::new(northbound()).replica());
        self.inputs.push_back(Input::NbLoaded { replica, changes, schema });
        self.inputs.push_back(Input::Elected { epoch: epoch.into() });
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
            let (start, region) = (cpu::spent(), Region::new(ALLOCATOR));
            let outputs = self.core.handle(self.now_ms, 1_800_000_000, input);
            let (took, change) = (cpu::spent() - start, region.change());
            self.spent += took;
            self.longest = self.longest.max(took);
            self.allocations += change.allocations + change.reallocations;
            self.bytes += change.bytes_allocated;
            for output in outputs {
                match output {
                    Output::Transact { tag, operations } => {
                        let (result, changes) = db.execute(&operations);
                        if !changes.is_empty() {
                            self.inputs.push_back(Input::NbChanged { replica: db.replica(), changes });
                        }
                        self.inputs.push_back(Input::NbReply { tag, result });
                    }
                    Output::Kube { id, write } => {
                        let (result, seen) = api.write(write);
                        self.inputs.extend(seen);
                        self.inputs.push_back(Input::KubeReply { id, result });
                    }
                    Output::WakeAt(at) => wake = Some(at),
                    // Its watches miss nothing.
                    Output::Refresh(kind, number) => self.inputs.push_back(Input::Fresh(kind, number)),
                    Output::Event(_) | Output::Fenced => {}
                }
            }
        }
    }

    /// Prints a step and starts the next one.
    fn report(&mut self, what: &str, pods: usize, before: &controller::core::Counters) {
        let now = self.core.counters();
        println!(
            "{what:<34} {:>9.3} CPU-s {:>9.1} us a pod, longest input {:>7.3} s, {:>8.1} allocations a pod, {:>7.0} B a pod, \
             {:>8} units, {:>8} rows, {:>6} txns",
            self.spent.as_secs_f64(),
            self.spent.as_secs_f64() * 1e6 / pods as f64,
            self.longest.as_secs_f64(),
            self.allocations as f64 / pods as f64,
            self.bytes as f64 / pods as f64,
            now.compiled - before.compiled,
            now.commit.operations - before.commit.operations,
            now.commit.transactions - before.commit.transactions,
        );
        (self.spent, self.longest, self.allocations, self.bytes) = (Duration::ZERO, Duration::ZERO, 0, 0);
    }
}

fn add(line: &mut Line, api: &mut Api, object: ObjectRef, body: Value) {
    line.inputs.push_back(Input::Applied(api.put(&object, body)));
}

fn pod(index: usize, size: Size) -> (ObjectRef, Value) {
    let namespace = cluster::namespace(index % size.subnets.max(1));
    let object = ObjectRef::namespaced(Kind::Pod, namespace, cluster::pod_name(index));
    (object, cluster::pod(index, index % size.nodes))
}

/// Runs everything and prints it. Returns how many units 100 single pods compiled.
pub fn run(size: Size) -> u64 {
    println!("\npipeline: {} pods, {} nodes, {} subnets", size.pods, size.nodes, size.subnets);
    let (mut api, mut db) = (Api::default(), Database::new(northbound()));
    for index in 0..size.subnets.max(1) {
        api.put(&ObjectRef::cluster(Kind::Namespace, cluster::namespace(index)), json!({}));
    }
    for index in 0..size.subnets {
        api.put(
            &ObjectRef::cluster(Kind::Subnet, format!("subnet-{index}")),
            cluster::subnet(index, size.distributed),
        );
    }
    for index in 0..size.nodes {
        api.put(&ObjectRef::cluster(Kind::Node, cluster::node_name(index)), cluster::node(index));
    }
    let mut line = Line::new();
    let mut before = line.core.counters();
    line.load(&api, &db, "one");
    line.run(&mut api, &mut db);
    line.report("first start, nodes and subnets", size.nodes, &before);

    before = line.core.counters();
    for index in 0..size.pods {
        let (object, body) = pod(index, size);
        add(&mut line, &mut api, object, body);
    }
    line.run(&mut api, &mut db);
    let per_kind = api.writes.iter().map(|(what, count)| format!("{what} {count}")).collect::<Vec<_>>();
    line.report("all pods", size.pods, &before);
    println!("API writes so far: {}", per_kind.join(", "));

    before = line.core.counters();
    for extra in 0..100 {
        let (object, body) = pod(size.pods + extra, size);
        add(&mut line, &mut api, object, body);
        line.run(&mut api, &mut db);
    }
    let compiled = line.core.counters().compiled - before.compiled;
    line.report("100 pods, one by one", 100, &before);

    before = line.core.counters();
    let node = ObjectRef::cluster(Kind::Node, cluster::node_name(size.nodes));
    add(&mut line, &mut api, node.clone(), cluster::node(size.nodes));
    line.run(&mut api, &mut db);
    line.report("one node added", 1, &before);
    before = line.core.counters();
    api.objects.remove(&node);
    line.inputs.push_back(Input::Deleted(node));
    line.run(&mut api, &mut db);
    line.report("one node removed", 1, &before);

    before = line.core.counters();
    let namespace = ObjectRef::cluster(Kind::Namespace, cluster::namespace(0));
    let mut body: Value = serde_json::from_str(&api.objects[&namespace]).unwrap();
    body["metadata"]["labels"] = json!({"team": "a"});
    add(&mut line, &mut api, namespace, body);
    line.run(&mut api, &mut db);
    let inside = size.pods / size.subnets.max(1);
    line.report(&format!("namespace of {inside} pods relabelled"), 1, &before);

    before = line.core.counters();
    let subnet = ObjectRef::cluster(Kind::Subnet, cluster::CHANGED.0);
    let mut body: Value = serde_json::from_str(&api.objects[&subnet]).unwrap();
    body["spec"]["gateway"] = cluster::CHANGED.1.into();
    add(&mut line, &mut api, subnet, body);
    line.run(&mut api, &mut db);
    line.report("gateway of one subnet changed", 1, &before);
    let counters = line.core.counters();
    println!(
        "graph: {} edges, {:.1} a pod, {:.0} B a pod",
        counters.edges,
        counters.edges as f64 / size.pods as f64,
        counters.graph_bytes as f64 / size.pods as f64
    );
    let kept_after_load = weigh("the load", line, size.pods);

    api.writes.clear();
    let mut line = Line::new();
    before = line.core.counters();
    line.load(&api, &db, "two");
    line.run(&mut api, &mut db);
    line.report("restart", size.pods, &before);
    assert!(api.writes.is_empty(), "a restart writes nothing: {:?}", api.writes);
    assert_eq!(line.core.counters().commit.transactions, 1, "a restart writes nothing but its token");
    let kept = weigh("a restart", line, size.pods);
    // What a burst leaves behind would stay for months.
    assert!(
        kept_after_load <= kept * 1.15,
        "after the load {kept_after_load:.0} B a pod are kept, after a restart {kept:.0}"
    );
    compiled
}

/// What the core holds, part by part, in bytes a pod. What parts share counts for the last.
/// The database in memory is the bench's, and shared.
fn weigh(when: &str, line: Line, pods: usize) -> f64 {
    let each =
        |region: &Region<'_, std::alloc::System>| region.change().bytes_deallocated as f64 / pods as f64;
    let all = Region::new(ALLOCATOR);
    let mut parts = String::new();
    let Line { core, inputs, .. } = line;
    drop(inputs);
    for (name, part) in core.take_apart() {
        let region = Region::new(ALLOCATOR);
        drop(part);
        parts += &format!("{name} {:.0}, ", each(&region));
    }
    println!("kept after {when}: {:.0} B a pod ({parts})", each(&all));
    each(&all)
}

/// Pods come and go, all with other names, round by round, and no byte more is held after the
/// last round than after the first (`pain.md` U25). The bytes are all of this process's: the
/// core's, the watches' decoders', and those of API server and database in memory, which hold
/// the same at the same point of each round.
pub fn churn(size: Size, rounds: usize) {
    let all = Region::new(ALLOCATOR);
    let held = || {
        let change = all.change();
        // Net of what grew and shrank in place too.
        let net = change.bytes_allocated as isize - change.bytes_deallocated as isize;
        usize::try_from(net).unwrap_or_default()
    };
    let (mut api, mut db) = (Api::default(), Database::new(northbound()));
    for index in 0..size.subnets.max(1) {
        api.put(&ObjectRef::cluster(Kind::Namespace, cluster::namespace(index)), json!({}));
    }
    for index in 0..size.subnets {
        let object = ObjectRef::cluster(Kind::Subnet, format!("subnet-{index}"));
        api.put(&object, cluster::subnet(index, size.distributed));
    }
    for index in 0..size.nodes {
        api.put(&ObjectRef::cluster(Kind::Node, cluster::node_name(index)), cluster::node(index));
    }
    let mut line = Line::new();
    line.load(&api, &db, "one");
    line.run(&mut api, &mut db);
    let before = held();
    let mut figures = Vec::with_capacity(rounds);
    for round in 0..rounds {
        // Other names each time, of one length.
        let pods: Vec<_> =
            (0..size.pods).map(|index| pod(1_000_000 + round * size.pods + index, size)).collect();
        let objects: Vec<ObjectRef> = pods.iter().map(|(object, _)| object.clone()).collect();
        for (object, body) in pods {
            add(&mut line, &mut api, object, body);
        }
        line.run(&mut api, &mut db);
        let full = held();
        for object in objects {
            api.objects.remove(&object);
            line.inputs.push_back(Input::Deleted(object));
        }
        line.run(&mut api, &mut db);
        let left = api.objects.keys().filter(|object| matches!(object.kind, Kind::Pod | Kind::Ip));
        assert_eq!(left.filter(|object| !object.name.starts_with("node-")).count(), 0, "all are gone");
        // Writes are believed for some seconds.
        for _ in 0..3 {
            line.now_ms += 20_000;
            line.inputs.push_back(Input::Tick);
            line.run(&mut api, &mut db);
        }
        line.inputs.shrink_to_fit();
        figures.push((full, held()));
    }
    println!("{} pods a round; bytes without pods {before}, then with and without: {figures:?}", size.pods);
    // What is lost with each pod shows in every round; that a table grows, in one. Numbers of
    // versions get a digit more now and then.
    let mut more: Vec<isize> = figures.windows(2).map(|two| two[1].1 as isize - two[0].1 as isize).collect();
    more.sort_unstable();
    let usual = more[more.len() / 2] as f64 / size.pods as f64;
    assert!(usual < 3.0, "{usual:.0} B of each pod that came and went are left: {figures:?}");
    // Until then tables grow.
    let (middle, last) = (figures[rounds / 2], figures[rounds - 1]);
    assert!(last.0 as f64 <= middle.0 as f64 * 1.02, "as many pods take more and more: {figures:?}");
    // Tables keep their size: a tenth of what pods take.
    let kept = (last.1 - before) as f64 / size.pods as f64;
    assert!(kept < 1024.0, "{kept:.0} B of each pod stay when all are gone");
}

/// What a namespace full of pods costs whose new label binds it to another subnet: units,
/// rows and API writes.
pub fn relabelled(pods: usize) -> (u64, u64, BTreeMap<String, u64>) {
    let (mut api, mut db) = (Api::default(), Database::new(northbound()));
    let size = Size { pods, nodes: 10, subnets: 0, distributed: false };
    let namespace = ObjectRef::cluster(Kind::Namespace, cluster::namespace(0));
    api.put(&namespace, json!({}));
    let mut bound = cluster::subnet(0, false);
    bound["spec"]["namespaces"] = json!([]);
    bound["spec"]["namespaceSelectors"] = json!([{"matchLabels": {"team": "a"}}]);
    api.put(&ObjectRef::cluster(Kind::Subnet, cluster::CHANGED.0), bound);
    for index in 0..size.nodes {
        api.put(&ObjectRef::cluster(Kind::Node, cluster::node_name(index)), cluster::node(index));
    }
    let mut line = Line::new();
    line.load(&api, &db, "one");
    for index in 0..pods {
        let (object, body) = pod(index, size);
        add(&mut line, &mut api, object, body);
    }
    line.run(&mut api, &mut db);
    line.report(&format!("namespace with {pods} pods"), pods, &controller::core::Counters::default());
    api.writes.clear();
    let before = line.core.counters();
    let mut body: Value = serde_json::from_str(&api.objects[&namespace]).unwrap();
    body["metadata"]["labels"] = json!({"team": "a"});
    add(&mut line, &mut api, namespace.clone(), body);
    line.run(&mut api, &mut db);
    let after = line.core.counters();
    line.report("  its labels bind another subnet", 1, &before);
    let told: Value = serde_json::from_str(&api.objects[&namespace]).unwrap();
    let subnet = &told["metadata"]["annotations"]["ovn.kubernetes.io/logical_switch"];
    assert_eq!(subnet, cluster::CHANGED.0, "the namespace is bound to the other subnet");
    let operations = after.commit.operations - before.commit.operations;
    (after.compiled - before.compiled, operations, api.writes)
}
