//! Pods for tests.

use std::time::Duration;

use anyhow::Result;
use lab::api;
use lab::progress::{Look, wait_for};
use serde_json::{Value, json};

use crate::cluster::Cluster;

/// The image of pods that only have to exist.
pub const PAUSE: &str = "registry.k8s.io/pause:3.10.1";

/// A namespace of a test, removed when dropped.
pub struct Namespace<'a> {
    cluster: &'a Cluster,
    /// Its name.
    pub name: String,
}

impl<'a> Namespace<'a> {
    /// Creates it and waits until pods can be made in it.
    pub fn create(cluster: &'a Cluster, name: &str) -> Result<Self> {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        api::apply(&cluster.lab, &object.to_string())?;
        wait_for("the namespace's service account", Duration::from_secs(30), || {
            api::get(&cluster.lab, &format!("/api/v1/namespaces/{name}/serviceaccounts/default"))?;
            Ok(Look::Ready(()))
        })?;
        Ok(Self { cluster, name: name.to_owned() })
    }

    /// A pod manifest with the pause image on a node.
    pub fn pod(&self, name: &str, node: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": self.name},
            "spec": {
                "nodeName": node,
                "terminationGracePeriodSeconds": 0,
                "tolerations": [{"operator": "Exists"}],
                "automountServiceAccountToken": false,
                "enableServiceLinks": false,
                "containers": [{"name": "c", "image": PAUSE, "imagePullPolicy": "Never"}],
            },
        })
    }

    /// Creates objects.
    pub fn apply(&self, objects: &[Value]) -> Result<()> {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        api::apply(&self.cluster.lab, &list.to_string())
    }

    /// All pods in it.
    pub fn pods(&self) -> Result<Vec<Value>> {
        api::list(&self.cluster.lab, &format!("/api/v1/namespaces/{}/pods", self.name))
    }

    /// Waits until exactly `count` pods exist and all are ready with an address.
    pub fn wait_ready(&self, count: usize, limit: Duration) -> Result<Vec<Value>> {
        wait_for(&format!("{count} ready pods in {}", self.name), limit, || {
            let pods = self.pods()?;
            let ready = pods.iter().filter(|pod| api::condition(pod, "Ready") == "True").count();
            if pods.len() == count && ready == count {
                return Ok(Look::Ready(pods));
            }
            Ok(Look::NotYet(format!("{} pods, {ready} ready", pods.len())))
        })
    }

    /// Deletes every pod at once and waits until they are gone from the API.
    pub fn delete_pods(&self, force: bool) -> Result<()> {
        let mut arguments = vec!["-n", &self.name, "delete", "pods", "--all", "--wait=false"];
        if force {
            arguments.extend(["--grace-period=0", "--force"]);
        }
        self.cluster.kubectl(&arguments)?;
        wait_for("pods to be gone", crate::cluster::PATIENCE, || {
            let left = self.pods()?.len();
            Ok(if left == 0 { Look::Ready(()) } else { Look::NotYet(format!("{left} left")) })
        })
    }
}

impl Drop for Namespace<'_> {
    fn drop(&mut self) {
        let gone = self.cluster.kubectl(&[
            "delete",
            "namespace",
            &self.name,
            "--ignore-not-found",
            "--timeout=120s",
        ]);
        if let Err(error) = gone {
            eprintln!("could not remove namespace {}: {error:#}", self.name);
        }
    }
}
