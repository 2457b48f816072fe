//! Annotation and label keys, finalizers and fixed values (contract §2).

/// Provider of the default interface.
pub const DEFAULT_PROVIDER: &str = "ovn";

/// Value of `external_ids:vendor` on rows of Kube-OVN and Weir.
pub const VENDOR: &str = "kube-ovn";

/// Finalizer on every object that the controller manages.
pub const FINALIZER: &str = "kubeovn.io/kube-ovn-controller";
/// Its old spelling, replaced where found.
pub const DEPRECATED_FINALIZER: &str = "kube-ovn-controller";

/// Key of a pod annotation for one provider: `<provider>.kubernetes.io/<name>`.
///
/// ```
/// assert_eq!(crds::keys::pod_key("ovn", "ip_address"), crds::keys::IP_ADDRESS);
/// ```
pub fn pod_key(provider: &str, name: &str) -> String {
    format!("{provider}.kubernetes.io/{name}")
}

/// Key of a node annotation or label about a provider network:
/// `<network>.provider-network.kubernetes.io/<name>`.
pub fn provider_network_key(network: &str, name: &str) -> String {
    format!("{network}.provider-network.kubernetes.io/{name}")
}

/// Pod: networks beside the default one (Multus), JSON or `ns/name@interface,…`.
pub const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
/// Pod: the network that replaces the default one (Multus).
pub const DEFAULT_NETWORK: &str = "v1.multus-cni.io/default-network";
/// Pod: the migration (KubeVirt) whose target it is.
pub const MIGRATION_JOB: &str = "kubevirt.io/migrationJobName";

macro_rules! keys {
    ($($(#[$meta:meta])* $name:ident = $key:literal;)*) => {
        $($(#[$meta])* pub const $name: &str = concat!("ovn.kubernetes.io/", $key);)*
        /// All `ovn.kubernetes.io/` keys of this module.
        pub const ALL: &[&str] = &[$($name),*];
    };
}

keys! {
    /// Pod, node: `true` once address and port exist.
    ALLOCATED = "allocated";
    /// Pod: `true` once groups and policies are in place; ADD waits for it.
    ROUTED = "routed";
    /// Pod, node: `v4`, `v6` or `v4,v6`; preset on a pod is a static request.
    IP_ADDRESS = "ip_address";
    /// Pod: asks for `ipv4` or `ipv6` only.
    IP_FAMILY = "ip_family";
    /// Pod, namespace: IPPool or list of addresses.
    IP_POOL = "ip_pool";
    /// Pod, node: MAC address; preset on a pod is a static request.
    MAC_ADDRESS = "mac_address";
    /// Pod, node, namespace: CIDR(s) of the subnet.
    CIDR = "cidr";
    /// Pod, node: gateway(s) of the subnet.
    GATEWAY = "gateway";
    /// Namespace: excluded addresses of its subnets.
    EXCLUDE_IPS = "exclude_ips";
    /// Pod, node, namespace: subnet(s).
    LOGICAL_SWITCH = "logical_switch";
    /// Pod: VPC.
    LOGICAL_ROUTER = "logical_router";
    /// Pod: VLAN id, underlay only.
    VLAN_ID = "vlan_id";
    /// Pod: provider network, underlay only.
    PROVIDER_NETWORK = "provider_network";
    /// Pod: `veth-pair`, `offload-port`, `dpdk-port`.
    POD_NIC_TYPE = "pod_nic_type";
    /// Pod: `true` binds the port to its addresses.
    PORT_SECURITY = "port_security";
    /// Pod: more addresses allowed by port security.
    PORT_VIPS = "port_vips";
    /// Pod: SecurityGroups.
    SECURITY_GROUPS = "security_groups";
    /// Pod: `true` forwards unknown MAC addresses.
    LAYER2_FORWARD = "layer2_forward";
    /// Pod: overrides the subnet's DHCP options.
    DHCP_V4_OPTIONS = "dhcp-v4-options";
    /// Pod: overrides the subnet's DHCP options.
    DHCP_V6_OPTIONS = "dhcp-v6-options";
    /// Pod: activation of a port on two chassis.
    ACTIVATION_STRATEGY = "activation_strategy";
    /// Pod: JSON list of routes.
    ROUTES = "routes";
    /// Pod: `true` puts the default route on this interface.
    DEFAULT_ROUTE = "default_route";
    /// Pod, node: Mbit/s.
    INGRESS_RATE = "ingress_rate";
    /// Pod, node: Mbit/s.
    EGRESS_RATE = "egress_rate";
    /// Pod, node: megabytes.
    INGRESS_BURST = "ingress_burst";
    /// Pod, node: megabytes.
    EGRESS_BURST = "egress_burst";
    /// Pod: mirror its traffic.
    MIRROR = "mirror";
    /// Pod: virtual machine that owns the port.
    VIRTUAL_MACHINE = "virtualmachine";
    /// Pod, IP: `immutable` or `never` keeps the address after the pod.
    IP_RETAIN = "ip_retain";
    /// IP: `<Kind>/<name>` of the workload that the address is kept for.
    IP_RETAIN_FOR = "ip_retain_for";
    /// Pod: Vip whose addresses it takes.
    VIP = "vip";
    /// Pod: Vips it may answer for.
    AAPS = "aaps";
    /// Pod: floating address.
    EIP = "eip";
    /// Pod: source NAT address.
    SNAT = "snat";
    /// Pod: next hop of its own.
    NORTH_GATEWAY = "north_gateway";
    /// Pod, subnet, service: announced by the speaker.
    BGP = "bgp";
    /// Node: name of its chassis, written by the daemon.
    CHASSIS = "chassis";
    /// Node: port on the join switch.
    PORT_NAME = "port_name";
    /// Node: interface that carries tunnels.
    TUNNEL_INTERFACE = "tunnel_interface";
    /// Node: JSON map of node networks to addresses.
    NODE_NETWORKS = "node_networks";
    /// Service: its VPC.
    VPC = "vpc";
    /// IP, Vip: label, the subnet.
    SUBNET_LABEL = "subnet";
    /// IP: label, the node.
    NODE_NAME_LABEL = "node-name";
    /// IP, Vip: label, kept without a user.
    IP_RESERVED_LABEL = "ip_reserved";
    /// Vpc: label, mirrored from a router that is not ours.
    VPC_EXTERNAL_LABEL = "vpc_external";
    /// Node: label, external gateway chassis.
    EXTERNAL_GW_LABEL = "external-gw";
    /// Node: label, interconnection gateway.
    IC_GW_LABEL = "ic-gw";
    /// Service: the Subnet that its load balancer addresses are from.
    SERVICE_SUBNET = "service_external_ip_from_subnet";
    /// OvnEip: label, its type.
    OVN_EIP_TYPE_LABEL = "ovn_eip_type";
    /// OvnEip: label, its IPv4 address.
    EIP_V4_IP_LABEL = "eip_v4_ip";
    /// OvnEip: label, its IPv6 address in the form of [`label_of_address`].
    EIP_V6_IP_LABEL = "eip_v6_ip";
    /// Node: label, has an external gateway of its own.
    NODE_EXT_GW_LABEL = "node-ext-gw";
    /// Node: label, `kernel` or `userspace`.
    OVS_DP_TYPE_LABEL = "ovs_dp_type";
}

/// An address as the value of a label, which may neither hold a colon nor begin or end with
/// a dash (contract §1.11).
///
/// ```
/// assert_eq!(crds::keys::label_of_address("fd00::"), "fd00--0");
/// ```
pub fn label_of_address(address: &str) -> String {
    let mut label = address.replace(':', "-");
    if label.starts_with('-') {
        label.insert(0, '0');
    }
    if label.ends_with('-') {
        label.push('0');
    }
    label
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_fit_into_labels() {
        for (address, label) in
            [("10.0.0.1", "10.0.0.1"), ("", ""), ("::", "0--0"), ("::1", "0--1"), ("fd00:1::a", "fd00-1--a")]
        {
            assert_eq!(label_of_address(address), label);
        }
    }

    #[test]
    fn keys_are_distinct() {
        let distinct: std::collections::BTreeSet<_> = ALL.iter().collect();
        assert_eq!(distinct.len(), ALL.len());
    }

    #[test]
    fn provider_scopes_a_key() {
        assert_eq!(pod_key(DEFAULT_PROVIDER, "routed"), ROUTED);
        assert_eq!(pod_key("nad.ns.ovn", "routed"), "nad.ns.ovn.kubernetes.io/routed");
        assert_eq!(provider_network_key("pn", "ready"), "pn.provider-network.kubernetes.io/ready");
    }
}
