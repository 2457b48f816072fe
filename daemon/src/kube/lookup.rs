//! Pods asked for by name, where the watch does not tell of one.
//!
//! In: namespace and name. Out: what decides whether waiting for the watch makes sense. The answer is the API server's
//! own (a read without a resource version is never older than the question), so that "no such pod" is final.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::api::{Api, DynamicObject};
use serde_json::Value;
use tokio::sync::Semaphore;

use super::cluster::resource;
use super::facts::PodFacts;
use super::patch::KubeError;

/// Questions on their way at the same time: a burst of pods must not become a burst of requests.
const AT_ONCE: usize = 8;
/// For one answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A pod as the API server has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundPod {
    /// As the watch would tell of it.
    pub facts: PodFacts,
    /// Node that it is bound to; empty while it is not.
    pub node: String,
    /// It uses the node's own network.
    pub host_network: bool,
}

/// Asks for single pods.
#[derive(Clone)]
pub struct PodLookup {
    client: Client,
    at_once: Arc<Semaphore>,
}

impl PodLookup {
    /// Over a client of the API server.
    pub fn new(client: Client) -> Self {
        Self { client, at_once: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// The pod of that name; `None` if there is none.
    ///
    /// # Errors
    /// When the API server refuses or does not answer in time: then nothing is known.
    pub async fn pod(&self, namespace: &str, name: &str) -> Result<Option<FoundPod>, KubeError> {
        // The semaphore is never closed.
        let _permit = self.at_once.acquire().await.ok();
        let pods = resource("", "v1", "Pod", "pods");
        let pods = Api::<DynamicObject>::namespaced_with(self.client.clone(), namespace, &pods);
        let answer = tokio::time::timeout(PATIENCE, pods.get_opt(name)).await;
        let late = |_| kube::Error::Service("no answer in time".into());
        let pod = answer
            .map_err(late)
            .and_then(|answer| answer)
            .map_err(|error| KubeError::new("ask for the pod", error))?;
        let Some(pod) = pod else { return Ok(None) };
        let unread = |error: String| KubeError::new("ask for the pod", kube::Error::Service(error.into()));
        let pod = serde_json::to_value(pod).map_err(|error| unread(error.to_string()))?;
        Ok(Some(FoundPod {
            facts: PodFacts::project(&pod).map_err(unread)?,
            node: pod.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default().to_owned(),
            host_network: pod.pointer("/spec/hostNetwork") == Some(&Value::Bool(true)),
        }))
    }
}
