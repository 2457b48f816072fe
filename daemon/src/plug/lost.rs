//! Clean-up of interfaces whose sandbox is gone (node contract §4.12, without
//! its faults).
//!
//! A container may die without a DEL: while the agent was down, or with the
//! runtime's state lost. Its veth goes with its namespace; the OVS port stays
//! and would keep the logical port's `iface-id`. Looked at whenever a link
//! vanishes or the pods change, and slowly otherwise.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::{CONTAINER_ID, POD_UID, Plugger};
use crate::kube::{Fact, Loaded, PodFacts};
use crate::ovs::{Interface, View};
use crate::sys::Namespace;

/// Why an interface may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// In use, or not ours to judge.
    Keep,
    /// The kernel's link is gone: nothing can use the port any more.
    LinkGone,
    /// Pod and namespace are gone, the link is a leftover.
    PodGone,
}

/// Judges one interface. `link` and `namespace` say whether they exist.
fn verdict(interface: &Interface, pods: &Loaded<PodFacts>, link: bool, namespace: bool) -> Verdict {
    match interface.kind() {
        "" | "internal" if interface.is_pod_port() => {}
        _ => return Verdict::Keep,
    }
    // An internal port's device is in the pod: on the host nothing shows it,
    // and the switch calls its link down. It lives with its namespace.
    let internal = interface.kind() == "internal";
    if if internal { !namespace } else { !link } {
        return Verdict::LinkGone;
    }
    let key = PodFacts::key(
        interface.external_id("pod_namespace").unwrap_or_default(),
        interface.external_id("pod_name").unwrap_or_default(),
    );
    let pod = pods.objects.get(&key);
    let same = pod.is_some_and(|pod| interface.external_id(POD_UID).is_none_or(|uid| uid == pod.uid));
    // Without a complete list nobody may be called gone.
    if pods.synced && !same && !namespace { Verdict::PodGone } else { Verdict::Keep }
}

/// What was seen lost once; a second look confirms it.
#[derive(Debug, Default)]
pub struct Suspects(BTreeMap<String, ()>);

impl Plugger {
    /// One pass. An interface is removed when two passes in a row found it
    /// lost, so that a namespace in the middle of something is not disturbed.
    /// Returns the names removed, and whether suspects remain.
    pub async fn clean_lost(&self, suspects: &mut Suspects) -> (Vec<String>, bool) {
        let view = self.ovs.view();
        if !view.is_connected() {
            return (Vec::new(), false);
        }
        let links: BTreeSet<String> = match self.host.netlink.links().await {
            Ok(links) => links.into_iter().map(|link| link.name).collect(),
            Err(error) => {
                tracing::warn!(error = %error, "the links can't be listed; lost interfaces stay");
                return (Vec::new(), false);
            }
        };
        let mut removed = Vec::new();
        let mut found = BTreeMap::new();
        for interface in self.lost_interfaces(&view, &links) {
            let name = interface.name().to_owned();
            if !suspects.0.contains_key(&name) {
                found.insert(name, ());
                continue;
            }
            let lock = match interface.external_id(CONTAINER_ID) {
                Some(container) => match self.locks.try_lock(container) {
                    Some(lock) => Some(lock),
                    None => continue,
                },
                None => None,
            };
            tracing::info!(
                port = name,
                pod = interface.external_id("pod_name"),
                namespace = interface.external_id("pod_namespace"),
                "removes a lost interface"
            );
            match self.unplug(std::slice::from_ref(&name)).await {
                Ok(()) => removed.push(name),
                Err(error) => {
                    tracing::warn!(error = %error, "a lost interface could not be removed");
                    found.insert(name, ());
                }
            }
            drop(lock);
        }
        self.metrics.lost_interfaces(removed.len() as u64);
        let remain = !found.is_empty();
        suspects.0 = found;
        (removed, remain)
    }

    fn lost_interfaces(&self, view: &View, links: &BTreeSet<String>) -> Vec<Interface> {
        let pods = self.cluster.pods.get();
        view.interfaces()
            .filter(|interface| {
                // A leftover of an unmounted namespace is a plain file.
                let namespace = interface
                    .external_id("pod_netns")
                    .is_some_and(|path| Namespace::open(Path::new(path)).is_ok());
                verdict(interface, &pods, links.contains(interface.name()), namespace) != Verdict::Keep
            })
            .collect()
    }
}
