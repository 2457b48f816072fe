//! Definitions of SwitchLBRule, RouterLBRule and VpcDns.

use super::*;
use crate::object::Kind;

/// Spec fields that both rules share.
fn rule_spec(more: impl IntoIterator<Item = (&'static str, Schema)>) -> Schema {
    let port = || int32().range(1, 65535);
    let fields = [
        ("namespace", text().about("Namespace of the backends.")),
        ("selector", texts().about("key:value pairs that select backends.")),
        ("endpoints", texts().about("Backend addresses; they win over the selector.")),
        ("sessionAffinity", text().about("None or ClientIP.")),
        (
            "ports",
            list(object([("name", text()), ("port", port()), ("targetPort", port()), ("protocol", text())])),
        ),
    ];
    object(fields.into_iter().chain(more))
}

fn rule_status() -> Schema {
    object([("ports", text()), ("service", text())])
}

pub(super) fn switch_lb_rule() -> Definition {
    Definition::new(crate::SwitchLbRule::INFO, rule_spec([("vip", text())])).status(rule_status()).columns([
        column("vip", ".spec.vip"),
        column("port(s)", ".status.ports"),
        column("service", ".status.service"),
        age("age"),
    ])
}

pub(super) fn router_lb_rule() -> Definition {
    Definition::new(crate::RouterLbRule::INFO, rule_spec([("ovnEip", text()), ("vpc", text())]))
        .status(rule_status())
        .columns([
            column("ovnEip", ".spec.ovnEip"),
            column("vpc", ".spec.vpc"),
            column("port(s)", ".status.ports"),
            column("service", ".status.service"),
            age("age"),
        ])
}

pub(super) fn vpc_dns() -> Definition {
    let spec = object([
        ("vpc", text()),
        ("subnet", text()),
        ("replicas", int32().range(1, 3).about("Unset keeps the template's.")),
        ("corefile", text().default("vpc-dns-corefile").about("ConfigMap with the Corefile.")),
    ]);
    let status = object([("active", flag()), ("conditions", conditions())]);
    Definition::new(crate::VpcDns::INFO, spec).status(status).columns([
        column("Active", ".status.active").typed("boolean"),
        column("Vpc", ".spec.vpc"),
        column("Subnet", ".spec.subnet"),
        column("Corefile", ".spec.corefile"),
    ])
}
