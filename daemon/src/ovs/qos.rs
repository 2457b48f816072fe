//! Rows that limit a port: policing on its Interface, a QoS with its Queue on its Port (node contract §2.8).
//!
//! In: a view and the wanted [`PortQos`]. Out: operations, none if the rows say it already. Pure. The switch's directions
//! are the pod's reversed: what the switch takes in, the pod sends. Whether the kernel carries a row out is another
//! question, see [`crate::qos`].

use std::collections::BTreeMap;

use ovsdb::{Atom, AtomMap, Operation, Row, Uuid, Value};

use super::view::{Interface, View};

/// Type of a QoS that shapes.
pub const HTB: &str = "linux-htb";
/// Type of a QoS that delays and loses.
pub const NETEM: &str = "linux-netem";

/// Limits of one port, in the units of the columns.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct PortQos {
    /// `ingress_policing_rate` in kbit/s, 0 for none: what the pod sends.
    pub policing_rate: u32,
    /// `ingress_policing_burst` in kbit.
    pub policing_burst: u32,
    /// The QoS on the port: what the pod receives.
    pub discipline: Option<Discipline>,
}

/// What a QoS row says.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Discipline {
    /// `linux-htb` with queue 0.
    Htb {
        /// bit/s.
        max_rate: u64,
        /// Bytes.
        burst: u64,
    },
    /// `linux-netem`.
    Netem {
        /// Delay in µs, 0 for none.
        latency: u64,
        /// Its deviation in µs.
        jitter: u64,
        /// Packets that may wait, 0 for the kernel's default.
        limit: u64,
        /// Percent of packets that are lost.
        loss: f64,
    },
}

impl Discipline {
    /// Type of the QoS row.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Htb { .. } => HTB,
            Self::Netem { .. } => NETEM,
        }
    }

    /// `QoS:other_config`. The shaper's rate stands here too, as older agents wrote it (K162).
    fn config(&self) -> BTreeMap<String, String> {
        let pairs = match self {
            Self::Htb { max_rate, .. } => vec![("max-rate", max_rate.to_string())],
            Self::Netem { latency, jitter, limit, loss } => {
                let mut pairs: Vec<(&str, String)> =
                    [("latency", latency), ("jitter", jitter), ("limit", limit)]
                        .into_iter()
                        .filter(|(_, value)| **value > 0)
                        .map(|(key, value)| (key, value.to_string()))
                        .collect();
                if *loss > 0.0 {
                    pairs.push(("loss", loss.to_string()));
                }
                pairs
            }
        };
        pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }

    /// `Queue:other_config` of queue 0.
    fn queue(&self) -> Option<BTreeMap<String, String>> {
        let Self::Htb { max_rate, burst } = self else { return None };
        Some(BTreeMap::from([
            ("max-rate".to_owned(), max_rate.to_string()),
            ("burst".to_owned(), burst.to_string()),
        ]))
    }
}

/// Keys that are ours to set and to take away; others in the same column are somebody else's.
const CONFIG_KEYS: [&str; 5] = ["max-rate", "latency", "jitter", "limit", "loss"];
const QUEUE_KEYS: [&str; 2] = ["max-rate", "burst"];

/// Owner's marks on QoS and Queue rows, by which they are found again.
pub(super) fn marks(external_id: impl Fn(&str) -> Option<String>) -> BTreeMap<String, String> {
    let mut marks = BTreeMap::new();
    if let Some(id) = external_id("iface-id") {
        marks.insert("iface-id".to_owned(), id);
    }
    if let (Some(namespace), Some(name)) = (external_id("pod_namespace"), external_id("pod_name")) {
        marks.insert("pod".to_owned(), format!("{namespace}/{name}"));
    }
    marks
}

/// Inserts the rows of a discipline; the port has to refer to the QoS returned.
pub(super) fn insert(
    discipline: &Discipline,
    marks: &BTreeMap<String, String>,
    operations: &mut Vec<Operation>,
) -> Uuid {
    let qos = Uuid::new_v4();
    let mut row = Operation::insert("QoS")
        .uuid(qos)
        .column("type", discipline.kind())
        .column("other_config", string_map(&discipline.config()))
        .column("external_ids", string_map(marks));
    if let Some(config) = discipline.queue() {
        row = row.column("queues", Value::Map(insert_queue(&config, marks, operations)));
    }
    operations.push(row.build());
    qos
}

/// Makes a queue. Returns it as queue 0 of a QoS.
fn insert_queue(
    config: &BTreeMap<String, String>,
    marks: &BTreeMap<String, String>,
    operations: &mut Vec<Operation>,
) -> AtomMap {
    let queue = Uuid::new_v4();
    operations.push(
        Operation::insert("Queue")
            .uuid(queue)
            .column("other_config", string_map(config))
            .column("external_ids", string_map(marks))
            .build(),
    );
    [(Atom::from(0i64), Atom::from(queue))].into_iter().collect()
}

/// The limits that a port's rows ask for, somebody else's apart.
pub fn of(view: &View, name: &str) -> PortQos {
    let policing = |column| {
        let value = view.interface(name)?.column(column).and_then(Value::as_i64)?;
        u32::try_from(value).ok()
    };
    PortQos {
        policing_rate: policing("ingress_policing_rate").unwrap_or_default(),
        policing_burst: policing("ingress_policing_burst").unwrap_or_default(),
        discipline: view.port(name).and_then(|port| discipline_of(view, port)),
    }
}

fn discipline_of(view: &View, port: &Row) -> Option<Discipline> {
    let qos = qos_of(view, port).filter(|qos| is_ours(qos))?;
    let number = |row: &Row, key| row.map_get("other_config", key).and_then(|text| text.parse().ok());
    match qos.str("type")? {
        HTB => {
            let queue = qos.map("queues")?.get(&Atom::from(0i64))?.as_uuid()?;
            let queue = view.queue(&queue)?;
            let burst = number(queue, "burst").unwrap_or_default();
            Some(Discipline::Htb { max_rate: number(queue, "max-rate")?, burst })
        }
        NETEM => {
            let loss = qos.map_get("other_config", "loss").and_then(|text| text.parse().ok());
            let [latency, jitter, limit] =
                ["latency", "jitter", "limit"].map(|key| number(qos, key).unwrap_or_default());
            Some(Discipline::Netem { latency, jitter, limit, loss: loss.unwrap_or_default() })
        }
        _ => None,
    }
}

/// Makes the rows of a port that exists say what is wanted.
pub fn set(view: &View, name: &str, wanted: &PortQos) -> Vec<Operation> {
    let mut operations = Vec::new();
    if let Some(interface) = view.interface(name) {
        let marks = marks(|key| interface.external_id(key).map(str::to_owned));
        set_marked(view, name, &marks, wanted, &mut operations);
    }
    operations
}

/// As [`of`]; `None` if it is nothing that [`set`] writes.
pub fn read(view: &View, name: &str) -> Option<PortQos> {
    let (port, _) = (view.port(name)?, view.interface(name)?);
    let read = of(view, name);
    let unreadable = read.discipline.is_none() && qos_of(view, port).is_some_and(is_ours);
    (!unreadable && set(view, name, &read).is_empty()).then_some(read)
}

/// What a port's rows have to say, and ovs-vswitchd to act on, before they can say what is wanted; `None` if they can at
/// once. It takes other values of a `linux-netem` for itself and tells the kernel nothing of them
/// (`netem_qdisc_set` of its `netdev-linux.c`), so that it has to let go of the old ones first. Rows that come and go in
/// one transaction are one change to it.
pub fn before(view: &View, name: &str, wanted: &PortQos) -> Option<PortQos> {
    let config = wanted.discipline.filter(|discipline| discipline.kind() == NETEM)?.config();
    let qos = qos_of(view, view.port(name)?).filter(|qos| qos.str("type") == Some(NETEM) && is_ours(qos))?;
    let same = CONFIG_KEYS
        .iter()
        .all(|key| qos.map_get("other_config", key) == config.get(*key).map(String::as_str));
    (!same).then(|| PortQos { discipline: None, ..wanted.clone() })
}

/// As [`set`], with the owner's marks given.
pub(super) fn set_marked(
    view: &View,
    name: &str,
    marks: &BTreeMap<String, String>,
    wanted: &PortQos,
    operations: &mut Vec<Operation>,
) {
    if let (Some(port), Some(interface)) = (view.port(name), view.interface(name)) {
        set_policing(&interface, wanted, operations);
        set_discipline(view, port, marks, wanted.discipline.as_ref(), operations);
    }
}

fn set_policing(interface: &Interface, wanted: &PortQos, operations: &mut Vec<Operation>) {
    let mut columns = vec![
        ("ingress_policing_rate", Value::integer(i64::from(wanted.policing_rate))),
        ("ingress_policing_burst", Value::integer(i64::from(wanted.policing_burst))),
    ];
    columns.retain(|(column, value)| interface.column(column) != Some(value));
    if !columns.is_empty() {
        operations.push(Operation::update("Interface").by_uuid(interface.uuid()).columns(columns).build());
    }
}

/// The QoS of a port, if the port has one and it is there.
fn qos_of<'a>(view: &'a View, port: &Row) -> Option<&'a Row> {
    view.qos(&port.get("qos")?.set_uuids().next()?)
}

/// Whether the port's QoS was made for its port, by us or by Kube-OVN; another one is somebody else's.
fn is_ours(qos: &Row) -> bool {
    qos.map_get("external_ids", "iface-id").is_some() || qos.map_get("external_ids", "pod").is_some()
}

fn set_discipline(
    view: &View,
    port: &Row,
    marks: &BTreeMap<String, String>,
    wanted: Option<&Discipline>,
    operations: &mut Vec<Operation>,
) {
    let present = qos_of(view, port);
    match (wanted, present) {
        (None, None) => {}
        (None, Some(qos)) if !is_ours(qos) => {}
        (None, Some(qos)) => {
            if !strip(view, qos, operations) {
                remove(view, port, operations);
            }
        }
        (Some(wanted), Some(qos)) if qos.str("type") == Some(wanted.kind()) && is_ours(qos) => {
            edit(view, qos, marks, wanted, operations);
        }
        // Another kind, or somebody else's row, which is let go but not deleted.
        (Some(wanted), present) => {
            if present.is_some_and(is_ours) {
                remove(view, port, operations);
            }
            let uuid = insert(wanted, marks, operations);
            operations.push(
                Operation::update("Port").by_uuid(port.uuid).column("qos", Value::uuids([uuid])).build(),
            );
        }
    }
}

/// Takes our keys away where somebody else's would be lost with the rows; `false` if nothing else is in them. A
/// `linux-netem` has no other keys that mean anything, and goes only as a whole ([`before`]).
fn strip(view: &View, qos: &Row, operations: &mut Vec<Operation>) -> bool {
    if qos.str("type") == Some(NETEM) {
        return false;
    }
    let foreign = |row: &Row, ours: &[&str]| {
        row.get("other_config").into_iter().flat_map(Value::map_strings).any(|(key, _)| !ours.contains(&key))
    };
    let queues = view.queues_of(&qos.uuid);
    let in_queues =
        queues.iter().any(|uuid| view.queue(uuid).is_some_and(|queue| foreign(queue, &QUEUE_KEYS)));
    if !in_queues && !foreign(qos, &CONFIG_KEYS) && queues.len() <= 1 {
        return false;
    }
    take_keys("QoS", qos, &CONFIG_KEYS, operations);
    for uuid in view.queues_of(&qos.uuid) {
        if let Some(queue) = view.queue(&uuid).filter(|queue| is_ours(queue)) {
            take_keys("Queue", queue, &QUEUE_KEYS, operations);
        }
    }
    true
}

fn take_keys(table: &str, row: &Row, keys: &[&str], operations: &mut Vec<Operation>) {
    let stale: Vec<&str> =
        keys.iter().copied().filter(|key| row.map_get("other_config", key).is_some()).collect();
    if !stale.is_empty() {
        operations
            .push(Operation::mutate(table).by_uuid(row.uuid).delete_map_keys("other_config", stale).build());
    }
}

/// Brings the rows of the same kind to the wanted values, key by key.
fn edit(
    view: &View,
    qos: &Row,
    marks: &BTreeMap<String, String>,
    wanted: &Discipline,
    operations: &mut Vec<Operation>,
) {
    set_keys("QoS", qos, &wanted.config(), &CONFIG_KEYS, marks, operations);
    let Some(config) = wanted.queue() else { return };
    let queue = qos.map("queues").and_then(|queues| queues.get(&Atom::from(0i64))?.as_uuid());
    match queue.and_then(|uuid| view.queue(&uuid)) {
        Some(queue) => set_keys("Queue", queue, &config, &QUEUE_KEYS, marks, operations),
        None => {
            let pairs = insert_queue(&config, marks, operations);
            operations.push(Operation::mutate("QoS").by_uuid(qos.uuid).set_map("queues", pairs).build());
        }
    }
}

fn set_keys(
    table: &str,
    row: &Row,
    config: &BTreeMap<String, String>,
    ours: &[&str],
    marks: &BTreeMap<String, String>,
    operations: &mut Vec<Operation>,
) {
    let stale: Vec<&str> = ours
        .iter()
        .copied()
        .filter(|key| !config.contains_key(*key) && row.map_get("other_config", key).is_some())
        .collect();
    if !stale.is_empty() {
        operations
            .push(Operation::mutate(table).by_uuid(row.uuid).delete_map_keys("other_config", stale).build());
    }
    for (column, wanted) in [("other_config", config), ("external_ids", marks)] {
        if let Some(pairs) = super::plan::differing_keys(row, column, wanted) {
            operations.push(Operation::mutate(table).by_uuid(row.uuid).set_map(column, pairs).build());
        }
    }
}

/// Deletes a port's QoS and queues. They are roots, so nothing collects them; the port lets go first, for it is
/// collected only after references are checked.
pub(super) fn remove(view: &View, port: &Row, operations: &mut Vec<Operation>) {
    let qos: Vec<Uuid> = port.get("qos").into_iter().flat_map(Value::set_uuids).collect();
    if qos.is_empty() {
        return;
    }
    operations.push(Operation::update("Port").by_uuid(port.uuid).column("qos", Value::empty_set()).build());
    for uuid in qos.iter().filter(|uuid| view.qos(uuid).is_none_or(is_ours)) {
        delete(view, uuid, operations);
    }
}

fn delete(view: &View, qos: &Uuid, operations: &mut Vec<Operation>) {
    operations.push(Operation::delete("QoS").by_uuid(*qos).build());
    let queues = view.queues_of(qos).into_iter();
    operations.extend(queues.map(|uuid| Operation::delete("Queue").by_uuid(uuid).build()));
}

/// Deletes rows that were made for pods' ports and hang on nothing any more: left by an agent that died, or by one that
/// lost its pod.
pub fn sweep(view: &View) -> Vec<Operation> {
    let used: std::collections::BTreeSet<Uuid> =
        view.ports().filter_map(|port| port.get("qos")).flat_map(Value::set_uuids).collect();
    let for_a_pod = |row: &Row| {
        row.map_get("external_ids", "pod").is_some() && row.map_get("external_ids", "iface-id").is_some()
    };
    let mut operations = Vec::new();
    let mut queued = std::collections::BTreeSet::new();
    for qos in view.all_qos() {
        let queues = view.queues_of(&qos.uuid);
        if used.contains(&qos.uuid) || !for_a_pod(qos) {
            queued.extend(queues);
        } else {
            operations.push(Operation::delete("QoS").by_uuid(qos.uuid).build());
        }
    }
    let orphans = view.all_queues().filter(|queue| for_a_pod(queue) && !queued.contains(&queue.uuid));
    operations.extend(orphans.map(|queue| Operation::delete("Queue").by_uuid(queue.uuid).build()));
    operations
}

fn string_map(map: &BTreeMap<String, String>) -> Value {
    Value::string_map(map.iter().map(|(key, value)| (key.as_str(), value.as_str())))
}

#[cfg(test)]
#[path = "qos_tests.rs"]
mod tests;
