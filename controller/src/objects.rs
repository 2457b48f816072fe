//! Projected Kubernetes objects: the fields Weir uses, and nothing else.
//!
//! Watches decode into these (a typed Pod costs 35 KiB of memory, a projected
//! one a fraction), the world stores them, compile reads projections of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::facts::{Kind, ObjectRef};

/// A string map as it appears in labels and annotations. Watches keep only
/// labels, and annotations whose key contains `kubernetes.io/` or `k8s.`/`multus` prefixes Weir reads.
pub type StringMap = BTreeMap<Arc<str>, Arc<str>>;

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
    /// Annotations that Weir reads.
    pub annotations: StringMap,
    /// Finalizers.
    pub finalizers: Vec<Arc<str>>,
    /// `Some` when the object is being deleted: unix seconds at which its grace
    /// period is over (deletionTimestamp as the API server writes it).
    pub deleting_at: Option<i64>,
    /// Owners: (kind, apiVersion, name, uid).
    pub owners: Vec<Owner>,
}

/// An owner reference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
pub type Ip = Custom<crds::IpSpec, ()>;

/// IPPool.
pub type IpPool = Custom<crds::IpPoolSpec, crds::IpPoolStatus>;
/// Vip.
pub type Vip = Custom<crds::VipSpec, crds::VipStatus>;

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

/// An object of a kind that this version does not act on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Other {
    /// Plural name of the kind.
    pub plural: Arc<str>,
    /// Metadata.
    pub meta: Meta,
    /// `status.conditions` as it is.
    pub conditions: Vec<crds::Condition>,
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
    /// [`Kind::StatefulSet`] or [`Kind::Deployment`].
    Workload(Kind, Arc<Workload>),
    Nad(Arc<Nad>),
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
            Self::Workload(_, o) => &o.meta,
            Self::Nad(o) => &o.meta,
            Self::Other(_, o) => &o.meta,
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
            Self::Workload(kind, _) => *kind,
            Self::Nad(_) => Kind::Nad,
            Self::Other(plural, _) => Kind::Other(plural),
        }
    }

    /// A reference to it.
    pub fn reference(&self) -> ObjectRef {
        let meta = self.meta();
        ObjectRef { kind: self.kind(), namespace: meta.namespace.clone(), name: meta.name.clone() }
    }
}
