//! What is common to the kinds that are watched: how an object becomes a projection, and how objects are told apart.

use std::hash::Hash;
use std::sync::Arc;

use serde_json::Value;

use super::facts::{NodeFacts, PodFacts, PodKey, ServiceCidrFacts, SubnetFacts};
use super::underlay::{
    ExternalGatewayFacts, OvnEipFacts, OwnNodeFacts, ProviderNetworkFacts, ServiceFacts, VlanFacts,
};

/// A kind of projected object.
pub trait Fact: Clone + PartialEq + std::fmt::Debug + Send + Sync + 'static {
    /// How objects are told apart.
    type Key: Clone + Ord + Hash + Send + Sync + std::fmt::Debug;

    /// From the object as the API server sends it.
    ///
    /// # Errors
    /// When the object lacks what every object of the kind has.
    fn decode(value: &Value) -> Result<Self, String>;

    /// The key in the snapshot, from name and namespace.
    fn key(namespace: &str, name: &str) -> Self::Key;
}

macro_rules! cluster_fact {
    ($($fact:ty),*) => {$(
        impl Fact for $fact {
            type Key = Arc<str>;
            fn decode(value: &Value) -> Result<Self, String> {
                Self::project(value)
            }
            fn key(_: &str, name: &str) -> Arc<str> {
                name.into()
            }
        }
    )*};
}

cluster_fact!(
    NodeFacts,
    SubnetFacts,
    ServiceCidrFacts,
    ProviderNetworkFacts,
    VlanFacts,
    OwnNodeFacts,
    ExternalGatewayFacts,
    OvnEipFacts
);

macro_rules! namespaced_fact {
    ($($fact:ty),*) => {$(
        impl Fact for $fact {
            type Key = PodKey;
            fn decode(value: &Value) -> Result<Self, String> {
                Self::project(value)
            }
            fn key(namespace: &str, name: &str) -> PodKey {
                (namespace.into(), name.into())
            }
        }
    )*};
}

namespaced_fact!(PodFacts, ServiceFacts);
