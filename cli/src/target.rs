//! Where the diagnostics of a controller or node agent are.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::arguments::Whom;
use crate::kubectl::{Cluster, Container};

/// The controller's socket in its pod.
const CONTROLLER_SOCKET: &str = "/run/kube-ovn/controller.sock";
/// The agent's socket in its pod and on its node.
const DAEMON_SOCKET: &str = "/run/kube-ovn/daemon.sock";

/// Where to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// At a socket of this machine.
    Local(PathBuf),
    /// With the `weir` of a pod, at a socket there.
    Pod(Container, &'static str),
}

/// Finds out whom the options mean. Inside a controller's pod that is the
/// controller itself, without any cluster access.
pub(crate) fn find(cluster: &Cluster, whom: &Whom) -> Result<Target> {
    if let Some(socket) = &whom.socket {
        return Ok(Target::Local(socket.clone()));
    }
    if let Some(node) = &whom.node {
        let pod = cluster.pod("app=kube-ovn-cni", Some(node))?;
        return Ok(Target::Pod(Container { pod, container: "cni-server" }, DAEMON_SOCKET));
    }
    if Path::new(CONTROLLER_SOCKET).exists() {
        return Ok(Target::Local(CONTROLLER_SOCKET.into()));
    }
    let pod = leader(cluster)?;
    Ok(Target::Pod(Container { pod, container: "kube-ovn-controller" }, CONTROLLER_SOCKET))
}

/// The pod of the leading controller, or any controller's when none leads.
fn leader(cluster: &Cluster) -> Result<String> {
    const LABEL: &str = "app=kube-ovn-controller";
    let holder = cluster.output(&[
        "get",
        "lease",
        "kube-ovn-controller",
        "--ignore-not-found",
        "--output",
        "jsonpath={.spec.holderIdentity}",
    ])?;
    let pods = cluster.output(&[
        "get",
        "pods",
        "--selector",
        LABEL,
        "--output",
        "jsonpath={.items[*].metadata.name}",
    ])?;
    match leading(&holder, &pods) {
        Some(pod) => Ok(pod.to_owned()),
        None => cluster.pod(LABEL, None),
    }
}

/// The holder's identity begins with its pod's name.
fn leading<'a>(holder: &str, pods: &'a str) -> Option<&'a str> {
    pods.split_whitespace().find(|pod| {
        holder
            .strip_prefix(pod)
            .is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-'))
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("c-abc", "c-xyz c-abc", Some("c-abc"))]
    #[case("c-abc_0f2e", "c-xyz c-abc", Some("c-abc"))]
    #[case("c-abcd", "c-abc", None)]
    #[case("", "c-abc", None)]
    fn the_leader_is_the_holder(#[case] holder: &str, #[case] pods: &str, #[case] pod: Option<&str>) {
        assert_eq!(leading(holder, pods), pod);
    }
}
