//! How much memory a replica of 100,000 ports takes, by a counting allocator:
//!
//! ```text
//! cargo run --release -p ovsdb --example memory -- 100000
//! ```
//!
//! Needs no server: the content is made here, in the notation of a server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use std::time::Instant;

use ovsdb::notation::Interner;
use ovsdb::testing::northbound;
use ovsdb::{Replica, Uuid};
use serde_json::json;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

fn main() {
    let ports: usize = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(100_000);
    let text = content(ports);
    for shared in [true, false] {
        let mut interner = if shared { Interner::default() } else { Interner::off() };
        let region = Region::new(ALLOCATOR);
        let begin = Instant::now();
        let mut replica = empty();
        let changes = replica.apply_updates(&text, &mut interner).unwrap();
        let time = begin.elapsed();
        assert_eq!(changes.len(), ports + 1);
        drop(changes);
        let held = |region: &Region<'_, std::alloc::System>| {
            let change = region.change();
            (change.bytes_allocated as i64 + change.bytes_reallocated as i64
                - change.bytes_deallocated as i64) as usize
        };
        let bytes = held(&region);
        let kind = if shared { "strings shared" } else { "no strings shared" };
        println!(
            "{ports} ports, {kind}: {:.1} MB, {} bytes a port; read and applied in {time:.2?}",
            bytes as f64 / 1e6,
            bytes / ports.max(1)
        );
        let snapshot = Region::new(ALLOCATOR);
        let kept: Vec<Replica> = (0..1000).map(|_| replica.clone()).collect();
        println!("  1,000 snapshots: {} bytes each", held(&snapshot) / kept.len());
        let update = Region::new(ALLOCATOR);
        let uuid = Uuid::from_u128(5);
        let one =
            json!({"Logical_Switch_Port": {uuid.to_string(): {"modify": {"enabled": true}}}}).to_string();
        let mut newer = replica.clone();
        drop(newer.apply_updates(&one, &mut interner).unwrap());
        println!("  one update beside a snapshot: {} bytes more", held(&update));
    }
}

fn empty() -> Replica {
    let columns = |names: &[&str]| names.iter().map(|&n| n.to_owned()).collect();
    let tables = [
        ("Logical_Switch".to_owned(), columns(&["name", "ports", "other_config", "external_ids"])),
        (
            "Logical_Switch_Port".to_owned(),
            columns(&["name", "type", "addresses", "port_security", "options", "external_ids", "enabled"]),
        ),
    ];
    Replica::new(
        Arc::new(northbound()),
        &tables.into(),
        &[("Logical_Switch_Port".into(), vec!["name".into()])],
    )
}

/// The reply to a monitor request: one switch and its ports.
fn content(ports: usize) -> String {
    let mut rows = serde_json::Map::new();
    let mut references = Vec::new();
    for i in 0..ports {
        let uuid =
            Uuid::from_u128((i as u128).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835) | 0x10);
        let uuid = if i == 0 { Uuid::from_u128(5) } else { uuid };
        let (high, low) = (i / 256 % 256, i % 256);
        let address =
            format!("02:00:00:{:02x}:{high:02x}:{low:02x} 10.{}.{high}.{low}", i >> 16, 16 + (i >> 16));
        let ids = json!([
            "map",
            [["ls", "ovn-default"], ["pod", format!("namespace-{}/pod-{i}", i % 50)], ["vendor", "kube-ovn"]]
        ]);
        let row = json!({
            "name": format!("pod-{i}.namespace-{}", i % 50),
            "addresses": address,
            "port_security": address,
            "external_ids": ids,
        });
        rows.insert(uuid.to_string(), json!({"initial": row}));
        references.push(json!(["uuid", uuid.to_string()]));
    }
    let switch = json!({"initial": {"name": "ovn-default", "ports": ["set", references]}});
    json!({"Logical_Switch": {Uuid::from_u128(1).to_string(): switch}, "Logical_Switch_Port": rows})
        .to_string()
}
