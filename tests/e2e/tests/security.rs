//! U67 (`pain.md`), C94 of the Cilium map: a pod that sends from an address that
//! is not its own. Real frames on the wire of a pod.

use std::net::IpAddr;

use anyhow::{Result, ensure};
use e2e::cluster::{Cluster, PATIENCE};
use e2e::frames::{self, Mac, arp_answer, nd_answer, udp};
use e2e::network::{shell_pod, view, views};
use e2e::settings::{Changed, set_argument};
use e2e::workload::Namespace;
use lab::api;
use lab::checks::probe::PodView;
use lab::progress::say;
use serde_json::json;

const STRANGER: Mac = [0x02, 0x77, 0x65, 0x69, 0x72, 0x01];

/// The hardware address of a pod's default interface.
fn mac_of(cluster: &Cluster, pod: &PodView) -> Result<Mac> {
    let object = api::get(&cluster.lab, &format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name))?;
    frames::mac(api::text(&object, "/metadata/annotations/ovn.kubernetes.io~1mac_address"))
}

/// A frame and what is untrue in it.
type Lie = (String, Vec<u8>);

/// Frames with a lie in each, by name; and one without.
fn lies(cluster: &Cluster, from: &PodView, to: &PodView, other: &PodView) -> Result<(Vec<Lie>, Vec<u8>)> {
    let (own, target) = (mac_of(cluster, from)?, mac_of(cluster, to)?);
    let mut lies = Vec::new();
    let mut honest = Vec::new();
    for v4 in cluster.lab.plan.family.select(true, false) {
        let family = if v4 { "IPv4" } else { "IPv6" };
        let (mine, his, others) = (from.address(v4)?, to.address(v4)?, other.address(v4)?);
        let nobodys: IpAddr = if v4 { "192.0.2.77".parse()? } else { "2001:db8::77".parse()? };
        let mark = |what: &str| format!("weir {} {what}", from.name);
        lies.push((format!("another pod's {family}"), udp((own, target), (others, his), &mark("other"))?));
        lies.push((format!("nobody's {family}"), udp((own, target), (nobodys, his), &mark("nobody"))?));
        lies.push((
            format!("a stranger's MAC, {family}"),
            udp((STRANGER, target), (mine, his), &mark("mac"))?,
        ));
        lies.push(match (others, his) {
            (IpAddr::V4(others), IpAddr::V4(his)) => {
                ("ARP for another pod".to_owned(), arp_answer((own, target), others, his))
            }
            (IpAddr::V6(others), IpAddr::V6(his)) => {
                ("neighbour advertisement for another pod".to_owned(), nd_answer((own, target), others, his))
            }
            _ => unreachable!("one family"),
        });
        honest = udp((own, target), (mine, his), &mark("honest"))?;
    }
    Ok((lies, honest))
}

/// Whether lies of a pod pass; all of them or none.
fn check(cluster: &Cluster, views: &[PodView], from: &str, pass: bool, when: &str) -> Result<()> {
    let pod = view(views, from)?;
    let other = view(views, "bystander")?;
    for to in ["near", "far"] {
        let peer = view(views, to)?;
        let (lies, honest) = lies(cluster, pod, peer, other)?;
        let sent: Vec<Vec<u8>> = lies.iter().map(|(_, frame)| frame.clone()).collect();
        let came = frames::arrived(cluster, pod, peer, &sent, &honest)?;
        let wrong: Vec<_> = lies
            .iter()
            .zip(came)
            .filter(|(_, came)| *came != pass)
            .map(|((what, _), _)| what.as_str())
            .collect();
        ensure!(
            wrong.is_empty(),
            "{when}, {from} to {to}, must {}: {}",
            if pass { "pass" } else { "be dropped" },
            wrong.join(", ")
        );
    }
    say(format!("{when}: lies of {from} {}", if pass { "pass" } else { "are dropped" }));
    Ok(())
}

#[test]
fn u67_c94_forged_sources_are_dropped_where_port_security_is_on() -> Result<()> {
    let cluster = Cluster::open()?;
    let nodes = cluster.nodes()?;
    let namespace = Namespace::create(&cluster, "forgers")?;
    let security = |value: &str| json!({"ovn.kubernetes.io/port_security": value});
    namespace.apply(&[
        shell_pod(&namespace, "silent", &nodes[0].name, &json!({})),
        shell_pod(&namespace, "secured", &nodes[0].name, &security("true")),
        shell_pod(&namespace, "free", &nodes[0].name, &security("false")),
        shell_pod(&namespace, "near", &nodes[0].name, &json!({})),
        shell_pod(&namespace, "far", &nodes[1].name, &json!({})),
        shell_pod(&namespace, "bystander", &nodes[1].name, &json!({})),
    ])?;
    namespace.wait_ready(6, PATIENCE)?;
    let views = views(&namespace)?;
    check(&cluster, &views, "silent", true, "by default")?;
    check(&cluster, &views, "free", true, "by default")?;
    check(&cluster, &views, "secured", false, "by default")?;
    {
        let _on = Changed::arguments(&cluster, ("deployment", "kube-ovn-controller"), |arguments| {
            set_argument(arguments, "enable-port-security", "true");
        })?;
        wait_security(&cluster, "silent.forgers", true)?;
        check(&cluster, &views, "silent", false, "with the cluster-wide flag")?;
        check(&cluster, &views, "free", true, "with the cluster-wide flag")?;
        check(&cluster, &views, "secured", false, "with the cluster-wide flag")?;
    }
    wait_security(&cluster, "silent.forgers", false)?;
    check(&cluster, &views, "silent", true, "with the flag off again")?;
    // A running pod's mind can be changed.
    cluster.kubectl(&[
        "-n",
        &namespace.name,
        "annotate",
        "pod",
        "free",
        "--overwrite",
        "ovn.kubernetes.io/port_security=true",
    ])?;
    wait_security(&cluster, "free.forgers", true)?;
    check(&cluster, &views, "free", false, "after its annotation was changed")?;
    namespace.delete_pods(true)
}

/// Waits until a port is (not) secured, on all nodes.
fn wait_security(cluster: &Cluster, port: &str, on: bool) -> Result<()> {
    lab::progress::wait_for(&format!("port security of {port}: {on}"), PATIENCE, || {
        let args = ["ovn-nbctl", "lsp-get-port-security", port];
        let secured = !cluster.in_central(&args)?.trim().is_empty();
        Ok(if secured == on {
            lab::progress::Look::Ready(())
        } else {
            lab::progress::Look::NotYet("not yet".into())
        })
    })?;
    cluster.settle_flows()
}
