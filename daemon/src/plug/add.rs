//! ADD (node contract §2.2 to §2.4).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use cni::api::{CniRequest, CniResponse};
use tokio::time::timeout_at;

use super::choices::{
    GatewayCheck, answer, api_routes, default_gateways, encap_ip, gateway_check, redact, validate,
};
use super::container::{Container, Interface};
use super::error::{PlugError, Stage};
use super::locks::RunningAdd;
use super::wanted::{Readiness, Wanted, check_provider, readiness};
use super::{CONTAINER_ID, IF_NAME, NETWORK, NodeNetwork, POD_UID, Plugger, names};
use crate::gateway::policy::rules_of_pod;
use crate::kube::{EventType, Fact, ObjectRef, PodFacts, SubnetFacts};
use crate::netlink::Veth;
use crate::ovs::{BR_INT, Installed, PortSpec, plan};
use crate::qos::PodEnd;
use crate::sys::Namespace;

/// What this call made and would have to take away again.
#[derive(Default)]
struct Made {
    link: bool,
    port: bool,
}

/// Where an ADD's time goes, for the debug log.
struct Phases<'a> {
    container: &'a str,
    last: Instant,
}

impl<'a> Phases<'a> {
    fn start(container: &'a str) -> Self {
        Self { container, last: Instant::now() }
    }

    fn done(&mut self, phase: &str) {
        let took_ms = self.last.elapsed().as_secs_f64() * 1000.0;
        tracing::debug!(container = self.container, phase, took_ms);
        self.last = Instant::now();
    }
}

fn unwanted() -> PlugError {
    PlugError::new(Stage::ConfigureNic, "DEL came while ADD was running")
}

fn failed(error: impl std::fmt::Display) -> PlugError {
    PlugError::new(Stage::ConfigureNic, error.to_string())
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
        let uid = known.as_ref().map(|pod| pod.uid.clone()).unwrap_or_default();
        let pod = ObjectRef::pod(&request.pod_namespace, &request.pod_name, &uid);
        match &result {
            Ok((response, wanted)) => {
                let ips: Vec<&str> = response.ips.iter().map(|ip| ip.ip.as_str()).collect();
                let message =
                    format!("subnet={} ip={} mac={}", wanted.subnet, ips.join(","), response.mac_address);
                self.recorder.record(pod.clone(), EventType::Normal, "PodNetworkConfigured", message);
                if !wanted.unsupported.is_empty() {
                    let message = format!(
                        "these annotations have no effect in this version: {}; remove them",
                        wanted.unsupported.join(", ")
                    );
                    self.recorder.record(pod, EventType::Warning, "PodNetworkOptionIgnored", message);
                }
            }
            // Nobody reads the events of a pod that goes.
            Err(_) if known.is_none_or(|pod| pod.deleting) => {}
            Err(error) => {
                let message = format!(
                    "stage={} error={} provider={} interface={} node={}",
                    error.stage.as_str(),
                    redact(&error.message, request),
                    request.provider,
                    request.if_name,
                    self.node
                );
                self.recorder.record(pod, EventType::Warning, "PodNetworkConfigureFailed", message);
            }
        }
        result.map(|(response, _)| response)
    }

    async fn try_add(&self, request: &CniRequest) -> Result<(CniResponse, Wanted), PlugError> {
        validate(request)?;
        let _lock = self.locks.lock(&request.container_id).await;
        let running = self.locks.running(&request.container_id, &request.if_name);
        let bound = self.bound_subnet(request)?;
        let deadline = tokio::time::Instant::now() + self.patience.annotations;
        let mut wanted = tokio::select! {
            wanted = self.wait_ready(request, deadline) => wanted?,
            () = running.cancelled.cancelled() => return Err(unwanted()),
        };
        if wanted.subnet.is_empty() {
            wanted.subnet = bound.unwrap_or_default();
        }
        let routes_wanted = wanted.routes.clone();
        if !wanted.is_ovn {
            self.delegate(request, &wanted).await?;
            return Ok((answer(&wanted, "", 0, api_routes(&routes_wanted)), wanted));
        }
        if !request.device_id.is_empty() || !request.vhost_user_socket_volume_name.is_empty() {
            return Err(PlugError::new(
                Stage::ConfigureNic,
                "virtual functions and vhost-user ports are not supported in this version",
            )
            .code(7)
            .remedy("remove deviceID or the vhost-user volume from the network configuration"));
        }
        let subnet = self.wait_subnet(&wanted.subnet, deadline).await?;
        let network = self.wait_network(deadline).await?;
        let encap_ip = encap_ip(&subnet, &network)?;
        let mut made = Made::default();
        let abandoned = self.abandoned(request, &wanted.pod_uid, &running);
        let plugged = self.plug(request, &wanted, &subnet, &network, encap_ip, &mut made, abandoned).await;
        match plugged {
            Ok((mtu, routes)) => Ok((answer(&wanted, &wanted.if_name, i64::from(mtu), routes), wanted)),
            Err(error) => {
                self.roll_back(request, &made).await;
                Err(error)
            }
        }
    }

    fn pod(&self, request: &CniRequest) -> Option<std::sync::Arc<PodFacts>> {
        self.cluster.pods.object(&PodFacts::key(&request.pod_namespace, &request.pod_name))
    }

    fn bound_subnet(&self, request: &CniRequest) -> Result<Option<String>, PlugError> {
        let subnets = self.cluster.subnets.get();
        if !subnets.synced {
            // Not known is not "no": the annotations decide.
            return Ok(None);
        }
        check_provider(request, subnets.objects.values().map(|subnet| &**subnet))
    }

    /// Waits for the controller's annotations; a pod that vanishes meanwhile
    /// ends the wait.
    async fn wait_ready(
        &self,
        request: &CniRequest,
        deadline: tokio::time::Instant,
    ) -> Result<Wanted, PlugError> {
        let started = Instant::now();
        let key = PodFacts::key(&request.pod_namespace, &request.pod_name);
        let mut pods = self.cluster.pods.subscribe();
        let mut seen = false;
        let unknown_until = deadline.min(tokio::time::Instant::now() + self.patience.unknown_pod);
        loop {
            let (pod, synced) = {
                let loaded = pods.borrow_and_update();
                (loaded.objects.get(&key).cloned(), loaded.synced)
            };
            let same = |pod: &PodFacts| request.pod_uid.is_empty() || pod.uid == request.pod_uid;
            let state = match pod.filter(|pod| same(pod)) {
                Some(pod) => {
                    seen = true;
                    readiness(request, &pod)
                }
                None if seen => {
                    let gone = PlugError::new(Stage::GetPod, "the pod was deleted while ADD waited");
                    Readiness::Failed(gone)
                }
                None if synced => {
                    Readiness::Waiting(Stage::GetPod, "the pod is not known on this node yet".into())
                }
                None => Readiness::Waiting(Stage::GetPod, "the pods are not loaded yet".into()),
            };
            let (stage, reason) = match state {
                Readiness::Ready(wanted) => {
                    self.metrics.waited_for_annotations(started.elapsed(), wanted.default_route);
                    return Ok(*wanted);
                }
                Readiness::Failed(error) => return Err(error),
                Readiness::Waiting(stage, reason) => (stage, reason),
            };
            // The watch is hardly behind kubelet: a pod that stays unknown is gone.
            let until = if synced && stage == Stage::GetPod { unknown_until } else { deadline };
            if timeout_at(until, pods.changed()).await.is_err() {
                self.metrics.gave_up_waiting(stage, started.elapsed());
                return Err(PlugError::new(stage, format!("{reason} (waited {:.0?})", started.elapsed()))
                    .remedy(
                        "see the pod's events and `kubectl -n kube-system logs deploy/kube-ovn-controller`",
                    ));
            }
        }
    }

    /// Ends when nobody wants the interface any more: the pod is being deleted,
    /// or gone, or another one of its name; or DEL came.
    async fn abandoned(&self, request: &CniRequest, uid: &str, running: &RunningAdd<'_>) -> PlugError {
        let key = PodFacts::key(&request.pod_namespace, &request.pod_name);
        let mut pods = self.cluster.pods.subscribe();
        let goes = pods.wait_for(|pods| {
            let pod = pods.objects.get(&key);
            pod.is_none_or(|pod| pod.deleting || pod.uid != uid)
        });
        tokio::select! {
            _ = goes => PlugError::new(Stage::GetPod, "the pod was deleted while ADD waited"),
            () = running.cancelled.cancelled() => unwanted(),
        }
    }

    async fn wait_subnet(
        &self,
        name: &str,
        deadline: tokio::time::Instant,
    ) -> Result<std::sync::Arc<SubnetFacts>, PlugError> {
        let mut subnets = self.cluster.subnets.subscribe();
        loop {
            if let Some(subnet) = subnets.borrow_and_update().objects.get(name) {
                return Ok(subnet.clone());
            }
            if timeout_at(deadline, subnets.changed()).await.is_err() {
                return Err(PlugError::new(Stage::GetSubnet, format!("subnet {name:?} is not known")));
            }
        }
    }

    async fn wait_network(&self, deadline: tokio::time::Instant) -> Result<NodeNetwork, PlugError> {
        let mut network = self.network.clone();
        let waited = timeout_at(deadline, network.wait_for(Option::is_some)).await;
        waited.ok().and_then(|network| network.ok()?.clone()).ok_or_else(|| {
            PlugError::new(Stage::Mtu, "the node's network is not initialised yet")
                .remedy("see `status` of the node agent, or its /readyz")
        })
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

    fn open_namespace(&self, request: &CniRequest) -> Result<Namespace, PlugError> {
        let namespace = Namespace::open(Path::new(&request.net_ns))
            .map_err(|error| failed(format!("open the pod's namespace: {error}")).code(8))?;
        if namespace == self.host.namespace {
            return Err(failed("the pod's namespace is the host's own").code(8));
        }
        Ok(namespace)
    }

    #[allow(clippy::too_many_arguments)]
    async fn plug(
        &self,
        request: &CniRequest,
        wanted: &Wanted,
        subnet: &SubnetFacts,
        network: &NodeNetwork,
        encap_ip: Option<IpAddr>,
        made: &mut Made,
        abandoned: impl Future<Output = PlugError>,
    ) -> Result<(u32, Vec<cni::api::Route>), PlugError> {
        let host_nic = names::host_nic(&request.container_id, &request.if_name);
        let namespace = self.open_namespace(request)?;
        let mtu = if subnet.mtu > 0 { subnet.mtu } else { network.mtu };
        let mut phase = Phases::start(&request.container_id);
        self.ensure_veth(&host_nic, wanted, &namespace, mtu, made).await?;
        phase.done("link");
        if network.userspace {
            self.host
                .ethtool
                .tx_checksum_off(&host_nic)
                .map_err(|error| failed(format!("checksum offload of the host end: {error}")))?;
        }
        let interface = Interface {
            name: wanted.if_name.clone(),
            mac: wanted.mac,
            mtu: (mtu > 0).then_some(mtu),
            addresses: wanted.addresses.clone(),
            default_gateways: default_gateways(wanted, subnet),
            routes: wanted.routes.clone(),
            no_dad: !subnet.is_underlay(),
        };
        // The switch and the pod's side know nothing of each other: at once.
        let port = self.ensure_ovs_port(request, wanted, &host_nic, encap_ip, made);
        let inside = async {
            let container = Container::enter(&namespace, &wanted.if_name, network.userspace).await?;
            let link = container.configure(&interface).await?;
            Ok::<_, PlugError>((container, link))
        };
        let (port, inside) = tokio::join!(port, inside);
        port?;
        let (mut container, link) = inside?;
        phase.done("configured");
        // From here on there are only waits, which end when nobody wants the
        // result; changes above always run to their end, or a roll-back could
        // overtake them.
        tokio::pin!(abandoned);
        tokio::select! {
            installed = self.wait_installed(&host_nic) => installed?,
            error = &mut abandoned => return Err(error),
        }
        phase.done("installed");
        let end = PodEnd { netlink: &container.netlink, index: link.index, mtu: link.mtu };
        let pod = ObjectRef::pod(&request.pod_namespace, &request.pod_name, &wanted.pod_uid);
        self.hold_limits(pod, &host_nic, end, network.userspace, &wanted.qos).await;
        for rule in rules_of_pod(subnet, &wanted.addresses) {
            self.host.netlink.add_rule(&rule.to_netlink()).await.map_err(failed)?;
        }
        container.announce(&link, wanted.mac, &wanted.addresses);
        tokio::select! {
            checked = self.check_gateways(request, &mut container, &link, &interface, gateway_check(subnet)) => checked?,
            error = &mut abandoned => return Err(error),
        }
        phase.done("gateway");
        let routes = container.routes(link.index).await?;
        Ok((link.mtu, routes))
    }

    /// Makes the veth pair, or keeps the one that an earlier call made. What a
    /// crashed call left half-made is removed first.
    async fn ensure_veth(
        &self,
        host_nic: &str,
        wanted: &Wanted,
        namespace: &Namespace,
        mtu: u32,
        made: &mut Made,
    ) -> Result<(), PlugError> {
        let veth = Veth {
            name: host_nic,
            peer: &wanted.if_name,
            peer_mac: Some(wanted.mac),
            peer_namespace: Some(namespace),
            mtu: (mtu > 0).then_some(mtu),
        };
        made.link = true;
        match self.host.netlink.add_veth(&veth).await {
            Ok(()) => return Ok(()),
            Err(error) if error.is_existing() => {}
            Err(error) => return Err(failed(error)),
        }
        made.link = false;
        let inside = crate::netlink::Netlink::in_namespace(namespace).await.map_err(failed)?;
        let there = inside.link(&wanted.if_name).await.map_err(failed)?;
        let here = self.host.netlink.link(host_nic).await.map_err(failed)?;
        match (&here, &there) {
            (Some(here), Some(there)) if here.peer == Some(there.index) && there.peer == Some(here.index) => {
                if !here.up {
                    self.host.netlink.set_up(here.index).await.map_err(failed)?;
                }
                Ok(())
            }
            (None, Some(_)) => {
                Err(failed(format!("the pod already has an interface {} of another plugin", wanted.if_name))
                    .code(7))
            }
            _ => {
                self.host.netlink.delete_link(host_nic).await.map_err(failed)?;
                made.link = true;
                self.host.netlink.add_veth(&veth).await.map_err(failed)
            }
        }
    }

    async fn ensure_ovs_port(
        &self,
        request: &CniRequest,
        wanted: &Wanted,
        host_nic: &str,
        encap_ip: Option<IpAddr>,
        made: &mut Made,
    ) -> Result<(), PlugError> {
        let mut ids = BTreeMap::from([
            ("iface-id".to_owned(), wanted.port_name.clone()),
            ("vendor".to_owned(), crds::keys::VENDOR.to_owned()),
            ("pod_name".to_owned(), request.pod_name.clone()),
            ("pod_namespace".to_owned(), request.pod_namespace.clone()),
            ("pod_netns".to_owned(), request.net_ns.clone()),
            (POD_UID.to_owned(), wanted.pod_uid.clone()),
            (CONTAINER_ID.to_owned(), request.container_id.clone()),
            (IF_NAME.to_owned(), wanted.if_name.clone()),
        ]);
        if !request.network.is_empty() {
            ids.insert(NETWORK.to_owned(), request.network.clone());
        }
        let mut absent = Vec::new();
        if wanted.addresses.is_empty() {
            absent.push("ip".to_owned());
        } else {
            let ips: Vec<String> = wanted.addresses.iter().map(|net| net.addr().to_string()).collect();
            ids.insert("ip".to_owned(), ips.join(","));
        }
        match encap_ip {
            Some(ip) => drop(ids.insert("encap-ip".to_owned(), ip.to_string())),
            None => absent.push("encap-ip".to_owned()),
        }
        let spec = PortSpec {
            bridge: BR_INT.to_owned(),
            name: host_nic.to_owned(),
            external_ids: ids,
            absent_external_ids: absent,
            qos: Some(wanted.qos.clone()),
            ..PortSpec::default()
        };
        made.port = self.ovs.view().port(host_nic).is_none();
        self.ovs.apply(|view| plan::ensure_port(view, &spec)).await.map_err(failed)
    }

    async fn wait_installed(&self, host_nic: &str) -> Result<(), PlugError> {
        let mut views = self.ovs.subscribe();
        let mut state = Installed::Waiting;
        let wait = async {
            loop {
                state = views.borrow_and_update().installed(host_nic);
                match &state {
                    Installed::Yes => return Ok(()),
                    Installed::Missing => {
                        return Err(failed("the OVS port was removed while ADD waited"));
                    }
                    Installed::Waiting | Installed::Broken(_) => {}
                }
                if views.changed().await.is_err() {
                    return Err(failed("the OVS session ended"));
                }
            }
        };
        match tokio::time::timeout(self.patience.installed, wait).await {
            Ok(result) => result,
            Err(_) => {
                let why = match state {
                    Installed::Broken(error) => format!("ovs-vswitchd can't use it: {error}"),
                    _ => "ovn-controller has not installed it".to_owned(),
                };
                Err(failed(format!(
                    "the OVS interface is not ready after {:?}: {why}",
                    self.patience.installed
                ))
                .remedy("look at ovn-controller's log on this node and at the logical switch port"))
            }
        }
    }

    async fn check_gateways(
        &self,
        request: &CniRequest,
        container: &mut Container,
        link: &crate::netlink::Link,
        interface: &Interface,
        check: GatewayCheck,
    ) -> Result<(), PlugError> {
        if check == GatewayCheck::Off || interface.default_gateways.is_empty() {
            return Ok(());
        }
        let patience = match check {
            GatewayCheck::Required => self.patience.gateway,
            _ => Duration::from_millis(50).min(self.patience.gateway),
        };
        let started = Instant::now();
        let silent = container.silent_gateways(link, &interface.default_gateways, patience).await?;
        self.metrics.waited_for_gateway(started.elapsed());
        let Some(gateway) = silent.first().filter(|_| check == GatewayCheck::Required) else {
            return Ok(());
        };
        let message = format!("gateway {gateway} does not answer (waited {patience:?})");
        if silent.len() < interface.default_gateways.len() {
            // The pod can work with one family; another ADD would not bring the other.
            let pod = ObjectRef::pod(&request.pod_namespace, &request.pod_name, "");
            tracing::warn!(pod = request.pod_name, namespace = request.pod_namespace, message);
            self.recorder.record(pod, EventType::Warning, "PodNetworkGatewaySilent", message);
            return Ok(());
        }
        Err(failed(message)
            .remedy("check the subnet's router port, or set spec.disableGatewayCheck on the subnet"))
    }

    /// Takes away what the failed call made, last thing first. Errors are
    /// logged; the runtime's DEL and the clean-up of lost interfaces follow.
    async fn roll_back(&self, request: &CniRequest, made: &Made) {
        let host_nic = names::host_nic(&request.container_id, &request.if_name);
        if made.port
            && let Err(error) = self.ovs.apply(|view| Ok(plan::remove_port(view, &host_nic))).await
        {
            tracing::warn!(error = %error, "roll-back of the OVS port failed");
        }
        if made.link
            && let Err(error) = self.host.netlink.delete_link(&host_nic).await
        {
            tracing::warn!(error = %error, "roll-back of the veth pair failed");
        }
    }
}
