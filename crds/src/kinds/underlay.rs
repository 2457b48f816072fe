//! ProviderNetwork and Vlan: what underlay subnets stand on (contract §1.5, §1.6).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::Condition;

object! {
    /// Spec of a ProviderNetwork.
    pub struct ProviderNetworkSpec {
        always {
            /// NIC on nodes that `custom_interfaces` doesn't name.
            pub default_interface: String,
        }
        /// NICs of particular nodes.
        pub custom_interfaces: Vec<CustomInterface>,
        /// Member nodes; when set, `exclude_nodes` is ignored.
        pub node_selector: Option<LabelSelector>,
        /// Nodes that are no members.
        pub exclude_nodes: Vec<String>,
        /// Swap the names of NIC and bridge.
        pub exchange_link_name: bool,
        /// Create VLAN sub-interfaces.
        pub auto_create_vlan_subinterfaces: bool,
        /// Keep VLAN sub-interfaces of the NIC working.
        pub preserve_vlan_interfaces: bool,
        /// VLAN sub-interfaces to keep.
        pub vlan_interfaces: Vec<String>,
    }
}

object! {
    /// The NIC of some nodes.
    pub struct CustomInterface {
        /// NIC.
        pub interface: String,
        /// Nodes.
        pub nodes: Vec<String>,
    }
}

object! {
    /// Status of a ProviderNetwork.
    pub struct ProviderNetworkStatus {
        always {
            /// All member nodes are ready.
            pub ready: bool,
        }
        /// Ready nodes.
        pub ready_nodes: Vec<String>,
        /// Nodes that are not.
        pub not_ready_nodes: Vec<String>,
        /// Vlans that use it.
        pub vlans: Vec<String>,
        /// Per node, `Condition::node` is set.
        pub conditions: Vec<Condition>,
    }
}

resource! {
    /// A physical network, bridged on its member nodes.
    ProviderNetwork { ProviderNetworkSpec, ProviderNetworkStatus }
    kind: "ProviderNetwork", singular: "provider-network", plural: "provider-networks", short: ["pn"],
    scope: Cluster, conditions: true, status_subresource: true
}

object! {
    /// Spec of a Vlan.
    pub struct VlanSpec {
        always {
            /// VLAN id, 0 is untagged.
            pub id: i32,
            /// ProviderNetwork.
            pub provider: String,
        }
        /// Old name of `id`.
        pub vlan_id: i32,
        /// Old name of `provider`.
        pub provider_interface_name: String,
    }
}

object! {
    /// Status of a Vlan.
    pub struct VlanStatus {
        always {
            /// Another Vlan has the same provider and id.
            pub conflict: bool,
        }
        /// Subnets that use it.
        pub subnets: Vec<String>,
        /// Conditions.
        pub conditions: Vec<Condition>,
    }
}

resource! {
    /// A VLAN of a physical network.
    Vlan { VlanSpec, VlanStatus }
    kind: "Vlan", singular: "vlan", plural: "vlans", short: ["vlan"], scope: Cluster,
    conditions: true, status_subresource: true
}
