//! Control sockets of OVS and OVN daemons: what `ovs-appctl` speaks.
//!
//! JSON-RPC 1.0 over a unix socket, one call at a time, on the same framer as
//! OVSDB. A call costs a tenth of a millisecond, a fork of `ovs-appctl` four.
//! [`Daemon`] has the usual commands with their answers parsed, [`call`] is any other.

mod cluster;
mod daemon;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::framer::Framer;

pub use cluster::{ClusterServer, ClusterStatus, Role};
pub use daemon::{Daemon, SyncStatus};

/// Longest reply accepted.
const MAX_REPLY: usize = 256 << 20;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket could not be used.
    #[error("control socket: {0}")]
    Io(#[from] std::io::Error),
    /// No reply in time.
    #[error("no reply to {0:?} within {1:?}")]
    Timeout(String, Duration),
    /// The daemon refused the command; its explanation.
    #[error("{0}")]
    Refused(String),
    /// The reply made no sense.
    #[error("bad reply: {0}")]
    Protocol(String),
    /// No control socket of that daemon.
    #[error("no control socket of {daemon} in {rundir}: {problem}")]
    NotFound {
        /// The directory looked at.
        rundir: PathBuf,
        /// The daemon looked for.
        daemon: String,
        /// What was wrong.
        problem: String,
    },
}

#[derive(Deserialize)]
struct Reply {
    result: Option<serde_json::Value>,
    error: Option<serde_json::Value>,
}

/// Runs a command and returns its text.
pub async fn call(socket: &Path, command: &str, args: &[&str], timeout: Duration) -> Result<String, Error> {
    tokio::time::timeout(timeout, exchange(socket, command, args))
        .await
        .map_err(|_| Error::Timeout(command.into(), timeout))?
}

async fn exchange(socket: &Path, command: &str, args: &[&str]) -> Result<String, Error> {
    let mut stream = UnixStream::connect(socket).await?;
    let request = serde_json::json!({"id": 0, "method": command, "params": args});
    stream.write_all(request.to_string().as_bytes()).await?;
    let mut framer = Framer::new(MAX_REPLY);
    loop {
        if let Some(message) = framer.next_message().map_err(|e| Error::Protocol(e.to_string()))? {
            let reply: Reply =
                serde_json::from_slice(&message).map_err(|e| Error::Protocol(e.to_string()))?;
            return match (reply.error, reply.result) {
                (None | Some(serde_json::Value::Null), Some(serde_json::Value::String(text))) => Ok(text),
                (None | Some(serde_json::Value::Null), None) => Ok(String::new()),
                // Newer daemons may answer with structured JSON.
                (None | Some(serde_json::Value::Null), Some(other)) => Ok(other.to_string()),
                (Some(serde_json::Value::String(text)), _) => Err(Error::Refused(text.trim_end().into())),
                (Some(other), _) => Err(Error::Refused(other.to_string())),
            };
        }
        if stream.read_buf(framer.buffer()).await? == 0 {
            return Err(Error::Protocol("connection closed before the reply".into()));
        }
    }
}

/// The control socket of a daemon (`ovs-vswitchd`, `ovn-controller`, …): found by
/// its pid file in the run directory, as `ovs-appctl -t` does.
pub fn socket_of(rundir: &Path, daemon: &str) -> Result<PathBuf, Error> {
    let not_found =
        |problem: String| Error::NotFound { rundir: rundir.into(), daemon: daemon.into(), problem };
    let pidfile = rundir.join(format!("{daemon}.pid"));
    let pid =
        std::fs::read_to_string(&pidfile).map_err(|e| not_found(format!("{}: {e}", pidfile.display())))?;
    let pid: u32 = pid.trim().parse().map_err(|_| not_found(format!("{}: no pid", pidfile.display())))?;
    Ok(rundir.join(format!("{daemon}.{pid}.ctl")))
}
