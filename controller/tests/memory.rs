//! What the controller holds in memory after pods came and went (`pain.md` U25), in bytes that
//! the allocator counts: no time, no pages, nobody else's load.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::cast_precision_loss, clippy::cast_possible_wrap)]

#[path = "../benches/scale/api.rs"]
mod api;
#[path = "../benches/scale/cluster.rs"]
mod cluster;
#[path = "../benches/scale/cpu.rs"]
mod cpu;
#[path = "../benches/scale/pipeline.rs"]
mod pipeline;

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

/// The only test of this program: the allocator counts for all threads.
#[test]
fn u_25_memory_does_not_grow_with_churn() {
    pipeline::churn(cluster::Size { pods: 500, nodes: 20, subnets: 4, distributed: false }, 5);
}
