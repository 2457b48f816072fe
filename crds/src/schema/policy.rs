//! Definitions of SecurityGroup, QoSPolicy and DNSNameResolver.

use super::*;
use crate::object::Kind;

/// A decimal number written as text.
const DECIMAL: &str = r"^[0-9]+(\.[0-9]+)?$";
/// Fully qualified names with an optional wildcard label in front.
const DNS_NAME: &str = r"^(\*\.)?([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\.){2,}$";

pub(super) fn security_group() -> Definition {
    let port = || int().range(0, 65535);
    let rules = || {
        list(object([
            ("ipVersion", text().about("ipv4 or ipv6.")),
            ("protocol", text().about("all, icmp, tcp or udp.")),
            ("priority", int().range(1, 16384).about("1 is strongest.")),
            ("remoteType", text().about("address or securityGroup.")),
            ("remoteAddress", text()),
            ("remoteSecurityGroup", text()),
            ("portRangeMin", port()),
            ("portRangeMax", port()),
            ("localAddress", text()),
            ("sourcePortRangeMin", port()),
            ("sourcePortRangeMax", port()),
            ("policy", text().about("allow, drop or pass.")),
        ]))
    };
    let spec = object([
        ("ingressRules", rules()),
        ("egressRules", rules()),
        ("allowSameGroupTraffic", flag().about("Members may talk to each other.")),
        ("tier", int().range(0, 1)),
    ]);
    let status = object([
        ("portGroup", text()),
        ("allowSameGroupTraffic", flag()),
        ("ingressMd5", text()),
        ("egressMd5", text()),
        ("ingressLastSyncSuccess", flag()),
        ("egressLastSyncSuccess", flag()),
    ]);
    Definition::new(crate::SecurityGroup::INFO, spec).status(status)
}

pub(super) fn qos_policy() -> Definition {
    let fields = || {
        let rule = object([
            ("name", text()),
            ("interface", text()),
            ("rateMax", text().pattern(DECIMAL).about("Mbit/s.")),
            ("burstMax", text().pattern(DECIMAL).about("Megabytes.")),
            ("priority", int()),
            ("direction", text().about("ingress or egress.")),
            ("matchType", text().about("ip.")),
            ("matchValue", text().about("src <cidr> or dst <cidr>.")),
        ])
        .required(&["name"]);
        [
            ("shared", flag().about("May be bound more than once.")),
            ("bindingType", text().about("EIP or NATGW.")),
            ("bandwidthLimitRules", list(rule)),
        ]
    };
    let status = object(fields().into_iter().chain([("conditions", conditions())]));
    Definition::new(crate::QosPolicy::INFO, object(fields()))
        .status(status)
        .columns([column("Shared", ".spec.shared"), column("BindingType", ".spec.bindingType")])
}

pub(super) fn dns_name_resolver() -> Definition {
    let name = || text().max_length(254).pattern(DNS_NAME);
    let spec = object([("name", name().about("Name with a trailing dot, may begin with *.").immutable())])
        .required(&["name"]);
    let address = object([("ip", text()), ("ttlSeconds", int32()), ("lastLookupTime", text())]).required(&[
        "ip",
        "ttlSeconds",
        "lastLookupTime",
    ]);
    let resolved = object([
        ("conditions", conditions()),
        ("dnsName", name()),
        ("resolvedAddresses", list(address)),
        ("resolutionFailures", int32()),
    ])
    .required(&["dnsName", "resolvedAddresses"]);
    Definition::new(crate::DnsNameResolver::INFO, spec).status(object([("resolvedNames", list(resolved))]))
}
