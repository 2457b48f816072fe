//! `make bench`, the CNI part: ADD and DEL of the real executable and agent on
//! a node of its own with the real OVS and OVN, 110 pods on it already,
//! all in a policy. The clock runs from exec to exit; the first ping after it
//! has to be answered.
//!
//! Prints tables: calls as their runtime sees them, and where the agent's time
//! went. `WEIR_BENCH_PLUGIN` names another executable of the same contract.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, dead_code)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cni_bench::{Attachment, Plugin, Sandbox, Series, Times, at_once, one_by_one};
use daemon::kube::PodFacts;
use support::agent::Machine;
use support::ovn::Ovn;
use support::routed_pod;

/// Pods that are there before anything is measured.
fn before() -> u8 {
    std::env::var("WEIR_BENCH_BEFORE")
        .map_or(110, |count| count.parse().expect("WEIR_BENCH_BEFORE is a count up to 110"))
}
/// Calls of each series.
const CALLS: u8 = 30;

fn executable() -> PathBuf {
    if let Some(path) = std::env::var_os("WEIR_BENCH_PLUGIN") {
        return path.into();
    }
    let tests = std::env::current_exe().unwrap();
    let folder = tests.parent().and_then(Path::parent).unwrap();
    let release = (folder.file_name().unwrap() == "release").then_some("--release");
    let built =
        Command::new(env!("CARGO")).args(["build", "-q", "-p", "cni"]).args(release).status().unwrap();
    assert!(built.success());
    folder.join("kube-ovn")
}

/// A pod that nobody made before: its UID and sandbox are the series'.
struct Pod {
    facts: PodFacts,
    sandbox: Sandbox,
    attachment: Attachment,
}

fn pods(series: u8, numbers: std::ops::Range<u8>) -> Vec<Pod> {
    numbers
        .map(|number| {
            let mut facts = routed_pod(number);
            facts.uid = format!("{}-{series}", facts.uid);
            let sandbox = Sandbox::new().unwrap();
            let container = format!("{series:02x}{number:02x}{:08x}{:052x}", std::process::id(), 0);
            let pod = (facts.namespace.clone(), facts.name.clone());
            Pod { attachment: Attachment::eth0(container, sandbox.path(), pod), facts, sandbox }
        })
        .collect()
}

fn attachments(pods: &[Pod]) -> Vec<Attachment> {
    pods.iter().map(|pod| pod.attachment.clone()).collect()
}

fn first_ping(pods: &[Pod], attachment: &Attachment) -> Result<(), String> {
    let pod = pods.iter().find(|pod| pod.attachment.namespace == attachment.namespace).unwrap();
    pod.sandbox.ping("10.16.0.1").and_then(|()| pod.sandbox.ping("fd00::1"))
}

/// Kilobytes of a line of the agent's status.
fn status_kb(agent: u32, key: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{agent}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap()
}

/// What the agent holds when it has come to rest.
async fn print_memory(agent: u32) {
    // It gives memory back ten seconds after the last change.
    tokio::time::sleep(Duration::from_secs(13)).await;
    let mb = |key| status_kb(agent, key) as f64 * 1024.0 / 1e6;
    println!(
        "memory of the agent with {} pods: {:.1} MB ({:.1} MB its own, {:.1} MB files), {:.1} MB at most",
        before(),
        mb("VmRSS:"),
        mb("RssAnon:"),
        mb("RssFile:"),
        mb("VmHWM:")
    );
}

/// What the agent's log says of its phases since `from`: median and 99th percentile of each.
fn phases(log: &str) -> String {
    let mut times: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    for line in log.lines() {
        let value = |key: &str| {
            let at = line.find(key)? + key.len();
            line.get(at..)?.split_whitespace().next().map(|text| text.trim_matches('"'))
        };
        // A whole call is a phase of its own.
        let phase = value("phase=").or_else(|| value("call=")?.rsplit('/').next());
        if let (Some(phase), Some(Ok(took))) = (phase, value("took_ms=").map(str::parse::<f64>)) {
            times.entry(phase).or_default().push(Duration::from_secs_f64(took / 1000.0));
        }
    }
    let cell = |(phase, times): (&&str, &Vec<Duration>)| {
        let times = Times::new(times.clone());
        let ms = |percent| times.at(percent).as_secs_f64() * 1000.0;
        format!("{phase} {:.2}/{:.2}", ms(50), ms(99))
    };
    times.iter().map(|(phase, times)| cell((phase, times))).collect::<Vec<_>>().join(", ")
}

struct Bench {
    machine: Arc<Machine>,
    ovn: Arc<Ovn>,
    plugin: Plugin,
    logged: usize,
    failures: usize,
}

impl Bench {
    fn print(&mut self, name: &str, series: &Series) {
        println!("{}", series.row(name));
        for failure in &series.failures {
            eprintln!("{failure}");
        }
        self.failures += series.failures.len();
        let log = self.machine.log();
        let split = phases(log.get(self.logged..).unwrap_or_default());
        if !split.is_empty() {
            println!("|   p50/p99 in the agent, ms: {split} |");
        }
        self.logged = log.len();
    }

    /// Lets northd and ovn-controller come to rest; nothing tells from outside when.
    async fn settle(&self) {
        tokio::time::sleep(Duration::from_secs(2)).await;
    }

    async fn route(&self, pods: &[Pod], ports: bool) {
        for pod in pods {
            if ports {
                self.ovn.add_pod(&pod.facts).await;
            }
            self.machine.route_pod(&pod.facts);
        }
        self.settle().await;
    }

    /// ADDs of pods whose ports were made ready: the agent hears of each pod a while before its ADD, as it does
    /// when the runtime still makes the sandbox.
    async fn made_ready(&mut self, series: u8) {
        let range = |from: u8| before() + from * CALLS..before() + (from + 1) * CALLS;
        let one = pods(series, range(0));
        let ready = |attachment: &Attachment| {
            let pod = one.iter().find(|pod| pod.attachment.namespace == attachment.namespace).unwrap();
            self.machine.route_pod(&pod.facts);
            let port = format!("{}.{}", pod.facts.name, pod.facts.namespace);
            let installed = || {
                self.machine.ovs.view().interfaces().any(|interface| {
                    interface.external_id("iface-id") == Some(&port)
                        && interface.external_id("ovn-installed") == Some("true")
                })
            };
            let begin = Instant::now();
            while !installed() && begin.elapsed() < Duration::from_secs(5) {
                std::thread::sleep(Duration::from_millis(5));
            }
            // What the port's coming made work of is done.
            std::thread::sleep(Duration::from_millis(100));
        };
        let added = one_by_one(&self.plugin, "ADD", &attachments(&one), ready, |a| first_ping(&one, a));
        self.print("made ready: ADD one by one", &added);
        let deleted = one_by_one(&self.plugin, "DEL", &attachments(&one), |_| {}, |_| Ok(()));
        self.print("made ready: DEL one by one", &deleted);
        let all = pods(series, range(1));
        self.route(&all, false).await;
        let mut added = at_once(&self.plugin, "ADD", &attachments(&all));
        added.failures.extend(all.iter().filter_map(|pod| first_ping(&all, &pod.attachment).err()));
        self.print("some made ready: ADD at once", &added);
        let deleted = at_once(&self.plugin, "DEL", &attachments(&all));
        self.print("some made ready: DEL at once", &deleted);
    }

    async fn series(&mut self, series: u8, name: &str, new: bool) {
        let range = |from: u8| before() + from * CALLS..before() + (from + 1) * CALLS;
        let one = pods(series, range(0));
        self.route(&one, new).await;
        let added = one_by_one(&self.plugin, "ADD", &attachments(&one), |_| {}, |a| first_ping(&one, a));
        self.print(&format!("{name}: ADD one by one"), &added);
        let deleted = one_by_one(&self.plugin, "DEL", &attachments(&one), |_| {}, |_| Ok(()));
        self.print(&format!("{name}: DEL one by one"), &deleted);

        let all = pods(series, range(1));
        self.route(&all, new).await;
        let mut added = at_once(&self.plugin, "ADD", &attachments(&all));
        added.failures.extend(all.iter().filter_map(|pod| first_ping(&all, &pod.attachment).err()));
        self.print(&format!("{name}: ADD at once"), &added);
        let deleted = at_once(&self.plugin, "DEL", &attachments(&all));
        self.print(&format!("{name}: DEL at once"), &deleted);

        if !new {
            return;
        }
        let cold = pods(series, range(2));
        let runtime = tokio::runtime::Handle::current();
        let (machine, ovn) = (self.machine.clone(), self.ovn.clone());
        let create = |attachment: &Attachment| {
            let pod = cold.iter().find(|pod| pod.attachment.namespace == attachment.namespace).unwrap();
            let (facts, machine, ovn) = (pod.facts.clone(), machine.clone(), ovn.clone());
            runtime.spawn(async move {
                ovn.add_pod(&facts).await;
                machine.route_pod(&facts);
            });
        };
        let added = one_by_one(&self.plugin, "ADD", &attachments(&cold), create, |a| first_ping(&cold, a));
        self.print(&format!("{name}: ADD cold"), &added);
        let deleted = one_by_one(&self.plugin, "DEL", &attachments(&cold), |_| {}, |_| Ok(()));
        self.print(&format!("{name}: DEL after cold"), &deleted);
    }
}

#[tokio::main(worker_threads = 2)]
async fn main() {
    let machine = Arc::new(Machine::bare().await);
    let ovn = Arc::new(Ovn::start(&machine).await);
    let plugin = Plugin::new(&executable(), &Plugin::kube_ovn(&machine.file("cni.sock"))).unwrap();
    let agent = machine.start_agent_with(&["--prepare-ports=false"]);
    machine.wait_ready().await;
    let mut bench = Bench { machine: machine.clone(), ovn: ovn.clone(), plugin, logged: 0, failures: 0 };

    let before = pods(0, 0..before());
    let mut ports = Vec::new();
    for pod in &before {
        ports.push(ovn.add_pod(&pod.facts).await);
    }
    ovn.add_policy(&ports).await;
    bench.route(&before, false).await;
    let begin = Instant::now();
    println!("{}", Series::HEAD);
    let series = at_once(&bench.plugin, "ADD", &attachments(&before));
    bench.print("the first ones at once", &series);
    // Their announcements are flows of the datapath for ten seconds (`max-idle`).
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert!(begin.elapsed() < Duration::from_secs(120));

    bench.series(1, "plain", true).await;
    let children = |agent: u32| -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{agent}/stat")).unwrap();
        // proc(5): the ninth field after the name in parentheses is cminflt.
        stat.rsplit(") ").next().unwrap().split(' ').nth(8).unwrap().parse().unwrap()
    };
    let faults = children(agent.0.id());
    bench.series(2, "plain again", false).await;
    let forked = children(agent.0.id()) - faults;

    print_memory(agent.0.id()).await;
    // Its ports are free again before the next one wants them.
    drop(agent);
    let agent = machine.start_agent_with(&["--prepare-ports=true"]);
    machine.wait_ready().await;
    bench.settle().await;
    bench.logged = machine.log().len();
    bench.made_ready(3).await;
    println!("page faults of child processes during 120 calls: {forked}");
    print_memory(agent.0.id()).await;
    assert_eq!(bench.failures, 0, "calls failed");
}
