//! `kube-ovn-daemon`: the node agent's entry point.

use std::process::ExitCode;

use clap::Parser;
use daemon::flags::Flags;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let flags = Flags::parse();
    start_logs(&flags);
    let check = flags.check;
    let outcome = if flags.install_cni_config {
        daemon::run::prepare_node(&flags)
    } else {
        // Two threads serve a full node; more would only cost memory.
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(anyhow::Error::from)
            .and_then(|runtime| {
                if check {
                    runtime.block_on(daemon::run::check(flags))
                } else {
                    runtime.block_on(daemon::run::run(flags))
                }
            })
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Logs go to standard error: `WEIR_LOG` filters, `WEIR_LOG_FORMAT=json` makes
/// them objects, klog's `-v` of 4 and more shows debug messages.
fn start_logs(flags: &Flags) {
    let default = match flags.klog.verbosity {
        0..=3 => "info",
        4..=5 => "info,daemon=debug,ovsdb=debug",
        _ => "info,daemon=trace,ovsdb=trace",
    };
    let filter = std::env::var("WEIR_LOG").or_else(|_| std::env::var("RUST_LOG"));
    let filter =
        filter.ok().and_then(|text| EnvFilter::try_new(text).ok()).unwrap_or_else(|| EnvFilter::new(default));
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(daemon::metrics::CountingWriter)
        .with_ansi(false);
    if std::env::var("WEIR_LOG_FORMAT").as_deref() == Ok("json") {
        logs.json().flatten_event(true).init();
    } else {
        logs.init();
    }
}
