use super::*;
use crate::ovs::Discipline;
use rstest::rstest;

fn request() -> CniRequest {
    CniRequest {
        cni_type: "kube-ovn".into(),
        pod_name: "a-0".into(),
        pod_namespace: "web".into(),
        container_id: "c".into(),
        net_ns: "/run/netns/x".into(),
        if_name: "eth0".into(),
        provider: "ovn".into(),
        ..CniRequest::default()
    }
}

fn pod(provider: &str, annotations: &[(&str, &str)]) -> PodFacts {
    PodFacts {
        namespace: "web".into(),
        name: "a-0".into(),
        uid: "uid-1".into(),
        annotations: annotations
            .iter()
            .map(|(key, value)| (crds::keys::pod_key(provider, key), (*value).to_owned()))
            .collect(),
        ..PodFacts::default()
    }
}

const READY: &[(&str, &str)] = &[
    ("allocated", "true"),
    ("routed", "true"),
    ("ip_address", "10.16.0.5,fd00::5"),
    ("mac_address", "0a:58:0a:10:00:05"),
    ("cidr", "10.16.0.0/16,fd00::/112"),
    ("gateway", "10.16.0.1,fd00::1"),
    ("logical_switch", "ovn-default"),
];

fn without(key: &str) -> Vec<(&'static str, &'static str)> {
    READY.iter().copied().filter(|(k, _)| *k != key).collect()
}

fn with(key: &'static str, value: &'static str) -> Vec<(&'static str, &'static str)> {
    let mut list = without(key);
    list.push((key, value));
    list
}

fn ready(readiness: Readiness) -> Wanted {
    match readiness {
        Readiness::Ready(wanted) => *wanted,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_routed_dual_stack_pod_is_ready() {
    let wanted = ready(readiness(&request(), &pod("ovn", READY)));
    assert_eq!(wanted.port_name, "a-0.web");
    assert_eq!(wanted.subnet, "ovn-default");
    assert_eq!(
        wanted.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["10.16.0.5/16", "fd00::5/112"]
    );
    assert_eq!(wanted.gateways.len(), 2);
    assert!(wanted.default_route && wanted.is_ovn && wanted.unsupported.is_empty());
}

#[rstest]
#[case("ip_address", Stage::WaitAddress)]
#[case("mac_address", Stage::WaitAddress)]
#[case("cidr", Stage::WaitAddress)]
#[case("routed", Stage::WaitRoute)]
fn a_missing_annotation_is_waited_for(#[case] key: &str, #[case] stage: Stage) {
    match readiness(&request(), &pod("ovn", &without(key))) {
        Readiness::Waiting(at, _) => assert_eq!(at, stage),
        other => panic!("{other:?}"),
    }
}

#[rstest]
#[case("ip_address", "10.17.0.5")]
#[case("ip_address", "ten")]
#[case("mac_address", "junk")]
fn a_wrong_annotation_may_still_be_corrected(#[case] key: &'static str, #[case] value: &'static str) {
    let state = readiness(&request(), &pod("ovn", &with(key, value)));
    assert!(matches!(state, Readiness::Waiting(Stage::WaitAddress, _)), "{state:?}");
}

#[test]
fn c_027_what_the_runtime_asks_for_is_what_the_pod_has_or_an_error() {
    let asked = |ips: &[&str], mac: &str, cni_type: &str| {
        let request = CniRequest {
            runtime_ips: ips.iter().map(|ip| (*ip).to_owned()).collect(),
            runtime_mac: mac.into(),
            cni_type: cni_type.into(),
            ..request()
        };
        readiness(&request, &pod("ovn", READY))
    };
    let wanted = ready(asked(&["10.16.0.5/16", "fd00::5"], "0A:58:0A:10:00:05", "kube-ovn"));
    assert_eq!(wanted.addresses.len(), 2);
    ready(asked(&["10.16.0.5"], "02:00:00:00:00:09", "macvlan"));
    for (ips, mac, words) in [
        (&["10.16.0.6/16"][..], "", "asks for 10.16.0.6/16, and the controller gave 10.16.0.5, fd00::5"),
        (&["10.16.0.5", "junk"], "", "asks for junk"),
        (&[], "02:00:00:00:00:09", "runtimeConfig.mac asks for 02:00:00:00:00:09"),
        (&[], "junk", "runtimeConfig.mac asks for junk"),
    ] {
        match asked(ips, mac, "kube-ovn") {
            Readiness::Failed(error) => {
                assert!(error.message.contains(words), "{}", error.message);
                let answer = error.response();
                assert!(serde_json::to_string(&answer).unwrap().contains("k8s.v1.cni.cncf.io/networks"));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_single_family_pod_in_a_dual_stack_subnet_gets_one_gateway() {
    let wanted = ready(readiness(&request(), &pod("ovn", &with("ip_address", "fd00::5"))));
    assert_eq!(wanted.gateways, ["fd00::1".parse::<IpAddr>().unwrap()]);
    assert_eq!(wanted.cidrs.len(), 1);
}

#[test]
fn a_pod_with_a_mac_alone_needs_no_route() {
    let annotations = [("allocated", "true"), ("mac_address", "0a:58:0a:10:00:05")];
    let wanted = ready(readiness(&request(), &pod("ovn", &annotations)));
    assert!(wanted.addresses.is_empty() && wanted.gateways.is_empty());
}

#[test]
fn routes_come_from_the_request_and_the_annotation() {
    let mut request = request();
    request.routes = vec![ApiRoute { dst: "192.168.0.0/24".into(), gw: "10.16.0.9".into() }];
    let annotations = with("routes", r#"[{"gw":"10.16.0.7"},{"dst":"bad","gw":"10.16.0.7"}]"#);
    let wanted = ready(readiness(&request, &pod("ovn", &annotations)));
    assert_eq!(wanted.routes.len(), 2);
    assert_eq!(wanted.routes[1].0, None);
    assert_eq!(wanted.bad_routes, [r#"dst="bad" gw="10.16.0.7""#], "their owner is told");
    let bad = pod("ovn", &with("routes", "{"));
    assert!(
        matches!(readiness(&request, &bad), Readiness::Failed(error) if error.stage == Stage::ParseRoutes)
    );
}

#[test]
fn a_second_interface_of_one_attachment_carries_its_name() {
    let mut request = request();
    request.provider = "nad.web.ovn".into();
    request.if_name = "net2".into();
    let mut annotations = with("routed", "true");
    annotations.retain(|(key, _)| *key != "routed");
    let wanted = ready(readiness(&request, &pod("nad.web.ovn.net2", &annotations)));
    assert_eq!(wanted.port_name, "a-0.web.nad.web.ovn.net2");
    // Only the interface with the default route waits for `routed`.
    assert!(!wanted.default_route && wanted.is_ovn);
}

#[test]
fn a_delegating_plugin_gets_addresses_only() {
    let mut request = request();
    request.cni_type = "macvlan".into();
    request.provider = "macvlan.web".into();
    let wanted = ready(readiness(&request, &pod("macvlan.web", &without("routed"))));
    assert!(!wanted.is_ovn);
}

/// An executable of an older Kube-OVN says no type.
#[test]
fn a_call_without_a_type_is_ours() {
    let request = CniRequest { cni_type: String::new(), ..request() };
    assert!(ready(readiness(&request, &pod("ovn", READY))).is_ovn);
}

/// D73: as long as the pod lives it keeps its network.
#[test]
fn wrong_annotations_do_not_keep_a_running_pod_from_its_interface() {
    let mut annotations = READY.to_vec();
    annotations.extend([("egress_rate", "abc"), ("routes", "{")]);
    let (request, pod) = (request(), pod("ovn", &annotations));
    assert!(matches!(readiness(&request, &pod), Readiness::Failed(_)));
    let before = PortQos { policing_rate: 3000, policing_burst: 2400, discipline: None };
    let wanted = ready(readiness_again(&request, &pod, before.clone()));
    assert_eq!((wanted.qos, wanted.routes), (before, Vec::new()));
    // Limits that can be read are as they say.
    let wanted = ready(readiness_again(&request, &self::pod("ovn", READY), wanted_limits()));
    assert_eq!(wanted.qos, PortQos::default());
}

fn wanted_limits() -> PortQos {
    PortQos { policing_rate: 1, policing_burst: 1, discipline: None }
}

#[test]
fn a_virtual_machine_keeps_its_port() {
    let wanted = ready(readiness(&request(), &pod("ovn", &with("virtualmachine", "vm1"))));
    assert_eq!(wanted.port_name, "vm1.web");
}

#[test]
fn rates_become_the_contracts_columns() {
    let mut annotations = READY.to_vec();
    annotations.extend([("egress_rate", "3"), ("ingress_rate", "2"), ("loss", "1.5")]);
    let wanted = ready(readiness(&request(), &pod("ovn", &annotations)));
    assert_eq!((wanted.qos.policing_rate, wanted.qos.policing_burst), (3000, 2400));
    assert_eq!(wanted.qos.discipline, Some(Discipline::Htb { max_rate: 2_000_000, burst: 200_000 }));
    assert!(wanted.qos_notes[0].contains("latency, limit, loss"), "{:?}", wanted.qos_notes);
    assert!(wanted.unsupported.is_empty());
}

#[test]
fn k_164_a_limit_that_cant_be_read_fails_the_add() {
    let mut annotations = READY.to_vec();
    annotations.push(("egress_rate", "abc"));
    match readiness(&request(), &pod("ovn", &annotations)) {
        Readiness::Failed(error) => {
            assert_eq!(error.code, 7);
            assert!(
                error.message.contains("egress_rate") && error.message.contains("abc"),
                "{}",
                error.message
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn providers_must_have_a_subnet() {
    let subnets =
        [SubnetFacts { name: "s".into(), provider: "nad.web.ovn".into(), ..SubnetFacts::default() }];
    let mut request = request();
    assert_eq!(check_provider(&request, subnets.iter()).unwrap(), None);
    request.provider = "nad.web.ovn.eth0".into();
    assert_eq!(check_provider(&request, subnets.iter()).unwrap(), Some("s".into()));
    request.provider = "other.web.ovn".into();
    assert_eq!(check_provider(&request, subnets.iter()).unwrap_err().stage.status(), 400);
}

proptest::proptest! {
    /// Whatever the annotations say, the answer is an answer.
    #[test]
    fn no_annotation_can_hurt(values in proptest::collection::vec(("[a-z_]{1,14}|ip_address|cidr|gateway|mac_address|routes|routed", ".{0,40}"), 0..12)) {
        let annotations: Vec<(&str, &str)> =
            values.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let _ = readiness(&request(), &pod("ovn", &annotations));
    }

    /// Nor can a combination of well-formed ones that do not fit together.
    #[test]
    fn addresses_always_lie_in_their_prefix(
        ip in "10\\.1[67]\\.0\\.[1-9]|fd0[01]::[1-9]",
        cidr in "10\\.1[67]\\.0\\.0/(16|24)|fd0[01]::/112|10\\.16\\.0\\.0/16,fd00::/64",
    ) {
        let mut annotations: Vec<(&str, &str)> =
            READY.iter().copied().filter(|(key, _)| !matches!(*key, "ip_address" | "cidr")).collect();
        annotations.extend([("ip_address", ip.as_str()), ("cidr", cidr.as_str())]);
        if let Readiness::Ready(wanted) = readiness(&request(), &pod("ovn", &annotations)) {
            for (address, cidr) in wanted.addresses.iter().zip(&wanted.cidrs) {
                proptest::prop_assert!(cidr.contains(&address.addr()));
            }
            proptest::prop_assert!(wanted.gateways.iter().all(|gateway| wanted.addresses.iter().any(|net| net.addr().is_ipv6() == gateway.is_ipv6())));
        }
    }
}
