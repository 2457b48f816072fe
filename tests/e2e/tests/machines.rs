//! Virtual machines on a real API server: KubeVirt's kinds come while the controller runs, and addresses stay with the
//! machine (contract §2.1, §3.5).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::cluster::{Cluster, PATIENCE};
use e2e::machines::{KubeVirt, Machine};
use e2e::network::{reaches, shell_pod, view, views};
use e2e::workload::Namespace;
use lab::api;
use lab::progress::{Look, say, wait_for};
use serde_json::{Value, json};

const PORT: &str = "guest.machines";

/// The addresses and MAC that the pod was given.
fn given(cluster: &Cluster, pod: &str) -> Result<(String, String)> {
    let object = api::get(&cluster.lab, &format!("/api/v1/namespaces/machines/pods/{pod}"))?;
    let read =
        |key: &str| api::text(&object, &format!("/metadata/annotations/ovn.kubernetes.io~1{key}")).to_owned();
    Ok((read("ip_address"), read("mac_address")))
}

/// Whether IP object and logical switch port of the machine are there.
fn there(cluster: &Cluster) -> Result<(bool, bool)> {
    let ips = api::list(&cluster.lab, "/apis/kubeovn.io/v1/ips")?;
    let record = ips.iter().any(|ip| api::text(ip, "/metadata/name") == PORT);
    Ok((record, cluster.northbound()?.by_name("Logical_Switch_Port", "name").contains_key(PORT)))
}

fn wait_pods_gone(namespace: &Namespace<'_>, name: &str) -> Result<()> {
    wait_for(&format!("pod {name} to be gone"), PATIENCE, || {
        let left = namespace.pods()?.iter().any(|pod| api::text(pod, "/metadata/name") == name);
        Ok(if left { Look::NotYet("still there".into()) } else { Look::Ready(()) })
    })
}

/// The guest's pod is ready with these addresses, under the machine's name, and answers.
fn serves(
    cluster: &Cluster,
    namespace: &Namespace<'_>,
    pod: &str,
    expected: &BTreeSet<IpAddr>,
) -> Result<()> {
    namespace.wait_ready(2, PATIENCE)?;
    let views = views(namespace)?;
    let guest = view(&views, pod)?;
    let now: BTreeSet<IpAddr> = guest.addresses.iter().copied().collect();
    ensure!(expected.is_empty() || now == *expected, "{pod} has {now:?}, the machine had {expected:?}");
    for v4 in cluster.lab.plan.family.select(true, false) {
        let (source, target) = (view(&views, "asker")?.source(), guest.address(v4)?);
        ensure!(reaches(cluster, &source, target)?, "{target} of {pod} does not answer");
    }
    Ok(())
}

#[test]
fn addresses_stay_with_the_machine_and_go_with_it() -> Result<()> {
    let cluster = Cluster::open()?;
    let nodes = cluster.nodes()?;
    let namespace = Namespace::create(&cluster, "machines")?;
    let restarts = cluster.restarts()?;
    namespace.apply(&[shell_pod(&namespace, "asker", &nodes[0].name, &json!({}))])?;
    namespace.wait_ready(1, PATIENCE)?;
    let _kubevirt = KubeVirt::install(&cluster)?;
    let machine = Machine::create(&cluster, &namespace, "guest")?;
    machine.start()?;
    // The controller looks for kinds that it did not find; nobody tells it of them.
    for kind in ["virtualmachines", "virtualmachineinstances"] {
        wait_for(&format!("the controller to know of {kind}"), PATIENCE, || {
            let status: Value = serde_json::from_str(&cluster.kubectl(&["ko", "status", "--json"])?)?;
            let kinds = status["watches"].as_array().cloned().unwrap_or_default();
            let known = kinds.iter().any(|entry| entry["kind"] == kind && entry["objects"] == 1);
            Ok(if known { Look::Ready(()) } else { Look::NotYet(json!(kinds).to_string()) })
        })?;
    }
    machine.launch("virt-launcher-guest-a", &nodes[0].name, &json!({}))?;
    serves(&cluster, &namespace, "virt-launcher-guest-a", &BTreeSet::new())?;
    let first = given(&cluster, "virt-launcher-guest-a")?;
    let addresses: BTreeSet<IpAddr> =
        first.0.split(',').map(|ip| ip.parse().context("an address")).collect::<Result<_>>()?;
    ensure!(there(&cluster)? == (true, true), "IP object and port are not the machine's: {PORT}");

    // Its pod dies and is made anew elsewhere.
    machine.end("virt-launcher-guest-a")?;
    wait_pods_gone(&namespace, "virt-launcher-guest-a")?;
    machine.launch("virt-launcher-guest-b", &nodes[1].name, &json!({}))?;
    serves(&cluster, &namespace, "virt-launcher-guest-b", &addresses)?;
    ensure!(given(&cluster, "virt-launcher-guest-b")? == first, "the MAC is another one");

    // It is stopped for a while: others do not get its address.
    machine.stop()?;
    wait_pods_gone(&namespace, "virt-launcher-guest-b")?;
    std::thread::sleep(Duration::from_secs(5));
    ensure!(there(&cluster)? == (true, true), "a machine that is stopped lost its address");
    machine.start()?;
    machine.launch("virt-launcher-guest-c", &nodes[0].name, &json!({}))?;
    serves(&cluster, &namespace, "virt-launcher-guest-c", &addresses)?;

    // Deleted: whoever asks for the address gets it.
    machine.delete_machine()?;
    wait_pods_gone(&namespace, "virt-launcher-guest-c")?;
    wait_for("the machine's address to be free", PATIENCE, || {
        let left = there(&cluster)?;
        Ok(if left == (false, false) { Look::Ready(()) } else { Look::NotYet(format!("{left:?}")) })
    })?;
    let wish = json!({"ovn.kubernetes.io/ip_address": first.0});
    namespace.apply(&[shell_pod(&namespace, "heir", &nodes[1].name, &wish)])?;
    serves(&cluster, &namespace, "heir", &addresses)?;
    ensure!(cluster.restarts()? == restarts, "a pod of ours was started again");
    say(format!("{} stayed with the machine through three pods, and was free after it", first.0));
    namespace.delete_pods(true)
}
