//! Facts: what compile produces, what desired unites and commit and publish
//! carry out.
//!
//! A fact is a row of the northbound database (or part of one), a membership
//! (one element of a set column that many units share), or fields of a
//! Kubernetes object. Facts are plain data: references between rows are
//! symbolic (table and natural key) and become UUIDs only at commit.

mod columns;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use ovsdb::Value;
use serde::Serialize;

use crate::strings::StringMap;

pub use columns::Columns;
use columns::shared;

/// Tables of OVN_Northbound that units may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Table {
    /// `NB_Global`, the one row. Natural key: `.`.
    NbGlobal,
    /// `Logical_Router`. Natural key: name.
    LogicalRouter,
    /// `Logical_Router_Port`. Natural key: name.
    LogicalRouterPort,
    /// `Logical_Router_Static_Route`. Natural key:
    /// `<router>|<route_table>|<policy>|<ip_prefix>|<nexthop>` (contract §4.3).
    StaticRoute,
    /// `Logical_Router_Policy`. Natural key: `<router>|<priority>|<match>`.
    Policy,
    /// `Logical_Switch`. Natural key: name.
    LogicalSwitch,
    /// `Logical_Switch_Port`. Natural key: name.
    LogicalSwitchPort,
    /// `Port_Group`. Natural key: name.
    PortGroup,
    /// `Address_Set`. Natural key: name.
    AddressSet,
    /// `ACL`. Natural key:
    /// `<table of the holder>:<holder>|<direction>|<tier>|<priority>|<match>`.
    Acl,
    /// `DHCP_Options`. Natural key: `<switch>|<protocol>|<port>`; the port is empty
    /// for a row that serves the whole switch.
    DhcpOptions,
    /// `HA_Chassis_Group`. Natural key: name.
    HaChassisGroup,
    /// `HA_Chassis`. Natural key: `<group>|<chassis>`.
    HaChassis,
    /// `Gateway_Chassis`. Natural key: name.
    GatewayChassis,
    /// `BFD`. Natural key: `<router port>|<peer>`.
    Bfd,
}

impl Table {
    /// The table's name in the database schema.
    pub fn name(self) -> &'static str {
        match self {
            Self::NbGlobal => "NB_Global",
            Self::LogicalRouter => "Logical_Router",
            Self::LogicalRouterPort => "Logical_Router_Port",
            Self::StaticRoute => "Logical_Router_Static_Route",
            Self::Policy => "Logical_Router_Policy",
            Self::LogicalSwitch => "Logical_Switch",
            Self::LogicalSwitchPort => "Logical_Switch_Port",
            Self::PortGroup => "Port_Group",
            Self::AddressSet => "Address_Set",
            Self::Acl => "ACL",
            Self::DhcpOptions => "DHCP_Options",
            Self::HaChassisGroup => "HA_Chassis_Group",
            Self::HaChassis => "HA_Chassis",
            Self::GatewayChassis => "Gateway_Chassis",
            Self::Bfd => "BFD",
        }
    }

    /// All tables, in an order in which parents come before children.
    pub const ALL: [Table; 15] = [
        Self::NbGlobal,
        Self::LogicalRouter,
        Self::LogicalSwitch,
        Self::PortGroup,
        Self::AddressSet,
        Self::DhcpOptions,
        Self::HaChassisGroup,
        Self::HaChassis,
        Self::LogicalRouterPort,
        Self::GatewayChassis,
        Self::Bfd,
        Self::LogicalSwitchPort,
        Self::StaticRoute,
        Self::Policy,
        Self::Acl,
    ];
}

/// Identity of a row across databases and restarts: table and natural key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct RowKey {
    /// The table.
    pub table: Table,
    /// The natural key within the table, see [`Table`].
    pub key: Arc<str>,
}

impl RowKey {
    /// A key from its parts.
    pub fn new(table: Table, key: impl Into<Arc<str>>) -> Self {
        Self { table, key: key.into() }
    }
}

impl fmt::Display for RowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.table.name(), self.key)
    }
}

/// What a fact says about one column.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Column {
    /// The whole value is ours; any difference is repaired.
    Whole(#[serde(serialize_with = "as_debug")] Value),
    /// These keys of a map are ours, other keys are left alone.
    Keys(StringMap),
    /// Only used when the row is inserted; an existing row keeps its own value
    /// (for instance the random MAC of a router port).
    Initial(#[serde(serialize_with = "as_debug")] Value),
    /// References to exactly these rows, and to no others.
    Refs(BTreeSet<RowKey>),
    /// A map of which more than some keys is ours. (Rare, and big: on its own.)
    Map(Box<MapColumn>),
}

/// The content of [`Column::Map`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MapColumn {
    /// These keys have these values.
    pub keys: StringMap,
    /// These keys are there; what they say stays as it is (random values).
    pub initial: StringMap,
    /// What must not be there.
    pub gone: Gone,
}

/// Keys that a map must not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Gone {
    /// These, unless they are named.
    Keys(&'static [&'static str]),
    /// All that are not named.
    Others,
}

impl Column {
    /// These keys of a map are ours.
    pub fn keys<K: AsRef<str>, V: AsRef<str>>(pairs: impl IntoIterator<Item = (K, V)>) -> Self {
        Self::Keys(shared(pairs))
    }

    /// All of a map, or all but what is not named.
    pub fn map<K: AsRef<str>, V: AsRef<str>, I: AsRef<str>, J: AsRef<str>>(
        keys: impl IntoIterator<Item = (K, V)>,
        initial: impl IntoIterator<Item = (I, J)>,
        gone: Gone,
    ) -> Self {
        Self::Map(Box::new(MapColumn { keys: shared(keys), initial: shared(initial), gone }))
    }

    /// These keys of a map are ours, and those must not be there.
    pub fn map_without<K: AsRef<str>, V: AsRef<str>>(
        pairs: impl IntoIterator<Item = (K, V)>,
        gone: &'static [&'static str],
    ) -> Self {
        let gone = Gone::Keys(gone);
        Self::Map(Box::new(MapColumn { keys: shared(pairs), initial: StringMap::new(), gone }))
    }
}

fn as_debug<S: serde::Serializer>(value: &Value, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(&format_args!("{value:?}"))
}

/// A row that must exist with these columns.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RowFact {
    /// The row.
    pub row: RowKey,
    /// The row and column that hold the strong reference to it (`None` for
    /// root tables: routers, switches, port groups, `NB_Global`).
    pub parent: Option<(RowKey, &'static str)>,
    /// Columns by name. What is not named is not ours.
    pub columns: Columns,
}

/// One element of a set column of references: `element` is in `row.column`.
/// The row itself is stated by another fact (maybe of another unit).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct MemberFact {
    /// The row that holds the set.
    pub row: RowKey,
    /// The column, for instance `ports` of a port group.
    pub column: &'static str,
    /// The row referred to.
    pub element: RowKey,
}

/// Kinds of Kubernetes objects that publish writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[allow(missing_docs)]
pub enum Kind {
    Pod,
    Node,
    Namespace,
    Subnet,
    Vpc,
    Ip,
    IpPool,
    Vip,
    /// ProviderNetwork.
    ProviderNetwork,
    OvnEip,
    Vlan,
    StatefulSet,
    Deployment,
    Nad,
    VirtualMachine,
    VirtualMachineInstance,
    Migration,
    /// A kind of kubeovn.io that this version does not act on yet, by plural.
    Other(&'static str),
}

/// Reference to a Kubernetes object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ObjectRef {
    /// The kind.
    pub kind: Kind,
    /// The namespace, empty for cluster-scoped kinds.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

impl ObjectRef {
    /// A cluster-scoped reference.
    pub fn cluster(kind: Kind, name: impl Into<Arc<str>>) -> Self {
        Self { kind, namespace: Arc::default(), name: name.into() }
    }
    /// A namespaced reference.
    pub fn namespaced(kind: Kind, namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { kind, namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Other(plural) => plural,
            Kind::Pod => "Pod",
            Kind::Node => "Node",
            Kind::Namespace => "Namespace",
            Kind::Subnet => "Subnet",
            Kind::Vpc => "Vpc",
            Kind::Ip => "IP",
            Kind::IpPool => "IPPool",
            Kind::Vip => "Vip",
            Kind::ProviderNetwork => "ProviderNetwork",
            Kind::OvnEip => "OvnEip",
            Kind::Vlan => "Vlan",
            Kind::StatefulSet => "StatefulSet",
            Kind::Deployment => "Deployment",
            Kind::Nad => "NetworkAttachmentDefinition",
            Kind::VirtualMachine => "VirtualMachine",
            Kind::VirtualMachineInstance => "VirtualMachineInstance",
            Kind::Migration => "VirtualMachineInstanceMigration",
        };
        if self.namespace.is_empty() {
            write!(f, "{kind} {}", self.name)
        } else {
            write!(f, "{kind} {}/{}", self.namespace, self.name)
        }
    }
}

/// Which stage of a unit's life a Kubernetes fact belongs to. Publish sends it
/// only once the rows it stands for are acknowledged and seen in the replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Gate {
    /// May be written at once (conditions that report an error, generated
    /// objects that record a lease, finalizers).
    Now,
    /// Only after every row and membership of the same unit is in the replica.
    Committed,
}

/// The condition of a node in an object's status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeCondition {
    /// The node.
    pub node: Arc<str>,
    /// `True` or `False`.
    pub status: bool,
    /// CamelCase reason.
    pub reason: Arc<str>,
    /// Human-readable message that names the remedy.
    pub message: Arc<str>,
}

/// Fields of a Kubernetes object that must hold. Only these fields are ever
/// written, by merge patch, guarded by the object's UID.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KubeFact {
    /// The object.
    pub object: ObjectRef,
    /// The UID the fact was compiled for: a successor of the same name gets none
    /// of it. `None` for objects that this fact creates.
    pub uid: Option<Arc<str>>,
    /// When it may be written.
    pub gate: Gate,
    /// What must hold.
    pub fields: Fields,
}

/// The content of a [`KubeFact`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Fields {
    /// Annotations: `Some` sets, `None` removes.
    Annotations(BTreeMap<Arc<str>, Option<Arc<str>>>),
    /// Annotations that are written once: the fact holds as soon as the object
    /// carries `marker` = `true`; drift of the others is then reported, not
    /// written (DESIGN: pod annotations are written once, until `routed`).
    AnnotationsOnce {
        /// The key whose value `true` ends the writing.
        marker: Arc<str>,
        /// Everything to write, the marker included.
        values: BTreeMap<Arc<str>, Arc<str>>,
    },
    /// Labels to set.
    Labels(BTreeMap<Arc<str>, Arc<str>>),
    /// The finalizer must be present (`true`) or absent.
    Finalizer(bool),
    /// Top-level fields of `status` (JSON), through the status subresource where
    /// the kind has one.
    Status(BTreeMap<Arc<str>, serde_json::Value>),
    /// Fields of `spec` that defaulting fills in.
    Spec(BTreeMap<Arc<str>, serde_json::Value>),
    /// One element of `status.conditions`, merged by type. Times are filled in
    /// by publish and only change with the content.
    Condition {
        /// `Ready`, `Validated`, `Error`, …
        r#type: Arc<str>,
        /// `True`, `False` or `Unknown`.
        status: bool,
        /// CamelCase reason.
        reason: Arc<str>,
        /// Human-readable message that names the remedy.
        message: Arc<str>,
    },
    /// The conditions `Ready` of nodes in `status.conditions`: these and no others. Times are as those of
    /// [`Fields::Condition`].
    NodeConditions(Vec<NodeCondition>),
    /// The object exists and has at least this content (metadata and spec);
    /// created when missing, fields that differ are patched, deleted when no
    /// unit states it any more and it carries our finalizer.
    Object(serde_json::Value),
    /// The object exists; created with this content when missing. What exists is
    /// never changed or deleted by this fact: users own it from then on (default
    /// subnets and VPC, contract §5.1).
    Created(serde_json::Value),
    /// The object must be deleted (finalizer removed first).
    Absent,
}

/// An event to record on a Kubernetes object (never part of the desired state:
/// units state them, publish sends each distinct text once per cause).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct EventFact {
    /// The object it is about.
    pub object: ObjectRef,
    /// Its UID.
    pub uid: Option<Arc<str>>,
    /// Warning (`true`) or Normal.
    pub warning: bool,
    /// Reason, contract §8.8.
    pub reason: Arc<str>,
    /// Message.
    pub message: Arc<str>,
    /// When it may be sent.
    pub gate: Gate,
}

/// A row of a claimed class that must stay as it is although no unit states it:
/// its object exists but can't be compiled now (an address refused, a spec that
/// became invalid, a feature that this version lacks). A typing error in a subnet
/// must not tear down the cluster's network. The row's references and its
/// memberships in groups stay too.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Keep {
    /// One row.
    Row(RowKey),
    /// All rows of the table whose `external_ids` has this pair.
    Marked(Table, &'static str, Arc<str>),
}

/// Everything that one unit states.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Facts {
    /// Rows.
    pub rows: Vec<RowFact>,
    /// Memberships.
    pub members: Vec<MemberFact>,
    /// Kubernetes fields.
    pub kube: Vec<KubeFact>,
    /// Events.
    pub events: Vec<EventFact>,
    /// Rows that stay although no unit states them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub keeps: Vec<Keep>,
}
