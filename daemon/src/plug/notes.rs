//! Notes of interfaces of running pods that are being made again.
//!
//! The port's row is all that tells how an interface was made, and it goes for a moment where ovs-vswitchd has to let go of
//! a device; and who finds row and device does not see whether the pod's side was brought to its end. So before anything
//! is touched what the row says is written into `Open_vSwitch:external_ids`, and goes when all is done: an agent that dies
//! in between finds there what to do when it starts again. Pure. (An ADD needs none: the runtime repeats it, or takes the
//! sandbox away.)

use std::collections::BTreeMap;

use cni::api::CniRequest;
use ovsdb::Operation;

use super::memory::request_from;
use super::names;
use crate::ovs::{PlanError, PortSpec, View, plan};

/// Keys of notes begin like that; the port's name follows.
const KEY: &str = "weir-port-";
/// What of a note is the row's column `type`.
const KIND: &str = "type";

/// An interface that is to be made again.
pub(super) struct Note {
    pub(super) port: String,
    /// The call that made it.
    pub(super) request: CniRequest,
    /// Its device is ovs-vswitchd's.
    pub(super) internal: bool,
}

/// Notes an interface by its port.
///
/// # Errors
/// Without a root row.
pub(super) fn write(view: &View, spec: &PortSpec) -> Result<Vec<Operation>, PlanError> {
    let mut marks = spec.external_ids.clone();
    marks.insert(KIND.to_owned(), spec.kind.clone());
    // Strings in a map always make JSON.
    let text = serde_json::to_string(&marks).unwrap_or_default();
    plan::set_root_external_ids(view, &BTreeMap::from([(format!("{KEY}{}", spec.name), text)]))
}

/// Takes the notes of ports away.
pub(super) fn erase<'a>(view: &View, ports: impl Iterator<Item = &'a str>) -> Vec<Operation> {
    let keys: Vec<String> = ports.map(|port| format!("{KEY}{port}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    plan::delete_root_external_ids(view, &keys).unwrap_or_default()
}

/// All notes.
pub(super) fn all(view: &View) -> impl Iterator<Item = Note> {
    view.root_external_ids().filter_map(|(key, text)| {
        let port = key.strip_prefix(KEY)?.to_owned();
        let marks: BTreeMap<String, String> = serde_json::from_str(text).ok()?;
        let request = request_from(|key| marks.get(key).cloned())?;
        let internal = marks.get(KIND).is_some_and(|kind| kind == "internal");
        Some(Note { port, request, internal })
    })
}

/// The noted ports of one interface.
pub(super) fn of(view: &View, container_id: &str, if_name: &str) -> impl Iterator<Item = String> {
    let own = move |note: &Note| {
        note.request.container_id == container_id && note.request.if_name == names::in_pod(if_name)
    };
    all(view).filter(own).map(|note| note.port)
}
