//! Long-running processes of a lab: started apart from the terminal, recorded,
//! and ended by identity.
//!
//! In: a command, a cgroup, a network namespace, a log file. Out: a record
//! (pid, start time, boot) that outlives this program. A recycled pid has
//! another start time, so nothing else is ever killed.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::cgroup;

/// Identity of a process that was started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Process id in the machine's namespace.
    pub pid: i32,
    /// Start time in clock ticks since the machine's boot (`/proc/PID/stat`).
    pub started: u64,
    /// The kernel's id of that boot.
    pub boot: String,
}

impl Process {
    /// Takes the identity of a running process.
    pub fn of(pid: u32) -> Result<Self> {
        let pid = i32::try_from(pid)?;
        let (_, started) = stat(pid).with_context(|| format!("process {pid} is gone"))?;
        Ok(Self { pid, started, boot: boot_id()? })
    }

    /// Reads a record; absent, unreadable or of an ended process is `None`.
    pub fn read(path: &Path) -> Option<Self> {
        let process: Self = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        process.alive().then_some(process)
    }

    /// Writes the record.
    pub fn write(&self, path: &Path) -> Result<()> {
        fs::write(path, serde_json::to_vec(self)?).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Whether this very process still runs (a zombie does not).
    pub fn alive(&self) -> bool {
        let same = stat(self.pid).is_some_and(|(state, started)| state != 'Z' && started == self.started);
        same && boot_id().is_ok_and(|boot| boot == self.boot)
    }

    /// Sends a signal if it is still this process.
    pub fn signal(&self, signal: Signal) {
        if self.alive() {
            // It may end between the look and the signal; that is the aim.
            let _ = kill(Pid::from_raw(self.pid), signal);
        }
    }

    /// Asks it to end, insists after `patience`, and waits until it is gone.
    pub fn end(&self, patience: Duration) {
        self.signal(Signal::SIGTERM);
        let begun = Instant::now();
        while self.alive() && begun.elapsed() < patience {
            std::thread::sleep(Duration::from_millis(20));
        }
        self.signal(Signal::SIGKILL);
        let begun = Instant::now();
        while self.alive() && begun.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// State letter and start time from `/proc/PID/stat`.
fn stat(pid: i32) -> Option<(char, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may itself hold spaces and parentheses.
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

fn boot_id() -> Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// How a process of the lab is to be started.
pub struct Launch<'a> {
    /// The `lab` program that places it (see [`become_placed`]).
    pub lab: &'a Path,
    /// Cgroup to join, relative to each hierarchy's root.
    pub cgroup: &'a str,
    /// Named network namespace to enter; none keeps the machine's.
    pub netns: Option<&'a str>,
    /// File that gets its output (appended).
    pub log: &'a Path,
    /// File for the record.
    pub record: PathBuf,
}

impl Launch<'_> {
    /// Starts `command` in a session, cgroup and namespace of its own and
    /// records it. Does nothing when the recorded process still runs.
    pub fn start(&self, command: &Command) -> Result<Process> {
        if let Some(process) = Process::read(&self.record) {
            return Ok(process);
        }
        let open = || File::options().create(true).append(true).open(self.log);
        let log = open().with_context(|| format!("cannot open {}", self.log.display()))?;
        let mut placed = Command::new(self.lab);
        placed.arg("place").arg("--cgroup").arg(self.cgroup);
        if let Some(netns) = self.netns {
            placed.arg("--netns").arg(netns);
        }
        placed.arg("--").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            if let Some(value) = value {
                placed.env(name, value);
            }
        }
        let mut child = placed
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", self.lab.display()))?;
        let process = Process::of(child.id())?;
        process.write(&self.record)?;
        // Reaps it when it ends while this program still runs (tests stay for
        // long); otherwise it is the machine's process 1 that does.
        std::thread::spawn(move || child.wait());
        Ok(process)
    }
}

/// The hidden subcommand `lab place`: puts the calling process where it is to
/// run, then becomes `command`. Its pid stays the same. Returns only on error.
pub fn become_placed(cgroup: Option<&str>, netns: Option<&str>, command: &[String]) -> Result<()> {
    let (program, args) = command.split_first().context("no command to run")?;
    // Fails only for the leader of a process group, which needs no new session.
    let _ = nix::unistd::setsid();
    if let Some(cgroup) = cgroup {
        cgroup::join(cgroup)?;
    }
    if let Some(netns) = netns {
        crate::netns::enter(netns)?;
    }
    let error = Command::new(program).args(args).exec();
    bail!("cannot run {program}: {error}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recycled_pid_is_not_the_process() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Process::of(child.id()).unwrap();
        assert!(process.alive());
        let other = Process { started: process.started + 1, ..process.clone() };
        assert!(!other.alive());
        other.signal(Signal::SIGKILL);
        assert!(process.alive(), "another process was killed");
        process.signal(Signal::SIGKILL);
        child.wait().unwrap();
        assert!(!process.alive());
    }
}
