//! `weir manifests`: everything that `kubectl apply` needs, out of this program.
//!
//! In: options. Out: YAML of the custom resource definitions and of the templates in
//! `deploy/`, with values filled in ([`template`]).

mod template;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::net::IpAddr;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use crds::net::{DualNets, parse_dual_cidrs, parse_dual_ips};

use template::Values;

const OVN: &str = include_str!("../../../deploy/ovn.yaml");
const KUBE_OVN: &str = include_str!("../../../deploy/kube-ovn.yaml");

/// A group of documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// Custom resource definitions
    Crds,
    /// Databases, ovn-northd, switches
    Ovn,
    /// Controller and node agent
    KubeOvn,
}

/// Who forwards packets on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Datapath {
    /// The kernel's openvswitch module
    System,
    /// Open vSwitch itself, for kernels without the module
    Netdev,
}

/// How packets travel between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tunnel {
    /// UDP 6081
    Geneve,
    /// UDP 4789
    Vxlan,
    /// TCP 7471
    Stt,
}

/// What to install, and where.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Label the node that runs the databases first:\n  \
        kubectl label node NODE kube-ovn/role=master\n  \
        weir manifests --ovn-db-ips ADDRESS-OF-NODE | kubectl apply --server-side -f -")]
pub(crate) struct Options {
    /// Address(es) of the node that runs ovn-central, the one labelled kube-ovn/role=master
    #[arg(
        long,
        value_name = "IP[,IP]",
        required_unless_present = "part",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) ovn_db_ips: String,
    /// Image of all pods
    #[arg(long, value_name = "NAME", default_value = "docker.io/weir/weir:v0.1.0")]
    pub(crate) image: String,
    /// Who forwards packets
    #[arg(long, value_enum, default_value = "system")]
    pub(crate) datapath: Datapath,
    /// Interface that carries tunnels [default: the one with the node's address]; with
    /// --datapath netdev the agent moves it into the bridge of --dpdk-tunnel-iface
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub(crate) iface: String,
    /// Bridge that carries tunnels with --datapath netdev
    #[arg(long, value_name = "NAME", default_value = "br-phy")]
    pub(crate) dpdk_tunnel_iface: String,
    /// Encapsulation between nodes
    #[arg(long, value_enum, default_value = "geneve")]
    pub(crate) tunnel_type: Tunnel,
    /// MTU of pods, 0 derives it
    #[arg(long, default_value_t = 0)]
    pub(crate) mtu: u32,
    /// CIDR(s) of the default subnet
    #[arg(long, value_name = "CIDR[,CIDR]", default_value = "10.16.0.0/16")]
    pub(crate) pod_cidr: String,
    /// Gateway(s) of the default subnet [default: first address]
    #[arg(long, value_name = "IP[,IP]", default_value = "", hide_default_value = true)]
    pub(crate) pod_gateway: String,
    /// CIDR(s) of the subnet that connects nodes
    #[arg(long, value_name = "CIDR[,CIDR]", default_value = "100.64.0.0/16")]
    pub(crate) join_cidr: String,
    /// CIDR(s) of Services, as the cluster has them
    #[arg(long, value_name = "CIDR[,CIDR]", default_value = "10.96.0.0/12")]
    pub(crate) svc_cidr: String,
    /// API server as our pods reach it, instead of its ClusterIP: it works without
    /// kube-proxy; the server's certificate must name HOST
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) api_server: Option<String>,
    /// Further argument of kube-ovn-controller, may be repeated
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub(crate) controller_arg: Vec<String>,
    /// Further argument of kube-ovn-daemon, may be repeated
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub(crate) daemon_arg: Vec<String>,
    /// Controllers; one leads, the others wait
    #[arg(long, default_value_t = 1)]
    pub(crate) replicas: u32,
    /// The kubelet's folder
    #[arg(long, value_name = "PATH", default_value = "/var/lib/kubelet")]
    pub(crate) kubelet_dir: String,
    /// Folder that the container runtime reads network configurations from
    #[arg(long, value_name = "PATH", default_value = "/etc/cni/net.d")]
    pub(crate) cni_conf_dir: String,
    /// Folder that the container runtime finds plugins in
    #[arg(long, value_name = "PATH", default_value = "/opt/cni/bin")]
    pub(crate) cni_bin_dir: String,
    /// Log filter of controller and agent
    #[arg(long, value_name = "FILTER", default_value = "info")]
    pub(crate) log_level: String,
    /// Print only these documents, may be repeated
    #[arg(long, value_enum)]
    pub(crate) part: Vec<Part>,
}

/// The manifests for these options.
///
/// # Errors
/// An option that can't be right, named with what it should be.
pub(crate) fn render(options: &Options) -> Result<String> {
    let wanted = |part| options.part.is_empty() || options.part.contains(&part);
    let mut out = String::new();
    if wanted(Part::Crds) {
        for (_, yaml) in crds::yaml::all()? {
            let _ = writeln!(out, "---\n{}", yaml.trim_end());
        }
    }
    if !wanted(Part::Ovn) && !wanted(Part::KubeOvn) {
        return Ok(out);
    }
    let values = values(options)?;
    for (part, text) in [(Part::Ovn, OVN), (Part::KubeOvn, KUBE_OVN)] {
        if wanted(part) {
            let _ = writeln!(out, "---\n{}", template::fill(text, &values)?.trim_end());
        }
    }
    Ok(out)
}

fn values(options: &Options) -> Result<Values> {
    let members = members(&options.ovn_db_ips)?;
    check_networks(options)?;
    ensure!(options.mtu == 0 || (576..=65_535).contains(&options.mtu), "--mtu {} is no MTU", options.mtu);
    for (option, path) in [
        ("--kubelet-dir", &options.kubelet_dir),
        ("--cni-conf-dir", &options.cni_conf_dir),
        ("--cni-bin-dir", &options.cni_bin_dir),
    ] {
        ensure!(path.starts_with('/'), "{option} {path}: give an absolute path");
    }
    let (host, port) = match &options.api_server {
        Some(server) => host_and_port(server)?,
        None => Default::default(),
    };
    let one = |text: &str| if text.is_empty() { Vec::new() } else { vec![text.to_owned()] };
    Ok(Values::from([
        ("IMAGE", one(&options.image)),
        ("OVN_DB_IPS", one(&join(members.iter().map(IpAddr::to_string)))),
        ("NB_ADDR", one(&join(members.iter().map(|ip| endpoint(ip, 6641))))),
        ("SB_ADDR", one(&join(members.iter().map(|ip| endpoint(ip, 6642))))),
        ("DATAPATH", one(word(options.datapath)?.as_str())),
        ("TUNNEL_TYPE", one(word(options.tunnel_type)?.as_str())),
        ("IFACE", one(&options.iface)),
        ("DPDK_TUNNEL_IFACE", one(&options.dpdk_tunnel_iface)),
        ("MTU", one(&options.mtu.to_string())),
        ("POD_CIDR", one(&options.pod_cidr)),
        ("POD_GATEWAY", one(&options.pod_gateway)),
        ("JOIN_CIDR", one(&options.join_cidr)),
        ("SVC_CIDR", one(&options.svc_cidr)),
        ("API_HOST", one(&host)),
        ("API_PORT", one(&port)),
        ("REPLICAS", one(&options.replicas.to_string())),
        ("CONTROLLER_ARGS", options.controller_arg.clone()),
        ("DAEMON_ARGS", options.daemon_arg.clone()),
        ("KUBELET_DIR", one(&options.kubelet_dir)),
        ("CNI_CONF_DIR", one(&options.cni_conf_dir)),
        ("CNI_BIN_DIR", one(&options.cni_bin_dir)),
        ("LOG", one(&options.log_level)),
    ]))
}

fn join(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(",")
}

fn endpoint(ip: &IpAddr, port: u16) -> String {
    match ip {
        IpAddr::V4(ip) => format!("tcp:{ip}:{port}"),
        IpAddr::V6(ip) => format!("tcp:[{ip}]:{port}"),
    }
}

/// An enum value as it is written on the command line.
fn word(value: impl ValueEnum) -> Result<String> {
    let value = value.to_possible_value().context("a value without a name")?;
    Ok(value.get_name().to_owned())
}

/// Addresses of the one member: this release runs a single one, and a second address
/// of another family is the same node's.
fn members(text: &str) -> Result<Vec<IpAddr>> {
    let ips = parse_dual_ips(text).with_context(|| {
        format!(
            "--ovn-db-ips {text}: give the address of the one node that runs ovn-central \
             (one per family; several members are not supported yet)"
        )
    })?;
    if ips.is_empty() {
        bail!("--ovn-db-ips is missing: give the address of the node labelled kube-ovn/role=master");
    }
    Ok(ips.iter().collect())
}

fn check_networks(options: &Options) -> Result<()> {
    let parse = |option: &str, text: &str| -> Result<DualNets> {
        let nets = parse_dual_cidrs(text).with_context(|| option.to_owned())?;
        ensure!(!nets.is_empty(), "{option} is empty");
        Ok(nets)
    };
    let pods = parse("--pod-cidr", &options.pod_cidr)?;
    let join = parse("--join-cidr", &options.join_cidr)?;
    let services = parse("--svc-cidr", &options.svc_cidr)?;
    for (a, b, what) in [
        (&pods, &join, "--pod-cidr and --join-cidr"),
        (&pods, &services, "--pod-cidr and --svc-cidr"),
        (&join, &services, "--join-cidr and --svc-cidr"),
    ] {
        ensure!(!a.overlaps(b), "{what} overlap: {a} and {b}");
    }
    let gateways = parse_dual_ips(&options.pod_gateway).context("--pod-gateway")?;
    for gateway in gateways.iter() {
        ensure!(pods.contains(&gateway), "--pod-gateway {gateway} is not in --pod-cidr {pods}");
    }
    if pods.protocol() != join.protocol() {
        bail!(
            "--pod-cidr is {}, --join-cidr is {}: give both the same families",
            pods.protocol(),
            join.protocol()
        );
    }
    Ok(())
}

/// `host:port`, `[v6]:port`; the host without brackets.
fn host_and_port(text: &str) -> Result<(String, String)> {
    let wrong = || format!("--api-server {text}: give HOST:PORT, an IPv6 address in brackets");
    let (host, port) = text.rsplit_once(':').with_context(wrong)?;
    port.parse::<u16>().with_context(wrong)?;
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').with_context(wrong)?,
        None if host.contains(':') => bail!(wrong()),
        None => host,
    };
    ensure!(!host.is_empty(), wrong());
    Ok((host.to_owned(), port.to_owned()))
}
