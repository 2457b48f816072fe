//! The loop: what is there, what is wanted, the difference.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;
use tokio::sync::{broadcast, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::wish::{self, COOKIE, COOKIES, Wishes, wishes};
use crate::frame::{Frame, Objects, Pace};
use crate::kube::{EventType, ObjectRef, PodKey};
use crate::netlink::Change;
use crate::openflow::{Error, Session, flow};
use crate::ovs::View;
use crate::parts::NodeParts;

/// Everything is looked at this often even if nothing happened (contract §4.1).
const VERIFY: Duration = Duration::from_secs(15);
/// Pause before a failed pass is repeated without an event, doubled up to [`RETRY_MAX`].
const RETRY: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(10);
/// Events come in bunches: a Service with its address, a port with its number.
const GATHER: Duration = Duration::from_millis(50);
/// Priority of the flows of older versions.
const OBSOLETE: u16 = 10_001;
/// Reason of the event of a Service that can't be served.
const FAILED: &str = "UnderlayServiceFlowFailed";

/// Somebody who waits for changes to a bridge's flows; ends with the value.
struct Watch(JoinHandle<()>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The loop.
pub struct Shortcut {
    parts: NodeParts,
    /// Where the bridges' management sockets are.
    folder: PathBuf,
    /// Bridges that have flows of ours.
    watches: BTreeMap<String, Watch>,
    changed: (mpsc::Sender<()>, mpsc::Receiver<()>),
    /// What the last pass carried out, and whether the database was there.
    carried: Option<(bool, Wishes)>,
    /// Bridges that have been looked through for flows of older versions.
    swept: BTreeSet<String>,
    /// What was told of Services.
    told: BTreeMap<PodKey, (String, String)>,
    /// What was told of bridges.
    broken: BTreeMap<String, String>,
}

impl Shortcut {
    /// A loop. The switch has its sockets in `folder`.
    pub fn new(parts: NodeParts, folder: PathBuf) -> Self {
        Self {
            parts,
            folder,
            watches: BTreeMap::new(),
            changed: mpsc::channel(1),
            carried: None,
            swept: BTreeSet::new(),
            told: BTreeMap::new(),
            broken: BTreeMap::new(),
        }
    }

    /// Runs until cancelled. The flows stay.
    pub async fn run(mut self, changes: broadcast::Receiver<Change>, cancel: CancellationToken) {
        let cluster = self.parts.cluster.clone();
        let objects = Objects::default()
            .and(cluster.services.subscribe())
            .and(cluster.subnets.subscribe())
            .and(cluster.vlans.subscribe());
        let pace = Pace::new(VERIFY, RETRY, RETRY_MAX);
        let mut frame = Frame::new(objects, &self.parts.ovs.clone(), changes, pace, cancel);
        loop {
            let Some(well) = frame.pass(self.pass()).await else { return };
            // Ports of pods come and go without waking the loop.
            let (parts, carried) = (&self.parts, &self.carried);
            let is_news = |view: &View| {
                carried.as_ref().is_some_and(|(connected, wishes)| {
                    *connected != view.is_connected() || *wishes != wanted(parts, view)
                })
            };
            let flows = &mut self.changed.1;
            let other = async {
                let _ = flows.recv().await;
            };
            if !frame.wait(well, is_news, |_| false, other).await {
                return;
            }
            tokio::time::sleep(GATHER).await;
            while self.changed.1.try_recv().is_ok() {}
        }
    }

    /// One pass; whether all of it could be done.
    pub async fn pass(&mut self) -> bool {
        let view = self.parts.ovs.view();
        let wishes = wanted(&self.parts, &view);
        self.carried = Some((view.is_connected(), wishes.clone()));
        let cluster = &self.parts.cluster;
        // Not known is not gone.
        let known = cluster.services.synced() && cluster.subnets.synced() && cluster.vlans.synced();
        if !view.is_connected() || !known {
            return true;
        }
        self.tell(&wishes);
        self.watches.retain(|bridge, _| wishes.bridges.contains_key(bridge));
        self.broken.retain(|bridge, _| wishes.bridges.contains_key(bridge));
        self.swept.retain(|bridge| wishes.bridges.contains_key(bridge));
        let mut well = true;
        for (bridge, flows) in &wishes.bridges {
            match self.carry_out(bridge, flows).await {
                Ok(()) => {
                    if self.broken.remove(bridge).is_some() {
                        tracing::info!(bridge, "flows of Services are as they should be");
                    }
                }
                // A bridge that just came has no socket yet, and none that nobody wants anything of is worth a word.
                Err(error) => {
                    well = false;
                    let error = error.to_string();
                    if !flows.is_empty() && self.broken.get(bridge) != Some(&error) {
                        tracing::warn!(bridge, error, "flows of Services");
                        self.broken.insert(bridge.clone(), error);
                    }
                }
            }
        }
        well
    }

    async fn carry_out(&mut self, bridge: &str, flows: &BTreeSet<flow::Flow>) -> Result<(), Error> {
        if flows.is_empty() {
            self.watches.remove(bridge);
        } else if self.watches.get(bridge).is_none_or(|watch| watch.0.is_finished()) {
            // Before the flows are asked for: what changes after that is told.
            let watch = self.watch(bridge).await?;
            self.watches.insert(bridge.to_owned(), watch);
        }
        let mut session = Session::open(&self.folder, bridge).await?;
        let have = session.flows(COOKIE, COOKIES).await?;
        let (mut gone, new) = flow::difference(&have, flows);
        // Older versions of Kube-OVN had theirs in front of these, known by their priority alone (contract §3.1).
        let older = if self.swept.contains(bridge) { Vec::new() } else { session.flows(0, 0).await? };
        gone.extend(older.iter().filter(|flow| flow.priority == OBSOLETE));
        if gone.is_empty() && new.is_empty() {
            self.swept.insert(bridge.to_owned());
            return Ok(());
        }
        session.exchange(&gone, &new).await?;
        self.swept.insert(bridge.to_owned());
        tracing::info!(bridge, gone = gone.len(), new = new.len(), "flows of Services were changed");
        self.parts
            .feed
            .say("service-flows", json!({ "bridge": bridge, "gone": gone.len(), "new": new.len() }));
        crate::steps::done("exchange flows of Services").await;
        Ok(())
    }

    async fn watch(&self, bridge: &str) -> Result<Watch, Error> {
        let mut session = Session::open(&self.folder, bridge).await?;
        session.watch().await?;
        let changed = self.changed.0.clone();
        Ok(Watch(tokio::spawn(async move {
            // One word is enough until it is heard.
            while session.changed().await.is_ok() {
                let _ = changed.try_send(());
            }
            let _ = changed.try_send(());
        })))
    }

    fn tell(&mut self, wishes: &Wishes) {
        for (key, problem) in &wishes.problems {
            if self.told.get(key) != Some(problem) {
                let ((namespace, name), (uid, reason)) = (key, problem);
                let message = format!("Service {namespace}/{name}: {reason}");
                tracing::warn!(message, "flows of Services");
                let object = ObjectRef::service(namespace, name, uid);
                // Every node with the network finds it.
                self.parts.recorder.record_once(object, EventType::Warning, FAILED, message);
            }
        }
        self.told.clone_from(&wishes.problems);
    }
}

fn wanted(parts: &NodeParts, view: &View) -> Wishes {
    let cluster = &parts.cluster;
    let (services, subnets, vlans) = (cluster.services.get(), cluster.subnets.get(), cluster.vlans.get());
    let objects =
        wish::Objects { services: &services.objects, subnets: &subnets.objects, vlans: &vlans.objects };
    wishes(view, objects)
}
