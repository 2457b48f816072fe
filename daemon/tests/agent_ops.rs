//! Operating the agent: readiness, a stop, metrics by the contract's names, events without what is unique to a sandbox,
//! and what it waits for at its start.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::process::Command;
use std::time::Duration;

use daemon::netlink::{Netlink, Veth};
use serde_json::{Value, json};
use support::agent::{Machine, call, until};
use support::{addresses, new_namespace, request, routed_pod, wait_view};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_057_k_006_what_is_missing_is_named_and_waited_for() {
    let machine = Machine::boot().await;
    let whole = machine.api.get("nodes", "", "n1").unwrap();
    let mut bare = whole.clone();
    bare["metadata"]["annotations"] = json!({"somebody/else": "stays"});
    machine.api.put("nodes", bare);
    let _agent = machine.start_agent();
    until(&machine, "the health port", async || {
        tokio::net::UnixStream::connect(machine.file("diagnostics.sock")).await.is_ok()
    })
    .await;
    until(&machine, "the missing annotation", async || {
        let text = machine.get("/readyz").await;
        text.contains("503") && text.contains("ovn.kubernetes.io/ip_address")
    })
    .await;
    assert!(machine.get("/livez").await.contains("200 OK"), "it waits, and is alive");
    let conflist = machine.file("net.d/01-kube-ovn.conflist");
    assert!(!conflist.exists(), "kubelet would send pods");
    let mut node = machine.api.get("nodes", "", "n1").unwrap();
    for (key, value) in whole["metadata"]["annotations"].as_object().unwrap() {
        node["metadata"]["annotations"][key] = value.clone();
    }
    machine.api.put("nodes", node);
    machine.wait_ready().await;
    assert!(machine.get("/readyz").await.contains("200 OK"));
    until(&machine, "the conflist", async || conflist.exists()).await;
    let node = machine.api.get("nodes", "", "n1").unwrap();
    assert_eq!(node["metadata"]["annotations"][crds::keys::CHASSIS], "chassis-1");
    assert_eq!(node["metadata"]["annotations"]["somebody/else"], "stays", "K053, K195");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_063_k_064_kinds_are_watched_and_only_this_nodes_pods() {
    let machine = Machine::boot().await;
    let _agent = machine.start_agent();
    machine.wait_ready().await;
    let pods = machine.api.queries("pods");
    assert!(!pods.is_empty());
    for query in &pods {
        assert!(query.contains("spec.nodeName") && query.contains("n1"), "{query}");
        assert!(query.contains("hostNetwork"), "{query}");
    }
    for kind in ["nodes", "subnets", "servicecidrs", "provider-networks", "vlans", "services"] {
        assert!(machine.api.queries(kind).iter().any(|query| query.contains("watch=")), "{kind}");
    }
    // All labels, which change all the time, are followed of this node alone, and by one watch.
    let own: Vec<String> =
        machine.api.queries("nodes").into_iter().filter(|query| query.contains("metadata.name")).collect();
    assert_eq!(own.iter().filter(|query| query.contains("watch=")).count(), 1, "{own:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_finishes_the_calls_that_run() {
    let machine = Machine::boot().await;
    let mut agent = machine.start_agent();
    machine.wait_ready().await;
    let (mut pod, namespace) = (routed_pod(1), new_namespace());
    let annotations = std::mem::take(&mut pod.annotations);
    machine.route_pod(&pod);
    let (socket, body) =
        (machine.file("cni.sock"), serde_json::to_value(request(&pod, &namespace, 1)).unwrap());
    let adding = tokio::spawn({
        let socket = socket.clone();
        async move { call(&socket, "POST", "/api/v1/add", &body).await.unwrap() }
    });
    // The ADD waits for the controller by now, or is about to.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let pid = agent.0.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    until(&machine, "the stop", async || machine.log().contains("kube-ovn-daemon ends")).await;
    pod.annotations = annotations;
    machine.route_pod(&pod);
    let (code, answer) = adding.await.unwrap();
    assert_eq!(code, 200, "{}\n{}", String::from_utf8_lossy(&answer), machine.log());
    assert_eq!(addresses(&namespace, "eth0").await.len(), 2);
    until(&machine, "the end", async || !socket.exists()).await;
    assert!(agent.0.wait().unwrap().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_145_metrics_have_the_contracts_names_and_labels() {
    let machine = Machine::boot().await;
    let _agent = machine.start_agent();
    machine.wait_ready().await;
    let (pod, namespace) = (routed_pod(1), new_namespace());
    machine.route_pod(&pod);
    let request = request(&pod, &namespace, 1);
    machine.add(&request).await;
    machine.del(&request).await;
    let text = machine.get("/metrics").await;
    for series in [
        "cni_op_latency_seconds_bucket{le=\"0.001\",node_name=\"n1\",method=\"/api/v1/add\",status_code=\"200\"}",
        "cni_op_latency_seconds_count{node_name=\"n1\",method=\"/api/v1/del\",status_code=\"204\"} 1",
        "cni_wait_address_seconds_total{node_name=\"n1\"}",
        "cni_wait_route_seconds_total{node_name=\"n1\"}",
        "cni_wait_connectivity_seconds_total{node_name=\"n1\"}",
        "ovn_subnet_gateway_packets{hostname=\"n1\",subnet_name=\"ovn-default\",cidr=\"10.16.0.0/16\",direction=\"egress\",protocol=\"IPv4\"}",
        "ovn_subnet_gateway_packet_bytes{hostname=\"n1\",subnet_name=\"ovn-default\",cidr=\"fd00::/112\",direction=\"ingress\",protocol=\"IPv6\"}",
        "ovs_client_request_latency_milliseconds_count{db=\"ovsdb\",method=\"transact\",code=\"0\"}",
        "rest_client_request_latency_seconds_count{verb=\"GET\",url=",
        "rest_client_requests_total{",
        "klog_lines_total{",
        "klog_bytes_total{",
        "ip_local_port_range{hostname=\"n1\",start=\"",
        "dns_search_domain{hostname=\"n1\",additional=\"",
        "checksum_err_count{hostname=\"n1\"}",
    ] {
        assert!(text.contains(series), "{series} is not in\n{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_name_pod_and_node_and_nothing_of_the_sandbox() {
    let machine = Machine::boot().await;
    let _agent = machine.start_agent();
    machine.wait_ready().await;
    let (pod, namespace) = (routed_pod(1), new_namespace());
    machine.route_pod(&pod);
    let first = request(&pod, &namespace, 1);
    machine.add(&first).await;
    machine.del(&first).await;
    // A sandbox whose namespace can't be opened.
    let mut broken = request(&pod, &namespace, 2);
    broken.net_ns = "/run/netns/cni-0123".into();
    let body = serde_json::to_value(&broken).unwrap();
    let (code, _) = call(&machine.file("cni.sock"), "POST", "/api/v1/add", &body).await.unwrap();
    assert!(code >= 400);
    let reasons = ["PodNetworkConfigured", "PodNetworkRemoved", "PodNetworkConfigureFailed"];
    until(&machine, "the events", async || {
        let told = machine.api.reasons();
        reasons.iter().all(|reason| told.iter().any(|other| other == reason))
    })
    .await;
    for event in machine.api.told() {
        let text = event["message"].as_str().unwrap();
        for secret in [&first.container_id, &broken.container_id, &broken.net_ns] {
            let part = secret.get(..12).unwrap_or(secret);
            assert!(!text.contains(part), "{text}");
        }
        if event["involvedObject"]["kind"] == "Pod" {
            assert_eq!(event["involvedObject"]["name"], "pod-1");
            assert_eq!(event["involvedObject"]["uid"], "uid-1");
        }
        assert_eq!(event["source"]["component"], "n1");
    }
    let failed = machine.api.told().into_iter().find(|event| event["reason"] == reasons[2]).unwrap();
    let text = failed["message"].as_str().unwrap();
    assert!(text.contains("stage=configure-nic") && text.contains("node=n1"), "{text}");
}

fn encap_ip(machine: &Machine) -> Option<String> {
    machine.ovs.view().root_external_id("ovn-encap-ip").map(str::to_owned)
}

/// A second NIC for tunnels, with a smaller MTU.
async fn add_eth2(machine: &Machine) {
    let host = &machine.host.netlink;
    let peer = Some(&machine.underlay);
    let veth = Veth { name: "eth2", peer: "peer2", peer_mac: None, peer_namespace: peer, mtu: Some(1450) };
    host.add_veth(&veth).await.unwrap();
    let eth2 = host.require_link("eth2").await.unwrap().index;
    host.set_up(eth2).await.unwrap();
    host.add_address(eth2, "10.8.0.11/24".parse().unwrap(), true).await.unwrap();
    let under = Netlink::in_namespace(&machine.underlay).await.unwrap();
    let peer = under.require_link("peer2").await.unwrap().index;
    under.set_up(peer).await.unwrap();
}

/// Names the node's tunnel interface, or leaves it to the flag.
fn choose_tunnel(machine: &Machine, name: Option<&str>) {
    let mut node = machine.api.get("nodes", "", "n1").unwrap();
    let annotations = node["metadata"]["annotations"].as_object_mut().unwrap();
    match name {
        Some(name) => drop(annotations.insert(crds::keys::TUNNEL_INTERFACE.into(), json!(name))),
        None => drop(annotations.remove(crds::keys::TUNNEL_INTERFACE)),
    }
    machine.api.put("nodes", node);
}

/// Kernel's datapath: tunnels leave by the NIC itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_080_the_tunnels_address_interface_and_mtu_are_followed() {
    let machine = Machine::bare().await;
    let ids = [("ovn-bridge-datapath-type".to_owned(), "system".to_owned())].into();
    machine.ovs.apply(|view| daemon::ovs::plan::set_root_external_ids(view, &ids)).await.unwrap();
    add_eth2(&machine).await;
    let _agent = machine.start_agent();
    until(&machine, "the diagnostics", async || {
        tokio::net::UnixStream::connect(machine.file("diagnostics.sock")).await.is_ok()
    })
    .await;
    let stands = async |ip: &str, mtu: u32| {
        let status: Value = machine.ask("status", json!([])).await;
        encap_ip(&machine).as_deref() == Some(ip) && status["network"]["mtu"] == mtu
    };
    until(&machine, "the start", async || stands("10.9.0.11", 1400).await).await;
    let host = &machine.host.netlink;
    let eth1 = host.require_link("eth1").await.unwrap().index;
    host.add_address(eth1, "10.9.0.21/24".parse().unwrap(), true).await.unwrap();
    host.delete_address(eth1, "10.9.0.11/24".parse().unwrap()).await.unwrap();
    // The kernel takes secondary addresses of the same prefix along.
    let there = addresses(&machine.namespace, "eth1").await.contains(&"10.9.0.21/24".to_owned());
    if !there {
        host.add_address(eth1, "10.9.0.21/24".parse().unwrap(), true).await.unwrap();
    }
    until(&machine, "the new address", async || stands("10.9.0.21", 1400).await).await;
    host.set_mtu(eth1, 1300).await.unwrap();
    until(&machine, "the new MTU", async || stands("10.9.0.21", 1200).await).await;
    choose_tunnel(&machine, Some("eth2"));
    until(&machine, "the other NIC", async || stands("10.8.0.11", 1350).await).await;
    choose_tunnel(&machine, None);
    until(&machine, "the flag's NIC", async || stands("10.9.0.21", 1200).await).await;
}

/// Userspace datapath: the NIC is on a bridge.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_080_another_tunnel_nic_moves_in_and_the_old_one_goes_home() {
    let machine = Machine::boot().await;
    let host = &machine.host.netlink;
    add_eth2(&machine).await;
    let _agent = machine.start_agent();
    machine.wait_ready().await;
    assert_eq!(encap_ip(&machine).as_deref(), Some("10.9.0.11"));
    let mtu = async || host.require_link("ovn0").await.unwrap().mtu;
    assert_eq!(mtu().await, 1400);
    choose_tunnel(&machine, Some("eth2"));
    until(&machine, "the other NIC's address", async || encap_ip(&machine).as_deref() == Some("10.8.0.11"))
        .await;
    until(&machine, "the MTU it leaves", async || mtu().await == 1350).await;
    assert_eq!(addresses(&machine.namespace, "eth1").await, ["10.9.0.11/24", "fd09::11/64"]);
    choose_tunnel(&machine, None);
    until(&machine, "the first NIC", async || encap_ip(&machine).as_deref() == Some("10.9.0.11")).await;
    until(&machine, "its MTU", async || mtu().await == 1400).await;
    wait_view(&machine.ovs, "the bridge", |view| view.port("eth1").is_some() && view.port("eth2").is_none())
        .await;
}
