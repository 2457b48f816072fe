//! Clean-up of interfaces whose sandbox is gone (node contract §4.12, without
//! its faults).
//!
//! A container may die without a DEL: while the agent was down, or with the
//! runtime's state lost. Its veth goes with its namespace; the OVS port stays
//! and would keep the logical port's `iface-id`. Looked at whenever a link
//! vanishes or the pods change, and slowly otherwise. A pod that lives in its
//! namespace keeps its port, whatever else is gone: that is [`super::replug`]'s
//! to mend, and the row is all that tells how.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::memory::request_of;
use super::names::is_host_end;
use super::replug::superseded;
use super::{CONTAINER_ID, POD_UID, Plugger, notes};
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

/// What the node shows of one interface.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// The host's end exists.
    link: bool,
    /// The pod's namespace exists, or that can't be told.
    namespace: bool,
    /// Another sandbox of the pod has the logical port.
    superseded: bool,
}

/// Judges one interface; the pods' list has to be complete.
fn verdict(interface: &Interface, pods: &Loaded<PodFacts>, seen: Seen) -> Verdict {
    match interface.kind() {
        "" | "internal" if interface.is_pod_port() && pods.synced => {}
        _ => return Verdict::Keep,
    }
    let key = PodFacts::key(
        interface.external_id("pod_namespace").unwrap_or_default(),
        interface.external_id("pod_name").unwrap_or_default(),
    );
    let uid = interface.external_id(POD_UID).unwrap_or_default();
    let pod = pods.objects.get(&key).filter(|pod| pod.is_called(uid));
    // An internal port's device is in the pod: on the host nothing shows it,
    // and the switch calls its link down. It lives with its namespace. So does
    // a pair that can be made again.
    let mended = !seen.superseded && request_of(interface).is_some() && pod.is_some_and(|pod| pod.goes_on());
    let gone = match interface.kind() {
        "internal" => !seen.namespace,
        _ => !(seen.link || seen.namespace && mended),
    };
    match pod {
        _ if gone => Verdict::LinkGone,
        None if !seen.namespace => Verdict::PodGone,
        _ => Verdict::Keep,
    }
}

/// Whether what opening a namespace came to says that it is gone: nothing is there, a plain file, which is what is
/// left of one that was unmounted, or a socket, where the path was that of a descriptor. Any other failure is the agent's
/// own (no descriptor free, no right to) and says nothing.
pub(super) fn says_gone(error: &io::Error) -> bool {
    let nothing = matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidInput
    );
    nothing || error.raw_os_error() == Some(libc::ENXIO)
}

/// Whether a pod's namespace is there, or may be.
fn may_stand(port: &str, path: &str) -> bool {
    match Namespace::open(Path::new(path)) {
        Ok(_) => true,
        Err(error) if says_gone(&error) => false,
        Err(error) => {
            tracing::warn!(port, error = %error, "a pod's namespace can't be opened; its port stays");
            true
        }
    }
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
        if !view.is_connected() || !self.cluster.pods.get().synced {
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
            // A call that had the lock since may have made another of the name.
            if self.ovs.view().interface(&name).is_none_or(|now| now.uuid() != interface.uuid()) {
                continue;
            }
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
        self.clean_notes(&view).await;
        self.metrics.lost_interfaces(removed.len() as u64);
        let remain = !found.is_empty();
        suspects.0 = found;
        (removed, remain)
    }

    /// Removes the notes of interfaces that nobody will make again.
    async fn clean_notes(&self, view: &View) {
        for note in notes::all(view) {
            let request = &note.request;
            let alive = self.pod(request).is_some_and(|pod| pod.goes_on() && pod.is_called(&request.pod_uid));
            if alive && may_stand(&note.port, &request.net_ns) {
                continue;
            }
            let Some(_lock) = self.locks.try_lock(&request.container_id) else { continue };
            let erase = |view: &View| Ok(notes::erase(view, std::iter::once(note.port.as_str())));
            if let Err(error) = self.ovs.apply(erase).await {
                tracing::warn!(port = note.port, error = %error, "the note of an interface could not be removed");
            }
        }
    }

    fn lost_interfaces(&self, view: &View, links: &BTreeSet<String>) -> Vec<Interface> {
        let pods = self.cluster.pods.get();
        view.interfaces()
            .filter(|interface| {
                let superseded =
                    request_of(interface).is_some_and(|request| superseded(view, &request, interface.name()));
                let link = links.contains(interface.name());
                let path = interface.external_id("pod_netns");
                let namespace = path.is_some_and(|path| may_stand(interface.name(), path));
                let seen = Seen { link, namespace, superseded };
                verdict(interface, &pods, seen) != Verdict::Keep
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
    use super::super::{IF_NAME, PROVIDER};
    use super::*;
    use ovsdb::testing::{Database, SchemaBuilder, string};
    use ovsdb::{Operation, Value};

    fn interface(kind: &str, ours: bool, marks: &[(&str, &str)]) -> Interface {
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
        let ids = Value::string_map(ids.into_iter().chain(marks.iter().copied()));
        let row = row.column("error", "could not set policing").column("external_ids", ids);
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

    fn seen(link: bool, namespace: bool) -> Seen {
        Seen { link, namespace, superseded: false }
    }

    #[test]
    fn k_071_only_what_nothing_can_use_is_lost() {
        let judge = |kind, pods: &Loaded<PodFacts>, link, namespace| {
            verdict(&interface(kind, true, &[]), pods, seen(link, namespace))
        };
        let (alive, gone, unknown) = (pods(Some("u-1"), true), pods(None, true), pods(None, false));
        assert_eq!(judge("", &alive, false, true), Verdict::LinkGone, "nobody knows how to make it again");
        assert_eq!(judge("", &alive, true, true), Verdict::Keep, "whatever else the switch complains about");
        assert_eq!(judge("", &gone, true, false), Verdict::PodGone);
        assert_eq!(judge("", &pods(Some("u-2"), true), true, false), Verdict::PodGone, "its successor");
        assert_eq!(judge("", &gone, true, true), Verdict::Keep, "somebody is still in there");
        for (link, namespace) in [(true, false), (false, false), (false, true)] {
            for kind in ["", "internal"] {
                let verdict = judge(kind, &unknown, link, namespace);
                assert_eq!(verdict, Verdict::Keep, "nobody is gone before the list is complete");
            }
        }
        assert_eq!(judge("internal", &alive, false, true), Verdict::Keep, "its device is in the pod");
        assert_eq!(judge("internal", &alive, false, false), Verdict::LinkGone);
        for kind in ["geneve", "patch", "dpdkvhostuserclient"] {
            assert_eq!(judge(kind, &gone, false, false), Verdict::Keep, "{kind}");
        }
        let others = interface("", false, &[]);
        assert_eq!(verdict(&others, &gone, seen(false, false)), Verdict::Keep, "another's");
    }

    /// D73: the row is all that tells how to make the pair again.
    #[test]
    fn a_pair_that_can_be_made_again_is_not_lost() {
        let marks = [(CONTAINER_ID, "c"), (IF_NAME, "eth0"), ("pod_netns", "/n"), (PROVIDER, "ovn")];
        let row = interface("", true, &marks);
        let alive = pods(Some("u-1"), true);
        assert_eq!(verdict(&row, &alive, seen(false, true)), Verdict::Keep);
        assert_eq!(verdict(&row, &alive, seen(false, false)), Verdict::LinkGone, "the sandbox is gone");
        assert_eq!(verdict(&row, &pods(None, true), seen(false, true)), Verdict::LinkGone, "the pod is gone");
        assert_eq!(verdict(&row, &pods(Some("u-2"), true), seen(false, true)), Verdict::LinkGone);
        let older = Seen { superseded: true, ..seen(false, true) };
        assert_eq!(verdict(&row, &alive, older), Verdict::LinkGone, "the pod has another sandbox");
        let mut going = alive;
        let mut pod = PodFacts::clone(going.objects.values().next().unwrap());
        pod.deleting = true;
        going.objects = Arc::new(BTreeMap::from([(PodFacts::key("web", "a"), Arc::new(pod))]));
        assert_eq!(verdict(&row, &going, seen(false, true)), Verdict::LinkGone, "nobody mends it");
    }

    #[test]
    fn only_a_namespace_that_is_not_there_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("unmounted");
        std::fs::write(&file, "").unwrap();
        let socket = std::os::unix::net::UnixDatagram::unbound().unwrap();
        let reused = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&socket));
        let below = file.join("below");
        let none = folder.path().join("none");
        for path in [none, below, file, "".into(), "/proc/0/ns/net".into(), reused.into()] {
            let error = Namespace::open(&path).unwrap_err();
            assert!(says_gone(&error), "{}: {error:?}", path.display());
        }
        for number in [libc::EMFILE, libc::ENFILE, libc::EACCES, libc::EPERM, libc::ENOMEM, libc::EINTR] {
            let error = io::Error::from_raw_os_error(number);
            assert!(!says_gone(&error), "{error:?}");
        }
    }
}
