//! The client side by side with `ovn-nbctl` and the Python binding of OVS, against
//! the same real servers, in one run: `make bench-ovsdb`.
//!
//! `WEIR_OVS_ROOT` names the root with the real programs, `WEIR_BENCH_PYTHON` a Python
//! with the package `ovs`. `WEIR_BENCH_PORTS` (30000,150000) are the database sizes,
//! `WEIR_BENCH_ONLY` picks sections: load, single, batch, resume, churn. Results go to
//! standard output as Markdown tables.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

mod nbctl;
mod ours;
mod python;
mod setup;

use std::time::Duration;

use setup::{Filled, millis, row, seconds};

fn wanted(section: &str) -> bool {
    std::env::var("WEIR_BENCH_ONLY").map_or(true, |only| only.is_empty() || only.contains(section))
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    // A process of its own, so that its peak of memory is that of one load.
    if let [_, mode, socket] = arguments.as_slice()
        && mode == "load"
    {
        runtime.block_on(ours::load_alone(socket));
        return;
    }
    // `cargo test --benches` only wants to know that it builds.
    if !arguments.iter().any(|a| a == "--bench") {
        return;
    }
    runtime.block_on(async {
        let sizes = std::env::var("WEIR_BENCH_PORTS").unwrap_or_else(|_| "30000,150000".into());
        let sizes: Vec<usize> = sizes.split(',').map(|s| s.trim().parse().unwrap()).collect();
        setup::machine();
        for &ports in &sizes {
            println!("\n### {ports} ports\n\n| | Weir | `ovn-nbctl` forked | `ovn-nbctl` daemon | Python |\n|---|---|---|---|---|");
            let filled = Filled::standalone(ports).await;
            if wanted("load") {
                load(&filled).await;
            }
            if wanted("single") {
                single(&filled).await;
            }
            if wanted("resume") {
                let clustered = Filled::clustered(ports).await;
                resume(&clustered).await;
            }
            // Twenty Python followers of the bigger one would need ten gigabytes.
            if wanted("churn") && ports == sizes[0] {
                churn(&filled).await;
            }
        }
        if wanted("batch") {
            println!("\n### 10,000 ports into an empty database, by ports a transaction\n\n| | Weir | `ovn-nbctl` forked | `ovn-nbctl` daemon | Python |\n|---|---|---|---|---|");
            for batch in [1, 10, 100, 1000] {
                batches(batch).await;
            }
        }
    });
}

async fn load(filled: &Filled) {
    let ours = ours::load(filled);
    let forked = nbctl::load(filled);
    let daemon = nbctl::Daemon::start(filled);
    let python = python::load(filled);
    row("initial load", [ours.0, forked.0, daemon.time, python.0].map(seconds));
    let rss = |kib: usize| if kib == 0 { "–".into() } else { format!("{:.0} MB", kib as f64 / 1024.0) };
    row("peak RSS of the client", [ours.1, forked.1, daemon.peak_rss(), python.1].map(rss));
}

async fn single(filled: &Filled) {
    let ours = ours::single(filled, 500).await;
    let forked = nbctl::single(filled, 10);
    let daemon = nbctl::Daemon::start(filled).single(50);
    let python = python::single(filled, 100);
    for (name, part) in [("p50", 50), ("p99", 99)] {
        let at = |times: &[Duration]| millis(times[(times.len() - 1) * part / 100]);
        let cells = [&ours, &forked, &daemon, &python].map(|times| at(times));
        row(&format!("add one port, round trip, {name}"), cells);
    }
}

async fn resume(filled: &Filled) {
    let ours = ours::resume(filled, 10).await;
    let python = python::resume(filled, 3);
    row("resume after a lost connection (raft)", [millis(ours), "–".into(), "–".into(), millis(python)]);
}

async fn churn(filled: &Filled) {
    for monitors in [1, 20] {
        let rate = |changes: f64| format!("{changes:.0} changes/s");
        let ours = ours::churn(filled, monitors, 20_000).await;
        let python = python::churn(filled, monitors, 2_000).await;
        let name = format!("changes followed, {monitors} monitors in one process");
        row(&name, [rate(ours), "–".into(), "–".into(), rate(python)]);
    }
}

async fn batches(batch: usize) {
    let total = 10_000;
    let ours = ours::batches(&Filled::standalone(0).await, total, batch).await;
    // One command of the tools for each batch, and each looks at every port there is:
    // the first ones tell a pace that gets slower.
    let most = (50 * batch).min(2_000);
    let forked = nbctl::batches(&Filled::standalone(0).await, most, batch);
    let daemon = Filled::standalone(0).await;
    let daemon = nbctl::Daemon::start(&daemon).batches(most, batch);
    let python = python::batches(&Filled::standalone(0).await, total, batch);
    let scaled = |time: Duration| match most == total {
        true => seconds(time),
        false => format!(
            "≥ {} ({most} ports: {})",
            seconds(time.mul_f64(total as f64 / most as f64)),
            seconds(time)
        ),
    };
    row(&batch.to_string(), [seconds(ours), scaled(forked), scaled(daemon), seconds(python)]);
}
