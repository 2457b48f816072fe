//! Real OVS and OVN programs for integration tests.
//!
//! They come from a Debian root file system that the project's tools build; the
//! environment variable `WEIR_OVS_ROOT` names it. Programs are started through that
//! root's own dynamic loader, so neither a container nor root rights are needed.
//!
//! [`Server`] is one ovsdb-server, [`Cluster`] a raft of several. Everything here
//! blocks; tests call it between their own steps.

mod cluster;
mod rpc;
mod server;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub use cluster::{Cluster, Lost, MemberStatus};
pub use server::{Place, Server};

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
    /// A server refused a request.
    #[error("{what}: {error}")]
    Refused {
        /// The request and where it went.
        what: String,
        /// The server's explanation.
        error: String,
    },
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
