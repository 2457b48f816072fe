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

/// Annotations of nodes become part of the spec, and go when it says the same (contract §1.5).
#[test]
fn what_nodes_ask_for_is_folded_into_the_spec() {
    let mut bench = super::bench(Families::V4);
    super::add_node(&mut bench, Families::V4, "n-2", 12);
    lead(&mut bench, Families::V4);
    let spec = json!({ "defaultInterface": "eth2", "excludeNodes": ["n-9"],
        "customInterfaces": [{ "interface": "eth7", "nodes": ["n-2", "n-9"] }] });
    bench.api.create(&network(), json!({ "spec": spec })).unwrap();
    bench.settle();
    let node = |name: &str| cluster(Kind::Node, name);
    let ask = |bench: &mut Bench, name: &str, what: &str, value: &str| {
        let key = format!("wires.provider-network.kubernetes.io/{what}");
        bench.api.edit(&node(name), json!({ "metadata": { "annotations": { key: value, "a/b": "stays" } } }));
    };
    let asked = |bench: &Bench, name: &str| {
        let node = bench.api.get(&node(name)).unwrap();
        let all = node["metadata"]["annotations"].as_object().unwrap().clone();
        assert_eq!(all["a/b"], json!("stays"));
        all.into_iter().filter(|(key, _)| key.starts_with("wires.")).count()
    };
    let spec = |bench: &Bench| {
        let spec = bench.api.get(&network()).unwrap()["spec"].clone();
        (spec["excludeNodes"].clone(), spec["customInterfaces"].clone())
    };
    bench.api.writes.clear();
    ask(&mut bench, "n-1", "exclude", "true");
    ask(&mut bench, "n-2", "interface", "eth9");
    bench.settle();
    let custom =
        json!([{ "interface": "eth7", "nodes": ["n-9"] }, { "interface": "eth9", "nodes": ["n-2"] }]);
    assert_eq!(spec(&bench), (json!(["n-9", "n-1"]), custom), "who is not there yet keeps its place");
    assert_eq!((asked(&bench, "n-1"), asked(&bench, "n-2")), (0, 0));
    assert_eq!(status(&bench)["notReadyNodes"], json!(["n-2"]));
    let place = |bench: &Bench, what: &str| bench.api.writes.iter().position(|write| write.contains(what));
    assert!(place(&bench, "patch ProviderNetwork") < place(&bench, "patch Node "), "{:?}", bench.api.writes);
    // The same once more, and another NIC, after a restart.
    restart(&mut bench, Families::V4);
    ask(&mut bench, "n-1", "exclude", "true");
    ask(&mut bench, "n-2", "interface", "eth7");
    bench.settle();
    assert_eq!(spec(&bench).1, json!([{ "interface": "eth7", "nodes": ["n-9", "n-2"] }]));
    assert_eq!((spec(&bench).0, asked(&bench, "n-1")), (json!(["n-9", "n-1"]), 0));
    // What says nothing, and what a selector overrules, is left alone.
    ask(&mut bench, "n-2", "exclude", "false");
    bench.settle();
    let selector = json!({ "matchLabels": { "rack": "a" } });
    bench.api.edit(&network(), json!({ "spec": { "nodeSelector": selector } }));
    ask(&mut bench, "n-2", "exclude", "true");
    bench.settle();
    assert_eq!((spec(&bench).0, asked(&bench, "n-2")), (json!(["n-9", "n-1"]), 1));
    bench.api.writes.clear();
    restart(&mut bench, Families::V4);
    assert_eq!(bench.api.writes, Vec::<String>::new());
}

/// A ProviderNetwork outlives its Vlans, a Vlan its Subnets; each says for what it waits.
#[test]
fn networks_go_in_their_order() {
    let mut bench = super::bench(Families::V4);
    lead(&mut bench, Families::V4);
    let vlan = |name: &str| cluster(Kind::Vlan, name);
    let subnet = cluster(Kind::Subnet, "wan");
    bench.api.create(&network(), json!({ "spec": { "defaultInterface": "eth2" } })).unwrap();
    bench.settle();
    assert!(
        bench.api.get(&network()).unwrap()["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty)
    );
    for name in ["v-1", "v-2"] {
        bench.api.create(&vlan(name), json!({ "spec": { "id": 7, "provider": "wires" } })).unwrap();
        bench.settle();
    }
    let spec = json!({ "cidrBlock": "172.18.0.0/24", "gateway": "172.18.0.1", "vlan": "v-1" });
    bench.api.create(&subnet, json!({ "spec": spec })).unwrap();
    bench.settle();
    assert_eq!(status(&bench)["vlans"], json!(["v-1"]), "the other one has the same id");
    let waits = |bench: &Bench, object: &ObjectRef| {
        let object = bench.api.get(object).expect("it waits");
        assert!(object["metadata"]["deletionTimestamp"].is_string());
        let all = object["status"]["conditions"].as_array().unwrap().clone();
        let said = all.iter().find(|condition| condition["reason"] == "InUse").expect("it says so");
        assert_eq!((&said["type"], &said["status"]), (&json!("Ready"), &json!("False")));
        said["message"].as_str().unwrap().to_owned()
    };
    bench.api.delete(&network(), 0);
    bench.api.delete(&vlan("v-1"), 0);
    bench.settle();
    assert!(waits(&bench, &network()).contains("Vlan v-1, v-2"));
    assert!(waits(&bench, &vlan("v-1")).contains("Subnet wan"));
    restart(&mut bench, Families::V4);
    bench.api.delete(&vlan("v-2"), 0);
    bench.settle();
    assert!(bench.api.get(&vlan("v-2")).is_none(), "nobody used it");
    assert!(waits(&bench, &network()).contains("Vlan v-1;"));
    bench.api.delete(&subnet, 0);
    bench.settle();
    for object in [subnet, vlan("v-1"), network()] {
        assert!(bench.api.get(&object).is_none(), "{object}");
    }
    assert!(bench.core().quiet(), "{}", bench.core().status());
}
