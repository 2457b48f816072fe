//! External networks of a VPC (contract §4.3, §4.6, §5.4, §5.5): what its spec asks for
//! and is missing, by name. The router port there has the addresses of an OvnEip and
//! reaches the wire through a Vlan: kinds that this version does not act on yet, so what
//! exists in OVN stays as it is.

use std::sync::Arc;

use crds::{VpcSpec, keys};

use crate::view::{Selecting, View};

/// Fields that are set and not acted on, and what each lacks.
pub(super) fn missing(view: &dyn View, router: &str, spec: &VpcSpec) -> (Vec<&'static str>, Vec<String>) {
    let (mut fields, mut lacks) = (Vec::new(), Vec::new());
    if spec.enable_external {
        fields.push("enableExternal");
        subnet(
            view,
            router,
            &view.config().external_gateway_switch,
            " (flag --external-gateway-switch)",
            &mut lacks,
        );
    }
    if !spec.extra_external_subnets.is_empty() {
        fields.push("extraExternalSubnets");
        for name in &spec.extra_external_subnets {
            subnet(view, router, name, "", &mut lacks);
        }
    }
    if !fields.is_empty() {
        lacks.extend(gateways(view));
    }
    if spec.enable_bfd {
        fields.push("enableBfd");
        lacks.push(
            "the peers of enableBfd are OvnEips of type lsp, which this version does not act on yet; for sessions \
             with egress gateways set bfdPort"
                .into(),
        );
    }
    (fields, lacks)
}

/// What the router's port in an external subnet lacks.
fn subnet(view: &dyn View, router: &str, name: &str, whence: &str, lacks: &mut Vec<String>) {
    let Some(subnet) = view.subnet(name) else {
        lacks.push(format!("there is no Subnet {name}{whence}; create it, or name another one"));
        return;
    };
    if !subnet.spec.vlan.is_empty() {
        lacks.push(format!(
            "Subnet {name} needs the localnet port of Vlan {} and its ProviderNetwork, which this version does not \
             make yet",
            subnet.spec.vlan
        ));
    }
    lacks.push(format!(
        "the address of the router's port is OvnEip {router}-{name} of type lrp, which this version does not make yet"
    ));
}

/// What the nodes lack that would be the port's gateways.
fn gateways(view: &dyn View) -> Option<String> {
    let chosen = view.selected_nodes(&Selecting::External);
    if chosen.is_empty() {
        return Some(format!("no node has label {}=true; label the gateway nodes", keys::EXTERNAL_GW_LABEL));
    }
    let bare = |node: &&Arc<str>| view.node(node).is_none_or(|node| node.chassis.is_none());
    let bare: Vec<&str> = chosen.iter().filter(bare).map(|node| &**node).collect();
    (!bare.is_empty()).then(|| {
        format!("gateway nodes {} have no chassis yet; see that kube-ovn-cni runs there", bare.join(", "))
    })
}
