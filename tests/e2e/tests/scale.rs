//! Many at once and many after another, in a real cluster: U57 and U60 of
//! `pain.md`.
//!
//! `WEIR_BURST` (500 in `make soak`) and `WEIR_RECREATIONS` (1,000) say how many.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::cluster::{Cluster, PATIENCE};
use e2e::network::{Made, shell_pod};
use e2e::settings::number;
use e2e::workload::Namespace;
use lab::api;
use lab::node;
use lab::progress::{Look, say, wait_for};
use lab::state::Node;
use serde_json::json;

/// How many `OpenFlow` flows a node's `br-int` has, once all nodes are up to date.
fn flows(cluster: &Cluster, node: &Node) -> Result<usize> {
    cluster.settle_flows()?;
    let text = cluster.in_switch(node, &["ovs-ofctl", "dump-aggregate", "br-int"])?;
    let count = text.split("flow_count=").nth(1).and_then(|rest| rest.split_whitespace().next());
    count.and_then(|count| count.parse().ok()).with_context(|| format!("no flow_count in {text:?}"))
}

/// How many neighbours OVN has learnt.
fn mac_bindings(cluster: &Cluster) -> Result<usize> {
    let rows = cluster.in_central(&["ovn-sbctl", "--bare", "--columns=_uuid", "list", "MAC_Binding"])?;
    Ok(rows.lines().filter(|line| !line.trim().is_empty()).count())
}

#[test]
fn u60_flows_grow_by_the_same_amount_with_each_subnet() -> Result<()> {
    let cluster = Cluster::open()?;
    let node = cluster.nodes()?[1].clone();
    let mut made = Made::new(&cluster);
    let family = cluster.lab.plan.family;
    let cidr =
        |n: usize| family.join(&format!("10.{}.0.0/24", 150 + n), &format!("fd00:10:{}::/64", 150 + n));
    let mut counts = vec![flows(&cluster, &node)?];
    for n in 0..10 {
        // Walls are what multiplies: each lets the one before it in.
        let friends: Vec<String> =
            if n == 0 { Vec::new() } else { cidr(n - 1).split(',').map(str::to_owned).collect() };
        let spec =
            json!({"cidrBlock": cidr(n), "private": true, "allowSubnets": friends, "natOutgoing": true});
        made.subnet(&format!("many-{n}"), spec)?;
        counts.push(flows(&cluster, &node)?);
    }
    // The first has no friend and so fewer rules than the others.
    let steps: Vec<usize> = counts.windows(2).skip(1).map(|pair| pair[1].saturating_sub(pair[0])).collect();
    say(format!("flows on {}: {counts:?}", node.name));
    let (least, most) = (steps.iter().min().copied().unwrap_or(0), steps.iter().max().copied().unwrap_or(0));
    // Equal, but for a few that a neighbour learnt meanwhile may add.
    ensure!(most <= least + least / 5 + 10, "flows a subnet grow from {least} to {most}: {counts:?}");
    Ok(())
}

#[test]
fn u60_pods_made_anew_leave_what_their_number_explains_and_not_for_long() -> Result<()> {
    const AT_ONCE: usize = 20;
    // From here on there is the time to see the routers forget.
    const LONG: usize = 500;
    const MAC_BINDING_AGE: Duration = Duration::from_secs(300);
    let rounds = number("WEIR_RECREATIONS", 60)?.div_ceil(AT_ONCE);
    let cluster = Cluster::open()?;
    let families = cluster.lab.plan.family.select(4, 6).len();
    let nodes = cluster.nodes()?;
    let namespace = Namespace::create(&cluster, "again")?;
    let gateway = api::get(&cluster.lab, "/apis/kubeovn.io/v1/subnets/ovn-default")?;
    // Who says nothing is not learnt: each pod asks its gateways and the node.
    let asks: Vec<_> = api::text(&gateway, "/spec/gateway")
        .split(',')
        .map(|ip| {
            let program = if ip.contains(':') { "ping -6" } else { "ping" };
            format!("{program} -c 1 -W 1 {ip}")
        })
        .collect();
    let command = json!(["sh", "-c", format!("{}; exec sleep 1000000", asks.join("; "))]);
    let before = (flows(&cluster, &nodes[1])?, mac_bindings(&cluster)?);
    let begun = Instant::now();
    for round in 0..rounds {
        let pods: Vec<_> = (0..AT_ONCE)
            .map(|i| {
                let mut pod = shell_pod(&namespace, &format!("p-{i}"), &nodes[i % 2].name, &json!({}));
                pod["spec"]["containers"][0]["command"] = command.clone();
                pod
            })
            .collect();
        namespace.apply(&pods)?;
        namespace.wait_ready(AT_ONCE, Duration::from_secs(240))?;
        namespace.delete_pods(true)?;
        if round % 10 == 9 {
            say(format!("{} pods made anew, {} neighbours", (round + 1) * AT_ONCE, mac_bindings(&cluster)?));
        }
    }
    let after = (flows(&cluster, &nodes[1])?, mac_bindings(&cluster)?);
    let (more, learnt) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
    // A router learns who spoke to it (one row a pod that is gone, at most) and forgets it after 300 s.
    ensure!(learnt <= rounds * AT_ONCE * families + 4, "{before:?} then {after:?}: neighbours multiply");
    ensure!(more <= 5 * learnt + before.0 / 100 + 10, "{before:?} then {after:?}: flows multiply");
    say(format!(
        "{} pods made anew in {:.0} s; flows and neighbours {before:?} then {after:?}",
        rounds * AT_ONCE,
        begun.elapsed().as_secs_f64()
    ));
    if rounds * AT_ONCE < LONG {
        return Ok(());
    }
    wait_for("what was learnt to be forgotten", 2 * MAC_BINDING_AGE, || {
        let now = (flows(&cluster, &nodes[1])?, mac_bindings(&cluster)?);
        let well = now.0 <= before.0 + before.0 / 100 + 10 && now.1 <= before.1 + 4;
        Ok(if well { Look::Ready(()) } else { Look::NotYet(format!("{before:?} then {now:?}")) })
    })
}

/// What the agent's process has used.
struct Agent {
    peak_kb: u64,
    resident_kb: u64,
    /// Page faults of ended child processes: any program that was run left some.
    children: u64,
}

fn agent(cluster: &Cluster, on: &Node) -> Result<Agent> {
    let pid = cluster.process(on, "kube-ovn-daemon")?.with_context(|| format!("no agent on {}", on.name))?;
    let text = cluster.sh(on, &format!("cat /proc/{pid}/status /proc/{pid}/stat"))?;
    let number = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok())
            .with_context(|| format!("no {key}"))
    };
    // proc(5): the ninth field after the name in parentheses is cminflt.
    let children = text.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(8)?.parse().ok());
    Ok(Agent {
        peak_kb: number("VmHWM:")?,
        resident_kb: number("VmRSS:")?,
        children: children.context("no cminflt")?,
    })
}

/// The kubelet of a node sleeps until this is dropped: pods that are bound to the node are then a test's to plug.
struct Asleep<'a>(&'a Cluster, Node);

impl<'a> Asleep<'a> {
    fn begin(cluster: &'a Cluster, node: &Node) -> Result<Self> {
        cluster.sh(node, "pkill -STOP -x kubelet")?;
        Ok(Self(cluster, node.clone()))
    }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        let woken = self.0.sh(&self.1, "pkill -CONT -x kubelet");
        if let Err(error) = woken.and_then(|_| lab::life::wait_nodes_ready(&self.0.lab, PATIENCE)) {
            eprintln!("the kubelet of {} did not wake up: {error:#}", self.1.name);
        }
    }
}

/// Calls of the CNI executable, all at once; prints `STATUS MILLISECONDS` a call.
const CALLS: &str = r#"
cd /tmp/burst
for i in $(seq 0 $((COUNT - 1))); do
  (
    begun=$(date +%s%N)
    status=0
    CNI_COMMAND=$ACTION CNI_CONTAINERID=burst$i CNI_NETNS=/run/netns/burst-$i CNI_IFNAME=eth0 CNI_PATH=/opt/cni/bin \
      CNI_ARGS="IgnoreUnknown=1;K8S_POD_NAMESPACE=burst;K8S_POD_NAME=p-$i;K8S_POD_INFRA_CONTAINER_ID=burst$i" \
      /opt/cni/bin/kube-ovn <conf >out.$i 2>&1 || status=$?
    echo "$status $((($(date +%s%N) - begun) / 1000000))" >rc.$i
  ) &
done
wait
cat rc.*
"#;

fn calls(cluster: &Cluster, on: &Node, action: &str, count: usize) -> Result<Vec<(i32, u64)>> {
    let script = format!("COUNT={count} ACTION={action}\n{CALLS}");
    let text = node::exec(&cluster.lab, on, ["bash", "-c", &script])?;
    let calls = text.lines().filter_map(|line| {
        let (status, time) = line.split_once(' ')?;
        Some((status.parse().ok()?, time.parse().ok()?))
    });
    Ok(calls.collect())
}

/// Programs that the agent was seen to run, looked for all the time until `stop`.
fn children(cluster: &Cluster, on: &Node, stop: &std::sync::atomic::AtomicBool) -> Result<BTreeSet<String>> {
    let mut seen = BTreeSet::new();
    let pid = cluster.process(on, "kube-ovn-daemon")?.context("no agent")?;
    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
        let look = format!("for i in $(seq 50); do ps -o comm= --ppid {pid}; sleep 0.02; done; true");
        seen.extend(cluster.sh(on, &look)?.lines().map(|line| line.trim().to_owned()));
    }
    Ok(seen)
}

#[test]
fn u57_a_burst_of_pods_on_one_node_runs_no_program() -> Result<()> {
    let count = number("WEIR_BURST", 100)?;
    let cluster = Cluster::open()?;
    let node = cluster.nodes()?[1].clone();
    let namespace = Namespace::create(&cluster, "burst")?;
    let conf = cluster.sh(&node, "cat /etc/cni/net.d/01-kube-ovn.conflist")?;
    let conf: serde_json::Value = serde_json::from_str(&conf).context("the conflist")?;
    let mut plugin = conf.pointer("/plugins/0").cloned().context("no plugin in the conflist")?;
    plugin["cniVersion"] = conf["cniVersion"].clone();
    plugin["name"] = conf["name"].clone();
    let prepare = format!(
        "rm -rf /tmp/burst; mkdir /tmp/burst; cat >/tmp/burst/conf <<'END'\n{plugin}\nEND\n\
         for i in $(seq 0 {}); do ip netns add burst-$i; done",
        count - 1
    );
    cluster.sh(&node, &prepare)?;
    let asleep = Asleep::begin(&cluster, &node)?;
    let before = agent(&cluster, &node)?;
    let stop = std::sync::atomic::AtomicBool::new(false);
    let (added, took, seen) = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| children(&cluster, &node, &stop));
        let work = (|| -> Result<_> {
            let pods: Vec<_> = (0..count).map(|i| namespace.pod(&format!("p-{i}"), &node.name)).collect();
            let begun = Instant::now();
            pods.chunks(50).try_for_each(|some| namespace.apply(some))?;
            let added = calls(&cluster, &node, "ADD", count)?;
            Ok((added, begun.elapsed()))
        })();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let seen = watcher.join().map_err(|_| anyhow::anyhow!("the watcher of children ended"))?;
        let (added, took) = work?;
        anyhow::Ok((added, took, seen?))
    })?;
    let during = agent(&cluster, &node)?;
    let deleted = calls(&cluster, &node, "DEL", count)?;
    let left = cluster.sh(&node, "ip -o link | grep -c '_h@\\|wp' || true")?;
    namespace.delete_pods(true)?;
    let failures = cluster.sh(&node, "grep -l '\"code\"' /tmp/burst/out.* | head -3 | xargs -r cat; true")?;
    cluster.sh(
        &node,
        &format!("for i in $(seq 0 {}); do ip netns del burst-$i; done; rm -rf /tmp/burst", count - 1),
    )?;
    drop(asleep);
    let mut times: Vec<u64> = added.iter().map(|(_, time)| *time).collect();
    times.sort_unstable();
    let at =
        |percent: usize| times.get((times.len() * percent / 100).min(times.len().saturating_sub(1))).copied();
    say(format!(
        "{count} ADDs at once in {:.1} s with the pods' making: p50 {:?} ms, p99 {:?} ms; memory {} kB, at most {} kB; \
         interfaces left: {}; programs seen: {seen:?}, page faults {}",
        took.as_secs_f64(),
        at(50),
        at(99),
        before.resident_kb,
        during.peak_kb,
        left.trim(),
        during.children.saturating_sub(before.children),
    ));
    ensure!(added.len() == count && added.iter().all(|(status, _)| *status == 0), "ADDs failed: {failures}");
    ensure!(
        deleted.len() == count && deleted.iter().all(|(status, _)| *status == 0),
        "DELs failed: {failures}"
    );
    ensure!(during.peak_kb < before.resident_kb + 65_536, "{} kB at most", during.peak_kb);
    // The verification of the host's firewall, once a minute in a pause, is no pod's.
    let firewall = |name: &String| {
        ["iptables", "ip6tables", "ipset", "xtables"].iter().any(|tool| name.starts_with(tool))
    };
    let others: Vec<_> =
        seen.iter().filter(|name| !firewall(name) && !name.starts_with("kube-ovn-daemon")).collect();
    ensure!(others.is_empty(), "the agent ran {others:?}");
    // What is too short to be seen leaves page faults, some hundreds a program. A pass of the firewall runs six programs,
    // and a few passes fall into the burst, whatever its size; a program an ADD would be far more.
    let faults = during.children.saturating_sub(before.children);
    let allowed = 15_000 + 100 * u64::try_from(count)?;
    ensure!(
        faults <= allowed,
        "programs with {faults} page faults were run, {allowed} at most were expected"
    );
    Ok(())
}
