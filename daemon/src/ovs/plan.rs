//! Wishes for the local OVS database, turned into transactions. Pure: a view
//! in, operations out; an empty list means that the wish is true already.

use std::collections::{BTreeMap, BTreeSet};

use ovsdb::{Atom, AtomMap, Operation, Row, Uuid, Value};

use super::qos::{self, PortQos};
pub use super::root::{
    and_apply, ask_for_applying, delete_root_external_ids, edit_root_external_ids, forget_bridge_ids,
    set_root_external_ids,
};
use super::view::View;

/// The wish builds on something that is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The bridge does not exist (yet).
    #[error("there is no bridge {0}")]
    NoBridge(String),
    /// The database has no root row: ovs-vswitchd never ran.
    #[error("the OVS database is not initialised")]
    NoRoot,
    /// Someone else's port has the name.
    #[error("port {0} is on bridge {1}")]
    OnOtherBridge(String, String),
}

/// A port with its one interface.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PortSpec {
    /// Bridge.
    pub bridge: String,
    /// Name of port and interface.
    pub name: String,
    /// Interface type; empty for a kernel device, `internal` …
    pub kind: String,
    /// External ids of the interface: these keys get these values.
    pub external_ids: BTreeMap<String, String>,
    /// Keys of the interface's external ids that must not be there.
    pub absent_external_ids: Vec<String>,
    /// MAC that ovs-vswitchd gives an internal interface.
    pub mac: Option<String>,
    /// MTU that ovs-vswitchd gives the interface.
    pub mtu_request: Option<u32>,
    /// Limits; absent leaves those of a port that exists as they are.
    pub qos: Option<PortQos>,
    /// VLAN that the port is an access port of.
    pub tag: Option<u16>,
    /// VLANs that it carries; absent leaves it a trunk of all, or as it is.
    pub trunks: Option<BTreeSet<u16>>,
    /// External ids of the port itself: these keys get these values.
    pub port_external_ids: BTreeMap<String, String>,
}

/// A bridge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BridgeSpec {
    /// Name of bridge, its local port and interface.
    pub name: String,
    /// `netdev` for userspace, empty for the kernel's.
    pub datapath_type: String,
    /// MAC of the local port.
    pub hwaddr: Option<String>,
    /// External ids of the bridge: these keys get these values.
    pub external_ids: BTreeMap<String, String>,
    /// Other configuration: these keys get these values.
    pub other_config: BTreeMap<String, String>,
}

/// Pairs of a map column that differ from the wanted ones; `None` if none does.
pub(super) fn differing_keys(row: &Row, column: &str, wanted: &BTreeMap<String, String>) -> Option<AtomMap> {
    let changed: AtomMap = wanted
        .iter()
        .filter(|(key, value)| row.map_get(column, key) != Some(value.as_str()))
        .map(|(key, value)| (Atom::from(key.as_str()), Atom::from(value.as_str())))
        .collect();
    (!changed.is_empty()).then_some(changed)
}

/// Makes a bridge with its local port.
///
/// # Errors
/// Without a root row.
pub fn ensure_bridge(view: &View, spec: &BridgeSpec) -> Result<Vec<Operation>, PlanError> {
    let root = view.root().ok_or(PlanError::NoRoot)?;
    let mut other_config = spec.other_config.clone();
    if let Some(hwaddr) = &spec.hwaddr {
        other_config.insert("hwaddr".to_owned(), hwaddr.clone());
    }
    let Some(bridge) = view.bridge(&spec.name) else {
        let [bridge, port, interface] = [Uuid::new_v4(), Uuid::new_v4(), Uuid::new_v4()];
        return Ok(vec![
            Operation::insert("Interface")
                .uuid(interface)
                .column("name", spec.name.as_str())
                .column("type", "internal")
                .build(),
            Operation::insert("Port")
                .uuid(port)
                .column("name", spec.name.as_str())
                .column("interfaces", Value::uuids([interface]))
                .build(),
            Operation::insert("Bridge")
                .uuid(bridge)
                .column("name", spec.name.as_str())
                .column("datapath_type", spec.datapath_type.as_str())
                .column("ports", Value::uuids([port]))
                .column("other_config", string_map(&other_config))
                .column("external_ids", string_map(&spec.external_ids))
                .build(),
            Operation::mutate("Open_vSwitch")
                .by_uuid(root.uuid)
                .insert_set("bridges", Value::uuids([bridge]))
                .build(),
        ]);
    };
    let mut operations = Vec::new();
    if bridge.str("datapath_type") != Some(spec.datapath_type.as_str()) {
        operations.push(
            Operation::update("Bridge")
                .by_uuid(bridge.uuid)
                .column("datapath_type", spec.datapath_type.as_str())
                .build(),
        );
    }
    for (column, wanted) in [("other_config", &other_config), ("external_ids", &spec.external_ids)] {
        if let Some(pairs) = differing_keys(bridge, column, wanted) {
            operations.push(Operation::mutate("Bridge").by_uuid(bridge.uuid).set_map(column, pairs).build());
        }
    }
    Ok(operations)
}

/// Removes a bridge with its ports; a missing one needs nothing.
///
/// # Errors
/// Without a root row.
pub fn remove_bridge(view: &View, name: &str) -> Result<Vec<Operation>, PlanError> {
    let root = view.root().ok_or(PlanError::NoRoot)?;
    Ok(view
        .bridge(name)
        .map(|bridge| {
            Operation::mutate("Open_vSwitch")
                .by_uuid(root.uuid)
                .delete_set("bridges", Value::uuids([bridge.uuid]))
                .build()
        })
        .into_iter()
        .collect())
}

/// Makes a port, or makes it as wished. Another interface that carries the
/// same `iface-id` loses it: of several sandboxes of one pod only the newest
/// owns the logical port.
///
/// # Errors
/// When the bridge is missing, or the port is on another one.
pub fn ensure_port(view: &View, spec: &PortSpec) -> Result<Vec<Operation>, PlanError> {
    let bridge = view.bridge(&spec.bridge).ok_or_else(|| PlanError::NoBridge(spec.bridge.clone()))?;
    let mut operations = Vec::new();
    if let Some(id) = spec.external_ids.get("iface-id") {
        for other in view.interfaces() {
            if other.name() != spec.name && other.external_id("iface-id") == Some(id) {
                operations.push(
                    Operation::mutate("Interface")
                        .by_uuid(other.uuid())
                        .delete_map_keys("external_ids", ["iface-id"])
                        .build(),
                );
            }
        }
    }
    match view.port(&spec.name) {
        None => insert_port(bridge.uuid, spec, &mut operations),
        Some(port) => {
            if let Some(holder) = view.bridge_of_port(&port.uuid)
                && holder.uuid != bridge.uuid
            {
                let holder = holder.str("name").unwrap_or_default().to_owned();
                return Err(PlanError::OnOtherBridge(spec.name.clone(), holder));
            }
            update_port(view, spec, &mut operations);
        }
    }
    Ok(operations)
}

fn insert_port(bridge: Uuid, spec: &PortSpec, operations: &mut Vec<Operation>) {
    let [port, interface] = [Uuid::new_v4(), Uuid::new_v4()];
    let policing = spec.qos.as_ref().map_or((0, 0), |qos| (qos.policing_rate, qos.policing_burst));
    let mut row = Operation::insert("Interface")
        .uuid(interface)
        .column("name", spec.name.as_str())
        .column("type", spec.kind.as_str())
        .column("external_ids", string_map(&spec.external_ids))
        .column("ingress_policing_rate", i64::from(policing.0))
        .column("ingress_policing_burst", i64::from(policing.1));
    if let Some(mac) = &spec.mac {
        row = row.column("mac", Value::strings([mac.as_str()]));
    }
    if let Some(mtu) = spec.mtu_request {
        row = row.column("mtu_request", Value::integers([i64::from(mtu)]));
    }
    operations.push(row.build());
    let mut row = Operation::insert("Port")
        .uuid(port)
        .column("name", spec.name.as_str())
        .column("interfaces", Value::uuids([interface]))
        .columns(port_columns(spec));
    if !spec.port_external_ids.is_empty() {
        row = row.column("external_ids", string_map(&spec.port_external_ids));
    }
    if let Some(discipline) = spec.qos.as_ref().and_then(|qos| qos.discipline.as_ref()) {
        let marks = qos::marks(|key| spec.external_ids.get(key).cloned());
        row = row.column("qos", Value::uuids([qos::insert(discipline, &marks, operations)]));
    }
    operations.push(row.build());
    operations
        .push(Operation::mutate("Bridge").by_uuid(bridge).insert_set("ports", Value::uuids([port])).build());
}

/// What the wish says of the Port row's VLANs.
fn port_columns(spec: &PortSpec) -> Vec<(&'static str, Value)> {
    let mut columns = Vec::new();
    columns.extend(spec.tag.map(|tag| ("tag", Value::integers([i64::from(tag)]))));
    columns.extend(
        spec.trunks.as_ref().map(|ids| ("trunks", Value::integers(ids.iter().map(|id| i64::from(*id))))),
    );
    columns
}

fn update_port(view: &View, spec: &PortSpec, operations: &mut Vec<Operation>) {
    if let Some(port) = view.port(&spec.name) {
        let mut columns = port_columns(spec);
        columns.retain(|(column, value)| port.get(column) != Some(value));
        if !columns.is_empty() {
            operations.push(Operation::update("Port").by_uuid(port.uuid).columns(columns).build());
        }
        if let Some(pairs) = differing_keys(port, "external_ids", &spec.port_external_ids) {
            operations
                .push(Operation::mutate("Port").by_uuid(port.uuid).set_map("external_ids", pairs).build());
        }
    }
    let Some(interface) = view.interface(&spec.name) else { return };
    let row = Operation::mutate("Interface").by_uuid(interface.uuid());
    let stale: Vec<&str> = spec
        .absent_external_ids
        .iter()
        .map(String::as_str)
        .filter(|key| interface.external_id(key).is_some())
        .collect();
    let pairs: AtomMap = spec
        .external_ids
        .iter()
        .filter(|(key, value)| interface.external_id(key) != Some(value.as_str()))
        .map(|(key, value)| (Atom::from(key.as_str()), Atom::from(value.as_str())))
        .collect();
    if !stale.is_empty() {
        operations.push(row.clone().delete_map_keys("external_ids", stale).build());
    }
    if !pairs.is_empty() {
        operations.push(row.set_map("external_ids", pairs).build());
    }
    let mut columns: Vec<(&str, Value)> = vec![("type", Value::string(spec.kind.as_str()))];
    columns.extend(spec.mac.as_deref().map(|mac| ("mac", Value::strings([mac]))));
    columns.extend(spec.mtu_request.map(|mtu| ("mtu_request", Value::integers([i64::from(mtu)]))));
    columns.retain(|(column, value)| interface.column(column) != Some(value));
    if !columns.is_empty() {
        operations.push(Operation::update("Interface").by_uuid(interface.uuid()).columns(columns).build());
    }
    if let Some(qos) = &spec.qos {
        // By the marks that the interface is going to have.
        let marks = qos::marks(|key| {
            spec.external_ids.get(key).cloned().or_else(|| interface.external_id(key).map(str::to_owned))
        });
        qos::set_marked(view, &spec.name, &marks, qos, operations);
    }
}

/// Removes a port with its interface and its shaping; a missing one needs
/// nothing.
pub fn remove_port(view: &View, name: &str) -> Vec<Operation> {
    let Some(port) = view.port(name) else { return Vec::new() };
    let mut operations = Vec::new();
    if let Some(bridge) = view.bridge_of_port(&port.uuid) {
        operations.push(
            Operation::mutate("Bridge")
                .by_uuid(bridge.uuid)
                .delete_set("ports", Value::uuids([port.uuid]))
                .build(),
        );
    }
    qos::remove(view, port, &mut operations);
    operations
}

/// Removes a port, so that [`super::Ovs::applied`] tells when ovs-vswitchd has
/// let go of its device.
pub fn forget_port(view: &View, name: &str) -> Vec<Operation> {
    let mut operations = remove_port(view, name);
    if !operations.is_empty() {
        operations.extend(ask_for_applying(view));
    }
    operations
}

fn string_map(map: &BTreeMap<String, String>) -> Value {
    Value::string_map(map.iter().map(|(key, value)| (key.as_str(), value.as_str())))
}

#[cfg(test)]
#[path = "plan_tests.rs"]
pub(crate) mod tests;
