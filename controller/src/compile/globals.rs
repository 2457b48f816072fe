//! What flags decide for the whole cluster: options of `NB_Global` (contract
//! §4.9), and the objects that exist from the start (§5.1). The objects are made
//! once; from then on they are their users'.

use crds::{API_VERSION, keys, net};
use serde_json::{Value, json};

use super::rows::{RowBuilder, top};
use crate::facts::{Facts, Fields, Gate, Kind, KubeFact, ObjectRef, RowKey, Table};
use crate::io::Config;
use crate::view::View;

pub(super) fn compile(view: &dyn View) -> Facts {
    let mut facts = Facts::default();
    let config = view.config();
    options(config).add(&mut facts);
    for (kind, name, body) in [
        (Kind::Vpc, &config.cluster_router, vpc(config)),
        (Kind::Subnet, &config.node_switch, join_subnet(config)),
        (Kind::Subnet, &config.default_ls, default_subnet(config)),
    ] {
        facts.kube.push(KubeFact {
            object: ObjectRef::cluster(kind, name.clone()),
            uid: None,
            gate: Gate::Now,
            fields: Fields::Created(body),
        });
    }
    facts
}

/// Options that stock OVN does not know are written all the same: it ignores
/// them, and on a server with Kube-OVN's patches they do what the flag says.
fn options(config: &Config) -> RowBuilder {
    let flag = |on: bool| if on { "true" } else { "false" };
    let backoff = config.northd_backoff_ms.to_string();
    let mut options = vec![
        ("use_ct_inv_match", "false"),
        ("ls_dnat_mod_dl_dst", flag(config.ls_dnat_mod_dl_dst)),
        ("ls_ct_skip_dst_lport_ips", flag(config.ls_ct_skip_dst_lport_ips)),
        ("northd-backoff-interval-ms", &backoff),
    ];
    if !config.node_local_dns_ip.is_empty() {
        options.push(("node_local_dns_ip", &config.node_local_dns_ip));
    }
    if !config.skip_conntrack_dst_cidrs.is_empty() {
        options.push(("skip_conntrack_dst_cidrs", &config.skip_conntrack_dst_cidrs));
    }
    top(RowKey::new(Table::NbGlobal, "."))
        .keys("options", options)
        .keys("external_ids", [("kube-ovn-version", &*config.version)])
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": { "name": name, "finalizers": [keys::FINALIZER] },
        "spec": spec,
    })
}

fn vpc(config: &Config) -> Value {
    object("Vpc", &config.cluster_router, json!({}))
}

/// The given gateway, completed by the first usable address of a family that it
/// lacks. Flags were validated at start; what does not parse stays as it is and
/// shows in the subnet's condition.
fn gateway(cidr: &str, given: &str) -> String {
    match (net::parse_dual_cidrs(cidr), net::parse_dual_ips(given)) {
        (Ok(nets), Ok(ips)) => {
            let first = nets.first_usable();
            net::DualIps { v4: ips.v4.or(first.v4), v6: ips.v6.or(first.v6) }.to_string()
        }
        _ => given.to_owned(),
    }
}

fn protocol(cidr: &str) -> &'static str {
    net::parse_dual_cidrs(cidr).map_or("", |nets| nets.protocol())
}

fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

fn join_subnet(config: &Config) -> Value {
    let gateway = gateway(&config.node_switch_cidr, &config.node_switch_gateway);
    let spec = json!({
        "vpc": &*config.cluster_router,
        "default": false,
        "provider": keys::DEFAULT_PROVIDER,
        "protocol": protocol(&config.node_switch_cidr),
        "cidrBlock": &*config.node_switch_cidr,
        "gateway": gateway,
        "excludeIps": list(&gateway).collect::<Vec<_>>(),
        "gatewayType": "distributed",
        "gatewayNode": "",
        "natOutgoing": false,
        "private": false,
        "disableInterConnection": true,
    });
    object("Subnet", &config.node_switch, spec)
}

fn default_subnet(config: &Config) -> Value {
    let gateway = gateway(&config.default_cidr, &config.default_gateway);
    let excludes: Vec<&str> = list(&gateway).chain(list(&config.default_exclude_ips)).collect();
    let spec = json!({
        "vpc": &*config.cluster_router,
        "default": true,
        "provider": keys::DEFAULT_PROVIDER,
        "protocol": protocol(&config.default_cidr),
        "cidrBlock": &*config.default_cidr,
        "gateway": gateway,
        "excludeIps": excludes,
        "gatewayType": "distributed",
        "gatewayNode": "",
        "natOutgoing": true,
        "private": false,
        "disableGatewayCheck": !config.default_gateway_check,
        "enableLb": config.enable_lb,
    });
    object("Subnet", &config.default_ls, spec)
}
