//! `ovn-nbctl`: a process for each command, and the mode with a daemon.

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use super::setup::{Filled, SWITCH, status_kib};

fn command(filled: &Filled) -> Command {
    let mut command = filled.server.root().command("usr/bin/ovn-nbctl", filled.server.directory()).unwrap();
    command.stdout(std::process::Stdio::null());
    command
}

fn database(filled: &Filled) -> String {
    format!("--db=unix:{}", filled.server.socket().display())
}

/// Runs to the end; peak RSS in KiB, as last seen.
fn peak(mut child: Child) -> usize {
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        peak = peak.max(status_kib(child.id(), "VmHWM"));
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(child.wait().unwrap().success());
    peak
}

/// A command that has to load the ports.
pub fn load(filled: &Filled) -> (Duration, usize) {
    let begin = Instant::now();
    let child =
        command(filled).args([&database(filled), "lsp-get-addresses", "pod-1.namespace-1"]).spawn().unwrap();
    let peak = peak(child);
    (begin.elapsed(), peak)
}

pub fn single(filled: &Filled, rounds: usize) -> Vec<Duration> {
    let mut times: Vec<Duration> = (0..rounds)
        .map(|i| {
            let begin = Instant::now();
            let mut command = command(filled);
            command.arg(database(filled)).args(add("fork", i, 1));
            assert!(command.status().unwrap().success());
            begin.elapsed()
        })
        .collect();
    times.sort();
    times
}

pub fn batches(filled: &Filled, total: usize, batch: usize) -> Duration {
    let begin = Instant::now();
    for first in (0..total).step_by(batch) {
        let mut command = command(filled);
        command.arg(database(filled)).args(add("b", first, batch));
        assert!(command.status().unwrap().success());
    }
    begin.elapsed()
}

/// Arguments that add ports with their address in one transaction.
fn add(prefix: &str, first: usize, count: usize) -> Vec<String> {
    let mut words = Vec::new();
    for i in first..first + count {
        let (name, high, low) = (format!("{prefix}-{i}"), i / 256 % 256, i % 256);
        // The tool refuses an address that another port has.
        let net = 200 + prefix.len();
        let address = format!("02:01:00:{net:02x}:{high:02x}:{low:02x} 10.{net}.{high}.{low}");
        for word in ["--", "lsp-add", SWITCH, &name, "--", "lsp-set-addresses", &name, &address] {
            words.push(word.to_owned());
        }
    }
    words
}

/// `ovn-nbctl --detach`; ended when dropped.
pub struct Daemon<'a> {
    filled: &'a Filled,
    child: Child,
    socket: String,
    /// From its start to its first answer.
    pub time: Duration,
}

impl<'a> Daemon<'a> {
    pub fn start(filled: &'a Filled) -> Self {
        let socket = filled.server.directory().join("nbctl.ctl").display().to_string();
        let begin = Instant::now();
        let mut command = command(filled);
        command.arg(database(filled)).arg(format!("--unixctl={socket}"));
        // Without `--detach` it would want a command; `--no-detach` is not there, so
        // it is told to detach and found by its pid file.
        let pidfile = filled.server.directory().join("nbctl.pid");
        command.arg("--detach").arg(format!("--pidfile={}", pidfile.display()));
        let child = command.spawn().unwrap();
        let mut daemon = Self { filled, child, socket, time: Duration::ZERO };
        assert!(daemon.child.wait().unwrap().success());
        daemon.run(&["get".into(), "NB_Global".into(), ".".into(), "nb_cfg".into()]);
        if filled.ports > 1 {
            daemon.run(&["lsp-get-addresses".into(), "pod-1.namespace-1".into()]);
        }
        daemon.time = begin.elapsed();
        daemon
    }

    fn pid(&self) -> u32 {
        let text = std::fs::read_to_string(self.filled.server.directory().join("nbctl.pid"));
        text.ok().and_then(|t| t.trim().parse().ok()).unwrap_or(0)
    }

    pub fn peak_rss(&self) -> usize {
        status_kib(self.pid(), "VmHWM")
    }

    fn run(&self, words: &[String]) {
        let status = command(self.filled).env("OVN_NB_DAEMON", &self.socket).args(words).status().unwrap();
        assert!(status.success());
    }

    pub fn single(&self, rounds: usize) -> Vec<Duration> {
        let mut times: Vec<Duration> = (0..rounds)
            .map(|i| {
                let begin = Instant::now();
                self.run(&add("daemon", i, 1));
                begin.elapsed()
            })
            .collect();
        times.sort();
        times
    }

    pub fn batches(&self, total: usize, batch: usize) -> Duration {
        let begin = Instant::now();
        for first in (0..total).step_by(batch) {
            self.run(&add("b", first, batch));
        }
        begin.elapsed()
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let mut exit =
            self.filled.server.root().command("usr/bin/ovn-appctl", self.filled.server.directory()).unwrap();
        let _ = exit.args(["-t", &self.socket, "exit"]).status();
    }
}
