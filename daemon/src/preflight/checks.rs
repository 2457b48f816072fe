//! The checks themselves: pure functions of facts and flags.

use super::{Facts, Finding, Severity};
use crate::flags::{Flags, NetworkType};

/// Oldest supported Open vSwitch and OVN.
const OVS_MINIMUM: (u32, u32) = (2, 17);
const OVN_MINIMUM: (u32, u32) = (24, 3);
/// Smallest MTU that IPv6 works with.
const IPV6_MTU: u32 = 1280;
/// Leases and certificates suffer from more, in seconds.
const CLOCK_TOLERANCE: i64 = 10;

fn finding(
    check: &'static str,
    severity: Severity,
    problem: impl Into<String>,
    remedy: impl Into<String>,
) -> Finding {
    Finding { check, severity, problem: problem.into(), remedy: remedy.into() }
}

/// Everything that is not as it has to be, the worst first.
pub fn check(facts: &Facts, flags: &Flags) -> Vec<Finding> {
    let mut findings = contradictions(flags);
    findings.extend(switch(facts, flags));
    findings.extend(kernel(facts, flags));
    findings.extend(tunnel(facts, flags));
    findings.extend(configuration(facts, flags));
    if let Some(ahead) = facts.clock_ahead.filter(|ahead| ahead.abs() > CLOCK_TOLERANCE) {
        let side = if ahead > 0 { "ahead of" } else { "behind" };
        findings.push(finding(
            "clock",
            Severity::Warning,
            format!("this node's clock is {} s {side} the API server's", ahead.abs()),
            "let both follow the same time servers (chrony, systemd-timesyncd)",
        ));
    }
    if !facts.forbidden.is_empty() {
        findings.push(finding(
            "permissions",
            Severity::Warning,
            format!("the API server forbids the agent to see {}", facts.forbidden.join(", ")),
            crate::readiness::permit(&facts.forbidden),
        ));
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

/// Flags that can't be meant together.
pub fn contradictions(flags: &Flags) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut fatal = |problem: String, remedy: &str| {
        findings.push(finding("flags", Severity::Fatal, problem, remedy));
    };
    for taken in [crate::ovs::BR_INT, crate::node::OVN0] {
        if flags.mirror_iface == taken {
            fatal(
                format!("--mirror-iface={taken} is the name of a port that has another purpose"),
                "keep mirror0",
            );
        }
        if flags.dpdk_tunnel_iface == taken {
            fatal(
                format!("--dpdk-tunnel-iface={taken} is the name of a port that has another purpose"),
                "keep br-phy",
            );
        }
    }
    if flags.mirror_iface.is_empty() || flags.mirror_iface.len() > 15 {
        fatal(
            format!("--mirror-iface={:?} is no name for a network interface", flags.mirror_iface),
            "give a name of 1 to 15 characters",
        );
    }
    if flags.mtu > 0 && flags.mtu < 576 {
        fatal(format!("--mtu={} is less than IPv4 needs", flags.mtu), "set it to 0, which derives it");
    }
    if flags.cni_conf_name.contains('/') {
        fatal(
            format!("--cni-conf-name={:?} is a path", flags.cni_conf_name),
            "give the file's name here and its folder by --cni-conf-dir",
        );
    }
    if !flags.cni_conf_name.ends_with(".conflist") {
        fatal(
            format!("--cni-conf-name={:?} does not end in .conflist", flags.cni_conf_name),
            "runtimes read a list of plugins only from a file of that ending",
        );
    }
    for text in flags.iface.split(',').map(str::trim).filter(|text| !text.is_empty()) {
        if regex::Regex::new(&format!("^(?:{text})$")).is_err() {
            fatal(
                format!("--iface={}: {text:?} is no regular expression", flags.iface),
                "name an interface, or expressions separated by commas",
            );
        }
    }
    if flags.bind_socket == flags.diagnostics_socket {
        fatal(
            format!("--bind-socket and --diagnostics-socket are both {}", flags.bind_socket.display()),
            "two servers can't share a socket",
        );
    }
    let mut warn = |problem: String, remedy: &str| {
        findings.push(finding("flags", Severity::Warning, problem, remedy));
    };
    if flags.set_vxlan_tx_off && flags.network_type != NetworkType::Vxlan {
        warn("--set-vxlan-tx-off without --network-type=vxlan has no effect".into(), "remove it");
    }
    if flags.non_primary_cni_mode && flags.clamp_mss {
        warn(
            "--clamp-mss has no effect with --non-primary-cni-mode, which leaves the host's firewall alone"
                .into(),
            "remove it, or clamp with the primary network's means",
        );
    }
    findings
}

/// `2.17.3` and the like: major and minor.
fn version(text: &str) -> Option<(u32, u32)> {
    let number = text.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    let mut parts = number.split(['.', '-']);
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn switch(facts: &Facts, flags: &Flags) -> Vec<Finding> {
    let mut findings = Vec::new();
    let Some(switch) = &facts.switch else {
        return vec![finding(
            "ovs",
            Severity::Fatal,
            format!("the local OVS database does not answer at {}", flags.ovs_endpoint()),
            "is the ovs-ovn pod running on this node? set --ovs-socket if its socket is elsewhere",
        )];
    };
    let mut old = |check, program: &str, text: &str, minimum: (u32, u32)| {
        if version(text).is_some_and(|found| found < minimum) {
            let (major, minor) = minimum;
            findings.push(finding(
                check,
                Severity::Warning,
                format!(
                    "{program} {text} is older than {major}.{minor:02}, which this version is tested with"
                ),
                "upgrade it",
            ));
        }
    };
    if let Some(text) = &switch.version {
        old("ovs", "Open vSwitch", text, OVS_MINIMUM);
    }
    if let Some(text) = &facts.ovn_controller {
        old("ovn", "OVN", text, OVN_MINIMUM);
    }
    if !switch.lacks.is_empty() {
        findings.push(finding(
            "ovs",
            Severity::Fatal,
            format!("the OVS database lacks {}", switch.lacks.join(", ")),
            "upgrade Open vSwitch and convert its database (ovs-ctl does at its start)",
        ));
    }
    if facts.ovn_controller.is_none() {
        findings.push(finding(
            "ovn",
            Severity::Warning,
            "ovn-controller does not answer on its control socket",
            "is the ovs-ovn pod running on this node? without it no port is installed",
        ));
    }
    if let Some(types) = &switch.encap_types {
        let wanted = match flags.network_type {
            NetworkType::Geneve => Some("geneve"),
            NetworkType::Vxlan => Some("vxlan"),
            NetworkType::Stt => Some("stt"),
            NetworkType::Vlan => None,
        };
        if let Some(wanted) = wanted.filter(|wanted| !types.split(',').any(|kind| kind.trim() == *wanted)) {
            findings.push(finding(
                "ovn",
                Severity::Warning,
                format!("--network-type={wanted}, but this chassis offers ovn-encap-type {types}"),
                "set the same type for the agent and for the ovs-ovn pod (TUNNEL_TYPE)",
            ));
        }
    }
    findings
}

fn kernel(facts: &Facts, flags: &Flags) -> Vec<Finding> {
    let mut findings = Vec::new();
    let userspace = facts.switch.as_ref().is_some_and(|switch| switch.userspace);
    let has = |module: &str| facts.modules.get(module).copied().unwrap_or(true);
    if !userspace {
        for (module, severity, what) in [
            ("openvswitch", Severity::Fatal, "the kernel datapath"),
            ("geneve", Severity::Fatal, "tunnels"),
            ("vxlan", Severity::Fatal, "tunnels"),
        ] {
            let needed = match module {
                "geneve" => flags.network_type == NetworkType::Geneve,
                "vxlan" => flags.network_type == NetworkType::Vxlan,
                _ => true,
            };
            if needed && !has(module) {
                findings.push(finding(
                    "modules",
                    severity,
                    format!("the kernel has no module {module}, which {what} need"),
                    format!("install and load it (modprobe {module}), or use the userspace datapath"),
                ));
            }
        }
    }
    for (module, what) in [
        ("sch_htb", "ingress_rate"),
        ("sch_netem", "latency, limit, loss and jitter"),
        ("sch_tbf", "egress_rate, where policing has no effect"),
    ] {
        if !has(module) {
            findings.push(finding(
                "modules",
                Severity::Warning,
                format!("the kernel has no module {module}: annotations for {what} will have no effect"),
                format!("install it (modprobe {module}), or do without the annotations"),
            ));
        }
    }
    let rules = flags.non_primary_cni_mode;
    for module in ["ip_set_hash_net", "xt_set", "nf_conntrack"] {
        if !rules && !has(module) {
            findings.push(finding(
                "modules",
                Severity::Fatal,
                format!("the kernel has no module {module}, which the gateway's rules need"),
                format!("install and load it (modprobe {module})"),
            ));
        }
    }
    if !rules && !facts.missing_programs.is_empty() {
        findings.push(finding(
            "programs",
            Severity::Fatal,
            format!("missing in PATH: {}", facts.missing_programs.join(", ")),
            "they belong into the agent's image",
        ));
    }
    let set = |path: &str, value: &str| facts.sysctls.get(path).is_none_or(|found| found == value);
    let mut forwarding = vec![("net/ipv4/ip_forward", "1")];
    if facts.wants_ipv6 {
        forwarding.push(("net/ipv6/conf/all/forwarding", "1"));
    }
    for (path, value) in forwarding {
        if !set(path, value) {
            findings.push(finding(
                "sysctls",
                Severity::Warning,
                format!("{path} is off: pods reach nothing beyond this node"),
                format!("the agent sets it; if something turns it back, write {value} where it does"),
            ));
        }
    }
    if facts.wants_ipv6 && (!facts.ipv6 || !set("net/ipv6/conf/all/disable_ipv6", "0")) {
        findings.push(finding(
            "ipv6",
            Severity::Fatal,
            "the cluster's pods have IPv6 addresses, and IPv6 is off on this node",
            "boot without ipv6.disable=1 and set net.ipv6.conf.all.disable_ipv6=0",
        ));
    }
    findings
}

/// Runtimes take the first configuration of their folder by name.
fn configuration(facts: &Facts, flags: &Flags) -> Option<Finding> {
    let first = facts.configurations.first().filter(|first| **first < flags.cni_conf_name)?;
    (!flags.non_primary_cni_mode).then(|| {
        finding(
            "cni",
            Severity::Warning,
            format!(
                "{} comes before {}: the runtime takes the first, and new pods go to that network",
                flags.cni_conf_dir.join(first).display(),
                flags.cni_conf_name
            ),
            "remove that file once the other network is gone, or set --cni-conf-name to an earlier name",
        )
    })
}

fn tunnel(facts: &Facts, flags: &Flags) -> Vec<Finding> {
    let Some((link, link_mtu, address)) = &facts.tunnel else { return Vec::new() };
    let mut findings = Vec::new();
    let overhead = flags.network_type.overhead(address.is_ipv6());
    let fits = link_mtu.saturating_sub(overhead);
    let pods = if flags.mtu > 0 { flags.mtu } else { fits };
    if flags.mtu > fits {
        findings.push(finding(
            "mtu",
            Severity::Warning,
            format!(
                "--mtu={} plus {overhead} bytes of the tunnel is more than the {link_mtu} of {link}",
                flags.mtu
            ),
            format!(
                "set --mtu to {fits} at most (0 derives it), or raise the MTU of {link} and of its network"
            ),
        ));
    }
    if facts.wants_ipv6 && pods < IPV6_MTU {
        findings.push(finding(
            "mtu",
            Severity::Fatal,
            format!("pods get an MTU of {pods} from {link}, and IPv6 needs {IPV6_MTU}"),
            format!("raise the MTU of {link} and of its network to {} or more", IPV6_MTU + overhead),
        ));
    }
    findings
}
