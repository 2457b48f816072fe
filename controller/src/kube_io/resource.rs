//! Where each kind lives in the API: paths of collections and objects.
//!
//! Flows in: a [`Kind`]. Flows out: a [`Resource`] with its paths. Facts about the
//! kinds of kubeovn.io come from the `crds` crate.

use crate::facts::{Kind, ObjectRef};

/// Group and version of KubeVirt's kinds.
const KUBEVIRT: &str = "/apis/kubevirt.io/v1";

/// How a kind is addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource {
    /// The kind.
    pub kind: Kind,
    /// `/api/v1` or `/apis/<group>/<version>`.
    pub base: &'static str,
    /// Plural name in URLs.
    pub plural: &'static str,
    /// `apiVersion` of objects.
    pub api_version: &'static str,
    /// `kind` of objects.
    pub name: &'static str,
    /// Objects live in namespaces.
    pub namespaced: bool,
    /// Status is written through the subresource.
    pub status_subresource: bool,
}

impl Resource {
    const fn core(kind: Kind, plural: &'static str, name: &'static str, namespaced: bool) -> Self {
        let base = "/api/v1";
        Self { kind, base, plural, api_version: "v1", name, namespaced, status_subresource: true }
    }

    const fn apps(kind: Kind, plural: &'static str, name: &'static str) -> Self {
        let base = "/apis/apps/v1";
        let (namespaced, status_subresource) = (true, true);
        Self { kind, base, plural, api_version: "apps/v1", name, namespaced, status_subresource }
    }

    const fn kubevirt(kind: Kind, plural: &'static str, name: &'static str) -> Self {
        let (namespaced, status_subresource) = (true, true);
        let api_version = "kubevirt.io/v1";
        Self { kind, base: KUBEVIRT, plural, api_version, name, namespaced, status_subresource }
    }

    const KUBEVIRT: [Self; 3] = [
        Self::kubevirt(Kind::VirtualMachine, "virtualmachines", "VirtualMachine"),
        Self::kubevirt(Kind::VirtualMachineInstance, "virtualmachineinstances", "VirtualMachineInstance"),
        Self::kubevirt(
            Kind::Migration,
            "virtualmachineinstancemigrations",
            "VirtualMachineInstanceMigration",
        ),
    ];

    const NAD: Self = Self {
        kind: Kind::Nad,
        base: "/apis/k8s.cni.cncf.io/v1",
        plural: "network-attachment-definitions",
        api_version: "k8s.cni.cncf.io/v1",
        name: "NetworkAttachmentDefinition",
        namespaced: true,
        status_subresource: false,
    };

    fn custom(kind: Kind, info: &crds::KindInfo) -> Self {
        Self {
            kind,
            base: "/apis/kubeovn.io/v1",
            plural: info.plural,
            api_version: crds::API_VERSION,
            name: info.kind,
            namespaced: info.scope == crds::Scope::Namespaced,
            status_subresource: info.has_status_subresource,
        }
    }

    /// How that kind is addressed; `None` for a plural that is no kind of kubeovn.io.
    pub fn of(kind: Kind) -> Option<Self> {
        let plural = match kind {
            Kind::Pod => return Some(Self::core(kind, "pods", "Pod", true)),
            Kind::Node => return Some(Self::core(kind, "nodes", "Node", false)),
            Kind::Namespace => return Some(Self::core(kind, "namespaces", "Namespace", false)),
            Kind::Subnet => "subnets",
            Kind::Vpc => "vpcs",
            Kind::StatefulSet => return Some(Self::apps(kind, "statefulsets", "StatefulSet")),
            Kind::Deployment => return Some(Self::apps(kind, "deployments", "Deployment")),
            Kind::Nad => return Some(Self::NAD),
            Kind::VirtualMachine | Kind::VirtualMachineInstance | Kind::Migration => {
                return Self::KUBEVIRT.into_iter().find(|resource| resource.kind == kind);
            }
            Kind::Ip => "ips",
            Kind::IpPool => "ippools",
            Kind::Vip => "vips",
            Kind::ProviderNetwork => "provider-networks",
            Kind::OvnEip => "ovn-eips",
            Kind::Vlan => "vlans",
            Kind::Other(plural) => plural,
        };
        crds::KINDS.iter().find(|info| info.plural == plural).map(|info| Self::custom(kind, info))
    }

    /// Discovery is asked before the kind is: whoever does not have KubeVirt grants
    /// nothing in its group, and the API server would say "forbidden" before it says "no such
    /// kind".
    pub fn discovery(&self) -> Option<&'static str> {
        (self.base == KUBEVIRT).then_some(KUBEVIRT)
    }

    /// All kinds that the controller watches: pods, nodes, namespaces, workloads that
    /// keep addresses, networks of Multus, machines of KubeVirt, and every kind of kubeovn.io.
    pub fn watched() -> Vec<Self> {
        let mut all = vec![
            Self::core(Kind::Namespace, "namespaces", "Namespace", false),
            Self::core(Kind::Node, "nodes", "Node", false),
            Self::core(Kind::Pod, "pods", "Pod", true),
            Self::apps(Kind::StatefulSet, "statefulsets", "StatefulSet"),
            Self::apps(Kind::Deployment, "deployments", "Deployment"),
            Self::NAD,
        ];
        all.extend(Self::KUBEVIRT);
        all.extend(crds::KINDS.iter().map(|info| {
            let kind = match info.plural {
                "subnets" => Kind::Subnet,
                "vpcs" => Kind::Vpc,
                "ips" => Kind::Ip,
                "ippools" => Kind::IpPool,
                "vips" => Kind::Vip,
                "provider-networks" => Kind::ProviderNetwork,
                "ovn-eips" => Kind::OvnEip,
                "vlans" => Kind::Vlan,
                plural => Kind::Other(plural),
            };
            Self::custom(kind, info)
        }));
        all
    }

    /// The kind as users write it (plural, lower case); accepts singular and kind
    /// names in any case.
    pub fn find(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        Self::watched().into_iter().find(|resource| {
            let singular = resource.name.to_ascii_lowercase();
            resource.plural == name || singular == name
        })
    }

    /// Path of the collection over all namespaces.
    pub fn collection(&self) -> String {
        format!("{}/{}", self.base, self.plural)
    }

    /// Path of the collection that an object is created in.
    pub fn parent(&self, namespace: &str) -> String {
        if self.namespaced {
            format!("{}/namespaces/{namespace}/{}", self.base, self.plural)
        } else {
            self.collection()
        }
    }

    /// Path of an object.
    pub fn object(&self, object: &ObjectRef) -> String {
        format!("{}/{}", self.parent(&object.namespace), object.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        let pod = Resource::of(Kind::Pod).unwrap();
        assert_eq!(pod.collection(), "/api/v1/pods");
        assert_eq!(pod.object(&ObjectRef::namespaced(Kind::Pod, "a", "b")), "/api/v1/namespaces/a/pods/b");
        let ip = Resource::of(Kind::Ip).unwrap();
        assert_eq!(ip.object(&ObjectRef::cluster(Kind::Ip, "b.a")), "/apis/kubeovn.io/v1/ips/b.a");
        assert!(Resource::of(Kind::Other("cows")).is_none());
    }

    #[test]
    fn every_kind_of_the_group_is_watched_once() {
        let watched = Resource::watched();
        assert_eq!(watched.len(), crds::KINDS.len() + 9);
        for resource in &watched {
            assert_eq!(Resource::of(resource.kind).as_ref(), Some(resource));
            assert_eq!(Resource::find(resource.name).as_ref(), Some(resource));
        }
    }
}
