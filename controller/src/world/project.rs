//! Projections of Kubernetes objects: pure functions from an object (and the
//! wall clock, for grace periods) to what compile may see. Equal projections
//! mean that nothing has to be compiled.

use std::net::IpAddr;
use std::sync::Arc;

use crds::keys;

use crate::objects::{Meta, Node, Pod, StringMap};
use crate::view::{INSTANCE, NodeView, PodView};

/// Annotations by which users ask for something that the controller acts on
/// (contract §2.1, marked U), always visible to compile.
const REQUESTS: &[&str] = &[
    keys::IP_FAMILY,
    keys::IP_POOL,
    keys::PORT_SECURITY,
    keys::PORT_VIPS,
    keys::SECURITY_GROUPS,
    keys::LAYER2_FORWARD,
    keys::DHCP_V4_OPTIONS,
    keys::DHCP_V6_OPTIONS,
    keys::ACTIVATION_STRATEGY,
    keys::VIP,
    keys::AAPS,
    keys::EIP,
    keys::SNAT,
    keys::NORTH_GATEWAY,
];

/// Annotations that are a request before the controller writes `allocated`, and
/// its own answer afterwards (contract §2.1, marked C/U).
const REQUESTS_UNTIL_ALLOCATED: &[&str] =
    &[keys::IP_ADDRESS, keys::MAC_ADDRESS, keys::LOGICAL_SWITCH, keys::POD_NIC_TYPE];

/// The controller has written this object's addresses.
pub(crate) fn allocated(meta: &Meta) -> bool {
    meta.annotations.get(keys::ALLOCATED).is_some_and(|v| &**v == "true")
}

/// Providers beside the default one whose address the controller has written.
pub(crate) fn told_providers(meta: &Meta) -> impl Iterator<Item = &str> {
    let written = meta.annotations.iter().filter(|(_, value)| &***value == "true");
    let providers = written.filter_map(|(key, _)| key.strip_suffix(".kubernetes.io/allocated"));
    providers.filter(|provider| *provider != keys::DEFAULT_PROVIDER)
}

/// The pod names networks beside the default one, or has been on some.
pub(crate) fn names_networks(meta: &Meta) -> bool {
    let named = |key: &str| meta.annotations.get(key).is_some_and(|value| !value.trim().is_empty());
    named(keys::NETWORKS) || named(keys::DEFAULT_NETWORK) || told_providers(meta).next().is_some()
}

/// Contract §3.1. A pod on its way out is alive until its grace period is over, so
/// that its last packets go out; afterwards it isn't, so that the address comes
/// back even if the node is lost.
pub(crate) fn alive(pod: &Pod, unix_s: i64) -> bool {
    let expired = pod.meta.deleting_at.is_some_and(|at| unix_s > at);
    let finished = match &*pod.phase {
        "Succeeded" => !pod.restart_always,
        "Failed" => pod.restart_never || &*pod.reason == "Evicted",
        _ => false,
    };
    !expired && !finished
}

/// Projection of a pod.
pub(crate) fn pod(pod: &Pod, unix_s: i64, keep_vm_ip: bool) -> PodView {
    let annotations = &pod.meta.annotations;
    let mut requests = StringMap::new();
    let early = if allocated(&pod.meta) { &[] } else { REQUESTS_UNTIL_ALLOCATED };
    for key in REQUESTS.iter().chain(early) {
        if let Some((key, value)) = annotations.get_key_value(key) {
            requests.insert(key.clone(), value.clone());
        }
    }
    PodView {
        uid: pod.meta.uid.clone(),
        node: pod.node.clone(),
        wants_network: !pod.host_network && alive(pod, unix_s),
        terminating: pod.meta.deleting_at.is_some(),
        requests,
        owner: owner(&pod.meta),
        kept: super::retain::annotations(&pod.meta, keep_vm_ip),
        networks: names_networks(&pod.meta),
    }
}

/// Owner handling of contract §2.1: a StatefulSet whose name starts the pod's, or
/// a virtual machine instance.
pub(crate) fn owner(meta: &Meta) -> Option<(Arc<str>, Arc<str>)> {
    meta.owners.iter().find_map(|owner| {
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        let counts = match (group, &*owner.kind) {
            ("apps", "StatefulSet") => meta.name.starts_with(&*owner.name),
            ("kubevirt.io", INSTANCE) => true,
            _ => false,
        };
        counts.then(|| (owner.kind.clone(), owner.name.clone()))
    })
}

/// Projection of a node, which may be silent as a gateway, and have a namesake.
pub(crate) fn node(node: &Node, silent: bool, namesake: Option<Arc<str>>) -> NodeView {
    let (mut ipv4, mut ipv6) = (None, None);
    for ip in node.internal_ips.iter().filter_map(|text| text.parse::<IpAddr>().ok()) {
        match ip {
            IpAddr::V4(ip) => ipv4 = ipv4.or(Some(ip)),
            IpAddr::V6(ip) => ipv6 = ipv6.or(Some(ip)),
        }
    }
    NodeView {
        uid: node.meta.uid.clone(),
        ipv4,
        ipv6,
        chassis: node.meta.annotations.get(keys::CHASSIS).filter(|c| !c.is_empty()).cloned(),
        ready: node.ready,
        silent,
        namesake,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn sample() -> Pod {
        Pod {
            meta: Meta { name: "a-0".into(), namespace: "web".into(), uid: "u".into(), ..Meta::default() },
            node: "n".into(),
            restart_always: true,
            phase: "Running".into(),
            ..Pod::default()
        }
    }

    #[rstest]
    #[case("Running", "", true, false, None, true)]
    #[case("Succeeded", "", true, false, None, true)]
    #[case("Succeeded", "", false, true, None, false)]
    #[case("Succeeded", "", false, false, None, false)]
    #[case("Failed", "", false, true, None, false)]
    #[case("Failed", "", false, false, None, true)]
    #[case("Failed", "Evicted", true, false, None, false)]
    #[case("Running", "", true, false, Some(100), true)]
    #[case("Running", "", true, false, Some(99), false)]
    fn liveness_follows_the_contract(
        #[case] phase: &str,
        #[case] reason: &str,
        #[case] always: bool,
        #[case] never: bool,
        #[case] deleting_at: Option<i64>,
        #[case] alive_: bool,
    ) {
        let mut pod = sample();
        pod.phase = phase.into();
        pod.reason = reason.into();
        pod.restart_always = always;
        pod.restart_never = never;
        pod.meta.deleting_at = deleting_at;
        assert_eq!(alive(&pod, 100), alive_);
    }

    #[test]
    fn what_the_controller_wrote_is_no_request() {
        let mut object = sample();
        object.meta.annotations.insert(keys::IP_ADDRESS.into(), "10.16.0.9".into());
        assert_eq!(pod(&object, 0, true).requests.len(), 1);
        object.meta.annotations.insert(keys::ALLOCATED.into(), "true".into());
        assert!(pod(&object, 0, true).requests.is_empty());
    }

    #[test]
    fn our_patch_status_and_labels_change_no_projection() {
        let before = pod(&sample(), 0, true);
        let mut object = sample();
        for key in [keys::ALLOCATED, keys::ROUTED, keys::IP_ADDRESS, keys::MAC_ADDRESS, keys::CIDR] {
            object.meta.annotations.insert(key.into(), "true".into());
        }
        object.meta.resource_version = "77".into();
        object.meta.labels.insert("app".into(), "x".into());
        object.phase = "Pending".into();
        assert_eq!(before, pod(&object, 0, true));
    }

    #[test]
    fn the_first_address_of_a_family_counts() {
        let object = Node {
            internal_ips: vec!["fd00::1".into(), "192.0.2.1".into(), "192.0.2.2".into(), "x".into()],
            ..Node::default()
        };
        let view = node(&object, false, None);
        assert_eq!(view.ipv4, Some("192.0.2.1".parse().unwrap()));
        assert_eq!(view.ipv6, Some("fd00::1".parse().unwrap()));
    }
}
