//! `weir`: installs Weir and looks into a running cluster. Under the name
//! `kubectl-ko` it is the kubectl plugin that operators of Kube-OVN know.
//!
//! - `manifests` prints what `kubectl apply` needs (data in, YAML out, no cluster);
//! - `nbctl`, `sbctl`, `vsctl`, `ofctl`, `dpctl`, `appctl` find the right pod and
//!   become `kubectl exec`;
//! - `status`, `explain`, `plan`, `verify`, `watch` speak JSON-RPC with a controller or node agent,
//!   directly where its socket is at hand, else by running `weir` in its pod.

mod arguments;
mod diagnostics;
mod kubectl;
mod manifests;
mod rpc;
mod target;
mod text;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use arguments::{Arguments, Command};

fn main() -> ExitCode {
    // `kubectl ko nbctl …` starts `kubectl-ko nbctl …`: the same commands.
    match run(Arguments::parse()) {
        Ok(code) => code,
        // `weir … | head` has read enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weir: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let cluster = kubectl::Cluster::new(arguments.kubectl, arguments.namespace);
    match arguments.command {
        Command::Manifests(options) => {
            print(&manifests::render(&options)?)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Nbctl(pass) => kubectl::database(&cluster, kubectl::Database::Northbound, &pass.arguments),
        Command::Sbctl(pass) => kubectl::database(&cluster, kubectl::Database::Southbound, &pass.arguments),
        Command::Vsctl(pass) => kubectl::switch(&cluster, "ovs-vsctl", &pass),
        Command::Ofctl(pass) => kubectl::switch(&cluster, "ovs-ofctl", &pass),
        Command::Dpctl(pass) => kubectl::switch(&cluster, "ovs-dpctl", &pass),
        Command::Appctl(pass) => kubectl::switch(&cluster, "ovs-appctl", &pass),
        Command::Status(options) => diagnostics::status(&cluster, &options),
        Command::Explain(options) => diagnostics::explain(&cluster, &options),
        Command::Plan(options) => diagnostics::plan(&cluster, &options),
        Command::Verify(options) => diagnostics::verify(&cluster, &options),
        Command::Watch(options) => diagnostics::watch(&cluster, &options),
    }
}

/// Standard output, whose reader may be gone: an error then, where `print!` panics.
fn print(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let error = error.root_cause().downcast_ref::<std::io::Error>();
    error.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
