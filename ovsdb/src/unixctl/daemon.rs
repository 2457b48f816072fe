//! Typed commands of control sockets: what each daemon answers, parsed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::cluster::ClusterStatus;
use super::{Error, call, socket_of};

/// Longest that a command may take unless [`Daemon::timeout`] says otherwise.
const PATIENCE: Duration = Duration::from_secs(10);

/// A daemon of OVS or OVN, by its control socket.
///
/// ```no_run
/// # async fn demo() -> Result<(), ovsdb::unixctl::Error> {
/// use ovsdb::unixctl::Daemon;
/// let server = Daemon::at("/run/ovn/ovnnb_db.ctl");
/// println!("{} holds {} cells", server.version().await?, server.memory().await?["cells"]);
/// let cluster = server.cluster_status("OVN_Northbound").await?;
/// println!("{:?} in term {}, {} members", cluster.role, cluster.term, cluster.servers.len());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Daemon {
    socket: PathBuf,
    timeout: Duration,
}

impl Daemon {
    /// The daemon that listens at a socket.
    pub fn at(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into(), timeout: PATIENCE }
    }
    /// The daemon of that name (`ovn-northd`), found by its pid file.
    pub fn in_rundir(rundir: &Path, name: &str) -> Result<Self, Error> {
        socket_of(rundir, name).map(Self::at)
    }
    /// Bounds every command.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Any command; its text.
    pub async fn call(&self, command: &str, args: &[&str]) -> Result<String, Error> {
        call(&self.socket, command, args, self.timeout).await
    }

    /// Calls a command that says nothing when all is well.
    async fn act(&self, command: &str, args: &[&str]) -> Result<(), Error> {
        match self.call(command, args).await?.trim() {
            "" => Ok(()),
            // Some commands report failure as a success with text.
            text => Err(Error::Refused(text.to_owned())),
        }
    }

    /// `version`: name and version of the program, first line.
    pub async fn version(&self) -> Result<String, Error> {
        Ok(self.call("version", &[]).await?.lines().next().unwrap_or_default().to_owned())
    }
    /// `list-commands`: the commands that the daemon knows.
    pub async fn commands(&self) -> Result<Vec<String>, Error> {
        let text = self.call("list-commands", &[]).await?;
        // The first line is a heading; arguments follow the name.
        Ok(text.lines().skip(1).filter_map(|l| l.split_whitespace().next()).map(str::to_owned).collect())
    }
    /// `memory/show`: counts of what is held (cells, monitors, sessions, …), by name.
    pub async fn memory(&self) -> Result<BTreeMap<String, u64>, Error> {
        memory(&self.call("memory/show", &[]).await?)
    }
    /// `exit`: the daemon ends.
    pub async fn exit(&self) -> Result<(), Error> {
        self.act("exit", &[]).await
    }

    // ovsdb-server

    /// `ovsdb-server/list-dbs`: the databases served, `_Server` included.
    pub async fn databases(&self) -> Result<Vec<String>, Error> {
        Ok(lines(&self.call("ovsdb-server/list-dbs", &[]).await?))
    }
    /// `ovsdb-server/list-remotes`: where it listens and connects to.
    pub async fn remotes(&self) -> Result<Vec<String>, Error> {
        Ok(lines(&self.call("ovsdb-server/list-remotes", &[]).await?))
    }
    /// `ovsdb-server/add-remote`: listens there too (`ptcp:6641:127.0.0.1`).
    pub async fn add_remote(&self, remote: &str) -> Result<(), Error> {
        self.act("ovsdb-server/add-remote", &[remote]).await
    }
    /// `ovsdb-server/remove-remote`: no longer listens there.
    pub async fn remove_remote(&self, remote: &str) -> Result<(), Error> {
        self.act("ovsdb-server/remove-remote", &[remote]).await
    }
    /// `ovsdb-server/sync-status`: whether it is active or a backup.
    pub async fn sync_status(&self) -> Result<SyncStatus, Error> {
        sync_status(&self.call("ovsdb-server/sync-status", &[]).await?)
    }
    /// `ovsdb-server/compact`: rewrites the log of one database, or of all.
    pub async fn compact(&self, database: Option<&str>) -> Result<(), Error> {
        self.act("ovsdb-server/compact", database.as_slice()).await
    }
    /// `ovsdb-server/disable-monitor-cond`: until its restart, the server knows
    /// neither `monitor_cond` nor `monitor_cond_since`. There is no way back.
    pub async fn disable_monitor_cond(&self) -> Result<(), Error> {
        self.act("ovsdb-server/disable-monitor-cond", &[]).await
    }
    /// `ovsdb-server/reconnect`: drops every connection.
    pub async fn drop_connections(&self) -> Result<(), Error> {
        self.act("ovsdb-server/reconnect", &[]).await
    }

    // ovsdb-server of a cluster

    /// `cluster/status`: what a member knows of its cluster.
    pub async fn cluster_status(&self, database: &str) -> Result<ClusterStatus, Error> {
        ClusterStatus::parse(&self.call("cluster/status", &[database]).await?)
    }
    /// `cluster/leave`: the member starts to leave; [`Self::cluster_status`] tells
    /// when it has.
    pub async fn cluster_leave(&self, database: &str) -> Result<(), Error> {
        self.act("cluster/leave", &[database]).await
    }
    /// `cluster/kick`: the leader removes a member, named by its id or address.
    pub async fn cluster_kick(&self, database: &str, member: &str) -> Result<(), Error> {
        match self.call("cluster/kick", &[database, member]).await?.trim() {
            "" | "sent removal request to leader" | "started removal" => Ok(()),
            text => Err(Error::Refused(text.to_owned())),
        }
    }
    /// `cluster/change-election-timer`: at most doubles or halves the timer, which the
    /// leader alone does.
    pub async fn change_election_timer(&self, database: &str, timer: Duration) -> Result<(), Error> {
        let milliseconds = timer.as_millis().to_string();
        let text = self.call("cluster/change-election-timer", &[database, &milliseconds]).await?;
        match text.trim() {
            "" => Ok(()),
            text if text.starts_with("change of election timer initiated") => Ok(()),
            text => Err(Error::Refused(text.to_owned())),
        }
    }

    // ovn-controller and ovn-northd

    /// `connection-status` of ovn-controller: whether it is connected to the
    /// southbound database.
    pub async fn is_connected(&self) -> Result<bool, Error> {
        connected(&self.call("connection-status", &[]).await?)
    }
    /// `nb-connection-status` and `sb-connection-status` of ovn-northd.
    pub async fn northd_is_connected(&self) -> Result<(bool, bool), Error> {
        let northbound = connected(&self.call("nb-connection-status", &[]).await?)?;
        Ok((northbound, connected(&self.call("sb-connection-status", &[]).await?)?))
    }
    /// `status` of ovn-northd: `active`, `standby` or `paused`.
    pub async fn northd_status(&self) -> Result<String, Error> {
        let text = self.call("status", &[]).await?;
        let status = text.trim().strip_prefix("Status:").map(|s| s.trim().to_owned());
        status.ok_or_else(|| unreadable("status", &text))
    }
    /// `inc-engine/show-stats` of ovn-northd and ovn-controller, as they print it.
    pub async fn engine_stats(&self) -> Result<String, Error> {
        self.call("inc-engine/show-stats", &[]).await
    }
}

/// Whether an ovsdb-server replicates another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyncStatus {
    /// It takes transactions.
    Active,
    /// It follows another server; the rest of what it says.
    Backup(String),
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::trim).filter(|l| !l.is_empty()).map(str::to_owned).collect()
}

pub(super) fn unreadable(command: &str, text: &str) -> Error {
    Error::Protocol(format!("{command} answered {:?}", text.chars().take(200).collect::<String>()))
}

fn memory(text: &str) -> Result<BTreeMap<String, u64>, Error> {
    let pair = |word: &str| {
        let (name, count) = word.rsplit_once(':')?;
        Some((name.to_owned(), count.parse().ok()?))
    };
    text.split_whitespace().map(pair).collect::<Option<_>>().ok_or_else(|| unreadable("memory/show", text))
}

fn sync_status(text: &str) -> Result<SyncStatus, Error> {
    let mut lines = text.lines();
    match lines.next().map(str::trim) {
        Some("state: active") => Ok(SyncStatus::Active),
        Some("state: backup") => Ok(SyncStatus::Backup(lines.collect::<Vec<_>>().join("\n"))),
        _ => Err(unreadable("ovsdb-server/sync-status", text)),
    }
}

fn connected(text: &str) -> Result<bool, Error> {
    match text.trim() {
        "connected" => Ok(true),
        "not connected" => Ok(false),
        _ => Err(unreadable("connection status", text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_states_and_nonsense() {
        let counts = memory("atoms:36 cells:43 n-weak-refs:2 raft-log:2 sessions:1\n").unwrap();
        assert_eq!((counts["atoms"], counts["n-weak-refs"], counts.len()), (36, 2, 5));
        assert_eq!(memory("").unwrap(), BTreeMap::new());
        assert!(memory("atoms").is_err() && memory("atoms:x").is_err());
        assert_eq!(sync_status("state: active\n").unwrap(), SyncStatus::Active);
        let backup = "state: backup\nreplicating: tcp:1.2.3.4:6641\ndatabase: A\n";
        let expected = SyncStatus::Backup("replicating: tcp:1.2.3.4:6641\ndatabase: A".into());
        assert_eq!(sync_status(backup).unwrap(), expected);
        assert!(sync_status("").is_err());
        assert!(connected("connected\n").unwrap() && !connected("not connected\n").unwrap());
        assert!(connected("perhaps").is_err());
    }
}
