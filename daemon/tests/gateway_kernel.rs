//! The gateway against the real kernel, with both kinds of iptables, in namespaces that the test makes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests fail by panicking

mod wires;

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

use daemon::firewall::{Backend, Tools};
use daemon::gateway::{Gateway, JoinInput, SubnetInput};
use daemon::netlink::Netlink;
use wires::{Ns, Wires, inputs, may_run};

/// What kube-proxy, another plugin, an administrator and an older Kube-OVN have on a node.
fn occupy(ns: &Ns, backend: Backend) {
    ns.exec(
        "ipset",
        &["restore"],
        Some(
            "create OTHER hash:ip family inet\nadd OTHER 192.0.2.1\n\
        create ovn40subnets hash:net family inet maxelem 1048576\nadd ovn40subnets 10.99.0.0/16\n\
        create ovn40services hash:net family inet maxelem 1048576\n\
        create ovn4tsubnets hash:net family inet maxelem 1048576\n",
        ),
    );
    for prefix in ["iptables", "ip6tables"] {
        let old = if prefix == "iptables" {
            let refusal = "-m mark ! --mark 0x4000/0x4000 -m set --match-set ovn40services dst -m conntrack \
                --ctstate NEW -j REJECT --reject-with icmp-port-unreachable";
            format!(
                "-A INPUT -m set --match-set ovn40subnets src -j ACCEPT\n\
                 -A INPUT -p tcp {refusal}\n-A OUTPUT -p tcp {refusal}\n-A OUTPUT {refusal}\n\
                 -A FORWARD -s 10.99.0.0/16 -m comment --comment \"ovn-subnet-gateway,gone\"\n\
                 -A FORWARD -d 10.99.0.0/16 -m comment --comment \"ovn-subnet-gateway,gone\"\n"
            )
        } else {
            String::new()
        };
        let batch = format!(
            "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-POSTROUTING - [0:0]\n:CILIUM_PRE_nat - [0:0]\n\
             :OVN-POSTROUTING - [0:0]\n\
             -A PREROUTING -m comment --comment \"cilium-feeder: CILIUM_PRE_nat\" -j CILIUM_PRE_nat\n\
             -A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
             -A POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING\n\
             -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN\n\
             -A KUBE-POSTROUTING -j MASQUERADE --random-fully\n\
             -A OVN-POSTROUTING -m mark --mark 0x40000/0x40000 -j MASQUERADE\nCOMMIT\n\
             *filter\n:KUBE-FORWARD - [0:0]\n-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT\n{old}\
             -A FORWARD -j KUBE-FORWARD\n-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP\nCOMMIT\n\
             *raw\n-A PREROUTING -p udp -m udp --dport 53 -j NOTRACK\nCOMMIT\n"
        );
        ns.exec(&format!("{prefix}-{}-restore", backend.as_str()), &["-w", "30", "--noflush"], Some(&batch));
    }
}

/// Everybody else's lines, in order.
fn foreign(ns: &Ns, backend: Backend) -> Vec<String> {
    ["iptables", "ip6tables"]
        .iter()
        .flat_map(|prefix| ns.rules(&format!("{prefix}-{}", backend.as_str())))
        .filter(|line| {
            !["OVN-", "ovn40", "ovn60", "ovn-subnet-gateway"].iter().any(|ours| line.contains(ours))
        })
        // A table that we are the first to use shows its built-in chains.
        .filter(|line| !line.starts_with('*') && !line.starts_with(':') && line != "COMMIT")
        .collect()
}

async fn lives_beside_others(backend: Backend) {
    let ns = Ns::new("rules");
    occupy(&ns, backend);
    let before = foreign(&ns, backend);
    assert!(before.len() >= 14, "{before:?}");
    let other_set = ns.exec("ipset", &["save", "OTHER"], None);
    let mut gateway = Gateway::with_backend(ns.tools(), None, backend);

    let first = gateway.reconcile(&inputs()).await.unwrap();
    assert_eq!(first.problems, Vec::<String>::new());
    assert_eq!(first.learned, Vec::<String>::new(), "this host's tools print what we write");
    assert!(!first.changes.is_empty());
    assert_eq!(foreign(&ns, backend), before);
    let set = ns.exec("ipset", &["save", "ovn40subnets"], None);
    assert!(set.contains("10.16.0.0/16") && !set.contains("10.99.0.0/16"), "{set}");

    let settled = ns.rules(&format!("iptables-{}", backend.as_str()));
    assert!(!settled.iter().any(|line| line.contains("subnet-gateway,gone")), "{settled:?}");
    let in_chains = |line: &&String| line.contains("ovn40") && !line.starts_with("-A OVN-");
    assert_eq!(settled.iter().find(in_chains), None);
    let second = gateway.reconcile(&inputs()).await.unwrap();
    assert!(second.changes.is_empty() && second.problems.is_empty(), "{second:?}");

    // Somebody deletes a rule, a jump, an element, and puts the portals in front.
    let program = format!("iptables-{}", backend.as_str());
    ns.exec(&program, &["-w", "-t", "nat", "-D", "OVN-POSTROUTING", "3"], None);
    ns.exec(
        &program,
        &["-w", "-D", "INPUT", "-m", "comment", "--comment", "kube-ovn input rules", "-j", "OVN-INPUT"],
        None,
    );
    ns.exec("ipset", &["del", "ovn40subnets", "10.16.0.0/16"], None);
    ns.exec(
        &program,
        &[
            "-w",
            "-t",
            "nat",
            "-D",
            "PREROUTING",
            "-m",
            "comment",
            "--comment",
            "kubernetes service portals",
            "-j",
            "KUBE-SERVICES",
        ],
        None,
    );
    ns.exec(
        &program,
        &[
            "-w",
            "-t",
            "nat",
            "-I",
            "PREROUTING",
            "1",
            "-m",
            "comment",
            "--comment",
            "kubernetes service portals",
            "-j",
            "KUBE-SERVICES",
        ],
        None,
    );
    let pending = gateway.pending(&inputs()).await.unwrap();
    assert_eq!(pending.ipv4.len(), 2);
    assert!(pending.ipv6.is_empty());
    assert_eq!(pending.sets.changes.len(), 1);
    let before = foreign(&ns, backend);
    let repair = gateway.reconcile(&inputs()).await.unwrap();
    assert_eq!(repair.changes, pending);
    assert_eq!(repair.problems, Vec::<String>::new());
    assert_eq!(foreign(&ns, backend), before);
    let repaired = ns.rules(&program);
    let sorted = |mut lines: Vec<String>| {
        lines.sort();
        lines
    };
    assert_eq!(sorted(repaired.clone()), sorted(settled));
    let position = |text: &str| repaired.iter().position(|line| line.contains(text)).unwrap();
    assert!(position("-A PREROUTING -m comment --comment \"kube-ovn") < position("-j KUBE-SERVICES"));
    assert!(gateway.reconcile(&inputs()).await.unwrap().changes.is_empty());

    gateway.remove().await.unwrap();
    assert_eq!(foreign(&ns, backend), before);
    for prefix in ["iptables", "ip6tables"] {
        let left = ns.rules(&format!("{prefix}-{}", backend.as_str()));
        assert!(!left.iter().any(|line| line.contains("OVN-") || line.contains("ovn40")), "{left:?}");
    }
    assert_eq!(ns.exec("ipset", &["save"], None), other_set);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn u_62_lives_beside_others_nft() {
    if may_run() {
        lives_beside_others(Backend::Nft).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn u_62_lives_beside_others_legacy() {
    if may_run() {
        lives_beside_others(Backend::Legacy).await;
    }
}

/// Sets that a rule names can't be destroyed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_124_what_kube_ovn_left_is_taken_away_without_a_pass() {
    if !may_run() {
        return;
    }
    for backend in [Backend::Nft, Backend::Legacy] {
        let ns = Ns::new("left");
        occupy(&ns, backend);
        let before = foreign(&ns, backend);
        let mut gateway = Gateway::with_backend(ns.tools(), None, backend);
        assert!(!gateway.is_clean().await.unwrap());
        gateway.remove().await.unwrap();
        assert!(gateway.is_clean().await.unwrap());
        assert_eq!(foreign(&ns, backend), before);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_in_the_other_kind_of_iptables_are_taken_out() {
    if !may_run() {
        return;
    }
    let ns = Ns::new("kinds");
    let old = Gateway::with_backend(ns.tools(), None, Backend::Legacy).reconcile(&inputs()).await.unwrap();
    assert_eq!(old.problems, Vec::<String>::new());
    assert!(ns.rules("iptables-legacy").iter().any(|line| line.contains("-j OVN-MASQUERADE")));
    let new = Gateway::with_backend(ns.tools(), None, Backend::Nft).reconcile(&inputs()).await.unwrap();
    assert_eq!(new.problems, Vec::<String>::new());
    assert!(!ns.rules("iptables-legacy").iter().any(|line| line.contains("OVN-")));
    assert!(ns.rules("iptables-nft").iter().any(|line| line.contains("-j OVN-MASQUERADE")));
}

/// The agent's programs with one that refuses input of a pattern.
fn refusing(ns: &Ns, folder: &std::path::Path, program: &str, pattern: &str) -> Tools {
    let script = folder.join(program);
    let text = format!(
        "test \"$1\" = {program} || exec ip netns exec {} \"$@\"\n\
         input=$(cat)\ncase \"$input\" in {pattern}) echo refused >&2; exit 1;; esac\n\
         printf '%s\\n' \"$input\" | ip netns exec {} \"$@\"\n",
        ns.0, ns.0
    );
    std::fs::write(&script, text).unwrap();
    Tools::behind(["sh".to_owned(), script.display().to_string()])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_fails_is_told_and_the_rest_is_done() {
    if !may_run() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for backend in [Backend::Nft, Backend::Legacy] {
        let ns = Ns::new("fails");
        let kind = backend.as_str();
        let ours = |family: &str, table: &str| {
            let saved = ns.exec(&format!("{family}-{kind}-save"), &["-t", table], None);
            saved.contains("-j OVN-")
        };
        let tools = refusing(&ns, folder.path(), &format!("ip6tables-{kind}-save"), "*");
        let mut gateway = Gateway::with_backend(tools, None, backend);
        let report = gateway.reconcile(&inputs()).await.unwrap();
        assert!(report.retry && report.problems.len() == 1, "{report:?}");
        assert!(report.problems[0].contains("ip6tables"), "{report:?}");
        assert!(ours("iptables", "nat") && !ours("ip6tables", "nat"));

        let tools = refusing(&ns, folder.path(), &format!("ip6tables-{kind}-restore"), "*'*mangle'*");
        let mut gateway = Gateway::with_backend(tools, None, backend);
        let report = gateway.reconcile(&inputs()).await.unwrap();
        assert!(report.retry && report.problems.len() == 1, "{report:?}");
        assert!(ours("ip6tables", "nat") && ours("ip6tables", "filter") && !ours("ip6tables", "mangle"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_hosts_kind_of_iptables_is_found() {
    if !may_run() {
        return;
    }
    let hint = "*mangle\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n";
    for backend in [Backend::Nft, Backend::Legacy] {
        let ns = Ns::new("hint");
        let families = [daemon::firewall::Family::V4];
        assert_eq!(Backend::detect(&ns.tools(), &families, true).await.unwrap(), Backend::Nft);
        let restore = format!("iptables-{}-restore", backend.as_str());
        ns.exec(&restore, &["-w", "30", "--noflush"], Some(hint));
        assert_eq!(Backend::detect(&ns.tools(), &families, true).await.unwrap(), backend);
    }
}

async fn refuses_and_translates(backend: Backend) {
    let wires = Wires::new();
    let mut gateway = Gateway::with_backend(wires.node.tools(), None, backend);
    let report = gateway.reconcile(&inputs()).await.unwrap();
    assert_eq!(report.problems, Vec::<String>::new());

    let ports = [6641, 6642, 6643, 6644, 10660, 10661, 10665, 10250, 6443];
    let node: Vec<TcpListener> = ports.iter().map(|port| wires.node.listen(*port)).collect();
    let outside: Vec<TcpListener> = ports.iter().map(|port| wires.outside.listen(*port)).collect();
    assert_eq!(node.len() + outside.len(), 2 * ports.len());
    let refused = |ns: &Ns, ip: &str, port: u16| match ns.connect(ip.parse().unwrap(), port) {
        Ok(_) => false,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => true,
        Err(error) => panic!("{ip} {port}: {error}"),
    };
    for port in ports {
        let forbidden = !matches!(port, 10250 | 6443);
        // The node's own addresses, in the join subnet too, and the other node's.
        for ip in
            ["172.30.0.11", "100.64.0.2", "172.30.0.12", "fd00:172::11", "fd00:100:64::2", "fd00:172::12"]
        {
            assert_eq!(refused(&wires.pod, ip, port), forbidden, "{ip} {port}");
        }
        // A host that is no node may have a service on the same port.
        for ip in ["172.30.0.99", "fd00:172::99"] {
            assert!(!refused(&wires.pod, ip, port), "{ip} {port}");
        }
        // Nodes among themselves, and a node with itself over its join address.
        assert!(!refused(&wires.outside, "172.30.0.11", port));
        assert!(!refused(&wires.node, "172.30.0.12", port));
        assert!(!refused(&wires.node, "100.64.0.2", port));
    }
    // A pod that claims another source gets no further: what counts is where its packets come from.
    wires.pod.ip("addr add 203.0.113.7/32 dev eth0");
    wires.node.ip("route add 203.0.113.7/32 dev ovn0");
    let with_source = |ns: &Ns, source: &'static str, ip: &'static str, port: u16| {
        let from = ns.handle().run(move || {
            let target = SocketAddr::new(ip.parse().unwrap(), port);
            let domain = socket2::Domain::for_address(target);
            let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None).unwrap();
            socket.bind(&SocketAddr::new(source.parse().unwrap(), 0).into()).unwrap();
            socket.connect_timeout(&target.into(), Duration::from_secs(5))
        });
        from.unwrap().map_err(|error| error.kind())
    };
    let claimed = |ip, port| with_source(&wires.pod, "203.0.113.7", ip, port);
    assert_eq!(claimed("172.30.0.11", 10250), Ok(()));
    for ip in ["172.30.0.11", "172.30.0.12"] {
        assert_eq!(claimed(ip, 6642), Err(ErrorKind::ConnectionRefused), "{ip}");
    }
    // Somebody makes a Subnet of the nodes' own network and forgets its vlan: nodes go on among themselves.
    let mut wrong = inputs();
    wrong.subnets.push(SubnetInput {
        name: "flat".into(),
        cidrs: ["172.30.0.0/24", "fd00:172::/64"].iter().map(|cidr| cidr.parse().unwrap()).collect(),
        ..SubnetInput::default()
    });
    assert_eq!(gateway.reconcile(&wrong).await.unwrap().problems, Vec::<String>::new());
    let tunnel = wires.node.handle().run(|| UdpSocket::bind(("::", 6081)).unwrap()).unwrap();
    tunnel.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let said = wires.outside.handle().run(|| {
        let other = UdpSocket::bind(("172.30.0.12", 0)).unwrap();
        other.connect(("172.30.0.11", 6081)).unwrap();
        other.send(b"tunnel").unwrap();
    });
    said.unwrap();
    assert_eq!(tunnel.recv(&mut [0; 16]).unwrap(), 6);
    for (ip, other) in [("172.30.0.11", "172.30.0.12"), ("fd00:172::11", "fd00:172::12")] {
        assert_eq!(with_source(&wires.outside, other, ip, 6641), Ok(()), "{other}");
        assert!(refused(&wires.pod, ip, 6641), "{ip}");
    }
    assert!(refused(&wires.pod, "172.30.0.12", 6641));
    assert_eq!(claimed("172.30.0.12", 6642), Err(ErrorKind::ConnectionRefused));
    assert_eq!(gateway.reconcile(&inputs()).await.unwrap().problems, Vec::<String>::new());
    // What leaves has the node's address.
    let listener = wires.outside.listen(7000);
    for (target, source) in [("172.30.0.99", "172.30.0.11"), ("fd00:172::99", "fd00:172::11")] {
        let _stream = wires.pod.connect(target.parse().unwrap(), 7000).unwrap();
        let peer = listener.accept().unwrap().1.ip().to_canonical();
        assert_eq!(peer, source.parse::<IpAddr>().unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn u_65_refuses_and_translates_nft() {
    if may_run() {
        refuses_and_translates(Backend::Nft).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn u_65_refuses_and_translates_legacy() {
    if may_run() {
        refuses_and_translates(Backend::Legacy).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_111_routes_to_pods_are_kept() {
    if !may_run() {
        return;
    }
    let wires = Wires::new();
    let node = &wires.node;
    let link = node.handle().run(|| nix::net::if_::if_nametoindex("ovn0").unwrap()).unwrap();
    let mut inputs = inputs();
    inputs.join = Some(JoinInput {
        link,
        ips: vec!["100.64.0.2".parse().unwrap(), "fd00:100:64::2".parse().unwrap()],
        gateways: vec!["100.64.0.1".parse().unwrap(), "fd00:100:64::1".parse().unwrap()],
    });
    node.ip("route add 10.77.0.0/16 via 100.64.0.1 dev ovn0 proto static");
    let netlink = Netlink::in_namespace(&node.handle()).await.unwrap();
    let mut gateway = Gateway::with_backend(node.tools(), Some(netlink), Backend::Nft);
    // The wiring's own host routes have no gateway: connected ones, not ours to delete.
    let report = gateway.reconcile(&inputs).await.unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    assert_eq!(report.changes.routes_deleted, ["10.77.0.0/16".parse().unwrap()]);
    let v4 = node.ip("route show 10.16.0.0/16");
    assert!(v4.contains("via 100.64.0.1 dev ovn0 proto static src 172.30.0.11"), "{v4}");
    let v6 = node.ip("-6 route show fd00:10:16::/112");
    assert!(v6.contains("via fd00:100:64::1 dev ovn0 proto static src fd00:172::11"), "{v6}");
    assert!(gateway.reconcile(&inputs).await.unwrap().changes.is_empty());

    node.ip("route del 10.16.0.0/16");
    node.ip("-6 route del fd00:100:64::/112 dev ovn0");
    let report = gateway.reconcile(&inputs).await.unwrap();
    assert_eq!(report.changes.routes_set.len(), 2, "{report:?}");
    assert_eq!(report.problems, Vec::<String>::new());
    assert!(gateway.reconcile(&inputs).await.unwrap().changes.is_empty());
}

#[test]
fn forwarding_keeps_what_routers_say() {
    if !may_run() {
        return;
    }
    use daemon::firewall::Family;
    use std::collections::BTreeSet;
    let ns = Ns::new("sysctl");
    ns.ip("link add eth0 type veth peer name eth1");
    let read = |path: &str| ns.exec("cat", &[&format!("/proc/sys/net/{path}")], None).trim().to_owned();
    let enable = |families: BTreeSet<Family>| {
        ns.handle().run(move || daemon::install::enable_forwarding(&families).unwrap()).unwrap()
    };
    ns.exec("sh", &["-c", "echo 0 > /proc/sys/net/ipv6/conf/eth1/accept_ra"], None);
    assert_eq!(enable(BTreeSet::from([Family::V4])), ["net/ipv4/ip_forward=1"]);
    assert_eq!(read("ipv6/conf/all/forwarding"), "0");
    enable(BTreeSet::from([Family::V4, Family::V6]));
    assert_eq!(read("ipv6/conf/all/forwarding"), "1");
    assert_eq!(read("ipv6/conf/eth0/accept_ra"), "2", "it had listened");
    assert_eq!(read("ipv6/conf/eth1/accept_ra"), "0", "it had not");
    assert!(enable(BTreeSet::from([Family::V4, Family::V6])).is_empty());
    ns.handle().run(|| daemon::install::loosen_reverse_path("eth0").unwrap()).unwrap();
    assert_eq!(read("ipv4/conf/eth0/rp_filter"), "2");
}
