//! One real ovsdb-server in a directory of its own.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};
use uuid::Uuid;

use super::{RealError, Root, io, rpc};
use crate::endpoint::Endpoint;
use crate::replica::{Replica, Row};
use crate::schema::Schema;
use crate::value::Value;

/// How long a server may take to listen or to answer: generous, since machines that
/// run tests are busy.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// Where a server lives and listens. The default is unix sockets in a temporary
/// directory, reachable from every network namespace of the machine.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// The server's own directory is made below this one (a small tmpfs, for
    /// instance); below the system's directory for temporary files if `None`.
    pub parent: Option<PathBuf>,
    /// Clients reach it over TCP here, beside its unix socket.
    pub listen: Option<(IpAddr, u16)>,
    /// Members of its cluster reach it over TCP here; over a unix socket if `None`.
    pub raft: Option<(IpAddr, u16)>,
    /// A network namespace (`ip netns`) that it runs in.
    pub namespace: Option<String>,
    /// Further arguments for ovsdb-server, as `--remote=pssl:…`.
    pub arguments: Vec<String>,
}

impl Place {
    /// TCP on one address with OVN's usual ports, in a network namespace.
    pub fn in_namespace(namespace: impl Into<String>, address: IpAddr) -> Self {
        let (listen, raft) = (Some((address, 6641)), Some((address, 6643)));
        Self { listen, raft, namespace: Some(namespace.into()), ..Self::default() }
    }

    /// TCP on ports of 127.0.0.1 that are free now.
    pub fn loopback() -> Result<Self, RealError> {
        let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
        // Held together, so that they differ.
        let sockets = [TcpListener::bind((host, 0)), TcpListener::bind((host, 0))];
        let [listen, raft] = sockets.map(|s| s.and_then(|s| s.local_addr()).map(|a| (host, a.port())));
        let (listen, raft) = (listen.map_err(io("a free port"))?, raft.map_err(io("a free port"))?);
        Ok(Self { listen: Some(listen), raft: Some(raft), ..Self::default() })
    }
}

fn host_and_port((host, port): (IpAddr, u16)) -> String {
    std::net::SocketAddr::from((host, port)).to_string()
}

/// A real ovsdb-server with one database.
/// Ended, and its directory removed, when dropped.
#[derive(Debug)]
pub struct Server {
    root: Root,
    place: Place,
    directory: PathBuf,
    child: Option<Child>,
    paused: bool,
}

impl Server {
    /// Starts a server with a new standalone database of this schema file.
    pub fn start(schema: &Path) -> Result<Self, RealError> {
        Self::start_at(schema, Place::default())
    }

    /// The same in a chosen place.
    pub fn start_at(schema: &Path, place: Place) -> Result<Self, RealError> {
        let schema = schema.display().to_string();
        Self::create(place, |server| vec!["create".into(), server.file("db"), schema])
    }

    /// Starts a cluster of one with a new northbound database.
    pub fn clustered_northbound() -> Result<Self, RealError> {
        Self::first_member(&Root::from_env()?.northbound_schema()?, Place::default(), None)
    }

    /// Starts a northbound database.
    pub fn northbound() -> Result<Self, RealError> {
        Self::start(&Root::from_env()?.northbound_schema()?)
    }

    /// Starts an `Open_vSwitch` database.
    pub fn vswitch() -> Result<Self, RealError> {
        Self::start(&Root::from_env()?.vswitch_schema()?)
    }

    /// Starts the first member of a new cluster.
    pub(super) fn first_member(
        schema: &Path,
        place: Place,
        election_timer: Option<Duration>,
    ) -> Result<Self, RealError> {
        let schema = schema.display().to_string();
        Self::create(place, |server| {
            let timer = election_timer.map(|t| format!("--election-timer={}", t.as_millis()));
            let rest = ["create-cluster".into(), server.file("db"), schema, server.raft_address()];
            timer.into_iter().chain(rest).collect()
        })
    }

    /// Starts a server that joins a cluster.
    pub(super) fn joining(database: &str, place: Place, remotes: &[String]) -> Result<Self, RealError> {
        Self::create(place, |server| {
            let own = ["join-cluster".into(), server.file("db"), database.into(), server.raft_address()];
            own.into_iter().chain(remotes.iter().cloned()).collect()
        })
    }

    fn create(place: Place, tool: impl FnOnce(&Self) -> Vec<String>) -> Result<Self, RealError> {
        let root = Root::from_env()?;
        let parent = place.parent.clone().unwrap_or_else(std::env::temp_dir);
        let directory = parent.join(format!("weir-{}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir(&directory).map_err(io(directory.display()))?;
        let mut server = Self { root, place, directory, child: None, paused: false };
        let args = tool(&server);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        server.root.run("usr/bin/ovsdb-tool", &server.directory, &args)?;
        server.resume()?;
        Ok(server)
    }

    fn file(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// Its directory: database (`db`), sockets and `log`.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Path of its socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.join("db.sock")
    }

    /// Path of its control socket.
    pub fn control_socket(&self) -> PathBuf {
        self.directory.join("server.ctl")
    }

    /// Where to connect: over TCP if it listens there.
    pub fn endpoint(&self) -> Endpoint {
        match self.place.listen {
            Some((host, port)) => Endpoint::Tcp { host: host.to_string(), port },
            None => Endpoint::Unix(self.socket()),
        }
    }

    /// Where members of its cluster reach it, in OVS's notation.
    pub fn raft_address(&self) -> String {
        match self.place.raft {
            Some(address) => format!("tcp:{}", host_and_port(address)),
            None => format!("unix:{}", self.file("db.raft")),
        }
    }

    /// The programs it came from.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// Its process, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Whether it can answer: its process runs and is not paused.
    pub fn is_running(&mut self) -> bool {
        !self.paused && self.child.as_mut().is_some_and(|c| matches!(c.try_wait(), Ok(None)))
    }

    /// Starts the process (again) on the existing database.
    pub fn resume(&mut self) -> Result<(), RealError> {
        self.kill();
        // A killed server leaves its sockets behind.
        for socket in [self.socket(), self.control_socket(), self.directory.join("db.raft")] {
            let _ = std::fs::remove_file(socket);
        }
        // What it printed before it was killed may explain why.
        let log = std::fs::File::options().create(true).append(true).open(self.directory.join("log"));
        let log = log.map_err(io("log"))?;
        let stderr = log.try_clone().map_err(io("log"))?;
        let mut command = self.in_place(self.root.command("usr/sbin/ovsdb-server", &self.directory)?);
        command
            .arg(format!("--remote=punix:{}", self.file("db.sock")))
            .arg(format!("--unixctl={}", self.file("server.ctl")));
        if let Some((host, port)) = self.place.listen {
            let host = if host.is_ipv6() { format!("[{host}]") } else { host.to_string() };
            command.arg(format!("--remote=ptcp:{port}:{host}"));
        }
        command.args(&self.place.arguments).arg(self.file("db")).stdout(log).stderr(stderr);
        let child = self.child.insert(command.spawn().map_err(io("ovsdb-server"))?);
        let sockets = [self.directory.join("db.sock"), self.directory.join("server.ctl")];
        let begin = Instant::now();
        while sockets.iter().any(|s| std::os::unix::net::UnixStream::connect(s).is_err()) {
            let ended = child.try_wait().map_err(io("ovsdb-server"))?;
            if ended.is_some() || begin.elapsed() > PATIENCE {
                return Err(RealError::Failed(format!("ovsdb-server does not listen: {}", self.log())));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// The same command in the server's network namespace.
    fn in_place(&self, command: Command) -> Command {
        let Some(namespace) = &self.place.namespace else { return command };
        let mut inside = Command::new("ip");
        inside.args(["netns", "exec", namespace]).arg(command.get_program()).args(command.get_args());
        inside.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        inside.stdin(std::process::Stdio::null());
        inside
    }

    /// Ends the process at once (SIGKILL), as a crash would. The database stays.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself; there is nothing to do about that.
            let _ = child.kill();
            let _ = child.wait();
        }
        self.paused = false;
    }

    /// Asks the process to end, as a service manager would, and waits for that.
    pub fn stop(&mut self) -> Result<(), RealError> {
        self.control("exit", &[])?;
        let begin = Instant::now();
        while let Some(child) = &mut self.child {
            if child.try_wait().map_err(io("ovsdb-server"))?.is_some() {
                self.child = None;
            } else if begin.elapsed() > PATIENCE {
                return Err(RealError::Failed(format!("ovsdb-server does not exit: {}", self.log())));
            } else {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        Ok(())
    }

    /// Stops the process where it is (SIGSTOP): alive, connected, mute.
    pub fn pause(&mut self) -> Result<(), RealError> {
        self.signal("-STOP")?;
        self.paused = true;
        Ok(())
    }

    /// Lets a paused process go on (SIGCONT).
    pub fn unpause(&mut self) -> Result<(), RealError> {
        self.paused = false;
        self.signal("-CONT")
    }

    fn signal(&self, signal: &str) -> Result<(), RealError> {
        let pid = self.pid().ok_or_else(|| RealError::Failed("ovsdb-server does not run".into()))?;
        let status = Command::new("kill").args([signal, &pid.to_string()]).status().map_err(io("kill"))?;
        if status.success() {
            Ok(())
        } else {
            Err(RealError::Failed(format!("kill {signal} {pid}: {status}")))
        }
    }

    /// Runs a command on its control socket, as `ovs-appctl` would.
    pub fn control(&self, command: &str, args: &[&str]) -> Result<String, RealError> {
        let reply = rpc::call(&self.control_socket(), command, &json!(args), PATIENCE)?;
        Ok(reply.as_str().map_or_else(|| reply.to_string(), str::to_owned))
    }

    /// Calls a method of the database protocol on a connection of its own.
    pub fn call(&self, method: &str, params: &Json) -> Result<Json, RealError> {
        rpc::call(&self.socket(), method, params, PATIENCE)
    }

    /// The schema that a database has now.
    pub fn schema(&self, database: &str) -> Result<Schema, RealError> {
        let json = self.call("get_schema", &json!([database]))?;
        Schema::parse(&json).map_err(|e| RealError::Failed(e.to_string()))
    }

    /// Converts a database to another schema, as `ovsdb-client convert` does.
    pub fn convert(&self, database: &str, schema: &Json) -> Result<(), RealError> {
        let socket = self.socket();
        let mut connection = rpc::Connection::open(&socket)?;
        // Without this the server drops us together with everybody who does not expect it.
        connection.call("set_db_change_aware", &json!([true]), PATIENCE)?;
        connection.call("convert", &json!([database, schema]), PATIENCE).map(drop)
    }

    /// Everything in a database, as this server has it: read by plain `select`s on
    /// a connection of its own, so that a replica can be compared with it.
    pub fn dump(&self, database: &str) -> Result<Replica, RealError> {
        let bad = |what: String| RealError::Failed(format!("dump of {database}: {what}"));
        let schema = Arc::new(self.schema(database)?);
        let mut params = vec![json!(database)];
        params.extend(schema.tables.keys().map(|t| json!({"op": "select", "table": t, "where": []})));
        let reply = self.call("transact", &Json::Array(params))?;
        let all = schema.tables.keys().map(|name| (name.clone(), Vec::new())).collect::<BTreeMap<_, _>>();
        let mut replica = Replica::new(schema.clone(), &all, &[]);
        for (position, name) in schema.tables.keys().enumerate() {
            let rows = reply.pointer(&format!("/{position}/rows")).and_then(Json::as_array);
            for row in rows.ok_or_else(|| bad(format!("no rows of {name} in {reply}")))? {
                let uuid = row.pointer("/_uuid/1").and_then(Json::as_str).unwrap_or_default();
                let uuid = Uuid::try_parse(uuid).map_err(|e| bad(format!("{name}: {e}")))?;
                let layout = replica.table_at(position).layout().clone();
                let values = layout.columns().iter().map(|(column, ty)| {
                    Value::from_json(&row[&**column], ty).map_err(|e| bad(format!("{name}.{column}: {e}")))
                });
                let values = values.collect::<Result<Vec<_>, _>>()?;
                replica.table_mut(position).put(Arc::new(Row::new(uuid, layout, values.into())));
            }
        }
        Ok(replica)
    }

    /// What it printed since it was created.
    pub fn log(&self) -> String {
        let mut text = String::new();
        if let Ok(mut file) = std::fs::File::open(self.directory.join("log")) {
            let _ = file.read_to_string(&mut text);
        }
        text
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
