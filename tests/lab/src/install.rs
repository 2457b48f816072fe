//! Weir on a lab, the way a user installs it: a node label, the manifests that
//! `weir manifests` prints, and (the lab's own) CoreDNS.
//!
//! In: a lab whose nodes have the images. Out: Ready nodes and a Ready CoreDNS.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::plan::{API_PORT, HOST_CONTROL, JOIN_CIDR, Net, POD_CIDR, SERVICE_CIDR, SERVICE_DNS, socket};
use crate::progress::{Look, quiet_step, say, wait_for};
use crate::run::{capture, command};
use crate::state::{Lab, read_json, write_json};
use crate::{api, cache, images, life, source_folder};

/// Our own workloads, kind and name: two of OVN and OVS, then the two that run
/// Weir's programs.
pub const WORKLOADS: [(&str, &str); 4] = [
    ("deployment", "ovn-central"),
    ("daemonset", "ovs-ovn"),
    ("deployment", "kube-ovn-controller"),
    ("daemonset", "kube-ovn-cni"),
];

/// Further options of `weir manifests`, for tests that want other settings.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Appended to its command line as they are.
    pub extra: Vec<String>,
}

/// The manifests as `weir manifests` renders them for this lab.
pub fn manifests(lab: &Lab, options: &Options) -> Result<String> {
    let nodes = lab.nodes()?;
    let master = nodes.first().context("the lab has no node")?;
    let plan = &lab.plan;
    let api_server = socket(plan.primary(Net::Management, HOST_CONTROL), API_PORT);
    let db = plan.primary(Net::Management, master.host()).to_string();
    let mut weir = command(&images::program_folder().join("weir").to_string_lossy(), ["manifests"]);
    weir.args(["--image", images::WEIR, "--ovn-db-ips", &db, "--api-server", &api_server]);
    // The kernel here has no openvswitch, and eth0 must stay the kubelet's.
    weir.args(["--datapath", "netdev", "--iface", "eth1"]);
    weir.args(["--pod-cidr", &plan.family.join(POD_CIDR.0, POD_CIDR.1)]);
    weir.args(["--join-cidr", &plan.family.join(JOIN_CIDR.0, JOIN_CIDR.1)]);
    weir.args(["--svc-cidr", &plan.family.join(SERVICE_CIDR.0, SERVICE_CIDR.1)]);
    weir.args(&options.extra);
    capture(&mut weir).context("cannot render the manifests")
}

/// Applies what starts no pods: the custom resource definitions, and CoreDNS,
/// whose image is there from the start.
pub fn apply_definitions(lab: &Lab, options: &Options) -> Result<()> {
    let mut options = options.clone();
    options.extra.extend(["--part".to_owned(), "crds".to_owned()]);
    let definitions = manifests(lab, &options)?;
    quiet_step("definitions applied", || {
        api::apply(lab, &definitions)?;
        api::apply(lab, &coredns(lab)?)
    })
}

/// Installs Weir and CoreDNS, or brings an installed one up to date, and waits
/// until the cluster is usable.
pub fn install(lab: &Lab, options: &Options) -> Result<()> {
    apply(lab, options)?;
    wait_ready(lab)
}

/// The part of [`install`] that waits for nothing.
pub fn apply(lab: &Lab, options: &Options) -> Result<()> {
    install_plugin(lab)?;
    let weir = manifests(lab, options)?;
    let nodes = lab.nodes()?;
    let master = nodes.first().context("the lab has no node")?;
    quiet_step("manifests applied", || {
        api::kubectl(lab, ["label", "node", &master.name, "kube-ovn/role=master", "--overwrite"])?;
        api::apply(lab, &weir)?;
        api::apply(lab, &coredns(lab)?)?;
        refresh(lab)
    })
}

/// Puts `weir` beside the lab's own program, by the name that makes it kubectl's
/// plugin `ko` (`lab kubectl ko nbctl show`).
pub(crate) fn install_plugin(lab: &Lab) -> Result<()> {
    let target = lab.path("bin/kubectl-ko");
    // A running program can't be written to, but removed.
    cache::remove(&target)?;
    let weir = images::program_folder().join("weir");
    fs::copy(&weir, &target).with_context(|| format!("cannot copy {}", weir.display()))?;
    Ok(())
}

/// What runs: hashes of Weir's programs and of its whole image.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Installed {
    programs: String,
    images: Vec<PathBuf>,
}

impl Installed {
    fn file(lab: &Lab) -> PathBuf {
        lab.path("run/installed.json")
    }

    fn now(lab: &Lab) -> Result<Self> {
        Ok(Self { programs: images::programs_key()?, images: images::Wanted::of(lab)?.archives })
    }
}

/// Remembers that the programs as they are now run, in the images as they were (see [`crate::swap`]).
pub(crate) fn note_programs(lab: &Lab) -> Result<()> {
    write_json(&Installed::file(lab), &Installed::now(lab)?)
}

/// After new images under an old name: pods that run an older one are replaced.
fn refresh(lab: &Lab) -> Result<()> {
    // Absent before the first installation is complete: nothing runs that is old.
    if !Installed::file(lab).exists() {
        return Ok(());
    }
    let (before, now): (Installed, _) = (read_json(&Installed::file(lab))?, Installed::now(lab)?);
    if before == now {
        return Ok(());
    }
    // New programs are ours to restart; only a new base concerns the switch.
    let concerned: &[_] = if before.programs == now.programs { &WORKLOADS } else { &WORKLOADS[2..] };
    let names: Vec<_> = concerned.iter().map(|(kind, name)| format!("{kind}/{name}")).collect();
    say(format!("the image is new: restarting {}", names.join(" ")));
    let restart = ["-n", "kube-system", "rollout", "restart"];
    api::kubectl(lab, restart.into_iter().chain(names.iter().map(String::as_str))).map(drop)
}

/// The DNS manifests with this lab's addresses.
fn coredns(lab: &Lab) -> Result<String> {
    let file = source_folder().join("manifests/coredns.yaml");
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let addresses = lab.plan.family.select(SERVICE_DNS.0, SERVICE_DNS.1);
    let quoted: Vec<_> = addresses.iter().map(|address| format!("\"{address}\"")).collect();
    let first = quoted.first().cloned().unwrap_or_default();
    Ok(text.replace("@DNS_ADDRESSES@", &quoted.join(", ")).replace("@DNS_ADDRESS@", &first))
}

/// Waits until our workloads are rolled out, nodes are Ready and names resolve.
pub fn wait_ready(lab: &Lab) -> Result<()> {
    quiet_step("Weir's pods ready", || {
        WORKLOADS.iter().try_for_each(|(kind, name)| wait_rollout(lab, kind, name))
    })?;
    note_programs(lab)?;
    quiet_step("nodes Ready", || life::wait_nodes_ready(lab, Duration::from_secs(90)))?;
    quiet_step("CoreDNS Ready", || wait_rollout(lab, "deployment", "coredns"))
}

/// Waits until a workload of kube-system runs its newest template everywhere.
pub fn wait_rollout(lab: &Lab, kind: &str, name: &str) -> Result<()> {
    let path = format!("/apis/apps/v1/namespaces/kube-system/{kind}s/{name}");
    wait_for(&format!("{kind} {name}"), Duration::from_secs(180), || {
        let object = api::get(lab, &path)?;
        let number = |pointer: &str| object.pointer(pointer).and_then(serde_json::Value::as_i64).unwrap_or(0);
        let seen = number("/status/observedGeneration") >= number("/metadata/generation");
        let (wanted, updated, ready) = if kind == "daemonset" {
            let status = ["desiredNumberScheduled", "updatedNumberScheduled", "numberReady"];
            let [wanted, updated, ready] = status.map(|field| number(&format!("/status/{field}")));
            // Before any node is seen it wants none.
            (wanted.max(1), updated, ready)
        } else {
            (number("/spec/replicas"), number("/status/updatedReplicas"), number("/status/readyReplicas"))
        };
        if seen && updated >= wanted && ready >= wanted && number("/status/replicas") <= wanted {
            return Ok(Look::Ready(()));
        }
        let unwell = life::unwell_pods(lab)?.into_iter().filter(|pod| pod.contains(name));
        Ok(Look::NotYet(format!("{ready} of {wanted} ready; {}", unwell.collect::<Vec<_>>().join("; "))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::show::manifest;

    #[test]
    fn manifests_name_the_images_that_nodes_have() {
        let text = |file: &str, placeholder: &str| manifest(file, placeholder, "value").unwrap();
        assert!(text("coredns.yaml", "@DNS_ADDRESS@").contains(&images::coredns_name()));
        for (file, placeholder) in [("show.yaml", "@BACKEND_NODE@"), ("guest.yaml", "@NAME@")] {
            let text = text(file, placeholder);
            // Only the comment at the head may still name the placeholder.
            let body = text.split_once('\n').unwrap().1;
            assert!(
                body.contains(images::BUSYBOX) && body.contains("value") && !body.contains('@'),
                "{file}"
            );
        }
    }
}
