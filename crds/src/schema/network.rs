//! Definitions of what networks are made of: Subnet, IP, IPPool, Vpc,
//! ProviderNetwork, Vlan, Vip.

use serde_json::json;

use super::*;
use crate::object::Kind;

/// Interface names: up to 15 characters, no slash, no blank.
const INTERFACE: &str = r"^[^/\s]+$";

pub(super) fn subnet() -> Definition {
    let spec = object([
        ("default", flag().about("Subnet of namespaces that have no other.")),
        ("vpc", text().about("Owning VPC, ovn-cluster by default. Immutable once set.")),
        (
            "protocol",
            text().one_of(&["IPv4", "IPv6", "Dual", "Mac"]).about("Address family, derived from cidrBlock."),
        ),
        ("namespaces", texts().about("Namespaces bound by name.")),
        ("namespaceSelectors", list(label_selector()).about("Namespaces bound by label.")),
        ("cidrBlock", text().about("One CIDR per family, comma separated.")),
        ("gateway", text().about("One address per family, comma separated; the first usable by default.")),
        ("excludeIps", texts().about("Addresses or ranges a..b that are never chosen dynamically.")),
        ("provider", text().about("Provider, ovn by default.")),
        ("gatewayType", text().about("distributed or centralized.")),
        ("gatewayNode", text().about("Gateway nodes of a centralized subnet: n1,n2 or n1:ip,n2:ip.")),
        ("gatewayNodeSelectors", list(label_selector()).about("Used when gatewayNode is empty.")),
        ("natOutgoing", flag().about("Nodes translate the source of traffic that leaves the cluster.")),
        ("externalEgressGateway", text().about("Next hop(s) of leaving traffic, instead of natOutgoing.")),
        ("policyRoutingPriority", int().range(1, 32765)),
        // 252 to 255 are the kernel's own tables.
        ("policyRoutingTableID", int().range(1, 2_147_483_647).none_of(json!([252, 253, 254, 255]))),
        ("mtu", int().range(68, 65535).about("MTU of pods, derived by default.")),
        ("private", flag().about("Refuse traffic from other subnets.")),
        ("allowSubnets", texts().about("CIDRs that may enter a private subnet.")),
        ("vlan", text().about("Vlan; makes it an underlay subnet.")),
        ("vips", texts().about("Virtual addresses.")),
        ("logicalGateway", flag().about("Underlay subnet whose gateway is a logical router port.")),
        ("disableGatewayCheck", flag()),
        ("disableInterConnection", flag()),
        ("enableDHCP", flag()),
        ("dhcpV4Options", text()),
        ("dhcpV6Options", text()),
        ("enableIPv6RA", flag()),
        ("ipv6RAConfigs", text()),
        (
            "acls",
            list(object([
                ("direction", text().one_of(&["from-lport", "to-lport"])),
                ("priority", int().range(0, 32767)),
                ("match", text()),
                ("action", text().one_of(&["allow", "allow-related", "allow-stateless", "drop", "reject"])),
            ])),
        ),
        ("allowEWTraffic", flag().about("With acls: allow traffic within the subnet.")),
        ("natOutgoingPolicyRules", list(nat_rule([]))),
        ("u2oInterconnection", flag().about("Route between this underlay subnet and the overlay.")),
        ("u2oInterconnectionIP", text()),
        ("u2oFeatures", object([("overlayOnlyRouting", flag())])),
        ("enableLb", flag().about("Attach the VPC's load balancers.")),
        ("enableEcmp", flag()),
        ("enableMulticastSnoop", flag()),
        ("enableExternalLBAddress", flag()),
        ("routeTable", text()),
        ("nodeNetwork", text().about("Node network that carries this subnet's tunnels.")),
    ]);
    let status = object([
        ("conditions", conditions()),
        ("v4availableIPs", number()),
        ("v4availableIPrange", text()),
        ("v4usingIPs", number()),
        ("v4usingIPrange", text()),
        ("v6availableIPs", number()),
        ("v6availableIPrange", text()),
        ("v6usingIPs", number()),
        ("v6usingIPrange", text()),
        ("activateGateway", text()),
        ("dhcpV4OptionsUUID", text()),
        ("dhcpV6OptionsUUID", text()),
        ("u2oInterconnectionIP", text()),
        ("u2oInterconnectionMAC", text()),
        ("u2oInterconnectionVPC", text()),
        ("mcastQuerierIP", text()),
        ("mcastQuerierMAC", text()),
        ("natOutgoingPolicyRules", list(nat_rule([("ruleID", text())]))),
    ]);
    let mut definition = Definition::new(crate::Subnet::INFO, spec).status(status).columns([
        column("Provider", ".spec.provider"),
        column("Vpc", ".spec.vpc"),
        column("Vlan", ".spec.vlan"),
        column("Protocol", ".spec.protocol"),
        column("CIDR", ".spec.cidrBlock"),
        column("Private", ".spec.private").typed("boolean"),
        column("NAT", ".spec.natOutgoing").typed("boolean"),
        column("Default", ".spec.default").typed("boolean"),
        column("GatewayType", ".spec.gatewayType"),
        column("V4Used", ".status.v4usingIPs").typed("number"),
        column("V4Available", ".status.v4availableIPs").typed("number"),
        column("V6Used", ".status.v6usingIPs").typed("number"),
        column("V6Available", ".status.v6availableIPs").typed("number"),
        column("ExcludeIPs", ".spec.excludeIps"),
        column("U2OInterconnectionIP", ".status.u2oInterconnectionIP"),
    ]);
    // OVN identifiers made from the name can't begin with a digit.
    definition.metadata = Some(object([("name", text().pattern("^[^0-9]"))]));
    definition
}

fn nat_rule(more: impl IntoIterator<Item = (&'static str, Schema)>) -> Schema {
    let fields = [
        ("action", text().one_of(&["nat", "forward"])),
        ("match", object([("srcIPs", text()), ("dstIPs", text())])),
    ];
    object(fields.into_iter().chain(more))
}

pub(super) fn ip() -> Definition {
    let spec = object([
        ("podName", text().about("Pod or virtual machine; node for a node's port.")),
        ("namespace", text()),
        ("subnet", text()),
        ("attachSubnets", texts()),
        ("nodeName", text()),
        ("ipAddress", text().about("Both addresses, comma separated.")),
        ("v4IpAddress", text()),
        ("v6IpAddress", text()),
        ("attachIps", texts()),
        ("macAddress", text()),
        ("attachMacs", texts()),
        ("containerID", text()),
        ("podType", text().about("Empty, StatefulSet or VirtualMachine.")),
    ]);
    Definition::new(crate::Ip::INFO, spec).columns([
        column("V4IP", ".spec.v4IpAddress"),
        column("V6IP", ".spec.v6IpAddress"),
        column("Mac", ".spec.macAddress"),
        column("Node", ".spec.nodeName"),
        column("Subnet", ".spec.subnet"),
    ])
}

pub(super) fn ippool() -> Definition {
    let spec = object([
        ("subnet", text().about("Subnet the addresses are of.").immutable()),
        ("namespaces", texts().set().about("Pods of these namespaces must use the pool.")),
        ("ips", texts().set().about("Addresses, ranges a..b or CIDRs. May be empty with preAllocate.")),
        ("size", int().range(0, 4_294_967_295).about("Most addresses in use at once; 0 is no limit.")),
        (
            "preAllocate",
            flag().about("Choose free addresses of the subnet until there are size, and write them to ips."),
        ),
        (
            "enableAddressSet",
            flag().default(false).about("Keep an OVN address set with the pool's addresses."),
        ),
    ])
    .required(&["subnet"]);
    let status = object([
        ("conditions", conditions()),
        ("v4AvailableIPs", number()),
        ("v4AvailableIPRange", text()),
        ("v4UsingIPs", number()),
        ("v4UsingIPRange", text()),
        ("v6AvailableIPs", number()),
        ("v6AvailableIPRange", text()),
        ("v6UsingIPs", number()),
        ("v6UsingIPRange", text()),
    ]);
    Definition::new(crate::IpPool::INFO, spec).status(status).columns([
        column("Subnet", ".spec.subnet"),
        column("enableAddressSet", ".spec.enableAddressSet").typed("boolean"),
        column("IPs", ".spec.ips"),
        column("V4Used", ".status.v4UsingIPs").typed("number"),
        column("V4Available", ".status.v4AvailableIPs").typed("number"),
        column("V6Used", ".status.v6UsingIPs").typed("number"),
        column("V6Available", ".status.v6AvailableIPs").typed("number"),
    ])
}

pub(super) fn vpc() -> Definition {
    let bfd_port = object([
        ("enabled", flag().default(false)),
        ("ip", text().about("One address per family, comma separated.")),
        ("nodeSelector", label_selector().about("Nodes that may host the port; at most three without.")),
    ])
    .rule("self.enabled == false || (has(self.ip) && self.ip != '')", "An enabled BFD port needs an ip.");
    let spec = object([
        ("defaultSubnet", text().about("Subnet annotated first on the VPC's namespaces.")),
        ("namespaces", texts().about("Namespaces that may use the VPC.")),
        (
            "staticRoutes",
            list(object([
                ("policy", text().about("policyDst (default) or policySrc.")),
                ("cidr", text()),
                ("nextHopIP", text()),
                ("ecmpMode", text()),
                ("bfdId", text()),
                ("routeTable", text()),
            ])),
        ),
        (
            "policyRoutes",
            list(object([
                ("priority", int().range(0, 32767)),
                ("match", text()),
                ("action", text().about("allow, drop or reroute.")),
                ("nextHopIP", text().about("Next hops of reroute, comma separated.")),
            ])),
        ),
        ("vpcPeerings", list(object([("remoteVpc", text()), ("localConnectIP", text())]))),
        ("enableExternal", flag().about("Connect to the default external subnet.")),
        ("extraExternalSubnets", texts()),
        ("enableBfd", flag()),
        ("bfdPort", bfd_port),
    ]);
    let status = object([
        ("conditions", conditions()),
        ("standby", flag()),
        ("default", flag()),
        ("defaultLogicalSwitch", text()),
        ("router", text()),
        ("tcpLoadBalancer", text()),
        ("tcpSessionLoadBalancer", text()),
        ("udpLoadBalancer", text()),
        ("udpSessionLoadBalancer", text()),
        ("sctpLoadBalancer", text()),
        ("sctpSessionLoadBalancer", text()),
        ("subnets", texts()),
        ("vpcPeerings", texts()),
        ("enableExternal", flag()),
        ("extraExternalSubnets", texts()),
        ("enableBfd", flag()),
        ("bfdPort", object([("name", text()), ("ip", text()), ("nodes", texts())])),
    ]);
    Definition::new(crate::Vpc::INFO, spec).status(status).columns([
        column("EnableExternal", ".status.enableExternal").typed("boolean"),
        column("EnableBfd", ".status.enableBfd").typed("boolean"),
        column("Standby", ".status.standby").typed("boolean"),
        column("Subnets", ".status.subnets"),
        column("ExtraExternalSubnets", ".status.extraExternalSubnets"),
        column("Namespaces", ".spec.namespaces"),
        column("DefaultSubnet", ".status.defaultLogicalSwitch"),
        age("Age"),
    ])
}

pub(super) fn provider_network() -> Definition {
    let interface = || text().max_length(15).pattern(INTERFACE);
    let spec = object([
        ("defaultInterface", interface().about("NIC on nodes that customInterfaces doesn't name.")),
        ("customInterfaces", list(object([("interface", interface()), ("nodes", texts())]))),
        ("nodeSelector", label_selector().about("Member nodes; excludeNodes is ignored then.")),
        ("excludeNodes", texts()),
        ("exchangeLinkName", flag().about("Swap the names of NIC and bridge.")),
        ("autoCreateVlanSubinterfaces", flag()),
        ("preserveVlanInterfaces", flag()),
        ("vlanInterfaces", list(text().pattern(r"^[a-zA-Z0-9_-]+\.[0-9]{1,4}$"))),
    ])
    .required(&["defaultInterface"]);
    let mut per_node = condition_fields();
    per_node.push(("node", text()));
    let status = object([
        ("ready", flag()),
        ("readyNodes", texts()),
        ("notReadyNodes", texts()),
        ("vlans", texts()),
        ("conditions", list(object(per_node))),
    ]);
    let mut definition = Definition::new(crate::ProviderNetwork::INFO, spec).status(status).columns([
        column("DefaultInterface", ".spec.defaultInterface"),
        column("Ready", ".status.ready").typed("boolean"),
    ]);
    // The bridge is br-<name>: an interface name, and br-int is OVN's.
    definition.metadata = Some(object([("name", text().max_length(12).none_of(json!(["int"])))]));
    definition
}

pub(super) fn vlan() -> Definition {
    let spec = object([
        ("id", int().range(0, 4095).about("VLAN id, 0 is untagged.")),
        ("provider", text().about("ProviderNetwork.")),
        ("vlanId", int().about("Old name of id.")),
        ("providerInterfaceName", text().about("Old name of provider.")),
    ])
    .required(&["provider"]);
    let status = object([("subnets", texts()), ("conflict", flag()), ("conditions", conditions())]);
    Definition::new(crate::Vlan::INFO, spec).status(status).columns([
        column("ID", ".spec.id"),
        column("Provider", ".spec.provider"),
        column("conflict", ".status.conflict").typed("boolean"),
    ])
}

pub(super) fn vip() -> Definition {
    let spec = object([
        ("namespace", text().about("Namespace whose pods may carry it.")),
        ("subnet", text()),
        ("type", text().about("Empty, switch_lb_vip or kube_host_vm_vip.")),
        ("v4ip", text()),
        ("v6ip", text()),
        ("macAddress", text()),
        ("selector", texts().about("key:value pairs that select pods.")),
        ("attachSubnets", texts()),
    ]);
    let status = object([
        ("type", text()),
        ("v4ip", text()),
        ("v6ip", text()),
        ("mac", text()),
        ("selector", texts()),
        ("conditions", conditions()),
    ]);
    Definition::new(crate::Vip::INFO, spec).status(status).columns([
        column("Namespace", ".spec.namespace"),
        column("V4IP", ".status.v4ip"),
        column("V6IP", ".status.v6ip"),
        column("Mac", ".status.mac"),
        column("Subnet", ".spec.subnet"),
        column("Type", ".status.type"),
    ])
}
