//! What happens to a node's own things: the agent's socket and files (U20, U21),
//! OVN's agent through an upgrade of ours (U23), other people's firewall rules
//! (U62 of `pain.md`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::cluster::{Cluster, PATIENCE, SYSTEM};
use e2e::network::{Made, shell_pod};
use e2e::settings::{Changed, number, set_argument};
use e2e::workload::Namespace;
use lab::api;
use lab::progress::{Look, say, wait_for};
use lab::state::Node;
use serde_json::json;

const CONFLIST: &str = "/etc/cni/net.d/01-kube-ovn.conflist";
const PLUGIN: &str = "/opt/cni/bin/kube-ovn";

/// Starts a pod on a node and takes it away again: CNI serves there.
fn serves(cluster: &Cluster, name: &str, node: &Node) -> Result<()> {
    let namespace = Namespace::create(cluster, name)?;
    namespace.apply(&[namespace.pod("p", &node.name)])?;
    namespace.wait_ready(1, PATIENCE)?;
    namespace.delete_pods(true)
}

#[test]
fn u20_the_agents_socket_comes_back() -> Result<()> {
    let cluster = Cluster::open()?;
    let node = cluster.nodes()?[1].clone();
    let conf: serde_json::Value = serde_json::from_str(&cluster.sh(&node, &format!("cat {CONFLIST}"))?)?;
    let socket = api::text(&conf, "/plugins/0/server_socket").to_owned();
    let restarts = cluster.restarts()?;
    cluster.sh(&node, &format!("test -S {socket} && rm {socket}"))?;
    wait_for("the socket", Duration::from_secs(30), || {
        let there = cluster.sh(&node, &format!("test -S {socket} && echo yes || echo no"))?;
        Ok(if there.trim() == "yes" { Look::Ready(()) } else { Look::NotYet("still gone".into()) })
    })?;
    serves(&cluster, "socket", &node)?;
    ensure!(cluster.restarts()? == restarts, "a pod of ours was started again for it");
    Ok(())
}

#[test]
fn u21_half_written_files_are_made_whole() -> Result<()> {
    let cluster = Cluster::open()?;
    let node = cluster.nodes()?[1].clone();
    let sums = |cluster: &Cluster| cluster.sh(&node, &format!("cd / && sha256sum {CONFLIST} {PLUGIN}"));
    let whole = sums(&cluster)?;
    // The agent runs: its configuration comes back by itself.
    cluster.sh(&node, &format!("truncate -s 20 {CONFLIST}"))?;
    wait_for("a whole conflist", Duration::from_secs(30), || {
        let now = sums(&cluster)?;
        Ok(if now == whole { Look::Ready(()) } else { Look::NotYet(now) })
    })?;
    // A crash of the installer, as an older one that wrote in place left it: both in halves, a temporary file beside.
    let halve =
        format!("truncate -s 20 {CONFLIST}; head -c 1000 {PLUGIN} >{PLUGIN}.x && mv {PLUGIN}.x {PLUGIN}");
    let pods = cluster.system_pods("kube-ovn-cni")?;
    let pod = pods.iter().find(|pod| api::text(pod, "/spec/nodeName") == node.name).context("no agent")?;
    cluster.sh(&node, &halve)?;
    cluster.kubectl(&["-n", SYSTEM, "delete", "pod", api::text(pod, "/metadata/name")])?;
    cluster.wait_system("kube-ovn-cni", cluster.nodes()?.len())?;
    wait_for("whole files after a restart", Duration::from_secs(60), || {
        let now = sums(&cluster)?;
        Ok(if now == whole { Look::Ready(()) } else { Look::NotYet(now) })
    })?;
    serves(&cluster, "whole", &node)
}

#[test]
fn u23_an_upgrade_of_ours_leaves_ovn_and_the_switch_alone() -> Result<()> {
    let cluster = Cluster::open()?;
    let nodes = cluster.nodes()?;
    let processes = || -> Result<BTreeMap<String, u32>> {
        let mut found = BTreeMap::new();
        for node in &nodes {
            for name in ["ovn-controller", "ovs-vswitchd", "ovsdb-server"] {
                let process = cluster.process(node, name)?;
                found.insert(
                    format!("{name} of {}", node.name),
                    process.with_context(|| format!("no {name}"))?,
                );
            }
        }
        Ok(found)
    };
    let before = processes()?;
    let agents = |cluster: &Cluster| -> Result<BTreeSet<String>> {
        let pods = cluster.system_pods("kube-ovn-cni")?;
        Ok(pods.iter().map(|pod| api::text(pod, "/metadata/uid").to_owned()).collect())
    };
    let old = agents(&cluster)?;
    {
        // As an upgrade does: new pod templates of controller and agents, rolled out.
        let other = |arguments: &mut Vec<String>| set_argument(arguments, "v", "3");
        let _agents = Changed::arguments(&cluster, ("daemonset", "kube-ovn-cni"), other)?;
        let _controller = Changed::arguments(&cluster, ("deployment", "kube-ovn-controller"), other)?;
        ensure!(agents(&cluster)?.is_disjoint(&old), "the agents were not replaced");
        serves(&cluster, "upgraded", &nodes[1])?;
        ensure!(processes()? == before, "{:?} then {before:?}", processes()?);
    }
    ensure!(processes()? == before, "{:?} then {before:?}", processes()?);
    say(format!("agents and controller replaced twice; still {before:?}"));
    Ok(())
}

/// Chains of the kernel, by table.
const TABLES: [(&str, &[&str]); 4] = [
    ("raw", &["PREROUTING", "OUTPUT"]),
    ("mangle", &["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"]),
    ("nat", &["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"]),
    ("filter", &["INPUT", "FORWARD", "OUTPUT"]),
];

/// Rules of somebody else on a node, removed when dropped.
struct Foreign<'a> {
    cluster: &'a Cluster,
    node: Node,
    programs: Vec<String>,
}

impl<'a> Foreign<'a> {
    fn insert(cluster: &'a Cluster, node: &Node) -> Result<Self> {
        let mut programs = Vec::new();
        for kind in ["nft", "legacy"] {
            programs.extend(
                cluster.lab.plan.family.select(format!("iptables-{kind}"), format!("ip6tables-{kind}")),
            );
        }
        let foreign = Self { cluster, node: node.clone(), programs };
        for program in &foreign.programs {
            let source = if program.starts_with("ip6") { "2001:db8:f::7" } else { "203.0.113.7" };
            let mut script = String::new();
            for (table, chains) in TABLES {
                script += &format!("{program} -w -t {table} -N FOREIGN\n");
                for (number, chain) in chains.iter().enumerate() {
                    let rule =
                        |what: &str| format!("-s {source} -m comment --comment foreign-{what}-{number}");
                    script += &format!("{program} -w -t {table} -A FOREIGN {} -j RETURN\n", rule("own"));
                    // One before everybody, two behind, so that there is an order to keep.
                    script += &format!("{program} -w -t {table} -I {chain} 1 {} -j FOREIGN\n", rule("first"));
                    script += &format!("{program} -w -t {table} -A {chain} {} -j FOREIGN\n", rule("last"));
                    script += &format!("{program} -w -t {table} -A {chain} {}\n", rule("counts"));
                }
            }
            cluster
                .sh(node, &format!("set -e\n{script}"))
                .with_context(|| format!("foreign rules by {program}"))?;
        }
        Ok(foreign)
    }

    /// Everything that is neither ours nor the kubelet's and kube-proxy's, in order, a list a program.
    fn seen(&self) -> Result<BTreeMap<&str, Vec<String>>> {
        let mut all = BTreeMap::new();
        for program in &self.programs {
            let text = self.cluster.sh(&self.node, &format!("{program}-save"))?;
            let theirs = text.lines().filter(|line| !line.starts_with('#'));
            // Counters of chains count packets.
            let theirs = theirs.map(|line| line.split(" [").next().unwrap_or_default().to_owned());
            all.insert(
                program.as_str(),
                theirs.filter(|line| !ours(line) && !line.contains("KUBE-")).collect(),
            );
        }
        Ok(all)
    }
}

fn ours(line: &str) -> bool {
    line.contains("OVN-") || line.contains("ovn40") || line.contains("ovn60")
}

impl Drop for Foreign<'_> {
    fn drop(&mut self) {
        let mut script = String::new();
        for program in &self.programs {
            for (table, chains) in TABLES {
                for chain in chains {
                    script += &format!(
                        "{program} -w -t {table} -S {chain} | grep -- foreign- | sed 's/^-A/-D/' | \
                         while read -r rule; do {program} -w -t {table} $rule; done\n"
                    );
                }
                script +=
                    &format!("{program} -w -t {table} -F FOREIGN; {program} -w -t {table} -X FOREIGN\n");
            }
        }
        if let Err(error) = self.cluster.sh(&self.node, &format!("{script} true")) {
            eprintln!("foreign rules are left: {error:#}");
        }
    }
}

/// Our own rules, as they stand.
fn own_rules(cluster: &Cluster, node: &Node) -> Result<BTreeSet<String>> {
    let text = cluster.sh(node, "iptables-save; ip6tables-save")?;
    let lines = text.lines().map(|line| line.split(" [").next().unwrap_or_default());
    Ok(lines.filter(|line| ours(line)).map(str::to_owned).collect())
}

/// How often the agent changed routes or firewall, by its own metric.
fn host_changes(cluster: &Cluster, node: &Node) -> Result<String> {
    let url = format!(
        "http://{}/metrics",
        lab::plan::socket(cluster.lab.plan.primary(lab::plan::Net::Management, node.host()), 10665)
    );
    let text =
        cluster.sh(node, &format!("curl --silent --fail --globoff --noproxy '*' --max-time 5 '{url}'"))?;
    let lines: Vec<_> = text.lines().filter(|line| line.starts_with("weir_host_changes")).collect();
    ensure!(!lines.is_empty(), "no weir_host_changes among the metrics");
    Ok(lines.join("\n"))
}

/// `WEIR_STEADY_SECONDS`: how long nothing may be written; longer than the minute in which everything is verified.
#[test]
fn u62_foreign_rules_stay_in_their_places_and_nothing_is_written_in_steady_state() -> Result<()> {
    let steady = number("WEIR_STEADY_SECONDS", 75)?;
    let cluster = Cluster::open()?;
    let node = cluster.nodes()?[1].clone();
    let foreign = Foreign::insert(&cluster, &node)?;
    let before = foreign.seen()?;
    for (program, lines) in &before {
        let count = lines.iter().filter(|line| line.contains("foreign-")).count();
        let expected = 4 * TABLES.iter().map(|(_, chains)| chains.len()).sum::<usize>();
        ensure!(count == expected, "{program} shows {count} of {expected} foreign rules");
    }
    let rules = own_rules(&cluster, &node)?;
    ensure!(!rules.is_empty(), "no rules of ours on {}", node.name);

    // What makes the agent write: a start, subnets that come and go, rules of ours deleted by hand.
    let pods = cluster.system_pods("kube-ovn-cni")?;
    let pod = pods.iter().find(|pod| api::text(pod, "/spec/nodeName") == node.name).context("no agent")?;
    cluster.kubectl(&["-n", SYSTEM, "delete", "pod", api::text(pod, "/metadata/name")])?;
    cluster.wait_system("kube-ovn-cni", cluster.nodes()?.len())?;
    {
        let mut made = Made::new(&cluster);
        let namespace = Namespace::create(&cluster, "foreign")?;
        let cidr = cluster.lab.plan.family.join("10.145.0.0/24", "fd00:10:145::/64");
        made.subnet("foreign", json!({"cidrBlock": cidr, "natOutgoing": true}))?;
        let annotations = json!({"ovn.kubernetes.io/logical_switch": "foreign"});
        namespace.apply(&[shell_pod(&namespace, "p", &node.name, &annotations)])?;
        namespace.wait_ready(1, PATIENCE)?;
        namespace.delete_pods(true)?;
    }
    for (program, wanted) in
        [("iptables", cluster.lab.plan.family.v4()), ("ip6tables", cluster.lab.plan.family.v6())]
    {
        if wanted {
            cluster
                .sh(&node, &format!("{program} -w -t nat -F OVN-POSTROUTING; {program} -w -F OVN-FORWARD"))?;
        }
    }
    wait_for("our own rules as before", PATIENCE, || {
        let now = own_rules(&cluster, &node)?;
        let difference: Vec<_> = rules.symmetric_difference(&now).cloned().collect();
        Ok(if difference.is_empty() { Look::Ready(()) } else { Look::NotYet(difference.join("\n")) })
    })?;
    let after = foreign.seen()?;
    for (program, lines) in &before {
        ensure!(Some(lines) == after.get(program), "{program}:\n{lines:#?}\nthen\n{:#?}", after.get(program));
        if program.contains("legacy") {
            let text = cluster.sh(&node, &format!("{program}-save"))?;
            ensure!(!text.lines().any(ours), "rules of ours among {program}'s:\n{text}");
        }
    }

    // Steady state: the kernel tells of every change of a rule, the agent of its own.
    let changes = host_changes(&cluster, &node)?;
    let told = cluster.sh(&node, &format!("timeout {steady} xtables-monitor --event || true"))?;
    let written: Vec<_> = told.lines().filter(|line| ours(line) || line.contains("FOREIGN")).collect();
    ensure!(written.is_empty(), "written in {steady} s of steady state:\n{}", written.join("\n"));
    ensure!(host_changes(&cluster, &node)? == changes, "the agent changed something in steady state");
    ensure!(foreign.seen()? == before, "foreign rules changed in steady state");
    say(format!("{} rules of ours, {steady} s without a write", rules.len()));
    Ok(())
}
