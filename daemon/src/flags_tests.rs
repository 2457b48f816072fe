use super::*;

fn parse(arguments: &[&str]) -> Flags {
    Flags::try_parse_from(std::iter::once("kube-ovn-daemon").chain(arguments.iter().copied())).unwrap()
}

#[test]
fn defaults_are_upstreams() {
    let flags = parse(&[]);
    assert!(!flags.install_cni_config);
    assert!(flags.encap_checksum && flags.enable_metrics && flags.enable_arp_detect_ip_conflict);
    assert_eq!(flags.pprof_port, 10665);
    assert_eq!(flags.dpdk_tunnel_iface, "br-phy");
    assert_eq!(flags.bind_socket, PathBuf::from("/run/openvswitch/kube-ovn-daemon.sock"));
    assert_eq!(flags.service_cluster_ip_range, "10.96.0.0/12");
    assert_eq!(flags.network_type, NetworkType::Geneve);
    assert!(flags.without_effect().is_empty());
}

#[test]
fn go_style_flags_parse() {
    let flags = parse(&[
        "--encap-checksum=false",
        "--enable-mirror",
        "--iface=eth1",
        "--mtu",
        "1300",
        "--network-type=vxlan",
        "--logtostderr=false",
        "--alsologtostderr=true",
        "--log_file=/var/log/kube-ovn/kube-ovn-cni.log",
        "--log_file_max_size=200",
        "-v=3",
    ]);
    assert!(!flags.encap_checksum && flags.enable_mirror);
    assert_eq!((flags.iface.as_str(), flags.mtu), ("eth1", 1300));
    assert_eq!(flags.network_type, NetworkType::Vxlan);
    assert_eq!(flags.klog.verbosity, 3);
    assert!(flags.without_effect().is_empty());
}

#[test]
fn the_last_of_a_repeated_flag_wins() {
    assert_eq!(parse(&["--mtu=1300", "--mtu=1400"]).mtu, 1400);
}

/// The contract's table of §5.1, line by line.
const CONTRACT: [(&str, &str); 44] = [
    ("install-cni-config", "false"),
    ("cni-conf-dir", "/etc/cni/net.d"),
    ("cni-conf-file", "/kube-ovn/01-kube-ovn.conflist"),
    ("cni-conf-name", "01-kube-ovn.conflist"),
    ("iface", ""),
    ("host-tunnel-src", "false"),
    ("dpdk-tunnel-iface", "br-phy"),
    ("mtu", "0"),
    ("network-type", "geneve"),
    ("encap-checksum", "true"),
    ("enable-mirror", "false"),
    ("mirror-iface", "mirror0"),
    ("bind-socket", "/run/openvswitch/kube-ovn-daemon.sock"),
    ("ovs-socket", ""),
    ("kubeconfig", ""),
    ("service-cluster-ip-range", "10.96.0.0/12"),
    ("cluster-router", "ovn-cluster"),
    ("node-switch", "join"),
    ("default-provider-name", "provider"),
    ("default-interface-name", ""),
    ("external-gateway-config-ns", "kube-system"),
    ("external-gateway-switch", "external"),
    ("enable-pprof", "false"),
    ("pprof-port", "10665"),
    ("secure-serving", "false"),
    ("tls-min-version", ""),
    ("tls-max-version", ""),
    ("tls-cipher-suites", ""),
    ("enable-metrics", "true"),
    ("mac-learning-fallback", "false"),
    ("enable-arp-detect-ip-conflict", "true"),
    ("kubelet-dir", "/var/lib/kubelet"),
    ("enable-verbose-conn-check", "false"),
    ("tcp-conn-check-port", "8100"),
    ("udp-conn-check-port", "8101"),
    ("enable-tproxy", "false"),
    ("ovs-vsctl-concurrency", "100"),
    ("enable-ovn-ipsec", "false"),
    ("cert-manager-ipsec-cert", "false"),
    ("cert-manager-issuer-name", "kube-ovn"),
    ("ovn-ipsec-cert-duration", "63072000"),
    ("set-vxlan-tx-off", "false"),
    ("log-perm", "640"),
    ("non-primary-cni-mode", "false"),
];

#[test]
fn every_flag_of_the_contract_is_there_with_its_default() {
    let command = <Flags as clap::CommandFactory>::command();
    for (name, default) in CONTRACT {
        let argument = command.get_arguments().find(|argument| argument.get_long() == Some(name));
        let argument = argument.unwrap_or_else(|| panic!("--{name}"));
        let values: Vec<_> =
            argument.get_default_values().iter().map(|value| value.to_str().unwrap()).collect();
        assert_eq!(values.join(","), default, "--{name}");
        // In both forms of Go's flags.
        let value = match default {
            "false" | "true" => "false",
            "" => "a",
            "geneve" => "stt",
            default => default,
        };
        parse(&[&format!("--{name}={value}")]);
        match default {
            // A value behind a blank would be an argument of its own, as in Go.
            "false" | "true" => parse(&[&format!("--{name}")]),
            _ => parse(&[&format!("--{name}"), value]),
        };
    }
}

/// No flag of the contract is passed over in silence: what has no effect when it is set says so, with the remedy.
#[test]
fn a_flag_that_does_nothing_says_so() {
    let told = |arguments: &[&str]| -> Vec<&str> {
        parse(arguments).without_effect().iter().map(|flag| flag.flag).collect()
    };
    for (name, value) in [
        ("default-interface-name", "eth1"),
        ("default-provider-name", "other"),
        ("enable-pprof", "true"),
        ("kubelet-dir", "/data/kubelet"),
        ("enable-tproxy", "true"),
        ("ovs-vsctl-concurrency", "5"),
        ("enable-ovn-ipsec", "true"),
        ("cert-manager-ipsec-cert", "true"),
        ("cert-manager-issuer-name", "other"),
        ("ovn-ipsec-cert-duration", "1"),
        // Without the flag that they belong to.
        ("tls-min-version", "TLS12"),
        ("tls-max-version", "TLS13"),
        ("tls-cipher-suites", "TLS_AES_128_GCM_SHA256"),
        ("tcp-conn-check-port", "1"),
        ("udp-conn-check-port", "1"),
        ("log-perm", "600"),
    ] {
        let found = told(&[&format!("--{name}={value}")]);
        assert!(found.len() == 1 && found[0].split(", ").any(|flag| flag == name), "--{name}: {found:?}");
    }
    assert_eq!(
        told(&["--secure-serving", "--tls-min-version=TLS13", "--tls-cipher-suites=a"]),
        Vec::<&str>::new()
    );
    assert_eq!(told(&["--enable-verbose-conn-check", "--tcp-conn-check-port=1"]), Vec::<&str>::new());
    assert_eq!(told(&["--log_file=/x", "--logtostderr=false", "--log-perm=600"]), Vec::<&str>::new());
}

/// The environment of the contract's pod.
#[test]
fn every_variable_of_the_contract_is_read() {
    let command = <Flags as clap::CommandFactory>::command();
    let read: Vec<_> = command.get_arguments().filter_map(|argument| argument.get_env()?.to_str()).collect();
    for name in ["NODE_NAME", "POD_NAME", "POD_NAMESPACE", "POD_IP", "POD_IPS", "ENABLE_BIND_LOCAL_IP"] {
        assert!(read.contains(&name), "{name}");
    }
}

#[test]
fn overheads_are_the_contracts() {
    assert_eq!(NetworkType::Geneve.overhead(false), 100);
    assert_eq!(NetworkType::Geneve.overhead(true), 120);
    assert_eq!(NetworkType::Vxlan.overhead(false), 50);
    assert_eq!(NetworkType::Stt.overhead(false), 72);
}

#[test]
fn a_bare_path_is_a_unix_endpoint() {
    assert_eq!(parse(&["--ovs-socket=/tmp/db.sock"]).ovs_endpoint(), "unix:/tmp/db.sock");
    assert_eq!(parse(&[]).ovs_endpoint(), "unix:/run/openvswitch/db.sock");
}

#[test]
fn refused_ports_are_ranges_and_can_be_none() {
    let flags = parse(&["--refused-tcp-ports=1-3, 80", "--refused-udp-ports="]);
    assert_eq!(flags.refused_tcp_ports.0, [(1, 3), (80, 80)]);
    assert_eq!(flags.refused_udp_ports.0, []);
    let default = crate::gateway::Config::default();
    let flags = parse(&[]);
    assert_eq!(
        (flags.refused_tcp_ports.0, flags.refused_udp_ports.0),
        (default.refused_tcp, default.refused_udp)
    );
    for junk in ["x", "0", "70000", "3-1", "1-2-3"] {
        let argument = format!("--refused-tcp-ports={junk}");
        assert!(Flags::try_parse_from(["kube-ovn-daemon", argument.as_str()]).is_err(), "{junk}");
    }
}

#[test]
fn k_048_the_dns_cache_has_addresses() {
    let flags = parse(&["--node-local-dns-ip=169.254.20.10,fd00::10"]);
    assert_eq!(flags.node_local_dns_ip.0.len(), 2);
    assert!(parse(&["--node-local-dns-ip="]).node_local_dns_ip.0.is_empty());
    assert!(Flags::try_parse_from(["kube-ovn-daemon", "--node-local-dns-ip=x"]).is_err());
}

#[test]
fn k_049_the_node_is_named_by_either_variable() {
    let named = |arguments: &[&str]| parse(arguments).node_name();
    assert_eq!(named(&["--node-name=", "--kube-node-name=Older"]), "older");
    assert_eq!(named(&["--node-name=new", "--kube-node-name=older"]), "new");
    assert!(!named(&["--node-name=", "--kube-node-name="]).is_empty(), "the host's name");
}
