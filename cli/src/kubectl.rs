//! Programs in pods, through `kubectl exec`.
//!
//! This process becomes `kubectl`, so that signals, terminal and exit code are
//! those of the program in the pod.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use crate::arguments::PassNode;

/// How to reach the cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    kubectl: String,
    namespace: String,
}

/// One of OVN's databases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Database {
    /// What is wanted.
    Northbound,
    /// What is bound where.
    Southbound,
}

/// A container to run something in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Container {
    /// Pod.
    pub(crate) pod: String,
    /// Container of the pod.
    pub(crate) container: &'static str,
}

impl Cluster {
    pub(crate) fn new(kubectl: String, namespace: String) -> Self {
        Self { kubectl, namespace }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.kubectl);
        command.args(["--namespace", &self.namespace]);
        command
    }

    /// Standard output of `kubectl …`; its complaints go where ours go.
    pub(crate) fn output(&self, arguments: &[&str]) -> Result<String> {
        let output = self
            .command()
            .args(arguments)
            .stderr(std::process::Stdio::inherit())
            .output()
            .with_context(|| format!("{} can't be started; name another with --kubectl", self.kubectl))?;
        if !output.status.success() {
            bail!("{} {} failed: {}", self.kubectl, arguments.join(" "), output.status);
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// The first running pod that has these labels (and is on that node).
    pub(crate) fn pod(&self, labels: &str, node: Option<&str>) -> Result<String> {
        let mut fields = "status.phase=Running".to_owned();
        if let Some(node) = node {
            fields.push_str(",spec.nodeName=");
            fields.push_str(node);
        }
        let names = self.output(&[
            "get",
            "pods",
            "--selector",
            labels,
            "--field-selector",
            &fields,
            "--output",
            "jsonpath={.items[*].metadata.name}",
        ])?;
        match (names.split_whitespace().next(), node) {
            (Some(name), _) => Ok(name.to_owned()),
            (None, Some(node)) => {
                bail!("no running pod with label {labels} on node {node} in namespace {}", self.namespace)
            }
            (None, None) => bail!("no running pod with label {labels} in namespace {}", self.namespace),
        }
    }

    /// Becomes `kubectl exec`. Returns only when that fails.
    pub(crate) fn exec(&self, container: &Container, program: &[OsString]) -> Result<ExitCode> {
        let mut command = self.command();
        command.arg("exec").args(flags());
        command.arg(&container.pod).args(["--container", container.container, "--"]).args(program);
        let error = command.exec();
        Err(error).with_context(|| format!("{} can't be started; name another with --kubectl", self.kubectl))
    }
}

/// A terminal in the pod when a person sits here, plain pipes otherwise.
fn flags() -> &'static [&'static str] {
    match (std::io::stdin().is_terminal(), std::io::stdout().is_terminal()) {
        (true, true) => &["--stdin", "--tty"],
        // Nobody will type anything: leave the terminal's input to the shell.
        (true, false) => &[],
        (false, _) => &["--stdin"],
    }
}

fn program(name: &str, arguments: &[OsString]) -> Vec<OsString> {
    std::iter::once(OsString::from(name)).chain(arguments.iter().cloned()).collect()
}

/// Runs `ovn-nbctl` or `ovn-sbctl` where the database's leader is.
pub(crate) fn database(cluster: &Cluster, database: Database, arguments: &[OsString]) -> Result<ExitCode> {
    let (label, name) = match database {
        Database::Northbound => ("app=ovn-central,ovn-nb-leader=true", "ovn-nbctl"),
        Database::Southbound => ("app=ovn-central,ovn-sb-leader=true", "ovn-sbctl"),
    };
    let container = Container { pod: cluster.pod(label, None)?, container: "ovn-central" };
    cluster.exec(&container, &program(name, arguments))
}

/// Runs a program of Open vSwitch on a node.
pub(crate) fn switch(cluster: &Cluster, name: &str, pass: &PassNode) -> Result<ExitCode> {
    let container = Container { pod: cluster.pod("app=ovs", Some(&pass.node))?, container: "openvswitch" };
    cluster.exec(&container, &program(name, &pass.arguments))
}
