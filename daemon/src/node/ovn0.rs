//! `ovn0`, the node's port on the join switch (node contract §3.3). The pure
//! part: from the node's annotations to what the interface must look like.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use super::{NotYet, OVN0};
use crate::kube::NodeFacts;
use crate::netlink::Mac;
use crate::ovs::{BR_INT, PortSpec};

const STEP: &str = "ovn0";

/// What the controller gave the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// Logical port, `node-<node>`.
    pub port_name: String,
    /// MAC.
    pub mac: Mac,
    /// Addresses with the join subnet's prefix lengths.
    pub addresses: Vec<IpNet>,
    /// Gateways.
    pub gateways: Vec<IpAddr>,
}

impl Join {
    /// From the node's annotations.
    ///
    /// # Errors
    /// What is missing or wrong; the controller may still put it right.
    pub fn read(node: &NodeFacts) -> Result<Self, NotYet> {
        let missing = |key: &str| {
            NotYet::new(
                STEP,
                format!("the node has no annotation {key} yet"),
                "the controller writes it: look at kube-ovn-controller's log",
            )
        };
        let get = |key: &str| node.annotation(key).ok_or_else(|| missing(key));
        let wrong = |key: &str, text: &str| {
            NotYet::new(
                STEP,
                format!("annotation {key} is wrong: {text:?}"),
                "remove it; the controller writes it anew",
            )
        };
        let ips =
            list::<IpAddr>(get(crds::keys::IP_ADDRESS)?).map_err(|t| wrong(crds::keys::IP_ADDRESS, &t))?;
        let cidrs = list::<IpNet>(get(crds::keys::CIDR)?).map_err(|t| wrong(crds::keys::CIDR, &t))?;
        let gateways =
            list::<IpAddr>(get(crds::keys::GATEWAY)?).map_err(|t| wrong(crds::keys::GATEWAY, &t))?;
        let mac = get(crds::keys::MAC_ADDRESS)?;
        let mac = mac.parse().map_err(|_| wrong(crds::keys::MAC_ADDRESS, mac))?;
        let addresses = ips
            .iter()
            .map(|ip| {
                let cidr = cidrs.iter().find(|cidr| cidr.contains(ip));
                cidr.and_then(|cidr| IpNet::new(*ip, cidr.prefix_len()).ok())
                    .ok_or_else(|| wrong(crds::keys::CIDR, &format!("{ip} is in no prefix of it")))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let gateways: Vec<IpAddr> = gateways
            .into_iter()
            .filter(|gateway| addresses.iter().any(|net| net.addr().is_ipv6() == gateway.is_ipv6()))
            .collect();
        let port_name = node
            .annotation(crds::keys::PORT_NAME)
            .map_or_else(|| crds::names::node_port(&node.name), str::to_owned);
        Ok(Self { port_name, mac, addresses, gateways })
    }

    /// The OVS port. Without `vendor`, so that nobody's clean-up takes it.
    pub fn port(&self, mtu: u32) -> PortSpec {
        let ips: Vec<String> = self.addresses.iter().map(|net| net.addr().to_string()).collect();
        PortSpec {
            bridge: BR_INT.to_owned(),
            name: OVN0.to_owned(),
            kind: "internal".to_owned(),
            external_ids: BTreeMap::from([
                ("iface-id".to_owned(), self.port_name.clone()),
                ("ip".to_owned(), ips.join(",")),
            ]),
            // ovs-vswitchd gives them again to an interface that it makes anew.
            mac: Some(self.mac.to_string()),
            mtu_request: (mtu > 0).then_some(mtu),
            ..PortSpec::default()
        }
    }
}

fn list<T: std::str::FromStr>(text: &str) -> Result<Vec<T>, String> {
    text.split(',').map(str::trim).map(|part| part.parse().map_err(|_| part.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(pairs: &[(&str, &str)]) -> NodeFacts {
        NodeFacts {
            name: "n-1".into(),
            annotations: pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            ..NodeFacts::default()
        }
    }

    const READY: &[(&str, &str)] = &[
        (crds::keys::IP_ADDRESS, "100.64.0.2,fd00:100::2"),
        (crds::keys::CIDR, "100.64.0.0/16,fd00:100::/112"),
        (crds::keys::GATEWAY, "100.64.0.1,fd00:100::1"),
        (crds::keys::MAC_ADDRESS, "0a:58:64:40:00:02"),
    ];

    #[test]
    fn annotations_become_an_interface() {
        let join = Join::read(&node(READY)).unwrap();
        assert_eq!(join.port_name, "node-n-1");
        let spec = join.port(1400);
        assert_eq!(spec.external_ids["ip"], "100.64.0.2,fd00:100::2");
        assert_eq!((spec.mtu_request, spec.kind.as_str()), (Some(1400), "internal"));
        assert!(!spec.external_ids.contains_key("vendor"));
    }

    #[test]
    fn every_missing_annotation_is_named() {
        for (missing, _) in READY {
            let rest: Vec<_> = READY.iter().copied().filter(|(key, _)| key != missing).collect();
            let error = Join::read(&node(&rest)).unwrap_err();
            assert!(error.reason.contains(missing), "{error}");
        }
    }

    #[test]
    fn an_address_outside_the_prefix_is_refused() {
        let mut pairs = READY.to_vec();
        pairs[0].1 = "10.0.0.1";
        assert!(Join::read(&node(&pairs)).is_err());
    }
}
