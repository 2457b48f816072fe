//! This node's own labels, watched as long as somebody needs them.
//!
//! The watch of all nodes leaves foreign labels out: of thousands of nodes they would only be in the way. Here is a watch
//! of one object, started when a Subnet selects its gateways by labels, and ended with the last one that does.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::runtime::watcher;
use kube::{Api, Client};
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::facts::labels_of;
use super::reflect::{Fact, Loaded, Reflection, resource};

/// Labels of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelFacts(pub BTreeMap<String, String>);

impl Fact for LabelFacts {
    type Key = Arc<str>;
    fn decode(value: &Value) -> Result<Self, String> {
        Ok(Self(labels_of(value)))
    }
    fn key(_: &str, name: &str) -> Arc<str> {
        name.into()
    }
}

/// The watch; it ends with the value.
#[derive(Debug)]
pub struct OwnLabels {
    node: Arc<str>,
    labels: Arc<Reflection<LabelFacts>>,
    changes: watch::Receiver<Loaded<LabelFacts>>,
    _end: DropGuard,
}

impl OwnLabels {
    /// Starts the watch.
    pub fn watch(client: &Client, node: &str) -> Self {
        let cancel = CancellationToken::new();
        let labels = Arc::new(Reflection::new("labels of this node"));
        let api = Api::all_with(client.clone(), &resource("", "v1", "Node", "nodes"));
        let config = watcher::Config::default().fields(&format!("metadata.name={node}"));
        let (followed, stop) = (labels.clone(), cancel.clone());
        tokio::spawn(async move { followed.follow(api, config, stop).await });
        Self { node: node.into(), changes: labels.subscribe(), labels, _end: cancel.drop_guard() }
    }

    /// The labels; `None` until the watch has loaded.
    pub fn get(&self) -> Option<BTreeMap<String, String>> {
        let loaded = self.labels.get();
        let of_node = || loaded.objects.get(&self.node).map(|labels| labels.0.clone()).unwrap_or_default();
        loaded.synced.then(of_node)
    }

    /// Waits for a change.
    pub async fn changed(&mut self) {
        if self.changes.changed().await.is_err() {
            // The value holds the sender: this can't be.
            std::future::pending::<()>().await;
        }
    }
}
