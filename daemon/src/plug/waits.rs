//! What an ADD waits for before it makes anything: the pod's annotations, its
//! subnet, the node's own network. All of it comes by watch channels.

use std::sync::Arc;
use std::time::Instant;

use cni::api::CniRequest;
use tokio::sync::watch;
use tokio::time::timeout_at;

use super::error::{PlugError, Stage};
use super::locks::RunningAdd;
use super::target::node_unknown;
use super::wanted::{Readiness, Wanted, check_provider, readiness};
use super::{ASK_AT_LEAST, NodeNetwork, Plugger};
use crate::kube::{Fact, FoundPod, Loaded, NodeFacts, PodFacts, SubnetFacts};

/// DEL came for an interface that ADD still makes.
pub(super) fn unwanted() -> PlugError {
    PlugError::new(Stage::ConfigureNic, "DEL came while ADD was running")
}

/// Why the watch will never tell of a pod, by what the API server says of it.
fn never_comes(request: &CniRequest, found: Option<&FoundPod>, node: &str) -> Result<(), PlugError> {
    let refused = |message: String, remedy: &str| Err(PlugError::new(Stage::GetPod, message).remedy(remedy));
    let again = "nothing is to be done: the runtime asks again only while the kubelet wants the pod";
    let Some(found) = found else {
        return refused("the API server knows no such pod; it was deleted".into(), again);
    };
    let uid = request.pod_uid.as_str();
    if !found.facts.is_called(uid) {
        let message =
            format!("the pod (uid {uid}) is gone; another one has its name (uid {})", found.facts.uid);
        return refused(message, again);
    }
    if !found.node.is_empty() && found.node != node {
        return refused(
            format!("the pod belongs to node {}, not to {node}", found.node),
            "if this is that node, the agent's NODE_NAME is wrong: see its environment",
        );
    }
    if found.host_network {
        return refused(
            "the pod uses the node's network (hostNetwork)".into(),
            "the runtime must not call a network plugin for it: see its log",
        );
    }
    Ok(())
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

    /// Waits until the watch tells of the pod, as long as it can: whether the pod exists is the API server's to say.
    async fn wait_known(
        &self,
        request: &CniRequest,
        pods: &mut watch::Receiver<Loaded<PodFacts>>,
    ) -> Result<(), PlugError> {
        let key = PodFacts::key(&request.pod_namespace, &request.pod_name);
        let started = tokio::time::Instant::now();
        let deadline = started + self.patience.watch;
        let mut pause = self.patience.unknown_pod;
        loop {
            let known = pods.wait_for(|loaded| {
                loaded.objects.get(&key).is_some_and(|pod| pod.is_called(&request.pod_uid))
            });
            let until = deadline.min(tokio::time::Instant::now() + pause);
            if timeout_at(until, known).await.is_ok() {
                return Ok(());
            }
            let answer = match &self.lookup {
                Some(lookup) => lookup.pod(&request.pod_namespace, &request.pod_name).await.map(Some),
                None => Ok(None),
            };
            match answer {
                Ok(Some(found)) => never_comes(request, found.as_ref(), &self.node)?,
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(pod = request.pod_name, error = %error, "whether the pod exists is not known");
                }
            }
            if tokio::time::Instant::now() >= deadline {
                self.metrics.gave_up_waiting(Stage::GetPod, started.elapsed());
                let reason = match pods.borrow().synced {
                    true => "the pod is not known on this node yet",
                    false => "the pods are not loaded yet",
                };
                let message = format!("{reason} (waited {:.0?})", started.elapsed());
                return Err(PlugError::new(Stage::GetPod, message));
            }
            pause = (pause * 2).min(ASK_AT_LEAST);
        }
    }

    /// Waits for the controller's annotations; a pod that vanishes meanwhile ends the wait. With them comes until when
    /// the rest of what an ADD needs to know is waited for.
    pub(super) async fn wait_ready(
        &self,
        request: &CniRequest,
    ) -> Result<(Wanted, tokio::time::Instant), PlugError> {
        let key = PodFacts::key(&request.pod_namespace, &request.pod_name);
        let mut pods = self.cluster.pods.subscribe();
        self.wait_known(request, &mut pods).await?;
        let started = Instant::now();
        let deadline = tokio::time::Instant::now() + self.patience.annotations;
        loop {
            let pod = pods.borrow_and_update().objects.get(&key).cloned();
            let state = match pod.filter(|pod| pod.is_called(&request.pod_uid)) {
                Some(pod) => readiness(request, &pod),
                None => {
                    let gone = PlugError::new(Stage::GetPod, "the pod was deleted while ADD waited");
                    Readiness::Failed(gone)
                }
            };
            let (stage, reason) = match state {
                Readiness::Ready(wanted) => {
                    self.metrics.waited_for_annotations(started.elapsed(), wanted.default_route);
                    return Ok((*wanted, deadline));
                }
                Readiness::Failed(error) => return Err(error),
                Readiness::Waiting(stage, reason) => (stage, reason),
            };
            if timeout_at(deadline, pods.changed()).await.is_err() {
                self.metrics.gave_up_waiting(stage, started.elapsed());
                return Err(PlugError::new(stage, format!("{reason} (waited {:.0?})", started.elapsed())));
            }
        }
    }

    /// Ends when nobody wants the interface any more: the pod is being deleted,
    /// or gone, or another one of its name; or DEL came.
    pub(super) async fn abandoned(&self, request: &CniRequest, uid: &str, running: &RunningAdd) -> PlugError {
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

    /// This node, whose labels tell the MTUs of provider networks.
    pub(super) async fn wait_node(
        &self,
        deadline: tokio::time::Instant,
    ) -> Result<Arc<NodeFacts>, PlugError> {
        let mut nodes = self.cluster.nodes.subscribe();
        loop {
            if let Some(node) = nodes.borrow_and_update().objects.get(self.node.as_str()) {
                return Ok(node.clone());
            }
            if timeout_at(deadline, nodes.changed()).await.is_err() {
                return Err(node_unknown());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_api_server_says_decides_whether_a_pod_will_come() {
        let request = |uid: &str| CniRequest { pod_uid: uid.into(), ..CniRequest::default() };
        let facts = PodFacts { uid: "u".into(), ..PodFacts::default() };
        let found = FoundPod { facts: facts.clone(), node: "n1".into(), ..FoundPod::default() };
        let says = |uid: &str, found: Option<&FoundPod>| {
            never_comes(&request(uid), found, "n1").map_err(|error| error.message).err().unwrap_or_default()
        };
        assert_eq!(says("u", Some(&found)), "");
        assert_eq!(says("", Some(&found)), "");
        assert_eq!(says("u", Some(&FoundPod { node: String::new(), ..found.clone() })), "", "not bound yet");
        let mirror = FoundPod { facts: PodFacts { mirror_of: "file".into(), ..facts }, ..found.clone() };
        assert_eq!(says("file", Some(&mirror)), "");
        assert!(says("u", None).contains("no such pod"));
        assert!(says("old", Some(&found)).contains("another one has its name"));
        assert!(says("u", Some(&FoundPod { node: "n2".into(), ..found.clone() })).contains("node n2"));
        assert!(says("u", Some(&FoundPod { host_network: true, ..found })).contains("hostNetwork"));
    }
}
