//! What an ADD waits for before it makes anything: the pod's annotations, its
//! subnet, the node's own network. All of it comes by watch channels.

use std::sync::Arc;
use std::time::Instant;

use cni::api::CniRequest;
use tokio::time::timeout_at;

use super::error::{PlugError, Stage};
use super::locks::RunningAdd;
use super::wanted::{Readiness, Wanted, check_provider, readiness};
use super::{NodeNetwork, Plugger};
use crate::kube::{Fact, PodFacts, SubnetFacts};

/// DEL came for an interface that ADD still makes.
pub(super) fn unwanted() -> PlugError {
    PlugError::new(Stage::ConfigureNic, "DEL came while ADD was running")
}

impl Plugger {
    /// The pod of a request, if the watch knows it.
    pub(super) fn pod(&self, request: &CniRequest) -> Option<Arc<PodFacts>> {
        self.cluster.pods.object(&PodFacts::key(&request.pod_namespace, &request.pod_name))
    }

    /// The subnet that the request's provider is bound to.
    pub(super) fn bound_subnet(&self, request: &CniRequest) -> Result<Option<String>, PlugError> {
        let subnets = self.cluster.subnets.get();
        if !subnets.synced {
            // Not known is not "no": the annotations decide.
            return Ok(None);
        }
        check_provider(request, subnets.objects.values().map(|subnet| &**subnet))
    }

    /// Waits for the controller's annotations; a pod that vanishes meanwhile
    /// ends the wait.
    pub(super) async fn wait_ready(
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
                return Err(PlugError::new(stage, format!("{reason} (waited {:.0?})", started.elapsed())));
            }
        }
    }

    /// Ends when nobody wants the interface any more: the pod is being deleted,
    /// or gone, or another one of its name; or DEL came.
    pub(super) async fn abandoned(
        &self,
        request: &CniRequest,
        uid: &str,
        running: &RunningAdd<'_>,
    ) -> PlugError {
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

    pub(super) async fn wait_subnet(
        &self,
        name: &str,
        deadline: tokio::time::Instant,
    ) -> Result<Arc<SubnetFacts>, PlugError> {
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

    pub(super) async fn wait_network(
        &self,
        deadline: tokio::time::Instant,
    ) -> Result<NodeNetwork, PlugError> {
        let mut network = self.network.clone();
        let waited = timeout_at(deadline, network.wait_for(Option::is_some)).await;
        waited.ok().and_then(|network| network.ok()?.clone()).ok_or_else(|| {
            PlugError::new(Stage::Mtu, "the node's network is not initialised yet")
                .remedy("see `status` of the node agent, or its /readyz")
        })
    }
}
