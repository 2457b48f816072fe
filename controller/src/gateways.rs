//! Gateway nodes that give no answer, long before the API server takes them for dead (contract §5.3).
//!
//! Flows in: centralized subnets with at least two listed gateway nodes, the nodes' addresses in the join subnet, the
//! permission to write. Flows out: the set of nodes that are silent, whenever it changes.
//!
//! The probe is an attempt to connect by TCP: a host that lives answers an open port and a closed one, and asking needs
//! no right to raw sockets. Two things keep it from being wrong. A node counts as silent only if it, or another node
//! that is not ours, has answered before: a firewall that drops the probe is no dead node. And in a round in which
//! nobody answers, not even the join subnet's router, the fault is this node's: nothing is concluded from it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::chassis::Nodes;
use crate::lease::Authority;
use crate::metrics::Shared;
use crate::objects::Subnet;

/// The port that is tried: that of the agent's probes and metrics, which has to be reachable anyway.
const PORT: u16 = 10_665;
/// From one round to the next.
const ROUND: Duration = Duration::from_secs(1);
/// How long an answer may take.
const ANSWER: Duration = Duration::from_millis(900);
/// Rounds in a row without an answer after which a node is silent.
const MISSES: u32 = 3;
/// Rounds in a row with one after which it no longer is.
const HITS: u32 = 2;

/// Nodes that give no answer.
pub type Silent = Arc<BTreeSet<Arc<str>>>;

/// Who is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Targets {
    /// Addresses in the join subnet, by node.
    nodes: BTreeMap<Arc<str>, Vec<IpAddr>>,
    /// Those of its router, which answers by this node's own switch.
    router: Vec<IpAddr>,
}

fn addresses(text: &str) -> Vec<IpAddr> {
    text.split(',').filter_map(|ip| ip.trim().parse().ok()).collect()
}

/// Gateway nodes of which another one could take the place.
fn targets<'a>(subnets: impl Iterator<Item = &'a Arc<Subnet>>, nodes: &Nodes, join: &str) -> Targets {
    let mut targets = Targets::default();
    for subnet in subnets {
        if &*subnet.meta.name == join {
            targets.router = addresses(&subnet.spec.gateway);
        }
        if subnet.spec.gateway_type != "centralized" {
            continue;
        }
        let listed = crate::compile::gateway_nodes(&subnet.spec.gateway_node);
        if listed.len() < 2 {
            continue;
        }
        for name in listed {
            let known = nodes.get(&name).map(|node| addresses(&node.join)).unwrap_or_default();
            if !known.is_empty() {
                targets.nodes.insert(name, known);
            }
        }
    }
    targets
}

/// What a target said in one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// A node elsewhere answered.
    Yes,
    /// It is the node that we run on: its answer says nothing about the network.
    Own,
    /// None.
    No,
}

#[derive(Clone, Copy, Debug, Default)]
struct Record {
    answered: bool,
    misses: u32,
    hits: u32,
    silent: bool,
}

/// What is known of the nodes that are asked.
#[derive(Debug, Default)]
struct Records {
    nodes: BTreeMap<Arc<str>, Record>,
    /// A node elsewhere answered once: the probe works in this cluster.
    works: bool,
}

impl Records {
    /// Takes the answers of a round; `router` is whether the join subnet's router answered. Returns the silent nodes if
    /// they are others than before.
    fn round(&mut self, answers: &BTreeMap<Arc<str>, Answer>, router: bool) -> Option<Silent> {
        let before = self.silent();
        self.nodes.retain(|name, _| answers.contains_key(name));
        let elsewhere = answers.values().any(|answer| *answer == Answer::Yes);
        self.works |= elsewhere;
        if elsewhere || router {
            for (name, answer) in answers {
                let record = self.nodes.entry(name.clone()).or_default();
                if *answer == Answer::No {
                    (record.misses, record.hits) = (record.misses.saturating_add(1), 0);
                    record.silent |= record.misses >= MISSES && (record.answered || self.works);
                } else {
                    (record.misses, record.hits) = (0, record.hits.saturating_add(1));
                    record.silent &= record.hits < HITS;
                    record.answered = true;
                }
            }
        }
        let now = self.silent();
        (now != before).then(|| Arc::new(now))
    }

    fn silent(&self) -> BTreeSet<Arc<str>> {
        let silent = self.nodes.iter().filter(|(_, record)| record.silent);
        silent.map(|(name, _)| name.clone()).collect()
    }
}

/// Whether somebody answers there at all; a refusal is an answer.
async fn answers(to: IpAddr, port: u16) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, ConnectionReset};
    match tokio::time::timeout(ANSWER, TcpStream::connect(SocketAddr::new(to, port))).await {
        Ok(Ok(_)) => true,
        Ok(Err(error)) => matches!(error.kind(), ConnectionRefused | ConnectionReset),
        Err(_) => false,
    }
}

/// Whether the address is one of this host: what is sent to it comes from it.
async fn is_own(address: IpAddr) -> bool {
    let any: IpAddr = if address.is_ipv4() { [0, 0, 0, 0].into() } else { [0_u16; 8].into() };
    let local = async {
        let socket = UdpSocket::bind((any, 0)).await?;
        socket.connect((address, PORT)).await?;
        socket.local_addr()
    };
    local.await.is_ok_and(|local| local.ip() == address)
}

async fn any(addresses: &[IpAddr]) -> bool {
    join_all(addresses.iter().map(|ip| answers(*ip, PORT))).await.contains(&true)
}

async fn ask(targets: &Targets) -> (BTreeMap<Arc<str>, Answer>, bool) {
    let node = |(name, addresses): (&Arc<str>, &Vec<IpAddr>)| {
        let (name, addresses) = (name.clone(), addresses.clone());
        async move {
            let own = match addresses.first() {
                Some(first) => is_own(*first).await,
                None => false,
            };
            let answer = if !any(&addresses).await {
                Answer::No
            } else if own {
                Answer::Own
            } else {
                Answer::Yes
            };
            (name, answer)
        }
    };
    let nodes = join_all(targets.nodes.iter().map(node));
    let (nodes, router) = futures::join!(nodes, any(&targets.router));
    (nodes.into_iter().collect(), router)
}

/// Asks while we lead, until `stop`. `join` is the name of the join subnet.
pub async fn run(
    shared: Shared,
    authority: Authority,
    join: Arc<str>,
    told: mpsc::Sender<Silent>,
    stop: CancellationToken,
) {
    let nodes = shared.nodes();
    let mut records = Records::default();
    let mut rounds = tokio::time::interval_at(Instant::now() + ROUND, ROUND);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = rounds.tick() => {}
        }
        let known = nodes.borrow().clone();
        let targets = match known {
            Some(nodes) if authority.valid() => {
                shared.with_subnets(|all| targets(all.values(), &nodes, &join))
            }
            _ => Targets::default(),
        };
        let (answers, router) =
            if targets.nodes.is_empty() { Default::default() } else { ask(&targets).await };
        let before = records.silent();
        let Some(silent) = records.round(&answers, router) else { continue };
        for node in silent.difference(&before) {
            warn!(%node, "a gateway node gives no answer, others take its place; look at its switch and tunnels");
        }
        for node in before.difference(&silent) {
            info!(%node, "a gateway node answers again, or is none any more");
        }
        if told.send(silent).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chassis::NodeChassis;
    use crate::objects::Meta;

    fn round(records: &mut Records, answers: &[(&str, Answer)], router: bool) -> Option<Vec<String>> {
        let answers = answers.iter().map(|(name, answer)| (Arc::from(*name), *answer)).collect();
        let silent = records.round(&answers, router)?;
        Some(silent.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn who_answered_and_is_silent_three_times_is_out_and_back_after_two() {
        let mut records = Records::default();
        let all = [("a", Answer::Own), ("b", Answer::Yes)];
        let one = [("a", Answer::Own), ("b", Answer::No)];
        assert_eq!(round(&mut records, &all, true), None);
        assert_eq!(round(&mut records, &one, true), None);
        assert_eq!(round(&mut records, &one, true), None);
        assert_eq!(round(&mut records, &one, true), Some(vec!["b".to_owned()]));
        assert_eq!(round(&mut records, &one, true), None, "told once");
        assert_eq!(round(&mut records, &all, true), None);
        assert_eq!(round(&mut records, &all, true), Some(vec![]));
        // Not three in a row.
        for answers in [&one, &one, &all, &one, &one] {
            assert_eq!(round(&mut records, answers, true), None);
        }
        // A node that is no gateway any more is forgotten.
        assert_eq!(round(&mut records, &one, true), Some(vec!["b".to_owned()]));
        assert_eq!(round(&mut records, &[], true), Some(vec![]));
    }

    #[test]
    fn nothing_is_concluded_when_the_fault_may_be_ours_or_the_probes() {
        let mut records = Records::default();
        // A firewall: nobody elsewhere ever answered.
        let one = [("a", Answer::Own), ("b", Answer::No)];
        for _ in 0..10 {
            assert_eq!(round(&mut records, &one, true), None);
        }
        // Our own switch is away: neither others nor the router answer.
        let mut records = Records::default();
        assert_eq!(round(&mut records, &[("a", Answer::Own), ("b", Answer::Yes)], true), None);
        for _ in 0..10 {
            assert_eq!(round(&mut records, &one, false), None);
        }
        // A new leader finds one silent, and another one that answers.
        let mut records = Records::default();
        let two = [("b", Answer::No), ("c", Answer::Yes)];
        assert_eq!(round(&mut records, &two, false), None);
        assert_eq!(round(&mut records, &two, false), None);
        assert_eq!(round(&mut records, &two, false), Some(vec!["b".to_owned()]));
    }

    #[test]
    fn asked_are_gateways_that_others_can_stand_in_for() {
        let subnet = |name: &str, kind: &str, nodes: &str, gateway: &str| {
            let meta = Meta { name: name.into(), ..Meta::default() };
            let mut subnet = Subnet { meta, spec: Default::default(), status: Default::default() };
            subnet.spec.gateway_type = kind.into();
            subnet.spec.gateway_node = nodes.into();
            subnet.spec.gateway = gateway.into();
            Arc::new(subnet)
        };
        let all = [
            subnet("join", "", "", "100.64.0.1,fd00::1"),
            subnet("s", "centralized", "a,b:192.0.2.1,gone", ""),
            subnet("one", "centralized", "c", ""),
            subnet("spread", "distributed", "c,d", ""),
        ];
        let node = |join: &str| NodeChassis { join: join.into(), ..NodeChassis::default() };
        let nodes: Nodes = [("a", "100.64.0.2,fd00::2"), ("b", "100.64.0.3"), ("c", "100.64.0.4"), ("d", "")]
            .map(|(name, join)| (Arc::from(name), node(join)))
            .into();
        let targets = targets(all.iter(), &nodes, "join");
        assert_eq!(targets.router, addresses("100.64.0.1,fd00::1"));
        let asked: Vec<_> = targets.nodes.iter().map(|(name, ips)| (&**name, ips.len())).collect();
        assert_eq!(asked, [("a", 2), ("b", 1)]);
    }

    #[tokio::test]
    async fn a_closed_port_answers_and_own_addresses_are_known() {
        let local: IpAddr = [127, 0, 0, 1].into();
        let listener = tokio::net::TcpListener::bind((local, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(answers(local, port).await, "open");
        drop(listener);
        assert!(answers(local, port).await, "closed");
        assert!(is_own(local).await);
        // RFC 5737: nobody has it.
        assert!(!is_own([192, 0, 2, 1].into()).await);
    }
}
