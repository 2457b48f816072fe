//! The loop: what is there, what is wanted, and the steps between.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::place::Place;
use super::responder::Responder;
use super::watch::Watch;
use super::wish::{OVNEXT, OVNEXT0, STEP, Wish};
use crate::frame::{Frame, Objects, Pace};
use crate::kube::{EventType, ObjectRef, label_node, ovn_eip_ready};
use crate::netlink::{Change, Monitor, Netlink, Route};
use crate::node::NotYet;
use crate::ovs::{View, plan};
use crate::parts::NodeParts;
use crate::plug::conflict::probe;
use crate::plug::container::{Container, Interface};
use crate::sys::{Namespace, write_sysctl};

/// Everything is looked at this often even if nothing happened.
const VERIFY: Duration = Duration::from_secs(60);
/// Pause before a failed pass is repeated without an event, doubled up to [`RETRY_MAX`].
const RETRY: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// How long the external network's gateway may take to answer.
const GATEWAY: Duration = Duration::from_secs(3);
/// How long ovs-vswitchd may take to make or release the device.
const DEVICE: Duration = Duration::from_secs(5);

/// The loop.
pub struct Exit {
    parts: NodeParts,
    /// Where the namespace has its name.
    place: Place,
    responder: Option<Responder>,
    /// Whether the network's gateways answer.
    watch: Option<Watch>,
    /// What happens in the namespace.
    monitor: Option<(Namespace, Monitor)>,
    /// What was told last.
    told: Option<String>,
}

fn failed(what: &str, error: impl std::fmt::Display) -> NotYet {
    NotYet::new(STEP, format!("{what}: {error}"), "see the agent's log; it is tried again")
}

/// What of the database concerns the port.
fn relevant(view: &View) -> String {
    let port = view.interface(OVNEXT0);
    let columns = ["external_ids", "mac", "mtu_request", "ofport", "error"];
    let seen = columns.map(|column| format!("{:?}", port.as_ref().and_then(|port| port.column(column))));
    format!("{} {seen:?}", view.is_connected())
}

/// The device of an internal port comes into being in the host's namespace, anew after a restart of the switch.
fn concerns(change: &Change) -> bool {
    match change {
        Change::LinkChanged(link) | Change::LinkGone(link) => link.name == OVNEXT0,
        Change::Lost => true,
        _ => false,
    }
}

async fn inside(monitor: Option<&mut (Namespace, Monitor)>) -> Option<Change> {
    match monitor {
        Some((_, monitor)) => monitor.next().await,
        None => std::future::pending().await,
    }
}

async fn gateways_changed(watch: Option<&mut Watch>) {
    match watch {
        Some(watch) => watch.changed().await,
        None => std::future::pending().await,
    }
}

fn silence(gateway: &IpAddr) -> NotYet {
    NotYet::new(
        STEP,
        format!("gateway {gateway} of the external network does not answer"),
        "is the Subnet's gateway right, and its ProviderNetwork ready on this node? Subnets whose gateway never \
         answers need disableGatewayCheck",
    )
}

impl Exit {
    /// A loop.
    pub fn new(parts: NodeParts, place: Place) -> Self {
        Self { parts, place, responder: None, watch: None, monitor: None, told: None }
    }

    /// Whom the node's port answers, and how these sessions are.
    pub fn sessions(&self) -> BTreeMap<IpAddr, super::packet::State> {
        self.responder.as_ref().map(|responder| responder.states().borrow().clone()).unwrap_or_default()
    }

    /// Runs until cancelled; routers are told then that nobody answers any more.
    pub async fn run(mut self, changes: broadcast::Receiver<Change>, cancel: CancellationToken) {
        let cluster = self.parts.cluster.clone();
        let objects = Objects::default()
            .and(cluster.ovn_eips.subscribe())
            .and(cluster.subnets.subscribe())
            .and(cluster.own_node.subscribe());
        let pace = Pace::new(VERIFY, RETRY, RETRY_MAX);
        let mut frame = Frame::new(objects, &self.parts.ovs.clone(), changes, pace, cancel);
        while let Some(well) = frame.pass(self.pass()).await {
            // What the pass itself wrote is no news.
            let seen = relevant(&frame.view());
            let (monitor, watch) = (&mut self.monitor, &mut self.watch);
            let within = async {
                tokio::select! {
                    change = inside(monitor.as_mut()) => if change.is_none() { *monitor = None },
                    () = gateways_changed(watch.as_mut()) => {}
                }
            };
            if !frame.wait(well, |view| relevant(view) != seen, concerns, within).await {
                break;
            }
        }
        self.end().await;
    }

    async fn end(&mut self) {
        self.watch = None;
        if let Some(responder) = self.responder.take() {
            responder.stop().await;
        }
    }

    /// One pass; whether all of it could be done.
    pub async fn pass(&mut self) -> bool {
        let (eips, subnets) = (self.parts.cluster.ovn_eips.get(), self.parts.cluster.subnets.get());
        // Not known is not gone.
        if !eips.synced || !subnets.synced || !self.parts.ovs.view().is_connected() {
            return true;
        }
        let wish = Wish::read(&self.parts.node, &eips.objects, |name| subnets.objects.get(name).cloned());
        let result = match wish {
            Ok(Some(wish)) => self.ensure(&wish).await,
            Ok(None) => self.leave().await,
            Err(reason) => Err(reason),
        };
        let said = result.as_ref().err().map(ToString::to_string);
        if said != self.told {
            match &said {
                Some(message) => {
                    tracing::warn!(message, "the node's port in the external network");
                    let node = ObjectRef::node(&self.parts.node, &self.parts.node);
                    let kind = EventType::Warning;
                    self.parts.recorder.record(node, kind, "ExternalPortFailed", message.clone());
                }
                None => tracing::info!("the node's port in the external network is as it should be"),
            }
            self.parts.feed.say("external-port", json!({ "error": said }));
            self.told = said;
        }
        result.is_ok()
    }

    async fn ensure(&mut self, wish: &Wish) -> Result<(), NotYet> {
        let namespace = self.place.make(OVNEXT).map_err(|error| failed("the namespace ovnext", error))?;
        crate::steps::done("name the namespace").await;
        self.device(wish, &namespace).await?;
        self.configure(wish, &namespace).await?;
        if !self.responder.as_ref().is_some_and(|responder| responder.serves(&namespace)) {
            self.end().await;
            let responder = Responder::start(&namespace).await;
            self.responder = Some(responder.map_err(|error| failed("UDP port 3784, for BFD", error))?);
        }
        let asked = wish.asked_gateways();
        if !self.watch.as_ref().is_some_and(|watch| watch.serves(&namespace, asked)) {
            self.watch = (!asked.is_empty()).then(|| Watch::start(&namespace, asked));
        }
        let silent = self.watch.as_mut().map(Watch::silent).unwrap_or_default();
        if let Some(responder) = &self.responder {
            responder.allow(wish.served(&silent));
        }
        self.tell(wish).await?;
        silent.first().map_or(Ok(()), |gateway| Err(silence(gateway)))
    }

    /// The port, with its device in the namespace. The switch makes devices in the host's, also after its own restart,
    /// when the one in the namespace died with it.
    async fn device(&self, wish: &Wish, namespace: &Namespace) -> Result<(), NotYet> {
        let spec = wish.port();
        let make = |view: &View| plan::and_apply(view, |view| plan::ensure_port(view, &spec));
        self.parts.ovs.apply(make).await.map_err(|error| failed("the switch", error))?;
        crate::node::acted(&self.parts.ovs, STEP, OVNEXT0).await?;
        let mut views = self.parts.ovs.subscribe();
        let opened =
            views.wait_for(|view| view.interface(OVNEXT0).is_some_and(|port| port.ofport() > Some(0)));
        if tokio::time::timeout(DEVICE, opened).await.is_err() {
            // It makes a device that somebody deleted for another port only.
            self.drop_port().await?;
            return Err(failed(
                "port ovnext0",
                "ovs-vswitchd has not made its device; the port is made anew",
            ));
        }
        let netlink = |error: crate::netlink::Error| failed("device ovnext0", error);
        let within = Netlink::in_namespace(namespace).await.map_err(netlink)?;
        let here = self.parts.host.netlink.link(OVNEXT0).await.map_err(netlink)?;
        let there = within.link(OVNEXT0).await.map_err(netlink)?;
        match (here, there) {
            (Some(here), dead) => {
                if dead.is_some() {
                    within.delete_link(OVNEXT0).await.map_err(netlink)?;
                }
                self.parts.host.netlink.move_link(here.index, namespace, None, OVNEXT0).await.map_err(netlink)
            }
            (None, Some(_)) => Ok(()),
            // Somebody deleted the device: the switch makes another one only for another port.
            (None, None) => {
                self.drop_port().await?;
                Err(failed("device ovnext0", "it is gone; the port is made anew"))
            }
        }
    }

    async fn drop_port(&self) -> Result<(), NotYet> {
        let dropped = self.parts.ovs.forget_port(OVNEXT0).await;
        if dropped.map_err(|error| failed("the switch", error))? {
            return Ok(());
        }
        Err(failed("port ovnext0", "ovs-vswitchd has not let go of it"))
    }

    /// Addresses, routes, forwarding.
    async fn configure(&mut self, wish: &Wish, namespace: &Namespace) -> Result<(), NotYet> {
        let userspace = self.parts.status.borrow().userspace || self.parts.ovs.view().is_userspace();
        let plug = |error: crate::plug::PlugError| failed("namespace ovnext", error);
        let mut container = Container::enter(namespace, OVNEXT0, userspace).await.map_err(plug)?;
        if !self.monitor.as_ref().is_some_and(|(of, _)| of == namespace) {
            let runtime = tokio::runtime::Handle::current();
            let monitor = namespace.run_async(move || Monitor::open_on(&runtime)).await;
            let monitor = monitor.map_err(|error| failed("namespace ovnext", error))?;
            let monitor = monitor.map_err(|error| failed("namespace ovnext", error))?;
            self.monitor = Some((namespace.clone(), monitor));
        }
        let settings = namespace.run_async(|| -> std::io::Result<()> {
            // What comes from routers of VPCs goes on to the gateway, by the device that it came by.
            for (key, value) in [
                ("net/ipv4/ip_forward", "1"),
                ("net/ipv4/conf/all/send_redirects", "0"),
                ("net/ipv4/conf/ovnext0/send_redirects", "0"),
                ("net/ipv4/conf/all/rp_filter", "0"),
                ("net/ipv4/conf/ovnext0/rp_filter", "0"),
            ] {
                write_sysctl(key, value)?;
            }
            // A kernel without IPv6 forwards none.
            if Path::new("/proc/sys/net/ipv6").exists() {
                write_sysctl("net/ipv6/conf/all/forwarding", "1")?;
            }
            Ok(())
        });
        let settings = settings.await.map_err(|error| failed("namespace ovnext", error))?;
        settings.map_err(|error| failed("settings of namespace ovnext", error))?;
        let netlink = |error: crate::netlink::Error| failed("namespace ovnext", error);
        let lo = container.netlink.require_link("lo").await.map_err(netlink)?;
        if !lo.up {
            container.netlink.set_up(lo.index).await.map_err(netlink)?;
        }
        // Replacing a route by the same one is a change to the kernel, and would bring us here again.
        let routes = container.netlink.routes().await.map_err(netlink)?;
        let device = container.netlink.require_link(OVNEXT0).await.map_err(netlink)?.index;
        let leads = |gateway: &IpAddr| {
            let ours = |route: &Route| {
                route.is_default() && route.gateway == Some(*gateway) && route.link == Some(device)
            };
            routes.iter().any(ours)
        };
        let missing = wish.gateways.iter().copied().filter(|gateway| !leads(gateway));
        let interface = Interface {
            name: OVNEXT0.to_owned(),
            mac: wish.mac,
            mtu: wish.mtu,
            addresses: wish.addresses.clone(),
            default_gateways: missing.collect(),
            routes: Vec::new(),
            no_dad: false,
            alias: OVNEXT0.to_owned(),
        };
        let present = container.netlink.addresses(Some(device)).await.map_err(netlink)?;
        let new = wish.addresses.iter().filter(|net| !present.iter().any(|has| has.net == **net));
        let new: Vec<IpAddr> = new.map(ipnet::IpNet::addr).collect();
        if !new.is_empty() {
            let link = container.bring_up(&interface, false).await.map_err(plug)?;
            probe(namespace, &link, wish.mac, &new).await.map_err(|error| {
                let text = format!("{}: {}", OVNEXT0, error.message);
                NotYet::new(STEP, text, "take the address off that host, or give the OvnEip another one")
            })?;
        }
        let link = container.configure(&interface).await.map_err(plug)?;
        if new.is_empty() && wish.told {
            return Ok(());
        }
        let asked = wish.asked_gateways();
        let silent = container.silent_gateways(&link, asked, GATEWAY).await.map_err(plug)?;
        silent.first().map_or(Ok(()), |gateway| Err(silence(gateway)))
    }

    /// Label and status say that the node is ready.
    async fn tell(&self, wish: &Wish) -> Result<(), NotYet> {
        let Some(client) = &self.parts.client else { return Ok(()) };
        self.label(true).await?;
        if wish.told {
            return Ok(());
        }
        let told = ovn_eip_ready(client, &self.parts.node, &wish.uid).await;
        told.map_err(|error| failed("the OvnEip's status", error))
    }

    async fn label(&self, on: bool) -> Result<(), NotYet> {
        let Some(client) = &self.parts.client else { return Ok(()) };
        let (key, value) = (crds::keys::NODE_EXT_GW_LABEL, if on { "true" } else { "false" });
        if self.label_is(value) != Some(false) {
            return Ok(());
        }
        let labels = BTreeMap::from([(key.to_owned(), Some(value.to_owned()))]);
        let told = label_node(client, &self.parts.node, &labels).await;
        told.map_err(|error| failed("the node's label", error))
    }

    /// Whether the node's label has that value; `None` while the node is not known.
    fn label_is(&self, value: &str) -> Option<bool> {
        let own = self.parts.cluster.own_node.get();
        let node = own.objects.values().next()?;
        Some(node.labels.get(crds::keys::NODE_EXT_GW_LABEL).is_some_and(|label| label == value))
    }

    /// The OvnEip is gone: port, namespace and label go, in this order, so that what is left is found by the label.
    async fn leave(&mut self) -> Result<(), NotYet> {
        let there = self.parts.ovs.view().interface(OVNEXT0).is_some();
        if !there && self.label_is("true") != Some(true) && self.responder.is_none() {
            return Ok(());
        }
        self.end().await;
        self.clean_up().await?;
        self.label(false).await
    }

    /// Port and namespace go.
    ///
    /// # Errors
    /// The step that fails; it can be called again.
    pub async fn clean_up(&mut self) -> Result<(), NotYet> {
        self.monitor = None;
        if self.parts.ovs.view().interface(OVNEXT0).is_some() {
            self.drop_port().await?;
        }
        self.place.remove(OVNEXT).map_err(|error| failed("the namespace ovnext", error))?;
        crate::steps::done("remove the namespace").await;
        Ok(())
    }
}
