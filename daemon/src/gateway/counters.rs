//! What passes this node between each subnet and the world: the packet filter's counters as metrics (node contract §4.13).
//!
//! In: the two counter chains of both families, read when somebody asks for metrics. Out: sums of what was added since the
//! agent started; a first sample only sets the start, and a counter that was reset counts from there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use super::rules::{COUNTER, EGRESS_COUNTERS, INGRESS_COUNTERS};
use crate::firewall::{Backend, Error, Family, Tools};
use crate::metrics::Metrics;

/// Questions in quick succession get one answer.
const INTERVAL: Duration = Duration::from_secs(2);

/// What the two kinds of iptables say about a chain that does not exist.
const NO_CHAIN: [&str; 2] = ["No chain/target/match by that name", "is incompatible, use 'nft' tool"];

/// One counter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Counted {
    /// Subnet.
    pub subnet: String,
    /// Its prefix.
    pub cidr: String,
    /// `egress` or `ingress`, as the subnet's pods see it.
    pub direction: &'static str,
    /// `IPv4` or `IPv6`.
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
                    Err(Error::Failed { message, .. })
                        if NO_CHAIN.iter().any(|text| message.contains(text)) => {}
                    // Somebody holds the lock, say: they go on from where they were.
                    Err(error) => {
                        tracing::debug!(error = %error, chain, "counters can't be read");
                        found.extend(state.before(direction(chain), protocol(family)));
                    }
                }
            }
        }
        let gone = state.add(found);
        state.asked = Some(Instant::now());
        self.metrics.subnet_gateways(&state.sums, &gone);
    }
}

impl State {
    /// The last sample of a chain.
    fn before(&self, direction: &str, protocol: &str) -> BTreeMap<Counted, Amount> {
        let of_chain = |counted: &Counted| (counted.direction, counted.protocol) == (direction, protocol);
        let last = self.last.iter().filter(|(counted, _)| of_chain(counted));
        last.map(|(counted, amount)| (counted.clone(), *amount)).collect()
    }

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

fn direction(chain: &str) -> &'static str {
    if chain == EGRESS_COUNTERS { "egress" } else { "ingress" }
}

fn protocol(family: Family) -> &'static str {
    if family == Family::V4 { "IPv4" } else { "IPv6" }
}

/// Lines as `iptables -v -S CHAIN` prints them: the rule, then `-c PACKETS BYTES` (before the target or at the end).
fn parse(text: &str, chain: &str, family: Family) -> BTreeMap<Counted, Amount> {
    let (direction, protocol) = (direction(chain), protocol(family));
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
        assert!(found.keys().all(|counted| (counted.direction, counted.protocol) == ("egress", "IPv4")));
    }

    /// A tool that refuses as long as a file says so.
    fn tools(folder: &std::path::Path) -> Tools {
        let script = folder.join("tool");
        std::fs::write(folder.join("says"), "").unwrap();
        let text = "read said < \"$0.says\"; test -z \"$said\" || { echo \"$said\" >&2; exit 4; }\n\
            for chain; do :; done\n\
            test $chain = OVN-SUBNET-EGRESS || { echo 'iptables: No chain/target/match by that name.' >&2; exit 1; }\n\
            read packets < \"$0.count\"; echo \"-A $chain -s 10.16.0.0/16 -m comment --comment \\\"ovn-subnet-gateway,a\\\" \
            -c $packets 1 -j RETURN\"\n";
        std::fs::write(&script, text).unwrap();
        Tools::behind(["sh".to_owned(), script.display().to_string()])
    }

    #[tokio::test]
    async fn counters_that_cant_be_read_once_go_on() {
        let folder = tempfile::tempdir().unwrap();
        let counters = Counters::new(tools(folder.path()), Arc::new(Metrics::new("n1")));
        counters.follow(Backend::Nft, vec![Family::V4]).await;
        let sample = async |said: &str, count: &str| {
            std::fs::write(folder.path().join("tool.says"), said).unwrap();
            std::fs::write(folder.path().join("tool.count"), format!("{count}\n")).unwrap();
            counters.state.lock().await.asked = None;
            counters.sample().await;
            counters.state.lock().await.sums.values().map(|(packets, _)| *packets).collect::<Vec<_>>()
        };
        assert_eq!(sample("\n", "10").await, [0]);
        assert_eq!(sample("\n", "13").await, [3]);
        let held = "Another app is currently holding the xtables lock.\n";
        assert_eq!(sample(held, "14").await, [3]);
        assert_eq!(sample("\n", "15").await, [5], "what was counted meanwhile too");
        assert_eq!(sample("iptables: No chain/target/match by that name.\n", "16").await, [0; 0]);
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
