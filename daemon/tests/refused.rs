//! An API server that refuses what it showed before, or does not show yet: nothing on the node is taken for unwanted.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use daemon::exit::OVNEXT0;
use ovsdb::Uuid;
use serde_json::{Value, json};
use support::agent::{Machine, call, until};
use support::underlay::{Wire, carried, sh};

const KINDS: [&str; 3] = ["provider-networks", "vlans", "ovn-eips"];

fn network(machine: &Machine, name: &str, spec: &Value) {
    machine.api.put("provider-networks", json!({"metadata": {"name": name, "uid": name}, "spec": spec}));
}

fn label(machine: &Machine, network: &str, name: &str) -> String {
    let node = machine.api.get("nodes", "", "n1").unwrap();
    let key = format!("{network}.provider-network.kubernetes.io/{name}");
    node["metadata"]["labels"][key.as_str()].as_str().unwrap_or_default().to_owned()
}

/// The node's port in an external network.
fn eip(machine: &Machine) {
    let [ip, mac] = ["172.18.0.11", "02:00:00:00:00:11"];
    machine.api.put(
        "ovn-eips",
        json!({
            "metadata": {"name": "n1", "uid": "uid-n1", "labels": {
                "ovn.kubernetes.io/ovn_eip_type": "lsp", "ovn.kubernetes.io/subnet": "ext"}},
            "spec": {"type": "lsp", "externalSubnet": "ext"},
            "status": {"type": "lsp", "v4Ip": ip, "v6Ip": "", "macAddress": mac, "ready": false},
        }),
    );
}

fn ready(machine: &Machine) -> bool {
    machine.api.get("ovn-eips", "", "n1").is_some_and(|eip| eip["status"]["ready"] == true)
}

/// What would be another one had it been taken away meanwhile.
fn made(machine: &Machine) -> [Uuid; 3] {
    let view = machine.ovs.view();
    let port = |name| view.port(name).unwrap().uuid;
    [view.bridge("br-net1").unwrap().uuid, port("eth2"), port(OVNEXT0)]
}

/// The loops have passed over what the watches told last: of another network, and of the node's port anew.
async fn passed(machine: &Machine, other: &str) {
    network(machine, other, &json!({"defaultInterface": "eth3", "excludeNodes": ["n1"]}));
    eip(machine);
    until(machine, other, async || label(machine, other, "exclude") == "true" && ready(machine)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_watches_and_a_start_during_refusals_take_nothing_from_the_node() {
    let machine = Machine::boot().await;
    sh(&machine.gateway, "ip addr add 172.18.0.1/24 dev gw");
    let _wire = Wire::plug_at_once(&machine.namespace, &machine.host, "eth2").await;
    let subnet = json!({
        "metadata": {"name": "ext", "uid": "uid-ext"},
        "spec": {"cidrBlock": "172.18.0.0/24", "gateway": "172.18.0.1", "vlan": "v-0", "vpc": "ovn-cluster"},
    });
    machine.api.put("subnets", subnet);
    eip(&machine);
    network(&machine, "net1", &json!({"defaultInterface": "eth2"}));
    let netns = format!("--netns-dir={}", machine.file("netns").display());
    let agent = machine.start_agent_with(&[&netns]);
    machine.wait_ready().await;
    until(&machine, "made", async || label(&machine, "net1", "ready") == "true" && ready(&machine)).await;
    let (before, carries) = (made(&machine), carried(&machine.namespace, "br-net1"));

    for kind in KINDS {
        machine.api.refuse(kind, 403, 2);
    }
    machine.api.hang_up();
    let spent = async || KINDS.iter().all(|kind| machine.api.refusals_left(kind) == 0);
    until(&machine, "refused", spent).await;
    passed(&machine, "net2").await;
    assert_eq!(made(&machine), before, "{}", machine.log());
    assert_eq!(carried(&machine.namespace, "br-net1"), carries);
    assert_eq!(label(&machine, "net1", "ready"), "true");

    // A start that knows of nothing yet, and says why.
    drop(agent);
    for kind in KINDS {
        machine.api.refuse(kind, 403, usize::MAX);
    }
    let _agent = machine.start_agent_with(&[&netns]);
    until(&machine, "STATUS names what is refused, and who can help", async || {
        let answer = call(&machine.file("cni.sock"), "GET", "/api/v1/status", &json!({})).await;
        let text = answer.map(|(_, body)| String::from_utf8_lossy(&body).into_owned()).unwrap_or_default();
        KINDS.iter().all(|kind| text.contains(&format!("{kind} (the API server refuses it: 403)")))
    })
    .await;
    // After a while nobody waits for them any more, and the node's events say it.
    machine.wait_ready().await;
    until(&machine, "told", async || {
        machine.api.told().iter().any(|event| {
            let text = event["message"].as_str().unwrap_or_default();
            text.contains("forbids the agent to see provider-networks, vlans, ovn-eips")
                && text.contains("ClusterRole (system:kube-ovn-cni)")
        })
    })
    .await;
    assert_eq!(made(&machine), before, "{}", machine.log());
    drop(_agent);
    for kind in KINDS {
        machine.api.refuse(kind, 403, 2);
    }
    let _agent = machine.start_agent_with(&[&netns]);
    machine.wait_ready().await;
    passed(&machine, "net3").await;
    assert_eq!(made(&machine), before, "{}", machine.log());
    assert_eq!(carried(&machine.namespace, "br-net1"), carries);
}
