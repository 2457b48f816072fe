use super::*;
use crate::api::IpConfig;
use crate::conf;
use rstest::rstest;

fn configuration(version: &str, plugin: &str) -> NetConf {
    let text = format!(
        r#"{{"cniVersion":"{version}","name":"n","type":"{plugin}","server_socket":"/s","ipam":{{"server_socket":"/s"}}}}"#
    );
    conf::parse(text.as_bytes()).unwrap()
}

fn dual() -> CniResponse {
    let ip = |protocol: &str, ip: &str, cidr: &str, gateway: &str| IpConfig {
        protocol: protocol.into(),
        ip: ip.into(),
        cidr: cidr.into(),
        gateway: gateway.into(),
    };
    CniResponse {
        ips: vec![
            ip("IPv4", "10.16.0.5", "10.16.0.0/16", "10.16.0.1"),
            ip("IPv6", "fd00:10:16::5", "fd00:10:16::/112", "fd00:10:16::1"),
        ],
        mac_address: "00:00:00:11:22:33".into(),
        routes: vec![
            Route { dst: String::new(), gw: "10.16.0.1".into() },
            Route { dst: "10.16.0.0/16".into(), gw: String::new() },
            Route { dst: "::/0".into(), gw: "fd00:10:16::1".into() },
        ],
        mtu: 1400,
        nicname: "eth0".into(),
        ..CniResponse::default()
    }
}

#[test]
fn newest_shape() {
    let result = build(&configuration("1.1.0", "kube-ovn"), "/ns", &dual()).unwrap();
    assert_eq!(
        result,
        json!({
            "cniVersion": "1.1.0",
            "interfaces": [{"name": "eth0", "mac": "00:00:00:11:22:33", "mtu": 1400, "sandbox": "/ns"}],
            "ips": [
                {"interface": 0, "address": "10.16.0.5/16", "gateway": "10.16.0.1"},
                {"interface": 0, "address": "fd00:10:16::5/112", "gateway": "fd00:10:16::1"},
            ],
            "routes": [
                {"dst": "0.0.0.0/0", "gw": "10.16.0.1"},
                {"dst": "10.16.0.0/16"},
                {"dst": "::/0", "gw": "fd00:10:16::1"},
            ],
            "dns": {},
        })
    );
}

#[rstest]
#[case("0.3.0")]
#[case("0.3.1")]
#[case("0.4.0")]
fn middle_shape_says_the_family(#[case] version: &str) {
    let result = build(&configuration(version, "kube-ovn"), "/ns", &dual()).unwrap();
    assert_eq!(result["cniVersion"], version);
    assert_eq!(result["ips"][0]["version"], "4");
    assert_eq!(result["ips"][1]["version"], "6");
    assert_eq!(result["interfaces"][0].get("mtu"), None);
}

#[test]
fn shape_of_1_0() {
    let result = build(&configuration("1.0.0", "kube-ovn"), "/ns", &dual()).unwrap();
    assert_eq!(result["ips"][0].get("version"), None);
    assert_eq!(result["interfaces"][0].get("mtu"), None);
}

#[rstest]
#[case("0.1.0")]
#[case("0.2.0")]
fn oldest_shape(#[case] version: &str) {
    let result = build(&configuration(version, "kube-ovn"), "/ns", &dual()).unwrap();
    assert_eq!(
        result,
        json!({
            "cniVersion": version,
            "ip4": {
                "ip": "10.16.0.5/16", "gateway": "10.16.0.1",
                "routes": [{"dst": "0.0.0.0/0", "gw": "10.16.0.1"}, {"dst": "10.16.0.0/16"}],
            },
            "ip6": {
                "ip": "fd00:10:16::5/112", "gateway": "fd00:10:16::1",
                "routes": [{"dst": "::/0", "gw": "fd00:10:16::1"}],
            },
            "dns": {},
        })
    );
}

/// C025, C-12: an IPAM plugin answers without interfaces, and default routes are said.
#[test]
fn c_025_an_ipam_plugin_names_no_interface() {
    let mut response = dual();
    response.routes.clear();
    let result = build(&configuration("1.1.0", "macvlan"), "/ns", &response).unwrap();
    assert_eq!(
        result,
        json!({
            "cniVersion": "1.1.0",
            "ips": [
                {"address": "10.16.0.5/16", "gateway": "10.16.0.1"},
                {"address": "fd00:10:16::5/112", "gateway": "fd00:10:16::1"},
            ],
            "routes": [{"dst": "0.0.0.0/0", "gw": "10.16.0.1"}, {"dst": "::/0", "gw": "fd00:10:16::1"}],
            "dns": {},
        })
    );
}

/// C040, K037: the host's end is told too, behind the pod's, which addresses point at.
#[rstest]
#[case("0.3.1", false)]
#[case("1.0.0", false)]
#[case("1.1.0", true)]
fn c_040_the_hosts_end_has_no_sandbox(#[case] version: &str, #[case] says_mtu: bool) {
    let host = HostEnd { name: "0123456789ab_h".into(), mac: "0a:00:00:00:00:01".into(), mtu: 1400 };
    let response = CniResponse { host: Some(host), ..dual() };
    let result = build(&configuration(version, "kube-ovn"), "/ns", &response).unwrap();
    let mut wanted = json!({"name": "0123456789ab_h", "mac": "0a:00:00:00:00:01"});
    if says_mtu {
        wanted["mtu"] = 1400.into();
    }
    assert_eq!(result["interfaces"][1], wanted);
    assert_eq!(result["interfaces"].as_array().unwrap().len(), 2);
    for ip in result["ips"].as_array().unwrap() {
        let index = usize::try_from(ip["interface"].as_u64().unwrap()).unwrap();
        assert_eq!(result["interfaces"][index]["sandbox"], "/ns", "portmap leaves out all others");
    }
    // CHECK compares the pod's end, wherever it stands.
    let state = expected(&result, "eth0", "/ns");
    assert_eq!((state.mac_address.as_str(), state.addresses.len()), ("00:00:00:11:22:33", 2));
    // An IPAM plugin has no interfaces, results before 0.3.0 neither.
    for (version, plugin) in [("1.1.0", "macvlan"), ("0.2.0", "kube-ovn")] {
        let result = build(&configuration(version, plugin), "/ns", &response).unwrap();
        assert_eq!(result.get("interfaces"), None);
    }
}

/// An executable of before skips what it does not know; an agent of before, or Kube-OVN's, says nothing of it.
#[test]
fn c_040_either_side_may_be_older() {
    let host = HostEnd { name: "h".into(), ..HostEnd::default() };
    let said = serde_json::to_value(CniResponse { host: Some(host), ..dual() }).unwrap();
    assert_eq!(said["host"]["name"], "h");
    let silent = serde_json::to_value(dual()).unwrap();
    assert_eq!(silent.get("host"), None);
    for host in [json!(null), json!({"name": null}), json!({})] {
        let mut body = silent.clone();
        body["host"] = host;
        let response: CniResponse = serde_json::from_value(body).unwrap();
        let result = build(&configuration("1.1.0", "kube-ovn"), "/ns", &response).unwrap();
        assert_eq!(result["interfaces"].as_array().unwrap().len(), 1);
    }
}

/// C022: a plugin that is not the first passes on what the others made.
#[rstest]
#[case("0.3.1")]
#[case("1.1.0")]
fn c_022_a_previous_result_is_kept_and_ours_added(#[case] version: &str) {
    let previous = json!({
        "cniVersion": version,
        "interfaces": [{"name": "host0"}, {"name": "eth9", "sandbox": "/ns"}],
        "ips": [{"interface": 1, "address": "192.168.0.2/24"}],
        "routes": [{"dst": "192.168.0.0/16"}],
        "dns": {"nameservers": ["192.168.0.1"]},
    });
    let mut conf = configuration(version, "kube-ovn");
    conf.prev_result = Some(previous.clone());
    let result = build(&conf, "/ns", &dual()).unwrap();
    assert_eq!(result["interfaces"].as_array().unwrap()[..2], previous["interfaces"].as_array().unwrap()[..]);
    assert_eq!(result["interfaces"][2]["name"], "eth0");
    assert_eq!(result["ips"][0], previous["ips"][0]);
    assert_eq!((&result["ips"][1]["interface"], &result["ips"][2]["interface"]), (&json!(2), &json!(2)));
    assert_eq!(result["routes"].as_array().unwrap().len(), 4);
    assert_eq!(result["dns"], previous["dns"]);
    conf.prev_result = Some(json!([1]));
    assert_eq!(build(&conf, "/ns", &dual()).unwrap_err().code, 7);
    conf.prev_result = Some(json!({"ips": {}}));
    assert_eq!(build(&conf, "/ns", &dual()).unwrap_err().code, 7);
}

/// An agent of the time before `ips`.
#[test]
fn k_143_an_older_agents_answer_is_understood() {
    let older = r#"{"protocol":"Dual","address":"10.16.0.5,fd00::5","mac_address":"m","nicname":"eth0",
        "cidr":"10.16.0.0/16,fd00::/112","gateway":"10.16.0.1,fd00::1","mtu":1400,"error":""}"#;
    let result =
        build(&configuration("0.3.1", "kube-ovn"), "/ns", &serde_json::from_str(older).unwrap()).unwrap();
    assert_eq!(
        result["ips"][0],
        json!({"version": "4", "interface": 0, "address": "10.16.0.5/16", "gateway": "10.16.0.1"})
    );
    assert_eq!(result["ips"][1]["address"], "fd00::5/112");
    assert_eq!(result["routes"].as_array().unwrap().len(), 2);
}

#[test]
fn a_pod_without_address_still_has_an_interface() {
    let response =
        CniResponse { mac_address: "m".into(), nicname: "eth0".into(), mtu: 1500, ..CniResponse::default() };
    let result = build(&configuration("0.3.1", "kube-ovn"), "/ns", &response).unwrap();
    assert_eq!(result["interfaces"][0]["mac"], "m");
    assert_eq!(result.get("ips"), None);
}

#[test]
fn nonsense_from_the_agent_is_an_error_or_left_out() {
    let mut response = dual();
    response.ips[0].cidr = "10.16.0.0/33".into();
    assert_eq!(build(&configuration("1.1.0", "kube-ovn"), "/ns", &response).unwrap_err().code, 999);
    response.ips[0].cidr = "fd00::/64".into();
    assert_eq!(build(&configuration("1.1.0", "kube-ovn"), "/ns", &response).unwrap_err().code, 999);
    let mut response = dual();
    response.routes = vec![Route { dst: "nowhere".into(), gw: "10.16.0.1".into() }, Route::default()];
    let result = build(&configuration("1.1.0", "kube-ovn"), "/ns", &response).unwrap();
    assert_eq!(result.get("routes"), None);
}

#[test]
fn check_reads_back_what_add_printed() {
    let result = build(&configuration("1.1.0", "kube-ovn"), "/ns", &dual()).unwrap();
    let mut chained = result.clone();
    // A later plugin of the chain put its own interface in front.
    chained["interfaces"].as_array_mut().unwrap().insert(0, json!({"name": "host0", "mac": "other"}));
    for ip in chained["ips"].as_array_mut().unwrap() {
        ip["interface"] = 1.into();
    }
    for value in [result, chained] {
        let state = expected(&value, "eth0", "/ns");
        assert_eq!(state.mac_address, "00:00:00:11:22:33");
        assert_eq!(state.addresses, ["10.16.0.5/16", "fd00:10:16::5/112"]);
        assert_eq!(state.routes.len(), 3);
    }
}
