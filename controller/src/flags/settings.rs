//! Validated settings: what flags and environment mean together.
//!
//! Flows in: [`Flags`] and the environment. Flows out: [`Settings`], or an error
//! that names the flag or variable and what to do. Nothing later in the process
//! reads flags or the environment again (but for the Kubernetes client, which
//! reads its own variables).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use super::addresses::{DualCidr, excludes, gateway};
use super::{Flags, database};
use crate::io::Config;
use crate::lease::Timing;

/// A setting that can't be used. The text names the flag or variable and the
/// remedy.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{name}: {problem}; {remedy}")]
pub struct SettingError {
    /// The flag (`--default-cidr`) or variable (`OVN_DB_IPS`).
    pub name: String,
    /// What is wrong.
    pub problem: String,
    /// What to do.
    pub remedy: String,
}

pub(super) fn wrong(name: &str, problem: impl Into<String>, remedy: impl Into<String>) -> SettingError {
    SettingError { name: name.to_owned(), problem: problem.into(), remedy: remedy.into() }
}

/// Everything the process is started with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// For the pipeline core.
    pub core: Config,
    /// Northbound database: `tcp:…`, `ssl:…` or `unix:…`, comma separated.
    pub nb_endpoints: String,
    /// Certificate files, when an endpoint is `ssl:`.
    pub nb_tls: Option<ovsdb::TlsFiles>,
    /// Southbound database, for chassis; `None` when none is named.
    pub sb_endpoints: Option<String>,
    /// Its certificate files.
    pub sb_tls: Option<ovsdb::TlsFiles>,
    /// How long connecting to the database may take.
    pub nb_connect_timeout: Duration,
    /// How long one request to the database may take.
    pub nb_request_timeout: Duration,
    /// Silence after which the database is probed.
    pub nb_probe_interval: Duration,
    /// Kubeconfig file, or the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of the Lease and of this pod.
    pub namespace: String,
    /// This pod's name (host name outside a pod).
    pub pod_name: String,
    /// This pod's UID, when the environment has it.
    pub pod_uid: Option<String>,
    /// Leadership timings.
    pub lease: Timing,
    /// Addresses of the HTTP server for probes and metrics.
    pub listen: Vec<SocketAddr>,
    /// Serve `/metrics`.
    pub metrics: bool,
    /// Serve it with TLS, and on which terms.
    pub secure: Option<Arc<rustls::ServerConfig>>,
    /// Unix socket of the diagnostics API.
    pub diagnostics_socket: PathBuf,
}

impl Settings {
    /// Validates flags and environment. `env` reads a variable; a variable that is
    /// set to nothing counts as not set.
    ///
    /// # Errors
    /// The first setting that can't be used.
    pub fn new(flags: &Flags, env: impl Fn(&str) -> Option<String>) -> Result<Self, SettingError> {
        let env = |name: &str| env(name).map(|v| v.trim().to_owned()).filter(|v| !v.is_empty());
        let truthy =
            |name: &str| env(name).is_some_and(|v| matches!(v.as_str(), "true" | "1" | "True" | "TRUE"));
        let pod_name =
            env("POD_NAME").or_else(|| env("HOSTNAME")).unwrap_or_else(|| "kube-ovn-controller".to_owned());
        let ssl = truthy("ENABLE_SSL");
        let nb_endpoints = database::nb_endpoints(flags.text("ovn-nb-addr"), &env, ssl)?;
        let sb_endpoints = database::sb_endpoints(flags.text("ovn-sb-addr"), &env, ssl)?;
        Ok(Self {
            core: core_config(flags)?,
            nb_tls: database::tls(&nb_endpoints, &env),
            nb_endpoints,
            sb_tls: sb_endpoints.as_deref().and_then(|endpoints| database::tls(endpoints, &env)),
            sb_endpoints,
            nb_connect_timeout: positive(flags, "ovsdb-con-timeout")?,
            nb_request_timeout: positive(flags, "ovn-timeout")?,
            nb_probe_interval: probe_interval(flags)?,
            kubeconfig: Some(flags.text("kubeconfig")).filter(|path| !path.is_empty()).map(PathBuf::from),
            namespace: env("POD_NAMESPACE").unwrap_or_else(|| "kube-system".to_owned()),
            pod_name: pod_name.clone(),
            pod_uid: env("POD_UID"),
            lease: timing(flags)?,
            listen: listen(flags, &env, truthy("ENABLE_BIND_LOCAL_IP"))?,
            metrics: flags.bool("enable-metrics"),
            secure: secured(flags, &pod_name)?,
            diagnostics_socket: env("WEIR_DIAGNOSTICS_SOCKET")
                .unwrap_or_else(|| flags.text("diagnostics-socket").to_owned())
                .into(),
        })
    }
}

fn core_config(flags: &Flags) -> Result<Config, SettingError> {
    let default = DualCidr::parse("--default-cidr", flags.text("default-cidr"))?;
    let join = DualCidr::parse("--node-switch-cidr", flags.text("node-switch-cidr"))?;
    let service = DualCidr::parse("--service-cluster-ip-range", flags.text("service-cluster-ip-range"))?;
    let named = [
        ("--default-cidr", &default),
        ("--node-switch-cidr", &join),
        ("--service-cluster-ip-range", &service),
    ];
    for (index, (name, cidr)) in named.iter().enumerate() {
        for (other_name, other) in named.iter().skip(index + 1) {
            if cidr.overlaps(other) {
                let remedy = "choose ranges that do not overlap (the service range is the API server's)";
                return Err(wrong(name, format!("{cidr} overlaps {other_name}={other}"), remedy));
            }
        }
    }
    if default.families() != join.families() {
        let problem = format!("{join} does not have the families of --default-cidr={default}");
        return Err(wrong("--node-switch-cidr", problem, "give both flags one CIDR per family in use"));
    }
    let network_type = flags.text("network-type");
    match network_type {
        "geneve" | "vxlan" | "stt" => {}
        "vlan" => {
            let remedy = "use geneve, or stay on Kube-OVN until Weir's release notes name underlay networks";
            return Err(wrong("--network-type", "underlay networks (`vlan`) are not served yet", remedy));
        }
        other => {
            return Err(wrong("--network-type", format!("`{other}` is unknown"), "use geneve, vxlan or stt"));
        }
    }
    let pod_nic_type = flags.text("pod-nic-type");
    if !matches!(pod_nic_type, "veth-pair" | "internal-port") {
        let problem = format!("`{pod_nic_type}` is not served");
        return Err(wrong("--pod-nic-type", problem, "use veth-pair or internal-port"));
    }
    for name in ["default-ls", "node-switch", "cluster-router"] {
        let value = flags.text(name);
        let valid =
            !value.is_empty() && value.chars().all(|c| matches!(c, 'a'..='z' | '0'..='9' | '-' | '.'));
        if !valid {
            let problem = format!("`{value}` is no object name");
            return Err(wrong(&format!("--{name}"), problem, "use lower-case letters, digits, `-` and `.`"));
        }
    }
    if flags.text("default-ls") == flags.text("node-switch") {
        let remedy = "give the join subnet a name of its own (Kube-OVN's is join)";
        return Err(wrong("--node-switch", "is the same as --default-ls", remedy));
    }
    excludes("--default-exclude-ips", flags.text("default-exclude-ips"))?;
    for part in flags.text("node-local-dns-ip").split(',').filter(|part| !part.is_empty()) {
        if part.trim().parse::<IpAddr>().is_err() {
            let problem = format!("`{part}` is no IP address");
            return Err(wrong("--node-local-dns-ip", problem, "give a comma list of addresses, or nothing"));
        }
    }
    for part in flags.text("skip-conntrack-dst-cidrs").split(',').filter(|part| !part.is_empty()) {
        if part.trim().parse::<ipnet::IpNet>().is_err() {
            let problem = format!("`{part}` is no CIDR");
            return Err(wrong(
                "--skip-conntrack-dst-cidrs",
                problem,
                "give a comma list of CIDRs, or nothing",
            ));
        }
    }
    let backoff = flags.number("northd-backoff-interval-ms");
    let northd_backoff_ms = u32::try_from(backoff).ok().filter(|ms| *ms <= 10_000).ok_or_else(|| {
        wrong(
            "--northd-backoff-interval-ms",
            format!("{backoff} ms is too long"),
            "use 0 to 10000, 100 is a good value",
        )
    })?;
    let vlan = flags.number("external-gateway-vlanid");
    let external_gateway_vlan = u16::try_from(vlan).ok().filter(|id| *id <= 4095).ok_or_else(|| {
        wrong("--external-gateway-vlanid", format!("{vlan} is no VLAN id"), "use 0 (untagged) to 4095")
    })?;
    let bfd = |name: &str, most: u32| {
        let value = flags.number(name);
        u32::try_from(value).ok().filter(|value| (1..=most).contains(value)).ok_or_else(|| {
            wrong(&format!("--{name}"), format!("{value} is out of range"), format!("use 1 to {most}"))
        })
    };
    let text = |name: &str| -> Arc<str> { flags.text(name).into() };
    Ok(Config {
        cluster_router: text("cluster-router"),
        node_switch: text("node-switch"),
        node_switch_cidr: join.to_string().into(),
        node_switch_gateway: gateway("--node-switch-gateway", flags.text("node-switch-gateway"), &join)?
            .into(),
        default_ls: text("default-ls"),
        default_cidr: default.to_string().into(),
        default_gateway: gateway("--default-gateway", flags.text("default-gateway"), &default)?.into(),
        default_exclude_ips: text("default-exclude-ips"),
        default_gateway_check: flags.bool("default-gateway-check"),
        external_gateway_switch: text("external-gateway-switch"),
        external_gateway_net: text("external-gateway-net"),
        external_gateway_vlan,
        bfd_min_tx: bfd("bfd-min-tx", 60_000)?,
        bfd_min_rx: bfd("bfd-min-rx", 60_000)?,
        bfd_detect_mult: bfd("detect-mult", 255)?,
        service_cluster_ip_range: service.to_string().into(),
        network_type: text("network-type"),
        pod_nic_type: text("pod-nic-type"),
        enable_lb: flags.bool("enable-lb"),
        enable_ecmp: flags.bool("enable-ecmp"),
        keep_vm_ip: flags.bool("keep-vm-ip"),
        live_migration: flags.bool("enable-live-migration-optimize"),
        port_security: flags.bool("enable-port-security"),
        ls_dnat_mod_dl_dst: flags.bool("ls-dnat-mod-dl-dst"),
        ls_ct_skip_dst_lport_ips: flags.bool("ls-ct-skip-dst-lport-ips"),
        node_local_dns_ip: text("node-local-dns-ip"),
        skip_conntrack_dst_cidrs: text("skip-conntrack-dst-cidrs"),
        northd_backoff_ms,
        seed: rand::random(),
        version: format!("v{}", env!("CARGO_PKG_VERSION")).into(),
    })
}

fn positive(flags: &Flags, name: &str) -> Result<Duration, SettingError> {
    let value = flags.duration(name);
    if value.is_zero() {
        return Err(wrong(&format!("--{name}"), "zero is no time limit", "give at least one second"));
    }
    Ok(value)
}

fn probe_interval(flags: &Flags) -> Result<Duration, SettingError> {
    let probe = positive(flags, "ovsdb-inactivity-timeout")?;
    let connect = positive(flags, "ovsdb-con-timeout")?;
    if probe <= connect {
        let problem = format!("{probe:?} does not exceed --ovsdb-con-timeout={connect:?}");
        return Err(wrong("--ovsdb-inactivity-timeout", problem, "raise it, Kube-OVN's values are 10 and 3"));
    }
    Ok(probe)
}

fn timing(flags: &Flags) -> Result<Timing, SettingError> {
    let lease = positive(flags, "leader-elect-lease-duration")?;
    let renew = positive(flags, "leader-elect-renew-deadline")?;
    let retry = positive(flags, "leader-elect-retry-period")?;
    if lease <= renew {
        let problem = format!("{renew:?} is not shorter than --leader-elect-lease-duration={lease:?}");
        let remedy = "a leader must stop before others take over: lower it, the defaults are 15s, 10s, 2s";
        return Err(wrong("--leader-elect-renew-deadline", problem, remedy));
    }
    if renew <= retry.mul_f64(1.2) {
        let problem =
            format!("{retry:?} leaves no second attempt before --leader-elect-renew-deadline={renew:?}");
        return Err(wrong("--leader-elect-retry-period", problem, "lower it, the defaults are 15s, 10s, 2s"));
    }
    if lease < Duration::from_secs(1) {
        let problem = format!("{lease:?} is below one second, which the Lease can't say");
        return Err(wrong("--leader-elect-lease-duration", problem, "give whole seconds"));
    }
    Ok(Timing { lease, renew, retry })
}

fn secured(flags: &Flags, pod_name: &str) -> Result<Option<Arc<rustls::ServerConfig>>, SettingError> {
    let suites: Vec<String> = flags.text("tls-cipher-suites").split(',').map(str::to_owned).collect();
    let terms = secure::Terms {
        min_version: flags.text("tls-min-version"),
        max_version: flags.text("tls-max-version"),
        cipher_suites: &suites,
    };
    let wanted = flags.bool("secure-serving").then(|| secure::server_config(terms, pod_name));
    wanted.transpose().map_err(|error| {
        let remedy = "correct the tls-… flags, or drop them for TLS 1.2 and 1.3 with the usual ciphers";
        wrong("--secure-serving", error.to_string(), remedy)
    })
}

fn listen(
    flags: &Flags,
    env: &impl Fn(&str) -> Option<String>,
    local: bool,
) -> Result<Vec<SocketAddr>, SettingError> {
    let port = u16::try_from(flags.number("pprof-port"))
        .map_err(|_| wrong("--pprof-port", "is no port", "give 0 to 65535; 10660 is Kube-OVN's"))?;
    let ips = env("POD_IPS").or_else(|| env("POD_IP"));
    match ips.filter(|_| local) {
        None => {
            // One socket for both families; IPv4 alone where the kernel has no IPv6.
            let any = if std::path::Path::new("/proc/net/if_inet6").exists() {
                IpAddr::V6(Ipv6Addr::UNSPECIFIED)
            } else {
                IpAddr::V4(Ipv4Addr::UNSPECIFIED)
            };
            Ok(vec![SocketAddr::new(any, port)])
        }
        Some(ips) => ips
            .split(',')
            .map(|ip| {
                ip.trim().parse().map(|ip| SocketAddr::new(ip, port)).map_err(|_| {
                    let remedy = "fill it from status.podIPs, or set ENABLE_BIND_LOCAL_IP=false";
                    wrong("POD_IPS", format!("`{ip}` is no IP address"), remedy)
                })
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn build(arguments: &[&str], env: &[(&str, &str)]) -> Result<Settings, SettingError> {
        let flags =
            Flags::parse_from(std::iter::once("kube-ovn-controller").chain(arguments.iter().copied()))
                .unwrap();
        Settings::new(&flags, |name| env.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
    }

    const NB: (&str, &str) = ("OVN_NB_ADDR", "tcp:127.0.0.1:6641");

    #[test]
    fn defaults_are_kube_ovns() {
        let settings = build(&[], &[NB]).unwrap();
        assert_eq!(&*settings.core.default_cidr, "10.16.0.0/16");
        assert_eq!(&*settings.core.node_switch, "join");
        assert_eq!(settings.namespace, "kube-system");
        assert_eq!(settings.listen[0].port(), 10660);
        assert_eq!(settings.lease.lease, Duration::from_secs(15));
        assert!(settings.metrics && settings.core.enable_lb);
    }

    #[rstest]
    #[case(&["--default-cidr=10.96.1.0/24"], "--default-cidr")]
    #[case(&["--node-switch-cidr=10.16.3.0/24"], "--default-cidr")]
    #[case(&["--service-cluster-ip-range=100.64.0.0/10"], "--node-switch-cidr")]
    #[case(&["--default-cidr=10.16.0.0/16,fd00:10:16::/112"], "--node-switch-cidr")]
    #[case(&["--default-cidr=nonsense"], "--default-cidr")]
    #[case(&["--default-cidr=10.1.0.0/16,10.2.0.0/16"], "--default-cidr")]
    #[case(&["--default-gateway=10.17.0.1"], "--default-gateway")]
    #[case(&["--default-gateway=10.16.0.1,10.16.0.2"], "--default-gateway")]
    #[case(&["--node-switch-gateway=x"], "--node-switch-gateway")]
    #[case(&["--default-exclude-ips=10.16.0.9..10.16.0.3"], "--default-exclude-ips")]
    #[case(&["--network-type=vlan"], "--network-type")]
    #[case(&["--network-type=gre"], "--network-type")]
    #[case(&["--pod-nic-type=dpdk-port"], "--pod-nic-type")]
    #[case(&["--default-ls=Bad_Name"], "--default-ls")]
    #[case(&["--default-ls=join"], "--node-switch")]
    #[case(&["--node-local-dns-ip=dns"], "--node-local-dns-ip")]
    #[case(&["--skip-conntrack-dst-cidrs=1.2.3.4/40"], "--skip-conntrack-dst-cidrs")]
    #[case(&["--ovsdb-inactivity-timeout=3"], "--ovsdb-inactivity-timeout")]
    #[case(&["--ovn-timeout=0"], "--ovn-timeout")]
    #[case(&["--leader-elect-renew-deadline=15s"], "--leader-elect-renew-deadline")]
    #[case(&["--leader-elect-retry-period=9s"], "--leader-elect-retry-period")]
    #[case(&["--pprof-port=99999"], "--pprof-port")]
    #[case(&["--northd-backoff-interval-ms=99999999999"], "--northd-backoff-interval-ms")]
    fn errors_name_the_flag_and_the_remedy(#[case] arguments: &[&str], #[case] name: &str) {
        let error = build(arguments, &[NB]).unwrap_err();
        assert_eq!(error.name, name, "{error}");
        assert!(!error.remedy.is_empty());
    }

    #[test]
    fn dual_stack_is_normalised() {
        let settings = build(
            &[
                "--default-cidr=FD00:10:16::5/112,10.16.0.0/16",
                "--node-switch-cidr=100.64.0.0/16,fd00:100:64::/112",
                "--service-cluster-ip-range=10.96.0.0/12,fd00:10:96::/112",
                "--default-gateway=fd00:10:16::1,10.16.0.1",
            ],
            &[NB],
        )
        .unwrap();
        assert_eq!(&*settings.core.default_cidr, "10.16.0.0/16,fd00:10:16::/112");
        assert_eq!(&*settings.core.default_gateway, "10.16.0.1,fd00:10:16::1");
    }

    #[rstest]
    #[case(&[], &[NB], None)]
    #[case(&["--ovn-sb-addr=tcp:192.0.2.9:6642"], &[NB], Some("tcp:192.0.2.9:6642"))]
    #[case(&[], &[NB, ("OVN_SB_ADDR", "tcp:127.0.0.1:6642")], Some("tcp:127.0.0.1:6642"))]
    #[case(&[], &[("OVN_DB_IPS", "1.1.1.1, fd00::1")], Some("tcp:1.1.1.1:6642,tcp:[fd00::1]:6642"))]
    #[case(&[], &[NB, ("OVN_SB_SERVICE_HOST", "10.96.0.9")], Some("tcp:10.96.0.9:6642"))]
    fn the_southbound_database_may_be_named(
        #[case] arguments: &[&str],
        #[case] env: &[(&str, &str)],
        #[case] expected: Option<&str>,
    ) {
        assert_eq!(build(arguments, env).unwrap().sb_endpoints.as_deref(), expected);
        let tls = build(&["--ovn-sb-addr=ssl:1.1.1.1:6642"], &[NB]).unwrap();
        assert!(tls.sb_tls.is_some() && tls.nb_tls.is_none());
    }

    #[rstest]
    #[case(&["--ovn-nb-addr=tcp:9.9.9.9:1"], &[NB], "tcp:9.9.9.9:1")]
    #[case(&[], &[NB, ("OVN_DB_IPS", "1.1.1.1")], "tcp:127.0.0.1:6641")]
    #[case(&[], &[("OVN_DB_IPS", "1.1.1.1, fd00::1")], "tcp:1.1.1.1:6641,tcp:[fd00::1]:6641")]
    #[case(&[], &[("OVN_NB_SERVICE_HOST", "10.96.0.9")], "tcp:10.96.0.9:6641")]
    #[case(&[], &[("OVN_NB_SERVICE_HOST", "fd00::9"), ("OVN_NB_SERVICE_PORT", "7")], "tcp:[fd00::9]:7")]
    fn the_database_is_found(
        #[case] arguments: &[&str],
        #[case] env: &[(&str, &str)],
        #[case] expected: &str,
    ) {
        assert_eq!(build(arguments, env).unwrap().nb_endpoints, expected);
    }

    #[test]
    fn a_missing_or_encrypted_database_is_an_error_with_a_remedy() {
        assert_eq!(build(&[], &[]).unwrap_err().name, "--ovn-nb-addr");
        assert_eq!(build(&[], &[NB, ("ENABLE_SSL", "true")]).unwrap_err().name, "ENABLE_SSL");
        assert!(build(&[], &[NB, ("ENABLE_SSL", "false")]).is_ok());
        assert_eq!(build(&[], &[("OVN_DB_IPS", "db.example")]).unwrap_err().name, "OVN_DB_IPS");
    }

    #[test]
    fn probes_listen_where_kube_ovn_does() {
        let env = [NB, ("ENABLE_BIND_LOCAL_IP", "true"), ("POD_IPS", "192.0.2.1,2001:db8::1")];
        let listen = build(&[], &env).unwrap().listen;
        assert_eq!(
            listen.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["192.0.2.1:10660", "[2001:db8::1]:10660"]
        );
        assert!(build(&[], &[NB, ("POD_IPS", "192.0.2.1")]).unwrap().listen[0].ip().is_unspecified());
    }
}
