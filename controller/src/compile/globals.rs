//! What stands once for the whole cluster: options of `NB_Global` (contract §4.9), the
//! nodes' addresses for private subnets, and the objects that exist from the start
//! (§5.1). The objects are made once; from then on they are their users'.

use crds::{API_VERSION, keys, net};
use serde_json::{Value, json};

use super::rows::{self, RowBuilder, root, top};
use crate::facts::{Column, Facts, Fields, Gate, Kind, KubeFact, ObjectRef, RowKey, Table};
use crate::io::Config;
use crate::view::View;

pub(super) fn compile(view: &dyn View) -> Facts {
    let mut facts = Facts::default();
    let config = view.config();
    options(config).add(&mut facts);
    node_gate(view, &mut facts);
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

/// The nodes' addresses, for the ACLs of private subnets: one row a family, whatever
/// the number of nodes, private subnets and pods.
fn node_gate(view: &dyn View, facts: &mut Facts) {
    let gate = view.node_gate();
    let v4 = gate.v4.as_ref().map(|ips| ips.iter().map(ToString::to_string).collect::<Vec<_>>());
    let v6 = gate.v6.as_ref().map(|ips| ips.iter().map(ToString::to_string).collect::<Vec<_>>());
    for (is_v4, ips) in [(true, v4), (false, v6)] {
        if let Some(ips) = ips {
            root(Table::AddressSet, rows::nodes_set(is_v4))
                .whole("addresses", ovsdb::Value::strings(ips))
                .ids(&[])
                .add(facts);
        }
    }
}

/// Options that only Kube-OVN's patched OVN honours, with the value that changes
/// nothing (contract §4.10). Whether a server has the patches can't be asked: the
/// option is written as the flag says, stock OVN ignores it, and whoever asked for
/// more than the default is told by `weir_patched_ovn_options` and a warning at start.
pub(crate) const PATCHED: [(&str, &str); 4] = [
    ("ls_dnat_mod_dl_dst", "true"),
    ("ls_ct_skip_dst_lport_ips", "true"),
    ("node_local_dns_ip", ""),
    ("skip_conntrack_dst_cidrs", ""),
];

/// The value of each option of [`PATCHED`] that the flags ask for.
pub(crate) fn patched(config: &Config) -> [(&'static str, &str); 4] {
    let flag = |on: bool| if on { "true" } else { "false" };
    let [dnat, skip, dns, cidrs] = PATCHED.map(|(name, _)| name);
    [
        (dnat, flag(config.ls_dnat_mod_dl_dst)),
        (skip, flag(config.ls_ct_skip_dst_lport_ips)),
        (dns, &config.node_local_dns_ip),
        (cidrs, &config.skip_conntrack_dst_cidrs),
    ]
}

/// Options whose value the flags ask for and that stock OVN does not honour.
pub(crate) fn unhonoured(config: &Config) -> Vec<&'static str> {
    let asked = patched(config).into_iter().zip(PATCHED);
    asked.filter(|((_, value), (_, usual))| value != usual).map(|((name, _), _)| name).collect()
}

/// Options by the flags; one whose flag was emptied again goes.
fn options(config: &Config) -> RowBuilder {
    let backoff = config.northd_backoff_ms.to_string();
    let mut set = vec![("use_ct_inv_match", "false"), ("northd-backoff-interval-ms", &*backoff)];
    set.extend(patched(config).into_iter().filter(|(_, value)| !value.is_empty()));
    const NAMES: [&str; 4] = [PATCHED[0].0, PATCHED[1].0, PATCHED[2].0, PATCHED[3].0];
    top(RowKey::new(Table::NbGlobal, "."))
        .column("options", Column::map_without(set, &NAMES))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Bench, config};
    use serde_json::json;

    fn started(config: Config, before: &[(&str, &str)]) -> Bench {
        let mut bench = Bench::new(1);
        bench.transact(&[ovsdb::Operation::insert("NB_Global")
            .column("options", ovsdb::Value::string_map(before.iter().copied()))
            .build()]);
        let leader = bench.start_with(crate::core::Core::new(config, crate::compile::compile));
        bench.elect(leader);
        bench.settle();
        bench
    }

    fn option(bench: &Bench, name: &str) -> Option<String> {
        let replica = bench.db.replica();
        let row = replica.table("NB_Global").unwrap().rows().next().unwrap();
        row.map_get("options", name).map(str::to_owned)
    }

    #[test]
    fn an_option_whose_flag_is_emptied_goes_and_others_stay() {
        let before = [("node_local_dns_ip", "169.254.20.10"), ("mac_prefix", "0a:00:00")];
        let bench = started(config(), &before);
        assert_eq!(option(&bench, "node_local_dns_ip"), None);
        assert_eq!(option(&bench, "mac_prefix").as_deref(), Some("0a:00:00"));
        assert_eq!(option(&bench, "use_ct_inv_match").as_deref(), Some("false"));
        assert!(unhonoured(&config()).is_empty());
        let asking = Config { node_local_dns_ip: "169.254.20.10,fd00::a".into(), ..config() };
        assert_eq!(unhonoured(&asking), ["node_local_dns_ip"]);
        let bench = started(asking, &[]);
        assert_eq!(option(&bench, "node_local_dns_ip").as_deref(), Some("169.254.20.10,fd00::a"));
        assert_eq!(bench.api.names(Kind::Vpc).len(), 1, "{}", json!(bench.core().counters()));
    }
}
