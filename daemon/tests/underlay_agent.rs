//! The whole agent and a provider network: labels and events that the controller reads, exclusion by label, and
//! `--cleanup`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use serde_json::json;
use support::addresses;
use support::agent::Machine;
use support::underlay::{Wire, carried, until};

fn network(spec: serde_json::Value) -> serde_json::Value {
    json!({"metadata": {"name": "net1", "uid": "u"}, "spec": spec})
}

fn labels(node: &serde_json::Value) -> Vec<(String, String)> {
    let labels = node["metadata"]["labels"].as_object().into_iter().flatten();
    labels
        .filter_map(|(key, value)| {
            let name = key.strip_prefix("net1.provider-network.kubernetes.io/")?;
            Some((name.to_owned(), value.as_str()?.to_owned()))
        })
        .collect()
}

fn pairs<const N: usize>(pairs: [(&str, &str); N]) -> Vec<(String, String)> {
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_099_k_102_the_node_says_how_its_networks_stand_and_is_left_as_it_was() {
    let machine = Machine::boot().await;
    machine.api.put("provider-networks", network(json!({"defaultInterface": "eth2"})));
    let agent = machine.start_agent();
    machine.wait_ready().await;
    // K100: the NIC is not there.
    let failed = || machine.api.reasons().iter().any(|reason| reason == "InitOVSBridgeFailed");
    until("the failure is told", failed).await;
    assert!(machine.log().contains("this node has no interface eth2"), "{}", machine.log());
    // It appears, and nothing else tells.
    let _wire = Wire::plug_at_once(&machine.namespace, &machine.host, "eth2").await;
    let ready = pairs([("interface", "eth2"), ("mtu", "1500"), ("ready", "true")]);
    machine.api.wait_node("ready", |node| labels(node) == ready).await;
    let ns = machine.namespace.clone();
    until("what it carries is on the bridge", || carried(&ns, "br-net1").lines().count() >= 14).await;
    let succeeded = || machine.api.reasons().iter().any(|reason| reason == "InitOVSBridgeSucceeded");
    until("the success is told", succeeded).await;

    // K091: excluded by list, member again, excluded by selector.
    machine
        .api
        .put("provider-networks", network(json!({"defaultInterface": "eth2", "excludeNodes": ["n1"]})));
    machine.api.wait_node("excluded", |node| labels(node) == pairs([("exclude", "true")])).await;
    until("home", || carried(&ns, "eth2").lines().count() >= 14).await;
    let selected = json!({"defaultInterface": "eth2", "excludeNodes": ["n1"], "nodeSelector": {"matchLabels": {"rack": "a"}}});
    machine.api.put("provider-networks", network(selected));
    let mut node = machine.api.get("nodes", "", "n1").unwrap();
    node["metadata"]["labels"]["rack"] = json!("a");
    machine.api.put("nodes", node);
    machine.api.wait_node("selected", |node| labels(node) == ready).await;
    assert_eq!(addresses(&machine.namespace, "br-net1").await.len(), 5);

    // K101: deleted.
    machine.api.delete("provider-networks", "", "net1");
    machine.api.wait_node("gone", |node| labels(node).is_empty()).await;
    until("home", || carried(&ns, "eth2").lines().count() >= 14).await;
    until("the bridge is gone", || machine.ovs.view().bridge("br-net1").is_none()).await;
    let before = carried(&machine.namespace, "eth2");

    // The node is left for good while it is a member.
    machine.api.put("provider-networks", network(json!({"defaultInterface": "eth2"})));
    machine.api.wait_node("ready", |node| labels(node) == ready).await;
    until("moved", || carried(&ns, "eth2").is_empty()).await;
    let mappings = || machine.ovs.view().root_external_id("ovn-bridge-mappings").map(str::to_owned);
    until("mapped", || mappings().as_deref() == Some("net1:br-net1")).await;
    // A restart repeats no event of success.
    let told = |word: &str| machine.log().matches(word).count();
    let succeeded = || {
        let reasons = machine.api.reasons();
        reasons.iter().filter(|reason| *reason == "InitOVSBridgeSucceeded").count()
    };
    let (works, events) = (told("the provider network works"), succeeded());
    drop(agent);
    let agent = machine.start_agent();
    until("the next process finds it well", || told("the provider network works") > works).await;
    // What it says after that has come.
    machine.api.delete("provider-networks", "", "net1");
    machine.api.wait_node("gone", |node| labels(node).is_empty()).await;
    assert_eq!(succeeded(), events);
    machine.api.put("provider-networks", network(json!({"defaultInterface": "eth2"})));
    machine.api.wait_node("ready", |node| labels(node) == ready).await;
    until("the success is told", || succeeded() > events).await;
    until("moved", || carried(&ns, "eth2").is_empty()).await;
    drop(agent);
    let (left, told) = machine.run_agent("--cleanup");
    assert!(left && told.contains("provider network net1 has its addresses and routes back"), "{told}");
    assert_eq!(carried(&machine.namespace, "eth2"), before, "byte for byte");
    let view = machine.ovs.view();
    assert!(view.bridge("br-net1").is_none() && mappings().is_none());
    assert!(view.root_external_id("ovn-is-interconn").is_none());
    assert!(view.root_external_ids().all(|(key, _)| !key.starts_with("weir-")));
    let (left, told) = machine.run_agent("--cleanup");
    assert!(left && told.contains("nothing of ours is on this node"), "{told}");
}
