//! What Weir's controller costs at scale, in a release build:
//! `cargo bench -p controller --bench scale` (or `make bench`).
//!
//! `WEIR_BENCH_PODS`, `WEIR_BENCH_NODES` and `WEIR_BENCH_SUBNETS` set the size (150,000,
//! 2,000, 100). Two parts: the pipeline alone, with allocations, and the whole process
//! beside a real ovsdb-server. `WEIR_BENCH_ONLY=pipeline|process` runs one of them.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::cast_precision_loss)]

mod api;
mod cluster;
mod cpu;
mod pipeline;
mod process;

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

fn main() {
    // `cargo test --benches` only wants to know that it builds.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let only = std::env::var("WEIR_BENCH_ONLY").unwrap_or_default();
    let size = cluster::Size::from_env();
    if only != "process" {
        let few = pipeline::run(cluster::Size { pods: 1000, ..size });
        let many = pipeline::run(size);
        assert_eq!(few, many, "a pod compiles as many units among 1,000 as among {}", size.pods);
        println!("\nchurn");
        pipeline::churn(cluster::Size { pods: 1500, nodes: 20, subnets: 4, ..size }, 10);
        println!("\nrelabelling");
        let costs = [100, 10_000].map(pipeline::relabelled);
        assert_eq!(costs[0], costs[1], "a relabelled namespace costs the same whatever lives in it");
    }
    if only != "pipeline" {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(process::run(size));
    }
}
