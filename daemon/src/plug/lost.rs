//! Clean-up of interfaces whose sandbox is gone (node contract §4.12, without
//! its faults).
//!
//! A container may die without a DEL: while the agent was down, or with the
//! runtime's state lost. Its veth goes with its namespace; the OVS port stays
//! and would keep the logical port's `iface-id`. Looked at whenever a link
//! vanishes or the pods change, and slowly otherwise.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::names::is_host_end;
use super::{CONTAINER_ID, POD_UID, Plugger};
use crate::changes::Changes;
use crate::kube::{Fact, Loaded, PodFacts};
use crate::netlink::Change;
use crate::ovs::{Interface, View};
use crate::sys::Namespace;

/// Everything is looked at this often even if nothing happened.
const VERIFY: Duration = Duration::from_secs(60);
/// Pause before a lost interface is looked at for the second time.
const SECOND_LOOK: Duration = Duration::from_secs(2);

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

/// Takes lost interfaces away until cancelled.
pub async fn run(
    plugger: Arc<Plugger>,
    mut changes: broadcast::Receiver<Change>,
    feed: Changes,
    cancel: CancellationToken,
) {
    let mut pods = plugger.cluster.pods.subscribe();
    let mut suspects = Suspects::default();
    loop {
        // Without the switch's view nothing can be judged.
        tokio::select! {
            () = cancel.cancelled() => return,
            () = plugger.ovs.connected() => {}
        }
        pods.mark_unchanged();
        let (removed, remain) = plugger.clean_lost(&mut suspects).await;
        if !removed.is_empty() {
            feed.say("lost", json!({"removed": removed}));
        }
        let pause = if remain { SECOND_LOOK } else { VERIFY };
        let sleep = tokio::time::sleep(pause);
        tokio::pin!(sleep);
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                () = &mut sleep => break,
                // A second look comes by time alone: the first needs it to pass.
                changed = pods.changed(), if !remain => { if changed.is_err() { return } break }
                change = changes.recv() => match change {
                    Ok(Change::LinkGone(link)) if !remain && is_host_end(&link.name) => break,
                    Ok(Change::Lost) | Err(broadcast::error::RecvError::Lagged(_)) if !remain => break,
                    Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return,
                },
            }
        }
        // Pods come and go in bunches.
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ovsdb::testing::{Database, SchemaBuilder, string};
    use ovsdb::{Operation, Value};

    fn interface(kind: &str, ours: bool) -> Interface {
        let schema = SchemaBuilder::new("Open_vSwitch", "8.8.0")
            .table("Interface", |t| {
                t.root()
                    .unique(["name"])
                    .scalar("name", string())
                    .scalar("type", string())
                    .scalar("error", string())
                    .map("external_ids", string(), string())
            })
            .build();
        let mut database = Database::new(schema);
        let vendor = if ours { "kube-ovn" } else { "another" };
        let ids = [("vendor", vendor), ("pod_name", "a"), ("pod_namespace", "web"), (POD_UID, "u-1")];
        let row = Operation::insert("Interface").column("name", "a_h").column("type", kind);
        let row =
            row.column("error", "could not set policing").column("external_ids", Value::string_map(ids));
        database.must(&[row.build()]);
        View::new(database.replica()).interface("a_h").unwrap()
    }

    fn pods(uid: Option<&str>, synced: bool) -> Loaded<PodFacts> {
        let mut pods = Loaded::<PodFacts> { synced, ..Loaded::default() };
        if let Some(uid) = uid {
            let pod = PodFacts {
                namespace: "web".into(),
                name: "a".into(),
                uid: uid.into(),
                ..PodFacts::default()
            };
            pods.objects = Arc::new(BTreeMap::from([(PodFacts::key("web", "a"), Arc::new(pod))]));
        }
        pods
    }

    #[test]
    fn k_071_only_what_nothing_can_use_is_lost() {
        let judge = |kind, pods: &Loaded<PodFacts>, link, namespace| {
            verdict(&interface(kind, true), pods, link, namespace)
        };
        let (alive, gone, unknown) = (pods(Some("u-1"), true), pods(None, true), pods(None, false));
        assert_eq!(judge("", &alive, false, true), Verdict::LinkGone);
        assert_eq!(judge("", &alive, true, true), Verdict::Keep, "whatever else the switch complains about");
        assert_eq!(judge("", &gone, true, false), Verdict::PodGone);
        assert_eq!(judge("", &pods(Some("u-2"), true), true, false), Verdict::PodGone, "its successor");
        assert_eq!(judge("", &gone, true, true), Verdict::Keep, "somebody is still in there");
        assert_eq!(
            judge("", &unknown, true, false),
            Verdict::Keep,
            "nobody is gone before the list is complete"
        );
        assert_eq!(judge("internal", &alive, false, true), Verdict::Keep, "its device is in the pod");
        assert_eq!(judge("internal", &alive, false, false), Verdict::LinkGone);
        for kind in ["geneve", "patch", "dpdkvhostuserclient"] {
            assert_eq!(judge(kind, &gone, false, false), Verdict::Keep, "{kind}");
        }
        assert_eq!(verdict(&interface("", false), &gone, false, false), Verdict::Keep, "another's");
    }
}
