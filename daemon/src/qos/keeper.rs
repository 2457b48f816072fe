//! Keeps limits as the annotations ask for, while pods live and after the agent's restarts.
//!
//! In: pods and this node as watched, the switch's rows. Out: rows, shapers in pods, events, the [`Book`](super::Book).
//! Level-triggered: a pass compares everything and touches only what differs, so it needs no memory of what changed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::effect::{Effect, End, PodEnd, settle};
use super::limits::{self, Limits};
use crate::attachments::{pod_of, provider_of};
use crate::kube::{EventType, NodeFacts, ObjectRef, PodFacts};
use crate::netlink::{self, Link, Netlink};
use crate::node::OVN0;
use crate::ovs::{Interface, PortQos, View, qos as rows};
use crate::plug::{CONTAINER_ID, IF_NAME, Plugger};
use crate::sys::Namespace;

/// Event reasons (node contract §2.8).
const UPDATED: &str = "PodQoSUpdated";
const FAILED: &str = "PodQoSUpdateFailed";
const INVALID: &str = "ValidatePodNetworkFailed";
const IGNORED: &str = "PodNetworkOptionIgnored";
/// The node's own, Weir's.
const NODE_FAILED: &str = "NodeQoSUpdateFailed";

/// The keeper of a node's limits.
pub struct Keeper {
    plugger: Arc<Plugger>,
    /// Complaints about annotations, by interface: told once.
    told: BTreeMap<String, String>,
}

/// What a pass did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Ports whose rows were changed.
    pub changed: usize,
    /// Something could not be done now and may be soon.
    pub again: bool,
}

impl Keeper {
    /// A keeper over everything that CNI calls share.
    pub fn new(plugger: Arc<Plugger>) -> Self {
        Self { plugger, told: BTreeMap::new() }
    }

    /// One pass. `verify` looks at the kernel even where nothing changed.
    pub async fn pass(&mut self, verify: bool) -> Passed {
        let mut passed = Passed::default();
        let view = self.plugger.ovs.view();
        let pods = self.plugger.cluster.pods.get();
        let network = self.plugger.network.borrow().clone();
        let (true, true, Some(network)) = (view.is_connected(), pods.synced, network) else { return passed };
        self.plugger.limits.retain(|name| view.interface(name).is_some());
        self.told.retain(|name, _| view.interface(name).is_some());
        if verify && let Err(error) = self.plugger.ovs.apply(|view| Ok(rows::sweep(view))).await {
            tracing::warn!(error = %error, "limits of dead ports can't be removed");
            passed.again = true;
        }
        for interface in view.interfaces().filter(Interface::is_pod_port) {
            let Some(pod) = pod_of(&interface, &pods) else { continue };
            let Some(provider) = provider_of(&interface, &pod) else { continue };
            let object = ObjectRef::pod(&pod.namespace, &pod.name, &pod.uid);
            let limits = limits::read(|key| pod.annotation(&provider, key));
            let Some(limits) = self.read(&interface, object.clone(), INVALID, limits) else { continue };
            if !self.is_due(&view, interface.name(), &limits.qos, verify) {
                continue;
            }
            // A call that runs for this container settles it itself.
            let lock = interface.external_id(CONTAINER_ID).map(|id| self.plugger.locks.try_lock(id));
            if matches!(lock, Some(None)) {
                passed.again = true;
                continue;
            }
            match self.pod_port(&interface, &pod, object, &limits.qos, network.userspace).await {
                Ok(changed) => passed.changed += usize::from(changed),
                Err(error) => {
                    tracing::warn!(port = interface.name(), error, "limits can't be set; trying again");
                    passed.again = true;
                }
            }
        }
        match self.node_port(&view, verify, network.userspace).await {
            Ok(changed) => passed.changed += usize::from(changed),
            Err(error) => {
                tracing::warn!(port = OVN0, error, "limits can't be set; trying again");
                passed.again = true;
            }
        }
        passed
    }

    /// Limits that could be read; complaints are told once.
    fn read(
        &mut self,
        interface: &Interface,
        object: ObjectRef,
        reason: &'static str,
        limits: Result<Limits, limits::Invalid>,
    ) -> Option<Limits> {
        let (complaint, reason, limits) = match limits {
            Ok(limits) if limits.notes.is_empty() => (String::new(), reason, Some(limits)),
            Ok(limits) => (limits.notes.join("; "), IGNORED, Some(limits)),
            Err(error) => (format!("{error}; until then the limits stay as they are"), reason, None),
        };
        if self.told.get(interface.name()).map_or("", String::as_str) != complaint {
            if !complaint.is_empty() {
                tracing::warn!(port = interface.name(), complaint, "limits");
                self.plugger.recorder.record(object, EventType::Warning, reason, complaint.clone());
            }
            self.told.insert(interface.name().to_owned(), complaint);
        }
        limits
    }

    /// Whether a port has to be touched or looked at.
    fn is_due(&self, view: &View, name: &str, wanted: &PortQos, verify: bool) -> bool {
        let known = self.plugger.limits.get(name);
        let settled = match &known {
            None => *wanted == PortQos::default(),
            Some(entry) => entry.wanted == *wanted && !verify,
        };
        !settled || !rows::set(view, name, wanted).is_empty()
    }

    async fn pod_port(
        &self,
        interface: &Interface,
        pod: &PodFacts,
        object: ObjectRef,
        wanted: &PortQos,
        userspace: bool,
    ) -> Result<bool, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let name = interface.name();
        let host = &self.plugger.host.netlink;
        let internal = interface.column("type").and_then(ovsdb::Value::as_str) == Some("internal");
        let link = if internal { None } else { host.link(name).await.map_err(|error| text(&error))? };
        let end = Inside::open(interface, link.as_ref()).await.map_err(|error| text(&error))?;
        // The shaper goes before the row that tells of it: after a crash between the two the row still does.
        if wanted.policing_rate == 0 {
            settle(host, link.as_ref(), end.end(), userspace, wanted).await.map_err(|e| text(&e))?;
        }
        let before = self.plugger.limits.get(name).map(|entry| entry.effect);
        let changed = self.plugger.set_rows(name, wanted).await?;
        let mut effect =
            settle(host, link.as_ref(), end.end(), userspace, wanted).await.map_err(|e| text(&e))?;
        // What the switch never had in its hands it can't set up.
        if !changed && link.is_some() && effect.is_lost(before.as_ref(), wanted) {
            self.plugger.set_up_anew(name, wanted).await?;
            effect = settle(host, link.as_ref(), end.end(), userspace, wanted).await.map_err(|e| text(&e))?;
        }
        self.plugger.tell_effect(object, FAILED, name, wanted, &effect);
        if changed {
            let message =
                format!("interface={} ingress={} egress={}", end.name, effect.ingress, effect.egress);
            tracing::info!(pod = pod.name, namespace = pod.namespace, message, "limits changed");
            if effect.missing().next().is_none() {
                let object = ObjectRef::pod(&pod.namespace, &pod.name, &pod.uid);
                self.plugger.recorder.record(object, EventType::Normal, UPDATED, message);
            }
        }
        Ok(changed)
    }

    /// The node's own port, by the node's annotations.
    async fn node_port(&mut self, view: &View, verify: bool, userspace: bool) -> Result<bool, String> {
        let node: Option<Arc<NodeFacts>> =
            self.plugger.cluster.nodes.object(&Arc::from(self.plugger.node.as_str()));
        let (Some(node), Some(interface)) = (node, view.interface(OVN0)) else { return Ok(false) };
        let limits =
            limits::read_node(|key| node.annotation(&crds::keys::pod_key(crds::keys::DEFAULT_PROVIDER, key)));
        let object = ObjectRef::node(&node.name, &node.name);
        let Some(limits) = self.read(&interface, object.clone(), NODE_FAILED, limits) else {
            return Ok(false);
        };
        if !self.is_due(view, OVN0, &limits.qos, verify) {
            return Ok(false);
        }
        let before = self.plugger.limits.get(OVN0).map(|entry| entry.effect.crossed());
        let host = &self.plugger.host.netlink;
        let link = host.link(OVN0).await.map_err(|error| error.to_string())?;
        let look = async || {
            let settled = settle(host, link.as_ref(), End::Node, userspace, &limits.qos).await;
            settled.map_err(|error| error.to_string())
        };
        // As with pods: the shaper goes before the row that tells of it.
        if limits.qos.policing_rate == 0 {
            look().await?;
        }
        let changed = self.plugger.set_rows(OVN0, &limits.qos).await?;
        let mut effect = look().await?;
        if !changed && effect.is_lost(before.as_ref(), &limits.qos) {
            self.plugger.set_up_anew(OVN0, &limits.qos).await?;
            effect = look().await?;
        }
        let effect = effect.crossed();
        self.plugger.tell_effect(object, NODE_FAILED, OVN0, &limits.qos, &effect);
        if changed {
            tracing::info!(ingress = %effect.ingress, egress = %effect.egress, "limits of the node changed");
        }
        Ok(changed)
    }
}

/// A pod's end, with what keeps it open.
struct Inside {
    netlink: Option<Netlink>,
    link: Option<Link>,
    name: String,
}

impl Inside {
    /// By what ADD noted, or by what the host's end says of its peer. A namespace that is gone has no end.
    async fn open(interface: &Interface, host_end: Option<&Link>) -> Result<Self, netlink::Error> {
        let name = interface.external_id(IF_NAME).unwrap_or_default().to_owned();
        let mut inside = Self { netlink: None, link: None, name };
        let Some(path) = interface.external_id("pod_netns").filter(|path| !path.is_empty()) else {
            return Ok(inside);
        };
        let Ok(namespace) = Namespace::open(Path::new(path)) else { return Ok(inside) };
        let netlink = Netlink::in_namespace(&namespace).await?;
        inside.link = match host_end.and_then(|link| link.peer) {
            Some(peer) => netlink.links().await?.into_iter().find(|link| link.index == peer),
            None if inside.name.is_empty() => None,
            None => netlink.link(&inside.name).await?,
        };
        if let Some(link) = &inside.link {
            inside.name.clone_from(&link.name);
        }
        inside.netlink = Some(netlink);
        Ok(inside)
    }

    fn end(&self) -> End<'_> {
        match (&self.netlink, &self.link) {
            (Some(netlink), Some(link)) => End::Pod(PodEnd { netlink, index: link.index, mtu: link.mtu }),
            _ => End::Lost,
        }
    }
}

impl Plugger {
    /// Writes a port's rows and waits until ovs-vswitchd has acted on them. Whether there was anything to write.
    async fn set_rows(&self, name: &str, wanted: &PortQos) -> Result<bool, String> {
        if rows::set(&self.ovs.view(), name, wanted).is_empty() {
            return Ok(false);
        }
        let wish = |view: &View| {
            let mut operations = rows::set(view, name, wanted);
            if !operations.is_empty() {
                operations.extend(crate::ovs::plan::ask_for_applying(view));
            }
            Ok(operations)
        };
        self.ovs.apply(wish).await.map_err(|error| error.to_string())?;
        if !self.ovs.applied().await {
            return Err("ovs-vswitchd has not acted on the change yet".to_owned());
        }
        Ok(true)
    }

    /// Somebody took away what the switch had set up in the kernel. It notices nothing, and sets it up only if it is told
    /// something else before.
    async fn set_up_anew(&self, name: &str, wanted: &PortQos) -> Result<(), String> {
        tracing::info!(port = name, "what held a limit was taken away; it is set up anew");
        self.set_rows(name, &PortQos::default()).await?;
        self.set_rows(name, wanted).await.map(drop)
    }

    /// At the end of an ADD: looks whether the limits hold, shapes the pod's end where they do not otherwise. What can't
    /// be limited is told of; the pod runs.
    pub(crate) async fn hold_limits(
        &self,
        object: ObjectRef,
        name: &str,
        end: PodEnd<'_>,
        userspace: bool,
        wanted: &PortQos,
    ) {
        if *wanted == PortQos::default() && self.limits.get(name).is_none() {
            return;
        }
        let host = &self.host.netlink;
        let settled = async {
            let link = host.link(name).await?;
            settle(host, link.as_ref(), End::Pod(end), userspace, wanted).await
        };
        match settled.await {
            Ok(effect) => self.tell_effect(object, FAILED, name, wanted, &effect),
            Err(error) => {
                let message = format!("stage=effect error={error}");
                self.recorder.record(object, EventType::Warning, FAILED, message);
            }
        }
    }

    /// Notes how a port is limited; what is not in effect becomes an event, once.
    fn tell_effect(
        &self,
        object: ObjectRef,
        reason: &'static str,
        name: &str,
        wanted: &PortQos,
        effect: &Effect,
    ) {
        if !self.limits.put(name, wanted, effect.clone()) {
            return;
        }
        self.metrics.limited_interfaces(&self.limits.counts());
        for (direction, missing) in effect.missing() {
            let message = format!("stage={direction} error={missing}");
            tracing::warn!(port = name, message, "a limit is not in effect");
            self.recorder.record(object.clone(), EventType::Warning, reason, message);
        }
    }
}
