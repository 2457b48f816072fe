//! U19: what is away for a while is not noticed by pods that run.
//!
//! `WEIR_OUTAGE_SECONDS` says how long the databases are away (`make soak`: ten minutes).

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::cluster::{Cluster, PATIENCE, SYSTEM};
use e2e::drops::Drops;
use e2e::flow::{Flow, Loss};
use e2e::network::{reaches, shell_pod, view, views};
use e2e::settings::number;
use e2e::workload::Namespace;
use lab::api;
use lab::checks::probe;
use lab::progress::{Look, say, wait_for};
use serde_json::json;

/// How long after the switch runs again the last packet may be lost: `ovn-controller` has to connect and to fill in the
/// flows. Generous, since the machine is shared; what is seen is printed.
const FLOW_RESTORE: Duration = Duration::from_secs(10);

/// Packets that a flood may miss: one for each of the two pods that are plugged under it. The userspace datapath loses one in
/// about a third of the changes of its ports (31 of 22,500 pings while 50 ports came and went, none without), whoever makes
/// them.
const PLUGGED: usize = 2;

/// The databases are away until this is dropped.
struct Away<'a>(&'a Cluster);

impl<'a> Away<'a> {
    fn begin(cluster: &'a Cluster) -> Result<Self> {
        let away = Self(cluster);
        cluster.kubectl(&["-n", SYSTEM, "scale", "deployment/ovn-central", "--replicas=0"])?;
        cluster.wait_system("ovn-central", 0)?;
        Ok(away)
    }

    fn end(&self) -> Result<()> {
        self.0.kubectl(&["-n", SYSTEM, "scale", "deployment/ovn-central", "--replicas=1"])?;
        self.0.wait_system("ovn-central", 1).map(drop)
    }
}

impl Drop for Away<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("the databases did not come back: {error:#}");
        }
    }
}

/// Pods on both nodes, and pings between them in each family.
fn talking<'a>(cluster: &'a Cluster, name: &str) -> Result<(Namespace<'a>, Vec<Flow>)> {
    let nodes = cluster.nodes()?;
    let namespace = Namespace::create(cluster, name)?;
    namespace.apply(&[
        shell_pod(&namespace, "a", &nodes[0].name, &json!({})),
        shell_pod(&namespace, "b", &nodes[1].name, &json!({})),
    ])?;
    namespace.wait_ready(2, PATIENCE)?;
    let views = views(&namespace)?;
    let mut flows = Vec::new();
    for v4 in cluster.lab.plan.family.select(true, false) {
        flows.push(Flow::start(cluster, &views[0], views[1].address(v4)?)?);
    }
    std::thread::sleep(Duration::from_secs(1));
    Ok((namespace, flows))
}

/// Pings between the nodes' own addresses: past every switch of ours, through the kernel alone. What they lose, the
/// machine lost.
fn control(cluster: &Cluster) -> Result<Vec<Flow>> {
    let nodes = cluster.nodes()?;
    let families = cluster.lab.plan.family.select(true, false).into_iter();
    families
        .map(|v4| Flow::start_on(cluster, &nodes[0], probe::node_address(&cluster.lab, &nodes[1], v4)))
        .collect()
}

fn end(flows: Vec<Flow>) -> Result<Vec<Loss>> {
    flows.into_iter().map(Flow::end).collect()
}

#[test]
fn u19_running_pods_do_not_notice_that_the_databases_are_away_and_new_ones_wait() -> Result<()> {
    let length = Duration::from_secs(number("WEIR_OUTAGE_SECONDS", 30)?.try_into()?);
    let cluster = Cluster::open()?;
    let nodes = cluster.nodes()?;
    let (namespace, flows) = talking(&cluster, "outage")?;
    let (beside, drops) = (control(&cluster)?, Drops::take(&cluster)?);
    let restarts = cluster.restarts()?;
    let away = Away::begin(&cluster)?;
    let begun = Instant::now();
    namespace.apply(&[
        shell_pod(&namespace, "new-0", &nodes[0].name, &json!({})),
        shell_pod(&namespace, "new-1", &nodes[1].name, &json!({})),
    ])?;
    while begun.elapsed() < length {
        std::thread::sleep(Duration::from_secs(1));
    }
    let during = namespace.pods()?;
    let ready = during.iter().filter(|pod| api::condition(pod, "Ready") == "True").count();
    let restarted = cluster.restarts()?;
    away.end()?;
    let back = Instant::now();
    namespace.wait_ready(4, PATIENCE)?;
    say(format!("new pods ready {:.1} s after the databases were back", back.elapsed().as_secs_f64()));
    // The recomputation that follows is a moment of danger too.
    cluster.settle_flows()?;
    std::thread::sleep(Duration::from_secs(2));
    let (losses, beside) = (end(flows)?, end(beside)?);
    let dropped = Drops::take(&cluster)?.since(&drops).join(", ");
    let mut wrong = Vec::new();
    for loss in &beside {
        say(format!("beside, through the kernel alone: {loss}"));
    }
    say(format!("dropped, by those who did: {dropped}"));
    for loss in losses {
        say(format!("databases away for {} s: {loss}", length.as_secs()));
        let alone = loss.alone(&beside);
        if alone.iter().map(|gap| gap.length).sum::<usize>() > PLUGGED {
            wrong.push(format!("{loss}; while nothing was lost beside it: {alone:?}"));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("; "));
    ensure!(ready == 2, "{ready} pods were ready without databases, not just the two old ones");
    // Of those that were there all the time: nobody gave up on the databases.
    for (pod, count) in restarts.iter().filter(|(pod, _)| !pod.starts_with("ovn-central")) {
        let now = restarted.get(pod).with_context(|| format!("{pod} is gone"))?;
        ensure!(now == count, "{pod} was started again while the databases were away");
    }
    let views = views(&namespace)?;
    for v4 in cluster.lab.plan.family.select(true, false) {
        for (from, to) in [("new-0", "new-1"), ("new-1", "a"), ("b", "new-0")] {
            let (source, target) = (view(&views, from)?.source(), view(&views, to)?.address(v4)?);
            ensure!(reaches(&cluster, &source, target)?, "{from} does not reach {to} at {target}");
        }
    }
    drop(away);
    namespace.delete_pods(true)
}

#[test]
fn u19_a_switch_that_starts_anew_forwards_again_within_its_budget() -> Result<()> {
    let cluster = Cluster::open()?;
    let node = cluster.nodes()?[1].clone();
    let (namespace, flows) = talking(&cluster, "switch")?;
    let pods = cluster.system_pods("ovs")?;
    let pod = pods.iter().find(|pod| api::text(pod, "/spec/nodeName") == node.name);
    let pod = api::text(pod.with_context(|| format!("no switch on {}", node.name))?, "/metadata/name");
    let old = cluster.process(&node, "ovs-vswitchd")?.context("no ovs-vswitchd")?;
    cluster.kubectl(&["-n", SYSTEM, "delete", "pod", pod, "--wait=false"])?;
    let mut gone = None;
    let begun = Instant::now();
    let away = loop {
        match cluster.process(&node, "ovs-vswitchd")? {
            Some(now) if now == old => {}
            Some(_) => break gone.unwrap_or(begun).elapsed(),
            None => drop(gone.get_or_insert_with(Instant::now)),
        }
        ensure!(begun.elapsed() < PATIENCE, "ovs-vswitchd did not come back");
        std::thread::sleep(Duration::from_millis(20));
    };
    cluster.wait_system("ovs", cluster.nodes()?.len())?;
    let views = views(&namespace)?;
    for v4 in cluster.lab.plan.family.select(true, false) {
        let (source, target) = (views[0].source(), views[1].address(v4)?);
        wait_for("traffic after the restart", PATIENCE, || {
            let well = reaches(&cluster, &source, target)?;
            Ok(if well { Look::Ready(()) } else { Look::NotYet(format!("{target} does not answer")) })
        })?;
    }
    let allowed = away + FLOW_RESTORE;
    let mut wrong = Vec::new();
    for flow in flows {
        let loss = flow.end()?;
        say(format!("switch away for {:.1} s: {loss}", away.as_secs_f64()));
        if loss.outage > allowed {
            wrong.push(loss.to_string());
        }
    }
    ensure!(wrong.is_empty(), "more than {:.1} s: {}", allowed.as_secs_f64(), wrong.join("; "));
    namespace.delete_pods(true)
}
