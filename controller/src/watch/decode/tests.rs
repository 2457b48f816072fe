//! What objects keep of their JSON, and what becomes of bad ones.

use super::*;
use crate::objects::{IPTABLES_EIPS, NadKind};
use rstest::rstest;
use serde_json::json;

fn decode(kind: Kind, json: serde_json::Value) -> Result<Object, BadObject> {
    Decoder::new(kind).object(&json.to_string())
}

fn pod_json() -> serde_json::Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "web-0", "namespace": "shop", "uid": "u1", "resourceVersion": "42", "generation": 1,
            "labels": {"app": "web"},
            "annotations": {
                "ovn.kubernetes.io/ip_address": "10.16.0.9",
                "net1.shop.ovn.kubernetes.io/logical_switch": "s",
                "k8s.v1.cni.cncf.io/networks": "net1",
                "v1.multus-cni.io/default-network": "x",
                "kubectl.kubernetes.io/last-applied-configuration": "{…}",
                "prometheus.io/scrape": "true"
            },
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "u0", "controller": true}],
            "deletionTimestamp": "2026-11-30T01:02:03Z",
            "deletionGracePeriodSeconds": 30,
            "finalizers": ["a/b"],
            "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}]
        },
        "spec": {"nodeName": "n1", "hostNetwork": true, "restartPolicy": "Never", "containers": [{"name": "c"}]},
        "status": {"phase": "Failed", "reason": "Evicted", "containerStatuses": []}
    })
}

#[test]
fn a_pod_keeps_what_is_used() {
    let Object::Pod(pod) = decode(Kind::Pod, pod_json()).unwrap() else { panic!() };
    assert_eq!((&*pod.node, &*pod.phase, &*pod.reason), ("n1", "Failed", "Evicted"));
    assert!(pod.host_network && pod.restart_never && !pod.restart_always);
    assert_eq!(pod.meta.deleting_at, Some(1_796_000_523 + 30));
    assert_eq!(&*pod.meta.owners[0].kind, "StatefulSet");
    assert_eq!(
        pod.meta.annotations.keys().map(|key| &**key).collect::<Vec<_>>(),
        [
            "k8s.v1.cni.cncf.io/networks",
            "net1.shop.ovn.kubernetes.io/logical_switch",
            "ovn.kubernetes.io/ip_address",
            "v1.multus-cni.io/default-network"
        ]
    );
}

#[test]
fn absent_and_null_fields_are_defaults() {
    let bare = json!({"metadata": {"name": "a", "namespace": "b", "uid": "u", "labels": null, "finalizers": null,
        "annotations": null, "ownerReferences": null, "deletionTimestamp": null}, "spec": {"nodeName": null}, "status": null});
    let Object::Pod(pod) = decode(Kind::Pod, bare).unwrap() else { panic!() };
    assert!(pod.restart_always, "Always is the API's default");
    assert!(pod.node.is_empty() && pod.meta.labels.is_empty() && pod.meta.deleting_at.is_none());
}

#[test]
fn a_node_keeps_internal_addresses_in_order_and_readiness() {
    let node = json!({"metadata": {"name": "n1", "uid": "u"}, "status": {
        "addresses": [{"type": "InternalIP", "address": "192.0.2.9"}, {"type": "Hostname", "address": "n1"},
                      {"type": "InternalIP", "address": "2001:db8::9"}],
        "conditions": [{"type": "MemoryPressure", "status": "True"}, {"type": "Ready", "status": "True"}]}});
    let Object::Node(node) = decode(Kind::Node, node).unwrap() else { panic!() };
    assert!(node.ready);
    assert_eq!(node.internal_ips.iter().map(|ip| &**ip).collect::<Vec<_>>(), ["192.0.2.9", "2001:db8::9"]);
}

#[test]
fn custom_kinds_decode() {
    let subnet =
        json!({"metadata": {"name": "s", "uid": "u", "generation": 4}, "spec": {"cidrBlock": "10.1.0.0/16"}});
    let Object::Subnet(subnet) = decode(Kind::Subnet, subnet).unwrap() else { panic!() };
    assert_eq!((subnet.spec.cidr_block.as_str(), subnet.meta.generation), ("10.1.0.0/16", 4));
    let vpc = json!({"metadata": {"name": "v", "uid": "u"}, "status": {"standby": "not a boolean"}});
    assert!(
        matches!(decode(Kind::Vpc, vpc).unwrap(), Object::Vpc(_)),
        "an odd status is no reason to lose a Vpc"
    );
    let vlan = json!({"metadata": {"name": "v", "uid": "u"}, "spec": 7, "status": {"conditions": 3}});
    assert!(matches!(decode(Kind::Other("vlans"), vlan).unwrap(), Object::Other("vlans", _)));
}

#[test]
fn an_iptables_eip_shows_its_address() {
    let eip = |spec: serde_json::Value, status: serde_json::Value| {
        let json = json!({"metadata": {"name": "e", "uid": "u"}, "spec": spec, "status": status});
        decode(Kind::Other(IPTABLES_EIPS), json).map(|object| match object {
            Object::Other(_, other) => other.nat_address.clone(),
            other => panic!("{other:?}"),
        })
    };
    let full = eip(
        json!({"v4ip": " 172.20.0.2", "v6ip": "fd20::2", "externalSubnet": "wan", "natGwDp": "gw"}),
        json!({"ip": "172.20.0.2", "conditions": 3}),
    );
    let address = full.unwrap().unwrap();
    let parts = [&address.subnet, &address.given, &address.v4, &address.v6].map(|text| text.to_string());
    assert_eq!(parts, ["wan", "172.20.0.2", "172.20.0.2", "fd20::2"]);
    assert_eq!(eip(json!({"externalSubnet": "wan"}), json!(null)).unwrap(), None);
    // Its last good version stays; nobody takes its address for free.
    assert!(eip(json!({"v4ip": 7}), json!({})).unwrap_err().problem.contains("spec"));
    assert!(eip(json!({}), json!({"ip": []})).unwrap_err().problem.contains("status"));
    let other = json!({"metadata": {"name": "f", "uid": "u"}, "spec": {"v4ip": "172.20.0.2"}});
    let Object::Other(_, other) = decode(Kind::Other("iptables-fip-rules"), other).unwrap() else { panic!() };
    assert_eq!(other.nat_address, None);
}

#[rstest]
#[case(r#"{"type":"kube-ovn"}"#, NadKind::Ovn)]
#[case(r#"{"plugins":[{"type":"tuning"},{"type":"kube-ovn"}]}"#, NadKind::Ovn)]
#[case(r#"{"type":"macvlan","ipam":{"type":"kube-ovn"}}"#, NadKind::Ipam)]
#[case(r#"{"type":"macvlan","ipam":{"type":"dhcp"}}"#, NadKind::Other)]
#[case("not JSON", NadKind::Other)]
fn definitions_are_ours_or_not(#[case] config: &str, #[case] kind: NadKind) {
    let object = json!({"metadata": {"name": "a", "namespace": "b", "uid": "u"}, "spec": {"config": config}});
    let Object::Nad(nad) = decode(Kind::Nad, object).unwrap() else { panic!() };
    assert_eq!(nad.kind, kind);
}

#[rstest]
#[case(Kind::Deployment, json!({}), (1, 0, 1, 0))]
#[case(Kind::Deployment, json!({"replicas": 10}), (10, 0, 3, 2))]
#[case(Kind::Deployment, json!({"replicas": 4, "strategy": {"type": "Recreate"}}), (4, 0, 0, 4))]
#[case(Kind::Deployment, json!({"replicas": 4, "strategy": {"rollingUpdate": {"maxSurge": "50%", "maxUnavailable": 0}}}), (4, 0, 2, 0))]
#[case(Kind::Deployment, json!({"replicas": 2, "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "25%"}}}), (2, 0, 0, 1))]
#[case(Kind::StatefulSet, json!({"replicas": 3, "ordinals": {"start": 5}}), (3, 5, 0, 3))]
fn workloads_keep_what_retention_needs(
    #[case] kind: Kind,
    #[case] spec: serde_json::Value,
    #[case] expected: (u64, u64, u64, u64),
) {
    let mut spec = spec;
    let annotations = json!({"ovn.kubernetes.io/ip_retain": "never", "prometheus.io/scrape": "true"});
    spec["template"] = json!({"metadata": {"annotations": annotations}});
    let object = json!({"metadata": {"name": "w", "namespace": "n", "uid": "u"}, "spec": spec});
    let Object::Workload(found, workload) = decode(kind, object).unwrap() else { panic!() };
    let numbers = (workload.replicas, workload.start, workload.surge, workload.unavailable);
    assert_eq!((found, numbers), (kind, expected));
    assert_eq!(workload.template.len(), 1);
}

#[rstest]
#[case(Kind::Pod, json!({"metadata": {"name": "a", "namespace": "b", "uid": "u"}, "spec": {"nodeName": 7}}), "b/a")]
#[case(Kind::Pod, json!({"metadata": {"name": "a", "namespace": "b"}}), "b/a")]
#[case(Kind::Pod, json!({"metadata": {"name": "a", "namespace": "b", "uid": "u", "deletionTimestamp": "soon"}}), "b/a")]
#[case(Kind::Pod, json!({"metadata": {"name": "a", "namespace": "b", "uid": "u", "labels": 3}}), "b/a")]
#[case(Kind::Subnet, json!({"metadata": {"name": "s", "uid": "u"}, "spec": {"cidrBlock": {}}}), "s")]
#[case(Kind::Node, json!({"metadata": {}}), "without name")]
#[case(Kind::Node, json!([1, 2]), "without name")]
fn bad_objects_are_named(#[case] kind: Kind, #[case] json: serde_json::Value, #[case] name: &str) {
    let bad = decode(kind, json).unwrap_err();
    assert!(bad.object.contains(name), "{bad}");
    assert!(!bad.problem.is_empty());
}

#[test]
fn what_pods_have_in_common_is_in_memory_once() {
    let mut decoder = Decoder::new(Kind::Pod);
    let mut one = || match decoder.object(&pod_json().to_string()).unwrap() {
        Object::Pod(pod) => pod,
        other => panic!("{other:?}"),
    };
    let (a, b) = (one(), one());
    assert!(Arc::ptr_eq(&a.node, &b.node) && Arc::ptr_eq(&a.meta.namespace, &b.meta.namespace));
    assert!(
        Arc::ptr_eq(&a.meta.owners, &b.meta.owners) && Arc::ptr_eq(&a.meta.finalizers, &b.meta.finalizers)
    );
    assert!(std::ptr::eq(a.meta.labels.get("app").unwrap(), b.meta.labels.get("app").unwrap()));
}

#[test]
fn a_deletion_needs_no_valid_spec() {
    let json = json!({"metadata": {"name": "s", "uid": "u"}, "spec": {"cidrBlock": {}}}).to_string();
    assert_eq!(&*Decoder::new(Kind::Subnet).metadata(&json).unwrap().name, "s");
}
