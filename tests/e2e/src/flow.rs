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

/// A run of packets without an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gap {
    /// When it began, seconds since 1970: the answer before it came.
    pub at: f64,
    /// When the answer after it came; the end of everything if none did.
    pub until: f64,
    /// Packets.
    pub length: usize,
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
    /// All runs, the first one first.
    pub gaps: Vec<Gap>,
}

impl Loss {
    /// Gaps in which none of `others` missed a packet: half a second either way counts as the same moment.
    ///
    /// Who pings beside the network under test, through the kernel alone, tells with it what the machine lost.
    pub fn alone(&self, others: &[Loss]) -> Vec<Gap> {
        const MOMENT: f64 = 0.5;
        let all: Vec<Gap> = others.iter().flat_map(|other| other.gaps.iter().copied()).collect();
        let shared = |gap: &Gap| {
            all.iter().any(|other| other.at < gap.until + MOMENT && gap.at < other.until + MOMENT)
        };
        self.gaps.iter().copied().filter(|gap| !shared(gap)).collect()
    }
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} of {} lost, {} in a row", self.what, self.lost, self.sent, self.longest)?;
        for gap in self.gaps.iter().take(5) {
            write!(f, "; {} at {:.3} for {:.0} ms", gap.length, gap.at, (gap.until - gap.at) * 1000.0)?;
        }
        Ok(())
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
        Self::begin(cluster, &on, Some(&netns), &from.name, to)
    }

    /// The same from a node itself: beside the pods' network if `to` is a host of the lab's own networks.
    pub fn start_on(cluster: &Cluster, from: &Node, to: IpAddr) -> Result<Self> {
        Self::begin(cluster, from, None, &from.name, to)
    }

    fn begin(cluster: &Cluster, on: &Node, netns: Option<&str>, name: &str, to: IpAddr) -> Result<Self> {
        let mut command = node::command_in(&cluster.lab, on)?;
        if let Some(netns) = netns {
            command.args(["nsenter", &format!("--net={netns}")]);
        }
        // `-D`: when each answer came.
        command.args(["ping", "-n", "-D", "-i", "0.001", &to.to_string()]);
        let output = tempfile::tempfile().context("a file for ping's output")?;
        // A group of its own: nsenter stays as the parent, and only signals to both reach ping.
        command.process_group(0);
        let child = command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(Stdio::null()).spawn();
        Ok(Self { child: child.context("cannot start ping")?, output, what: format!("{name} to {to}") })
    }

    /// Ends it and counts. Packets of the last quarter of a second may still be on
    /// their way and do not count.
    pub fn end(mut self) -> Result<Loss> {
        const UNDERWAY: usize = 250;
        std::thread::sleep(Duration::from_millis(500));
        self.signal("-INT")?;
        let text = self.read()?;
        let (mut numbers, times): (Vec<usize>, Vec<f64>) = text.lines().filter_map(answer).unzip();
        ensure!(!numbers.is_empty(), "{}: no answer at all", self.what);
        unwrap_sequence(&mut numbers);
        let mut answered: Vec<(usize, f64)> = numbers.into_iter().zip(times).collect();
        answered.sort_unstable_by_key(|(number, _)| *number);
        answered.dedup_by_key(|(number, _)| *number);
        let transmitted = text.lines().find_map(|line| {
            let (count, rest) = line.split_once(' ')?;
            rest.starts_with("packets transmitted").then(|| count.parse::<usize>().ok())?
        });
        let transmitted = transmitted.with_context(|| format!("{}: no summary", self.what))?;
        let last = answered.last().copied().unwrap_or_default();
        let sent = transmitted.saturating_sub(UNDERWAY).max(last.0);
        Ok(count(self.what.clone(), &answered, sent))
    }
}

/// What is missing between answers (number and time, in order) of `sent` packets.
fn count(what: String, answered: &[(usize, f64)], sent: usize) -> Loss {
    let end = answered.last().map_or(0.0, |(_, time)| *time);
    let mut before = (0, answered.first().map_or(0.0, |(_, time)| *time));
    let mut gaps = Vec::new();
    for (number, time) in answered.iter().copied().chain([(sent + 1, end)]) {
        let length = number.saturating_sub(before.0 + 1);
        if length > 0 {
            gaps.push(Gap { at: before.1, until: time, length });
        }
        before = (number, time);
    }
    let lost = gaps.iter().map(|gap| gap.length).sum();
    let longest = gaps.iter().map(|gap| gap.length).max().unwrap_or(0);
    Loss { what, sent, lost, longest, gaps }
}

/// `icmp_seq=N` of an answer's line, and when it came.
fn answer(line: &str) -> Option<(usize, f64)> {
    let (time, rest) = line.strip_prefix('[')?.split_once("] ")?;
    if !rest.contains("bytes from") {
        return None;
    }
    let number = rest.split_whitespace().find_map(|word| word.strip_prefix("icmp_seq=")?.parse().ok())?;
    Some((number, time.parse().ok()?))
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
        let line = "[1700000000.25] 64 bytes from 10.16.0.3: icmp_seq=7 ttl=64 time=0.1 ms";
        assert_eq!(answer(line), Some((7, 1_700_000_000.25)));
        assert_eq!(answer("[1700000000.25] From 10.16.0.1 icmp_seq=9 Destination Host Unreachable"), None);
        let mut numbers = vec![65_534, 65_535, 0, 65_533, 1, 2];
        unwrap_sequence(&mut numbers);
        assert_eq!(numbers, [65_534, 65_535, 65_536, 65_533, 65_537, 65_538]);
    }

    #[test]
    fn gaps_tell_when_they_were_and_who_else_had_one() {
        let answered = [(1, 10.0), (2, 10.1), (5, 10.2), (6, 20.0)];
        let loss = count("x".into(), &answered, 8);
        assert_eq!((loss.sent, loss.lost, loss.longest), (8, 4, 2));
        let gap = |at, until| Gap { at, until, length: 2 };
        assert_eq!(loss.gaps, [gap(10.1, 10.2), gap(20.0, 20.0)]);
        let other = count("y".into(), &[(1, 10.3), (3, 10.4)], 3);
        assert_eq!(loss.alone(&[other]), [gap(20.0, 20.0)]);
        assert_eq!(loss.alone(&[]).len(), 2);
    }
}
