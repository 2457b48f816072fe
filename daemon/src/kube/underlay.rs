//! Projections of what underlay networks are made of: ProviderNetworks, Vlans, this node with all its labels, the
//! external gateway's configuration.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::facts::{flag, list, map, named, text};

/// A ProviderNetwork: a physical network that some nodes are bridged to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProviderNetworkFacts {
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Being deleted.
    pub deleting: bool,
    /// NIC of nodes that no entry of `custom_interfaces` lists.
    pub default_interface: String,
    /// NIC and its nodes.
    pub custom_interfaces: Vec<(String, Vec<String>)>,
    /// Label selector of the member nodes; `exclude_nodes` counts only without it.
    pub node_selector: Option<Value>,
    /// Nodes that are no members.
    pub exclude_nodes: Vec<String>,
    /// The bridge gets the NIC's name, the NIC the bridge's.
    pub exchange_link_name: bool,
    /// Make a NIC that is named `<link>.<id>` and missing.
    pub auto_create_vlan_subinterfaces: bool,
    /// All VLAN links on the NIC go on working.
    pub preserve_vlan_interfaces: bool,
    /// VLAN links that go on working.
    pub vlan_interfaces: Vec<String>,
    /// Status: names of its Vlans.
    pub vlans: Vec<String>,
}

/// A Vlan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VlanFacts {
    /// VLAN id, 0 is untagged.
    pub id: u16,
    /// ProviderNetwork.
    pub provider: String,
}

/// This node, with everything that a selector may ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnNodeFacts {
    /// UID.
    pub uid: String,
    /// All labels.
    pub labels: BTreeMap<String, String>,
}

/// The ConfigMap `ovn-external-gw-config`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExternalGatewayFacts {
    /// Key `external-gw-nic`.
    pub nic: String,
}

/// An OvnEip of a router's port or of a node's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OvnEipFacts {
    /// UID.
    pub uid: String,
    /// `lrp` or `lsp`, from the controller's label.
    pub kind: String,
    /// In place.
    pub ready: bool,
    /// Being deleted.
    pub deleting: bool,
    /// Its external subnet, from the controller's label.
    pub subnet: String,
    /// Addresses that it has.
    pub addresses: Vec<std::net::IpAddr>,
    /// MAC that it has.
    pub mac: String,
}

/// A Service of type LoadBalancer: what is reached at addresses of the physical network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceFacts {
    /// UID.
    pub uid: String,
    /// Being deleted.
    pub deleting: bool,
    /// Annotation: the Subnet that its addresses are from.
    pub subnet: String,
    /// Status: its addresses; without any it has no flows.
    pub addresses: BTreeSet<std::net::IpAddr>,
    /// Protocol (`TCP`, `UDP`, `SCTP`) and port.
    pub ports: BTreeSet<(String, u16)>,
}

fn names(value: &Value, pointer: &str) -> Vec<String> {
    list(value, pointer).iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

impl ProviderNetworkFacts {
    /// From the object as the API server sends it.
    pub(super) fn project(value: &Value) -> Result<Self, String> {
        Ok(Self {
            name: named(value)?,
            uid: text(value, "/metadata/uid"),
            deleting: value.pointer("/metadata/deletionTimestamp").is_some(),
            default_interface: text(value, "/spec/defaultInterface"),
            custom_interfaces: list(value, "/spec/customInterfaces")
                .iter()
                .map(|custom| (text(custom, "/interface"), names(custom, "/nodes")))
                .collect(),
            node_selector: value
                .pointer("/spec/nodeSelector")
                .filter(|selector| !selector.is_null())
                .cloned(),
            exclude_nodes: names(value, "/spec/excludeNodes"),
            exchange_link_name: flag(value, "/spec/exchangeLinkName"),
            auto_create_vlan_subinterfaces: flag(value, "/spec/autoCreateVlanSubinterfaces"),
            preserve_vlan_interfaces: flag(value, "/spec/preserveVlanInterfaces"),
            vlan_interfaces: names(value, "/spec/vlanInterfaces"),
            vlans: names(value, "/status/vlans"),
        })
    }
}

impl VlanFacts {
    /// From the object as the API server sends it; the old names of the fields count where the new ones are missing.
    pub(super) fn project(value: &Value) -> Result<Self, String> {
        named(value)?;
        let number = |pointer| value.pointer(pointer).and_then(Value::as_u64).filter(|id| *id > 0);
        let id = number("/spec/id").or_else(|| number("/spec/vlanId")).unwrap_or_default();
        let id = u16::try_from(id).ok().filter(|id| *id < 4096);
        let provider = Some(text(value, "/spec/provider")).filter(|name| !name.is_empty());
        Ok(Self {
            id: id.ok_or("spec.id is no VLAN id (0 to 4095)")?,
            provider: provider.unwrap_or_else(|| text(value, "/spec/providerInterfaceName")),
        })
    }
}

impl OwnNodeFacts {
    /// From the object as the API server sends it.
    pub(super) fn project(value: &Value) -> Result<Self, String> {
        named(value)?;
        Ok(Self { uid: text(value, "/metadata/uid"), labels: map(value, "/metadata/labels", |_| true) })
    }
}

impl OvnEipFacts {
    /// From the object as the API server sends it.
    pub(super) fn project(value: &Value) -> Result<Self, String> {
        named(value)?;
        let labels = map(value, "/metadata/labels", |_| true);
        let label = |key: &str| labels.get(key).cloned().unwrap_or_default();
        let addresses = ["/status/v4Ip", "/status/v6Ip"].map(|pointer| text(value, pointer));
        Ok(Self {
            uid: text(value, "/metadata/uid"),
            kind: label(crds::keys::OVN_EIP_TYPE_LABEL),
            ready: flag(value, "/status/ready"),
            deleting: value.pointer("/metadata/deletionTimestamp").is_some(),
            subnet: label(crds::keys::SUBNET_LABEL),
            addresses: addresses.iter().filter_map(|text| text.parse().ok()).collect(),
            mac: text(value, "/status/macAddress"),
        })
    }
}

impl ServiceFacts {
    /// From the object as the API server sends it. Without an address nothing is of interest.
    pub(super) fn project(value: &Value) -> Result<Self, String> {
        named(value)?;
        let ingress = list(value, "/status/loadBalancer/ingress").iter();
        let addresses: BTreeSet<_> = ingress.filter_map(|one| text(one, "/ip").parse().ok()).collect();
        if addresses.is_empty() {
            return Ok(Self::default());
        }
        let ports = list(value, "/spec/ports").iter().filter_map(|port| {
            let number = port.pointer("/port").and_then(Value::as_u64)?;
            let protocol = Some(text(port, "/protocol")).filter(|protocol| !protocol.is_empty());
            Some((protocol.unwrap_or_else(|| "TCP".into()), u16::try_from(number).ok()?))
        });
        let annotations = map(value, "/metadata/annotations", |key| key == crds::keys::SERVICE_SUBNET);
        Ok(Self {
            uid: text(value, "/metadata/uid"),
            deleting: value.pointer("/metadata/deletionTimestamp").is_some(),
            subnet: annotations.into_values().next().unwrap_or_default(),
            addresses,
            ports: ports.collect(),
        })
    }
}

impl ExternalGatewayFacts {
    /// From the object as the API server sends it.
    pub(super) fn project(value: &Value) -> Result<Self, String> {
        named(value)?;
        Ok(Self { nic: text(value, "/data/external-gw-nic").trim().to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn k_090_a_provider_network_is_read() {
        let network = ProviderNetworkFacts::project(&json!({
            "metadata": {"name": "net1", "uid": "u"},
            "spec": {"defaultInterface": "eth0", "excludeNodes": ["node2"],
                "customInterfaces": [{"interface": "enp1s0", "nodes": ["node1"]}], "vlanInterfaces": ["eth0.5"]},
            "status": {"ready": true, "vlans": ["vlan1"], "readyNodes": ["node1"]}
        }))
        .unwrap();
        assert_eq!(network.custom_interfaces, [("enp1s0".to_owned(), vec!["node1".to_owned()])]);
        assert_eq!((network.default_interface.as_str(), network.vlans.len()), ("eth0", 1));
        assert!(network.node_selector.is_none() && !network.deleting && !network.exchange_link_name);
    }

    #[test]
    fn an_ovneip_is_what_the_controller_made_of_it() {
        let eip = OvnEipFacts::project(&json!({
            "metadata": {"name": "n1", "uid": "u", "labels": {"ovn.kubernetes.io/ovn_eip_type": "lsp",
                "ovn.kubernetes.io/subnet": "ext"}},
            "spec": {"type": "lsp", "v4Ip": "172.16.0.77"},
            "status": {"v4Ip": "172.16.0.9", "v6Ip": "", "macAddress": "02:00:00:00:00:01", "ready": false}
        }))
        .unwrap();
        assert_eq!((eip.kind.as_str(), eip.subnet.as_str(), eip.ready), ("lsp", "ext", false));
        assert_eq!(
            eip.addresses,
            ["172.16.0.9".parse::<std::net::IpAddr>().unwrap()],
            "not what is asked for"
        );
    }

    #[test]
    fn a_service_is_its_addresses_and_ports() {
        let service = |status: Value| {
            ServiceFacts::project(&json!({
                "metadata": {"name": "s", "namespace": "n", "uid": "u",
                    "annotations": {"ovn.kubernetes.io/service_external_ip_from_subnet": "u1", "x": "y"}},
                "spec": {"ports": [{"port": 80}, {"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]},
                "status": {"loadBalancer": status}
            }))
            .unwrap()
        };
        let read = service(json!({"ingress": [{"ip": "fd09::50"}, {"ip": "10.9.0.50"}, {"hostname": "h"}]}));
        assert_eq!(read.addresses.len(), 2);
        let ports = [("TCP".to_owned(), 53), ("TCP".to_owned(), 80), ("UDP".to_owned(), 53)];
        assert_eq!((read.ports, read.subnet.as_str()), (ports.into(), "u1"));
        assert_eq!(service(json!({})), ServiceFacts::default(), "what changes there wakes nobody");
    }

    #[test]
    fn a_vlan_is_read_by_its_old_names_too_and_a_bad_id_is_refused() {
        let vlan = |spec: Value| VlanFacts::project(&json!({"metadata": {"name": "v"}, "spec": spec}));
        let expected = VlanFacts { id: 100, provider: "net1".into() };
        assert_eq!(vlan(json!({"id": 100, "provider": "net1"})).unwrap(), expected);
        assert_eq!(vlan(json!({"vlanId": 100, "providerInterfaceName": "net1"})).unwrap(), expected);
        assert!(vlan(json!({"id": 5000, "provider": "net1"})).is_err());
        assert_eq!(vlan(json!({"id": 0, "provider": "net1"})).unwrap().id, 0);
    }
}
