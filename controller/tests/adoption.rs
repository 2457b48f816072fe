//! Taking over a cluster of Kube-OVN with the real OVN: a real northbound database with
//! Kube-OVN's rows, northd, and two nodes with ovn-controller and ovs-vswitchd. The binary
//! becomes the leader, and the flows of every node stay as they are, byte for byte.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fake;
#[path = "../src/golden/kube_ovn.rs"]
mod kube_ovn;
mod rig;

use std::time::Duration;

use ovsdb::{Options, Session};
use rig::Rig;
use rig::chassis::Chassis;
use rig::ovn::Ovn;
use serde_json::json;

/// Where objects of a kind are created.
fn collection(kind: &str, namespace: &str) -> String {
    let (base, plural) = match kind {
        "Namespace" => ("/api/v1", "namespaces"),
        "Node" => ("/api/v1", "nodes"),
        "Pod" => ("/api/v1", "pods"),
        "StatefulSet" => ("/apis/apps/v1", "statefulsets"),
        "NetworkAttachmentDefinition" => ("/apis/k8s.cni.cncf.io/v1", "network-attachment-definitions"),
        "VirtualMachine" => ("/apis/kubevirt.io/v1", "virtualmachines"),
        "VirtualMachineInstance" => ("/apis/kubevirt.io/v1", "virtualmachineinstances"),
        "Vpc" => ("/apis/kubeovn.io/v1", "vpcs"),
        "Subnet" => ("/apis/kubeovn.io/v1", "subnets"),
        "IP" => ("/apis/kubeovn.io/v1", "ips"),
        "IPPool" => ("/apis/kubeovn.io/v1", "ippools"),
        "Vip" => ("/apis/kubeovn.io/v1", "vips"),
        "OvnEip" => ("/apis/kubeovn.io/v1", "ovn-eips"),
        "IptablesEIP" => ("/apis/kubeovn.io/v1", "iptables-eips"),
        "Vlan" => ("/apis/kubeovn.io/v1", "vlans"),
        "ProviderNetwork" => ("/apis/kubeovn.io/v1", "provider-networks"),
        other => panic!("no collection of {other}"),
    };
    match namespace {
        "" => format!("{base}/{plural}"),
        namespace => format!("{base}/namespaces/{namespace}/{plural}"),
    }
}

async fn cluster() -> Rig {
    let rig = Rig::new().await;
    for (kind, namespace, name, mut body) in kube_ovn::objects() {
        rig.api.install(&collection(kind, ""));
        body["metadata"]["name"] = name.into();
        rig.api.create(&collection(kind, namespace), body);
    }
    // Installed without objects.
    rig.api.install("/apis/kubevirt.io/v1/virtualmachineinstancemigrations");
    rig.api.install("/apis/apps/v1/deployments");
    let (session, mut events) = Session::connect(
        Options::new(vec![rig.database.endpoint()], "OVN_Northbound").table("Logical_Switch", ["name"]),
    );
    tokio::spawn(async move { while events.next().await.is_some() {} });
    assert!(session.synced().await);
    // Without the route that Weir takes away (deviation D40).
    session.transact(kube_ovn::rows(false)).await.unwrap();
    rig
}

#[tokio::test(flavor = "multi_thread")]
async fn real_flows_of_every_node_stay_as_they_are() {
    let rig = cluster().await;
    let ovn = Ovn::start(&rig.database);
    let nodes: Vec<Chassis> = kube_ovn::NODES
        .iter()
        .zip(kube_ovn::ON_NODE)
        .map(|((node, ip, _), (_, ports))| Chassis::start(&ovn, node, ip, ports))
        .collect();
    let settled = || {
        let result = tokio::task::block_in_place(|| ovn.sync_nodes());
        if let Err(error) = result {
            panic!("{error}\n{}", nodes.iter().map(Chassis::logs).collect::<Vec<_>>().join("\n"));
        }
        nodes.iter().map(Chassis::flows).collect::<Vec<_>>()
    };
    for port in kube_ovn::ON_NODE.iter().flat_map(|(_, ports)| *ports) {
        tokio::task::block_in_place(|| ovn.wait_up(port));
    }
    let before = settled();
    assert!(before == settled(), "nothing changes by itself");
    for (flows, (node, _)) in before.iter().zip(kube_ovn::ON_NODE) {
        assert!(flows.len() > 1_000, "{node} has its flows: {}", flows.len());
    }
    rig.api.forget_requests();
    let controller = rig.start(&[]).await;
    controller.quiet().await;
    let after = settled();
    for ((before, after), (node, _)) in before.iter().zip(&after).zip(kube_ovn::ON_NODE) {
        let only = |a: &[String], b: &[String]| {
            a.iter().filter(|line| !b.contains(line)).take(20).cloned().collect::<Vec<_>>().join("\n")
        };
        assert!(before == after, "{node}: gone\n{}\nnew\n{}", only(before, after), only(after, before));
    }
    let pods: Vec<String> = rig.api.writes().into_iter().filter(|write| write.contains("/pods/")).collect();
    assert_eq!(pods, Vec::<String>::new());
    // The comparison can fail: a pod less is seen on its node.
    rig.api.delete("/api/v1/namespaces/web/pods/c-0");
    rig::eventually("the port is gone", async || !rig.has_port("c-0.web").await).await;
    controller.quiet().await;
    assert_ne!(settled()[1], after[1]);
    assert_eq!(
        rig.api.get("/apis/kubeovn.io/v1/ips/db-1.web").unwrap()["spec"]["podType"],
        json!("StatefulSet")
    );
    // A BFD port goes, with a session of somebody else's on it: northd lives on (deviation D63).
    let off = json!({ "spec": { "bfdPort": { "enabled": false } } });
    rig.api.patch("/apis/kubeovn.io/v1/vpcs/blue", off);
    rig::eventually("the port is gone", async || !rig.has_router_port("bfd@blue").await).await;
    controller.quiet().await;
    settled();
    drop((nodes, ovn));
    tokio::time::timeout(Duration::from_secs(20), controller.stop()).await.unwrap();
}
