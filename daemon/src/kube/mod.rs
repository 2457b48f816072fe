//! What the agent knows of the cluster, and what it tells the API server.
//!
//! In: watches of this node's pods, all nodes, subnets and Service CIDRs,
//! decoded into projected facts that hold only the fields used. Out: snapshots
//! behind watch channels ([`Reflection`]), which requests wait on; and small
//! merge patches.

mod client;
mod cluster;
mod events;
mod fact;
mod facts;
mod lookup;
mod patch;
mod reflect;
mod refusal;
mod underlay;
mod watched;

pub use client::client;
pub use cluster::{Cluster, WatchScope, spawn_watches};
pub use events::{EventSink, EventType, ObjectRef, Recorder};
pub use fact::Fact;
pub use facts::{
    NatPolicyRule, NodeFacts, PodFacts, PodKey, ServiceCidrFacts, SubnetFacts, UnavailableCondition,
};
pub use lookup::{FoundPod, PodLookup};
pub use patch::{KubeError, annotate_node, annotate_pod, label_node, ovn_eip_ready, set_network_unavailable};
pub use reflect::{Loaded, Reflection, Unknown, WatchStatus};
pub use underlay::{
    ExternalGatewayFacts, OvnEipFacts, OwnNodeFacts, ProviderNetworkFacts, ServiceFacts, VlanFacts,
};
