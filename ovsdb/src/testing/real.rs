//! Real OVS and OVN programs for integration tests.
//!
//! They come from a Debian root file system that the project's tools build; the
//! environment variable `WEIR_OVS_ROOT` names it. Programs are started through that
//! root's own dynamic loader, so neither a container nor root rights are needed.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::endpoint::Endpoint;

/// The environment variable that names the root file system.
pub const ROOT_VARIABLE: &str = "WEIR_OVS_ROOT";

/// Why a real program is not running. Shown by `unwrap` as readable text.
#[derive(thiserror::Error)]
pub enum RealError {
    /// No root file system is known.
    #[error("{ROOT_VARIABLE} is not set to a Debian root with OVS and OVN: run `make test`, or `make tools`")]
    NoRoot,
    /// The root file system has no such file.
    #[error("{0} is missing below {ROOT_VARIABLE}: run `make tools` again")]
    Missing(PathBuf),
    /// A program did not start or failed.
    #[error("{0}")]
    Failed(String),
    /// Input or output failed.
    #[error("{0}: {1}")]
    Io(String, std::io::Error),
}

impl std::fmt::Debug for RealError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

fn io(what: impl std::fmt::Display) -> impl FnOnce(std::io::Error) -> RealError {
    let what = what.to_string();
    move |e| RealError::Io(what, e)
}

/// The root file system with the real programs.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

impl Root {
    /// From the environment.
    pub fn from_env() -> Result<Self, RealError> {
        match std::env::var_os(ROOT_VARIABLE) {
            Some(path) if !path.is_empty() => Ok(Self(path.into())),
            _ => Err(RealError::NoRoot),
        }
    }

    /// A file of the root file system.
    pub fn file(&self, path: &str) -> Result<PathBuf, RealError> {
        let file = self.0.join(path);
        if file.exists() { Ok(file) } else { Err(RealError::Missing(file)) }
    }

    /// The northbound schema of the real OVN.
    pub fn northbound_schema(&self) -> Result<PathBuf, RealError> {
        self.file("usr/share/ovn/ovn-nb.ovsschema")
    }

    /// The switch schema of the real OVS.
    pub fn vswitch_schema(&self) -> Result<PathBuf, RealError> {
        self.file("usr/share/openvswitch/vswitch.ovsschema")
    }

    /// A command that runs a program of the root (`usr/sbin/ovsdb-server`), with
    /// all run-time files below `rundir`.
    pub fn command(&self, program: &str, rundir: &Path) -> Result<Command, RealError> {
        // The loader's place depends on the machine; each Debian root has one.
        let loaders = ["usr/lib64/ld-linux-x86-64.so.2", "usr/lib/ld-linux-aarch64.so.1"];
        let loader = loaders.iter().find_map(|l| self.file(l).ok());
        let loader = loader.ok_or_else(|| RealError::Missing(self.0.join(loaders[0])))?;
        let libraries: Vec<String> = ["x86_64-linux-gnu", "aarch64-linux-gnu"]
            .iter()
            .flat_map(|triple| ["usr/lib", "lib"].map(|dir| self.0.join(dir).join(triple)))
            .filter(|dir| dir.exists())
            .map(|dir| dir.display().to_string())
            .collect();
        let mut command = Command::new(loader);
        command.arg("--library-path").arg(libraries.join(":")).arg(self.file(program)?);
        for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVN_RUNDIR", "OVN_LOGDIR", "OVN_DBDIR"] {
            command.env(variable, rundir);
        }
        command.stdin(Stdio::null());
        Ok(command)
    }

    /// Runs a program to its end; its standard output.
    pub fn run(&self, program: &str, rundir: &Path, args: &[&str]) -> Result<String, RealError> {
        let output = self.command(program, rundir)?.args(args).output().map_err(io(program))?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            let stderr = String::from_utf8_lossy(&output.stderr);
            Err(RealError::Failed(format!("{program} {args:?}: {}: {stderr}", output.status)))
        }
    }
}

/// A real ovsdb-server on a unix socket in a directory of its own.
/// Ended, and its directory removed, when dropped.
#[derive(Debug)]
pub struct Server {
    root: Root,
    directory: PathBuf,
    child: Option<Child>,
}

/// How long a server may take to listen.
const START: Duration = Duration::from_secs(20);

impl Server {
    /// Starts a server with a new standalone database of this schema file.
    pub fn start(schema: &Path) -> Result<Self, RealError> {
        Self::create(schema, |db, schema| vec!["create".into(), db, schema])
    }

    /// Starts a cluster of one with a new northbound database.
    pub fn clustered_northbound() -> Result<Self, RealError> {
        let schema = Root::from_env()?.northbound_schema()?;
        // Members can speak over unix sockets: no port to collide on.
        Self::create(&schema, |db, schema| {
            let address = format!("unix:{db}.raft");
            vec!["create-cluster".into(), db, schema, address]
        })
    }

    /// Starts a northbound database with so many members.
    pub fn northbound_cluster(members: usize) -> Result<Vec<Self>, RealError> {
        let first = Self::clustered_northbound()?;
        let remote = format!("unix:{}", first.file("db.raft"));
        let mut cluster = vec![first];
        for _ in 1..members {
            let join = |db: String, _| {
                let address = format!("unix:{db}.raft");
                vec!["join-cluster".into(), db, "OVN_Northbound".into(), address, remote.clone()]
            };
            let member = Self::create(Path::new(""), join)?;
            let remote = member.endpoint().to_string();
            let args = ["--timeout=30", "wait", &remote, "OVN_Northbound", "connected"];
            member.root.run("usr/bin/ovsdb-client", &member.directory, &args)?;
            cluster.push(member);
        }
        Ok(cluster)
    }

    fn create(schema: &Path, args: impl FnOnce(String, String) -> Vec<String>) -> Result<Self, RealError> {
        let root = Root::from_env()?;
        let directory = std::env::temp_dir().join(format!("weir-{}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir(&directory).map_err(io(directory.display()))?;
        let mut server = Self { root, directory, child: None };
        let (db, schema) = (server.file("db"), schema.display().to_string());
        let args = args(db, schema);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        server.root.run("usr/bin/ovsdb-tool", &server.directory, &args)?;
        server.resume()?;
        Ok(server)
    }

    /// Starts a northbound database.
    pub fn northbound() -> Result<Self, RealError> {
        Self::start(&Root::from_env()?.northbound_schema()?)
    }

    /// Starts an `Open_vSwitch` database.
    pub fn vswitch() -> Result<Self, RealError> {
        Self::start(&Root::from_env()?.vswitch_schema()?)
    }

    fn file(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// Its directory: database, sockets and log.
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

    /// Where to connect.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint::Unix(self.socket())
    }

    /// The programs it came from.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// Its process, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Starts the process (again) on the existing database.
    pub fn resume(&mut self) -> Result<(), RealError> {
        self.kill();
        // A killed server leaves its sockets behind.
        for socket in [self.socket(), self.control_socket(), self.directory.join("db.raft")] {
            let _ = std::fs::remove_file(socket);
        }
        let log = std::fs::File::create(self.directory.join("log")).map_err(io("log"))?;
        let stderr = log.try_clone().map_err(io("log"))?;
        let child = self
            .root
            .command("usr/sbin/ovsdb-server", &self.directory)?
            .arg(format!("--remote=punix:{}", self.file("db.sock")))
            .arg(format!("--unixctl={}", self.file("server.ctl")))
            .arg(self.file("db"))
            .stdout(log)
            .stderr(stderr)
            .spawn()
            .map_err(io("ovsdb-server"))?;
        let child = self.child.insert(child);
        let sockets = [self.directory.join("db.sock"), self.directory.join("server.ctl")];
        let begin = Instant::now();
        while sockets.iter().any(|s| std::os::unix::net::UnixStream::connect(s).is_err()) {
            let ended = child.try_wait().map_err(io("ovsdb-server"))?;
            if ended.is_some() || begin.elapsed() > START {
                return Err(RealError::Failed(format!("ovsdb-server does not listen: {}", self.log())));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Ends the process at once, as a crash would. The database stays.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself; there is nothing to do about that.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn log(&self) -> String {
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
