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

use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;

use crate::flags::Flags;
use crate::hostnet::HostNet;
use crate::kube::{Cluster, EventType, ObjectRef, Recorder};
use crate::node::NodeStatus;
use crate::ovs::Ovs;

/// How long a start waits for what makes the picture complete.
const PATIENCE: Duration = Duration::from_secs(30);

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

/// What a start looks at once it can: findings become log lines and events of the node.
#[allow(clippy::too_many_arguments)]
pub async fn tell(
    flags: &Flags,
    ovs: &Ovs,
    host: &HostNet,
    client: &kube::Client,
    cluster: &Cluster,
    mut status: watch::Receiver<NodeStatus>,
    recorder: &Recorder,
    node: &str,
) {
    // What the node's steps find out, and the Subnets that say which families there are; not for ever, since what keeps
    // them may be what is to be found.
    let known = async {
        let chosen =
            status.wait_for(|status| status.tunnel_interface.is_some()).await.map(|status| status.clone());
        let mut subnets = cluster.subnets.subscribe();
        let _ = subnets.wait_for(|subnets| subnets.synced).await;
        chosen.ok()
    };
    let status = tokio::time::timeout(PATIENCE, known).await.ok().flatten();
    let tunnel = status.and_then(|status| {
        let (link, ip) = (status.tunnel_interface?, status.encap_ip?.parse().ok()?);
        Some((link, ip))
    });
    let facts =
        gather(&flags.cni_conf_dir, ovs, host, Some(client), tunnel, wants_ipv6(flags, cluster)).await;
    for finding in check(&facts, flags) {
        let text = finding.to_string();
        if finding.severity == Severity::Fatal {
            tracing::error!("pre-flight: {text}");
        } else {
            tracing::warn!("pre-flight: {text}");
        }
        recorder.record(ObjectRef::node(node, node), EventType::Warning, "PreflightFinding", text);
    }
}

/// Whether the join subnet has IPv6, as far as it is known.
pub fn wants_ipv6(flags: &Flags, cluster: &Cluster) -> bool {
    let join = cluster.subnets.object(&flags.node_switch.as_str().into());
    join.is_some_and(|join| join.cidr_block.contains(':'))
}

#[cfg(test)]
#[path = "checks_tests.rs"]
mod tests;
