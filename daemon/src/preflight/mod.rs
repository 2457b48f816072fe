//! Pre-flight: what of a node, its switch and the command line would keep pods from working, told before they find out.
//!
//! In: [`Facts`], gathered once ([`gather`]). Out: [`Finding`]s with a remedy each ([`check`], pure). `--check` prints them and
//! ends; a start logs them and makes them events of the node. A fatal finding ends a start only where waiting can't help
//! (flags that contradict each other); everything else may be mended while the agent waits for it.

mod checks;
mod gather;

pub use checks::{check, contradictions};
pub use gather::gather;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;

use crate::daemons::{Alive, Daemons};
use crate::flags::Flags;
use crate::kube::{Cluster, EventType, ObjectRef};
use crate::node::NodeStatus;
use crate::plug::Plugger;

/// How long a start waits for what makes the picture complete.
const PATIENCE: Duration = Duration::from_secs(30);
/// How soon it is known which programs are there.
const FIRST_LOOK: Duration = Duration::from_secs(2);
/// First and longest pause between looks while there are findings.
const AGAIN: Duration = Duration::from_secs(5);
const AGAIN_AT_LAST: Duration = Duration::from_secs(300);
/// Reasons of the node's events.
const FOUND: &str = "PreflightFinding";
const HEALED: &str = "PreflightFindingHealed";

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Pods work; something asked for does not, or not well.
    Warning,
    /// No pod of this node can work.
    Fatal,
}

/// Something that is not as it has to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at: `modules`, `ovs`, `ovn`, `sysctls`, `ipv6`, `mtu`, `clock`, `programs`, `cni`,
    /// `flags`.
    pub check: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong.
    pub problem: String,
    /// What to do about it.
    pub remedy: String,
}

impl Finding {
    /// Whether both are about one thing; numbers in the problem may differ from look to look.
    fn is_same(&self, other: &Self) -> bool {
        (self.check, &self.remedy) == (other.check, &other.remedy)
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let severity = match self.severity {
            Severity::Warning => "warning",
            Severity::Fatal => "fatal",
        };
        write!(f, "{severity}: {}: {}; remedy: {}", self.check, self.problem, self.remedy)
    }
}

/// What was found on a node. What could not be found out is absent and says nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Facts {
    /// The switch, if it answers.
    pub switch: Option<Switch>,
    /// Version of the running ovn-controller.
    pub ovn_controller: Option<String>,
    /// Kernel modules that may be needed, by name: loaded, built in or loadable.
    pub modules: BTreeMap<String, bool>,
    /// Settings below `/proc/sys`, by path.
    pub sysctls: BTreeMap<String, String>,
    /// The kernel has IPv6.
    pub ipv6: bool,
    /// Programs that are missing from `PATH`.
    pub missing_programs: Vec<String>,
    /// The tunnel's link, its MTU and address.
    pub tunnel: Option<(String, u32, IpAddr)>,
    /// Seconds by which this node's clock is ahead of the API server's.
    pub clock_ahead: Option<i64>,
    /// The cluster's pods have IPv6 addresses.
    pub wants_ipv6: bool,
    /// Kinds that the API server forbids the agent to see.
    pub forbidden: Vec<&'static str>,
    /// Names of the network configurations that the runtime reads, in its order.
    pub configurations: Vec<String>,
}

/// What the switch says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Switch {
    /// `ovs_version`.
    pub version: Option<String>,
    /// Columns that the agent uses and the database lacks, as `Table.column`.
    pub lacks: Vec<String>,
    /// Pods are switched in userspace.
    pub userspace: bool,
    /// `ovn-encap-type`.
    pub encap_types: Option<String>,
}

/// What a look at a node needs.
#[derive(Clone)]
pub struct Sources {
    /// Flags.
    pub flags: Arc<Flags>,
    /// The switch, the host's network, watched objects, events.
    pub plugger: Arc<Plugger>,
    /// The API server's clock.
    pub client: kube::Client,
    /// The tunnel's link.
    pub status: watch::Receiver<NodeStatus>,
    /// Programs that may still be starting.
    pub daemons: watch::Receiver<Daemons>,
}

/// Looks once the picture is complete: findings become log lines and events of the node. As long as there are some that
/// may heal, it looks again, and tells of those that are gone.
pub async fn tell(mut sources: Sources) {
    let Sources { flags, plugger, client, status, daemons } = &mut sources;
    // What the node's steps find out, the Subnets that say which families there are, and ovn-controller, which may start
    // after the agent; not for ever, since what keeps them may be what is to be found.
    let known = async {
        let _ = status.wait_for(|status| status.tunnel_interface.is_some()).await;
        let mut subnets = plugger.cluster.subnets.subscribe();
        let _ = subnets.wait_for(|subnets| subnets.synced).await;
        // A kind that is forbidden is told of when it is clear that it stays so.
        let mut objects = plugger.cluster.objects();
        while !plugger.cluster.unknown().is_empty() && objects.changed().await {}
        // Its first look says whether there is anything to wait for.
        let _ = tokio::time::timeout(FIRST_LOOK, daemons.changed()).await;
        let _ = daemons.wait_for(|daemons| !matches!(daemons.ovn_controller, Alive::No(_))).await;
    };
    let _ = tokio::time::timeout(PATIENCE, known).await;
    let mut told: Vec<Finding> = Vec::new();
    let mut pause = AGAIN;
    loop {
        let tunnel = {
            let status = status.borrow_and_update();
            let ip = status.encap_ip.as_ref().and_then(|ip| ip.parse().ok());
            status.tunnel_interface.clone().zip(ip)
        };
        daemons.mark_unchanged();
        let wants_ipv6 = wants_ipv6(flags, &plugger.cluster);
        let (folder, host) = (&flags.cni_conf_dir, &plugger.host);
        let mut facts = gather(folder, &plugger.ovs, host, Some(&*client), tunnel, wants_ipv6).await;
        facts.forbidden = plugger.cluster.forbidden();
        let found = check(&facts, flags);
        for finding in found.iter().filter(|finding| !told.iter().any(|old| old.is_same(finding))) {
            let text = finding.to_string();
            if finding.severity == Severity::Fatal {
                tracing::error!("pre-flight: {text}");
            } else {
                tracing::warn!("pre-flight: {text}");
            }
            record(plugger, EventType::Warning, FOUND, text);
        }
        for finding in told.iter().filter(|old| !found.iter().any(|finding| finding.is_same(old))) {
            let text = format!("{}: it is well now, after: {}", finding.check, finding.problem);
            tracing::info!("pre-flight: {text}");
            record(plugger, EventType::Normal, HEALED, text);
        }
        told = found;
        // Flags stay as they are until the next start.
        if told.iter().all(|finding| finding.check == "flags") {
            return;
        }
        let changed = async {
            tokio::select! {
                changed = status.changed() => changed.is_ok(),
                changed = daemons.changed() => changed.is_ok(),
            }
        };
        // A sender that is gone belongs to a process that ends.
        if !tokio::time::timeout(pause, changed).await.unwrap_or(true) {
            return;
        }
        pause = (pause * 2).min(AGAIN_AT_LAST);
    }
}

fn record(plugger: &Plugger, kind: EventType, reason: &'static str, text: String) {
    plugger.recorder.record(ObjectRef::node(&plugger.node, &plugger.node), kind, reason, text);
}

/// Whether the join subnet has IPv6, as far as it is known.
pub fn wants_ipv6(flags: &Flags, cluster: &Cluster) -> bool {
    let join = cluster.subnets.object(&flags.node_switch.as_str().into());
    join.is_some_and(|join| join.cidr_block.contains(':'))
}

#[cfg(test)]
#[path = "checks_tests.rs"]
mod tests;
