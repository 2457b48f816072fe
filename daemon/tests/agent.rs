//! The whole agent as a process: start, tunnel NIC on its bridge, pods,
//! restarts of the agent and of OVS, and what it does not do (start processes
//! on the pod path).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use daemon::netlink::MAIN_TABLE;
use daemon::plug::names;
use serde_json::{Value, json};
use support::agent::{Machine, call};
use support::{Process, addresses, answers, new_namespace, request, routed_pod, start_vswitchd, wait_view};

fn set<const N: usize>(items: [&str; N]) -> Vec<String> {
    items.map(str::to_owned).to_vec()
}

/// Everything that initialisation promises about the node.
async fn assert_node_is_set_up(machine: &Machine) {
    let phy = addresses(&machine.namespace, "br-phy").await;
    assert_eq!(phy, set(["10.9.0.11/24", "fd09::11/64"]), "{}", machine.log());
    assert!(addresses(&machine.namespace, "eth1").await.is_empty());
    let links = machine.host.netlink.links().await.unwrap();
    let link = |name: &str| links.iter().find(|link| link.name == name).unwrap();
    assert_eq!(link("br-phy").mac, link("eth1").mac);
    let ovn0 = link("ovn0");
    assert_eq!(ovn0.mac.unwrap().to_string(), "0a:58:64:40:00:02");
    assert_eq!(addresses(&machine.namespace, "ovn0").await, set(["100.64.0.2/16", "fd00:100::2/112"]));
    assert!(ovn0.up && ovn0.mtu == 1400, "{ovn0:?}");
    for device in ["eth1", "br-phy", "ovn0"] {
        assert!(!machine.host.ethtool.tx_checksum(device).unwrap(), "{device}");
    }
    let defaults: BTreeSet<Option<u32>> = machine
        .host
        .netlink
        .routes()
        .await
        .unwrap()
        .into_iter()
        .filter(|route| route.is_default() && route.table == MAIN_TABLE)
        .filter(|route| route.gateway.is_some())
        .map(|route| route.link)
        .collect();
    assert_eq!(defaults, BTreeSet::from([Some(link("br-phy").index)]));
    assert!(answers(&machine.namespace, "br-phy", "10.9.0.1").await, "the underlay is cut off");
    let view = machine.ovs.view();
    assert_eq!(view.root_external_id("ovn-encap-ip"), Some("10.9.0.11"));
    assert_eq!(view.root_external_id("ovn-encap-ip-default"), Some("10.9.0.11"));
    assert_eq!(view.root_external_id("ovn-encap-csum"), Some("true"));
    assert_eq!(view.interface("ovn0").unwrap().external_id("iface-id"), Some("node-n1"));
}

fn condition(node: &Value, kind: &str) -> Option<String> {
    let conditions = node.pointer("/status/conditions")?.as_array()?;
    let condition = conditions.iter().find(|condition| condition["type"] == kind)?;
    Some(format!("{}/{}", condition["status"].as_str()?, condition["reason"].as_str()?))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_comes_up_serves_pods_and_survives_restarts() {
    let mut machine = Machine::boot().await;
    let agent = machine.start_agent();
    machine.wait_ready().await;
    assert_node_is_set_up(&machine).await;
    machine
        .api
        .wait_node("chassis and condition", |node| {
            node["metadata"]["annotations"][crds::keys::CHASSIS] == "chassis-1"
                && condition(node, "NetworkUnavailable").as_deref()
                    == Some("False/JoinSubnetGatewayReachable")
        })
        .await;
    // The conflist comes when the agent is ready, very soon after.
    let conflist = machine.file("net.d/01-kube-ovn.conflist");
    for _ in 0..200 {
        if conflist.exists() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(conflist.exists());

    let (pod, namespace) = (routed_pod(1), new_namespace());
    machine.route_pod(&pod);
    let first = request(&pod, &namespace, 1);
    machine.add(&first).await;
    assert!(answers(&namespace, "eth0", "10.16.0.1").await);
    diagnostics_answer(&machine).await;

    // The agent stops; a sandbox dies meanwhile, the other pod runs on.
    let (doomed, doomed_namespace) = (routed_pod(2), new_namespace());
    machine.route_pod(&doomed);
    let second = request(&doomed, &doomed_namespace, 1);
    machine.add(&second).await;
    drop(agent);
    let lost = names::host_nic(&second.container_id, "eth0");
    drop(doomed_namespace);
    assert!(answers(&namespace, "eth0", "10.16.0.1").await);
    let writes = machine.api.writes();
    let agent = machine.start_agent();
    machine.wait_ready().await;
    wait_view(&machine.ovs, "the lost interface to be removed", |view| view.interface(&lost).is_none()).await;
    assert_node_is_set_up(&machine).await;
    assert!(answers(&namespace, "eth0", "10.16.0.1").await);
    assert_eq!(machine.api.writes(), writes, "a restart has nothing to write");

    // OVS is killed and started again; what it made is lost with it (it keeps
    // its interfaces over a crash, so the test takes them away).
    drop(machine.vswitchd.take());
    for device in ["br-phy", "ovn0"] {
        machine.host.netlink.delete_link(device).await.unwrap();
    }
    machine.vswitchd = Some(start_vswitchd(&machine.namespace, &machine.server));
    let mut settled = false;
    for _ in 0..200 {
        let phy = addresses(&machine.namespace, "br-phy").await;
        let ovn0 = addresses(&machine.namespace, "ovn0").await;
        if phy.len() == 2 && ovn0.len() == 2 {
            settled = true;
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(settled, "{}", machine.log());
    machine.wait_ready().await;
    assert_node_is_set_up(&machine).await;
    machine.del(&first).await;
    machine.del(&second).await;
    let health = machine.get("/metrics").await;
    for name in
        ["cni_op_latency_seconds_bucket", "ovs_client_request_latency_milliseconds_count", "klog_lines_total"]
    {
        assert!(health.contains(name), "{name}");
    }

    // The machine is switched off and on: its links are new, its NIC has got
    // an address again from whoever configures the host, another one.
    drop(agent);
    drop(machine.vswitchd.take());
    for device in ["br-phy", "ovn0"] {
        machine.host.netlink.delete_link(device).await.unwrap();
    }
    machine
        .namespace
        .run(|| {
            for setting in ["ipv6/conf/eth1/disable_ipv6", "ipv4/conf/eth1/rp_filter"] {
                std::fs::write(format!("/proc/sys/net/{setting}"), "0").unwrap();
            }
        })
        .unwrap();
    machine.give_eth1(&["10.9.0.12/24", "fd09::11/64"]).await;
    machine.vswitchd = Some(start_vswitchd(&machine.namespace, &machine.server));
    let agent = machine.start_agent();
    machine.wait_ready().await;
    assert_eq!(addresses(&machine.namespace, "br-phy").await, set(["10.9.0.12/24", "fd09::11/64"]));
    assert!(addresses(&machine.namespace, "eth1").await.is_empty());
    assert_eq!(machine.ovs.view().root_external_id("ovn-encap-ip"), Some("10.9.0.12"));
    assert!(answers(&machine.namespace, "br-phy", "10.9.0.1").await);
    assert!(machine.ovs.view().interfaces().all(|interface| !interface.name().ends_with("_h")));
    drop(agent);
}

/// `status` and `explain` over the diagnostics socket.
async fn diagnostics_answer(machine: &Machine) {
    let status = machine.ask("status", json!([])).await;
    assert_eq!(status["ready"], true, "{status}");
    assert_eq!(status["watches"].as_array().unwrap().len(), 10);
    assert_eq!(status["network"]["encap_ip"], "10.9.0.11");
    let pod = json!({"kind": "Pod", "namespace": "web", "name": "pod-1"});
    let explained = machine.ask("explain", pod).await;
    assert_eq!(explained["interfaces"].as_array().unwrap().len(), 1, "{explained}");
    assert!(explained["add"]["ready"].is_string());
}

/// Packets to the API server vanish without a reset; a pod is deleted
/// meanwhile. Soon after the packets flow again the agent knows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_api_server_is_noticed() {
    const DROP: [&[&str]; 2] = [
        &["-w", "-I", "INPUT", "-i", "peer0", "-j", "DROP"],
        &["-w", "-I", "OUTPUT", "-o", "peer0", "-j", "DROP"],
    ];
    const HEAL: [&[&str]; 2] = [
        &["-w", "-D", "INPUT", "-i", "peer0", "-j", "DROP"],
        &["-w", "-D", "OUTPUT", "-o", "peer0", "-j", "DROP"],
    ];
    let machine = Machine::boot().await;
    let (pod, late) = (routed_pod(1), routed_pod(2));
    machine.route_pod(&pod);
    let _agent = machine.start_agent();
    machine.wait_ready().await;
    let known = |n: u8| {
        machine.ask("explain", json!({"kind": "Pod", "namespace": "web", "name": format!("pod-{n}")}))
    };
    assert_eq!(known(1).await["known"], true);
    DROP.iter().for_each(|rule| machine.run_in_underlay("iptables", rule));
    machine.api.delete("pods", "web", "pod-1");
    machine.route_pod(&late);
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(known(1).await["known"], true, "the packets were not dropped");
    HEAL.iter().for_each(|rule| machine.run_in_underlay("iptables", rule));
    let healed = Instant::now();
    while known(1).await["known"] == true || known(2).await["known"] == false {
        assert!(healed.elapsed() < Duration::from_secs(10), "{}", machine.log());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// `strace -f` lines that start a process: any execve, fork or vfork, and a
/// clone that makes no thread.
fn starts_process(line: &str) -> bool {
    let forks = line.contains("execve(") || line.contains("vfork(") || line.contains(" fork(");
    let clones = (line.contains("clone(") || line.contains("clone3(")) && !line.contains("CLONE_THREAD");
    forks || (clones && !line.contains("resumed"))
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_process_is_started_on_the_pod_path() {
    let machine = Machine::boot().await;
    let agent = machine.start_agent();
    // Attached from outside, so that the agent stays a child of the test's own
    // and ends with it; declared later, so that it detaches first.
    let trace = machine.file("trace");
    let _strace = Process(
        std::process::Command::new("strace")
            .args(["-f", "-ttt", "-e", "trace=execve,execveat,fork,vfork,clone,clone3", "-o"])
            .args([trace.to_str().unwrap(), "-p", &agent.0.id().to_string()])
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap(),
    );
    machine.wait_ready().await;
    // The gateway's first passes run the firewall's tools; they must be over.
    let mut quiet =
        std::fs::read_to_string(&trace).unwrap().lines().filter(|line| starts_process(line)).count();
    loop {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let now =
            std::fs::read_to_string(&trace).unwrap().lines().filter(|line| starts_process(line)).count();
        if now == quiet {
            break;
        }
        quiet = now;
    }
    assert!(quiet > 0, "the trace must see the gateway's tools, or it proves nothing");
    let begin = now();
    for n in 0..100u8 {
        let (pod, namespace) = (routed_pod(n), new_namespace());
        machine.route_pod(&pod);
        let request = request(&pod, &namespace, 1);
        let answer = machine.add(&request).await;
        assert_eq!(answer.ips.len(), 2);
        machine.del(&request).await;
        machine.api.delete("pods", &pod.namespace, &pod.name);
    }
    let end = now();
    let (code, _) = call(&machine.file("cni.sock"), "GET", "/api/v1/status", &json!({})).await.unwrap();
    assert_eq!(code, 200);
    let text = std::fs::read_to_string(&trace).unwrap();
    let during: Vec<&str> = text
        .lines()
        .filter(|line| {
            let time: f64 = line.split_whitespace().nth(1).and_then(|time| time.parse().ok()).unwrap_or(0.0);
            (begin..=end).contains(&time) && starts_process(line)
        })
        .collect();
    assert!(during.is_empty(), "processes were started during 100 ADD and DEL: {during:#?}");
}

/// Prints how long ADD and DEL take through the socket (`--ignored
/// --nocapture`); no bar is checked, for machines differ.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn measure_add_and_del() {
    let machine = Machine::boot().await;
    let _agent = machine.start_agent();
    machine.wait_ready().await;
    let pods: Vec<_> = (0..60u8).map(|n| (routed_pod(n), new_namespace())).collect();
    for (pod, _) in &pods {
        machine.route_pod(pod);
    }
    let requests: Vec<_> = pods.iter().map(|(pod, namespace)| request(pod, namespace, 1)).collect();
    let print = |what: &str, mut times: Vec<Duration>| {
        times.sort_unstable();
        let at = |share: usize| times[(times.len() - 1) * share / 100];
        println!("{what}: p50 {:?} p90 {:?} max {:?}", at(50), at(90), at(100));
    };
    let (mut adds, mut dels) = (Vec::new(), Vec::new());
    for request in &requests[..30] {
        let begin = Instant::now();
        machine.add(request).await;
        adds.push(begin.elapsed());
    }
    for request in &requests[..30] {
        let begin = Instant::now();
        machine.del(request).await;
        dels.push(begin.elapsed());
    }
    print("ADD one after another", adds);
    print("DEL one after another", dels);
    let begin = Instant::now();
    let times = futures::future::join_all(requests[30..].iter().map(|request| async {
        machine.add(request).await;
        begin.elapsed()
    }))
    .await;
    print("ADD 30 at once", times);
    for line in machine.log().lines().filter(|line| line.contains("phase")) {
        println!("{line}");
    }
}
