//! What somebody deletes or changes by hand comes back within seconds, without waiting for the minute's verification: one
//! test for each kind of object, on the whole agent with the real OVS. (The CNI socket and the conflist: `keep.rs`.)
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::process::Command;
use std::time::{Duration, Instant};

use cni::api::CniRequest;
use daemon::kube::PodFacts;
use daemon::netlink::{MAIN_TABLE, Netlink};
use daemon::ovs::{Interface, View};
use daemon::sys::{Namespace, write_sysctl};
use ovsdb::{Operation, Value};
use serde_json::json;
use support::agent::Machine;
use support::{Process, addresses, answers, new_namespace, request, routed_pod};

/// Far below the minute after which everything is looked at anyway.
const LIMIT: Duration = Duration::from_secs(25);

/// Polls: the agent is another process.
async fn heals(machine: &Machine, what: &str, healed: impl AsyncFn() -> bool) {
    let begin = Instant::now();
    while !healed().await {
        assert!(begin.elapsed() < LIMIT, "not healed: {what}\n{}", machine.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("{what}: back after {:?}", begin.elapsed());
}

/// A program's output in a namespace; it must succeed.
fn run(namespace: &Namespace, line: &str) -> String {
    let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
    let output = namespace.run(move || Command::new(&words[0]).args(&words[1..]).output().unwrap()).unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A ready node; `before` runs ahead of the agent.
async fn node_after(before: impl FnOnce(&Machine)) -> (Machine, Process) {
    let machine = Machine::boot().await;
    before(&machine);
    let agent = machine.start_agent();
    machine.wait_ready().await;
    (machine, agent)
}

async fn node() -> (Machine, Process) {
    node_after(|_| ()).await
}

/// A pod on it.
async fn plugged(machine: &Machine, pairs: &[(&str, &str)]) -> (PodFacts, Namespace, CniRequest, String) {
    let (mut pod, namespace) = (routed_pod(1), new_namespace());
    for (key, value) in pairs {
        pod.annotations.insert(crds::keys::pod_key("ovn", key), (*value).to_owned());
    }
    machine.route_pod(&pod);
    let request = request(&pod, &namespace, 1);
    machine.add(&request).await;
    let row = |view: &View| {
        let id = request.container_id.as_str();
        view.interfaces()
            .find(|row| row.external_id("container_id") == Some(id))
            .map(|row| row.name().to_owned())
    };
    let port = row(&machine.ovs.view()).unwrap();
    (pod, namespace, request, port)
}

async fn rules_heal(machine: &Machine, kind: &str) {
    let saved = || {
        let text = run(&machine.namespace, &format!("iptables-{kind}-save"));
        let mut rules: Vec<String> = text
            .lines()
            .filter(|line| line.contains("OVN-"))
            .map(|l| l.split(" [").next().unwrap().into())
            .collect();
        rules.sort();
        rules
    };
    let before = saved();
    assert!(before.iter().any(|line| line.contains("-j OVN-POSTROUTING")), "{before:?}");
    let tool = format!("iptables-{kind} -w 30");
    let jump = before.iter().find(|line| line.contains("-j OVN-INPUT")).unwrap().replace("-A ", "-D ");
    for (what, line) in [
        ("a rule", format!("{tool} -t nat -D OVN-POSTROUTING 1")),
        ("all rules of a chain", format!("{tool} -t filter -F OVN-FORWARD")),
        ("a jump", format!("{tool} -t filter {}", jump.replace('"', "'"))),
        // As a tool does that takes the whole table for its own.
        ("all of a table", format!("printf '*nat\\nCOMMIT\\n' | iptables-{kind}-restore -w 30")),
    ] {
        let done = machine
            .namespace
            .run(move || Command::new("sh").args(["-c", &line]).status().unwrap().success())
            .unwrap();
        assert!(done, "{what} can't be taken away");
        heals(machine, &format!("{kind}: {what}"), async || saved() == before).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_079_rules_and_chains_heal_nft() {
    let (machine, _agent) = node().await;
    rules_heal(&machine, "nft").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_079_rules_and_chains_heal_legacy() {
    let (machine, _agent) = node_after(|machine| {
        // By kubelet's hint this is a host of the older kind.
        run(&machine.namespace, "iptables-legacy -w 30 -t mangle -N KUBE-KUBELET-CANARY");
    })
    .await;
    rules_heal(&machine, "legacy").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_120_sets_heal() {
    let (machine, _agent) = node().await;
    let has = |set: &str, entry: &str| run(&machine.namespace, &format!("ipset list {set}")).contains(entry);
    assert!(has("ovn40subnets", "10.16.0.0/16"));
    run(&machine.namespace, "ipset del ovn40subnets 10.16.0.0/16");
    heals(&machine, "a set's entry", async || has("ovn40subnets", "10.16.0.0/16")).await;
    run(&machine.namespace, "ipset add ovn40services 192.0.2.0/24");
    heals(&machine, "a foreign entry", async || !has("ovn40services", "192.0.2.0/24")).await;
    run(&machine.namespace, "ipset flush ovn60subnets");
    heals(&machine, "a set's content", async || has("ovn60subnets", "fd00::/112")).await;
    // No rule refers to it.
    run(&machine.namespace, "ipset destroy ovn40local-pod-ip-nat");
    let there = || run(&machine.namespace, "ipset list -n").contains("ovn40local-pod-ip-nat");
    heals(&machine, "a set", async || there()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_heal() {
    let (machine, _agent) = node().await;
    for (path, wrong, right) in [
        ("net/ipv4/ip_forward", "0", "1"),
        ("net/ipv6/conf/all/forwarding", "0", "1"),
        ("net/ipv4/conf/ovn0/rp_filter", "1", "2"),
    ] {
        let read = || {
            let read = move || std::fs::read_to_string(format!("/proc/sys/{path}")).unwrap();
            machine.namespace.run(read).unwrap().trim().to_owned()
        };
        assert_eq!(read(), right, "{path}");
        machine.namespace.run(move || write_sysctl(path, wrong).unwrap()).unwrap();
        heals(&machine, path, async || read() == right).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_111_routes_heal() {
    let (machine, _agent) = node().await;
    let host = &machine.host.netlink;
    let find = async || {
        let routes = host.routes().await.unwrap();
        routes.into_iter().find(|route| {
            route.table == MAIN_TABLE
                && route.gateway.is_some()
                && route.destination.to_string() == "10.16.0.0/16"
        })
    };
    let route = find().await.unwrap();
    host.delete_route(&route).await.unwrap();
    heals(&machine, "a route", async || find().await.is_some()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_061_addresses_and_the_link_of_ovn0_heal() {
    let (machine, _agent) = node().await;
    let host = &machine.host.netlink;
    let link = host.require_link("ovn0").await.unwrap();
    let nets = ["100.64.0.2/16", "fd00:100::2/112"];
    assert_eq!(addresses(&machine.namespace, "ovn0").await, nets);
    host.delete_address(link.index, nets[0].parse().unwrap()).await.unwrap();
    heals(&machine, "an address", async || addresses(&machine.namespace, "ovn0").await == nets).await;
    host.add_address(link.index, "192.0.2.9/24".parse().unwrap(), true).await.unwrap();
    heals(&machine, "a stray address", async || addresses(&machine.namespace, "ovn0").await == nets).await;
    host.set_mac(link.index, "0a:00:00:00:00:09".parse().unwrap()).await.unwrap();
    let mac = async || host.require_link("ovn0").await.unwrap().mac.unwrap().to_string();
    heals(&machine, "the MAC", async || mac().await == "0a:58:64:40:00:02").await;
    host.set_mtu(link.index, 1300).await.unwrap();
    heals(&machine, "the MTU", async || host.require_link("ovn0").await.unwrap().mtu == 1400).await;
    run(&machine.namespace, "ip link set ovn0 down");
    heals(&machine, "the link's state", async || host.require_link("ovn0").await.unwrap().up).await;
    heals(&machine, "everything on it", async || {
        addresses(&machine.namespace, "ovn0").await == nets
            && answers(&machine.namespace, "ovn0", "100.64.0.1").await
    })
    .await;
}

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_004_socket_and_configuration_heal() {
    let (machine, _agent) = node().await;
    let conflist = machine.file("net.d/01-kube-ovn.conflist");
    heals(&machine, "the configuration's installation", async || conflist.exists()).await;
    let text = std::fs::read_to_string(&conflist).unwrap();
    std::fs::remove_file(&conflist).unwrap();
    heals(&machine, "the configuration", async || {
        std::fs::read_to_string(&conflist).is_ok_and(|now| now == text)
    })
    .await;
    let socket = machine.file("cni.sock");
    std::fs::remove_file(&socket).unwrap();
    heals(&machine, "the socket", async || tokio::net::UnixStream::connect(&socket).await.is_ok()).await;
}

/// Seconds of processor time of the agent, and of the programs that it has run.
fn cpu(agent: &Process) -> (f64, f64) {
    let text = std::fs::read_to_string(format!("/proc/{}/stat", agent.0.id())).unwrap();
    let fields: Vec<f64> =
        text.rsplit(") ").next().unwrap().split(' ').map(|field| field.parse().unwrap_or_default()).collect();
    // utime, stime, cutime, cstime; in hundredths of a second.
    ((fields[11] + fields[12]) / 100.0, (fields[13] + fields[14]) / 100.0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quiet_node_costs_next_to_nothing_and_writes_nothing() {
    let (machine, agent) = node().await;
    plugged(&machine, &[("ingress_rate", "20"), ("egress_rate", "10"), ("mirror", "true")]).await;
    let count = async |name: &str| -> f64 {
        let metrics = machine.get("/metrics").await;
        let line = metrics
            .lines()
            .filter(|line| line.starts_with(name))
            .filter_map(|l| l.rsplit(' ').next()?.parse::<f64>().ok());
        line.sum()
    };
    let counts = async || {
        (count("ovs_client_request_latency_milliseconds_count").await, count("weir_host_changes_total").await)
    };
    // What follows from the start and the ADD.
    heals(&machine, "silence", async || {
        let before = counts().await;
        tokio::time::sleep(Duration::from_secs(4)).await;
        counts().await == before
    })
    .await;
    let writes = counts().await;
    let (api, before, begin) = (machine.api.writes(), cpu(&agent), Instant::now());
    tokio::time::sleep(Duration::from_secs(20)).await;
    let (after, took) = (cpu(&agent), begin.elapsed().as_secs_f64());
    println!(
        "in {took:.0} s: agent {:.2} s, its programs {:.2} s of processor time",
        after.0 - before.0,
        after.1 - before.1
    );
    assert_eq!(counts().await, writes);
    assert_eq!(machine.api.writes(), api);
    // A twentieth of a processor would be a loop that runs free.
    assert!(after.0 - before.0 < took / 20.0, "{before:?} {after:?}");
}
