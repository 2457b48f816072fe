//! What somebody deletes or changes by hand comes back within seconds, without waiting for the minute's verification: one
//! test for each kind of object, on the whole agent with the real OVS. Here: what the host and its files have; `heal_switch.rs` has the switch's rows and devices.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::process::Command;
use std::time::{Duration, Instant};

use daemon::netlink::MAIN_TABLE;
use daemon::sys::write_sysctl;
use support::agent::Machine;
use support::heal::{heals, node, node_after, plugged, run};
use support::{Process, addresses, answers};

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
    let first = run(&machine.namespace, &format!("{tool} -t filter -S OVN-OUTPUT 1"));
    assert!(first.contains("--dport 6081"), "{first}");
    let exchanged = first.trim().trim_start_matches("-A OVN-OUTPUT ").replace("--dport 6081", "--dport 6082");
    for (what, line) in [
        ("a rule", format!("{tool} -t nat -D OVN-POSTROUTING 1")),
        // As many rules and bytes as before.
        ("an exchanged rule", format!("{tool} -t filter -R OVN-OUTPUT 1 {exchanged}")),
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
    assert_eq!((link.tx_queue_len, link.mtu), (1000, 1400), "K062, K060");
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
