//! The agent put together: who talks to whom, start and end.
//!
//! ```text
//! API server ─▶ watches ─▶ Cluster ─┬─▶ Plugger ◀── CNI socket
//! OVS database ◀─▶ Ovs (views) ─────┼─▶ Initialiser (node steps)
//! kernel ─▶ Monitor (changes) ──────┴─▶ HostLoop (gateway), lost interfaces
//! ```
//!
//! The order of the start does not matter to anyone: every part waits for what
//! it needs and says in `/readyz` what that is.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::middleware::from_fn_with_state;
use ovsdb::Endpoint;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::changes::Changes;
use crate::exit::{Exit, Place};
use crate::firewall::Tools;
use crate::flags::Flags;
use crate::gateway::Counters;
use crate::hostloop::HostLoop;
use crate::hostnet::HostNet;
use crate::kube::{Cluster, EventSink, PodLookup, WatchScope, client, spawn_watches};
use crate::metrics::Metrics;
use crate::netlink::Change;
use crate::node::{Initialiser, Inputs};
use crate::ovs::Ovs;
use crate::parts::NodeParts;
use crate::plug::{Locks, Patience, Plugger};
use crate::readiness::Readiness;
use crate::shortcut::Shortcut;
use crate::supervise::{Tasks, until_end};
use crate::underlay::{Underlay, managers::Managers};
use crate::{
    conncheck, daemons, diagnostics, heal, health, install, keep, mtu, plug, portloop, preflight, server,
    socket, trim,
};

/// Changes of the host's network that a slow reader may lag behind.
const CHANGES: usize = 4096;
/// How long calls in flight may take to end at shutdown: less than the manifest's `terminationGracePeriodSeconds`, 20.
const GRACE: Duration = Duration::from_secs(15);
/// How long `--check` waits for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Runs the agent until SIGTERM or SIGINT.
///
/// # Errors
/// What makes running pointless: no way to the API server configured, no
/// privilege over the host's network, a socket or port that can't be bound.
pub async fn run(flags: Flags) -> anyhow::Result<()> {
    let flags = Arc::new(flags);
    let node = flags.node_name();
    tracing::info!(version = env!("CARGO_PKG_VERSION"), node, "kube-ovn-daemon starts");
    tracing::info!(capabilities = capabilities(), "what the process may do");
    for flag in flags.without_effect() {
        tracing::warn!(flag = flag.flag, remedy = flag.remedy, "this flag has no effect");
    }
    if let Some(finding) = fatal_flags(&flags) {
        anyhow::bail!("{finding}");
    }
    let cancel = CancellationToken::new();
    let _cancel_on_error = cancel.clone().drop_guard();
    let metrics = Arc::new(Metrics::new(&node));
    let kube = client(&flags.kubeconfig, metrics.clone()).await.context("the API server's configuration")?;
    let endpoints = Endpoint::parse_list(&flags.ovs_endpoint()).context("--ovs-socket")?;
    anyhow::ensure!(
        !endpoints.iter().any(Endpoint::needs_tls),
        "--ovs-socket: the node's own database is not reached by TLS; give the path of its socket"
    );
    let host = HostNet::own().await.context("the host's network (the agent needs CAP_NET_ADMIN)")?;

    let mtu_before = mtu::before(&host.netlink).await;

    let cluster = Arc::new(Cluster::default());
    // Calls that still run at the end may wait for what the watches bring.
    let watching = CancellationToken::new();
    let _watching = watching.clone().drop_guard();
    let mut watches = spawn_watches(&kube, watch_scope(&flags, &node), &cluster, &watching);
    let counters = Arc::new(Counters::new(Tools::system(), metrics.clone()));
    let ovs = Ovs::connect(endpoints).measured(metrics.clone());
    let (sink, recorder) = EventSink::new(kube.clone(), &node);
    let feed = Changes::default();
    let changes = broadcast::Sender::new(CHANGES);
    let mut tasks = Tasks::default();
    tasks.keep("a watch", async move { drop(watches.join_next().await) });
    tasks.keep("what sends events", sink.run());
    tasks.once("what hears signals", profiles());
    tasks.keep("what hears the kernel", monitor(host.clone(), changes.clone()));
    tasks.keep("what hears the kernel's hints", heal::listen(host.clone(), changes.clone()));

    let inputs = Inputs {
        flags: flags.clone(),
        node: node.clone(),
        client: Some(kube.clone()),
        cluster: cluster.clone(),
        ovs: ovs.clone(),
        host: host.clone(),
        changes: changes.subscribe(),
    };
    let (initialiser, network, status) = Initialiser::new(inputs).await?;
    let mut plugger = Plugger::new(
        node,
        cluster.clone(),
        ovs.clone(),
        host,
        network,
        recorder,
        metrics.clone(),
        Patience::default(),
        Locks::default(),
    );
    plugger.lookup = Some(PodLookup::new(kube.clone()));
    plugger.detect_conflicts = flags.enable_arp_detect_ip_conflict;
    let plugger = Arc::new(plugger);
    let (applied_sender, host_applied) = watch::channel(false);
    let (daemons_told, daemons) = watch::channel(daemons::Daemons::default());
    let (ovs_folder, ovn_folder) = (daemons::ovs_folder(&flags), daemons::ovn_folder());
    let ovs_sockets = ovs_folder.clone();
    let recompute = daemons::recompute(ovn_folder.clone(), daemons::RECOMPUTE, cancel.clone());
    tasks.keep("what lets ovn-controller compute anew", recompute);
    let follow = daemons::follow(ovs_folder, ovn_folder, daemons_told, cancel.clone());
    tasks.keep("what looks after the programs beside the agent", follow);
    let readiness = Readiness { cluster, ovs, node: status, daemons, host_applied };

    // Sockets are bound before addresses move between interfaces.
    let bound =
        socket::bind(&flags.bind_socket).with_context(|| format!("bind {}", flags.bind_socket.display()))?;
    let api = server::Api { plugger: plugger.clone(), readiness: readiness.clone(), changes: feed.clone() };
    let mut servers = JoinSet::new();
    servers.spawn(keep::serve(flags.bind_socket.clone(), bound, server::router(api), cancel.clone()));
    let health = health::Health {
        socket: flags.bind_socket.clone(),
        readiness: readiness.clone(),
        metrics: flags.enable_metrics.then_some(metrics),
        counters: counters.clone(),
    };
    let terms = secure::Terms {
        min_version: &flags.tls_min_version,
        max_version: &flags.tls_max_version,
        cipher_suites: &flags.tls_cipher_suites,
    };
    let tls = flags.secure_serving.then(|| secure::server_config(terms, &plugger.node)).transpose()?;
    for address in health::addresses(&flags, flags.pprof_port) {
        let listener = health::bind(address).await.with_context(|| format!("bind {address}"))?;
        let stop = cancel.clone();
        if let Some(tls) = &tls {
            let guard = from_fn_with_state(secure::Access::new(kube.clone()), secure::guard);
            let probes = health::probes(health.clone());
            let whole = probes.clone().merge(health::figures(health.clone()).layer(guard));
            servers.spawn(secure::serve(listener, tls.clone(), whole, probes, stop));
        } else {
            let router = health::router(health.clone());
            servers.spawn(async move {
                secure::http(listener, router, stop).await;
                Ok(())
            });
        }
    }
    let mut checked = conncheck::listen(&flags).await?;
    if !checked.is_empty() {
        tasks.keep("the connectivity check", async move { drop(checked.join_next().await) });
    }
    let source =
        diagnostics::Source { readiness: readiness.clone(), plugger: plugger.clone(), changes: feed.clone() };
    let methods = diagnostics::module(source).context("diagnostics")?;
    let _diagnostics_file = match socket::bind(&flags.diagnostics_socket) {
        Ok((listener, file)) => {
            tasks.keep("diagnostics", diagnostics::serve(listener, methods));
            Some(file)
        }
        // Pods can be served without it.
        Err(error) => {
            let path = flags.diagnostics_socket.display().to_string();
            tracing::warn!(path, error = %error, "no diagnostics: the socket can't be bound");
            None
        }
    };

    tasks.keep("the node's steps", initialiser.run(cancel.clone()));
    let parts = NodeParts {
        node: plugger.node.clone(),
        client: Some(kube.clone()),
        cluster: plugger.cluster.clone(),
        ovs: plugger.ovs.clone(),
        host: plugger.host.clone(),
        recorder: plugger.recorder.clone(),
        status: readiness.node.clone(),
        feed: feed.clone(),
    };
    let underlay = Underlay::new(parts.clone(), flags.clone(), Managers::default());
    tasks.keep("the provider networks' loop", underlay.run(changes.subscribe(), cancel.clone()));
    let shortcut = Shortcut::new(parts.clone(), ovs_sockets);
    tasks.keep("the loop of Services' flows", shortcut.run(changes.subscribe(), cancel.clone()));
    let exit = Exit::new(parts, Place::of(&flags.netns_dir));
    // Not among the tasks that end with this function: its last words to routers take a moment.
    let mut last = Tasks::default();
    last.keep("the loop of the port in an external network", exit.run(changes.subscribe(), cancel.clone()));
    let (stop, look) = (
        cancel.clone(),
        preflight::Sources {
            flags: flags.clone(),
            plugger: plugger.clone(),
            client: kube.clone(),
            status: readiness.node.clone(),
            daemons: readiness.daemons.clone(),
        },
    );
    tasks.once("the pre-flight look", async move {
        stop.run_until_cancelled(preflight::tell(look)).await;
    });
    let (told, recorder) = (readiness.node.clone(), plugger.recorder.clone());
    tasks.once("the look at the MTU", mtu::tell(told, mtu_before, recorder, plugger.node.clone()));
    let host_loop = HostLoop {
        flags: flags.clone(),
        plugger: plugger.clone(),
        changes: changes.subscribe(),
        reports: changes.clone(),
        applied: applied_sender,
        feed: feed.clone(),
        status: readiness.node.clone(),
        counters,
        at_home: std::collections::BTreeSet::new(),
    };
    tasks.keep("the host's loop", host_loop.run(cancel.clone()));
    let ports = portloop::keep_ports(plugger.clone(), flags.clone(), changes.subscribe(), cancel.clone());
    tasks.keep("the ports' loop", ports);
    if flags.prepare_ports {
        tasks.keep("what prepares ports", plug::prepared::run(plugger.clone(), cancel.clone()));
    }
    let replug = plug::replug::run(plugger.clone(), changes.subscribe(), feed.clone(), cancel.clone());
    tasks.keep("what gives pods their ports again", replug);
    tasks.keep("what gives memory back", trim::give_back(plugger.clone(), cancel.clone()));
    let lost = plug::lost::run(plugger, changes.subscribe(), feed, cancel.clone());
    tasks.keep("what removes lost interfaces", lost);
    tasks.keep("the network configuration", keep::conflist(flags.clone(), readiness, cancel.clone()));

    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let asked = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let ended = until_end(asked, &mut servers, &mut tasks, &mut last).await;
    cancel.cancel();
    match &ended {
        Ok(()) => tracing::info!("kube-ovn-daemon ends; pods keep their network"),
        Err(error) => tracing::error!("kube-ovn-daemon ends, to start anew: {error:#}"),
    }
    let finish = async {
        while servers.join_next().await.is_some() {}
        last.end().await;
    };
    if tokio::time::timeout(GRACE, finish).await.is_err() {
        tracing::warn!("calls were still in flight; the runtime repeats them");
    }
    ended
}

/// SIGUSR1 and SIGUSR2 let Kube-OVN write profiles, and would end a process that does not expect them.
async fn profiles() {
    let signals = (signal(SignalKind::user_defined1()), signal(SignalKind::user_defined2()));
    let (Ok(mut one), Ok(mut two)) = signals else { return };
    loop {
        tokio::select! {
            _ = one.recv() => {}
            _ = two.recv() => {}
        }
        tracing::info!("no profiles are written at SIGUSR1 and SIGUSR2; use `perf` on the process");
    }
}

/// The process's effective capabilities, as the kernel writes them: hexadecimal, bit n is capability n.
fn capabilities() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.unwrap_or_default().trim().to_owned()
}

/// Flags that can't be meant together: waiting would not help.
fn fatal_flags(flags: &Flags) -> Option<preflight::Finding> {
    preflight::contradictions(flags)
        .into_iter()
        .find(|finding| finding.severity == preflight::Severity::Fatal)
}

/// `--check`: prints what would keep pods from working.
///
/// # Errors
/// When something fatal was found, or nothing could be looked at.
pub async fn check(flags: Flags) -> anyhow::Result<()> {
    let node = flags.node_name();
    let host = HostNet::own().await.context("the host's network (the agent needs CAP_NET_ADMIN)")?;
    let ovs = Ovs::connect(Endpoint::parse_list(&flags.ovs_endpoint()).context("--ovs-socket")?);
    // Without an API server there is still much to look at.
    let kube = client(&flags.kubeconfig, Arc::new(Metrics::new(&node))).await;
    if let Err(error) = &kube {
        tracing::warn!(error = format!("{error:#}"), "the API server is not asked");
    }
    let cluster = Arc::new(Cluster::default());
    let cancel = CancellationToken::new();
    let _watches =
        kube.as_ref().ok().map(|kube| spawn_watches(kube, watch_scope(&flags, &node), &cluster, &cancel));
    let mut subnets = cluster.subnets.subscribe();
    let _ = tokio::time::timeout(PATIENCE, subnets.wait_for(|subnets| subnets.synced)).await;
    let tunnel = ovs_tunnel(&ovs, &host).await;
    let wants_ipv6 = preflight::wants_ipv6(&flags, &cluster);
    let mut facts =
        preflight::gather(&flags.cni_conf_dir, &ovs, &host, kube.as_ref().ok(), tunnel, wants_ipv6).await;
    facts.forbidden = cluster.forbidden();
    let findings = preflight::check(&facts, &flags);
    cancel.cancel();
    let mut out = std::io::stdout().lock();
    for finding in &findings {
        writeln!(out, "{finding}")?;
    }
    let fatal = findings.iter().filter(|finding| finding.severity == preflight::Severity::Fatal).count();
    writeln!(out, "{} findings, {fatal} of them fatal", findings.len())?;
    anyhow::ensure!(fatal == 0, "{fatal} fatal findings");
    Ok(())
}

fn watch_scope<'a>(flags: &'a Flags, node: &'a str) -> WatchScope<'a> {
    WatchScope { node, external_gateway_namespace: &flags.external_gateway_config_ns }
}

/// The tunnel's link as the switch has it configured.
async fn ovs_tunnel(ovs: &Ovs, host: &HostNet) -> Option<(String, std::net::IpAddr)> {
    tokio::time::timeout(PATIENCE, ovs.connected()).await.ok()?;
    let view = ovs.view();
    let text =
        view.root_external_id("ovn-encap-ip-default").or_else(|| view.root_external_id("ovn-encap-ip"))?;
    let ip: std::net::IpAddr = text.split(',').next()?.parse().ok()?;
    let addresses = host.netlink.addresses(None).await.ok()?;
    let index = addresses.iter().find(|address| address.net.addr() == ip)?.index;
    let links = host.netlink.links().await.ok()?;
    links.into_iter().find(|link| link.index == index).map(|link| (link.name, ip))
}

/// Hands on what the kernel reports; subscribes again when a socket dies.
async fn monitor(host: HostNet, changes: broadcast::Sender<Change>) {
    loop {
        match host.monitor().await {
            Ok(mut monitor) => {
                // What happened while nobody listened.
                let _ = changes.send(Change::Lost);
                while let Some(change) = monitor.next().await {
                    if !is_noise(&change) {
                        // Nobody listens at shutdown.
                        let _ = changes.send(change);
                    }
                }
                tracing::warn!("the kernel's reports ended; subscribing again");
            }
            Err(error) => tracing::warn!(error = %error, "the kernel's reports can't be had; trying again"),
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// What the kernel does by itself for every link that comes up: link-local
/// addresses and their routes. Nobody acts on them, and with hundreds of pods
/// at once they would push what matters out of the readers' buffers.
fn is_noise(change: &Change) -> bool {
    match change {
        Change::Address(address) => address.link_scope && address.net.addr().is_ipv6(),
        Change::RouteChanged(route) | Change::RouteGone(route) => match route.destination {
            ipnet::IpNet::V6(net) => net.addr().is_unicast_link_local() || net.addr().is_multicast(),
            ipnet::IpNet::V4(_) => false,
        },
        _ => false,
    }
}

/// `--install-cni-config`, run by an init container: plugins next to this
/// executable go to the node's plugin folder, forwarding is turned on. The
/// network configuration itself follows when the agent can serve.
///
/// # Errors
/// When a plugin can't be installed or a setting is refused.
pub fn prepare_node(flags: &Flags) -> anyhow::Result<()> {
    let executable = std::env::current_exe().context("where this executable is")?;
    let source = executable.parent().context("this executable has no folder")?;
    let pod_ips = flags.env.pod_ips.as_deref().or(flags.env.pod_ip.as_deref()).unwrap_or_default();
    let done = install::prepare_node(source, &flags.cni_bin_dir, pod_ips)
        .with_context(|| format!("install plugins from {}", source.display()))?;
    for line in done {
        tracing::info!("{line}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_a_hexadecimal_number() {
        assert!(u64::from_str_radix(&capabilities(), 16).is_ok());
    }
}
