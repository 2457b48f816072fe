//! Projected Kubernetes objects: the fields Weir uses, and nothing else.
//!
//! Watches decode into these (a typed Pod costs 35 KiB of memory, a projected
//! one a fraction), the world stores them, compile reads projections of them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::facts::{Kind, ObjectRef};
pub use crate::strings::StringMap;

/// Metadata common to all kinds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// Namespace, empty for cluster-scoped kinds.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
    /// UID.
    pub uid: Arc<str>,
    /// Resource version, opaque; only publish looks at it.
    pub resource_version: Arc<str>,
    /// Generation of the spec.
    pub generation: i64,
    /// When it was created, unix seconds; 0 if the server did not say.
    pub created_at: i64,
    /// Labels.
    pub labels: StringMap,
    /// Annotations that Weir reads: watches keep those whose key contains `kubernetes.io/`,
    /// `multus` or begins with `k8s.`.
    pub annotations: StringMap,
    /// Finalizers.
    pub finalizers: Arc<[Arc<str>]>,
    /// `Some` when the object is being deleted: unix seconds at which nothing is left of
    /// it (deletionTimestamp and once more the grace period, contract §3.1).
    pub deleting_at: Option<i64>,
    /// Owners: (kind, apiVersion, name, uid).
    pub owners: Arc<[Owner]>,
}

/// An owner reference.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Owner {
    pub api_version: Arc<str>,
    pub kind: Arc<str>,
    pub name: Arc<str>,
    pub uid: Arc<str>,
}

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    /// Metadata.
    pub meta: Meta,
    /// `spec.nodeName`, empty until scheduled.
    pub node: Arc<str>,
    /// `spec.hostNetwork`.
    pub host_network: bool,
    /// `spec.restartPolicy` is `Always`.
    pub restart_always: bool,
    /// `spec.restartPolicy` is `Never`.
    pub restart_never: bool,
    /// `status.phase`.
    pub phase: Arc<str>,
    /// `status.reason` (`Evicted`).
    pub reason: Arc<str>,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Metadata.
    pub meta: Meta,
    /// InternalIP addresses, in order.
    pub internal_ips: Vec<Arc<str>>,
    /// Condition Ready is True.
    pub ready: bool,
}

/// A namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    /// Metadata.
    pub meta: Meta,
}

/// A kubeovn.io object whose spec and status Weir reads in full.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Custom<S, T> {
    /// Metadata.
    pub meta: Meta,
    /// Spec.
    pub spec: S,
    /// Status, default when absent.
    pub status: T,
}

/// Subnet.
pub type Subnet = Custom<crds::SubnetSpec, crds::SubnetStatus>;
/// Vpc.
pub type Vpc = Custom<crds::VpcSpec, crds::VpcStatus>;
/// IP (it has no status).
pub type Ip = Custom<IpSpec, ()>;

/// Spec of an IP. There is one for each pod, so its strings are shared with others,
/// which `crds::IpSpec` can't.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "crds::IpSpec", from = "crds::IpSpec")]
#[allow(missing_docs)]
pub struct IpSpec {
    pub pod_name: Arc<str>,
    pub namespace: Arc<str>,
    pub subnet: Arc<str>,
    pub node_name: Arc<str>,
    pub ip_address: Arc<str>,
    pub v4_ip_address: Arc<str>,
    pub v6_ip_address: Arc<str>,
    pub mac_address: Arc<str>,
    pub pod_type: Arc<str>,
    /// What few have.
    pub rest: Option<Arc<IpRest>>,
}

/// Fields of an IP that few have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct IpRest {
    pub attach_subnets: Vec<String>,
    pub attach_ips: Vec<String>,
    pub attach_macs: Vec<String>,
    pub container_id: String,
}

impl IpSpec {
    /// Takes a spec over; `share` makes strings that many have, each in memory once.
    pub fn new(spec: crds::IpSpec, mut share: impl FnMut(&str) -> Arc<str>) -> Self {
        let rest = IpRest {
            attach_subnets: spec.attach_subnets,
            attach_ips: spec.attach_ips,
            attach_macs: spec.attach_macs,
            container_id: spec.container_id,
        };
        // Of one family the two are the same text.
        let ip_address: Arc<str> = spec.ip_address.into();
        let mut address = |text: String| match text.as_str() {
            "" => share(""),
            text if text == &*ip_address => ip_address.clone(),
            text => text.into(),
        };
        Self {
            v4_ip_address: address(spec.v4_ip_address),
            v6_ip_address: address(spec.v6_ip_address),
            ip_address,
            mac_address: spec.mac_address.into(),
            pod_name: spec.pod_name.into(),
            namespace: share(&spec.namespace),
            subnet: share(&spec.subnet),
            node_name: share(&spec.node_name),
            pod_type: share(&spec.pod_type),
            rest: (rest != IpRest::default()).then(|| Arc::new(rest)),
        }
    }
}

impl From<crds::IpSpec> for IpSpec {
    fn from(spec: crds::IpSpec) -> Self {
        Self::new(spec, |text| text.into())
    }
}

impl From<IpSpec> for crds::IpSpec {
    fn from(spec: IpSpec) -> Self {
        let rest = spec.rest.as_deref().cloned().unwrap_or_default();
        Self {
            pod_name: spec.pod_name.to_string(),
            namespace: spec.namespace.to_string(),
            subnet: spec.subnet.to_string(),
            attach_subnets: rest.attach_subnets,
            node_name: spec.node_name.to_string(),
            ip_address: spec.ip_address.to_string(),
            v4_ip_address: spec.v4_ip_address.to_string(),
            v6_ip_address: spec.v6_ip_address.to_string(),
            attach_ips: rest.attach_ips,
            mac_address: spec.mac_address.to_string(),
            attach_macs: rest.attach_macs,
            container_id: rest.container_id,
            pod_type: spec.pod_type.to_string(),
        }
    }
}

/// IPPool.
pub type IpPool = Custom<crds::IpPoolSpec, crds::IpPoolStatus>;
/// Vip.
pub type Vip = Custom<crds::VipSpec, crds::VipStatus>;
/// ProviderNetwork.
pub type ProviderNetwork = Custom<crds::ProviderNetworkSpec, crds::ProviderNetworkStatus>;

/// OvnEip.
pub type OvnEip = Custom<crds::OvnEipSpec, crds::OvnEipStatus>;
/// Vlan.
pub type Vlan = Custom<crds::VlanSpec, crds::VlanStatus>;

/// A StatefulSet or Deployment: how many pods it may have, and what its template
/// asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    /// Metadata.
    pub meta: Meta,
    /// `spec.replicas`, 1 by default.
    pub replicas: u64,
    /// `spec.ordinals.start` of a StatefulSet.
    pub start: u64,
    /// Pods that a rollout may start above `replicas`.
    pub surge: u64,
    /// Pods that a rollout may take away before new ones are there.
    pub unavailable: u64,
    /// Annotations of the pod template that Weir reads.
    pub template: StringMap,
}

/// What a NetworkAttachmentDefinition makes of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NadKind {
    /// A port of OVN, plugged by our CNI.
    Ovn,
    /// Another CNI's interface with an address of ours.
    Ipam,
    /// None of our business.
    #[default]
    Other,
}

/// A NetworkAttachmentDefinition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nad {
    /// Metadata.
    pub meta: Meta,
    /// What its configuration says.
    pub kind: NadKind,
}

/// A VirtualMachine or VirtualMachineInstance of KubeVirt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Metadata.
    pub meta: Meta,
    /// `status.nodeName` of an instance: where the machine runs.
    pub node: Arc<str>,
    /// Annotations that its next pod will have.
    pub template: StringMap,
    /// Networks of Multus that it has: name of the network in the spec, and what it
    /// refers to as `<namespace>/<name>`.
    pub networks: Vec<(Arc<str>, Arc<str>)>,
}

/// A VirtualMachineInstanceMigration of KubeVirt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Migration {
    /// Metadata.
    pub meta: Meta,
    /// `spec.vmiName`.
    pub instance: Arc<str>,
    /// `status.phase`.
    pub phase: Arc<str>,
    /// `status.migrationState.sourceNode`.
    pub source: Arc<str>,
}

/// An object of a kind that this version does not act on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Other {
    /// Plural name of the kind.
    pub plural: Arc<str>,
    /// Metadata.
    pub meta: Meta,
    /// `status.conditions` as it is.
    pub conditions: Vec<crds::Condition>,
    /// `spec.ovnEip` of kinds that use an OvnEip, else empty.
    pub ovn_eip: Arc<str>,
    /// What an IptablesEIP says of its address; `None` of other kinds, and of one without.
    pub nat_address: Option<Arc<NatAddress>>,
}

/// Plural name of IptablesEIPs.
pub const IPTABLES_EIPS: &str = <crds::IptablesEip as crds::Kind>::INFO.plural;

/// The address of an IptablesEIP (contract §1.10, §5.7), as it is written there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NatAddress {
    /// `spec.externalSubnet`, empty for the default one.
    pub subnet: Arc<str>,
    /// `status.ip`: what its gateway has.
    pub given: Arc<str>,
    /// `spec.v4ip`.
    pub v4: Arc<str>,
    /// `spec.v6ip`.
    pub v6: Arc<str>,
}

/// Any watched object.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Object {
    Pod(Arc<Pod>),
    Node(Arc<Node>),
    Namespace(Arc<Namespace>),
    Subnet(Arc<Subnet>),
    Vpc(Arc<Vpc>),
    Ip(Arc<Ip>),
    IpPool(Arc<IpPool>),
    Vip(Arc<Vip>),
    ProviderNetwork(Arc<ProviderNetwork>),
    OvnEip(Arc<OvnEip>),
    Vlan(Arc<Vlan>),
    /// [`Kind::StatefulSet`] or [`Kind::Deployment`].
    Workload(Kind, Arc<Workload>),
    Nad(Arc<Nad>),
    /// [`Kind::VirtualMachine`] or [`Kind::VirtualMachineInstance`].
    Machine(Kind, Arc<Machine>),
    Migration(Arc<Migration>),
    Other(&'static str, Arc<Other>),
}

impl Object {
    /// The object's metadata.
    pub fn meta(&self) -> &Meta {
        match self {
            Self::Pod(o) => &o.meta,
            Self::Node(o) => &o.meta,
            Self::Namespace(o) => &o.meta,
            Self::Subnet(o) => &o.meta,
            Self::Vpc(o) => &o.meta,
            Self::Ip(o) => &o.meta,
            Self::IpPool(o) => &o.meta,
            Self::Vip(o) => &o.meta,
            Self::ProviderNetwork(o) => &o.meta,
            Self::OvnEip(o) => &o.meta,
            Self::Vlan(o) => &o.meta,
            Self::Workload(_, o) => &o.meta,
            Self::Nad(o) => &o.meta,
            Self::Machine(_, o) => &o.meta,
            Self::Migration(o) => &o.meta,
            Self::Other(_, o) => &o.meta,
        }
    }

    /// Takes over from the version before what has not changed, so that it is in memory
    /// once: keys of indexes are the first version's. Only kinds of which there are many.
    pub(crate) fn share_with(&mut self, old: &Self) {
        let old = old.meta();
        let new = match self {
            Self::Pod(pod) => Arc::get_mut(pod).map(|pod| &mut pod.meta),
            Self::Ip(ip) => Arc::get_mut(ip).map(|ip| &mut ip.meta),
            _ => None,
        };
        let Some(new) = new else { return };
        for (new, old) in [(&mut new.name, &old.name), (&mut new.uid, &old.uid)] {
            if new == old {
                *new = old.clone();
            }
        }
        for (new, old) in [(&mut new.labels, &old.labels), (&mut new.annotations, &old.annotations)] {
            if new == old {
                *new = old.clone();
            }
        }
    }

    /// The object's kind.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Pod(_) => Kind::Pod,
            Self::Node(_) => Kind::Node,
            Self::Namespace(_) => Kind::Namespace,
            Self::Subnet(_) => Kind::Subnet,
            Self::Vpc(_) => Kind::Vpc,
            Self::Ip(_) => Kind::Ip,
            Self::IpPool(_) => Kind::IpPool,
            Self::Vip(_) => Kind::Vip,
            Self::ProviderNetwork(_) => Kind::ProviderNetwork,
            Self::OvnEip(_) => Kind::OvnEip,
            Self::Vlan(_) => Kind::Vlan,
            Self::Workload(kind, _) => *kind,
            Self::Nad(_) => Kind::Nad,
            Self::Machine(kind, _) => *kind,
            Self::Migration(_) => Kind::Migration,
            Self::Other(plural, _) => Kind::Other(plural),
        }
    }

    /// A reference to it.
    pub fn reference(&self) -> ObjectRef {
        let meta = self.meta();
        ObjectRef { kind: self.kind(), namespace: meta.namespace.clone(), name: meta.name.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_shares_what_has_not_changed_with_the_one_before() {
        let pod = |value: &str, version: &str| {
            let meta = Meta {
                name: "a".to_owned().into(),
                uid: "u".to_owned().into(),
                resource_version: version.into(),
                labels: StringMap::from([("k".into(), value.into())]),
                ..Meta::default()
            };
            Object::Pod(Arc::new(Pod { meta, ..Pod::default() }))
        };
        let old = pod("1", "1");
        let (mut same, mut other) = (pod("1", "2"), pod("2", "2"));
        for new in [&mut same, &mut other] {
            let before = new.clone();
            // Somebody else has it: then it stays as it is.
            new.share_with(&old);
            assert!(!Arc::ptr_eq(&new.meta().name, &old.meta().name));
            drop(before);
            let before = format!("{new:?}");
            new.share_with(&old);
            assert_eq!(format!("{new:?}"), before);
            assert!(Arc::ptr_eq(&new.meta().name, &old.meta().name));
            assert!(Arc::ptr_eq(&new.meta().uid, &old.meta().uid));
        }
        let value = |object: &Object| object.meta().labels.get("k").cloned().unwrap();
        assert!(Arc::ptr_eq(&value(&same), &value(&old)));
        assert_eq!(&*value(&other), "2");
    }

    #[test]
    fn the_spec_of_an_ip_is_what_it_was_made_of() {
        let plain = crds::IpSpec {
            pod_name: "a".into(),
            namespace: "web".into(),
            subnet: "s".into(),
            node_name: "n".into(),
            ip_address: "10.0.0.1".into(),
            v4_ip_address: "10.0.0.1".into(),
            mac_address: "00:00:00:00:00:01".into(),
            pod_type: "StatefulSet".into(),
            ..crds::IpSpec::default()
        };
        let dual = crds::IpSpec {
            ip_address: "10.0.0.1,fd00::1".into(),
            v6_ip_address: "fd00::1".into(),
            attach_subnets: vec!["t".into()],
            attach_ips: vec!["10.1.0.1".into()],
            attach_macs: vec!["00:00:00:00:00:02".into()],
            container_id: "c".into(),
            ..plain.clone()
        };
        for spec in [plain, dual, crds::IpSpec::default()] {
            let held = IpSpec::from(spec.clone());
            assert_eq!(serde_json::to_value(&held).unwrap(), serde_json::to_value(&spec).unwrap());
            assert_eq!(crds::IpSpec::from(held), spec);
        }
    }
}
