//! What an interface that was made has to wait for before its first packet passes (node contract §2.3 steps 10 and 11,
//! §2.4 steps 3 and 9): OVN, the way to the physical network, addresses that are nobody else's, gateways.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::add::{Phases, failed};
use super::container::Container;
use super::error::{PlugError, Stage};
use super::target::{GatewayCheck, Target};
use super::{Plugger, conflict};
use crate::kube::{EventType, ObjectRef};
use crate::netlink::Link;
use crate::qos::PodEnd;
use crate::sys::Namespace;

impl Plugger {
    /// Waits for OVN, then sees to limits and routing rules.
    pub(super) async fn settle(
        &self,
        target: &Target<'_>,
        container: &Container,
        link: &Link,
        patience: Duration,
    ) -> Result<(), PlugError> {
        self.wait_installed(&target.port, patience).await?;
        let request = target.request;
        let pod = ObjectRef::pod(&request.pod_namespace, &request.pod_name, &target.wanted.pod_uid);
        let end = PodEnd { netlink: &container.netlink, index: link.index, mtu: link.mtu };
        self.hold_limits(pod, &target.port, end, target.userspace, &target.wanted.qos).await;
        for rule in &target.rules {
            let added = self.host.netlink.add_rule(&rule.to_netlink()).await;
            added.map_err(|error| PlugError::new(Stage::Egress, error.to_string()))?;
        }
        Ok(())
    }

    /// Waits for OVN, gives the addresses that had to wait for it, asks the
    /// gateways, tells the neighbours.
    pub(super) async fn finish(
        &self,
        target: &Target<'_>,
        namespace: &Namespace,
        plugged: &mut (Container, Link),
        phase: &mut Phases<'_>,
    ) -> Result<(), PlugError> {
        let (container, link) = plugged;
        self.settle(target, container, link, self.patience.for_switch(phase.begun.elapsed())).await?;
        phase.done("installed");
        let (mac, addresses) = (target.interface.mac, &target.interface.addresses);
        if let Some(patch) = &target.localnet {
            self.wait_localnet(patch, self.patience.for_switch(phase.begun.elapsed())).await?;
            phase.done("localnet");
        }
        if target.late {
            let all: Vec<IpAddr> = addresses.iter().map(ipnet::IpNet::addr).collect();
            if target.detect {
                conflict::probe(namespace, link, mac, &all).await?;
            }
            *link = container.configure(&target.interface).await?;
            conflict::wait_preferred(namespace, container, link, &all, self.patience.unique).await?;
            phase.done("unique");
        }
        self.check_gateways(target, container, link, phase.begun).await?;
        phase.done("gateway");
        if let Some(announcement) = container.announcement(link, mac, addresses) {
            self.announce(announcement);
        }
        Ok(())
    }

    async fn check_gateways(
        &self,
        target: &Target<'_>,
        container: &mut Container,
        link: &Link,
        begun: Instant,
    ) -> Result<(), PlugError> {
        if target.check == GatewayCheck::Off {
            return Ok(());
        }
        let patience = target.check.patience(self.patience.for_gateway(begun.elapsed()));
        let started = Instant::now();
        let silent = container.silent_gateways(link, &target.gateways, patience).await?;
        self.metrics.waited_for_gateway(started.elapsed());
        let Some(gateway) = silent.first().filter(|_| target.check == GatewayCheck::Required) else {
            return Ok(());
        };
        let message = format!("gateway {gateway} does not answer (waited {patience:?})");
        if target.one_family_answers(&silent) {
            // The pod can work with one family; another ADD would not bring the other.
            let request = target.request;
            let pod = ObjectRef::pod(&request.pod_namespace, &request.pod_name, &target.wanted.pod_uid);
            tracing::warn!(pod = request.pod_name, namespace = request.pod_namespace, message);
            self.recorder.record(pod, EventType::Warning, "PodNetworkGatewaySilent", message);
            return Ok(());
        }
        Err(failed(message)
            .remedy("check the subnet's router port, or set spec.disableGatewayCheck on the subnet"))
    }
}
