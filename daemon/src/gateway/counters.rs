//! What passes this node between each subnet and the world: the packet filter's counters as metrics (node contract §4.13).
//!
//! In: the two counter chains of both families, read when somebody asks for metrics. Out: sums of what was added since the
//! agent started; a first sample only sets the start, and a counter that was reset counts from there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use super::rules::{COUNTER, EGRESS_COUNTERS, INGRESS_COUNTERS};
use crate::firewall::{Backend, Family, Tools};
use crate::metrics::Metrics;

/// Questions in quick succession get one answer.
const INTERVAL: Duration = Duration::from_secs(2);

/// One counter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Counted {
    /// Subnet.
    pub subnet: String,
    /// Its prefix.
    pub cidr: String,
    /// `egress` or `ingress`, as the subnet's pods see it.
    pub direction: &'static str,
    /// `ipv4` or `ipv6`.
    pub protocol: &'static str,
}

/// Packets and bytes.
type Amount = (u64, u64);

/// Reads counters and keeps the sums.
#[derive(Debug)]
pub struct Counters {
    tools: Tools,
    metrics: Arc<Metrics>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    source: Option<(Backend, Vec<Family>)>,
    asked: Option<Instant>,
    last: BTreeMap<Counted, Amount>,
    sums: BTreeMap<Counted, Amount>,
}

impl Counters {
    /// Counters that are read by `tools` and told to `metrics`. Nothing is read before [`Counters::follow`].
    pub fn new(tools: Tools, metrics: Arc<Metrics>) -> Self {
        Self { tools, metrics, state: Mutex::default() }
    }

    /// The chains exist: in this kind of iptables, for these families.
    pub async fn follow(&self, backend: Backend, families: Vec<Family>) {
        self.state.lock().await.source = Some((backend, families));
    }

    /// Reads the counters and brings the metrics up to date.
    pub async fn sample(&self) {
        let mut state = self.state.lock().await;
        let Some((backend, families)) = state.source.clone() else { return };
        if state.asked.is_some_and(|asked| asked.elapsed() < INTERVAL) {
            return;
        }
        let mut found = BTreeMap::new();
        for family in families {
            for chain in [EGRESS_COUNTERS, INGRESS_COUNTERS] {
                let arguments = ["-w", "1", "-t", "filter", "-v", "-S", chain];
                match self.tools.run(&backend.command(family), &arguments, None).await {
                    Ok(text) => found.extend(parse(&text, chain, family)),
                    // Without subnets there is no chain.
                    Err(error) => tracing::debug!(error = %error, chain, "counters can't be read"),
                }
            }
        }
        let gone = state.add(found);
        state.asked = Some(Instant::now());
        self.metrics.subnet_gateways(&state.sums, &gone);
    }
}

impl State {
    /// Adds a sample; returns what is not counted any more.
    fn add(&mut self, found: BTreeMap<Counted, Amount>) -> Vec<Counted> {
        let gone: Vec<Counted> =
            self.sums.keys().filter(|counted| !found.contains_key(*counted)).cloned().collect();
        self.sums.retain(|counted, _| found.contains_key(counted));
        for (counted, now) in &found {
            let sum = self.sums.entry(counted.clone()).or_default();
            if let Some(before) = self.last.get(counted) {
                // Lower than before: the rule was made anew meanwhile.
                let since = |now: u64, before: u64| if now >= before { now - before } else { now };
                sum.0 += since(now.0, before.0);
                sum.1 += since(now.1, before.1);
            }
        }
        self.last = found;
        gone
    }
}

/// Lines as `iptables -v -S CHAIN` prints them: the rule, then `-c PACKETS BYTES` (before the target or at the end).
fn parse(text: &str, chain: &str, family: Family) -> BTreeMap<Counted, Amount> {
    let direction = if chain == EGRESS_COUNTERS { "egress" } else { "ingress" };
    let protocol = if family == Family::V4 { "ipv4" } else { "ipv6" };
    text.lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let after = |option: &str| words.iter().position(|word| *word == option).map(|at| at + 1);
            let word = |at: usize| words.get(at).copied();
            let cidr = word(after("-s").or_else(|| after("-d"))?)?;
            let subnet = word(after("--comment")?)?.trim_matches('"').strip_prefix(COUNTER)?;
            let counts = after("-c")?;
            let amount = (word(counts)?.parse().ok()?, word(counts + 1)?.parse().ok()?);
            let counted = Counted { subnet: subnet.to_owned(), cidr: cidr.to_owned(), direction, protocol };
            Some((counted, amount))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "-N OVN-SUBNET-EGRESS\n\
        -A OVN-SUBNET-EGRESS -s 10.16.0.0/16 -m comment --comment \"ovn-subnet-gateway,ovn-default\" -c 5 420 -j RETURN\n\
        -A OVN-SUBNET-EGRESS -s 10.17.0.0/16 -m comment --comment \"ovn-subnet-gateway,b\" -j RETURN -c 1 84\n\
        -A OVN-SUBNET-EGRESS -s 10.18.0.0/16 -j RETURN\n";

    #[test]
    fn lines_of_both_shapes_are_read() {
        let found = parse(TEXT, EGRESS_COUNTERS, Family::V4);
        let shown: Vec<_> = found
            .iter()
            .map(|(counted, amount)| (counted.subnet.as_str(), counted.cidr.as_str(), *amount))
            .collect();
        assert_eq!(shown, [("b", "10.17.0.0/16", (1, 84)), ("ovn-default", "10.16.0.0/16", (5, 420))]);
        assert!(found.keys().all(|counted| (counted.direction, counted.protocol) == ("egress", "ipv4")));
    }

    #[test]
    fn the_first_sample_and_resets_count_nothing_that_was_before() {
        let counted = parse(TEXT, EGRESS_COUNTERS, Family::V4).into_keys().next().unwrap();
        let mut state = State::default();
        let mut sum = |now: Option<Amount>| {
            state.add(now.map(|now| (counted.clone(), now)).into_iter().collect());
            state.sums.get(&counted).copied()
        };
        assert_eq!(sum(Some((100, 1000))), Some((0, 0)));
        assert_eq!(sum(Some((103, 1300))), Some((3, 300)));
        assert_eq!(sum(Some((2, 200))), Some((5, 500)), "the chain was made anew");
        assert_eq!(sum(None), None, "the subnet is gone");
    }
}
