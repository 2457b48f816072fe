//! Definitions of NAT rules: in gateway pods (iptables) and on logical routers (OVN).

use super::*;
use crate::object::Kind;

fn ready(path: &'static str) -> Column {
    column("Ready", path).typed("boolean")
}

pub(super) fn iptables_eip() -> Definition {
    let spec = object([
        ("v4ip", text()),
        ("v6ip", text()),
        ("macAddress", text()),
        ("natGwDp", text().about("VpcNatGateway.")),
        ("qosPolicy", text()),
        ("externalSubnet", text()),
        ("namespace", text()),
    ]);
    let status = object([
        ("ready", flag()),
        ("ip", text()),
        ("nat", text().about("What uses it.")),
        ("redo", text()),
        ("qosPolicy", text()),
        ("conditions", conditions()),
    ]);
    Definition::new(crate::IptablesEip::INFO, spec).status(status).columns([
        column("Namespace", ".spec.namespace"),
        column("ExternalSubnet", ".spec.externalSubnet"),
        column("IP", ".status.ip"),
        column("Mac", ".spec.macAddress"),
        column("Nat", ".status.nat"),
        column("NatGwDp", ".spec.natGwDp"),
        ready(".status.ready"),
    ])
}

/// Status fields that the iptables rules share.
fn iptables_status(more: impl IntoIterator<Item = (&'static str, Schema)>) -> Schema {
    let fields = [
        ("ready", flag()),
        ("v4ip", text()),
        ("v6ip", text()),
        ("natGwDp", text()),
        ("redo", text()),
        ("conditions", conditions()),
    ];
    object(fields.into_iter().chain(more))
}

pub(super) fn iptables_fip_rule() -> Definition {
    let spec = object([("eip", text()), ("internalIp", text())]);
    Definition::new(crate::IptablesFipRule::INFO, spec)
        .status(iptables_status([("internalIp", text())]))
        .columns([
            column("Eip", ".spec.eip"),
            column("V4ip", ".status.v4ip"),
            column("InternalIp", ".spec.internalIp"),
            column("V6ip", ".status.v6ip"),
            ready(".status.ready"),
            column("NatGwDp", ".status.natGwDp"),
        ])
}

pub(super) fn iptables_dnat_rule() -> Definition {
    let fields = || {
        [
            ("externalPort", text()),
            ("protocol", text().about("tcp or udp.")),
            ("internalIp", text()),
            ("internalPort", text()),
        ]
    };
    let kind = || text().about("exclusive, or share for several backends of one port.");
    // Written as data only in spec: a default in status would appear in every patch.
    let spec = object(
        fields()
            .into_iter()
            .chain([("eip", text()), ("type", kind().one_of(&["exclusive", "share"]).default("exclusive"))]),
    );
    let status = iptables_status(fields().into_iter().chain([("type", kind())]));
    Definition::new(crate::IptablesDnatRule::INFO, spec).status(status).columns([
        column("Eip", ".spec.eip"),
        column("Protocol", ".spec.protocol"),
        column("V4ip", ".status.v4ip"),
        column("V6ip", ".status.v6ip"),
        column("InternalIp", ".spec.internalIp"),
        column("ExternalPort", ".spec.externalPort"),
        column("InternalPort", ".spec.internalPort"),
        column("Type", ".spec.type"),
        column("NatGwDp", ".status.natGwDp"),
        ready(".status.ready"),
    ])
}

pub(super) fn iptables_snat_rule() -> Definition {
    let spec = object([("eip", text()), ("internalCIDR", text())]);
    Definition::new(crate::IptablesSnatRule::INFO, spec)
        .status(iptables_status([("internalCIDR", text())]))
        .columns([
            column("EIP", ".spec.eip"),
            column("V4ip", ".status.v4ip"),
            column("V6ip", ".status.v6ip"),
            column("InternalCIDR", ".spec.internalCIDR"),
            column("NatGwDp", ".status.natGwDp"),
            ready(".status.ready"),
        ])
}

pub(super) fn ovn_eip() -> Definition {
    let spec = object([
        ("externalSubnet", text()),
        ("v4Ip", text()),
        ("v6Ip", text()),
        ("macAddress", text()),
        ("type", text().about("nat (default), lrp or lsp.")),
    ]);
    let status = object([
        ("type", text()),
        ("nat", text().about("What uses it.")),
        ("ready", flag()),
        ("v4Ip", text()),
        ("v6Ip", text()),
        ("macAddress", text()),
        ("conditions", conditions()),
    ]);
    Definition::new(crate::OvnEip::INFO, spec).status(status).columns([
        column("V4IP", ".status.v4Ip"),
        column("V6IP", ".status.v6Ip"),
        column("Mac", ".status.macAddress"),
        column("Type", ".status.type"),
        column("Nat", ".status.nat"),
        ready(".status.ready"),
        column("ExternalSubnet", ".spec.externalSubnet"),
    ])
}

/// Status fields that the OVN rules share.
fn ovn_status(more: impl IntoIterator<Item = (&'static str, Schema)>) -> Schema {
    let fields = [
        ("ready", flag()),
        ("vpc", text()),
        ("v4Eip", text()),
        ("v6Eip", text()),
        ("conditions", conditions()),
    ];
    object(fields.into_iter().chain(more))
}

pub(super) fn ovn_fip() -> Definition {
    let spec = object([
        ("ovnEip", text()),
        ("ipType", text().about("vip or ip.")),
        ("ipName", text()),
        ("vpc", text()),
        ("v4Ip", text()),
        ("v6Ip", text()),
        ("type", text().about("distributed or centralized.")),
    ]);
    Definition::new(crate::OvnFip::INFO, spec)
        .status(ovn_status([("v4Ip", text()), ("v6Ip", text()), ("macAddress", text())]))
        .columns([
            column("Vpc", ".status.vpc"),
            column("Type", ".spec.type"),
            column("V4Eip", ".status.v4Eip"),
            column("V6Eip", ".status.v6Eip"),
            column("V4Ip", ".status.v4Ip"),
            column("V6Ip", ".status.v6Ip"),
            ready(".status.ready"),
            column("IpType", ".spec.ipType"),
            column("IpName", ".spec.ipName"),
        ])
}

pub(super) fn ovn_snat_rule() -> Definition {
    let spec = object([
        ("ovnEip", text()),
        ("vpcSubnet", text()),
        ("ipName", text()),
        ("vpc", text()),
        ("v4IpCidr", text()),
        ("v6IpCidr", text()),
    ]);
    Definition::new(crate::OvnSnatRule::INFO, spec)
        .status(ovn_status([("v4IpCidr", text()), ("v6IpCidr", text())]))
        .columns([
            column("Vpc", ".status.vpc"),
            column("V4Eip", ".status.v4Eip"),
            column("V6Eip", ".status.v6Eip"),
            column("V4IpCidr", ".status.v4IpCidr"),
            column("V6IpCidr", ".status.v6IpCidr"),
            ready(".status.ready"),
        ])
}

pub(super) fn ovn_dnat_rule() -> Definition {
    let fields = || {
        [
            ("externalPort", text()),
            ("internalPort", text()),
            ("protocol", text().about("tcp or udp.")),
            ("ipName", text()),
            ("v4Ip", text()),
            ("v6Ip", text()),
        ]
    };
    let spec = object(fields().into_iter().chain([
        ("ovnEip", text()),
        ("ipType", text().about("vip or ip.")),
        ("vpc", text()),
    ]));
    Definition::new(crate::OvnDnatRule::INFO, spec).status(ovn_status(fields())).columns([
        column("Vpc", ".status.vpc"),
        column("Eip", ".spec.ovnEip"),
        column("Protocol", ".status.protocol"),
        column("V4Eip", ".status.v4Eip"),
        column("V6Eip", ".status.v6Eip"),
        column("V4Ip", ".status.v4Ip"),
        column("V6Ip", ".status.v6Ip"),
        column("InternalPort", ".status.internalPort"),
        column("ExternalPort", ".status.externalPort"),
        column("IpName", ".spec.ipName"),
        ready(".status.ready"),
    ])
}
