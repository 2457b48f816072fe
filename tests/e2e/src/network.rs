//! Subnets, Vpcs and pods that talk, for tests.

use std::net::IpAddr;

use anyhow::{Context, Result};
use lab::checks::probe::{self, PodView, Source};
use lab::images::BUSYBOX;
use lab::progress::{Look, wait_for};
use lab::state::Node;
use lab::{api, outside};
use serde_json::{Value, json};

use crate::cluster::{Cluster, PATIENCE};
use crate::workload::Namespace;

/// Objects of the cluster's scope that a test made; removed when dropped, the
/// last one first.
pub struct Made<'a> {
    cluster: &'a Cluster,
    names: Vec<(&'static str, String)>,
}

impl<'a> Made<'a> {
    /// Nothing yet.
    pub fn new(cluster: &'a Cluster) -> Self {
        Self { cluster, names: Vec::new() }
    }

    /// A Subnet whose spec has these fields; waits until it is Ready.
    pub fn subnet(&mut self, name: &str, spec: Value) -> Result<()> {
        self.create("Subnet", "subnets", name, spec)?;
        wait_condition(self.cluster, "subnets", name, "Ready", "True")
    }

    /// A Vpc.
    pub fn vpc(&mut self, name: &str, spec: Value) -> Result<()> {
        self.create("Vpc", "vpcs", name, spec)
    }

    /// An object of another kind; waits for nothing.
    pub fn object(&mut self, kind: &str, plural: &'static str, name: &str, spec: Value) -> Result<()> {
        self.create(kind, plural, name, spec)
    }

    fn create(&mut self, kind: &str, plural: &'static str, name: &str, spec: Value) -> Result<()> {
        let object = json!({
            "apiVersion": "kubeovn.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec,
        });
        api::apply(&self.cluster.lab, &object.to_string())?;
        self.names.push((plural, name.to_owned()));
        Ok(())
    }
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        for (plural, name) in self.names.iter().rev() {
            let gone = self.cluster.kubectl(&["delete", plural, name, "--ignore-not-found", "--timeout=60s"]);
            if let Err(error) = gone {
                eprintln!("could not remove {plural}/{name}: {error:#}");
            }
        }
    }
}

/// Waits for a condition of an object of ours.
pub fn wait_condition(cluster: &Cluster, plural: &str, name: &str, kind: &str, status: &str) -> Result<()> {
    wait_for(&format!("{plural}/{name}: {kind}={status}"), PATIENCE, || {
        let object = api::get(&cluster.lab, &format!("/apis/kubeovn.io/v1/{plural}/{name}"))?;
        if api::condition(&object, kind) == status {
            return Ok(Look::Ready(()));
        }
        Ok(Look::NotYet(object.pointer("/status/conditions").map(Value::to_string).unwrap_or_default()))
    })
}

/// A pod with a shell, on a node, with annotations.
pub fn shell_pod(namespace: &Namespace<'_>, name: &str, node: &str, annotations: &Value) -> Value {
    let mut pod = namespace.pod(name, node);
    pod["metadata"]["annotations"] = annotations.clone();
    pod["spec"]["containers"][0]["image"] = json!(BUSYBOX);
    pod["spec"]["containers"][0]["command"] = json!(["sleep", "1000000"]);
    pod
}

/// The pods of a namespace by name.
pub fn views(namespace: &Namespace<'_>) -> Result<Vec<PodView>> {
    let mut views: Vec<_> = namespace.pods()?.iter().map(probe::pod_view).collect();
    views.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(views)
}

/// One of them.
pub fn view<'v>(views: &'v [PodView], name: &str) -> Result<&'v PodView> {
    views.iter().find(|view| view.name == name).with_context(|| format!("no pod {name}"))
}

/// Whether `from` gets an answer to one of three echo requests.
pub fn reaches(cluster: &Cluster, from: &Source, to: IpAddr) -> Result<bool> {
    let program = if to.is_ipv4() { "ping" } else { "ping -6" };
    let script = format!("{program} -c 3 -i 0.2 -W 1 {to} >/dev/null 2>&1 && echo yes || echo no");
    Ok(from.shell(&cluster.lab, &script)?.trim() == "yes")
}

/// The outside host's management address of a family.
pub fn outside_address(cluster: &Cluster, v4: bool) -> Result<IpAddr> {
    let found = outside::addresses(&cluster.lab).into_iter().find(|address| address.is_ipv4() == v4);
    found.context("the outside host lacks a family")
}

/// As which address the outside host sees who asks it.
pub fn seen_as(cluster: &Cluster, from: &Source, v4: bool) -> Result<IpAddr> {
    probe::outside(&cluster.lab, from, outside_address(cluster, v4)?)
}

/// Waits until what a pod sends to the world leaves through a node.
pub fn wait_seen_as(cluster: &Cluster, from: &Source, v4: bool, expected: &Node) -> Result<()> {
    let expected = probe::node_address(&cluster.lab, expected, v4);
    wait_for(&format!("traffic to leave through {expected}"), PATIENCE, || {
        let seen = seen_as(cluster, from, v4)?;
        Ok(if seen == expected { Look::Ready(()) } else { Look::NotYet(format!("seen as {seen}")) })
    })
}
