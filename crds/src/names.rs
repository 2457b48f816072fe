//! Names of OVN rows, fixed by compatibility (contract §4).

/// Name of a port group or address set: every `-` becomes `.`, since OVN
/// identifiers can't hold a dash.
///
/// ```
/// assert_eq!(crds::names::dot_form("np-1.web"), "np.1.web");
/// ```
pub fn dot_form(name: &str) -> String {
    name.replace('-', ".")
}

/// Logical port of a pod's interface, also the name of its IP object:
/// `<pod>.<ns>`, and `<pod>.<ns>.<provider>` for providers other than `ovn`.
/// For a port owned by a virtual machine, `pod` is the machine's name.
pub fn pod_port(pod: &str, namespace: &str, provider: &str) -> String {
    if provider.is_empty() || provider == crate::keys::DEFAULT_PROVIDER {
        format!("{pod}.{namespace}")
    } else {
        format!("{pod}.{namespace}.{provider}")
    }
}

/// The provider in a pod's port as [`pod_port`] names it; `None` of the pod's own network, and of any other port.
pub fn provider_in<'a>(port: &'a str, pod: &str, namespace: &str) -> Option<&'a str> {
    port.strip_prefix(pod)?.strip_prefix('.')?.strip_prefix(namespace)?.strip_prefix('.')
}

/// Logical port of a node on the join switch, also the name of its IP object.
pub fn node_port(node: &str) -> String {
    format!("node-{node}")
}

/// Port group of a distributed subnet's pods on one node.
pub fn subnet_node_group(subnet: &str, node: &str) -> String {
    dot_form(&format!("{subnet}.{node}"))
}

/// Port group of all pods on a node.
pub fn node_group(node: &str) -> String {
    dot_form(&node_port(node))
}

/// Router port towards a switch (or towards a peer router): `<router>-<switch>`.
pub fn router_port(router: &str, switch: &str) -> String {
    format!("{router}-{switch}")
}

/// Switch port towards a router: `<switch>-<router>`.
pub fn switch_port(switch: &str, router: &str) -> String {
    format!("{switch}-{router}")
}

/// What [`localnet_port`]s begin with; no other port may.
pub const LOCALNET_PREFIX: &str = "localnet.";

/// Localnet port of an underlay subnet.
pub fn localnet_port(subnet: &str) -> String {
    format!("{LOCALNET_PREFIX}{subnet}")
}

/// Port of a subnet's multicast querier, also the name of its IP object.
pub fn mcast_querier(subnet: &str) -> String {
    format!("mcast-querier.{subnet}")
}

/// OVS bridge of a provider network.
pub fn provider_bridge(provider_network: &str) -> String {
    format!("br-{provider_network}")
}

#[cfg(test)]
mod tests {
    use super::*;

    // The names of the worked example (contract §10).
    #[test]
    fn a_port_tells_its_provider() {
        for provider in ["net.web", "net.web.ovn"] {
            assert_eq!(provider_in(&pod_port("a", "web", provider), "a", "web"), Some(provider));
        }
        for port in [pod_port("a", "web", "ovn"), pod_port("a", "web2", "x.y"), pod_port("ab", "web", "x.y")]
        {
            assert_eq!(provider_in(&port, "a", "web"), None, "{port}");
        }
    }

    #[test]
    fn worked_example() {
        assert_eq!(pod_port("a-0", "web", "ovn"), "a-0.web");
        assert_eq!(pod_port("a-0", "web", "nad.web.ovn"), "a-0.web.nad.web.ovn");
        assert_eq!(node_port("n-1"), "node-n-1");
        assert_eq!(subnet_node_group("ovn-default", "n-1"), "ovn.default.n.1");
        assert_eq!(node_group("n-1"), "node.n.1");
        assert_eq!(router_port("ovn-cluster", "ovn-default"), "ovn-cluster-ovn-default");
        assert_eq!(switch_port("join", "ovn-cluster"), "join-ovn-cluster");
        assert_eq!(localnet_port("ext"), "localnet.ext");
        assert_eq!(mcast_querier("ovn-default"), "mcast-querier.ovn-default");
    }
}
