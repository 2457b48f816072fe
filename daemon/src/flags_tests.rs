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

#[test]
fn every_flag_of_the_contract_is_accepted() {
    for flag in [
        "install-cni-config=true",
        "cni-conf-dir=/a",
        "cni-conf-file=/a",
        "cni-conf-name=a",
        "iface=a",
        "host-tunnel-src=true",
        "dpdk-tunnel-iface=a",
        "mtu=1",
        "network-type=stt",
        "encap-checksum=true",
        "enable-mirror=true",
        "mirror-iface=a",
        "bind-socket=/a",
        "ovs-socket=a",
        "kubeconfig=a",
        "service-cluster-ip-range=a",
        "cluster-router=a",
        "node-switch=a",
        "default-provider-name=a",
        "default-interface-name=a",
        "external-gateway-config-ns=a",
        "external-gateway-switch=a",
        "enable-pprof=true",
        "pprof-port=1",
        "secure-serving=true",
        "tls-min-version=a",
        "tls-max-version=a",
        "tls-cipher-suites=a,b",
        "enable-metrics=true",
        "mac-learning-fallback=true",
        "enable-arp-detect-ip-conflict=true",
        "kubelet-dir=/a",
        "enable-verbose-conn-check=true",
        "tcp-conn-check-port=1",
        "udp-conn-check-port=1",
        "enable-tproxy=true",
        "ovs-vsctl-concurrency=1",
        "enable-ovn-ipsec=true",
        "cert-manager-ipsec-cert=true",
        "cert-manager-issuer-name=a",
        "ovn-ipsec-cert-duration=1",
        "set-vxlan-tx-off=true",
        "log-perm=640",
        "non-primary-cni-mode=true",
    ] {
        parse(&[&format!("--{flag}")]);
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
