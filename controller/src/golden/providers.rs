//! ProviderNetworks through the whole pipeline (contract §1.5): what the nodes say is in the status.

use serde_json::{Value, json};

use super::{cluster, lead, restart};
use crate::compile::tests::fake::Families;
use crate::facts::{Kind, ObjectRef};
use crate::sim::Bench;

fn network() -> ObjectRef {
    cluster(Kind::ProviderNetwork, "wires")
}

fn label(bench: &mut Bench, node: &str, values: Value) {
    bench.api.edit(&cluster(Kind::Node, node), json!({ "metadata": { "labels": values } }));
    bench.settle();
}

fn status(bench: &Bench) -> Value {
    bench.api.get(&network()).unwrap()["status"].clone()
}

/// Node, status, reason and message of each condition.
fn conditions(bench: &Bench) -> Vec<(String, String, String, String)> {
    let text = |condition: &Value, key: &str| condition[key].as_str().unwrap_or_default().to_owned();
    let status = status(bench);
    let all = status["conditions"].as_array().unwrap().iter();
    all.map(|c| (text(c, "node"), text(c, "status"), text(c, "reason"), text(c, "message"))).collect()
}

#[test]
fn a_provider_networks_status_is_what_its_nodes_say() {
    let mut bench = super::bench(Families::V4);
    super::add_node(&mut bench, Families::V4, "n-2", 12);
    lead(&mut bench, Families::V4);
    bench.api.create(&network(), json!({ "spec": { "defaultInterface": "eth2" } })).unwrap();
    bench.settle();
    let said = status(&bench);
    assert_eq!((&said["ready"], &said["notReadyNodes"]), (&json!(false), &json!(["n-1", "n-2"])));

    let ready = json!({ "wires.provider-network.kubernetes.io/ready": "true" });
    label(&mut bench, "n-1", ready.clone());
    // The agent of the other one says why; nobody else's pod can.
    for (name, app, said) in [("agent", "kube-ovn-cni", "no eth2"), ("pod", "web", "a lie")] {
        let body = json!({
            "metadata": {
                "labels": { "app": app },
                "annotations": { "wires.provider-network.kubernetes.io/err_mesg": said },
            },
            "spec": { "nodeName": "n-2", "hostNetwork": true },
        });
        bench.api.create(&super::pod(name), body).unwrap();
    }
    bench.settle();
    let said = status(&bench);
    assert_eq!(
        (&said["ready"], &said["readyNodes"], &said["notReadyNodes"]),
        (&json!(false), &json!(["n-1"]), &json!(["n-2"]))
    );
    let text = |text: &str| text.to_owned();
    let good = (text("n-1"), text("True"), text("InitOVSBridgeSucceeded"), String::new());
    let bad = (text("n-2"), text("False"), text("InitOVSBridgeFailed"), text("no eth2"));
    assert_eq!(conditions(&bench), [good.clone(), bad]);
    let since = status(&bench)["conditions"][0]["lastTransitionTime"].clone();

    label(&mut bench, "n-2", ready);
    assert_eq!(status(&bench)["ready"], json!(true));
    assert_eq!(status(&bench)["conditions"][0]["lastTransitionTime"], since, "n-1's did not change");
    // A restart and a heartbeat write nothing.
    bench.api.writes.clear();
    restart(&mut bench, Families::V4);
    let compiled = bench.core().counters().compiled;
    bench.api.edit(&cluster(Kind::Node, "n-1"), json!({ "status": { "phase": "beat" } }));
    bench.settle();
    assert_eq!(bench.core().counters().compiled, compiled);
    assert_eq!(bench.api.writes, Vec::<String>::new());

    // Who is excluded, or gone, is in no list.
    bench.api.edit(&network(), json!({ "spec": { "excludeNodes": ["n-2"] } }));
    bench.settle();
    assert_eq!(conditions(&bench), [good]);
    assert_eq!(status(&bench)["readyNodes"], json!(["n-1"]));
    let selector = json!({ "matchLabels": { "rack": "a" } });
    bench.api.edit(&network(), json!({ "spec": { "nodeSelector": selector } }));
    bench.settle();
    assert!(conditions(&bench).is_empty());
    label(&mut bench, "n-2", json!({ "rack": "a" }));
    assert_eq!(status(&bench)["readyNodes"], json!(["n-2"]), "the selector counts, not the list");
    bench.api.remove(&cluster(Kind::Node, "n-2"));
    bench.settle();
    assert_eq!(status(&bench)["readyNodes"], json!([]));
    bench.api.remove(&network());
    bench.settle();
    assert!(bench.core().quiet(), "{}", bench.core().status());
}
