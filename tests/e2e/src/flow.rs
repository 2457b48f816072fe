//! Traffic that runs while a test breaks things, and what of it was lost.
//!
//! In: a pod and where to send. Out: how many packets went unanswered, and the
//! longest run of them. A packet a millisecond: what the loss of one packet is
//! called a millisecond of outage by.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lab::checks::probe::PodView;
use lab::node;
use lab::state::Node;

use crate::cluster::Cluster;

/// Pings that are on their way.
pub struct Flow {
    child: Child,
    /// What ping prints. A pipe that nobody reads meanwhile would stop it after a second.
    output: File,
    what: String,
}

/// What became of them.
#[derive(Clone, Debug)]
pub struct Loss {
    /// From where to where.
    pub what: String,
    /// Sent, as far as an answer could have come.
    pub sent: usize,
    /// Without an answer.
    pub lost: usize,
    /// The longest run of them: milliseconds of outage.
    pub longest: usize,
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} of {} lost, {} in a row", self.what, self.lost, self.sent, self.longest)
    }
}

/// The network namespace of a pod's default interface, as a path in its node.
pub fn netns(cluster: &Cluster, on: &Node, pod: &PodView) -> Result<String> {
    let port = format!("{}.{}", pod.name, pod.namespace);
    let switch = cluster.open_vswitch(on)?;
    let interfaces = switch.replica.table("Interface").context("no table Interface")?;
    let found = interfaces.rows().find(|row| row.map_get("external_ids", "iface-id") == Some(&*port));
    let path = found.and_then(|row| row.map_get("external_ids", "pod_netns").map(str::to_owned));
    path.with_context(|| format!("no interface of {port} on {}", on.name))
}

impl Drop for Flow {
    fn drop(&mut self) {
        // Ended already, as a rule.
        let _ = self.signal("-KILL");
        let _ = self.child.wait();
    }
}

impl Flow {
    fn signal(&self, signal: &str) -> Result<()> {
        lab::run::run("kill", [signal, "--", &format!("-{}", self.child.id())])
    }

    fn read(&mut self) -> Result<String> {
        self.child.wait().context("ping did not end")?;
        // nsenter ends before ping has said its last words.
        for _ in 0..100 {
            let mut text = String::new();
            self.output.seek(SeekFrom::Start(0)).context("ping's output")?;
            self.output.read_to_string(&mut text).context("ping's output")?;
            if text.contains("packets transmitted") {
                return Ok(text);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("{}: ping gave no summary", self.what)
    }

    /// Starts to ping from a pod, a packet a millisecond, with the system's `ping`
    /// (the pod's own has no such rate).
    pub fn start(cluster: &Cluster, from: &PodView, to: IpAddr) -> Result<Self> {
        let on = cluster.lab.node(&from.node)?;
        let netns = netns(cluster, &on, from)?;
        let mut command = node::command_in(&cluster.lab, &on)?;
        command.args(["nsenter", &format!("--net={netns}"), "ping", "-n", "-i", "0.001", &to.to_string()]);
        let output = tempfile::tempfile().context("a file for ping's output")?;
        // A group of its own: nsenter stays as the parent, and only signals to both reach ping.
        command.process_group(0);
        let child = command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(Stdio::null()).spawn();
        Ok(Self {
            child: child.context("cannot start ping")?,
            output,
            what: format!("{} to {to}", from.name),
        })
    }

    /// Ends it and counts. Packets of the last quarter of a second may still be on
    /// their way and do not count.
    pub fn end(mut self) -> Result<Loss> {
        const UNDERWAY: usize = 250;
        std::thread::sleep(Duration::from_millis(500));
        self.signal("-INT")?;
        let text = self.read()?;
        let mut answered: Vec<usize> = text.lines().filter_map(sequence).collect();
        ensure!(!answered.is_empty(), "{}: no answer at all", self.what);
        unwrap_sequence(&mut answered);
        answered.sort_unstable();
        answered.dedup();
        let transmitted = text.lines().find_map(|line| {
            let (count, rest) = line.split_once(' ')?;
            rest.starts_with("packets transmitted").then(|| count.parse::<usize>().ok())?
        });
        let transmitted = transmitted.with_context(|| format!("{}: no summary", self.what))?;
        let sent = transmitted.saturating_sub(UNDERWAY).max(*answered.last().unwrap_or(&0));
        let mut lost = 0;
        let mut longest = 0;
        let mut before = 0;
        for number in answered.iter().copied().chain([sent + 1]) {
            let gap = number.saturating_sub(before + 1);
            (lost, longest, before) = (lost + gap, longest.max(gap), number);
        }
        Ok(Loss { what: self.what.clone(), sent, lost, longest })
    }
}

/// `icmp_seq=N` of an answer's line.
fn sequence(line: &str) -> Option<usize> {
    if !line.contains("bytes from") {
        return None;
    }
    line.split_whitespace().find_map(|word| word.strip_prefix("icmp_seq=")?.parse().ok())
}

/// Sequence numbers have 16 bits; answers come nearly in order.
fn unwrap_sequence(numbers: &mut [usize]) {
    const TURN: usize = 1 << 16;
    let mut base = 0;
    let mut last = 0;
    for number in numbers {
        let mut full = *number + base;
        if full + TURN / 2 < last {
            base += TURN;
            full += TURN;
        } else if base > 0 && full > last + TURN / 2 {
            full -= TURN;
        }
        last = last.max(full);
        *number = full;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_over_the_turn_of_their_numbers() {
        let line = "64 bytes from 10.16.0.3: icmp_seq=7 ttl=64 time=0.1 ms";
        assert_eq!(sequence(line), Some(7));
        assert_eq!(sequence("From 10.16.0.1 icmp_seq=9 Destination Host Unreachable"), None);
        let mut numbers = vec![65_534, 65_535, 0, 65_533, 1, 2];
        unwrap_sequence(&mut numbers);
        assert_eq!(numbers, [65_534, 65_535, 65_536, 65_533, 65_537, 65_538]);
    }
}
