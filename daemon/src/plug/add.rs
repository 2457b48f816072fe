//! ADD (node contract §2.2 to §2.4): the order of the steps.
//!
//! In: a request. Out: the interface, or nothing: what a failed call made is
//! taken away again, last thing first.

use std::path::Path;
use std::time::Instant;

use cni::api::{CniRequest, CniResponse, HostEnd};

use super::choices::{answer, api_routes, redact, validate};
use super::container::Container;
use super::del::without_port;
use super::error::{PlugError, Stage};
use super::target::{Target, physical_network};
use super::waits::unwanted;
use super::wanted::{NicKind, Wanted};
use super::{Plugger, names, port};
use crate::kube::{EventType, ObjectRef};
use crate::netlink::Link;
use crate::ovs::{Interface, View};
use crate::sys::Namespace;

/// What this call made and would have to take away again.
#[derive(Debug, Default)]
pub(super) struct Made {
    pub(super) link: bool,
    pub(super) port: bool,
    /// Both were made ready ahead; the link waits in the agent's namespace.
    pub(super) ahead: bool,
}

/// The port that an earlier call of this container made, whatever its name.
fn own_port(view: &View, request: &CniRequest) -> Option<Interface> {
    view.interfaces().find(|interface| {
        names::is_marked(interface, &request.container_id, &request.if_name)
            && matches!(interface.kind(), "" | "internal")
    })
}

/// Where an ADD's time goes, for the debug log.
pub(super) struct Phases<'a> {
    container: &'a str,
    pub(super) begun: Instant,
    last: Instant,
}

impl<'a> Phases<'a> {
    pub(super) fn start(container: &'a str) -> Self {
        let now = Instant::now();
        Self { container, begun: now, last: now }
    }

    pub(super) fn done(&mut self, phase: &str) {
        let took_ms = self.last.elapsed().as_secs_f64() * 1000.0;
        tracing::debug!(container = self.container, phase, took_ms);
        self.last = Instant::now();
    }
}

/// A failure of the interface itself.
pub(super) fn failed(error: impl std::fmt::Display) -> PlugError {
    PlugError::new(Stage::ConfigureNic, error.to_string())
}

/// As many others are being made that this one's turn did not come.
fn busy() -> PlugError {
    failed("too many interfaces are being made at the same time").remedy(
        "the runtime tries again; if it stays, see why other pods' ADDs take so long: the agent's log says",
    )
}

impl Plugger {
    /// Plugs a pod's interface and answers when its first packet will pass.
    ///
    /// # Errors
    /// Everything that this call made is gone again then.
    pub async fn add(&self, request: &CniRequest) -> Result<CniResponse, PlugError> {
        let _running = self.begin();
        let result = self.try_add(request).await;
        let known = self.pod(request);
        let uid = known.as_ref().map_or_else(|| request.pod_uid.clone(), |pod| pod.uid.clone());
        let pod = ObjectRef::pod(&request.pod_namespace, &request.pod_name, &uid);
        match &result {
            Ok((response, wanted)) => {
                let ips: Vec<&str> = response.ips.iter().map(|ip| ip.ip.as_str()).collect();
                let message =
                    format!("subnet={} ip={} mac={}", wanted.subnet, ips.join(","), response.mac_address);
                self.recorder.record(pod.clone(), EventType::Normal, "PodNetworkConfigured", message);
                if !wanted.bad_routes.is_empty() {
                    let message = format!(
                        "these routes are left out, for they have neither a prefix as destination nor an address as gateway, \
                         or something else there: {}; correct annotation routes, or the network configuration's",
                        wanted.bad_routes.join(", ")
                    );
                    tracing::warn!(pod = request.pod_name, namespace = request.pod_namespace, message);
                    let pod = pod.clone();
                    self.recorder.record(pod, EventType::Warning, "PodNetworkOptionIgnored", message);
                }
                if !wanted.unsupported.is_empty() {
                    let message = format!(
                        "these annotations have no effect in this version: {}; remove them",
                        wanted.unsupported.join(", ")
                    );
                    self.recorder.record(pod, EventType::Warning, "PodNetworkOptionIgnored", message);
                }
            }
            // Nobody reads the events of a pod that goes, and none can be of a pod without a name.
            Err(_) if known.is_some_and(|pod| pod.deleting) || request.pod_name.is_empty() => {}
            Err(error) => {
                let message = self.failure(error, request);
                self.recorder.record(pod, EventType::Warning, "PodNetworkConfigureFailed", message);
            }
        }
        result.map(|(response, _)| response).map_err(|error| error.about(request))
    }

    /// What an event says of a failure (node contract §2.2), with the remedy behind it.
    pub(super) fn failure(&self, error: &PlugError, request: &CniRequest) -> String {
        format!(
            "stage={} error={} provider={} interface={} node={} remedy={}",
            error.stage.as_str(),
            redact(&error.message, request),
            request.provider,
            request.if_name,
            self.node,
            redact(&error.clone().about(request).remedy, request)
        )
    }

    async fn try_add(&self, request: &CniRequest) -> Result<(CniResponse, Wanted), PlugError> {
        validate(request)?;
        let mut phase = Phases::start(&request.container_id);
        let end = tokio::time::Instant::from_std(phase.begun) + self.patience.whole;
        let running = self.locks.running(&request.container_id, &request.if_name);
        let _lock = tokio::select! {
            lock = self.locks.lock(&request.container_id) => lock,
            () = running.cancelled.cancelled() => return Err(unwanted()),
            () = tokio::time::sleep_until(end) => {
                return Err(failed("another call for this container has not come to its end"));
            }
        };
        let bound = self.bound_subnet(request)?;
        let (mut wanted, deadline) = tokio::select! {
            ready = self.wait_ready(request) => ready?,
            () = running.cancelled.cancelled() => return Err(unwanted()),
        };
        let deadline = deadline.min(end);
        if wanted.subnet.is_empty() {
            wanted.subnet = bound.unwrap_or_default();
        }
        let routes_wanted = wanted.routes.clone();
        if !wanted.is_ovn {
            self.delegate(request, &wanted).await?;
            return Ok((answer(&wanted, "", 0, api_routes(&routes_wanted)), wanted));
        }
        let subnet = self.wait_subnet(&wanted.subnet, deadline).await?;
        let network = self.wait_network(deadline).await?;
        phase.done("controller");
        // A repeated call keeps what the first one made.
        let view = self.ovs.view();
        let existing = own_port(&view, request);
        if let Some(existing) = &existing {
            wanted.nic = if existing.kind() == "internal" { NicKind::Internal } else { NicKind::Veth };
        }
        let node = match physical_network(&wanted, &subnet) {
            Some(_) => Some(self.wait_node(deadline).await?),
            None => None,
        };
        let mut target =
            Target::new(request, &wanted, &subnet, &network, node.as_deref(), self.detect_conflicts)?;
        target.has_its_gateways()?;
        let namespace = self.open_namespace(request)?;
        let mut made = Made::default();
        match existing {
            Some(existing) => target.take_port(existing.name()),
            None => match self.claim(&target).await {
                Some(port) => {
                    target.take_port(&port);
                    made = Made { link: true, port: true, ahead: true };
                }
                None => {
                    let end = if wanted.nic == NicKind::Internal { names::INTERNAL } else { names::HOST };
                    target.take_port(&names::free(&view, &request.container_id, &wanted.if_name, end));
                }
            },
        }
        let uid = wanted.pod_uid.clone();
        let abandoned = self.abandoned(request, &uid, &running);
        tokio::pin!(abandoned);
        let permit = tokio::select! {
            // The semaphore is never closed; without a permit the call would go on all the same.
            permit = self.at_once.acquire() => Ok(permit.ok()),
            error = &mut abandoned => Err(error),
            () = tokio::time::sleep_until(end) => Err(busy()),
        };
        let plugged = match &permit {
            Ok(_) => self.plug(&target, &namespace, &mut made, abandoned, &mut phase).await,
            Err(error) => Err(error.clone()),
        };
        match plugged {
            Ok((mtu, routes, host)) => {
                self.own.made(&port::spec(&target), request);
                let answer = answer(&wanted, &wanted.if_name, i64::from(mtu), routes);
                Ok((CniResponse { host, ..answer }, wanted))
            }
            Err(error) => {
                self.roll_back(&target, &made).await;
                Err(error)
            }
        }
    }

    /// IPAM for another plugin: nothing is made, but its default route gets way.
    async fn delegate(&self, request: &CniRequest, wanted: &Wanted) -> Result<(), PlugError> {
        let families: Vec<bool> = [false, true]
            .into_iter()
            .filter(|ipv6| {
                wanted.routes.iter().any(|(destination, gateway)| match (destination, gateway) {
                    (Some(net), _) => net.prefix_len() == 0 && net.addr().is_ipv6() == *ipv6,
                    (None, Some(gateway)) => gateway.is_ipv6() == *ipv6,
                    (None, None) => false,
                })
            })
            .collect();
        if families.is_empty() {
            return Ok(());
        }
        let namespace = self.open_namespace(request)?;
        let container = Container::enter(&namespace, &wanted.if_name, false).await?;
        for ipv6 in families {
            container.delete_default_routes(ipv6).await?;
        }
        Ok(())
    }

    pub(super) fn open_namespace(&self, request: &CniRequest) -> Result<Namespace, PlugError> {
        let namespace = Namespace::open(Path::new(&request.net_ns))
            .map_err(|error| failed(format!("open the pod's namespace: {error}")).code(8))?;
        if namespace == self.host.namespace {
            return Err(failed("the pod's namespace is the host's own").code(8));
        }
        Ok(namespace)
    }

    /// Makes the interface and waits until its first packet will pass. Changes
    /// always run to their end, or a roll-back could overtake them; only waits
    /// end early when nobody wants the result.
    async fn plug(
        &self,
        target: &Target<'_>,
        namespace: &Namespace,
        made: &mut Made,
        abandoned: impl Future<Output = PlugError>,
        phase: &mut Phases<'_>,
    ) -> Result<(u32, Vec<cni::api::Route>, Option<HostEnd>), PlugError> {
        phase.done("queue");
        let mut plugged = self.make(target, namespace, made, phase).await?;
        self.forget_notes(target.request).await?;
        tokio::select! {
            finished = self.finish(target, namespace, &mut plugged, phase) => finished?,
            error = abandoned => return Err(error),
        }
        let (container, link) = plugged;
        let (routes, host) = tokio::join!(container.routes(link.index), self.host_end(target));
        phase.done("routes");
        Ok((link.mtu, routes?, host))
    }

    /// The host's end of the pair, for the answer; the switch has an internal port's. One that is gone is somebody
    /// else's to mend ([`super::replug`]), and no reason to fail here.
    async fn host_end(&self, target: &Target<'_>) -> Option<HostEnd> {
        if target.wanted.nic == NicKind::Internal {
            return None;
        }
        let link = self.host.netlink.link(&target.port).await.ok()??;
        let mac = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
        Some(HostEnd { name: link.name, mac, mtu: i64::from(link.mtu) })
    }

    /// Makes device, port and the pod's side; nothing here waits for OVN.
    pub(super) async fn make(
        &self,
        target: &Target<'_>,
        namespace: &Namespace,
        made: &mut Made,
        phase: &mut Phases<'_>,
    ) -> Result<(Container, Link), PlugError> {
        let container = Container::enter(namespace, target.device_inside(), target.userspace).await?;
        phase.done("enter");
        let route = async |link: &Link| match target.late {
            true => Ok(()),
            false => container.route(link, &target.interface).await,
        };
        match target.wanted.nic {
            NicKind::Veth => {
                if made.ahead {
                    self.hand_over(target, namespace).await?;
                } else {
                    self.make_pair(target, namespace, made).await?;
                }
                phase.done("link");
                // Up before the switch hears of it: the carrier of its own end comes with that.
                let link = container.bring_up(&target.interface, !target.late).await?;
                phase.done("up");
                // The switch and the routes know nothing of each other: at once.
                let (port, routed) = tokio::join!(self.ensure_port(target), route(&link));
                phase.done("port");
                port.and(routed)?;
                Ok((container, link))
            }
            NicKind::Internal => {
                made.port = self.ovs.view().port(&target.port).is_none();
                self.ensure_port(target).await?;
                phase.done("port");
                let patience = self.patience.for_switch(phase.begun.elapsed());
                self.ensure_internal(target, namespace, patience).await?;
                phase.done("link");
                let link = container.bring_up(&target.interface, !target.late).await?;
                route(&link).await?;
                phase.done("configured");
                Ok((container, link))
            }
        }
    }

    /// Makes the pair, and sees to it that the switch opens it: a port that was
    /// there before has the device of before.
    async fn make_pair(
        &self,
        target: &Target<'_>,
        namespace: &Namespace,
        made: &mut Made,
    ) -> Result<(), PlugError> {
        self.is_free(target)?;
        made.port = self.ovs.view().port(&target.port).is_none();
        if !made.port && self.host.netlink.link(&target.port).await.map_err(failed)?.is_none() {
            self.forget_port(&target.port).await?;
            made.port = true;
        }
        self.ensure_veth(target, namespace, made).await?;
        if made.link && !made.port {
            self.forget_port(&target.port).await?;
            made.port = true;
        }
        Ok(())
    }

    /// Takes away what the failed call made, last thing first. Errors are
    /// logged; the runtime's DEL and the clean-up of lost interfaces follow.
    async fn roll_back(&self, target: &Target<'_>, made: &Made) {
        let port = target.port.as_str();
        if made.port {
            self.own.removes(port);
        }
        if made.port
            && let Err(error) = self.ovs.apply(|view| Ok(without_port(view, port))).await
        {
            tracing::warn!(error = %error, "roll-back of the OVS port failed");
        }
        if made.link
            && let Err(error) = self.reaper.delete(&self.host.netlink, port).await
        {
            tracing::warn!(error = %error, "roll-back of the veth pair failed");
        }
    }
}
