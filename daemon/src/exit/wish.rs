//! What the node's port in the external network has to be like: from objects to a wish. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::kube::{OvnEipFacts, SubnetFacts};
use crate::netlink::Mac;
use crate::node::NotYet;
use crate::ovs::{BR_INT, PortSpec};

/// The step in reasons.
pub(super) const STEP: &str = "external gateway port";
/// Device and port.
pub const OVNEXT0: &str = "ovnext0";
/// Namespace.
pub const OVNEXT: &str = "ovnext";

/// The port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Logical port: the node's name.
    pub port_name: String,
    /// UID of the OvnEip.
    pub uid: String,
    /// The node has said that it is ready.
    pub told: bool,
    /// MAC.
    pub mac: Mac,
    /// Addresses with the prefix lengths of the external subnet.
    pub addresses: Vec<IpNet>,
    /// Routers of the external network.
    pub gateways: Vec<IpAddr>,
    /// They have to answer, or the node is no way out (`disableGatewayCheck` of the Subnet is not set).
    pub asked: bool,
    /// MTU; absent leaves the kernel's default.
    pub mtu: Option<u32>,
    /// Routers' ports that may watch the node.
    pub peers: BTreeSet<IpAddr>,
}

impl Wish {
    /// From the OvnEip with the node's name; `None` when there is none, or it has no address yet.
    ///
    /// # Errors
    /// What is missing or wrong, with the remedy.
    pub fn read(
        node: &str,
        eips: &BTreeMap<std::sync::Arc<str>, std::sync::Arc<OvnEipFacts>>,
        subnet: impl Fn(&str) -> Option<std::sync::Arc<SubnetFacts>>,
    ) -> Result<Option<Self>, NotYet> {
        let Some(eip) = eips.get(node).filter(|eip| eip.kind == "lsp" && !eip.deleting) else {
            return Ok(None);
        };
        if eip.addresses.is_empty() {
            return Ok(None);
        }
        let wrong = |what: String, remedy: &str| NotYet::new(STEP, what, remedy);
        let Some(of) = subnet(&eip.subnet) else {
            return Err(wrong(
                format!("OvnEip {node} is of Subnet {}, which does not exist", eip.subnet),
                "create the Subnet, or delete the OvnEip",
            ));
        };
        let cidrs: Vec<IpNet> =
            of.cidr_block.split(',').filter_map(|text| text.trim().parse().ok()).collect();
        let mac = eip.mac.parse().map_err(|_| {
            wrong(format!("OvnEip {node} has MAC {:?}", eip.mac), "delete the OvnEip and create it again")
        })?;
        let with_prefix = |ip: &IpAddr| {
            let net = cidrs.iter().find(|net| net.contains(ip));
            net.and_then(|net| IpNet::new(*ip, net.prefix_len()).ok()).ok_or_else(|| {
                wrong(
                    format!("address {ip} of OvnEip {node} is outside of Subnet {}", of.name),
                    "delete the OvnEip and create it again",
                )
            })
        };
        let addresses = eip.addresses.iter().map(with_prefix).collect::<Result<Vec<_>, _>>()?;
        let family = |ip: &IpAddr| addresses.iter().any(|net| net.addr().is_ipv4() == ip.is_ipv4());
        let gateways = of
            .gateway
            .split(',')
            .filter_map(|text| text.trim().parse().ok())
            .filter(|ip| family(ip))
            .collect();
        let watching =
            eips.values().filter(|other| other.kind == "lrp" && other.ready && other.subnet == eip.subnet);
        Ok(Some(Self {
            port_name: node.to_owned(),
            uid: eip.uid.clone(),
            told: eip.ready,
            mac,
            addresses,
            gateways,
            asked: !of.disable_gateway_check,
            mtu: (of.mtu > 0).then_some(of.mtu),
            peers: watching.flat_map(|eip| eip.addresses.iter().copied()).collect(),
        }))
    }

    /// Gateways that are asked whether they are there.
    pub fn asked_gateways(&self) -> &[IpAddr] {
        if self.asked { &self.gateways } else { &[] }
    }

    /// The routers' ports of families whose gateways answer.
    pub fn served(&self, silent: &BTreeSet<IpAddr>) -> BTreeSet<IpAddr> {
        let dead = |peer: &&IpAddr| silent.iter().any(|gateway| gateway.is_ipv4() == peer.is_ipv4());
        self.peers.iter().filter(|peer| !dead(peer)).copied().collect()
    }

    /// The OVS port. Without `vendor`, as `ovn0`: nobody's clean-up takes it.
    pub fn port(&self) -> PortSpec {
        let ips: Vec<String> = self.addresses.iter().map(|net| net.addr().to_string()).collect();
        PortSpec {
            bridge: BR_INT.to_owned(),
            name: OVNEXT0.to_owned(),
            kind: "internal".to_owned(),
            external_ids: BTreeMap::from([
                ("iface-id".to_owned(), self.port_name.clone()),
                ("ip".to_owned(), ips.join(",")),
                ("pod_netns".to_owned(), OVNEXT.to_owned()),
            ]),
            mac: Some(self.mac.to_string()),
            mtu_request: self.mtu,
            ..PortSpec::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn eip(kind: &str, addresses: &[&str], ready: bool) -> Arc<OvnEipFacts> {
        Arc::new(OvnEipFacts {
            uid: "u".into(),
            kind: kind.into(),
            ready,
            deleting: false,
            subnet: "ext".into(),
            addresses: addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
            mac: "02:00:00:00:00:01".into(),
        })
    }

    fn subnet(name: &str) -> Option<Arc<SubnetFacts>> {
        (name == "ext").then(|| {
            Arc::new(SubnetFacts {
                name: name.into(),
                cidr_block: "172.16.0.0/24,fd16::/64".into(),
                gateway: "172.16.0.1,fd16::1".into(),
                ..SubnetFacts::default()
            })
        })
    }

    #[test]
    fn the_ovneip_with_the_nodes_name_is_the_port() {
        let eips = BTreeMap::from([
            ("n-1".into(), eip("lsp", &["172.16.0.9"], false)),
            ("blue-ext".into(), eip("lrp", &["172.16.0.5"], true)),
            ("red-ext".into(), eip("lrp", &["172.16.0.6"], false)),
            ("n-2".into(), eip("lsp", &["172.16.0.8"], true)),
        ]);
        let wish = Wish::read("n-1", &eips, subnet).unwrap().unwrap();
        assert_eq!(wish.addresses, ["172.16.0.9/24".parse::<IpNet>().unwrap()]);
        assert_eq!(wish.gateways, ["172.16.0.1".parse::<IpAddr>().unwrap()], "of its families only");
        assert_eq!(wish.peers, BTreeSet::from(["172.16.0.5".parse().unwrap()]), "ready routers' ports only");
        let port = wish.port();
        assert_eq!((&*port.external_ids["iface-id"], &*port.external_ids["ip"]), ("n-1", "172.16.0.9"));
        assert_eq!(Wish::read("n-3", &eips, subnet).unwrap(), None);
        assert_eq!(Wish::read("blue-ext", &eips, subnet).unwrap(), None, "a router's is no node's");
    }

    #[test]
    fn what_is_wrong_is_said_with_its_remedy() {
        let with = |eip: OvnEipFacts| BTreeMap::from([("n-1".into(), Arc::new(eip))]);
        let good = (*eip("lsp", &["172.16.0.9"], false)).clone();
        for (bad, word) in [
            (OvnEipFacts { subnet: "gone".into(), ..good.clone() }, "gone"),
            (OvnEipFacts { addresses: vec!["10.0.0.1".parse().unwrap()], ..good.clone() }, "10.0.0.1"),
            (OvnEipFacts { mac: "x".into(), ..good.clone() }, "MAC"),
        ] {
            let error = Wish::read("n-1", &with(bad), subnet).unwrap_err();
            assert!(error.reason.contains(word) && !error.remedy.is_empty(), "{error}");
        }
        for none in
            [OvnEipFacts { deleting: true, ..good.clone() }, OvnEipFacts { addresses: Vec::new(), ..good }]
        {
            assert_eq!(Wish::read("n-1", &with(none), subnet).unwrap(), None);
        }
    }
}
