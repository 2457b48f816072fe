//! Keeps the host's routes and firewall as wanted (the gateway's driver).
//!
//! In: snapshots of subnets, nodes and Service CIDRs, changes of links and
//! routes, reports of [`heal`], time. Out: passes of [`Gateway`]. Level-triggered: an event only says when
//! to look, a slow pass looks anyway.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;

use crate::changes::Changes;
use crate::firewall::Tools;
use crate::flags::Flags;
use crate::frame;
use crate::gateway::{Clamp, Config, Counters, Gateway, Inputs, JoinInput, Objects, prefixes, stays};
use crate::heal;
use crate::install::{enable_forwarding, loosen_reverse_path};
use crate::kube::{Cluster, EventType, Loaded, NodeFacts, ObjectRef, PodFacts, SubnetFacts};
use crate::netlink::{ALL_LINKS, Change, MAIN_TABLE, Route, waiting};
use crate::node::{Join, NodeStatus, OVN0};
use crate::plug::Plugger;
use crate::sys::SysctlOutcome;

/// Everything is looked at this often even if nothing happened.
const VERIFY: Duration = Duration::from_secs(60);
/// A verification waits for a pause between CNI calls, so that its processes
/// take no time from pods that start; but not for ever.
const QUIET: Duration = Duration::from_secs(10);
const VERIFY_AT_LAST: Duration = Duration::from_secs(600);
/// Events of one cause come in bunches.
const GATHER: Duration = Duration::from_millis(50);
/// What others change all the time is followed up this often.
const HINTS: Duration = Duration::from_secs(1);
/// Pause after a pass that failed.
const RETRY: Duration = Duration::from_secs(3);

/// What the loop works with.
pub struct HostLoop {
    /// Flags.
    pub flags: Arc<Flags>,
    /// Watched objects, the host's network.
    pub plugger: Arc<Plugger>,
    /// Changes of the host's network.
    pub changes: broadcast::Receiver<Change>,
    /// Where changes that nobody reports are told of.
    pub reports: broadcast::Sender<Change>,
    /// Told once the host's state was applied.
    pub applied: watch::Sender<bool>,
    /// The feed of diagnostics.
    pub feed: Changes,
    /// Where the node stands: the tunnel's link and MTU.
    pub status: watch::Receiver<NodeStatus>,
    /// Counters to follow once their chains exist.
    pub counters: Arc<Counters>,
    /// UIDs of the Subnets that were found in the default VPC last; empty at the start.
    pub at_home: BTreeSet<String>,
}

/// The objects that the inputs are made of.
struct Watched {
    /// Those of which any may count. The own node's labels are among them: the same inputs lead to no pass.
    any: frame::Objects,
    /// Pods come and go all the time; only policy routing speaks of single ones.
    pods: watch::Receiver<Loaded<PodFacts>>,
    /// They are not all there yet.
    awaits_pods: bool,
}

impl Watched {
    fn of(cluster: &Cluster) -> Self {
        let any = frame::Objects::default()
            .and(cluster.nodes.subscribe())
            .and(cluster.subnets.subscribe())
            .and(cluster.service_cidrs.subscribe())
            .and(cluster.own_node.subscribe());
        Self { any, pods: cluster.pods.subscribe(), awaits_pods: true }
    }

    fn mark_unchanged(&mut self) {
        self.any.mark_unchanged();
        self.pods.mark_unchanged();
    }

    /// Waits until an object comes, goes or changes; `false` when nobody watches any more.
    async fn changed(&mut self, by_pod: bool) -> bool {
        tokio::select! {
            watched = self.any.changed() => watched,
            changed = self.pods.changed(), if by_pod => changed.is_ok(),
        }
    }
}

impl HostLoop {
    /// Runs until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        let mut gateway = loop {
            match Gateway::new(Tools::system(), Some(self.plugger.host.netlink.clone())).await {
                Ok(gateway) => break gateway,
                Err(error) => {
                    tracing::warn!(error = %error, "the host's firewall can't be used; trying again")
                }
            }
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(RETRY) => {}
            }
        };
        if self.flags.non_primary_cni_mode {
            self.leave_firewall(&mut gateway, &cancel).await;
        } else {
            let host = self.plugger.host.clone();
            tokio::spawn(heal::look(host, gateway.backend(), self.reports.clone(), cancel.clone()));
        }
        let cluster = self.plugger.cluster.clone();
        let mut objects = Watched::of(&cluster);
        let mut last: Option<Inputs> = None;
        let mut failing = false;
        let mut verified = Instant::now();
        let mut told = BTreeSet::new();
        loop {
            objects.mark_unchanged();
            // Without them the rules of all that run here would be leftovers.
            objects.awaits_pods = !cluster.pods.synced();
            let ready = cluster.nodes.synced()
                && cluster.subnets.synced()
                && cluster.service_cidrs.get().settled()
                && !objects.awaits_pods;
            let inputs = if ready { self.inputs(&gateway).await } else { None };
            let due = verified.elapsed() >= VERIFY && self.is_quiet(verified);
            if let Some(inputs) = inputs
                && (failing || due || last.as_ref() != Some(&inputs))
            {
                last = self.pass(&mut gateway, inputs, &mut told).await;
                failing = last.is_none();
                verified = Instant::now();
            }
            let pause = if failing { RETRY } else { VERIFY.saturating_sub(verified.elapsed()).max(RETRY) };
            if !self.wait(&mut objects, pause, verified, &mut last, &cancel).await {
                return;
            }
        }
    }

    /// Waits for something to look at; forgets the last inputs when the host
    /// itself changed. `false` when it is over.
    async fn wait(
        &mut self,
        objects: &mut Watched,
        pause: Duration,
        passed: Instant,
        last: &mut Option<Inputs>,
        cancel: &CancellationToken,
    ) -> bool {
        let mut gather = GATHER;
        let sleep = tokio::time::sleep(pause);
        tokio::pin!(sleep);
        let mut views = self.plugger.ovs.subscribe();
        let tables: BTreeSet<u32> = last
            .iter()
            .flat_map(|inputs| &inputs.subnets)
            .filter_map(|subnet| subnet.external_egress.as_ref())
            .map(|egress| egress.table)
            .collect();
        let of_pods = |inputs: &Inputs| {
            inputs.subnets.iter().any(|subnet| subnet.distributed && subnet.external_egress.is_some())
        };
        let by_pod = objects.awaits_pods || last.as_ref().is_some_and(of_pods);
        let known = last.as_ref().map(|inputs| inputs.other_node_addresses.clone());
        let is_news = |view: &crate::ovs::View| {
            known.as_ref().is_some_and(|known| !view.tunnel_peers().is_subset(known))
        };
        loop {
            tokio::select! {
                () = cancel.cancelled() => return false,
                () = &mut sleep => return true,
                // Every ADD changes the database; only new tunnels matter here.
                changed = views.wait_for(is_news) => { if changed.is_err() { return false } break }
                watched = objects.changed(by_pod) => { if !watched { return false } break }
                change = self.changes.recv() => {
                    let link = last.as_ref().and_then(|inputs| inputs.join.as_ref()).map(|join| join.link);
                    let concerns = match &change {
                        Ok(change) => concerns(change, link, &tables),
                        Err(broadcast::error::RecvError::Lagged(_)) => true,
                        Err(broadcast::error::RecvError::Closed) => return false,
                    };
                    if concerns {
                        *last = None;
                        if matches!(change, Ok(Change::Filter | Change::Sets | Change::Setting(_))) {
                            gather = gather.max(HINTS.saturating_sub(passed.elapsed()));
                        }
                        break;
                    }
                }
            }
        }
        tokio::time::sleep(gather).await;
        // What came meanwhile is covered by the pass that follows.
        let link = last.as_ref().and_then(|inputs| inputs.join.as_ref()).map(|join| join.link);
        for change in waiting(&mut self.changes) {
            if concerns(&change, link, &tables) {
                *last = None;
            }
        }
        true
    }

    fn is_quiet(&self, verified: Instant) -> bool {
        self.plugger.idle() >= QUIET || verified.elapsed() >= VERIFY_AT_LAST
    }

    async fn inputs(&mut self, gateway: &Gateway) -> Option<Inputs> {
        let cluster = self.plugger.cluster.clone();
        let (nodes, subnets, cidrs) =
            (cluster.nodes.get(), cluster.subnets.get(), cluster.service_cidrs.get());
        let node = nodes.objects.get(self.plugger.node.as_str())?;
        let labels = self.labels(subnets.objects.values().any(|subnet| selects_gateways(subnet)))?;
        let pods = cluster.pods.get();
        let join = self.join(node).await;
        let staying = self.staying(&subnets, join.as_ref()).await?;
        let inputs = Inputs::gather(Objects {
            subnets: subnets.objects.values().map(|subnet| &**subnet).collect(),
            node,
            nodes: nodes.objects.values().map(|node| &**node).collect(),
            service_cidrs: cidrs.objects.values().map(|cidr| &**cidr).collect(),
            service_cluster_ip_range: &self.flags.service_cluster_ip_range,
            cluster_router: &self.flags.cluster_router,
            node_switch: &self.flags.node_switch,
            join,
            tunnel_peers: self.plugger.ovs.view().tunnel_peers(),
            proxy_sets: gateway.proxy_sets().clone(),
            pods: pods.objects.values().map(|pod| &**pod).collect(),
            node_labels: labels,
            staying,
            config: self.config(),
        });
        self.at_home = inputs.subnets.iter().map(|subnet| subnet.uid.clone()).collect();
        Some(inputs)
    }

    /// Subnets that name another VPC and are in the default one still; `None` if the routes can't be read.
    async fn staying(
        &self,
        subnets: &Loaded<SubnetFacts>,
        join: Option<&JoinInput>,
    ) -> Option<BTreeSet<String>> {
        let elsewhere = |subnet: &&SubnetFacts| !subnet.in_default_vpc(&self.flags.cluster_router);
        let subnets = subnets.objects.values().map(|subnet| &**subnet).filter(elsewhere);
        let mut staying = BTreeSet::new();
        let mut routes = None;
        for subnet in subnets {
            let was_here = self.at_home.contains(&subnet.uid);
            let mut routed = false;
            // Asked only where it makes a difference, which is rare.
            if !was_here && stays(subnet, false, true) {
                if routes.is_none() {
                    routes = Some(self.plugger.host.netlink.routes().await.ok()?);
                }
                let over_ovn0 = |route: &&Route| {
                    join.is_some_and(|join| route.link == Some(join.link)) && route.table == MAIN_TABLE
                };
                let cidrs = prefixes(&subnet.cidr_block);
                let mut there = routes.iter().flatten().filter(over_ovn0);
                routed = there.any(|route| cidrs.contains(&route.destination));
            }
            if stays(subnet, was_here, routed) {
                staying.insert(subnet.uid.clone());
            }
        }
        Some(staying)
    }

    fn config(&self) -> Config {
        let status = self.status.borrow();
        let clamp = match (&status.tunnel_interface, status.mtu) {
            (Some(link), Some(mtu)) if self.flags.clamp_mss => Some(Clamp { link: link.clone(), mtu }),
            _ => None,
        };
        Config {
            refused_tcp: self.flags.refused_tcp_ports.0.clone(),
            refused_udp: self.flags.refused_udp_ports.0.clone(),
            node_local_dns: self.flags.node_local_dns_ip.0.clone(),
            clamp,
            counters: self.flags.enable_metrics,
            ..Config::default()
        }
    }

    /// This node's labels, `None` until they are known; none if nothing follows from them.
    fn labels(&self, needed: bool) -> Option<BTreeMap<String, String>> {
        let own = self.plugger.cluster.own_node.get();
        let labels = || own.objects.get(self.plugger.node.as_str()).map(|node| node.labels.clone());
        if needed { own.synced.then(|| labels().unwrap_or_default()) } else { Some(BTreeMap::new()) }
    }

    /// `ovn0`, once it is up with the node's addresses.
    async fn join(&self, node: &NodeFacts) -> Option<JoinInput> {
        let join = Join::read(node).ok()?;
        let host = &self.plugger.host.netlink;
        let link = host.link(OVN0).await.ok()?.filter(|link| link.up)?;
        let addresses = host.addresses(Some(link.index)).await.ok()?;
        let there = |net: &ipnet::IpNet| addresses.iter().any(|address| address.net == *net);
        join.addresses.iter().all(there).then(|| JoinInput {
            link: link.index,
            ips: join.addresses.iter().map(ipnet::IpNet::addr).collect(),
            gateways: join.gateways,
        })
    }

    /// One pass; the inputs that it went by if all of it could be done.
    async fn pass(
        &mut self,
        gateway: &mut Gateway,
        mut inputs: Inputs,
        told: &mut BTreeSet<String>,
    ) -> Option<Inputs> {
        self.let_forward(&inputs).await;
        let observed = match gateway.observe(&inputs).await {
            Ok(observed) => observed,
            Err(error) => {
                tracing::warn!(error = %error, "the host's state can't be read");
                return None;
            }
        };
        // An ADD makes its pod's rule itself. Whoever is asked after the rules were read knows that pod; before, the
        // rule would be taken for a leftover.
        if let Some(now) = self.inputs(gateway).await
            && now.families() == inputs.families()
        {
            inputs = now;
        }
        let report = gateway.apply(&observed, &inputs).await;
        if !report.changes.is_empty() {
            tracing::debug!(changes = ?report.changes);
            tracing::info!("the host's routes and firewall were changed");
            self.plugger.metrics.host_changes(1);
            self.feed.say("host", json!({"report": report}));
        }
        let problems: BTreeSet<String> = report.problems.into_iter().collect();
        for problem in problems.difference(told) {
            tracing::warn!(problem, "the host's state is not as wanted");
            let node = ObjectRef::node(&self.plugger.node, &self.plugger.node);
            self.plugger.recorder.record(node, EventType::Warning, "HostNetworkProblem", problem.clone());
        }
        // What only a person can mend waits for the next change or verification.
        let well = !report.retry;
        *told = problems;
        // Without ovn0 the routes are still to come.
        if inputs.join.is_some() {
            self.counters.follow(gateway.backend(), inputs.families()).await;
            self.applied.send_if_modified(|applied| !std::mem::replace(applied, true));
        }
        well.then_some(inputs)
    }

    /// Settings that somebody may have turned back.
    async fn let_forward(&self, inputs: &Inputs) {
        let families: BTreeSet<_> = inputs.families().into_iter().collect();
        let ovn0 = inputs.join.is_some();
        let settings = move || {
            let mut changed = enable_forwarding(&families)?;
            if ovn0 && loosen_reverse_path(OVN0)? == SysctlOutcome::Written {
                changed.push(format!("{OVN0}: rp_filter=2"));
            }
            Ok(changed)
        };
        let done: std::io::Result<std::io::Result<Vec<String>>> =
            self.plugger.host.namespace.run_async(settings).await;
        match done.and_then(|result| result) {
            Ok(changed) if changed.is_empty() => {}
            Ok(changed) => {
                tracing::info!(?changed, "the host forwards packets (again)");
                self.plugger.metrics.host_changes(1);
            }
            Err(error) => tracing::warn!(error = %error, "forwarding can't be turned on"),
        }
    }

    /// Non-primary mode: nothing of ours stays in the host's firewall.
    async fn leave_firewall(&self, gateway: &mut Gateway, cancel: &CancellationToken) {
        while let Err(error) = gateway.leave_firewall().await {
            tracing::warn!(error = %error, "rules of an earlier mode can't be removed; trying again");
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(RETRY) => {}
            }
        }
    }
}

/// Whether which nodes are a subnet's gateways for external egress follows from labels.
fn selects_gateways(subnet: &SubnetFacts) -> bool {
    !subnet.external_egress_gateway.is_empty()
        && subnet.gateway_node.trim().is_empty()
        && !subnet.gateway_node_selectors.is_empty()
}

/// Whether a change of the host's network concerns routes to pods, or `tables` of external egress gateways.
fn concerns(change: &Change, ovn0: Option<u32>, tables: &BTreeSet<u32>) -> bool {
    match change {
        Change::LinkChanged(link) | Change::LinkGone(link) => {
            // Our own ADDs make links; only the state of ovn0 matters.
            link.name == OVN0
        }
        Change::Address(address) => Some(address.index) == ovn0 && !address.link_scope,
        Change::RouteChanged(route) | Change::RouteGone(route) => {
            let to_pods = route.link.is_some() && (route.link == ovn0 || ovn0.is_none());
            tables.contains(&route.table) || (route.table == MAIN_TABLE && to_pods)
        }
        // Others change rules too; only policy routing has any of ours.
        Change::Rule => !tables.is_empty(),
        Change::Setting(index) => *index == ALL_LINKS || u32::try_from(*index).ok() == ovn0,
        Change::Filter | Change::Sets | Change::Lost => true,
        Change::Traffic => false,
    }
}

impl Plugger {
    /// How long no CNI call has run.
    pub fn idle(&self) -> Duration {
        if self.running.load(Ordering::Relaxed) > 0 {
            return Duration::ZERO;
        }
        self.last_call.lock().unwrap_or_else(std::sync::PoisonError::into_inner).elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_that_were_lost_concern_us() {
        let (sender, mut changes) = broadcast::channel(2);
        let ours = |change: &Change| concerns(change, Some(7), &BTreeSet::new());
        let drain = |changes: &mut _, ours: fn(&Change) -> bool| waiting(changes).filter(ours).count() > 0;
        assert!(!drain(&mut changes, ours));
        sender.send(Change::Traffic).unwrap();
        assert!(!drain(&mut changes, ours));
        for change in [Change::Traffic, Change::Filter] {
            sender.send(change).unwrap();
        }
        assert!(drain(&mut changes, ours));
        for _ in 0..3 {
            sender.send(Change::Traffic).unwrap();
        }
        assert!(drain(&mut changes, ours), "one of three was lost");
        assert!(!drain(&mut changes, ours));
    }
}
