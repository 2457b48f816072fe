//! `lab`: real Kubernetes clusters on one machine, from the command line.
//!
//! In: arguments. Out: progress on standard error, results on standard output,
//! exit status 0 only if all went well. Everything it does is in the library.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Parser, Subcommand};

use lab::cache::Cache;
use lab::images::{self, Binaries, Wanted};
use lab::plan::{Family, Net};
use lab::progress::{begin, quiet_step};
use lab::state::{DEFAULT_NAME, Lab, lock, names};
use lab::{
    api, checks, collect, control, demo, install, life, netns, node, outside, packages, process, programs,
    swap,
};

#[derive(Parser)]
#[command(name = "lab", about = "Real Kubernetes clusters on one machine, with Weir as their network")]
struct Arguments {
    /// Which lab: several can run side by side
    #[arg(long, global = true, env = "WEIR_LAB", default_value = DEFAULT_NAME)]
    name: String,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Install what the machine lacks and build the programs (cached)
    Tools,
    /// Build the Kubernetes programs from their Go modules (cached)
    Programs,
    /// Print the folder with Debian trixie's OVS and OVN programs, making it if it is missing
    OvsRoot,
    /// Print the folder with cnitool and the standard CNI plugins that tests use, building it if it is missing
    CniTools,
    /// Build all images and import them into the nodes
    Images {
        /// Take Weir's programs as they are in the target folder
        #[arg(long)]
        no_build: bool,
        /// Only pause, busybox and CoreDNS
        #[arg(long)]
        base: bool,
    },
    /// Start a cluster (or bring one to the wished number of nodes)
    Up {
        /// How many nodes
        #[arg(long, default_value_t = 2)]
        nodes: u8,
        /// ipv4, ipv6 or dual
        #[arg(long, default_value = "dual")]
        family: Family,
    },
    /// Stop a cluster and remove everything of it, crashed or not
    Down,
    /// Show what runs
    Status,
    /// Add, remove, stop, start, reboot, cut off or heal a node
    #[command(subcommand)]
    Node(NodeAction),
    /// Run a command inside a node
    Exec {
        /// The node, or `outside` or `control` for the other two hosts
        host: String,
        /// The command
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Run kubectl as the cluster's administrator
    #[command(disable_help_flag = true)]
    Kubectl {
        /// Its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Install Weir and CoreDNS as a user would, and wait until the cluster is usable
    Install {
        /// Further options of `weir manifests`
        #[arg(last = true)]
        extra: Vec<String>,
    },
    /// Put newly built programs into a running lab and restart what runs them, without a new image
    Swap {
        /// Take Weir's programs as they are in the target folder
        #[arg(long)]
        no_build: bool,
    },
    /// Check what a first look should find, and print the table
    Show,
    /// All of it: up, images, install, show
    Demo {
        /// How many nodes
        #[arg(long, default_value_t = 2)]
        nodes: u8,
        /// ipv4, ipv6 or dual
        #[arg(long, default_value = "dual")]
        family: Family,
        /// Take Weir's programs as they are in the target folder
        #[arg(long)]
        no_build: bool,
    },
    /// Write logs and states of everything into a folder
    Collect {
        /// The folder
        folder: PathBuf,
    },
    /// List the processes of a lab, by host
    Ps,
    /// Stop, start or restart a part of the control plane
    Control {
        /// stop, start or restart
        action: ControlAction,
        /// etcd, kube-apiserver, kube-controller-manager or kube-scheduler
        component: String,
    },
    #[command(hide = true)]
    Place {
        #[arg(long)]
        cgroup: Option<String>,
        #[arg(long)]
        netns: Option<String>,
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    #[command(hide = true)]
    NodeRun { config: PathBuf, record: PathBuf },
    #[command(hide = true)]
    NodeInit { config: PathBuf },
    #[command(hide = true)]
    OutsideServe,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum ControlAction {
    Stop,
    Start,
    Restart,
}

#[derive(Subcommand)]
enum NodeAction {
    /// Add a node
    Add {
        /// Its name (default: the next nN)
        node: Option<String>,
    },
    /// Stop a node and remove it from the cluster
    Delete { node: String },
    /// Shut a node down
    Stop {
        node: String,
        /// Cut its power instead
        #[arg(long)]
        power: bool,
    },
    /// Boot a node that is off
    Start { node: String },
    /// Cut a node's power and boot it again
    Reboot { node: String },
    /// Drop all packets from and to a node, silently
    Cut {
        node: String,
        /// Only eth0 (management), eth1 (tunnels) or eth2 (physical)
        #[arg(long)]
        net: Option<u8>,
    },
    /// End a cut
    Heal {
        node: String,
        /// Only eth0 (management), eth1 (tunnels) or eth2 (physical)
        #[arg(long)]
        net: Option<u8>,
    },
}

fn main() -> ExitCode {
    begin();
    let arguments = Arguments::parse();
    match act(arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn act(arguments: Arguments) -> Result<ExitCode> {
    let name = arguments.name.as_str();
    match arguments.action {
        Action::Tools => demo::tools(&Cache::open()?).map(drop)?,
        Action::Programs => {
            programs::ensure(&Cache::open()?)?;
        }
        Action::OvsRoot => {
            packages::ensure()?;
            println!("{}", lab::debian::ovs_root(&Cache::open()?)?.display());
        }
        Action::CniTools => println!("{}", programs::cni_tools(&Cache::open()?)?.display()),
        Action::Up { nodes, family } => {
            packages::ensure()?;
            let cache = Cache::open()?;
            let programs = programs::ensure(&cache)?;
            let lab = life::up(name, nodes, family, &programs, &cache)?;
            println!("export KUBECONFIG={}", lab.kubeconfig().display());
        }
        Action::Images { no_build, base } => {
            let cache = Cache::open()?;
            let programs = programs::ensure(&cache)?;
            let mut wanted = Wanted { archives: images::base_archives(&cache, &programs)?, seed: None };
            if !base {
                let binaries = if no_build { Binaries::AsTheyAre } else { Binaries::Build };
                wanted.archives.push(images::weir_archive(&cache, &programs, binaries)?);
            }
            if let Some(lab) = Lab::open(name)? {
                let _lock = lock(name)?;
                wanted.save(&lab)?;
                images::import(&lab)?;
            }
        }
        Action::Down => life::down(name)?,
        Action::Status => return status(name),
        Action::Node(action) => act_on_node(name, action)?,
        Action::Exec { host, command } => exec(&Lab::existing(name)?, &host, &command)?,
        Action::Kubectl { args } => {
            let error = api::kubectl_command(&Lab::existing(name)?).args(args).exec();
            bail!("cannot run kubectl: {error}");
        }
        Action::Install { extra } => {
            let _lock = lock(name)?;
            install::install(&Lab::existing(name)?, &install::Options { extra })?;
        }
        Action::Swap { no_build } => {
            if !no_build {
                images::build_binaries()?;
            }
            let _lock = lock(name)?;
            swap::swap(&Lab::existing(name)?)?;
        }
        Action::Show => return show(&Lab::existing(name)?),
        Action::Demo { nodes, family, no_build } => {
            let binaries = if no_build { Binaries::AsTheyAre } else { Binaries::Build };
            return show(&demo::prepare(name, nodes, family, binaries, &install::Options::default())?);
        }
        Action::Collect { folder } => collect::collect(&Lab::existing(name)?, &folder)?,
        Action::Ps => print!("{}", life::processes(&Lab::existing(name)?)?),
        Action::Control { action, component } => {
            let lab = Lab::existing(name)?;
            if !matches!(action, ControlAction::Start) {
                control::stop_component(&lab, &component)?;
            }
            if !matches!(action, ControlAction::Stop) {
                control::start_component(&lab, &component)?;
            }
        }
        Action::Place { cgroup, netns, command } => {
            process::become_placed(cgroup.as_deref(), netns.as_deref(), &command)?;
        }
        Action::NodeRun { config, record } => lab::node_init::run(&config, &record)?,
        Action::NodeInit { config } => lab::node_init::init(&config)?,
        Action::OutsideServe => outside::serve()?,
    }
    Ok(ExitCode::SUCCESS)
}

fn show(lab: &Lab) -> Result<ExitCode> {
    let outcomes = checks::show::run(lab)?;
    println!("\nlab {}, {}, {} nodes\n", lab.plan.name, lab.plan.family, lab.nodes()?.len());
    println!("{}", checks::table(&outcomes));
    let good = outcomes.iter().all(|outcome| outcome.good);
    if good {
        println!("look around: export KUBECONFIG={}", lab.kubeconfig().display());
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn status(name: &str) -> Result<ExitCode> {
    let lab = Lab::existing(name)?;
    let (lines, good) = life::status(&lab)?;
    println!("lab {name}, number {}, {}, {}", lab.plan.index, lab.plan.family, lab.dir.display());
    lines.iter().for_each(|line| println!("{line}"));
    let others: Vec<_> = names().into_iter().filter(|other| other != name).collect();
    if !others.is_empty() {
        println!("other labs: {}", others.join(" "));
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn nets(number: Option<u8>) -> Result<Vec<Net>> {
    Ok(match number {
        None => Net::ALL.to_vec(),
        Some(number) => match Net::ALL.into_iter().find(|net| net.number() == number) {
            Some(net) => vec![net],
            None => bail!("a node has eth0, eth1 and eth2, no eth{number}"),
        },
    })
}

fn act_on_node(name: &str, action: NodeAction) -> Result<()> {
    let lab = Lab::existing(name)?;
    let _lock = lock(name)?;
    match action {
        NodeAction::Add { node } => {
            let added = node::add(&lab, node.as_deref())?;
            images::import(&lab)?;
            life::wait_registered(&lab, &added)?;
            println!("{}", added.name);
            Ok(())
        }
        NodeAction::Delete { node } => node::delete(&lab, &lab.node(&node)?),
        NodeAction::Stop { node, power } => {
            let node = lab.node(&node)?;
            quiet_step(&format!("node {} off", node.name), || node::stop(&lab, &node, power))
        }
        NodeAction::Start { node } => node::start(&lab, &lab.node(&node)?),
        NodeAction::Reboot { node } => {
            let node = lab.node(&node)?;
            quiet_step(&format!("node {} off", node.name), || node::stop(&lab, &node, true))?;
            quiet_step(&format!("node {} on", node.name), || node::start(&lab, &node))
        }
        NodeAction::Cut { node, net } => netns::cut(&lab.plan, &lab.node(&node)?.member(), &nets(net)?),
        NodeAction::Heal { node, net } => netns::heal(&lab.plan, &lab.node(&node)?.member(), &nets(net)?),
    }
}

/// Becomes a command inside a node or one of the other hosts.
fn exec(lab: &Lab, host: &str, command: &[String]) -> Result<()> {
    let netns = match host {
        "outside" => Some("out"),
        "control" => Some("cp"),
        _ => None,
    };
    if let Some(netns) = netns {
        return process::become_placed(None, Some(&lab.plan.netns(netns)), command);
    }
    let node = lab.node(host)?;
    let mut inside = node::command_in(lab, &node)?;
    node::join_cgroup(lab, &node)?;
    let error = inside.args(command).exec();
    bail!("cannot enter {host}: {error}");
}
