//! Starts the controller's binary against an API server in memory and a real
//! northbound database, and looks at it from outside.
#![allow(dead_code, unreachable_pub)]

pub mod chassis;
pub mod ovn;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use ovsdb::testing::real::Server;
use ovsdb::{Event, Operation, Options, Session, Value as OvsValue};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::process::{Child, Command};

use crate::fake::FakeApi;

pub const BINARY: &str = env!("CARGO_BIN_EXE_kube-ovn-controller");
pub const PODS: &str = "/api/v1/namespaces/shop/pods";
pub const NODES: &str = "/api/v1/nodes";
pub const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-ovn-controller";

/// How long anything may take before a test gives up. Only failures take this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until a condition holds.
pub async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !condition().await {
        assert!(began.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub struct Rig {
    pub api: FakeApi,
    pub database: Server,
    pub folder: tempfile::TempDir,
    pub address: SocketAddr,
}

impl Rig {
    pub async fn new() -> Self {
        Self::at(TcpListener::bind("127.0.0.1:0").await.unwrap()).await
    }

    /// The API server is served on that listener.
    pub async fn at(listener: TcpListener) -> Self {
        let api = FakeApi::new();
        let address = listener.local_addr().unwrap();
        api.serve(listener);
        api.create("/api/v1/namespaces", json!({"metadata": {"name": "shop"}}));
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{address}")}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        });
        std::fs::write(folder.path().join("kubeconfig"), kubeconfig.to_string()).unwrap();
        let database = Server::northbound().unwrap();
        Self { api, database, folder, address }
    }

    pub fn node(&self, name: &str, ip: &str) {
        self.api.create(
            NODES,
            json!({
                "metadata": {"name": name, "annotations": {"ovn.kubernetes.io/chassis": format!("chassis-{name}")}},
                "status": {"addresses": [{"type": "InternalIP", "address": ip}],
                           "conditions": [{"type": "Ready", "status": "True"}]}
            }),
        );
    }

    pub fn pod(&self, name: &str, node: &str) {
        self.api.create(
            PODS,
            json!({"metadata": {"name": name}, "spec": {"nodeName": node, "restartPolicy": "Always"}, "status": {"phase": "Pending"}}),
        );
    }

    /// Waits until a pod is routed; its annotations.
    pub async fn routed(&self, name: &str) -> Value {
        let path = format!("{PODS}/{name}");
        let annotations =
            || self.api.get(&path).map(|pod| pod["metadata"]["annotations"].clone()).unwrap_or_default();
        eventually(&format!("{name} is routed"), async || {
            annotations()["ovn.kubernetes.io/routed"] == "true"
        })
        .await;
        annotations()
    }

    pub fn holder(&self) -> String {
        let lease = self.api.get(LEASE).unwrap_or_default();
        lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
    }

    /// Somebody else leads, and renews.
    pub fn foreign_leader(&self) {
        let collection = LEASE.rsplit_once('/').unwrap().0;
        self.api.create(
            collection,
            json!({"metadata": {"name": "kube-ovn-controller"},
                "spec": {"holderIdentity": "other", "leaseDurationSeconds": 600, "leaseTransitions": 1}}),
        );
    }

    async fn session(&self) -> Session {
        let options = Options::new(vec![self.database.endpoint()], "OVN_Northbound")
            .table("Logical_Switch_Port", ["name"]);
        let (session, mut events) = Session::connect(options);
        loop {
            match events.next().await.unwrap() {
                Event::Replaced { .. } => break,
                _ => continue,
            }
        }
        tokio::spawn(async move { while events.next().await.is_some() {} });
        session
    }

    /// The database has a port of that name.
    pub async fn has_port(&self, name: &str) -> bool {
        self.has_row("Logical_Switch_Port", name).await
    }

    /// The database has a router port of that name.
    pub async fn has_router_port(&self, name: &str) -> bool {
        self.has_row("Logical_Router_Port", name).await
    }

    async fn has_row(&self, table: &str, name: &str) -> bool {
        let options = Options::new(vec![self.database.endpoint()], "OVN_Northbound").table(table, ["name"]);
        let (_session, mut events) = Session::connect(options);
        loop {
            if let Event::Replaced { replica, .. } = events.next().await.unwrap() {
                let table = replica.table(table).unwrap();
                return table.find_by("name", &OvsValue::string(name)).next().is_some();
            }
        }
    }

    /// Writes another epoch token, as a new leader does.
    pub async fn steal_epoch(&self) {
        let session = self.session().await;
        let global = Operation::mutate("NB_Global")
            .delete_map_keys("external_ids", ["weir-epoch"])
            .insert_map("external_ids", OvsValue::string_map([("weir-epoch", "thief")]));
        session.transact(vec![global.into()]).await.unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command =
            Command::new(std::env::var("WEIR_CONTROLLER").unwrap_or_else(|_| BINARY.to_owned()));
        self.configure(&mut command, arguments);
        command
    }

    /// Adds the arguments and environment of a controller in this rig.
    pub fn configure(&self, command: &mut Command, arguments: &[&str]) {
        self.configure_as("a", command, arguments);
    }

    /// The same for another replica: its own pod, socket and place in the election.
    fn configure_as(&self, replica: &str, command: &mut Command, arguments: &[&str]) {
        let (pod, uid) = (format!("controller-{replica}"), format!("uid-{replica}"));
        command
            .arg(format!("--kubeconfig={}", self.folder.path().join("kubeconfig").display()))
            .arg(format!("--ovn-nb-addr=unix:{}", self.database.socket().display()))
            .arg(format!("--diagnostics-socket={}", self.socket(replica).display()))
            .arg("--pprof-port=0")
            .args(arguments)
            .env_clear()
            .envs([("POD_NAME", &*pod), ("POD_UID", &*uid), ("POD_NAMESPACE", "kube-system")])
            .envs([("ENABLE_BIND_LOCAL_IP", "true"), ("POD_IPS", "127.0.0.1")])
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .envs(std::env::vars().filter(|(name, _)| name.starts_with("MALLOC_")))
            .stderr(Stdio::from(std::fs::File::options().create(true).append(true).open(self.log()).unwrap()))
            .kill_on_drop(true);
    }

    fn socket(&self, replica: &str) -> PathBuf {
        self.folder.path().join(format!("{replica}.sock"))
    }

    pub fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    /// Starts the controller and waits until it is ready.
    pub async fn start(&self, arguments: &[&str]) -> Controller {
        let controller = self.start_unready(arguments).await;
        eventually("ready", async || controller.get("/readyz").await.0 == 200).await;
        controller
    }

    pub async fn start_unready(&self, arguments: &[&str]) -> Controller {
        self.spawn(self.command(arguments)).await
    }

    /// Starts another replica and waits until it is ready.
    pub async fn start_other(&self, replica: &str, arguments: &[&str]) -> Controller {
        let mut command = Command::new(BINARY);
        self.configure_as(replica, &mut command, arguments);
        let controller = self.spawn_as(replica, command).await;
        eventually("ready", async || controller.get("/readyz").await.0 == 200).await;
        controller
    }

    /// Runs a command that becomes the controller.
    pub async fn spawn(&self, command: Command) -> Controller {
        self.spawn_as("a", command).await
    }

    async fn spawn_as(&self, replica: &str, mut command: Command) -> Controller {
        let child = command.spawn().unwrap();
        let mut controller =
            Controller { child, socket: self.socket(replica), http: String::new(), log: self.log() };
        eventually("diagnostics answer", async || UnixStream::connect(&controller.socket).await.is_ok())
            .await;
        let status = controller.call("status", json!([])).await;
        controller.http = status["listening"][0].as_str().unwrap_or_default().to_owned();
        controller
    }
}

pub struct Controller {
    child: Child,
    socket: PathBuf,
    http: String,
    log: PathBuf,
}

impl Drop for Controller {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "--- log of the controller\n{}",
                std::fs::read_to_string(&self.log).unwrap_or_default()
            );
        }
    }
}

impl Controller {
    /// Asks the diagnostics API.
    pub async fn call(&self, method: &str, params: Value) -> Value {
        let mut stream = UnixStream::connect(&self.socket).await.unwrap();
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        stream.write_all(format!("{request}\n").as_bytes()).await.unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).await.unwrap();
        let answer: Value = serde_json::from_str(&line).unwrap_or_default();
        answer["result"].clone()
    }

    /// GET over HTTP; status and body.
    pub async fn get(&self, path: &str) -> (u16, String) {
        let Ok(mut stream) = TcpStream::connect(&self.http).await else { return (0, String::new()) };
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default();
        (code, body)
    }

    /// Where it serves HTTP.
    pub fn address(&self) -> &str {
        &self.http
    }

    /// A metric without labels.
    pub async fn metric(&self, name: &str) -> f64 {
        let (_, text) = self.get("/metrics").await;
        let line = text.lines().find(|line| line.split(' ').next() == Some(name));
        line.and_then(|line| line.split(' ').nth(1)).and_then(|value| value.parse().ok()).unwrap_or(f64::NAN)
    }

    /// Transactions sent so far.
    pub async fn transactions(&self) -> u64 {
        self.call("counters", json!([])).await["commit"]["transactions"].as_u64().unwrap()
    }

    /// Waits until it writes.
    pub async fn writing(&self) {
        eventually("it writes", async || self.call("status", json!([])).await["core"]["writing"] == true)
            .await;
    }

    /// Waits until nothing is left to do.
    pub async fn quiet(&self) {
        eventually("it is quiet", async || {
            let status = self.call("status", json!([])).await;
            status["core"]["writing"] == true && status["core"]["quiet"] == true
        })
        .await;
    }

    /// Processor seconds used so far, and resident memory in KiB.
    pub fn usage(&self) -> (f64, f64) {
        let pid = self.child.id().unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        // utime and stime, in clock ticks of 1/100 s.
        let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        (ticks / 100.0, rss.trim().trim_end_matches("kB").trim().parse().unwrap())
    }

    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(self.child.id().unwrap().try_into().unwrap());
        nix::sys::signal::kill(pid, signal).unwrap();
    }

    /// SIGTERM; the exit code. It must end within seconds.
    pub async fn stop(mut self) -> Option<i32> {
        self.signal(nix::sys::signal::Signal::SIGTERM);
        let status = tokio::time::timeout(Duration::from_secs(15), self.child.wait()).await;
        status.expect("ends within seconds").unwrap().code()
    }

    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// Waits until it leaves by itself; the exit code.
    pub async fn ended(mut self) -> Option<i32> {
        let status = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        status.expect("leaves by itself").unwrap().code()
    }

    pub fn running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}
