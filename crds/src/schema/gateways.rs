//! Definitions of gateways in pods: VpcNatGateway, VpcEgressGateway, BgpConf,
//! EvpnConf.

use super::*;
use crate::object::Kind;

/// What a name prefix may look like.
const PREFIX: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*[-\.]?)?$";
/// Megabits as digits, or a quantity with its unit.
const RATE: &str = r"^([0-9]+|([0-9]+(\.[0-9]+)?|\.[0-9]+)(M|Mi|G|Gi))$";
/// An hour in milliseconds, the longest BFD interval.
const HOUR_MS: i64 = 3_600_000;

fn bfd(most: i64) -> Schema {
    object([
        ("enabled", flag().default(false)),
        ("minRX", int32().default(1000).range(1, HOUR_MS).about("Milliseconds.")),
        ("minTX", int32().default(1000).range(1, HOUR_MS).about("Milliseconds.")),
        ("multiplier", int32().default(3).range(1, most).about("Missed packets that mean down.")),
    ])
}

pub(super) fn vpc_nat_gateway() -> Definition {
    let speaker = object([
        ("enabled", flag()),
        ("asn", int()),
        ("remoteAsn", int()),
        ("neighbors", texts()),
        ("holdTime", text()),
        ("routerId", text()),
        ("password", text()),
        ("enableGracefulRestart", flag()),
        ("extraArgs", texts()),
    ]);
    let route = object([("cidr", text()), ("nextHopIP", text().about("Address, or the word gateway."))]);
    let spec = object([
        ("namespace", text().about("Namespace of the workload.")),
        ("vpc", text()),
        ("subnet", text()),
        ("externalSubnets", texts()),
        ("lanIp", text().about("Inner address; needed with one replica.")),
        ("replicas", int32().default(1).at_least(1)),
        ("selector", texts().about("key:value pairs that select nodes.")),
        ("tolerations", tolerations()),
        ("affinity", foreign_object().about("As in a pod's spec.")),
        ("qosPolicy", text()),
        ("bgpSpeaker", speaker),
        ("bfd", bfd(255)),
        ("internalSubnets", texts()),
        ("internalCIDRs", texts()),
        ("routes", list(route)),
        ("noDefaultEIP", flag()),
        ("annotations", text_map().about("Annotations of the pods.")),
    ]);
    let status = object([
        ("replicas", int32()),
        ("ready", flag()),
        ("lanIp", text()),
        ("externalSubnets", texts()),
        ("selector", texts()),
        ("qosPolicy", text()),
        ("tolerations", tolerations()),
        ("affinity", foreign_object()),
        ("internalSubnets", texts()),
        ("internalCIDRs", texts()),
        ("workload", workload()),
    ]);
    Definition::new(crate::VpcNatGateway::INFO, spec).status(status).columns([
        column("Namespace", ".spec.namespace"),
        column("Vpc", ".spec.vpc"),
        column("Subnet", ".spec.subnet"),
        column("IPs", ".status.lanIp"),
        column("Replicas", ".spec.replicas").typed("integer"),
        column("Ready", ".status.ready").typed("boolean"),
        column("BFD", ".spec.bfd.enabled").typed("boolean"),
        age("Age"),
    ])
}

pub(super) fn vpc_egress_gateway() -> Definition {
    // Rules inside unbounded lists have a cost limit that leaves no room for `has`:
    // the size of an absent list is an error, which `||` forgives if the other side holds.
    let some_selector = |what: &str| {
        label_selector().rule(
            "size(self.matchLabels) != 0 || size(self.matchExpressions) != 0",
            &format!("A {what} needs matchLabels or matchExpressions."),
        )
    };
    let selector = object([
        ("namespaceSelector", some_selector("namespaceSelector")),
        ("podSelector", some_selector("podSelector")),
    ]);
    let policy = object([
        ("snat", flag().default(false).about("Translate the source address.")),
        ("ipBlocks", texts().set()),
        ("subnets", texts().set()),
    ])
    .rule("size(self.ipBlocks) != 0 || size(self.subnets) != 0", "A policy needs ipBlocks or subnets.");
    let nodes = object([
        ("matchLabels", text_map()),
        ("matchExpressions", list(requirement())),
        ("matchFields", list(requirement())),
    ]);
    let rate = || int_or_text().pattern(RATE).about("Mbit/s, or a quantity in bit/s with M, Mi, G or Gi.");
    let spec = object([
        ("vpc", text()),
        ("replicas", int32().default(1).range(0, 10)),
        ("prefix", text().pattern(PREFIX).about("Prefix of the workload's name.").immutable()),
        ("image", text()),
        ("internalSubnet", text()),
        ("externalSubnet", text()),
        ("internalIPs", texts().set()),
        ("externalIPs", texts().set()),
        ("internalIPPool", text()),
        ("externalIPPool", text()),
        ("selectors", list(selector).about("Pods whose traffic takes the gateway.")),
        ("policies", list(policy).about("Sources whose traffic takes the gateway.")),
        ("trafficPolicy", text().one_of(&["Cluster", "Local"]).default("Cluster")),
        ("podAntiAffinity", text().one_of(&["Required", "Preferred"]).default("Required")),
        ("bfd", bfd(HOUR_MS)),
        ("bgpConf", text()),
        ("evpnConf", text()),
        ("nodeSelector", list(nodes)),
        ("tolerations", tolerations()),
        ("resources", foreign_object().about("As in a container.")),
        ("bandwidth", object([("ingress", rate()), ("egress", rate())])),
        ("observability", observability()),
    ])
    .required(&["externalSubnet"])
    .rule(
        "!has(self.internalIPs) || size(self.internalIPs) == 0 || size(self.internalIPs) >= self.replicas",
        "internalIPs needs at least as many entries as there are replicas.",
    )
    .rule(
        "!has(self.externalIPs) || size(self.externalIPs) == 0 || size(self.externalIPs) >= self.replicas",
        "externalIPs needs at least as many entries as there are replicas.",
    )
    .rule(
        "size(self.policies) != 0 || size(self.selectors) != 0",
        "A gateway needs at least one policy or selector.",
    );
    let status = object([
        ("replicas", int32()),
        ("labelSelector", text()),
        ("ready", flag().default(false)),
        ("phase", text().one_of(&["Pending", "Processing", "Completed"]).default("Pending")),
        ("internalIPs", texts()),
        ("externalIPs", texts()),
        ("conditions", conditions()),
        ("workload", workload()),
    ])
    .required(&["conditions", "phase"]);
    let mut definition = Definition::new(crate::VpcEgressGateway::INFO, spec).status(status).columns([
        column("VPC", ".spec.vpc"),
        column("REPLICAS", ".spec.replicas").typed("integer"),
        column("BFD ENABLED", ".spec.bfd.enabled").typed("boolean"),
        column("EXTERNAL SUBNET", ".spec.externalSubnet"),
        column("PHASE", ".status.phase"),
        column("READY", ".status.ready").typed("boolean"),
        column("INTERNAL IPS", ".status.internalIPs").wide(),
        column("EXTERNAL IPS", ".status.externalIPs").wide(),
        column("WORKING NODES", ".status.workload.nodes").wide(),
        age("AGE"),
    ]);
    definition.scale = true;
    definition
}

fn observability() -> Schema {
    let enabled = || object([("enabled", flag())]);
    let log = object([
        ("enabled", flag()),
        ("events", anything().about("Start and end of connections.")),
        ("filters", anything().about("Include and exclude lists.")),
        (
            "rateLimit",
            object([("recordsPerSecond", int32().range(1, 100_000)), ("burst", int32().range(1, 1_000_000))]),
        ),
    ]);
    object([
        ("interfaceMetrics", enabled()),
        ("conntrack", object([("metrics", enabled()), ("log", log)])),
        ("resources", foreign_object().about("As in a container.")),
        ("serviceMonitor", object([("labels", text_map()), ("annotations", text_map())])),
    ])
}

pub(super) fn bgp_conf() -> Definition {
    let spec = object([
        ("localASN", int()),
        ("peerASN", int()),
        ("routerId", text()),
        ("neighbours", texts()),
        ("password", text()),
        ("holdTime", text()),
        ("keepaliveTime", text()),
        ("connectTime", text()),
        ("ebgpMultiHop", flag()),
        ("gracefulRestart", flag()),
    ]);
    Definition::new(crate::BgpConf::INFO, spec)
}

pub(super) fn evpn_conf() -> Definition {
    Definition::new(crate::EvpnConf::INFO, object([("vni", int()), ("routeTargets", texts())]))
}
