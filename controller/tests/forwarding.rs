//! What the rows mean: the binary fills a real northbound database, a real
//! ovn-northd compiles it, and packets are traced through the result. In each
//! family: pod to pod, pod to every node, pod to the world by its own node, node
//! to pod.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fake;
mod rig;

use std::process::{Child, Stdio};
use std::time::Duration;

use ovsdb::testing::real::{Root, Server};
use rig::{NODES, Rig};
use serde_json::{Value, json};

/// A northbound and a southbound database with northd between them.
struct Ovn<'a> {
    root: Root,
    northbound: &'a Server,
    southbound: Server,
    northd: Child,
}

impl Drop for Ovn<'_> {
    fn drop(&mut self) {
        let _ = self.northd.kill();
        let _ = self.northd.wait();
    }
}

impl<'a> Ovn<'a> {
    fn start(northbound: &'a Server) -> Self {
        let root = Root::from_env().unwrap();
        let southbound = Server::start(&root.file("usr/share/ovn/ovn-sb.ovsschema").unwrap()).unwrap();
        let directory = southbound.directory();
        let mut command = root.command("usr/bin/ovn-northd", directory).unwrap();
        let log = std::fs::File::create(directory.join("northd.log")).unwrap();
        let northd = command
            .arg(format!("--ovnnb-db=unix:{}", northbound.socket().display()))
            .arg(format!("--ovnsb-db=unix:{}", southbound.socket().display()))
            .arg(format!("--unixctl={}", directory.join("northd.ctl").display()))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { root, northbound, southbound, northd }
    }

    /// Waits until northd has compiled what is in the database now.
    fn sync(&self) {
        let database = format!("--db=unix:{}", self.northbound.socket().display());
        let arguments = [&*database, "--timeout=30", "--wait=sb", "sync"];
        self.root.run("usr/bin/ovn-nbctl", self.southbound.directory(), &arguments).unwrap();
    }

    /// Where a packet comes out.
    fn trace(&self, switch: &str, packet: &str) -> String {
        let database = format!("--db=unix:{}", self.southbound.socket().display());
        let arguments = [&*database, "--minimal", "--ct=new", switch, packet];
        self.root.run("usr/bin/ovn-trace", self.southbound.directory(), &arguments).unwrap()
    }

    /// The MAC of a router port.
    fn router_mac(&self, port: &str) -> String {
        let database = format!("--db=unix:{}", self.northbound.socket().display());
        let arguments = [&*database, "--bare", "get", "Logical_Router_Port", port, "mac"];
        let mac = self.root.run("usr/bin/ovn-nbctl", self.southbound.directory(), &arguments).unwrap();
        mac.trim().trim_matches('"').to_owned()
    }
}

/// One side of a connection.
struct End {
    port: String,
    mac: String,
    ips: Vec<String>,
}

fn end(port: &str, annotations: &Value) -> End {
    let text = |key: &str| annotations[format!("ovn.kubernetes.io/{key}")].as_str().unwrap().to_owned();
    End {
        port: port.into(),
        mac: text("mac_address"),
        ips: text("ip_address").split(',').map(str::to_owned).collect(),
    }
}

fn packet(from: &End, to_mac: &str, to: &str) -> String {
    let v6 = to.contains(':');
    let source = from.ips.iter().find(|ip| ip.contains(':') == v6).unwrap();
    let field = if v6 { "ip6" } else { "ip4" };
    format!(
        "inport == \"{}\" && eth.src == {} && eth.dst == {to_mac} && {field}.src == {source} && {field}.dst == {to} \
         && ip.ttl == 64 && tcp && tcp.dst == 80",
        from.port, from.mac
    )
}

async fn ways(v4: bool, v6: bool) {
    let pick = |a: &str, b: &str| {
        let parts = [(v4, a), (v6, b)];
        parts.iter().filter(|(on, _)| *on).map(|(_, text)| (*text).to_owned()).collect::<Vec<_>>()
    };
    let rig = Rig::new().await;
    for (node, number) in [("n-1", "11"), ("n-2", "12")] {
        let ips = pick(&format!("192.0.2.{number}"), &format!("2001:db8::{number}"));
        let addresses: Vec<_> = ips.iter().map(|ip| json!({"type": "InternalIP", "address": ip})).collect();
        rig.api.create(
            NODES,
            json!({
                "metadata": {"name": node, "annotations": {"ovn.kubernetes.io/chassis": format!("chassis-{node}")}},
                "status": {"addresses": addresses, "conditions": [{"type": "Ready", "status": "True"}]}
            }),
        );
    }
    for (pod, node) in [("a", "n-1"), ("b", "n-1"), ("c", "n-2")] {
        rig.pod(pod, node);
    }
    let flags = [
        format!("--default-cidr={}", pick("10.16.0.0/16", "fd00:10:16::/112").join(",")),
        format!("--node-switch-cidr={}", pick("100.64.0.0/16", "fd00:100:64::/112").join(",")),
        format!("--service-cluster-ip-range={}", pick("10.96.0.0/12", "fd00:10:96::/112").join(",")),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let controller = rig.start(&flags).await;
    let mut pods = Vec::new();
    for pod in ["a", "b", "c"] {
        pods.push(end(&format!("{pod}.shop"), &rig.routed(pod).await));
    }
    controller.quiet().await;
    let [a, b, c] = &pods[..] else { panic!("three pods") };
    let nodes: Vec<End> = ["n-1", "n-2"]
        .iter()
        .map(|node| {
            let object = rig.api.get(&format!("{NODES}/{node}")).unwrap();
            end(&format!("node-{node}"), &object["metadata"]["annotations"])
        })
        .collect();

    let ovn = Ovn::start(&rig.database);
    ovn.sync();
    let (default, join) = (ovn.router_mac("ovn-cluster-ovn-default"), ovn.router_mac("ovn-cluster-join"));
    let world = pick("198.51.100.7", "2001:db8:ffff::7");
    let node_ips = [pick("192.0.2.11", "2001:db8::11"), pick("192.0.2.12", "2001:db8::12")];
    let mut expectations: Vec<(&str, String, &str)> = Vec::new();
    for (index, outside) in world.iter().enumerate() {
        for (from, to) in [(a, b), (a, c), (c, a)] {
            expectations.push(("ovn-default", packet(from, &to.mac, &to.ips[index]), &to.port));
        }
        expectations.push(("ovn-default", packet(a, &default, outside), &nodes[0].port));
        expectations.push(("ovn-default", packet(c, &default, outside), &nodes[1].port));
        for (node, ips) in nodes.iter().zip(&node_ips) {
            // The node's own address, and its address on the join switch, from both nodes' pods.
            for pod in [a, c] {
                expectations.push(("ovn-default", packet(pod, &default, &ips[index]), &node.port));
                expectations.push(("ovn-default", packet(pod, &default, &node.ips[index]), &node.port));
            }
            for pod in [a, c] {
                expectations.push(("join", packet(node, &join, &pod.ips[index]), &pod.port));
            }
        }
    }
    for (switch, packet, port) in expectations {
        let trace = ovn.trace(switch, &packet);
        assert!(
            trace.contains(&format!("output(\"{port}\")")),
            "{packet}\nmust come out at {port}:\n{trace}"
        );
        assert_eq!(trace.matches("output(").count(), 1, "{packet}\nonce only:\n{trace}");
    }
    drop(ovn);
    tokio::time::timeout(Duration::from_secs(20), controller.stop()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn real_ways_of_ipv4() {
    ways(true, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn real_ways_of_ipv6() {
    ways(false, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn real_ways_of_dual_stack() {
    ways(true, true).await;
}
