//! Whether this node is a member of a provider network, and with which NIC (node contract §3.5). Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::gateway::selects;
use crate::kube::{OwnNodeFacts, ProviderNetworkFacts, VlanFacts};
use crate::node::NotYet;

use super::not_yet;

/// Longest name of a link.
const LINK_NAME: usize = 15;

/// What a member node has to have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// ProviderNetwork.
    pub network: String,
    /// The NIC's own name.
    pub nic: String,
    /// NIC and bridge swap names.
    pub exchange: bool,
    /// VLANs that the NIC carries; untagged packets are VLAN 0.
    pub trunks: BTreeSet<u16>,
    /// VLAN links that go on working.
    pub vlan_interfaces: Vec<String>,
    /// All VLAN links named after the NIC go on working.
    pub preserve_vlans: bool,
    /// Make the NIC if it is named as a VLAN and missing.
    pub auto_create: bool,
}

impl Wish {
    /// Name of the OVS bridge.
    pub fn bridge(&self) -> String {
        if self.exchange { self.nic.clone() } else { crds::names::provider_bridge(&self.network) }
    }

    /// Name of the NIC once it is in the bridge.
    pub fn device(&self) -> String {
        if self.exchange { crds::names::provider_bridge(&self.network) } else { self.nic.clone() }
    }
}

/// Whether a node belongs to a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Membership {
    /// It does.
    Member(Wish),
    /// It does not.
    Excluded,
    /// The object can't be carried out.
    Wrong(NotYet),
}

/// Decides. With a selector only that counts, else the list of excluded nodes.
pub fn membership(
    network: &ProviderNetworkFacts,
    vlans: &BTreeMap<Arc<str>, Arc<VlanFacts>>,
    node: &str,
    own: &OwnNodeFacts,
) -> Membership {
    let excluded = match &network.node_selector {
        Some(selector) => !selects(selector, &own.labels),
        None => network.exclude_nodes.iter().any(|name| name == node),
    };
    if excluded {
        return Membership::Excluded;
    }
    let custom = network.custom_interfaces.iter().find(|(_, nodes)| nodes.iter().any(|name| name == node));
    let nic = custom.map_or(network.default_interface.as_str(), |(nic, _)| nic.as_str());
    let bridge = crds::names::provider_bridge(&network.name);
    if bridge.len() > LINK_NAME {
        return Membership::Wrong(not_yet(
            format!("bridge {bridge} would have a name of more than {LINK_NAME} characters"),
            "make the network anew with a name of at most 12 characters",
        ));
    }
    let wrong = |character: char| character == '/' || character.is_whitespace();
    if nic.is_empty() || nic.len() > LINK_NAME || nic.contains(wrong) || nic == bridge {
        return Membership::Wrong(not_yet(
            format!("{nic:?} can't be the NIC of provider network {}", network.name),
            "correct spec.defaultInterface or spec.customInterfaces of the ProviderNetwork",
        ));
    }
    let used = vlans.iter().filter(|(name, vlan)| {
        vlan.provider == network.name || network.vlans.iter().any(|listed| **listed == ***name)
    });
    Membership::Member(Wish {
        network: network.name.clone(),
        nic: nic.to_owned(),
        exchange: network.exchange_link_name,
        trunks: used.map(|(_, vlan)| vlan.id).chain([0]).collect(),
        vlan_interfaces: network.vlan_interfaces.clone(),
        preserve_vlans: network.preserve_vlan_interfaces,
        auto_create: network.auto_create_vlan_subinterfaces,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn net1() -> ProviderNetworkFacts {
        ProviderNetworkFacts {
            name: "net1".into(),
            default_interface: "eth0".into(),
            custom_interfaces: vec![("enp1s0".into(), vec!["node1".into()])],
            exclude_nodes: vec!["node2".into()],
            vlans: vec!["vlan1".into()],
            ..ProviderNetworkFacts::default()
        }
    }

    fn vlans() -> BTreeMap<Arc<str>, Arc<VlanFacts>> {
        let vlan = |id, provider: &str| Arc::new(VlanFacts { id, provider: provider.into() });
        BTreeMap::from([
            ("vlan1".into(), vlan(100, "net1")),
            ("new".into(), vlan(101, "net1")),
            ("other".into(), vlan(7, "net2")),
        ])
    }

    fn nic(network: &ProviderNetworkFacts, node: &str, labels: &[(&str, &str)]) -> Option<String> {
        let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        match membership(network, &vlans(), node, &OwnNodeFacts { labels, ..OwnNodeFacts::default() }) {
            Membership::Member(wish) => Some(wish.nic),
            Membership::Excluded => None,
            Membership::Wrong(reason) => panic!("{reason}"),
        }
    }

    #[test]
    fn k_091_k_092_nodes_have_their_nic_or_none() {
        let network = net1();
        assert_eq!(nic(&network, "node1", &[]).as_deref(), Some("enp1s0"));
        assert_eq!(nic(&network, "node2", &[]), None);
        assert_eq!(nic(&network, "node3", &[]).as_deref(), Some("eth0"));
    }

    #[test]
    fn a_selector_beats_the_list_of_excluded_nodes() {
        let mut network = net1();
        network.node_selector = Some(json!({"matchLabels": {"rack": "a"}}));
        assert_eq!(nic(&network, "node2", &[("rack", "a")]).as_deref(), Some("eth0"));
        assert_eq!(nic(&network, "node3", &[("rack", "b")]), None);
    }

    #[test]
    fn the_nic_carries_the_vlans_of_its_network() {
        let Membership::Member(mut wish) = membership(&net1(), &vlans(), "node3", &OwnNodeFacts::default())
        else {
            panic!("a member");
        };
        assert_eq!(wish.trunks, BTreeSet::from([0, 100, 101]));
        assert_eq!((wish.bridge().as_str(), wish.device().as_str()), ("br-net1", "eth0"));
        wish.exchange = true;
        assert_eq!((wish.bridge().as_str(), wish.device().as_str()), ("eth0", "br-net1"));
    }

    #[test]
    fn k_094_a_name_of_thirteen_characters_is_refused() {
        for (name, nic, word) in [
            ("a-provider-13", "eth0", "12 characters"),
            ("net1", "", "defaultInterface"),
            ("net1", "e/0", "defaultInterface"),
            ("net1", "br-net1", "defaultInterface"),
        ] {
            let network = ProviderNetworkFacts {
                name: name.into(),
                default_interface: nic.into(),
                ..ProviderNetworkFacts::default()
            };
            let Membership::Wrong(reason) =
                membership(&network, &BTreeMap::new(), "n", &OwnNodeFacts::default())
            else {
                panic!("{name} {nic}");
            };
            assert!(reason.to_string().contains(word), "{reason}");
        }
    }
}
