//! Keeps the host's routes and firewall as wanted (the gateway's driver), and
//! takes lost interfaces away.
//!
//! In: snapshots of subnets, nodes and Service CIDRs, changes of links and
//! routes, time. Out: passes of [`Gateway`] and of
//! [`Plugger::clean_lost`]. Both are level-triggered: an event only says when
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
use crate::gateway::{Clamp, Config, Counters, Gateway, Inputs, JoinInput, Objects};
use crate::install::enable_forwarding;
use crate::kube::{EventType, NodeFacts, ObjectRef, SubnetFacts};
use crate::netlink::{Change, MAIN_TABLE};
use crate::node::{Join, NodeStatus, OVN0};
use crate::plug::Plugger;
use crate::plug::lost::Suspects;
use crate::plug::names::is_host_end;

/// Everything is looked at this often even if nothing happened.
const VERIFY: Duration = Duration::from_secs(60);
/// A verification waits for a pause between CNI calls, so that its processes
/// take no time from pods that start; but not for ever.
const QUIET: Duration = Duration::from_secs(10);
const VERIFY_AT_LAST: Duration = Duration::from_secs(600);
/// Events of one cause come in bunches.
const GATHER: Duration = Duration::from_millis(50);
/// Pause after a pass that failed.
const RETRY: Duration = Duration::from_secs(3);
/// Pause before a lost interface is looked at for the second time.
const SECOND_LOOK: Duration = Duration::from_secs(2);

/// What the loop works with.
pub struct HostLoop {
    /// Flags.
    pub flags: Arc<Flags>,
    /// Watched objects, the host's network.
    pub plugger: Arc<Plugger>,
    /// Changes of the host's network.
    pub changes: broadcast::Receiver<Change>,
    /// Told once the host's state was applied.
    pub applied: watch::Sender<bool>,
    /// The feed of diagnostics.
    pub feed: Changes,
    /// The API server, asked for this node's labels where a Subnet selects its gateways by labels.
    pub client: Option<kube::Client>,
    /// Where the node stands: the tunnel's link and MTU.
    pub status: watch::Receiver<NodeStatus>,
    /// Counters to follow once their chains exist.
    pub counters: Arc<Counters>,
    /// This node's labels as last seen.
    pub labels: BTreeMap<String, String>,
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
            self.leave_alone(&mut gateway, &cancel).await;
            return;
        }
        let cluster = self.plugger.cluster.clone();
        let (mut nodes, mut subnets, mut cidrs) =
            (cluster.nodes.subscribe(), cluster.subnets.subscribe(), cluster.service_cidrs.subscribe());
        let mut pods = cluster.pods.subscribe();
        let mut last: Option<Inputs> = None;
        let mut failing = false;
        let mut verified = Instant::now();
        let mut told = BTreeSet::new();
        loop {
            nodes.mark_unchanged();
            subnets.mark_unchanged();
            cidrs.mark_unchanged();
            pods.mark_unchanged();
            let ready = cluster.nodes.get().synced
                && cluster.subnets.get().synced
                && cluster.service_cidrs.get().synced;
            let inputs = if ready { self.inputs(&gateway).await } else { None };
            let due = verified.elapsed() >= VERIFY && self.is_quiet(verified);
            if let Some(inputs) = inputs
                && (failing || due || last.as_ref() != Some(&inputs))
            {
                failing = !self.pass(&mut gateway, &inputs, &mut told).await;
                verified = Instant::now();
                last = (!failing).then_some(inputs);
            }
            let pause = if failing { RETRY } else { VERIFY.saturating_sub(verified.elapsed()).max(RETRY) };
            let watched = (&mut nodes, &mut subnets, &mut cidrs, &mut pods);
            if !self.wait(watched, pause, &mut last, &cancel).await {
                return;
            }
        }
    }

    /// Waits for something to look at; forgets the last inputs when the host
    /// itself changed. `false` when it is over.
    async fn wait<A, B, C, D>(
        &mut self,
        (nodes, subnets, cidrs, pods): (
            &mut watch::Receiver<A>,
            &mut watch::Receiver<B>,
            &mut watch::Receiver<C>,
            &mut watch::Receiver<D>,
        ),
        pause: Duration,
        last: &mut Option<Inputs>,
        cancel: &CancellationToken,
    ) -> bool {
        let sleep = tokio::time::sleep(pause);
        tokio::pin!(sleep);
        let mut views = self.plugger.ovs.subscribe();
        let tables: BTreeSet<u32> = last
            .iter()
            .flat_map(|inputs| &inputs.subnets)
            .filter_map(|subnet| subnet.external_egress.as_ref())
            .map(|egress| egress.table)
            .collect();
        let by_pod = last.as_ref().is_some_and(|inputs| {
            inputs.subnets.iter().any(|subnet| subnet.distributed && subnet.external_egress.is_some())
        });
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
                changed = nodes.changed() => { if changed.is_err() { return false } break }
                changed = subnets.changed() => { if changed.is_err() { return false } break }
                changed = cidrs.changed() => { if changed.is_err() { return false } break }
                // Pods come and go all the time; only policy routing speaks of single ones.
                changed = pods.changed(), if by_pod => { if changed.is_err() { return false } break }
                change = self.changes.recv() => {
                    let link = last.as_ref().and_then(|inputs| inputs.join.as_ref()).map(|join| join.link);
                    let concerns = match change {
                        Ok(change) => concerns(&change, link, &tables),
                        Err(broadcast::error::RecvError::Lagged(_)) => true,
                        Err(broadcast::error::RecvError::Closed) => return false,
                    };
                    if concerns {
                        *last = None;
                        break;
                    }
                }
            }
        }
        tokio::time::sleep(GATHER).await;
        // What came meanwhile is covered by the pass that follows.
        while let Ok(change) = self.changes.try_recv() {
            let link = last.as_ref().and_then(|inputs| inputs.join.as_ref()).map(|join| join.link);
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
        self.read_labels(subnets.objects.values().any(|subnet| selects_gateways(subnet))).await;
        let pods = cluster.pods.get();
        Some(Inputs::gather(Objects {
            subnets: subnets.objects.values().map(|subnet| &**subnet).collect(),
            node,
            nodes: nodes.objects.values().map(|node| &**node).collect(),
            service_cidrs: cidrs.objects.values().map(|cidr| &**cidr).collect(),
            service_cluster_ip_range: &self.flags.service_cluster_ip_range,
            cluster_router: &self.flags.cluster_router,
            node_switch: &self.flags.node_switch,
            join: self.join(node).await,
            tunnel_peers: self.plugger.ovs.view().tunnel_peers(),
            proxy_sets: gateway.proxy_sets().clone(),
            pods: pods.objects.values().map(|pod| &**pod).collect(),
            node_labels: self.labels.clone(),
            config: self.config(),
        }))
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

    /// This node's labels, kept when the API server does not answer. No watch has them: of all other nodes and for
    /// everything else they would only be in the way.
    async fn read_labels(&mut self, needed: bool) {
        let Some(client) = self.client.clone().filter(|_| needed) else { return };
        let nodes = kube::Api::<k8s_openapi::api::core::v1::Node>::all(client);
        match nodes.get_metadata(&self.plugger.node).await {
            Ok(node) => self.labels = node.metadata.labels.unwrap_or_default(),
            Err(error) => {
                tracing::warn!(error = %error, "the node's labels can't be read; the last ones count")
            }
        }
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

    /// One pass; whether all of it could be done.
    async fn pass(&self, gateway: &mut Gateway, inputs: &Inputs, told: &mut BTreeSet<String>) -> bool {
        self.let_forward(inputs).await;
        let report = match gateway.reconcile(inputs).await {
            Ok(report) => report,
            Err(error) => {
                tracing::warn!(error = %error, "the host's state can't be read");
                return false;
            }
        };
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
        well
    }

    /// Settings that somebody may have turned back.
    async fn let_forward(&self, inputs: &Inputs) {
        let families: BTreeSet<_> = inputs.families().into_iter().collect();
        let done = self.plugger.host.namespace.run_async(move || enable_forwarding(&families)).await;
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
    async fn leave_alone(&self, gateway: &mut Gateway, cancel: &CancellationToken) {
        while let Err(error) = gateway.remove().await {
            tracing::warn!(error = %error, "rules of an earlier mode can't be removed; trying again");
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(RETRY) => {}
            }
        }
        self.applied.send_replace(true);
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
        Change::Lost => true,
    }
}

/// Takes lost interfaces away until cancelled.
pub async fn clean_lost(
    plugger: Arc<Plugger>,
    mut changes: broadcast::Receiver<Change>,
    feed: Changes,
    cancel: CancellationToken,
) {
    let mut pods = plugger.cluster.pods.subscribe();
    let mut suspects = Suspects::default();
    loop {
        // Without the switch's view nothing can be judged.
        tokio::select! {
            () = cancel.cancelled() => return,
            () = plugger.ovs.connected() => {}
        }
        pods.mark_unchanged();
        let (removed, remain) = plugger.clean_lost(&mut suspects).await;
        if !removed.is_empty() {
            feed.say("lost", json!({"removed": removed}));
        }
        let pause = if remain { SECOND_LOOK } else { VERIFY };
        let sleep = tokio::time::sleep(pause);
        tokio::pin!(sleep);
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                () = &mut sleep => break,
                // A second look comes by time alone: the first needs it to pass.
                changed = pods.changed(), if !remain => { if changed.is_err() { return } break }
                change = changes.recv() => match change {
                    Ok(Change::LinkGone(link)) if !remain && is_host_end(&link.name) => break,
                    Ok(Change::Lost) | Err(broadcast::error::RecvError::Lagged(_)) if !remain => break,
                    Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return,
                },
            }
        }
        // Pods come and go in bunches.
        tokio::time::sleep(Duration::from_millis(500)).await;
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
