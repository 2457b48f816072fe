//! What somebody deletes or changes by hand comes back within seconds, without waiting for the minute's verification: one
//! test for each kind of object, on the whole agent with the real OVS. Here: rows and devices of the switch.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::time::Duration;

use daemon::kube::PodFacts;
use daemon::netlink::Netlink;
use daemon::ovs::{Interface, View};
use daemon::sys::Namespace;
use ovsdb::{Operation, Value};
use serde_json::json;
use support::agent::Machine;
use support::heal::{heals, node, plugged, run};
use support::{addresses, answers, new_namespace, request, routed_pod, start_vswitchd};

fn remove_port(view: &View, name: &str) -> Vec<Operation> {
    daemon::ovs::plan::remove_port(view, name)
}

fn update_ids(row: &Interface, pairs: &[(&str, &str)]) -> Vec<Operation> {
    let ids = Value::string_map(pairs.iter().copied());
    vec![Operation::update("Interface").by_uuid(row.uuid()).column("external_ids", ids).build()]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_158_a_pods_port_heals() {
    let (machine, _agent) = node().await;
    let (_pod, namespace, request, port) = plugged(&machine, &[]).await;
    let row = || machine.ovs.view().interface(&port);
    let ids = |row: &Interface| -> Vec<(String, String)> {
        row.external_ids().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    };
    let (before, uuid) = (ids(&row().unwrap()), row().unwrap().uuid());
    machine.ovs.commit(remove_port(&machine.ovs.view(), &port)).await.unwrap();
    heals(&machine, "a pod's port", async || {
        row().is_some_and(|row| row.uuid() != uuid && ids(&row) == before)
    })
    .await;
    assert!(answers(&namespace, "eth0", "10.16.0.1").await);

    machine
        .ovs
        .commit(update_ids(&row().unwrap(), &[("iface-id", "other"), ("vendor", "kube-ovn")]))
        .await
        .unwrap();
    heals(&machine, "a port's marks", async || row().is_some_and(|row| ids(&row) == before)).await;
    // What we take away ourselves stays away.
    machine.del(&request).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(row().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_058_the_nodes_port_heals() {
    let (machine, _agent) = node().await;
    machine.ovs.commit(remove_port(&machine.ovs.view(), "ovn0")).await.unwrap();
    let nets = ["100.64.0.2/16", "fd00:100::2/112"];
    heals(&machine, "ovn0", async || {
        let row = machine.ovs.view().interface("ovn0");
        row.is_some_and(|row| row.external_id("iface-id") == Some("node-n1"))
            && addresses(&machine.namespace, "ovn0").await == nets
            && answers(&machine.namespace, "ovn0", "100.64.0.1").await
    })
    .await;
    let row = machine.ovs.view().interface("ovn0").unwrap();
    machine.ovs.commit(update_ids(&row, &[("iface-id", "other")])).await.unwrap();
    heals(&machine, "its marks", async || {
        machine.ovs.view().interface("ovn0").unwrap().external_id("iface-id") == Some("node-n1")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_070_a_pods_veth_heals() {
    let (machine, _agent) = node().await;
    let (_pod, namespace, _, port) = plugged(&machine, &[]).await;
    let nets = addresses(&namespace, "eth0").await;
    machine.host.netlink.delete_link(&port).await.unwrap();
    heals(&machine, "a pod's veth pair", async || {
        addresses(&namespace, "eth0").await == nets && answers(&namespace, "eth0", "10.16.0.1").await
    })
    .await;
    let broken = machine.ovs.view().interfaces().filter(|row| row.ofport() == Some(-1)).count();
    assert_eq!(broken, 0);
    heals(&machine, "and it is told", async || machine.api.reasons().contains(&"PodNetworkRestored".into()))
        .await;
}

/// Whether a pod's device works; the answer of a gateway would be by the pods' switch alone.
async fn has_carrier(namespace: &Namespace) -> bool {
    let inside = Netlink::in_namespace(namespace).await.unwrap();
    inside.link("eth0").await.unwrap().is_some_and(|link| link.running)
        && addresses(namespace, "eth0").await.len() == 2
}

/// A second pod, whose device ovs-vswitchd makes.
async fn internal(machine: &Machine, pairs: &[(&str, &str)]) -> (PodFacts, Namespace) {
    let (mut pod, namespace) = (routed_pod(2), new_namespace());
    for (key, value) in [("pod_nic_type", "internal-port")].iter().chain(pairs) {
        pod.annotations.insert(crds::keys::pod_key("ovn", key), (*value).to_owned());
    }
    machine.route_pod(&pod);
    machine.add(&request(&pod, &namespace, 1)).await;
    (pod, namespace)
}

/// D73: what somebody writes into the annotations of a running pod does not cost it its network.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_with_wrong_annotations_keeps_its_network() {
    let (mut machine, _agent) = node().await;
    let limits = [("ingress_rate", "20"), ("egress_rate", "10")];
    let (pod, namespace, _, port) = plugged(&machine, &limits).await;
    let (second, second_namespace) = internal(&machine, &limits).await;
    for mut pod in [pod, second] {
        for (key, value) in [("ingress_rate", "abc"), ("egress_rate", "-"), ("routes", "{")] {
            pod.annotations.insert(crds::keys::pod_key("ovn", key), value.into());
        }
        machine.route_pod(&pod);
        heals(&machine, "its owner is told", async || {
            machine.api.told().iter().any(|event| {
                event["reason"] == "ValidatePodNetworkFailed" && event["involvedObject"]["name"] == pod.name
            })
        })
        .await;
    }
    machine.host.netlink.delete_link(&port).await.unwrap();
    heals(&machine, "the pair", async || has_carrier(&namespace).await).await;
    let limited = |view: &View| {
        let policed = view.interface(&port)?.column("ingress_policing_rate").and_then(Value::as_i64)?;
        let qos = view.port(&port)?.get("qos")?.set_uuids().next()?;
        Some((policed, view.qos(&qos)?.map_get("other_config", "max-rate")?.to_owned()))
    };
    assert_eq!(limited(&machine.ovs.view()), Some((10_000, "20000000".to_owned())), "limits as before");

    machine.vswitchd = None;
    heals(&machine, "without the switch it is dead", async || !has_carrier(&second_namespace).await).await;
    machine.vswitchd = Some(start_vswitchd(&machine.namespace, &machine.server));
    heals(&machine, "the internal port", async || has_carrier(&second_namespace).await).await;
}

/// The agent was away while a pair was deleted and the switch restarted; and the API server is slow to list the pods.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_broke_while_the_agent_was_away_heals_as_soon_as_pods_are_known() {
    let (mut machine, agent) = node().await;
    let (_pod, namespace, _, port) = plugged(&machine, &[]).await;
    let (_second, second_namespace) = internal(&machine, &[]).await;
    drop(agent);
    machine.host.netlink.delete_link(&port).await.unwrap();
    machine.vswitchd = None;
    machine.vswitchd = Some(start_vswitchd(&machine.namespace, &machine.server));
    machine.api.hold("pods");
    let asked = machine.api.queries("subnets").len();
    let _agent = machine.start_agent();
    heals(&machine, "the agent is there", async || machine.api.queries("subnets").len() > asked).await;
    // Long enough for a first look at everything, and for one at what is lost.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(machine.ovs.view().interface(&port).is_some(), "nobody is gone before pods are known");
    machine.api.release("pods");
    heals(&machine, "the pair", async || has_carrier(&namespace).await).await;
    heals(&machine, "the internal port", async || has_carrier(&second_namespace).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_160_disciplines_heal_on_both_ends() {
    let (machine, _agent) = node().await;
    let (_pod, namespace, _, port) =
        plugged(&machine, &[("ingress_rate", "20"), ("egress_rate", "10")]).await;
    let inside = Netlink::in_namespace(&namespace).await.unwrap();
    let (host, eth0) = (&machine.host.netlink, inside.require_link("eth0").await.unwrap().index);
    let end = host.require_link(&port).await.unwrap().index;
    let shaped = async || inside.qdiscs(eth0).await.unwrap().iter().any(|qdisc| qdisc.tbf.is_some());
    let ceiling = async || host.htb_ceiling(end, 1).await.unwrap();
    heals(&machine, "the limits", async || shaped().await && ceiling().await.is_some()).await;
    run(&namespace, "tc qdisc del dev eth0 root");
    assert!(!shaped().await);
    heals(&machine, "the pod's shaper", shaped).await;
    let before = ceiling().await;
    run(&machine.namespace, &format!("tc qdisc del dev {port} root"));
    heals(&machine, "the host's shaper", async || ceiling().await == before).await;
    run(
        &machine.namespace,
        &format!("tc class change dev {port} parent 1:fffe classid 1:1 htb rate 1mbit ceil 1mbit"),
    );
    heals(&machine, "its rate", async || ceiling().await == before).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_162_rows_of_limits_heal() {
    let (machine, _agent) = node().await;
    let (_pod, _namespace, _, port) =
        plugged(&machine, &[("ingress_rate", "20"), ("egress_rate", "10")]).await;
    let state = || {
        let view = machine.ovs.view();
        let policed = view.interface(&port)?.column("ingress_policing_rate").and_then(Value::as_i64)?;
        let qos = view.port(&port)?.get("qos")?.set_uuids().next()?;
        let rate = view.qos(&qos)?.map_get("other_config", "max-rate")?.to_owned();
        let queue = *view.queues_of(&qos).first()?;
        let ceiling = view.queue(&queue)?.map_get("other_config", "max-rate")?.to_owned();
        Some((policed, view.qos(&qos)?.str("type")?.to_owned(), rate, ceiling, view.all_qos().count()))
    };
    let right = (10_000, "linux-htb".to_owned(), "20000000".to_owned(), "20000000".to_owned(), 1);
    heals(&machine, "the rows", async || state().as_ref() == Some(&right)).await;
    let view = machine.ovs.view();
    let (row, of_port) = (view.interface(&port).unwrap(), view.port(&port).unwrap().uuid);
    let qos = view.port(&port).unwrap().get("qos").unwrap().set_uuids().next().unwrap();
    let queue = *view.queues_of(&qos).first().unwrap();
    let nothing = || Value::uuids(Vec::<ovsdb::Uuid>::new());
    for (what, operation) in [
        (
            "the policing",
            Operation::update("Interface").by_uuid(row.uuid()).column("ingress_policing_rate", 7).build(),
        ),
        (
            "the queue",
            Operation::update("Queue")
                .by_uuid(queue)
                .column("other_config", Value::string_map([("max-rate", "5")]))
                .build(),
        ),
        (
            "the discipline",
            Operation::update("QoS")
                .by_uuid(qos)
                .column("other_config", Value::string_map([("max-rate", "5")]))
                .build(),
        ),
        ("the port's", Operation::update("Port").by_uuid(of_port).column("qos", nothing()).build()),
    ] {
        machine.ovs.commit(vec![operation]).await.unwrap();
        heals(&machine, what, async || state().as_ref() == Some(&right)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_171_mirror_rows_heal() {
    let (machine, _agent) = node().await;
    plugged(&machine, &[("mirror", "true")]).await;
    let members = || {
        let view = machine.ovs.view();
        let uuid = view.bridge("br-int")?.get("mirrors")?.set_uuids().next()?;
        Some((uuid, view.mirror(&uuid)?.get("select_dst_port")?.set_uuids().count()))
    };
    heals(&machine, "the mirror", async || members().is_some_and(|(_, count)| count == 1)).await;
    let (mirror, _) = members().unwrap();
    let nothing = Value::uuids(Vec::<ovsdb::Uuid>::new());
    let empty =
        Operation::update("Mirror").by_uuid(mirror).column("select_dst_port", nothing.clone()).build();
    machine.ovs.commit(vec![empty]).await.unwrap();
    heals(&machine, "a member", async || members().is_some_and(|(_, count)| count == 1)).await;
    let bridge = machine.ovs.view().bridge("br-int").unwrap().uuid;
    let none = Operation::update("Bridge").by_uuid(bridge).column("mirrors", nothing).build();
    machine.ovs.commit(vec![none]).await.unwrap();
    heals(&machine, "the mirror itself", async || members().is_some_and(|(_, count)| count == 1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_052_the_nodes_identity_heals() {
    let (machine, _agent) = node().await;
    machine
        .api
        .wait_node("chassis", |node| node["metadata"]["annotations"][crds::keys::CHASSIS] == "chassis-1")
        .await;
    let mut node = machine.api.get("nodes", "", "n1").unwrap();
    node["metadata"]["annotations"][crds::keys::CHASSIS] = json!("another");
    machine.api.put("nodes", node);
    let annotation = || {
        machine.api.get("nodes", "", "n1").unwrap()["metadata"]["annotations"][crds::keys::CHASSIS].clone()
    };
    heals(&machine, "the chassis annotation", async || annotation() == "chassis-1").await;
    let ids = [("ovn-encap-ip".to_owned(), "192.0.2.1".to_owned())].into();
    machine.ovs.apply(|view| daemon::ovs::plan::set_root_external_ids(view, &ids)).await.unwrap();
    heals(&machine, "the encapsulation address", async || {
        machine.ovs.view().root_external_id("ovn-encap-ip") == Some("10.9.0.11")
    })
    .await;
}
