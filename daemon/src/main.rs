//! `kube-ovn-daemon`: the node agent's entry point.

use std::process::ExitCode;

use clap::Parser;
use daemon::flags::Flags;

fn main() -> ExitCode {
    daemon::sys::bound_heap();
    let flags = Flags::parse();
    daemon::logs::start(&flags);
    let check = flags.check;
    let outcome = if flags.install_cni_config {
        daemon::run::prepare_node(&flags)
    } else if flags.cleanup {
        return clean_up(&flags);
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

/// `--cleanup`: for a person, who reads standard output.
fn clean_up(flags: &Flags) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let cleaned = runtime.block_on(async {
        let host = daemon::hostnet::HostNet::own().await?;
        daemon::cleanup::run(flags, host).await
    });
    match cleaned {
        Ok(done) if done.is_empty() => println!("nothing of ours is on this node"),
        Ok(done) => done.iter().for_each(|line| println!("{line}")),
        Err(error) => {
            eprintln!("{error:#}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
