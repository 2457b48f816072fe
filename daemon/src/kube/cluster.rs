//! All kinds that the agent watches, and how each is asked for.

use std::sync::Arc;

use kube::core::ApiResource;
use kube::runtime::watcher;
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;

use super::facts::{NodeFacts, PodFacts, ServiceCidrFacts, SubnetFacts};
use super::reflect::{Followed, Reflection, Unknown, WatchStatus};
use super::underlay::{
    ExternalGatewayFacts, OvnEipFacts, OwnNodeFacts, ProviderNetworkFacts, ServiceFacts, VlanFacts,
};
use crate::frame::Objects;

/// Everything that the agent watches.
#[derive(Debug)]
pub struct Cluster {
    /// Pods of this node that have a network of their own.
    pub pods: Reflection<PodFacts>,
    /// All nodes.
    pub nodes: Reflection<NodeFacts>,
    /// All subnets.
    pub subnets: Reflection<SubnetFacts>,
    /// Service CIDRs of the API, where it has them.
    pub service_cidrs: Reflection<ServiceCidrFacts>,
    /// Physical networks.
    pub provider_networks: Reflection<ProviderNetworkFacts>,
    /// VLANs of them.
    pub vlans: Reflection<VlanFacts>,
    /// This node with all its labels.
    pub own_node: Reflection<OwnNodeFacts>,
    /// The external gateway's configuration.
    pub external_gateway: Reflection<ExternalGatewayFacts>,
    /// OvnEips of routers' and nodes' ports.
    pub ovn_eips: Reflection<OvnEipFacts>,
    /// Services of type LoadBalancer.
    pub services: Reflection<ServiceFacts>,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            pods: Reflection::new("pods"),
            nodes: Reflection::new("nodes"),
            subnets: Reflection::new("subnets"),
            service_cidrs: Reflection::new("servicecidrs").optional(),
            provider_networks: Reflection::new("provider-networks").optional(),
            vlans: Reflection::new("vlans").optional(),
            own_node: Reflection::new("own-node"),
            external_gateway: Reflection::new("configmaps").optional(),
            ovn_eips: Reflection::new("ovn-eips").optional(),
            services: Reflection::new("services").optional(),
        }
    }
}

impl Cluster {
    fn all(&self) -> [&dyn Followed; 10] {
        [
            &self.pods,
            &self.nodes,
            &self.subnets,
            &self.service_cidrs,
            &self.provider_networks,
            &self.vlans,
            &self.own_node,
            &self.external_gateway,
            &self.ovn_eips,
            &self.services,
        ]
    }

    /// Kinds of which nothing is known yet.
    pub fn unknown(&self) -> Vec<Unknown> {
        self.all().into_iter().filter_map(Followed::unknown).collect()
    }

    /// Kinds that the API server forbids the agent to see.
    pub fn forbidden(&self) -> Vec<&'static str> {
        self.all().into_iter().filter_map(Followed::forbidden).collect()
    }

    /// Wakes on every change of every kind.
    pub fn objects(&self) -> Objects {
        self.all().into_iter().fold(Objects::default(), |objects, kind| kind.add_to(objects))
    }

    /// How the watches are doing. Walks over all objects: for people who ask.
    pub fn status(&self) -> Vec<WatchStatus> {
        self.all().into_iter().map(Followed::status).collect()
    }
}

pub(super) fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&kube::core::GroupVersionKind::gvk(group, version, kind), plural)
}

/// What single objects are watched.
#[derive(Clone, Copy, Debug)]
pub struct WatchScope<'a> {
    /// This node.
    pub node: &'a str,
    /// Namespace of the external gateway's ConfigMap.
    pub external_gateway_namespace: &'a str,
}

/// Name of the external gateway's ConfigMap.
const EXTERNAL_GATEWAY_CONFIG: &str = "ovn-external-gw-config";

/// Starts the watches; they run until `cancel`.
pub fn spawn_watches(
    client: &Client,
    scope: WatchScope<'_>,
    cluster: &Arc<Cluster>,
    cancel: &CancellationToken,
) -> tokio::task::JoinSet<()> {
    let mut tasks = tokio::task::JoinSet::new();
    let node = scope.node;
    let all = watcher::Config::default();
    // Host-network pods are the kubelet's business alone.
    let mine = watcher::Config::default().fields(&format!("spec.nodeName={node},spec.hostNetwork=false"));
    macro_rules! follow {
        ($field:ident, $resource:expr, $config:expr) => {{
            let api = Api::all_with(client.clone(), &$resource);
            let (cluster, config, cancel) = (cluster.clone(), $config, cancel.clone());
            tasks.spawn(async move { cluster.$field.follow(api, config, cancel).await });
        }};
    }
    follow!(pods, resource("", "v1", "Pod", "pods"), mine);
    follow!(nodes, resource("", "v1", "Node", "nodes"), all.clone());
    follow!(subnets, resource(crds::GROUP, "v1", "Subnet", "subnets"), all.clone());
    follow!(service_cidrs, resource("networking.k8s.io", "v1", "ServiceCIDR", "servicecidrs"), all.clone());
    let networks = resource(crds::GROUP, "v1", "ProviderNetwork", "provider-networks");
    follow!(provider_networks, networks, all.clone());
    follow!(vlans, resource(crds::GROUP, "v1", "Vlan", "vlans"), all);
    let own = watcher::Config::default().fields(&format!("metadata.name={node}"));
    follow!(own_node, resource("", "v1", "Node", "nodes"), own);
    let config = watcher::Config::default().fields(&format!(
        "metadata.name={EXTERNAL_GATEWAY_CONFIG},metadata.namespace={}",
        scope.external_gateway_namespace
    ));
    follow!(external_gateway, resource("", "v1", "ConfigMap", "configmaps"), config);
    // Those of NAT rules are many, and none of the node's business.
    let ports = format!("{} in (lrp,lsp)", crds::keys::OVN_EIP_TYPE_LABEL);
    let ports = watcher::Config::default().labels(&ports);
    follow!(ovn_eips, resource(crds::GROUP, "v1", "OvnEip", "ovn-eips"), ports);
    // The API server keeps addresses in the status of this type only.
    let outside = watcher::Config::default().fields("spec.type=LoadBalancer");
    follow!(services, resource("", "v1", "Service", "services"), outside);
    tasks
}
