//! The command line of `kube-ovn-daemon`, compatible with Kube-OVN's.
//!
//! In: arguments in Go's style (`--flag=value`, `--flag value`, `--bool`,
//! `--bool=false`) and the environment. Out: [`Flags`]. Every flag of Kube-OVN
//! is accepted (node contract §5.1), klog's too; one that has no effect yet
//! and is set to something else than its default is reported by
//! [`Flags::without_effect`].

mod values;

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Parser;

pub use values::{Addresses, NetworkType, Ports};
use values::{go_bool, parse_addresses, parse_ports};

/// All flags, with Kube-OVN's names and defaults.
#[derive(Clone, Debug, Parser)]
#[command(name = "kube-ovn-daemon", version, about = "Weir's node agent", args_override_self = true)]
pub struct Flags {
    /// Copy the conflist into place and exit.
    #[arg(long, value_parser = go_bool, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub install_cni_config: bool,
    /// Folder that the container runtime reads network configurations from.
    #[arg(long, default_value = "/etc/cni/net.d")]
    pub cni_conf_dir: PathBuf,
    /// The conflist to copy.
    #[arg(long, default_value = "/kube-ovn/01-kube-ovn.conflist")]
    pub cni_conf_file: PathBuf,
    /// Its name in the runtime's folder.
    #[arg(long, default_value = "01-kube-ovn.conflist")]
    pub cni_conf_name: String,
    /// Folder of the runtime's plugins (Weir's addition).
    #[arg(long, default_value = "/opt/cni/bin")]
    pub cni_bin_dir: PathBuf,
    /// Tunnel interface: a name, or regular expressions separated by commas.
    #[arg(long, default_value = "")]
    pub iface: String,
    /// Allow /32 and /128 addresses as tunnel source.
    #[arg(long, value_parser = go_bool, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub host_tunnel_src: bool,
    /// Bridge that carries tunnels with the userspace datapath.
    #[arg(long, default_value = "br-phy")]
    pub dpdk_tunnel_iface: String,
    /// MTU of pods in bytes; 0 derives it from the tunnel interface.
    #[arg(long, default_value_t = 0)]
    pub mtu: u32,
    /// Encapsulation.
    #[arg(long, value_enum, default_value = "geneve")]
    pub network_type: NetworkType,
    /// Checksums on tunnel packets.
    #[arg(long, value_parser = go_bool, default_value = "true", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub encap_checksum: bool,
    /// Mirror all pod traffic.
    #[arg(long, value_parser = go_bool, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub enable_mirror: bool,
    /// Interface that receives the mirrored traffic.
    #[arg(long, default_value = "mirror0")]
    pub mirror_iface: String,
    /// Socket that the CNI executable talks to.
    #[arg(long, default_value = "/run/openvswitch/kube-ovn-daemon.sock")]
    pub bind_socket: PathBuf,
    /// Socket of the local OVS database; empty means the usual one.
    #[arg(long, default_value = "")]
    pub ovs_socket: String,
    /// Kubeconfig; empty means the pod's service account.
    #[arg(long, default_value = "")]
    pub kubeconfig: String,
    /// Service CIDRs, used until the ServiceCIDR API answers.
    #[arg(long, default_value = "10.96.0.0/12")]
    pub service_cluster_ip_range: String,
    /// Name of the default VPC's router.
    #[arg(long, default_value = "ovn-cluster")]
    pub cluster_router: String,
    /// Name of the join switch.
    #[arg(long, default_value = "join")]
    pub node_switch: String,
    /// Name of the default provider network.
    #[arg(long, default_value = "provider")]
    pub default_provider_name: String,
    /// Its default interface.
    #[arg(long, default_value = "")]
    pub default_interface_name: String,
    /// Namespace of the external gateway's ConfigMap.
    #[arg(long, default_value = "kube-system")]
    pub external_gateway_config_ns: String,
    /// External switch.
    #[arg(long, default_value = "external")]
    pub external_gateway_switch: String,
    /// Profiling endpoints.
    #[arg(long, value_parser = go_bool, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub enable_pprof: bool,
    /// Port of metrics and health.
    #[arg(long, default_value_t = 10665)]
    pub pprof_port: u16,
    /// HTTPS with authentication for metrics.
    #[arg(long, value_parser = go_bool, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub secure_serving: bool,
    /// Lowest TLS version.
    #[arg(long, default_value = "")]
    pub tls_min_version: String,
    /// Highest TLS version.
    #[arg(long, default_value = "")]
    pub tls_max_version: String,
    /// TLS cipher suites.
    #[arg(long, value_delimiter = ',')]
    pub tls_cipher_suites: Vec<String>,
    /// Serve metrics.
    #[arg(long, value_parser = go_bool, default_value = "true", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub enable_metrics: bool,
    /// MAC learning on provider bridges.
    #[arg(long, value_parser = go_bool, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub mac_learning_fallback: bool,
    /// Look for address conflicts before ADD.
    #[arg(long, value_parser = go_bool, default_value = "true", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub enable_arp_detect_ip_conflict: bool,
    /// Make ports of pods ready before their ADD comes (Weir's addition).
    #[arg(long, value_parser = go_bool, default_value = "true", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub prepare_ports: bool,
    /// kubelet's folder.
    #[arg(long, default_value = "/var/lib/kubelet")]
    pub kubelet_dir: PathBuf,
    /// Echo listeners for the pinger.
    #[arg(long, value_parser = go_bool, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub enable_verbose_conn_check: bool,
    /// Their TCP port.
    #[arg(long, default_value_t = 8100)]
    pub tcp_conn_check_port: u16,
    /// Their UDP port.
    #[arg(long, default_value_t = 8101)]
    pub udp_conn_check_port: u16,
    /// Transparent proxy for kubelet probes in custom VPCs.
    #[arg(long, value_parser = go_bool, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub enable_tproxy: bool,
    /// Concurrent ovs-vsctl processes upstream.
    #[arg(long, default_value_t = 100)]
    pub ovs_vsctl_concurrency: u32,
    /// IPsec between nodes.
    #[arg(long, value_parser = go_bool, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub enable_ovn_ipsec: bool,
    /// IPsec certificates from cert-manager.
    #[arg(long, value_parser = go_bool, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub cert_manager_ipsec_cert: bool,
    /// cert-manager's issuer.
    #[arg(long, default_value = "kube-ovn")]
    pub cert_manager_issuer_name: String,
    /// Lifetime of IPsec certificates in seconds.
    #[arg(long, default_value_t = 63_072_000)]
    pub ovn_ipsec_cert_duration: u64,
    /// TX checksum offload off on the VXLAN device.
    #[arg(long, value_parser = go_bool, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub set_vxlan_tx_off: bool,
    /// Mode of log files, octal.
    #[arg(long, default_value = "640")]
    pub log_perm: String,
    /// Another plugin is the cluster's own network.
    #[arg(long, value_parser = go_bool, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub non_primary_cni_mode: bool,

    /// Addresses of the node-local DNS cache, separated by commas: pods' traffic to them stays untranslated.
    #[arg(long, value_parser = parse_addresses, default_value = "")]
    pub node_local_dns_ip: Addresses,
    /// TCP ports of nodes that pods may not reach, as `6641-6648,10665`; empty refuses none (Weir's addition).
    #[arg(long, value_parser = parse_ports, default_value = "6641-6648,7471,10660-10661,10665")]
    pub refused_tcp_ports: Ports,
    /// UDP ports of nodes that pods may not reach; empty refuses none (Weir's addition).
    #[arg(long, value_parser = parse_ports, default_value = "4789,6081")]
    pub refused_udp_ports: Ports,
    /// Clamp the segment size of TCP connections that leave by the tunnel's interface to what fits the pods' MTU
    /// (Weir's addition).
    #[arg(long, value_parser = go_bool, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub clamp_mss: bool,
    /// Look at the node, the switch and the flags, print what would keep pods from working, and exit: 1 if anything is
    /// fatal (Weir's addition).
    #[arg(long, value_parser = go_bool, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub check: bool,
    /// Take everything of ours off this node and exit: rules, sets, routes, ports, bridges, configuration. Interfaces
    /// get their addresses back; what others made stays (Weir's addition).
    #[arg(long, value_parser = go_bool, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub cleanup: bool,

    /// Socket of the JSON-RPC diagnostics (Weir's addition).
    #[arg(long, default_value = "/run/kube-ovn/daemon.sock")]
    pub diagnostics_socket: PathBuf,

    /// Where the namespace of the node's port in the external network has its name (Weir's addition).
    #[arg(long, default_value = "/run/netns")]
    pub netns_dir: PathBuf,

    /// What Kubernetes tells the pod about itself.
    #[command(flatten)]
    pub env: Env,
    /// klog's flags.
    #[command(flatten)]
    pub klog: Klog,
}

/// The environment.
#[derive(Clone, Debug, clap::Args)]
pub struct Env {
    /// Name of this node; the host name if unset.
    #[arg(long = "node-name", env = "NODE_NAME", hide = true)]
    pub node_name: Option<String>,
    /// The same, as older manifests have it.
    #[arg(long = "kube-node-name", env = "KUBE_NODE_NAME", hide = true)]
    pub kube_node_name: Option<String>,
    /// Name of the agent's own pod.
    #[arg(long = "pod-name", env = "POD_NAME", hide = true)]
    pub pod_name: Option<String>,
    /// Its namespace.
    #[arg(long = "pod-namespace", env = "POD_NAMESPACE", hide = true)]
    pub pod_namespace: Option<String>,
    /// Its address, the node's.
    #[arg(long = "pod-ip", env = "POD_IP", hide = true)]
    pub pod_ip: Option<String>,
    /// Its addresses.
    #[arg(long = "pod-ips", env = "POD_IPS", hide = true)]
    pub pod_ips: Option<String>,
    /// Serve metrics on `POD_IPS` only.
    #[arg(long = "enable-bind-local-ip", env = "ENABLE_BIND_LOCAL_IP", hide = true)]
    pub enable_bind_local_ip: Option<String>,
}

/// klog's flags: `v` sets the verbosity, `log_file` with `logtostderr=false` names a file. Otherwise logs go to standard
/// error, and the container runtime keeps them.
#[derive(Clone, Debug, clap::Args)]
pub struct Klog {
    /// Verbosity; 4 and more logs debug messages.
    #[arg(short = 'v', long = "v", default_value_t = 0)]
    pub verbosity: u8,
    /// To standard error alone (the default).
    #[arg(long = "logtostderr", hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub log_to_stderr: Option<String>,
    /// To standard error beside the file.
    #[arg(long = "alsologtostderr", hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub also_log_to_stderr: Option<String>,
    /// The file.
    #[arg(long = "log_file", alias = "log-file", hide = true)]
    pub log_file: Option<String>,
    /// Megabytes after which the file starts anew; 0 is no bound.
    #[arg(long = "log_file_max_size", alias = "log-file-max-size", hide = true)]
    pub log_file_max_size: Option<String>,
    /// Accepted for compatibility.
    #[arg(long = "log_dir", alias = "log-dir", hide = true)]
    pub log_dir: Option<String>,
    /// Accepted for compatibility.
    #[arg(long = "log_backtrace_at", alias = "log-backtrace-at", hide = true)]
    pub log_backtrace_at: Option<String>,
    /// Accepted for compatibility.
    #[arg(long = "stderrthreshold", hide = true)]
    pub stderr_threshold: Option<String>,
    /// Accepted for compatibility.
    #[arg(long = "vmodule", hide = true)]
    pub vmodule: Option<String>,
    /// Accepted for compatibility.
    #[arg(long = "add_dir_header", alias = "add-dir-header", hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub add_dir_header: Option<String>,
    /// Accepted for compatibility.
    #[arg(long = "skip_headers", alias = "skip-headers", hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub skip_headers: Option<String>,
    /// Accepted for compatibility.
    #[arg(long = "skip_log_headers", alias = "skip-log-headers", hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub skip_log_headers: Option<String>,
    /// Accepted for compatibility.
    #[arg(long = "one_output", alias = "one-output", hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub one_output: Option<String>,
}

impl Klog {
    fn is_set(flag: &Option<String>, default: bool) -> bool {
        flag.as_deref().map_or(default, |text| go_bool(text).unwrap_or(default))
    }

    /// `--logtostderr`: no files.
    pub fn only_stderr(&self) -> bool {
        Self::is_set(&self.log_to_stderr, true)
    }

    /// Whether lines go to standard error.
    pub fn to_stderr(&self) -> bool {
        self.only_stderr() || Self::is_set(&self.also_log_to_stderr, false)
    }
}

/// A flag that was set and does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ineffective {
    /// The flag, without dashes.
    pub flag: &'static str,
    /// What to do about it.
    pub remedy: &'static str,
}

impl Flags {
    /// The node's name: `NODE_NAME`, else `KUBE_NODE_NAME`, else the host name;
    /// in lower case, as kubelet registers it.
    pub fn node_name(&self) -> String {
        let given = |name: &Option<String>| name.clone().filter(|name| !name.is_empty());
        let name = given(&self.env.node_name)
            .or_else(|| given(&self.env.kube_node_name))
            .or_else(|| nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()));
        name.unwrap_or_default().to_lowercase()
    }

    /// The endpoint of the local OVS database, as `ovsdb` writes endpoints.
    pub fn ovs_endpoint(&self) -> String {
        match self.ovs_socket.as_str() {
            "" => "unix:/run/openvswitch/db.sock".to_owned(),
            path if path.starts_with('/') => format!("unix:{path}"),
            endpoint => endpoint.to_owned(),
        }
    }

    /// `POD_IP` as an address.
    pub fn pod_ip(&self) -> Option<IpAddr> {
        self.env.pod_ip.as_deref()?.parse().ok()
    }

    /// Flags set to something else than their default that have no effect in
    /// this version, each with the remedy.
    pub fn without_effect(&self) -> Vec<Ineffective> {
        let mut found = Vec::new();
        let mut check = |set: bool, flag, remedy| {
            if set {
                found.push(Ineffective { flag, remedy });
            }
        };
        check(
            !self.default_interface_name.is_empty() || self.default_provider_name != "provider",
            "default-interface-name, default-provider-name",
            "the controller reads them; the node agent never did",
        );
        check(
            self.enable_pprof,
            "enable-pprof",
            "use `perf` on the process; there are no profiling endpoints",
        );
        let terms = !self.tls_min_version.is_empty()
            || !self.tls_max_version.is_empty()
            || !self.tls_cipher_suites.is_empty();
        check(
            terms && !self.secure_serving,
            "tls-min-version, tls-max-version, tls-cipher-suites",
            "metrics are served without TLS; add --secure-serving",
        );
        check(
            self.kubelet_dir != *"/var/lib/kubelet",
            "kubelet-dir",
            "only vhost-user ports need it, and they are not made yet",
        );
        check(
            !self.enable_verbose_conn_check
                && (self.tcp_conn_check_port != 8100 || self.udp_conn_check_port != 8101),
            "tcp-conn-check-port, udp-conn-check-port",
            "nothing listens there; add --enable-verbose-conn-check",
        );
        check(
            self.enable_tproxy,
            "enable-tproxy",
            "kubelet's probes don't reach custom VPCs yet; use exec probes there",
        );
        check(
            self.ovs_vsctl_concurrency != 100,
            "ovs-vsctl-concurrency",
            "no ovs-vsctl is run, so there is nothing to limit; remove the flag",
        );
        check(
            self.enable_ovn_ipsec
                || self.cert_manager_ipsec_cert
                || self.cert_manager_issuer_name != "kube-ovn"
                || self.ovn_ipsec_cert_duration != 63_072_000,
            "enable-ovn-ipsec, cert-manager-ipsec-cert, cert-manager-issuer-name, ovn-ipsec-cert-duration",
            "tunnels are not encrypted yet; encrypt on the underlay (WireGuard, MACsec)",
        );
        check(
            self.log_perm != "640" && (self.klog.only_stderr() || self.klog.log_file.is_none()),
            "log-perm",
            "no log file is written, as logs go to standard error; give --logtostderr=false and --log_file",
        );
        found
    }
}

#[cfg(test)]
#[path = "flags_tests.rs"]
mod tests;
