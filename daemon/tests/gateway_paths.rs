//! Ways through the gateway with real packets: external egress gateways, centralized subnets, the node-local DNS cache,
//! underlay pods, counters; and what a small change costs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests fail by panicking

mod icmp;
mod wires;

use std::io::ErrorKind;
use std::net::{IpAddr, TcpListener};
use std::sync::Arc;

use daemon::firewall::Backend;
use daemon::gateway::policy::{ExternalEgress, PROTOCOL};
use daemon::gateway::{Clamp, Counters, Gateway, Inputs, NatPolicy, SubnetInput, UnderlayInput};
use daemon::metrics::Metrics;
use daemon::netlink::Netlink;
use wires::{Ns, Wires, inputs, may_run};

async fn gateway(ns: &Ns, backend: Backend) -> Gateway {
    let netlink = Netlink::in_namespace(&ns.handle()).await.unwrap();
    Gateway::with_backend(ns.tools(), Some(netlink), backend)
}

/// The address under which a connection of the pod arrives at a listener.
fn arrives_as(from: &Ns, listener: &TcpListener, target: &str) -> IpAddr {
    let port = listener.local_addr().unwrap().port();
    let _stream = from.connect(target.parse().unwrap(), port).unwrap();
    listener.accept().unwrap().1.ip().to_canonical()
}

/// The default subnet with what leaves going to the host that is no node.
fn with_egress(distributed: bool, pods: &[&str]) -> Inputs {
    let mut inputs = inputs();
    let subnet = &mut inputs.subnets[0];
    subnet.nat_outgoing = false;
    subnet.distributed = distributed;
    subnet.external_egress = Some(ExternalEgress {
        gateways: vec!["172.30.0.99".parse().unwrap(), "fd00:172::99".parse().unwrap()],
        table: 1000,
        priority: 900,
        gateway_here: !distributed,
        local_pods: pods.iter().map(|ip| ip.parse().unwrap()).collect(),
    });
    inputs
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_112_k_130_external_egress_goes_to_its_gateway_untranslated() {
    if !may_run() {
        return;
    }
    let wires = Wires::new();
    let node = &wires.node;
    // A network that only the gateway knows of, and its way back to the pods.
    for (address, back) in [
        ("203.0.113.1/32", "route add 10.16.0.0/16 via 172.30.0.11"),
        ("2001:db8::1/128", "-6 route add fd00:10:16::/112 via fd00:172::11"),
    ] {
        wires.outside.ip(&format!("addr add {address} dev lo"));
        wires.outside.ip(back);
    }
    let listener = wires.outside.listen(7000);
    let mut gateway = gateway(node, Backend::Nft).await;
    // Rules as Kube-OVN leaves them: without a protocol, one of a subnet that is gone with a mark of ours.
    let inputs_before = with_egress(true, &["10.16.0.5", "fd00:10:16::5"]);
    let report = gateway.reconcile(&inputs_before).await.unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    assert_eq!((report.changes.policy_rules.len(), report.changes.policy_routes.len()), (2, 2));
    let rules = node.ip("rule show");
    assert!(rules.contains("900:\tfrom 10.16.0.5 lookup 1000"), "{rules}");
    let route = node.ip("route show table 1000");
    assert!(route.contains("default via 172.30.0.99") && route.contains("proto 87"), "{route}");
    for (target, source) in [("203.0.113.1", "10.16.0.5"), ("2001:db8::1", "fd00:10:16::5")] {
        assert_eq!(arrives_as(&wires.pod, &listener, target), source.parse::<IpAddr>().unwrap());
    }
    assert!(gateway.reconcile(&inputs_before).await.unwrap().changes.is_empty());

    // K130: what somebody deletes comes back; somebody's own rule stays.
    node.ip("rule del priority 900 from 10.16.0.5 lookup 1000");
    node.ip("-6 route del default table 1000");
    node.ip("rule add priority 800 from 10.16.0.77 lookup 1000");
    let report = gateway.reconcile(&inputs_before).await.unwrap();
    assert_eq!(report.changes.size(), 2, "{:?}", report.changes);
    assert!(node.ip("rule show").contains("from 10.16.0.77"));

    // Centralized: one rule for the prefix in place of the pods'; one more pod is one more rule.
    let report = gateway.reconcile(&with_egress(false, &[])).await.unwrap();
    assert_eq!((report.changes.policy_rules.len(), report.changes.policy_rules_deleted.len()), (2, 2));
    assert!(node.ip("rule show").contains("from 10.16.0.0/16 lookup 1000"));
    assert_eq!(arrives_as(&wires.pod, &listener, "203.0.113.1"), "10.16.0.5".parse::<IpAddr>().unwrap());

    // The subnet changes while the agent is down: its successor finds what is left by its mark.
    let mut successor = self::gateway(node, Backend::Nft).await;
    let report = successor.reconcile(&inputs()).await.unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    assert_eq!(report.changes.policy_rules_deleted.len(), 2);
    assert_eq!(report.changes.policy_routes_deleted.len(), 2);
    assert_eq!(node.ip("route show table 1000"), "");
    let netlink = Netlink::in_namespace(&node.handle()).await.unwrap();
    assert!(netlink.rules().await.unwrap().iter().all(|rule| rule.protocol != PROTOCOL));
    assert!(successor.reconcile(&inputs()).await.unwrap().changes.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_egress_gateway_out_of_reach_is_told_with_a_remedy() {
    if !may_run() {
        return;
    }
    let wires = Wires::new();
    let out_of_reach = |distributed| {
        let mut inputs = with_egress(distributed, &["10.16.0.5"]);
        inputs.subnets[0].external_egress.as_mut().unwrap().gateways = vec!["192.0.2.1".parse().unwrap()];
        inputs
    };
    let mut gateway = gateway(&wires.node, Backend::Nft).await;
    let report = gateway.reconcile(&out_of_reach(true)).await.unwrap();
    assert!(report.retry);
    assert!(report.problems[0].contains("192.0.2.1") && report.problems[0].contains("remedy"), "{report:?}");
    // A centralized subnet's gateway has to be within reach of the subnet's gateway nodes alone.
    let mut elsewhere = out_of_reach(false);
    assert!(gateway.reconcile(&elsewhere).await.unwrap().retry);
    elsewhere.subnets[0].external_egress.as_mut().unwrap().gateway_here = false;
    let report = gateway.reconcile(&elsewhere).await.unwrap();
    assert_eq!((report.problems, report.retry), (Vec::new(), false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_112_routes_of_an_earlier_process_are_found_without_a_rule() {
    if !may_run() {
        return;
    }
    let wires = Wires::new();
    let node = &wires.node;
    // As Kube-OVN and older agents made it, beside somebody's own table.
    node.ip("route add default via 172.30.0.99 table 1000 proto static");
    node.ip("-6 route add default via fd00:172::99 table 1000 proto static");
    node.ip("route add default via 172.30.0.99 table 2000 proto static");
    let shown = || {
        let v4 = node.ip("route show table 1000");
        let v6 = node.ip("-6 route show table 1000");
        (v4, v6)
    };
    // A distributed subnet without a pod on this node has a route and no rule.
    let report = gateway(node, Backend::Nft).await.reconcile(&with_egress(true, &[])).await.unwrap();
    assert_eq!((report.problems, report.changes.policy_routes.len()), (Vec::new(), 2));
    for routes in [shown().0, shown().1] {
        assert!(routes.lines().count() == 1 && routes.contains("proto 87"), "{routes}");
    }
    gateway(node, Backend::Nft).await.remove().await.unwrap();
    assert_eq!(shown(), (String::new(), String::new()));
    assert!(node.ip("route show table 2000").contains("172.30.0.99"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_123i_a_centralized_subnet_leaves_with_its_own_address() {
    if !may_run() {
        return;
    }
    let wires = Wires::new();
    for address in ["172.30.0.100/32", "fd00:172::100/128"] {
        let nodad = if address.contains(':') { " nodad" } else { "" };
        wires.node.ip(&format!("addr add {address} dev eth0{nodad}"));
    }
    let mut inputs = inputs();
    inputs.subnets[0].distributed = false;
    inputs.subnets[0].egress_ips = vec!["172.30.0.100".parse().unwrap(), "fd00:172::100".parse().unwrap()];
    let mut gateway = gateway(&wires.node, Backend::Nft).await;
    gateway.reconcile(&inputs).await.unwrap();
    let listener = wires.outside.listen(7000);
    for (target, source) in [("172.30.0.99", "172.30.0.100"), ("fd00:172::99", "fd00:172::100")] {
        assert_eq!(arrives_as(&wires.pod, &listener, target), source.parse::<IpAddr>().unwrap());
    }
    // Another node is active now: this one translates as for any other subnet.
    inputs.subnets[0].egress_ips.clear();
    gateway.reconcile(&inputs).await.unwrap();
    assert_eq!(arrives_as(&wires.pod, &listener, "172.30.0.99"), "172.30.0.11".parse::<IpAddr>().unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nat_policies_are_first_match() {
    if !may_run() {
        return;
    }
    let wires = Wires::new();
    wires.outside.ip("route add 10.16.0.0/16 via 172.30.0.11");
    let policy = |id: &str, translate, destinations: &str| NatPolicy {
        id: id.into(),
        translate,
        sources: Vec::new(),
        destinations: vec![destinations.parse().unwrap()],
    };
    let mut inputs = inputs();
    inputs.subnets[0].nat_policy =
        vec![policy("aaaaaaaaaaaa", false, "172.30.0.99/32"), policy("bbbbbbbbbbbb", true, "172.30.0.0/24")];
    let mut gateway = gateway(&wires.node, Backend::Nft).await;
    gateway.reconcile(&inputs).await.unwrap();
    let listener = wires.outside.listen(7000);
    assert_eq!(arrives_as(&wires.pod, &listener, "172.30.0.99"), "10.16.0.5".parse::<IpAddr>().unwrap());
    assert_eq!(arrives_as(&wires.pod, &listener, "172.30.0.12"), "172.30.0.11".parse::<IpAddr>().unwrap());
    inputs.subnets[0].nat_policy.reverse();
    gateway.reconcile(&inputs).await.unwrap();
    assert_eq!(arrives_as(&wires.pod, &listener, "172.30.0.99"), "172.30.0.11".parse::<IpAddr>().unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_120b_pods_reach_the_dns_cache_of_their_node() {
    if !may_run() {
        return;
    }
    let wires = Wires::new();
    wires.node.ip("addr add 169.254.20.10/32 dev lo");
    let mut inputs = inputs();
    inputs.config.node_local_dns = vec!["169.254.20.10".parse().unwrap()];
    let mut gateway = gateway(&wires.node, Backend::Nft).await;
    gateway.reconcile(&inputs).await.unwrap();
    assert!(wires.node.exec("ipset", &["save", "ovn40subnets"], None).contains(" 169.254.20.10\n"));
    let cache = wires.node.listen(53);
    assert_eq!(arrives_as(&wires.pod, &cache, "169.254.20.10"), "10.16.0.5".parse::<IpAddr>().unwrap());
    // Without the flag the address leaves the set, and nothing else is touched.
    inputs.config.node_local_dns.clear();
    let report = gateway.reconcile(&inputs).await.unwrap();
    assert_eq!(report.changes.sets.before, "del ovn40subnets 169.254.20.10\n");
    assert_eq!(report.changes.size(), 1);
}

async fn underlay_pods_are_refused(backend: Backend) {
    let wires = Wires::new();
    let mut inputs = inputs();
    // 172.30.0.99 is a pod on the physical network now; .12 is a node, .50 an address that no pod gets.
    wires.outside.ip("addr add 172.30.0.50/24 dev eth0");
    inputs.underlay = UnderlayInput {
        pods: ["172.30.0.0/24", "fd00:172::/64"].iter().map(|net| net.parse().unwrap()).collect(),
        hosts: ["172.30.0.50/32"].iter().map(|net| net.parse().unwrap()).collect(),
    };
    let report = gateway(&wires.node, backend).await.reconcile(&inputs).await.unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    let _listeners = [wires.node.listen(6642), wires.node.listen(10250)];
    let from = |source: &'static str, target: &'static str, port: u16| {
        let connect = move || {
            let target = std::net::SocketAddr::new(target.parse().unwrap(), port);
            let domain = socket2::Domain::for_address(target);
            let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None).unwrap();
            socket.bind(&std::net::SocketAddr::new(source.parse().unwrap(), 0).into()).unwrap();
            socket.connect_timeout(&target.into(), std::time::Duration::from_secs(5))
        };
        wires.outside.handle().run(connect).unwrap().map_err(|error| error.kind())
    };
    for (source, target, refused) in [
        ("172.30.0.99", "172.30.0.11", true),
        ("fd00:172::99", "fd00:172::11", true),
        ("172.30.0.12", "172.30.0.11", false),
        ("fd00:172::12", "fd00:172::11", false),
        ("172.30.0.50", "172.30.0.11", false),
    ] {
        let wanted = if refused { Err(ErrorKind::ConnectionRefused) } else { Ok(()) };
        assert_eq!(from(source, target, 6642), wanted, "{source}");
        assert_eq!(from(source, target, 10250), Ok(()), "{source}: other ports are open");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn u_65_underlay_pods_are_refused_nft() {
    if may_run() {
        underlay_pods_are_refused(Backend::Nft).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn u_65_underlay_pods_are_refused_legacy() {
    if may_run() {
        underlay_pods_are_refused(Backend::Legacy).await;
    }
}

async fn counts(backend: Backend) {
    let wires = Wires::new();
    let mut inputs = inputs();
    let mut gateway = gateway(&wires.node, backend).await;
    gateway.reconcile(&inputs).await.unwrap();
    let metrics = Arc::new(Metrics::new("n1"));
    let counters = Counters::new(wires.node.tools(), metrics.clone());
    counters.follow(backend, inputs.families()).await;
    counters.sample().await;
    let value = |direction: &str, unit: &str| -> i64 {
        let text = metrics.render();
        let line = text.lines().find(|line| {
            line.starts_with(&format!("ovn_subnet_gateway_{unit}{{"))
                && line.contains("subnet_name=\"default\"")
                && line.contains("protocol=\"IPv4\"")
                && line.contains(direction)
        });
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(-1)
    };
    assert_eq!(value("egress", "packets"), 0);
    assert_eq!(icmp::ping(&wires.pod.handle(), "172.30.0.99", 3), 3);
    // A subnet that comes meanwhile leaves the others' counters alone.
    inputs.subnets.push(SubnetInput {
        name: "new".into(),
        cidrs: vec!["10.40.0.0/16".parse().unwrap()],
        validated: true,
        ..SubnetInput::default()
    });
    gateway.reconcile(&inputs).await.unwrap();
    for _ in 0..100 {
        counters.sample().await;
        if value("egress", "packets") > 0 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    for direction in ["egress", "ingress"] {
        assert_eq!(value(direction, "packets"), 3, "{}", metrics.render());
        assert_eq!(value(direction, "packet_bytes"), 3 * 84);
    }
    assert!(metrics.render().contains("cidr=\"10.16.0.0/16\",direction=\"egress\",protocol=\"IPv4\""));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traffic_of_subnets_is_counted_nft() {
    if may_run() {
        counts(Backend::Nft).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traffic_of_subnets_is_counted_legacy() {
    if may_run() {
        counts(Backend::Legacy).await;
    }
}

async fn one_subnet_costs_its_own_entries(backend: Backend) {
    let ns = Ns::new("many");
    let mut inputs = inputs();
    for number in 0..100 {
        inputs.subnets.push(SubnetInput {
            name: format!("s{number:03}"),
            cidrs: vec![format!("10.200.{number}.0/24").parse().unwrap()],
            validated: true,
            nat_outgoing: true,
            distributed: true,
            ..SubnetInput::default()
        });
    }
    inputs.config.clamp = Some(Clamp { link: "eth1".into(), mtu: 1400 });
    let mut gateway = Gateway::with_backend(ns.tools(), None, backend);
    let report = gateway.reconcile(&inputs).await.unwrap();
    assert_eq!((report.problems, report.learned), (Vec::<String>::new(), Vec::<String>::new()));
    assert!(gateway.reconcile(&inputs).await.unwrap().changes.is_empty());
    let gone = inputs.subnets.remove(50);
    let report = gateway.reconcile(&inputs).await.unwrap();
    // Three sets, two counters.
    assert_eq!(report.changes.size(), 5, "{:?}", report.changes);
    inputs.subnets.push(gone);
    let report = gateway.reconcile(&inputs).await.unwrap();
    assert_eq!(report.changes.size(), 5, "{:?}", report.changes);
    assert_eq!((report.problems, report.learned), (Vec::<String>::new(), Vec::<String>::new()));
    assert!(gateway.reconcile(&inputs).await.unwrap().changes.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_124_one_subnet_costs_its_own_entries_nft() {
    if may_run() {
        one_subnet_costs_its_own_entries(Backend::Nft).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_124_one_subnet_costs_its_own_entries_legacy() {
    if may_run() {
        one_subnet_costs_its_own_entries(Backend::Legacy).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_120_k_122_the_kernel_counts_as_many_references_as_there_are_rules() {
    if !may_run() {
        return;
    }
    for backend in [Backend::Nft, Backend::Legacy] {
        let ns = Ns::new("refs");
        let mut gateway = Gateway::with_backend(ns.tools(), None, backend);
        assert_eq!(gateway.reconcile(&inputs()).await.unwrap().problems, Vec::<String>::new());
        let rules = ns.rules(&format!("iptables-{}", backend.as_str())).join("\n");
        for set in
            ["services", "subnets", "subnets-nat", "local-pod-ip-nat", "other-node", "subnets-distributed-gw"]
        {
            let name = format!("ovn40{set}");
            let listed = ns.exec("ipset", &["list", "-t", &name], None);
            let references = listed.lines().find_map(|line| line.strip_prefix("References: ")).unwrap();
            let used = rules.matches(&format!("--match-set {name} ")).count();
            assert_eq!(references.trim().parse::<usize>().unwrap(), used, "{name}");
            let header = listed.lines().find(|line| line.starts_with("Header: ")).unwrap();
            assert!(header.contains("family inet hashsize 1024 maxelem 1048576"), "K121: {header}");
            // K120c: kept for rules of older versions, always empty and used by none of ours.
            assert_eq!(used == 0, set == "local-pod-ip-nat", "{name}: {used}");
        }
        let empty = ns.exec("ipset", &["save", "ovn40local-pod-ip-nat"], None);
        assert_eq!(empty.lines().count(), 1, "{empty}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_111_nodes_and_pods_reach_each_other() {
    if !may_run() {
        return;
    }
    let wires = Wires::new();
    let mut gateway = gateway(&wires.node, Backend::Nft).await;
    gateway.reconcile(&inputs()).await.unwrap();
    let (at_pod, at_node) = (wires.pod.listen(7000), wires.node.listen(7001));
    for (pod, node, join) in
        [("10.16.0.5", "172.30.0.11", "100.64.0.2"), ("fd00:10:16::5", "fd00:172::11", "fd00:100:64::2")]
    {
        // The pod's neighbour is the logical router here, so the node asks with its address on that link.
        let seen = arrives_as(&wires.node, &at_pod, pod);
        assert!([node, join, "10.16.0.1", "fd00:10:16::1"].contains(&seen.to_string().as_str()), "{seen}");
        for target in [node, join] {
            assert_eq!(arrives_as(&wires.pod, &at_node, target), pod.parse::<IpAddr>().unwrap());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_of_the_packet_filter_is_waited_for() {
    if !may_run() {
        return;
    }
    let ns = Ns::new("lock");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("xtables.lock");
    let file = std::fs::File::create(&path).unwrap();
    let held =
        nix::fcntl::Flock::lock(file, nix::fcntl::FlockArg::LockExclusive).map_err(|(_, e)| e).unwrap();
    let lock = format!("XTABLES_LOCKFILE={}", path.display());
    let words = ["env".to_owned(), lock, "ip".into(), "netns".into(), "exec".into(), ns.0.clone()];
    let mut gateway = Gateway::with_backend(daemon::firewall::Tools::behind(words), None, Backend::Legacy);
    let release = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(1500));
        drop(held);
    });
    let begin = std::time::Instant::now();
    let report = gateway.reconcile(&inputs()).await.unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    assert!(
        begin.elapsed() >= std::time::Duration::from_millis(1400),
        "it did not wait: {:?}",
        begin.elapsed()
    );
    release.join().unwrap();
}
