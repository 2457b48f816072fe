use super::*;
use crate::flags::Flags;
use clap::Parser;

fn flags(arguments: &[&str]) -> Flags {
    Flags::parse_from(["kube-ovn-daemon"].iter().chain(arguments))
}

/// A node on which nothing is wrong.
fn good() -> Facts {
    Facts {
        switch: Some(Switch {
            version: Some("3.5.0".into()),
            encap_types: Some("geneve,vxlan".into()),
            ..Switch::default()
        }),
        ovn_controller: Some("25.03.0".into()),
        modules: gather::modules_for_tests(true),
        configurations: Vec::new(),
        sysctls: [
            ("net/ipv4/ip_forward", "1"),
            ("net/ipv6/conf/all/forwarding", "1"),
            ("net/ipv6/conf/all/disable_ipv6", "0"),
        ]
        .map(|(path, value)| (path.to_owned(), value.to_owned()))
        .into(),
        ipv6: true,
        missing_programs: Vec::new(),
        tunnel: Some(("eth1".into(), 1500, "10.9.0.11".parse().unwrap())),
        clock_ahead: Some(1),
        wants_ipv6: true,
        forbidden: Vec::new(),
    }
}

fn found(facts: &Facts, arguments: &[&str]) -> Vec<(&'static str, Severity)> {
    let findings = check(facts, &flags(arguments));
    assert!(findings.iter().all(|finding| !finding.remedy.is_empty() && !finding.problem.is_empty()));
    findings.iter().map(|finding| (finding.check, finding.severity)).collect()
}

#[test]
fn nothing_is_said_of_a_good_node_or_of_what_is_not_known() {
    assert_eq!(check(&good(), &flags(&[])), []);
    let unknown = Facts { switch: good().switch, ovn_controller: good().ovn_controller, ..Facts::default() };
    assert_eq!(check(&unknown, &flags(&[])), []);
}

#[test]
fn each_fault_has_a_finding() {
    use Severity::{Fatal, Warning};
    let with = |change: &dyn Fn(&mut Facts)| {
        let mut facts = good();
        change(&mut facts);
        facts
    };
    let module = |name: &'static str| {
        with(&move |facts| {
            facts.modules.insert(name.into(), false);
        })
    };
    let sysctl = |path: &'static str, value: &'static str| {
        with(&move |facts| drop(facts.sysctls.insert(path.into(), value.into())))
    };
    let switch = |change: &dyn Fn(&mut Switch)| with(&|facts| change(facts.switch.as_mut().unwrap()));
    for (facts, wanted) in [
        (with(&|facts| facts.switch = None), ("ovs", Fatal)),
        (switch(&|switch| switch.version = Some("2.16.9".into())), ("ovs", Warning)),
        (switch(&|switch| switch.lacks.push("Port.qos".into())), ("ovs", Fatal)),
        (switch(&|switch| switch.encap_types = Some("vxlan".into())), ("ovn", Warning)),
        (with(&|facts| facts.ovn_controller = Some("23.09.1".into())), ("ovn", Warning)),
        (with(&|facts| facts.ovn_controller = None), ("ovn", Warning)),
        (module("openvswitch"), ("modules", Fatal)),
        (module("geneve"), ("modules", Fatal)),
        (module("sch_netem"), ("modules", Warning)),
        (module("xt_set"), ("modules", Fatal)),
        (with(&|facts| facts.missing_programs.push("ipset".into())), ("programs", Fatal)),
        (sysctl("net/ipv4/ip_forward", "0"), ("sysctls", Warning)),
        (sysctl("net/ipv6/conf/all/disable_ipv6", "1"), ("ipv6", Fatal)),
        (with(&|facts| facts.ipv6 = false), ("ipv6", Fatal)),
        (with(&|facts| facts.tunnel.as_mut().unwrap().1 = 1379), ("mtu", Fatal)),
        (with(&|facts| facts.clock_ahead = Some(-60)), ("clock", Warning)),
        (with(&|facts| facts.forbidden.push("vlans")), ("permissions", Warning)),
    ] {
        assert_eq!(found(&facts, &[]), [wanted], "{facts:?}");
    }
    // What is not asked for is not missed.
    let userspace = with(&|facts| {
        facts.switch.as_mut().unwrap().userspace = true;
        facts.modules.insert("openvswitch".into(), false);
        facts.modules.insert("geneve".into(), false);
    });
    assert_eq!(found(&userspace, &[]), []);
    assert_eq!(found(&module("xt_set"), &["--non-primary-cni-mode=true"]), []);
    assert_eq!(found(&module("geneve"), &["--network-type=vxlan"]), []);
    let v4 = with(&|facts| {
        facts.wants_ipv6 = false;
        facts.ipv6 = false;
    });
    assert_eq!(found(&v4, &[]), []);
}

#[test]
fn flags_that_contradict_each_other() {
    use Severity::{Fatal, Warning};
    for (arguments, severity) in [
        (vec!["--mirror-iface=br-int"], Fatal),
        (vec!["--mirror-iface="], Fatal),
        (vec!["--dpdk-tunnel-iface=ovn0"], Fatal),
        (vec!["--mtu=500"], Fatal),
        (vec!["--cni-conf-name=a/b.conflist"], Fatal),
        (vec!["--set-vxlan-tx-off=true"], Warning),
        (vec!["--non-primary-cni-mode=true", "--clamp-mss=true"], Warning),
    ] {
        let v4 = Facts { wants_ipv6: false, ..good() };
        assert_eq!(found(&v4, &arguments), [("flags", severity)], "{arguments:?}");
    }
    assert_eq!(found(&good(), &["--mtu=1450"]), [("mtu", Warning)]);
}

#[test]
fn modules_are_found_loaded_built_in_or_loadable() {
    let root = tempfile::tempdir().unwrap();
    let file = |path: &str, text: &str| {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    assert!(gather::modules(root.path()).is_empty(), "nothing is known of such a kernel");
    file("sys/module/openvswitch/refcnt", "1");
    assert_eq!(gather::modules(root.path()).len(), 1);
    file("proc/sys/kernel/osrelease", "6.1.0\n");
    file("lib/modules/6.1.0/modules.builtin", "kernel/net/sched/sch_htb.ko\n");
    file(
        "lib/modules/6.1.0/modules.dep",
        "kernel/drivers/net/geneve.ko.xz: kernel/net/ipv4/udp_tunnel.ko.xz\n",
    );
    let modules = gather::modules(root.path());
    for (name, there) in [("openvswitch", true), ("sch_htb", true), ("geneve", true), ("vxlan", false)] {
        assert_eq!(modules.get(name), Some(&there), "{name}");
    }
}

#[test]
fn an_earlier_network_configuration_wins_and_is_told() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["01-kube-ovn.conflist", "00-old.conf", "00.bak", "99-x.json"] {
        std::fs::write(folder.path().join(name), "").unwrap();
    }
    let names = gather::read_configurations(folder.path());
    assert_eq!(names, ["00-old.conf", "01-kube-ovn.conflist", "99-x.json"]);
    let facts = Facts { configurations: names, ..Facts::default() };
    let told = |flags: &Flags| check(&facts, flags).into_iter().any(|finding| finding.check == "cni");
    assert!(told(&Flags::parse_from(["x"])));
    assert!(!told(&Flags::parse_from(["x", "--non-primary-cni-mode"])), "the other one is meant to be first");
    assert!(!told(&Flags::parse_from(["x", "--cni-conf-name=00-kube-ovn.conflist"])));
}

#[test]
fn flags_that_can_not_be_meant_are_fatal() {
    for argument in ["--iface=eth[", "--cni-conf-name=x.conf", "--bind-socket=/run/kube-ovn/daemon.sock"] {
        let found = contradictions(&Flags::parse_from(["x", argument]));
        assert!(found.iter().any(|finding| finding.severity == Severity::Fatal), "{argument}");
    }
}
