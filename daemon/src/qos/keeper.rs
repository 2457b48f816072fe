//! Keeps limits as the annotations ask for, while pods live and after the agent's restarts.
//!
//! In: pods and this node as watched, the switch's rows. Out: rows, shapers in pods, events, the [`Book`](super::Book).
//! Level-triggered: a pass compares everything and touches only what differs, so it needs no memory of what changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::effect::{Effect, End, PodEnd, settle};
use super::inside::{Inside, NAMESPACE};
use super::limits::{self, Limits};
use crate::attachments::{pod_of, provider_of};
use crate::kube::{EventType, NodeFacts, ObjectRef, PodFacts};
use crate::netlink::Link;
use crate::node::OVN0;
use crate::ovs::{Interface, PortQos, View, qos as rows};
use crate::plug::{CONTAINER_ID, Plugger};

/// Event reasons (node contract §2.8).
const UPDATED: &str = "PodQoSUpdated";
const FAILED: &str = "PodQoSUpdateFailed";
const INVALID: &str = "ValidatePodNetworkFailed";
const IGNORED: &str = "PodNetworkOptionIgnored";
/// The node's own, Weir's.
const NODE_FAILED: &str = "NodeQoSUpdateFailed";
const NOT_ACTED: &str = "ovs-vswitchd has not acted on the change yet";

/// The keeper of a node's limits.
pub struct Keeper {
    plugger: Arc<Plugger>,
    /// Complaints about annotations, by interface: told once.
    told: BTreeMap<String, String>,
    /// Interfaces whose rows were changed, and nobody was told yet what became of it.
    untold: BTreeSet<String>,
}

/// A port on this side.
struct Place<'a> {
    name: &'a str,
    /// The switch's device, `None` where it is not in the host's namespace.
    link: Option<&'a Link>,
    end: End<'a>,
    userspace: bool,
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
        Self { plugger, told: BTreeMap::new(), untold: BTreeSet::new() }
    }

    /// One pass. `verify` looks at the kernel even where nothing changed.
    pub async fn pass(&mut self, verify: bool) -> Passed {
        let mut passed = Passed::default();
        let view = self.plugger.ovs.view();
        let pods = self.plugger.cluster.pods.get();
        let network = self.plugger.network.borrow().clone();
        let (true, true, Some(network)) = (view.is_connected(), pods.synced, network) else { return passed };
        let exists = |name: &str| view.interface(name).is_some();
        if self.plugger.limits.retain(exists) {
            self.plugger.metrics.limited_interfaces(&self.plugger.limits.counts());
        }
        self.told.retain(|name, _| exists(name));
        self.untold.retain(|name| exists(name));
        if verify && let Err(error) = self.plugger.ovs.apply(|view| Ok(rows::sweep(view))).await {
            tracing::warn!(error = %error, "limits of dead ports can't be removed");
            passed.again = true;
        }
        // One that waits for its pod's ADD has no other end yet; the ADD settles it.
        let plugged = |interface: &Interface| interface.external_id(NAMESPACE).is_some();
        for interface in view.interfaces().filter(Interface::is_pod_port).filter(plugged) {
            let Some(pod) = pod_of(&interface, &pods) else { continue };
            let Some(provider) = provider_of(&interface, &pod) else { continue };
            let object = ObjectRef::pod(&pod.namespace, &pod.name, &pod.uid);
            let limits = limits::read(|key| pod.annotation(&provider, key));
            let limits = self.read(&interface, object.clone(), INVALID, limits).map(|limits| limits.qos);
            let Some(wanted) = limits.or_else(|| rows::read(&view, interface.name())) else { continue };
            if !self.is_due(&view, interface.name(), &wanted, verify) {
                continue;
            }
            // A call that runs for this container settles it itself.
            let lock = interface.external_id(CONTAINER_ID).map(|id| self.plugger.locks.try_lock(id));
            if matches!(lock, Some(None)) {
                passed.again = true;
                continue;
            }
            match self.pod_port(&interface, &pod, object, &wanted, network.userspace).await {
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

    /// Limits that could be read; complaints are told once. Where they can't be read, those that the rows ask for stay
    /// in effect.
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
        if self.untold.contains(name) {
            return true;
        }
        let known = self.plugger.limits.get(name);
        let settled = match &known {
            None => *wanted == PortQos::default(),
            Some(entry) => entry.wanted == *wanted && !verify,
        };
        !settled || !rows::set(view, name, wanted).is_empty()
    }

    async fn pod_port(
        &mut self,
        interface: &Interface,
        pod: &PodFacts,
        object: ObjectRef,
        wanted: &PortQos,
        userspace: bool,
    ) -> Result<bool, String> {
        let text = |error: crate::netlink::Error| error.to_string();
        let plugger = self.plugger.clone();
        let name = interface.name();
        let internal = interface.column("type").and_then(ovsdb::Value::as_str) == Some("internal");
        let link = if internal { None } else { plugger.host.netlink.link(name).await.map_err(text)? };
        let inside = Inside::open(&plugger.host, interface, link.as_ref()).await.map_err(text)?;
        let before = plugger.limits.get(name).map(|entry| entry.effect);
        let place = Place { name, link: link.as_ref(), end: inside.end(), userspace };
        let (changed, effect) = self.hold(&place, wanted, before.as_ref()).await?;
        plugger.tell_effect(object, FAILED, name, wanted, &effect);
        if changed {
            let message =
                format!("interface={} ingress={} egress={}", inside.name, effect.ingress, effect.egress);
            tracing::info!(pod = pod.name, namespace = pod.namespace, message, "limits changed");
            if effect.missing().next().is_none() {
                let object = ObjectRef::pod(&pod.namespace, &pod.name, &pod.uid);
                plugger.recorder.record(object, EventType::Normal, UPDATED, message);
            }
        }
        Ok(changed)
    }

    /// Makes rows and kernel say what is wanted, and looks what holds. Whether the rows were changed since somebody was
    /// told, and how the limits hold. Nothing is said while ovs-vswitchd has not acted: that is no verdict.
    async fn hold(
        &mut self,
        place: &Place<'_>,
        wanted: &PortQos,
        before: Option<&Effect>,
    ) -> Result<(bool, Effect), String> {
        let plugger = self.plugger.clone();
        let look = async || {
            let settled = settle(&plugger.host.netlink, place.link, place.end, place.userspace, wanted).await;
            settled.map_err(|error| error.to_string())
        };
        // The shaper goes before the row that tells of it: after a crash between the two the row still does.
        if wanted.policing_rate == 0 {
            look().await?;
        }
        let acted = match plugger.write_rows(place.name, wanted).await? {
            true => {
                self.untold.insert(place.name.to_owned());
                plugger.ovs.applied().await
            }
            // Not waited for again: the view tells when it has.
            false => plugger.is_acted_on(),
        };
        let changed = self.untold.contains(place.name);
        if changed && !acted {
            return Err(NOT_ACTED.to_owned());
        }
        let mut effect = look().await?;
        let first = effect.without_lost(before, wanted);
        // What the switch never had in its hands it can't set up.
        if place.link.is_some() && first != *wanted {
            plugger.set_up_anew(place.name, &first, wanted).await?;
            effect = look().await?;
        }
        self.untold.remove(place.name);
        Ok((changed, effect))
    }

    /// The node's own port, by the node's annotations.
    async fn node_port(&mut self, view: &View, verify: bool, userspace: bool) -> Result<bool, String> {
        let node: Option<Arc<NodeFacts>> =
            self.plugger.cluster.nodes.object(&Arc::from(self.plugger.node.as_str()));
        let (Some(node), Some(interface)) = (node, view.interface(OVN0)) else { return Ok(false) };
        let limits =
            limits::read_node(|key| node.annotation(&crds::keys::pod_key(crds::keys::DEFAULT_PROVIDER, key)));
        let object = ObjectRef::node(&node.name, &node.name);
        let limits = self.read(&interface, object.clone(), NODE_FAILED, limits).map(|limits| limits.qos);
        let Some(wanted) = limits.or_else(|| rows::read(view, OVN0)) else { return Ok(false) };
        if !self.is_due(view, OVN0, &wanted, verify) {
            return Ok(false);
        }
        let plugger = self.plugger.clone();
        let before = plugger.limits.get(OVN0).map(|entry| entry.effect.crossed());
        let link = plugger.host.netlink.link(OVN0).await.map_err(|error| error.to_string())?;
        let place = Place { name: OVN0, link: link.as_ref(), end: End::Node, userspace };
        let (changed, effect) = self.hold(&place, &wanted, before.as_ref()).await?;
        let effect = effect.crossed();
        plugger.tell_effect(object, NODE_FAILED, OVN0, &wanted, &effect);
        if changed {
            tracing::info!(ingress = %effect.ingress, egress = %effect.egress, "limits of the node changed");
        }
        Ok(changed)
    }
}

impl Plugger {
    /// ovs-vswitchd has acted on every change that it was asked to tell of.
    fn is_acted_on(&self) -> bool {
        let (asked, acted) = self.ovs.view().configurations();
        acted >= asked
    }

    /// Writes a port's rows, in the steps that ovs-vswitchd needs. Whether there was anything to write.
    async fn write_rows(&self, name: &str, wanted: &PortQos) -> Result<bool, String> {
        let view = self.ovs.view();
        if rows::set(&view, name, wanted).is_empty() {
            return Ok(false);
        }
        if let Some(first) = rows::before(&view, name, wanted) {
            self.write_step(name, &first).await?;
            // If it takes too long, the look at the kernel tells what became of it.
            self.ovs.applied().await;
        }
        self.write_step(name, wanted).await?;
        Ok(true)
    }

    async fn write_step(&self, name: &str, wanted: &PortQos) -> Result<(), String> {
        let wish = |view: &View| {
            let mut operations = rows::set(view, name, wanted);
            if !operations.is_empty() {
                operations.extend(crate::ovs::plan::ask_for_applying(view));
            }
            Ok(operations)
        };
        self.ovs.apply(wish).await.map_err(|error| error.to_string())
    }

    /// Somebody took away or changed what the switch had set up in the kernel, or it found an older one when it began.
    /// It notices nothing, and sets it up only if it is told something else before, `first`. Without an ovs-vswitchd
    /// that acts nothing is touched: the rows have to say what is wanted when it comes back.
    async fn set_up_anew(&self, name: &str, first: &PortQos, wanted: &PortQos) -> Result<(), String> {
        if !self.is_acted_on() {
            return Err(NOT_ACTED.to_owned());
        }
        tracing::info!(port = name, "what held a limit was taken away or is another; it is set up anew");
        self.write_step(name, first).await?;
        let let_go = self.ovs.applied().await;
        self.write_step(name, wanted).await?;
        if self.ovs.applied().await && let_go { Ok(()) } else { Err(NOT_ACTED.to_owned()) }
    }

    /// At the end of an ADD: looks whether the limits hold, shapes the pod's end where they do not otherwise. What can't
    /// be limited is told of; the pod runs. What the switch should have set up and has not, the keeper looks at again:
    /// it has the time to wait for it.
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
            let effect = settle(host, link.as_ref(), End::Pod(end), userspace, wanted).await?;
            Ok::<_, crate::netlink::Error>((link.is_some(), effect))
        };
        match settled.await {
            Ok((true, effect)) if effect.without_lost(None, wanted) != *wanted => {
                if self.limits.forget(name) {
                    self.metrics.limited_interfaces(&self.limits.counts());
                }
            }
            Ok((_, effect)) => self.tell_effect(object, FAILED, name, wanted, &effect),
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
