//! `cni-bench`: measures a CNI executable on a node, with pods that the
//! cluster's controller has given addresses to already.
#![allow(clippy::print_stdout)]

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Parser;
use cni_bench::{Attachment, Plugin, Sandbox, Series, at_once, one_by_one};

/// Run it in the node's network namespace, as root.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The executable, e.g. /opt/cni/bin/kube-ovn
    #[arg(long)]
    plugin: PathBuf,
    /// Its configuration, e.g. /etc/cni/net.d/01-kube-ovn.conflist
    #[arg(long)]
    configuration: PathBuf,
    /// Pods of this node, `namespace/name`, that no runtime takes care of
    #[arg(required = true)]
    pods: Vec<String>,
    /// Ping this address from every pod right after ADD
    #[arg(long)]
    ping: Option<String>,
    /// Run this (with namespace and name) right before each ADD, to create the pod: cold ADDs, one after another
    #[arg(long)]
    create: Option<PathBuf>,
    /// All at once instead of one after another
    #[arg(long, conflicts_with = "create")]
    parallel: bool,
    /// Leave the interfaces; the default is to delete and measure that too
    #[arg(long)]
    keep: bool,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let plugin = Plugin::from_file(&arguments.plugin, &arguments.configuration)?;
    let mut sandboxes = Vec::new();
    let mut attachments = Vec::new();
    for (number, pod) in arguments.pods.iter().enumerate() {
        let (namespace, name) =
            pod.split_once('/').with_context(|| format!("{pod} is not namespace/name"))?;
        let sandbox = Sandbox::new()?;
        let container = format!("{number:04x}{:08x}{:052x}", std::process::id(), 0);
        attachments.push(Attachment::eth0(
            container,
            sandbox.path(),
            (namespace.to_owned(), name.to_owned()),
        ));
        sandboxes.push(sandbox);
    }
    let create = |attachment: &Attachment| {
        if let Some(program) = &arguments.create {
            let (namespace, name) = &attachment.pod;
            // Not waited for: the pod and its ADD come together.
            if let Err(error) = Command::new(program).args([namespace, name]).spawn() {
                eprintln!("{}: {error}", program.display());
            }
        }
    };
    let ping = |attachment: &Attachment| match &arguments.ping {
        None => Ok(()),
        Some(target) => {
            let of = |sandbox: &&Sandbox| sandbox.path() == attachment.namespace;
            sandboxes.iter().find(of).map_or(Ok(()), |sandbox| sandbox.ping(target))
        }
    };
    let mut all = Vec::new();
    println!("{}", Series::HEAD);
    let mut run = |name: &str, series: Series| {
        println!("{}", series.row(name));
        all.extend(series.failures);
    };
    if arguments.parallel {
        let mut added = at_once(&plugin, "ADD", &attachments);
        added.failures.extend(attachments.iter().filter_map(|attachment| ping(attachment).err()));
        run("ADD at once", added);
    } else {
        run("ADD one by one", one_by_one(&plugin, "ADD", &attachments, create, ping));
    }
    if !arguments.keep {
        let deleted = if arguments.parallel {
            at_once(&plugin, "DEL", &attachments)
        } else {
            one_by_one(&plugin, "DEL", &attachments, |_| {}, |_| Ok(()))
        };
        run("DEL", deleted);
    }
    for failure in &all {
        eprintln!("{failure}");
    }
    Ok(if all.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
