//! The binary between an API server in memory and a real ovsdb-server: what the
//! whole process costs, from outside (`/proc`), and how long people wait.

use std::process::Stdio;
use std::time::{Duration, Instant};

use axum::http::Method;
use ovsdb::testing::real::Server;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, UnixStream};
use tokio::process::{Child, Command};

use crate::api::Api;
use crate::cluster::{self, Size};

const BINARY: &str = env!("CARGO_BIN_EXE_kube-ovn-controller");
const LONGEST: Duration = Duration::from_secs(1800);
/// After a burst nothing happens for so long.
const LULL: Duration = Duration::from_secs(5);

struct Rig {
    api: Api,
    database: Server,
    folder: tempfile::TempDir,
}

struct Controller {
    child: Child,
    socket: std::path::PathBuf,
}

#[derive(Clone, Copy)]
struct Usage {
    cpu: f64,
    rss_kib: f64,
    peak_kib: f64,
}

impl Controller {
    async fn call(&self, method: &str) -> Value {
        let Ok(mut stream) = UnixStream::connect(&self.socket).await else { return Value::Null };
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": []});
        if stream.write_all(format!("{request}\n").as_bytes()).await.is_err() {
            return Value::Null;
        }
        let mut line = String::new();
        let _ = BufReader::new(stream).read_line(&mut line).await;
        serde_json::from_str::<Value>(&line).unwrap_or_default()["result"].clone()
    }

    async fn quiet(&self) {
        let began = Instant::now();
        loop {
            let status = self.call("status").await;
            if status["core"]["writing"] == true && status["core"]["quiet"] == true {
                return;
            }
            assert!(began.elapsed() < LONGEST, "never quiet: {status:#}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Northbound operations (each about one row) and transactions so far.
    async fn operations(&self) -> (u64, u64, u64) {
        let counters = self.call("counters").await;
        let commit = &counters["commit"];
        let number = |value: &Value| value.as_u64().unwrap();
        (number(&commit["operations"]), number(&commit["transactions"]), number(&counters["compiled"]))
    }

    fn usage(&self) -> Usage {
        let pid = self.child.id().unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let kib = |field: &str| -> f64 {
            let value = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
            value.trim().trim_end_matches("kB").trim().parse().unwrap()
        };
        Usage { cpu: ticks / 100.0, rss_kib: kib("VmRSS:"), peak_kib: kib("VmHWM:") }
    }

    async fn stop(mut self) {
        let pid = nix::unistd::Pid::from_raw(self.child.id().unwrap().try_into().unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        let status = tokio::time::timeout(Duration::from_secs(30), self.child.wait()).await;
        assert!(status.expect("ends in time").unwrap().success());
    }
}

impl Rig {
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let api = Api::new();
        api.serve(listener);
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{address}")}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        });
        std::fs::write(folder.path().join("kubeconfig"), kubeconfig.to_string()).unwrap();
        Self { api, database: Server::northbound().unwrap(), folder }
    }

    fn start(&self) -> Controller {
        let socket = self.folder.path().join("socket");
        let log =
            std::fs::File::options().create(true).append(true).open(self.folder.path().join("log")).unwrap();
        let child = Command::new(std::env::var("WEIR_CONTROLLER").unwrap_or_else(|_| BINARY.to_owned()))
            .arg(format!("--kubeconfig={}", self.folder.path().join("kubeconfig").display()))
            .arg(format!("--ovn-nb-addr=unix:{}", self.database.socket().display()))
            .arg(format!("--diagnostics-socket={}", socket.display()))
            .args(["--pprof-port=0", "--default-cidr=10.0.0.0/12", "--node-switch-cidr=100.64.0.0/16"])
            .arg("--service-cluster-ip-range=10.240.0.0/16")
            .env_clear()
            .envs([("POD_NAME", "controller-a"), ("POD_UID", "uid-a"), ("POD_NAMESPACE", "kube-system")])
            .envs([("ENABLE_BIND_LOCAL_IP", "true"), ("POD_IPS", "127.0.0.1")])
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .envs(std::env::vars().filter(|(name, _)| {
                ["MALLOC_", "MIMALLOC_", "WEIR_LOG"].iter().any(|start| name.starts_with(start))
            }))
            .stderr(Stdio::from(log))
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Controller { child, socket }
    }

    fn pod(&self, index: usize, size: Size) {
        let path = format!("/api/v1/namespaces/{}/pods", cluster::namespace(index % size.subnets.max(1)));
        self.api.create(&path, &cluster::pod(index, index % size.nodes));
    }

    /// Waits until that many pods are routed.
    async fn routed(&self, count: usize) {
        let mut changes = self.api.changes();
        let began = Instant::now();
        loop {
            changes.borrow_and_update();
            if self.api.routed() >= count {
                return;
            }
            let waited = tokio::time::timeout(Duration::from_secs(5), changes.changed()).await;
            if waited.is_err() && began.elapsed() > LONGEST {
                let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
                panic!("{} of {count} pods are routed\n{log}", self.api.routed());
            }
        }
    }
}

fn report(what: &str, took: Duration, cpu: f64, rows: (u64, u64, u64), more: &str) {
    let (operations, transactions, units) = rows;
    println!(
        "{what:<34} {:>8.3} s {cpu:>8.2} CPU-s {operations:>8} rows {transactions:>6} txns {units:>8} units  {more}",
        took.as_secs_f64()
    );
}

fn since(now: (u64, u64, u64), then: (u64, u64, u64)) -> (u64, u64, u64) {
    (now.0 - then.0, now.1 - then.1, now.2 - then.2)
}

/// Runs everything and prints it.
pub async fn run(size: Size) {
    let Size { pods, nodes, subnets, .. } = size;
    println!("\nprocess, real ovsdb-server: {pods} pods, {nodes} nodes, {subnets} subnets");
    let rig = Rig::new().await;
    for index in 0..subnets.max(1) {
        rig.api.create("/api/v1/namespaces", &json!({"metadata": {"name": cluster::namespace(index)}}));
    }
    for index in 0..subnets {
        rig.api.create("/apis/kubeovn.io/v1/subnets", &cluster::subnet(index, size.distributed));
    }
    for index in 0..nodes {
        rig.api.create("/api/v1/nodes", &cluster::node(index));
    }
    let began = Instant::now();
    let controller = rig.start();
    controller.quiet().await;
    let idle = controller.usage();
    report("first start, nodes and subnets", began.elapsed(), idle.cpu, controller.operations().await, "");

    let before = controller.operations().await;
    let began = Instant::now();
    for index in 0..pods {
        rig.pod(index, size);
        if index % 200 == 0 {
            tokio::task::yield_now().await;
        }
    }
    rig.routed(pods).await;
    let took = began.elapsed();
    controller.quiet().await;
    let loaded = controller.usage();
    let each = |usage: f64| usage / pods as f64;
    let more = format!(
        "{:.0} pods/s, {:.3} ms CPU a pod, RSS {:.0} MiB (peak {:.0}), {:.2} KiB a pod over {:.0} MiB",
        pods as f64 / took.as_secs_f64(),
        each((loaded.cpu - idle.cpu) * 1000.0),
        loaded.rss_kib / 1024.0,
        loaded.peak_kib / 1024.0,
        each(loaded.rss_kib - idle.rss_kib),
        idle.rss_kib / 1024.0
    );
    report("all pods", took, loaded.cpu - idle.cpu, since(controller.operations().await, before), &more);
    // The allocator gives pages back a second after they are free.
    tokio::time::sleep(LULL).await;
    let rest = controller.usage();
    println!(
        "{:<34} RSS {:.0} MiB, {:.2} KiB a pod over the empty cluster's",
        "  after a lull",
        rest.rss_kib / 1024.0,
        each(rest.rss_kib - idle.rss_kib)
    );

    one_by_one(&rig, &controller, size).await;
    node_comes_and_goes(&rig, &controller, size).await;
    gateway_changes(&rig, &controller).await;
    controller.stop().await;
    restart(&rig, size).await;
}

async fn one_by_one(rig: &Rig, controller: &Controller, size: Size) {
    let (before, cpu) = (controller.operations().await, controller.usage().cpu);
    let mut times = Vec::new();
    for extra in 0..20 {
        let began = Instant::now();
        rig.pod(size.pods + extra, size);
        rig.routed(size.pods + extra + 1).await;
        times.push(began.elapsed());
    }
    controller.quiet().await;
    let spent = controller.usage().cpu - cpu;
    times.sort();
    let rows = since(controller.operations().await, before);
    report("20 pods one by one, median of each", times[10], spent, rows, &format!("slowest {:?}", times[19]));
}

async fn node_comes_and_goes(rig: &Rig, controller: &Controller, size: Size) {
    for what in ["one node added", "one node removed"] {
        let (before, cpu) = (controller.operations().await, controller.usage().cpu);
        let began = Instant::now();
        if what.ends_with("added") {
            rig.api.create("/api/v1/nodes", &cluster::node(size.nodes));
        } else {
            rig.api.write(
                Method::DELETE,
                &format!("/api/v1/nodes/{}", cluster::node_name(size.nodes)),
                &Value::Null,
            );
        }
        loop {
            tokio::time::sleep(Duration::from_millis(5)).await;
            if controller.operations().await.0 > before.0 {
                break;
            }
        }
        controller.quiet().await;
        let took = began.elapsed();
        let rows = since(controller.operations().await, before);
        report(what, took, controller.usage().cpu - cpu, rows, "");
    }
}

async fn gateway_changes(rig: &Rig, controller: &Controller) {
    let (before, cpu) = (controller.operations().await, controller.usage().cpu);
    rig.api.forget_writes();
    let began = Instant::now();
    rig.api.write(
        Method::PATCH,
        &format!("/apis/kubeovn.io/v1/subnets/{}", cluster::CHANGED.0),
        &json!({"spec": {"gateway": cluster::CHANGED.1}}),
    );
    loop {
        tokio::time::sleep(Duration::from_millis(5)).await;
        if controller.operations().await.0 > before.0 {
            break;
        }
    }
    controller.quiet().await;
    let rows = since(controller.operations().await, before);
    let more = format!("API writes {:?}", rig.api.writes());
    report("gateway of one subnet changed", began.elapsed(), controller.usage().cpu - cpu, rows, &more);
}

async fn restart(rig: &Rig, size: Size) {
    let routed = rig.api.routed();
    rig.api.forget_writes();
    let began = Instant::now();
    let controller = rig.start();
    controller.quiet().await;
    let (took, usage) = (began.elapsed(), controller.usage());
    let rows = controller.operations().await;
    let more = format!(
        "RSS {:.0} MiB (peak {:.0}), {:.2} KiB a pod with the process itself, API writes {:?}",
        usage.rss_kib / 1024.0,
        usage.peak_kib / 1024.0,
        usage.rss_kib / size.pods as f64,
        rig.api.writes()
    );
    report("restart", took, usage.cpu, rows, &more);
    assert!(rig.api.writes().is_empty() && rows.1 == 1, "a restart writes nothing but its token");
    let verified = controller.call("verify").await;
    println!("verify: {} units in {:.2} s", verified["units"], verified["seconds"].as_f64().unwrap());
    assert_eq!(verified["differences"], 0, "{verified:#}");
    controller.stop().await;
    // Again, with a new pod that waits already.
    rig.pod(size.pods + 1000, size);
    let began = Instant::now();
    let controller = rig.start();
    rig.routed(routed + 1).await;
    println!("first new pod routed {:.3} s after the start of the process", began.elapsed().as_secs_f64());
    controller.quiet().await;
    controller.stop().await;
}
