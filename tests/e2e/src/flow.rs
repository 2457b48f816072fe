//! Traffic that runs while a test breaks things, and what of it was lost.
//!
//! In: a pod and where to send. Out: how many packets went unanswered, and the
//! longest time without an answer. A packet a millisecond, so that a short outage
//! shows as well.

use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use lab::checks::probe::PodView;
use lab::node;
use lab::state::Node;

use crate::cluster::Cluster;

/// Pings that are on their way.
pub struct Flow {
    child: Child,
    /// What ping prints. A pipe that nobody reads meanwhile would stop it after a second.
    output: tempfile::NamedTempFile,
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
    /// The longest run of them. Who gets no answers is asked less often: its time is [`Loss::outage`].
    pub longest: usize,
    /// The longest time without an answer, as far as packets were lost in it.
    pub outage: Duration,
    /// The longest time between two answers, whether packets were lost in it or only held back.
    pub stall: Duration,
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
        let outage = self.outage.as_millis();
        write!(f, "{}: {} of {} lost, outage {outage} ms", self.what, self.lost, self.sent)?;
        write!(f, ", longest time between answers {} ms", self.stall.as_millis())?;
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

    /// What it has said so far. By a descriptor of its own: ping writes where the shared one stands.
    fn said(&self) -> Result<String> {
        std::fs::read_to_string(self.output.path()).context("ping's output")
    }

    /// Waits until an answer is fresh. A switch that is busy holds packets back for a while and loses none: whoever ends
    /// the flood then would take them for lost.
    fn wait_alive(&self) -> Result<()> {
        const FRESH: f64 = 0.25;
        let limit = Instant::now() + Duration::from_secs(10);
        while Instant::now() < limit {
            let last = self.said()?.lines().rev().find_map(answer);
            if last.is_some_and(|(_, time)| unix_now() - time < FRESH) {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn read(&mut self) -> Result<String> {
        self.child.wait().context("ping did not end")?;
        // nsenter ends before ping has said its last words.
        for _ in 0..100 {
            let text = self.said()?;
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
        command.args(["stdbuf", "-oL", "ping", "-n", "-D", "-i", "0.001", &to.to_string()]);
        // By lines, so that it can be seen whether answers come.
        let output = tempfile::NamedTempFile::new().context("a file for ping's output")?;
        // A group of its own: nsenter stays as the parent, and only signals to both reach ping.
        command.process_group(0);
        let child = command.stdin(Stdio::null()).stdout(output.reopen()?).stderr(Stdio::null()).spawn();
        Ok(Self { child: child.context("cannot start ping")?, output, what: format!("{name} to {to}") })
    }

    /// Ends it and counts. Packets of the last quarter of a second may still be on their way and do not count. Who waits
    /// for an answer sends one in 10 ms (iputils), whatever interval was asked for, so these are few.
    pub fn end(mut self) -> Result<Loss> {
        const UNDERWAY: usize = 25;
        std::thread::sleep(Duration::from_millis(500));
        self.wait_alive()?;
        self.signal("-INT")?;
        let ended = unix_now();
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
        Ok(count(self.what.clone(), &answered, sent, ended))
    }
}

fn unix_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// What is missing between answers (number and time, in order) of `sent` packets, until it was ended.
fn count(what: String, answered: &[(usize, f64)], sent: usize, end: f64) -> Loss {
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
    let time = |gap: &Gap| Duration::from_secs_f64((gap.until - gap.at).max(0.0));
    let outage = gaps.iter().map(time).max().unwrap_or_default();
    let times = answered.windows(2).map(|pair| (pair[1].1 - pair[0].1).max(0.0));
    let stall = Duration::from_secs_f64(times.fold(0.0, f64::max));
    Loss { what, sent, lost, longest, outage, stall, gaps }
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
        let answered = [(1, 10.0), (2, 10.25), (5, 10.5), (6, 20.0)];
        let loss = count("x".into(), &answered, 8, 21.0);
        assert_eq!((loss.sent, loss.lost, loss.longest), (8, 4, 2));
        assert_eq!((loss.outage.as_millis(), loss.stall.as_millis()), (1000, 9500));
        let gap = |at, until| Gap { at, until, length: 2 };
        assert_eq!(loss.gaps, [gap(10.25, 10.5), gap(20.0, 21.0)]);
        let other = count("y".into(), &[(1, 10.75), (3, 11.0)], 3, 12.0);
        assert_eq!(loss.alone(&[other]), [gap(20.0, 21.0)]);
        assert_eq!(loss.alone(&[]).len(), 2);
    }
}
