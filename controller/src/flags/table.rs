//! The table of flags: one line each, with Kube-OVN's names and defaults
//! (contract §8.1) and, for a flag that changes nothing yet, what to do instead.
//!
//! Flows in: nothing. Flows out: the table that [`super::parse`] turns into a
//! command line, a warning list and `--help`.

/// How a value is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// `true`, `false` and what else Go's `ParseBool` reads; bare `--flag` is `true`.
    Bool,
    /// Any text.
    Text,
    /// A whole number, zero or more.
    Number,
    /// A Go duration (`1m30s`); a bare number counts in this many milliseconds.
    Duration(u64),
}

/// What a flag does in this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It works.
    Active,
    /// It is accepted and changes nothing: values (besides the default) for which
    /// that is no loss, and the remedy for all others.
    None(&'static [&'static str], &'static str),
    /// A flag of the log library klog, tolerated: Weir logs to standard error.
    Klog,
}

/// One flag.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// Name without dashes.
    pub name: &'static str,
    /// Kube-OVN's default (Weir's own where `docs/compatibility.md` says so).
    pub default: &'static str,
    /// How its value is read.
    pub ty: Type,
    /// Heading in `--help`.
    pub group: &'static str,
    /// What it does.
    pub effect: Effect,
    /// Text of `--help`.
    pub help: &'static str,
}

use Effect::{Active, Klog, None as Inert};
use Type::{Bool, Duration, Number, Text};

const fn f(
    group: &'static str,
    name: &'static str,
    ty: Type,
    default: &'static str,
    effect: Effect,
    help: &'static str,
) -> Flag {
    Flag { name, default, ty, group, effect, help }
}

const SECONDS: Type = Duration(1_000);
const DB: &str = "Databases and API server";
const TOPO: &str = "Topology";
const LB: &str = "Load-balancer names";
const FEAT: &str = "Features";
const EXT: &str = "External gateway";
const TIME: &str = "Timing";
const IMG: &str = "Images";
const DIAG: &str = "Diagnostics";
const LEAD: &str = "Leadership";
const LOG: &str = "Logs";

const UNDERLAY: &str = "underlay networks are not served yet; keep such subnets on Kube-OVN until Weir's release notes name them";
const LB_NAME: &str = "load balancers are not served by OVN yet; run kube-proxy beside Weir";
const NAT: &str = "EIPs and SNAT of pods, OVN NAT and the external gateway's ConfigMap are not served yet; use enableExternal of a Vpc for its external network";
const OWN_LIFE: &str =
    "not needed: objects are compared all the time, not at intervals; leave it at its default";
const RETRY: &str =
    "not needed: every retry has its own bounded back-off in the pipeline; leave it at its default";
const POLICY: &str =
    "policies of this kind are not enforced yet; do not rely on them until Weir's release notes name them";
const KLOG: &str = "tolerated; logs go to standard error, see `kubectl logs`";

/// Every flag, grouped as in `--help`.
#[rustfmt::skip]
pub const FLAGS: &[Flag] = &[
    f(DB, "ovn-nb-addr", Text, "", Active,
      "Northbound database, `tcp:HOST:6641[,tcp:…]`. Default: from env OVN_NB_ADDR, OVN_DB_IPS, or the Service ovn-nb"),
    f(DB, "ovn-sb-addr", Text, "", Active,
      "Southbound database, whose chassis are tagged with their nodes. Default: from env OVN_SB_ADDR, OVN_DB_IPS, or the Service ovn-sb"),
    f(DB, "ovn-timeout", SECONDS, "60", Active, "How long one database request may take, seconds"),
    f(DB, "ovsdb-con-timeout", SECONDS, "3", Active, "How long connecting to the database may take, seconds"),
    f(DB, "ovsdb-con-maxretry", Number, "60", Inert(&[], "not needed: connecting is tried for ever and /readyz says so meanwhile; drop the flag"),
      "Attempts to connect before giving up"),
    f(DB, "ovsdb-inactivity-timeout", SECONDS, "10", Active,
      "Silence of the database after which the connection is probed and then replaced, seconds; must exceed ovsdb-con-timeout"),
    f(DB, "kubeconfig", Text, "", Active,
      "Kubeconfig file. Default: the pod's service account; KUBERNETES_SERVICE_HOST and _PORT override its address"),
    f(TOPO, "default-ls", Text, "ovn-default", Active, "Name of the default subnet"),
    f(TOPO, "default-cidr", Text, "10.16.0.0/16", Active,
      "CIDR of the default subnet, `v4`, `v6` or `v4,v6`"),
    f(TOPO, "default-gateway", Text, "", Active, "Gateway of the default subnet. Default: its first address"),
    f(TOPO, "default-gateway-check", Bool, "true", Active,
      "Whether nodes check that the default subnet's gateway answers before a pod starts"),
    f(TOPO, "default-logical-gateway", Bool, "false", Inert(&[], UNDERLAY),
      "Logical gateway for the default subnet of an underlay network"),
    f(TOPO, "default-exclude-ips", Text, "", Active,
      "Addresses of the default subnet that no pod gets, `a,b..c`"),
    f(TOPO, "default-u2o-interconnection", Bool, "false", Inert(&[], UNDERLAY),
      "Connect the default underlay subnet with overlay subnets"),
    f(TOPO, "cluster-router", Text, "ovn-cluster", Active, "Name of the default VPC and its router"),
    f(TOPO, "node-switch", Text, "join", Active, "Name of the subnet that joins nodes to the overlay"),
    f(TOPO, "node-switch-cidr", Text, "100.64.0.0/16", Active,
      "CIDR of the join subnet, same families as default-cidr"),
    f(TOPO, "node-switch-gateway", Text, "", Active,
      "Gateway of the join subnet. Default: its first address"),
    f(TOPO, "service-cluster-ip-range", Text, "10.96.0.0/12", Active,
      "The cluster's service range, as given to the API server"),
    f(TOPO, "network-type", Text, "geneve", Active,
      "Tunnel type: geneve, vxlan or stt; `vlan` is not served yet"),
    f(TOPO, "default-provider-name", Text, "provider", Inert(&[], UNDERLAY),
      "Name of the default provider network"),
    f(TOPO, "default-interface-name", Text, "", Inert(&[], UNDERLAY),
      "Host interface of the default provider network"),
    f(TOPO, "default-exchange-link-name", Bool, "false", Inert(&[], UNDERLAY),
      "Exchange the names of the host interface and its bridge"),
    f(TOPO, "default-vlan-name", Text, "ovn-vlan", Inert(&[], UNDERLAY), "Name of the default Vlan"),
    f(TOPO, "default-vlan-id", Number, "1", Inert(&[], UNDERLAY), "Id of the default Vlan"),
    f(TOPO, "pod-nic-type", Text, "veth-pair", Active, "Kind of pod interface"),
    f(TOPO, "non-primary-cni-mode", Bool, "false", Inert(&[], "Weir is the cluster's primary network only; do not install it beside another one"),
      "Serve attachment networks only"),
    f(LB, "cluster-tcp-loadbalancer", Text, "cluster-tcp-loadbalancer", Inert(&[], LB_NAME),
      "Name of the TCP load balancer"),
    f(LB, "cluster-udp-loadbalancer", Text, "cluster-udp-loadbalancer", Inert(&[], LB_NAME),
      "Name of the UDP load balancer"),
    f(LB, "cluster-sctp-loadbalancer", Text, "cluster-sctp-loadbalancer", Inert(&[], LB_NAME),
      "Name of the SCTP load balancer"),
    f(LB, "cluster-tcp-session-loadbalancer", Text, "cluster-tcp-session-loadbalancer", Inert(&[], LB_NAME),
      "Name of the TCP load balancer with session affinity"),
    f(LB, "cluster-udp-session-loadbalancer", Text, "cluster-udp-session-loadbalancer", Inert(&[], LB_NAME),
      "Name of the UDP load balancer with session affinity"),
    f(LB, "cluster-sctp-session-loadbalancer", Text, "cluster-sctp-session-loadbalancer", Inert(&[], LB_NAME),
      "Name of the SCTP load balancer with session affinity"),
    f(FEAT, "enable-lb", Bool, "true", Active,
      "Write enableLb into the default subnet (services themselves are kube-proxy's in this version)"),
    f(FEAT, "enable-np", Bool, "true", Inert(&["false"], POLICY), "NetworkPolicy"),
    f(FEAT, "np-enforcement", Text, "standard", Inert(&[], POLICY),
      "standard or lax enforcement of NetworkPolicy"),
    f(FEAT, "enable-eip-snat", Bool, "true", Inert(&["false"], NAT), "EIP and SNAT annotations of pods"),
    f(FEAT, "enable-external-vpc", Bool, "false", Inert(&[], "routers made by others are left alone; import them as Vpc objects when that lands"),
      "Mirror routers made by others as Vpc objects"),
    f(FEAT, "enable-ecmp", Bool, "false", Active, "ECMP between gateway nodes for centralized subnets"),
    f(FEAT, "keep-vm-ip", Bool, "true", Active,
      "Keep the addresses of KubeVirt machines"),
    f(FEAT, "enable-lb-svc", Bool, "false", Inert(&[], "Services of type LoadBalancer need another provider yet, for instance MetalLB"),
      "LoadBalancer services through a pod"),
    f(FEAT, "enable-ovn-lb-prefer-local", Bool, "false", Inert(&[], LB_NAME),
      "Prefer backends on the client's node"),
    f(FEAT, "enable-metrics", Bool, "true", Active, "Serve /metrics"),
    f(FEAT, "enable-anp", Bool, "false", Inert(&[], POLICY), "AdminNetworkPolicy and its relatives"),
    f(FEAT, "enable-dns-name-resolver", Bool, "false", Inert(&[], POLICY), "Domain names in policies"),
    f(FEAT, "enable-ovn-ipsec", Bool, "false", Inert(&[], "tunnels are not encrypted yet; use an encrypted underlay where you need it"),
      "Encrypt tunnels with IPsec"),
    f(FEAT, "cert-manager-ipsec-cert", Bool, "false", Inert(&[], "tunnels are not encrypted yet; drop the flag"),
      "IPsec certificates from cert-manager"),
    f(FEAT, "enable-live-migration-optimize", Bool, "true", Active,
      "Short interruptions in KubeVirt live migration"),
    f(FEAT, "enable-port-security", Bool, "false", Active,
      "Weir: ports accept only packets from their own addresses, unless a pod's annotation port_security is `false` (Kube-OVN: only pods with `true`)"),
    f(FEAT, "ls-dnat-mod-dl-dst", Bool, "true", Active, "NB_Global option ls_dnat_mod_dl_dst"),
    f(FEAT, "ls-ct-skip-dst-lport-ips", Bool, "true", Active, "NB_Global option ls_ct_skip_dst_lport_ips"),
    f(FEAT, "node-local-dns-ip", Text, "", Active, "Addresses of the node-local DNS cache, comma list"),
    f(FEAT, "skip-conntrack-dst-cidrs", Text, "", Active,
      "Destinations that bypass connection tracking, comma list of CIDRs"),
    f(EXT, "external-gateway-config-ns", Text, "kube-system", Inert(&[], NAT),
      "Namespace of the external gateway's ConfigMap"),
    f(EXT, "external-gateway-switch", Text, "external", Active, "External subnet of Vpcs with enableExternal, and of OvnEips that name none"),
    f(EXT, "external-gateway-net", Text, "external", Active,
      "Physical network of that subnet, if it names no Vlan"),
    f(EXT, "external-gateway-vlanid", Number, "0", Active, "VLAN of that network, 0 for none"),
    f(TIME, "worker-num", Number, "3", Inert(&[], "not needed: one pipeline batches all work; drop the flag"),
      "Workers per queue"),
    f(TIME, "gc-interval", SECONDS, "360", Inert(&[], OWN_LIFE), "Seconds between garbage collections"),
    f(TIME, "inspect-interval", SECONDS, "20", Inert(&[], OWN_LIFE), "Seconds between inspections of pods"),
    f(TIME, "nodepg-probe-time", Duration(60_000), "1", Inert(&[], OWN_LIFE),
      "Minutes between refreshes of node port groups"),
    f(TIME, "bfd-min-tx", Number, "100", Active, "Interval at which BFD packets are sent to external gateways of nodes, milliseconds"),
    f(TIME, "bfd-min-rx", Number, "100", Active, "Shortest interval at which BFD packets of external gateways are accepted, milliseconds"),
    f(TIME, "detect-mult", Number, "3", Active, "So many missing BFD packets mean that an external gateway is down"),
    f(TIME, "cust-crd-retry-min-delay", SECONDS, "1", Inert(&[], RETRY), "Shortest retry delay, seconds"),
    f(TIME, "cust-crd-retry-max-delay", SECONDS, "20", Inert(&[], RETRY), "Longest retry delay, seconds"),
    f(TIME, "northd-backoff-interval-ms", Number, "100", Active,
      "Weir: how long northd gathers changes before it computes, milliseconds; 0 switches it off"),
    f(IMG, "image", Text, "", Inert(&[], "no pods are generated yet, so their image does not matter; drop the flag"),
      "Image of generated pods"),
    f(IMG, "frr-image", Text, "", Inert(&[], "no pods are generated yet, so their image does not matter; drop the flag"),
      "Image of generated FRR pods"),
    f(DIAG, "enable-pprof", Bool, "false", Inert(&[], "there is no pprof endpoint; use `weir status` on the diagnostics socket, or perf"),
      "Go's profiler"),
    f(DIAG, "pprof-port", Number, "10660", Active, "Port of /metrics, /healthz, /livez and /readyz"),
    f(DIAG, "secure-serving", Bool, "false", Active,
      "Serve metrics with TLS, to those whom the API server lets read them"),
    f(DIAG, "tls-min-version", Text, "", Active, "Lowest TLS version of metrics, TLS12 or TLS13"),
    f(DIAG, "tls-max-version", Text, "", Active, "Highest TLS version of metrics"),
    f(DIAG, "tls-cipher-suites", Text, "", Active, "TLS ciphers of metrics, comma list; they restrict TLS12"),
    f(DIAG, "diagnostics-socket", Text, "/run/kube-ovn/controller.sock", Active,
      "Weir: unix socket of the JSON-RPC diagnostics API (env WEIR_DIAGNOSTICS_SOCKET)"),
    f(LEAD, "leader-elect-lease-duration", SECONDS, "15s", Active,
      "How long others wait before they take over from a silent leader (Kube-OVN: 30s)"),
    f(LEAD, "leader-elect-renew-deadline", SECONDS, "10s", Active,
      "How long a leader tries to renew before it stops (Kube-OVN: 20s)"),
    f(LEAD, "leader-elect-retry-period", SECONDS, "2s", Active,
      "Time between attempts to get or renew the Lease (Kube-OVN: 6s)"),
    f(LOG, "v", Number, "0", Active,
      "Verbosity: 0-3 info, 4-5 debug, 6 and more trace (env WEIR_LOG takes a filter such as `info,controller::watch=debug`)"),
    f(LOG, "log-format", Text, "text", Active, "Weir: text or json (env WEIR_LOG_FORMAT)"),
    f(LOG, "log-perm", Text, "640", Inert(&[], KLOG), "Permissions of the log file"),
    f(LOG, "logtostderr", Bool, "true", Klog, "klog: log to standard error"),
    f(LOG, "alsologtostderr", Bool, "false", Klog, "klog: log to standard error too"),
    f(LOG, "log_file", Text, "", Klog, "klog: log file"),
    f(LOG, "log_file_max_size", Number, "1800", Klog, "klog: size of the log file, MB"),
    f(LOG, "log_dir", Text, "", Klog, "klog: log folder"),
    f(LOG, "log_backtrace_at", Text, "", Klog, "klog: backtrace at file:line"),
    f(LOG, "stderrthreshold", Text, "2", Klog, "klog: severity that goes to standard error"),
    f(LOG, "alsologtostderrthreshold", Text, "0", Klog, "klog: severity that also goes to standard error"),
    f(LOG, "legacy_stderr_threshold_behavior", Bool, "true", Klog, "klog: meaning of stderrthreshold"),
    f(LOG, "one_output", Bool, "false", Klog, "klog: write each line once"),
    f(LOG, "skip_headers", Bool, "false", Klog, "klog: no header on lines"),
    f(LOG, "skip_log_headers", Bool, "false", Klog, "klog: no header on files"),
    f(LOG, "add_dir_header", Bool, "false", Klog, "klog: folder in the header"),
    f(LOG, "vmodule", Text, "", Klog, "klog: verbosity per module; use env WEIR_LOG"),
];

/// The flag of that name.
pub fn find(name: &str) -> Option<&'static Flag> {
    FLAGS.iter().find(|flag| flag.name == name)
}
