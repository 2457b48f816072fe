use super::*;

#[test]
fn request_has_exactly_the_contracts_fields() {
    let value = serde_json::to_value(CniRequest::default()).unwrap();
    let mut keys: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
    keys.sort();
    let mut wanted = [
        "cni_type",
        "pod_name",
        "pod_namespace",
        "container_id",
        "net_ns",
        "if_name",
        "provider",
        "routes",
        "dns",
        "vf_driver",
        "deviceID",
        "vhost_user_socket_volume_name",
        "vhost_user_socket_name",
        "vhost_user_socket_consumption",
    ];
    wanted.sort_unstable();
    assert_eq!(keys, wanted);
}

#[test]
fn reads_what_a_go_client_sends() {
    let body = r#"{"cni_type":"kube-ovn","pod_name":"p","pod_namespace":"n","container_id":"c","net_ns":"/x",
        "if_name":"eth0","provider":"ovn","routes":null,"dns":{},"vf_driver":"","deviceID":"0000:01:00.2",
        "vhost_user_socket_volume_name":"","vhost_user_socket_name":"","vhost_user_socket_consumption":"",
        "from_the_future":{"a":[1]}}"#;
    let request: CniRequest = serde_json::from_str(body).unwrap();
    assert_eq!(request.pod_name, "p");
    assert_eq!(request.device_id, "0000:01:00.2");
    assert!(request.routes.is_empty());
}

#[test]
fn reads_what_a_go_server_answers() {
    let body = r#"{"ips":[{"protocol":"IPv4","ip":"10.16.0.5","cidr":"10.16.0.0/16","gateway":"10.16.0.1"}],
        "mac_address":"00:00:00:11:22:33","routes":null,"mtu":1400,"nicname":"eth0","dns":{},"error":""}"#;
    let response: CniResponse = serde_json::from_str(body).unwrap();
    assert_eq!(response.ips[0].gateway, "10.16.0.1");
    assert_eq!(response.mtu, 1400);
    let failed: CniResponse = serde_json::from_str(r#"{"error":"no address"}"#).unwrap();
    assert_eq!(failed, CniResponse::failure("no address"));
}

fn ip(protocol: &str, ip: &str, cidr: &str, gateway: &str) -> IpConfig {
    IpConfig { protocol: protocol.into(), ip: ip.into(), cidr: cidr.into(), gateway: gateway.into() }
}

/// Both forms, and either is enough for the executable.
#[test]
fn k_143_the_answer_has_the_older_form_too() {
    let v4 = ip("IPv4", "10.16.0.5", "10.16.0.0/16", "10.16.0.1");
    let v6 = ip("IPv6", "fd00::5", "fd00::/112", "fd00::1");
    for (ips, protocol, address, cidr, gateway) in [
        (vec![v4.clone()], "IPv4", "10.16.0.5", "10.16.0.0/16", "10.16.0.1"),
        (vec![v6.clone()], "IPv6", "fd00::5", "fd00::/112", "fd00::1"),
        (
            vec![v6.clone(), v4.clone()],
            "Dual",
            "10.16.0.5,fd00::5",
            "10.16.0.0/16,fd00::/112",
            "10.16.0.1,fd00::1",
        ),
    ] {
        let response = CniResponse { ips: ips.clone(), ..CniResponse::default() }.with_joined();
        let mut value = serde_json::to_value(&response).unwrap();
        for (key, expected) in
            [("protocol", protocol), ("address", address), ("cidr", cidr), ("gateway", gateway)]
        {
            assert_eq!(value[key], expected, "{key}");
        }
        assert_eq!(serde_json::from_value::<CniResponse>(value.clone()).unwrap().addresses(), ips);
        value.as_object_mut().unwrap().remove("ips");
        let mut read = serde_json::from_value::<CniResponse>(value).unwrap().addresses();
        let mut ips = ips;
        read.sort_by(|a, b| a.protocol.cmp(&b.protocol));
        ips.sort_by(|a, b| a.protocol.cmp(&b.protocol));
        assert_eq!(read, ips);
    }
    // No addresses, no keys: an agent of today says nothing new.
    let value = serde_json::to_value(CniResponse::failure("x").with_joined()).unwrap();
    assert_eq!(value.get("protocol"), None);
}

/// K141, and the two fields of K142: what executables of 1.7 and 1.8 send.
#[test]
fn k_141_a_request_of_the_older_shape_is_read() {
    let body = r#"{"cni_type":"kube-ovn","pod_name":"p","pod_namespace":"n","container_id":"c",
        "net_ns":"/proc/10542/ns/net","if_name":"eth0","provider":"ovn","deviceID":"","vf_driver":""}"#;
    let request: CniRequest = serde_json::from_str(body).unwrap();
    assert_eq!((request.if_name.as_str(), request.net_ns.as_str()), ("eth0", "/proc/10542/ns/net"));
}

#[test]
fn check_is_one_flat_object() {
    let request = CheckRequest {
        request: CniRequest { container_id: "c".into(), ..CniRequest::default() },
        expected: ExpectedState { mac_address: "m".into(), ..ExpectedState::default() },
    };
    let value = serde_json::to_value(&request).unwrap();
    assert_eq!(value["container_id"], "c");
    assert_eq!(serde_json::from_value::<CheckRequest>(value).unwrap(), request);
}
