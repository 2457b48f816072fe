//! Chassis in a real southbound database: tagged with their nodes, and one per node
//! (`pain.md` U54).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fake;
mod rig;

use std::collections::BTreeMap;

use ovsdb::testing::real::{Root, Server};
use ovsdb::{Event, Operation, Options, Session, Uuid, Value as Column};
use rig::{NODES, Rig, eventually};
use serde_json::json;

struct Southbound(Server);

impl Southbound {
    fn new() -> Self {
        let root = Root::from_env().unwrap();
        Self(Server::start(&root.file("usr/share/ovn/ovn-sb.ovsschema").unwrap()).unwrap())
    }

    fn options(&self) -> Options {
        Options::new(vec![self.0.endpoint()], "OVN_Southbound")
            .table("Chassis", ["name", "external_ids"])
            .table("Chassis_Private", ["name"])
    }

    /// What ovn-controller does when it finds no chassis of its own.
    async fn register(&self, name: &str, host: &str, address: &str) {
        let (session, mut events) = Session::connect(self.options());
        while !matches!(events.next().await.unwrap(), Event::Replaced { .. }) {}
        tokio::spawn(async move { while events.next().await.is_some() {} });
        let encap = Uuid::new_v4();
        let rows = vec![
            Operation::insert("Encap")
                .uuid(encap)
                .column("type", "geneve")
                .column("ip", address)
                .column("chassis_name", name)
                .build(),
            Operation::insert("Chassis")
                .column("name", name)
                .column("hostname", host)
                .column("encaps", Column::uuids([encap]))
                .build(),
            Operation::insert("Chassis_Private").column("name", name).build(),
        ];
        session.transact(rows).await.unwrap();
    }

    /// Chassis by name, with the node of their tag; and names in `Chassis_Private`.
    async fn content(&self) -> (BTreeMap<String, String>, Vec<String>) {
        let (_session, mut events) = Session::connect(self.options());
        loop {
            let Event::Replaced { replica, .. } = events.next().await.unwrap() else { continue };
            let text = |row: &ovsdb::Row, column: &str| row.str(column).unwrap().to_owned();
            let chassis = replica.table("Chassis").unwrap().rows().map(|row| {
                let ours = row.map_get("external_ids", "vendor") == Some("kube-ovn");
                let node = row.map_get("external_ids", "node").filter(|_| ours).unwrap_or_default();
                (text(row, "name"), node.to_owned())
            });
            let mut private: Vec<_> =
                replica.table("Chassis_Private").unwrap().rows().map(|row| text(row, "name")).collect();
            private.sort();
            return (chassis.collect(), private);
        }
    }

    async fn becomes(&self, expected: &[(&str, &str)]) {
        let expected: BTreeMap<String, String> =
            expected.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        eventually(&format!("chassis are {expected:?}"), async || {
            let (chassis, private) = self.content().await;
            chassis == expected && private == expected.keys().cloned().collect::<Vec<_>>()
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn real_u54_one_chassis_a_node_and_foreign_ones_untouched() {
    let rig = Rig::new().await;
    let southbound = Southbound::new();
    for (node, number) in [("n1", 1), ("n2", 2)] {
        rig.node(node, &format!("192.0.2.{number}"));
        southbound.register(&format!("chassis-{node}"), node, &format!("198.51.100.{number}")).await;
    }
    southbound.register("former-n2", "n2", "198.51.100.12").await;
    southbound.register("gateway", "edge.example", "198.51.100.99").await;
    let address = format!("--ovn-sb-addr=unix:{}", southbound.0.socket().display());
    let controller = rig.start(&[&address]).await;
    southbound.becomes(&[("chassis-n1", "n1"), ("chassis-n2", "n2"), ("gateway", "")]).await;

    // The node comes back with a new system-id; its old ovn-controller lives on for a while.
    southbound.register("second-n1", "n1", "198.51.100.21").await;
    let announce = json!({"metadata": {"annotations": {"ovn.kubernetes.io/chassis": "second-n1"}}});
    rig.api.patch(&format!("{NODES}/n1"), announce);
    southbound.becomes(&[("second-n1", "n1"), ("chassis-n2", "n2"), ("gateway", "")]).await;
    southbound.register("chassis-n1", "n1", "198.51.100.1").await;
    southbound.becomes(&[("second-n1", "n1"), ("chassis-n2", "n2"), ("gateway", "")]).await;
    eventually("the node's users are told", async || {
        rig.api.all("/api/v1/events").iter().any(|event| {
            event["reason"] == "DuplicateChassis"
                && event["involvedObject"]["name"] == "n1"
                && event["message"].as_str().unwrap().contains("chassis-n1")
        })
    })
    .await;

    // Two nodes with one system-id, as after cloning a disk.
    rig.node("n3", "192.0.2.3");
    let announce = json!({"metadata": {"annotations": {"ovn.kubernetes.io/chassis": "chassis-n2"}}});
    rig.api.patch(&format!("{NODES}/n3"), announce);
    eventually("the conflict is told", async || {
        let events = rig.api.all("/api/v1/events");
        events.iter().any(|e| e["reason"] == "ChassisConflict" && e["involvedObject"]["name"] == "n3")
    })
    .await;
    rig.api.delete(&format!("{NODES}/n3"));

    // A node that goes takes its chassis along.
    rig.api.delete(&format!("{NODES}/n2"));
    southbound.becomes(&[("second-n1", "n1"), ("gateway", "")]).await;
    let status = controller.call("status", json!([])).await;
    assert_eq!(status["southbound"]["synced"], true, "{status:#}");
    assert_eq!(controller.stop().await, Some(0));
}
