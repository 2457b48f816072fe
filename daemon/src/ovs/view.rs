//! Reading the local OVS database.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ovsdb::{Replica, Row, Table, Uuid, Value};

/// The database at one moment. Cheap to clone.
#[derive(Clone, Default)]
pub struct View {
    replica: Option<Replica>,
    connected: bool,
}

/// What became of a port that ovn-controller has to install.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Installed {
    /// `external_ids:ovn-installed` is `true`.
    Yes,
    /// Not yet.
    Waiting,
    /// ovs-vswitchd can't use the interface.
    Broken(String),
    /// The interface is not in the database.
    Missing,
}

/// An Interface row, as far as we use it.
#[derive(Clone)]
pub struct Interface(Arc<Row>);

impl Interface {
    /// UUID.
    pub fn uuid(&self) -> Uuid {
        self.0.uuid
    }

    /// Name.
    pub fn name(&self) -> &str {
        self.0.str("name").unwrap_or_default()
    }

    /// An external id.
    pub fn external_id(&self, key: &str) -> Option<&str> {
        self.0.map_get("external_ids", key)
    }

    /// All external ids.
    pub fn external_ids(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.get("external_ids").into_iter().flat_map(Value::map_strings)
    }

    /// A column.
    pub fn column(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// What ovs-vswitchd complains about.
    pub fn error(&self) -> Option<&str> {
        self.optional("error")
    }

    /// The OpenFlow port number, once ovs-vswitchd has opened the interface.
    pub fn ofport(&self) -> Option<i64> {
        self.0.get("ofport").and_then(Value::single).and_then(ovsdb::Atom::as_i64)
    }

    /// `up` or `down`, once known.
    pub fn link_state(&self) -> Option<&str> {
        self.optional("link_state")
    }

    /// Its type: empty for a kernel device, `internal`, `geneve` …
    pub fn kind(&self) -> &str {
        self.0.str("type").unwrap_or_default()
    }

    /// One of ours: plugged for a pod by Kube-OVN or Weir.
    pub fn is_pod_port(&self) -> bool {
        self.external_id("vendor") == Some(crds::keys::VENDOR)
            && self.external_id("pod_name").is_some()
            && self.external_id("pod_namespace").is_some()
    }

    fn optional(&self, column: &str) -> Option<&str> {
        self.0.get(column).and_then(Value::single).and_then(ovsdb::Atom::as_str)
    }
}

impl View {
    /// A view of a loaded database.
    pub fn new(replica: Replica) -> Self {
        Self { replica: Some(replica), connected: true }
    }

    /// The connection is gone; what was read stays readable.
    pub(super) fn disconnected(&mut self) {
        self.connected = false;
    }

    /// The database is loaded and followed.
    pub fn is_connected(&self) -> bool {
        self.connected
    }

    fn table(&self, name: &str) -> Option<&Table> {
        self.replica.as_ref()?.table(name)
    }

    fn named(&self, table: &str, name: &str) -> Option<&Arc<Row>> {
        self.table(table)?.find_one("name", &Value::string(name))
    }

    /// The one row of table Open_vSwitch.
    pub fn root(&self) -> Option<&Arc<Row>> {
        self.table("Open_vSwitch")?.rows().next()
    }

    /// Whether the database has a column.
    pub fn has_column(&self, table: &str, column: &str) -> bool {
        self.replica.as_ref().is_some_and(|replica| replica.schema().column(table, column).is_some())
    }

    /// Numbers of the last change that was asked to be told of, and of the last one that ovs-vswitchd acted on.
    pub fn configurations(&self) -> (i64, i64) {
        let number = |column| self.root().and_then(|root| root.i64(column)).unwrap_or_default();
        (number("next_cfg"), number("cur_cfg"))
    }

    /// A key of `Open_vSwitch:external_ids`.
    pub fn root_external_id(&self, key: &str) -> Option<&str> {
        self.root()?.map_get("external_ids", key).filter(|value| !value.is_empty())
    }

    /// All keys of `Open_vSwitch:external_ids`.
    pub fn root_external_ids(&self) -> impl Iterator<Item = (&str, &str)> {
        self.root().and_then(|root| root.get("external_ids")).into_iter().flat_map(Value::map_strings)
    }

    /// A bridge.
    pub fn bridge(&self, name: &str) -> Option<&Arc<Row>> {
        self.named("Bridge", name)
    }

    /// All bridges.
    pub fn bridges(&self) -> impl Iterator<Item = &Arc<Row>> {
        self.table("Bridge").into_iter().flat_map(Table::rows)
    }

    /// A port.
    pub fn port(&self, name: &str) -> Option<&Arc<Row>> {
        self.named("Port", name)
    }

    /// The bridge that holds a port.
    pub fn bridge_of_port(&self, port: &Uuid) -> Option<&Arc<Row>> {
        self.bridges()
            .find(|bridge| bridge.get("ports").is_some_and(|ports| ports.set_uuids().any(|u| u == *port)))
    }

    /// An interface.
    pub fn interface(&self, name: &str) -> Option<Interface> {
        self.named("Interface", name).cloned().map(Interface)
    }

    /// All interfaces.
    pub fn interfaces(&self) -> impl Iterator<Item = Interface> {
        self.table("Interface").into_iter().flat_map(Table::rows).cloned().map(Interface)
    }

    /// Addresses at the other ends of tunnels: other nodes, by an address that
    /// no Node object has when tunnels use a network of their own.
    pub fn tunnel_peers(&self) -> BTreeSet<IpAddr> {
        self.table("Interface")
            .into_iter()
            .flat_map(Table::rows)
            .filter(|row| matches!(row.str("type"), Some("geneve" | "vxlan" | "stt")))
            .filter_map(|row| row.map_get("options", "remote_ip")?.parse().ok())
            .collect()
    }

    /// Names of a bridge's ports.
    pub fn port_names(&self, bridge: &str) -> BTreeSet<String> {
        let Some(ports) = self.bridge(bridge).and_then(|row| row.get("ports")) else {
            return BTreeSet::new();
        };
        let table = self.table("Port");
        ports.set_uuids().filter_map(|uuid| table?.get(&uuid)?.str("name").map(str::to_owned)).collect()
    }

    /// Whether pods are switched in userspace: `br-int` says so, or is told to
    /// become so (`ovn-bridge-datapath-type`).
    pub fn is_userspace(&self) -> bool {
        self.bridge(super::BR_INT).and_then(|row| row.str("datapath_type")) == Some("netdev")
            || self.root_external_id("ovn-bridge-datapath-type") == Some("netdev")
    }

    /// All ports.
    pub fn ports(&self) -> impl Iterator<Item = &Arc<Row>> {
        self.table("Port").into_iter().flat_map(Table::rows)
    }

    /// A mirror.
    pub fn mirror(&self, uuid: &Uuid) -> Option<&Row> {
        self.table("Mirror")?.get(uuid).map(|row| &**row)
    }

    /// A QoS row.
    pub fn qos(&self, uuid: &Uuid) -> Option<&Row> {
        self.table("QoS")?.get(uuid).map(|row| &**row)
    }

    /// All QoS rows.
    pub fn all_qos(&self) -> impl Iterator<Item = &Arc<Row>> {
        self.table("QoS").into_iter().flat_map(Table::rows)
    }

    /// A Queue row.
    pub fn queue(&self, uuid: &Uuid) -> Option<&Row> {
        self.table("Queue")?.get(uuid).map(|row| &**row)
    }

    /// All Queue rows.
    pub fn all_queues(&self) -> impl Iterator<Item = &Arc<Row>> {
        self.table("Queue").into_iter().flat_map(Table::rows)
    }

    /// The queues of a QoS row.
    pub fn queues_of(&self, qos: &Uuid) -> Vec<Uuid> {
        self.table("QoS")
            .and_then(|table| table.get(qos)?.map("queues"))
            .into_iter()
            .flat_map(ovsdb::AtomMap::values)
            .filter_map(ovsdb::Atom::as_uuid)
            .collect()
    }

    /// Whether ovn-controller has installed the flows of an interface.
    pub fn installed(&self, name: &str) -> Installed {
        let Some(interface) = self.interface(name) else { return Installed::Missing };
        if interface.external_id("ovn-installed") == Some("true") {
            return Installed::Yes;
        }
        match interface.error() {
            Some(error) if interface.ofport() == Some(-1) => Installed::Broken(error.to_owned()),
            _ => Installed::Waiting,
        }
    }
}
