use super::*;
use rstest::rstest;
use std::collections::BTreeMap;

fn wanted(addresses: &[&str]) -> Wanted {
    Wanted {
        pod_uid: "u".into(),
        port_name: "a.web".into(),
        if_name: "eth0".into(),
        subnet: "s".into(),
        mac: "0a:00:00:00:00:01".parse().unwrap(),
        addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        cidrs: Vec::new(),
        gateways: addresses
            .iter()
            .map(|text| if text.contains(':') { "fd00::1" } else { "10.16.0.1" }.parse().unwrap())
            .collect(),
        default_route: true,
        routes: Vec::new(),
        bad_routes: Vec::new(),
        is_ovn: true,
        qos: crate::ovs::PortQos::default(),
        qos_notes: Vec::new(),
        unsupported: Vec::new(),
        provider: "ovn".into(),
        nic: NicKind::Veth,
        provider_network: None,
        migrating: false,
    }
}

fn request() -> CniRequest {
    CniRequest { container_id: "0123456789abcdef".into(), if_name: "eth0".into(), ..CniRequest::default() }
}

fn network() -> NodeNetwork {
    NodeNetwork { mtu: 1400, userspace: true, node_networks: BTreeMap::new() }
}

fn underlay() -> SubnetFacts {
    SubnetFacts { name: "lan".into(), vlan: "v100".into(), ..SubnetFacts::default() }
}

fn node(label: &str) -> NodeFacts {
    let key = crds::keys::provider_network_key("physnet", "mtu");
    NodeFacts { labels: BTreeMap::from([(key, label.to_owned())]), ..NodeFacts::default() }
}

fn decide(
    wanted: &Wanted,
    subnet: &SubnetFacts,
    node: Option<&NodeFacts>,
) -> Result<Target<'static>, PlugError> {
    let request = Box::leak(Box::new(request()));
    let wanted = Box::leak(Box::new(wanted.clone()));
    Target::new(request, wanted, subnet, &network(), node, true)
}

/// Subnet, provider network's label, tunnels: in this order.
#[rstest]
#[case(1350, Some("physnet"), Some("9000"), Some(1350))]
#[case(0, None, Some("9000"), Some(1400))]
#[case(0, Some("physnet"), Some("9000"), Some(9000))]
#[case(0, Some("other"), Some("9000"), None)]
fn the_mtu_comes_from_the_first_that_knows(
    #[case] subnet_mtu: u32,
    #[case] provider: Option<&str>,
    #[case] label: Option<&str>,
    #[case] expected: Option<u32>,
) {
    let mut wanted = wanted(&["10.16.0.5/16"]);
    wanted.provider_network = provider.map(str::to_owned);
    let subnet = SubnetFacts { mtu: subnet_mtu, ..underlay() };
    let node = label.map(node);
    assert_eq!(decide(&wanted, &subnet, node.as_ref()).unwrap().interface.mtu, expected);
}

#[test]
fn a_node_that_is_not_known_tells_no_mtu() {
    let mut wanted = wanted(&["10.16.0.5/16"]);
    decide(&wanted, &underlay(), None).unwrap();
    wanted.provider_network = Some("physnet".into());
    assert_eq!(decide(&wanted, &underlay(), None).unwrap_err().stage, Stage::GetNode);
    decide(&wanted, &SubnetFacts { mtu: 1400, ..underlay() }, None).unwrap();
}

/// Where gateways have to answer there is one for each address; an interface without addresses needs none.
#[rstest]
#[case(&["10.16.0.5/16"], &["10.16.0.1"], true)]
#[case(&["fd00::5/112"], &["fd00::1"], true)]
#[case(&["10.16.0.5/16", "fd00::5/112"], &["fd00::1", "10.16.0.1"], true)]
#[case(&["10.16.0.5/16", "fd00::5/112"], &["10.16.0.1"], false)]
#[case(&["10.16.0.5/16", "fd00::5/112"], &["fd00::1"], false)]
#[case(&["10.16.0.5/16"], &["10.16.0.1", "10.16.0.2"], false)]
#[case(&["10.16.0.5/16", "10.16.0.6/16"], &["10.16.0.1"], false)]
#[case(&["10.16.0.5/16"], &[], false)]
#[case(&[], &[], true)]
fn each_address_has_its_gateway(#[case] addresses: &[&str], #[case] gateways: &[&str], #[case] fits: bool) {
    let mut wanted = wanted(addresses);
    wanted.gateways = gateways.iter().map(|text| text.parse().unwrap()).collect();
    let refused = decide(&wanted, &SubnetFacts::default(), None).unwrap().has_its_gateways().err();
    assert_eq!(refused.is_none(), fits, "{refused:?}");
    if let Some(error) = refused {
        let error = error.about(&request());
        assert_eq!(error.stage, Stage::ConfigureNic);
        assert!(
            error.message.contains("subnet s") && error.remedy.contains("spec.gateway of subnet s"),
            "{error:?}"
        );
        assert!(
            gateways.iter().any(|ip| error.message.contains(ip)) || error.message.contains("gateways []"),
            "{error}"
        );
    }
    // Nobody is asked: nothing has to be there.
    let silent = SubnetFacts { disable_gateway_check: true, ..SubnetFacts::default() };
    decide(&wanted, &silent, None).unwrap().has_its_gateways().unwrap();
    wanted.migrating = true;
    decide(&wanted, &SubnetFacts::default(), None).unwrap().has_its_gateways().unwrap();
}

#[test]
fn a_subnet_that_is_routed_has_the_tunnels_mtu() {
    let mut wanted = wanted(&["10.16.0.5/16"]);
    wanted.provider_network = Some("physnet".into());
    let node = node("9000");
    let logical = SubnetFacts { logical_gateway: true, ..underlay() };
    assert_eq!(decide(&wanted, &logical, Some(&node)).unwrap().interface.mtu, Some(1400));
}

#[rstest]
#[case("junk")]
#[case("0")]
#[case("-5")]
fn a_label_that_is_no_mtu_is_an_error(#[case] label: &str) {
    let mut wanted = wanted(&["10.16.0.5/16"]);
    wanted.provider_network = Some("physnet".into());
    assert_eq!(decide(&wanted, &underlay(), Some(&node(label))).unwrap_err().stage, Stage::Mtu);
}

#[test]
fn u_44_ipv6_below_its_smallest_mtu_is_refused_with_the_reason() {
    let subnet = SubnetFacts { name: "s".into(), mtu: 1200, ..SubnetFacts::default() };
    let error = decide(&wanted(&["10.16.0.5/16", "fd00::5/112"]), &subnet, None).unwrap_err();
    assert!(error.message.contains("1280") && !error.remedy.is_empty(), "{error}");
    assert_eq!(decide(&wanted(&["10.16.0.5/16"]), &subnet, None).unwrap().interface.mtu, Some(1200));
}

#[test]
fn a_node_network_must_be_known() {
    let subnet = SubnetFacts { node_network: "storage".into(), ..SubnetFacts::default() };
    let (request, wanted) = (request(), wanted(&["10.16.0.5/16"]));
    let mut network = network();
    let target = |network: &NodeNetwork| {
        Target::new(&request, &wanted, &subnet, network, None, true).map(|target| target.encap_ip)
    };
    assert_eq!(target(&network).unwrap_err().stage, Stage::EncapIp);
    let ip: IpAddr = "10.9.0.1".parse().unwrap();
    network.node_networks.insert("storage".into(), ip);
    assert_eq!(target(&network).unwrap(), Some(ip));
}

#[test]
fn u2o_pods_leave_by_the_interconnection_and_both_gateways_are_asked() {
    let mut subnet = SubnetFacts { u2o_interconnection: true, ..underlay() };
    let wanted = wanted(&["10.16.0.5/16"]);
    assert_eq!(decide(&wanted, &subnet, None).unwrap_err().stage, Stage::U2oAddress);
    subnet.u2o_interconnection_ip = "10.16.0.9,fd00::9".into();
    let target = decide(&wanted, &subnet, None).unwrap();
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    assert_eq!(target.interface.default_gateways, [ip("10.16.0.9")]);
    assert_eq!(target.gateways, [ip("10.16.0.9"), ip("10.16.0.1")]);
    assert!(target.one_family_answers(&[]));
    for silent in ["10.16.0.9", "10.16.0.1"] {
        assert!(!target.one_family_answers(&[ip(silent)]), "{silent} has to answer too");
    }
}

#[test]
fn one_family_is_enough_for_a_pod_of_two() {
    let mut subnet = SubnetFacts { u2o_interconnection: true, ..underlay() };
    subnet.u2o_interconnection_ip = "10.16.0.9,fd00::9".into();
    let target = decide(&wanted(&["10.16.0.5/16", "fd00::5/112"]), &subnet, None).unwrap();
    for (silent, enough) in [
        (&["fd00::9"][..], true),
        (&["fd00::1", "fd00::9"], true),
        (&["10.16.0.9"], true),
        (&["10.16.0.9", "fd00::9"], false),
        (&["10.16.0.1", "fd00::9", "fd00::1"], false),
    ] {
        let silent: Vec<IpAddr> = silent.iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(target.one_family_answers(&silent), enough, "{silent:?}");
    }
}

#[test]
fn duplicates_are_looked_for_where_they_can_be() {
    let wanted = wanted(&["10.16.0.5/16"]);
    let overlay = decide(&wanted, &SubnetFacts::default(), None).unwrap();
    assert!(!overlay.detect && overlay.interface.no_dad && overlay.localnet.is_none());
    let physical = decide(&wanted, &underlay(), None).unwrap();
    assert!(physical.detect && !physical.interface.no_dad);
    assert_eq!(physical.localnet.as_deref(), Some("patch-localnet.lan-to-br-int"));
    let (request, network) = (request(), network());
    let off = Target::new(&request, &wanted, &underlay(), &network, None, false).unwrap();
    assert!(!off.detect && !off.interface.no_dad, "the kernel's own detection stays");
    assert!(off.late && physical.late && !overlay.late, "which needs the physical network");
    let running = physical.of_a_running_pod();
    assert!(!running.late && !running.detect && running.check == GatewayCheck::Off);
}

#[test]
fn a_machine_on_the_move_has_its_address_elsewhere_still() {
    let mut wanted = wanted(&["10.16.0.5/16"]);
    wanted.migrating = true;
    let target = decide(&wanted, &underlay(), None).unwrap();
    assert!(!target.detect && target.interface.no_dad);
    assert_eq!(target.check, GatewayCheck::Off);
}

#[rstest]
#[case(false, GatewayCheck::Required)]
#[case(true, GatewayCheck::BestEffort)]
fn the_gateways_silence_counts_unless_the_subnet_says_otherwise(
    #[case] disabled: bool,
    #[case] expected: GatewayCheck,
) {
    let mut wanted = wanted(&["10.16.0.5/16"]);
    for subnet in [SubnetFacts::default(), underlay()] {
        let subnet = SubnetFacts { disable_gateway_check: disabled, ..subnet };
        assert_eq!(decide(&wanted, &subnet, None).unwrap().check, expected);
    }
    wanted.addresses.clear();
    assert_eq!(decide(&wanted, &underlay(), None).unwrap().check, GatewayCheck::Off);
}

#[test]
fn k_157_internal_ports_have_the_contracts_name() {
    let mut wanted = wanted(&["10.16.0.5/16"]);
    assert_eq!(decide(&wanted, &SubnetFacts::default(), None).unwrap().port, "0123456789ab_h");
    wanted.nic = NicKind::Internal;
    let target = decide(&wanted, &SubnetFacts::default(), None).unwrap();
    assert_eq!(target.port, "0123456789ab_c");
    assert_eq!(target.device_inside(), "eth0");
    let kernel = Target { userspace: false, ..target };
    assert_eq!(kernel.device_inside(), "0123456789ab_c", "the kernel's datapath knows it by this name");
}
