//! Golden tests of the whole pipeline, from Kubernetes objects to rows and back,
//! on the simulator's bench.
//!
//! `worked` is the worked example of the contract (§10) without its Service and
//! policy; `adoption` takes over a database that a full-featured Kube-OVN left;
//! `networks` are subnets and VPCs, `external` their ways out, `nat` the addresses of gateways that are not acted on, `walls` who enters them, `multicast` who listens;
//! `defects` are others' faults, `collisions` are names that OVN does not tell apart, `mishaps` are users' mistakes, and what must
//! survive them; `events` is what all are told; `requests` are what pods may ask for, `ports` beside an address, `pools` where from, `retention`
//! for how long, `vips` for whom; `machines` are virtual machines.

mod adoption;
mod attachments;
mod collisions;
mod database;
mod defects;
mod eips;
mod events;
mod external;
mod kube_ovn;
mod machines;
mod mishaps;
mod multicast;
mod nat;
mod networks;
mod pains;
mod pools;
mod ports;
mod providers;
mod requests;
mod retention;
mod schema;
mod vips;
mod walls;
mod worked;

use serde_json::{Value, json};

use crate::compile::compile;
use crate::compile::tests::fake::{Families, config};
use crate::core::Core;
use crate::facts::{Kind, ObjectRef};
use crate::sim::Bench;

/// A bench with a namespace `web` and node `n-1`, without a controller.
fn bench(families: Families) -> Bench {
    let mut bench = Bench::new(1);
    bench.add_namespace("web");
    add_node(&mut bench, families, "n-1", 11);
    bench
}

fn add_node(bench: &mut Bench, families: Families, name: &str, number: u8) {
    let ips = families.pick(&format!("192.0.2.{number}"), &format!("2001:db8::{number}"));
    let addresses: Vec<Value> =
        ips.split(',').map(|ip| json!({ "type": "InternalIP", "address": ip })).collect();
    let body = json!({
        "metadata": { "annotations": { "ovn.kubernetes.io/chassis": format!("chassis-{name}") } },
        "status": { "addresses": addresses, "conditions": [{ "type": "Ready", "status": "True" }] },
    });
    bench.api.create(&cluster(Kind::Node, name), body).unwrap();
}

/// Starts a controller with the flags of the worked example and makes it leader.
fn lead(bench: &mut Bench, families: Families) -> usize {
    let process = bench.start_with(Core::new(config(families), compile));
    bench.elect(process);
    bench.settle();
    process
}

/// The running controller dies, another one takes over.
fn restart(bench: &mut Bench, families: Families) -> usize {
    if let Some(process) = bench.processes.last_mut() {
        process.paused = true;
    }
    lead(bench, families)
}

fn cluster(kind: Kind, name: &str) -> ObjectRef {
    ObjectRef::cluster(kind, name)
}

fn pod(name: &str) -> ObjectRef {
    ObjectRef::namespaced(Kind::Pod, "web", name)
}

/// The status of a condition of a subnet or VPC, with its reason and message.
fn condition(bench: &Bench, object: &ObjectRef, kind: &str) -> Option<(String, String, String)> {
    let conditions = bench.api.get(object)?["status"]["conditions"].as_array()?.clone();
    let found = conditions.iter().find(|condition| condition["type"] == kind)?;
    let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
    Some((text("status"), text("reason"), text("message")))
}
