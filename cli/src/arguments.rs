//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::manifests::Options;

/// Installs Weir and looks into a running cluster.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Start here:\n  \
        weir manifests --ovn-db-ips 192.0.2.1 | kubectl apply --server-side -f -   install\n  \
        weir status                                    is everything loaded, connected, led?\n  \
        weir explain pod web/a-0                       what a pod became, and why\n  \
        weir plan                                      what would change in the database\n  \
        weir nbctl show                                the logical network\n  \
        weir vsctl NODE show                           the switch of a node\n\n\
        As a kubectl plugin (a link named kubectl-ko on the PATH): kubectl ko nbctl show"
)]
pub(crate) struct Arguments {
    /// Namespace that Weir runs in
    #[arg(short = 'n', long, env = "KUBE_OVN_NS", default_value = "kube-system", global = false)]
    pub(crate) namespace: String,
    /// Program to reach the cluster with
    #[arg(long, env = "KUBECTL", default_value = "kubectl", global = false)]
    pub(crate) kubectl: String,
    /// What to do
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print the manifests that install Weir, ready for kubectl apply
    Manifests(Box<Options>),
    /// Run ovn-nbctl where the northbound database is
    #[command(disable_help_flag = true)]
    Nbctl(Pass),
    /// Run ovn-sbctl where the southbound database is
    #[command(disable_help_flag = true)]
    Sbctl(Pass),
    /// Run ovs-vsctl on a node
    #[command(disable_help_flag = true)]
    Vsctl(PassNode),
    /// Run ovs-ofctl on a node
    #[command(disable_help_flag = true)]
    Ofctl(PassNode),
    /// Run ovs-dpctl on a node
    #[command(disable_help_flag = true)]
    Dpctl(PassNode),
    /// Run ovs-appctl on a node
    #[command(disable_help_flag = true)]
    Appctl(PassNode),
    /// Show what a controller or node agent sees: watches, database, leadership
    Status(Status),
    /// Show what became of an object: rows, memberships, fields, and the unit that made each
    Explain(Explain),
    /// Show which rows of the northbound database the controller would change now
    #[command(
        after_help = "One line a row or membership. Empty when the database is as it should be. A controller \
        that does not lead says what it would do if it did: this is how a take-over is looked at beforehand."
    )]
    Plan(Controller),
    /// Check that what the controller keeps step by step equals what it would compile from nothing
    #[command(
        after_help = "Everything is compiled anew and compared: projections, rows, memberships, what is pending \
        and what is to be published. Ends with 1 when something differs, which is a bug of Weir: please report the \
        lines, and restart the controller, which heals it. The controller stands still meanwhile, about a second per \
        20,000 pods."
    )]
    Verify(Controller),
    /// Print changes as they happen, one a line
    Watch(Watch),
}

/// Arguments for a program in a pod.
#[derive(Debug, Args)]
pub(crate) struct Pass {
    /// Passed on as they are
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) arguments: Vec<OsString>,
}

/// Arguments for a program on a node.
#[derive(Debug, Args)]
pub(crate) struct PassNode {
    /// Node whose switch is meant
    pub(crate) node: String,
    /// Passed on as they are
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) arguments: Vec<OsString>,
}

/// Whom to ask.
#[derive(Debug, Args)]
pub(crate) struct Whom {
    /// Ask the agent of this node instead of the leading controller
    #[arg(long, value_name = "NODE")]
    pub(crate) node: Option<String>,
    /// Ask at this unix socket instead of in the cluster
    #[arg(long, value_name = "PATH", conflicts_with = "node")]
    pub(crate) socket: Option<PathBuf>,
    /// Print JSON as it came
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which controller to ask.
#[derive(Debug, Args)]
pub(crate) struct Controller {
    /// Ask at this unix socket instead of in the cluster
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Print JSON as it came
    #[arg(long)]
    pub(crate) json: bool,
}

impl Controller {
    /// The leading controller, or the one at the socket.
    pub(crate) fn whom(&self) -> Whom {
        Whom { node: None, socket: self.socket.clone(), json: self.json }
    }
}

/// Options of `status`.
#[derive(Debug, Args)]
pub(crate) struct Status {
    #[command(flatten)]
    pub(crate) whom: Whom,
}

/// Options of `explain`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  weir explain pod web/a-0\n  weir explain subnet ovn-default\n  weir explain node n1"
)]
pub(crate) struct Explain {
    /// Kind, as kubectl knows it: pod, subnets, Vpc, …
    pub(crate) kind: String,
    /// Name, with its namespace in front where the kind has one
    #[arg(value_name = "[NAMESPACE/]NAME")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) whom: Whom,
}

/// Options of `watch`.
#[derive(Debug, Args)]
pub(crate) struct Watch {
    #[command(flatten)]
    pub(crate) whom: Whom,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use rstest::rstest;

    use super::*;

    fn parse(line: &str) -> Command {
        Arguments::try_parse_from(line.split(' ')).unwrap().command
    }

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[rstest]
    #[case("weir nbctl show", &["show"])]
    #[case("weir nbctl --no-leader-only list Logical_Switch", &["--no-leader-only", "list", "Logical_Switch"])]
    #[case("kubectl-ko nbctl --help", &["--help"])]
    #[case("weir nbctl -- --if-exists lsp-del x", &["--if-exists", "lsp-del", "x"])]
    #[case("weir nbctl lsp-add s p -- set x y", &["lsp-add", "s", "p", "--", "set", "x", "y"])]
    #[case("weir nbctl", &[])]
    fn database_arguments_pass(#[case] line: &str, #[case] passed: &[&str]) {
        let Command::Nbctl(pass) = parse(line) else { panic!("not nbctl") };
        assert_eq!(pass.arguments, passed);
    }

    #[rstest]
    #[case("weir vsctl n1 show", "n1", &["show"])]
    #[case("weir vsctl n1 --columns=name list Bridge", "n1", &["--columns=name", "list", "Bridge"])]
    #[case("weir vsctl n1", "n1", &[])]
    fn switch_arguments_pass(#[case] line: &str, #[case] node: &str, #[case] passed: &[&str]) {
        let Command::Vsctl(pass) = parse(line) else { panic!("not vsctl") };
        assert_eq!((pass.node.as_str(), pass.arguments), (node, passed.iter().map(OsString::from).collect()));
    }

    #[test]
    fn a_node_is_needed() {
        Arguments::try_parse_from(["weir", "vsctl"]).unwrap_err();
    }
}
