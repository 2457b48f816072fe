//! Multicast of a subnet (contract §1.1, §4.2): its switch learns who listens, and asks
//! for it with an address of its own, which a port of the switch keeps.
//!
//! Kube-OVN writes both addresses of a dual-stack subnet into `mcast_ip4_src`; here it
//! is the IPv4 one, and queries in IPv6 come from the link-local address of the MAC.

use std::net::Ipv6Addr;
use std::sync::Arc;

use crds::names;
use ovsdb::Value;
use serde_json::json;

use super::super::rows;
use crate::facts::{Column, Facts, Fields, Gate, Keep, Kind, KubeFact, ObjectRef, RowKey, Table};
use crate::ipam::mac;
use crate::objects::StringMap;
use crate::view::{Lease, LeaseState, SubnetView, View};

/// Keys of the switch's `other_config` that are written while it snoops.
const KEYS: [&str; 5] = ["mcast_snoop", "mcast_querier", "mcast_eth_src", "mcast_ip4_src", "mcast_ip6_src"];

/// What became of it.
#[derive(Default)]
pub(super) struct Querier {
    /// `other_config` of the switch; `None` where it is nobody's business.
    pub config: Option<Column>,
    /// Address and MAC for the status; `None` while it waits for an address.
    pub status: Option<(String, String)>,
    /// Why there is none.
    pub problem: Option<String>,
}

/// States the querier's port and IP object.
pub(super) fn rows(view: &dyn View, name: &Arc<str>, subnet: &SubnetView, facts: &mut Facts) -> Querier {
    if !subnet.spec.enable_multicast_snoop || subnet.deleting {
        let had = view.had_querier(name);
        return Querier {
            config: had.then(|| Column::map_without([] as [(&str, &str); 0], &KEYS)),
            status: Some(Default::default()),
            problem: None,
        };
    }
    let port: Arc<str> = names::mcast_querier(name).into();
    let lease = match view.lease(&port) {
        LeaseState::Held(lease) if lease.subnet == *name => lease,
        LeaseState::Moving => return Querier::default(),
        other => {
            facts.keeps.push(Keep::Row(RowKey::new(Table::LogicalSwitchPort, port)));
            let problem = match other {
                LeaseState::Refused(_, message) => Some(format!("enableMulticastSnoop: {message}")),
                _ => None,
            };
            return Querier { problem, ..Querier::default() };
        }
    };
    rows::named(Table::LogicalSwitchPort, &port, RowKey::new(Table::LogicalSwitch, name.clone()), "ports")
        .whole("type", Value::string(""))
        .whole("addresses", Value::strings([rows::port_address(&lease)]))
        .whole("port_security", Value::empty_set())
        .ids(&[("ls", name), ("pod", &format!("{NAMESPACE}/{port}"))])
        .add(facts);
    ip_object(name, subnet, &lease, facts);
    let status = Some((rows::joined(&lease, ","), lease.mac.to_string()));
    Querier { config: Some(config(&lease)), status, problem: None }
}

/// Namespace that its port and IP object name; there is no such pod.
const NAMESPACE: &str = "default";

/// The querier's port, as marks of its row say.
pub(crate) fn is_port(switch: &str, port: &str, pod: &str) -> bool {
    port == names::mcast_querier(switch)
        && pod.strip_prefix(NAMESPACE).and_then(|pod| pod.strip_prefix('/')) == Some(port)
}

fn config(lease: &Lease) -> Column {
    let v4 = lease.v4.map(|ip| ip.to_string());
    let v6 = lease.v6.and_then(|_| link_local(&lease.mac)).map(|ip| ip.to_string());
    let [snoop, querier, eth, ip4, ip6] = KEYS;
    let mut set = vec![(snoop, "true"), (querier, "true"), (eth, &*lease.mac)];
    set.extend([(ip4, &v4), (ip6, &v6)].into_iter().filter_map(|(key, ip)| Some((key, ip.as_deref()?))));
    Column::map_without(set, &KEYS)
}

/// The link-local address that belongs to a MAC (RFC 4291, appendix A).
fn link_local(text: &str) -> Option<Ipv6Addr> {
    let [a, b, c, d, e, f] = mac::parse(text)?;
    Some(Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f]))
}

fn ip_object(name: &Arc<str>, subnet: &SubnetView, lease: &Lease, facts: &mut Facts) {
    let owner = json!({
        "apiVersion": crds::API_VERSION, "kind": "Subnet", "name": &**name, "uid": &*subnet.uid,
    });
    let none = StringMap::new();
    let whose =
        rows::IpOwner { namespace: NAMESPACE, pod: &lease.port, pod_type: "", node: "", annotations: &none };
    facts.kube.push(KubeFact {
        object: ObjectRef::cluster(Kind::Ip, lease.port.clone()),
        uid: None,
        gate: Gate::Now,
        fields: Fields::Object(rows::ip_object(lease, &whose, Some(owner))),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_in_ipv6_come_from_the_macs_link_local_address() {
        assert_eq!(link_local("02:00:00:12:34:56").unwrap().to_string(), "fe80::ff:fe12:3456");
        assert_eq!(link_local("0a:58:00:00:00:01").unwrap().to_string(), "fe80::858:ff:fe00:1");
        assert_eq!(link_local("x"), None);
    }
}
