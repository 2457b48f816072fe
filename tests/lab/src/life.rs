//! A lab as a whole: up, down, what runs.
//!
//! In: a name, a number of nodes, a family. Out: a cluster whose nodes have
//! registered (they become Ready only with a network plugin), or nothing left
//! of it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::Value;

use crate::cache::Cache;
use crate::plan::{Family, Net};
use crate::process::Process;
use crate::programs::Programs;
use crate::progress::{Look, quiet_step, say, wait_for};
use crate::state::{self, Lab, Node, lock};
use crate::{api, cache, cgroup, control, machine, netns, node, outside};

/// Makes a lab, or brings a lab that is up to the wished number of nodes. What
/// a crash left behind of a lab of this name is removed first.
pub fn up(name: &str, nodes: u8, family: Family, programs: &Programs, cache: &Cache) -> Result<Lab> {
    let _lock = lock(name)?;
    let lab = match Lab::open(name)? {
        Some(lab) if is_up(&lab)? => {
            if lab.plan.family != family {
                bail!("lab {name} is up with family {}: take it down first", lab.plan.family);
            }
            say(format!("lab {name} is up already"));
            lab
        }
        Some(_) => {
            say(format!("lab {name} is not running; removing what is left of it"));
            remove(name)?;
            fresh(name, family, programs, cache)?
        }
        None => fresh(name, family, programs, cache)?,
    };
    control::start(&lab)?;
    outside::start(&lab)?;
    for node in lab.nodes()? {
        node::start(&lab, &node)?;
    }
    while lab.nodes()?.len() < usize::from(nodes) {
        let added = node::add(&lab, None)?;
        say(format!("node {} booted", added.name));
    }
    if let Some(first) = lab.nodes()?.first() {
        netns::route_pods(&lab.plan, first.host())?;
    }
    quiet_step("nodes registered", || lab.nodes()?.iter().try_for_each(|node| wait_registered(&lab, node)))?;
    Ok(lab)
}

/// A lab is up when its networks are complete and anything of it runs: what
/// has ended is then started again. Otherwise there is nothing worth keeping.
pub fn is_up(lab: &Lab) -> Result<bool> {
    if !networks_built(lab).exists() || !netns::path(&lab.plan.netns("net")).exists() {
        return Ok(false);
    }
    let control = control::COMPONENTS.iter().any(|component| control::running(lab, component));
    Ok(control || lab.nodes()?.iter().any(|node| node::init(lab, node).is_some()))
}

/// Exists once the networks are complete.
fn networks_built(lab: &Lab) -> PathBuf {
    lab.path("run/networks-built")
}

fn fresh(name: &str, family: Family, programs: &Programs, cache: &Cache) -> Result<Lab> {
    let lab = Lab::create(name, family, programs, cache)?;
    machine::prepare()?;
    say(format!("lab {name} is number {} (its networks are 198.18.{0}.0/24 ...)", lab.plan.index));
    quiet_step("networks", || netns::build(&lab.plan))?;
    std::fs::write(networks_built(&lab), "")?;
    Ok(lab)
}

/// Waits until a node's kubelet has registered it.
pub fn wait_registered(lab: &Lab, node: &Node) -> Result<()> {
    let path = format!("/api/v1/nodes/{}", node.name);
    wait_for(&format!("node {} to register", node.name), Duration::from_secs(90), || {
        api::get(lab, &path).map(|_| Look::Ready(()))
    })
}

/// Waits until all nodes are Ready (a network plugin is installed).
pub fn wait_nodes_ready(lab: &Lab, limit: Duration) -> Result<()> {
    wait_for("all nodes to be Ready", limit, || {
        let nodes = api::list(lab, "/api/v1/nodes")?;
        let waiting: Vec<_> = nodes
            .iter()
            .filter(|node| api::condition(node, "Ready") != "True")
            .map(|node| api::text(node, "/metadata/name"))
            .collect();
        let missing = lab.nodes()?.len() > nodes.len();
        Ok(if waiting.is_empty() && !missing {
            Look::Ready(())
        } else {
            Look::NotYet(format!("not Ready: {}", waiting.join(" ")))
        })
    })
}

/// Takes a lab down: every process that was started for it is ended, its
/// namespaces, links, cgroups and files are removed. Works on a crashed lab and
/// on one that is not there.
pub fn down(name: &str) -> Result<()> {
    let _lock = lock(name)?;
    remove(name)
}

fn remove(name: &str) -> Result<()> {
    let Some(lab) = Lab::open(name)? else {
        // Made by a run that ended before it had an index: files only.
        return cache::remove(&state::base_folder().join(name));
    };
    quiet_step(&format!("lab {name} down"), || {
        // All processes of a lab are in its groups, pods and mounts included;
        // their namespaces and mounts go with them.
        let root = lab.plan.cgroup_root();
        cgroup::kill_all(&root)?;
        cgroup::remove(&root)?;
        // Records of the same processes: only of use if a group was lost.
        for entry in std::fs::read_dir(lab.path("run"))?.flatten() {
            if let Some(process) = Process::read(&entry.path()) {
                process.end(Duration::from_secs(5));
            }
        }
        netns::destroy(&lab.plan)?;
        cache::remove(&lab.dir)?;
        machine::restore()
    })
}

/// A line per part of the lab: whether it runs.
pub fn status(lab: &Lab) -> Result<(Vec<String>, bool)> {
    let mut lines = Vec::new();
    let mut good = true;
    let mut part = |name: &str, pid: Option<i32>, more: String| {
        let state = pid.map_or_else(|| "off".to_owned(), |pid| format!("pid {pid}"));
        good &= pid.is_some();
        lines.push(format!("{name:<24} {state:<14} {more}"));
    };
    for component in control::COMPONENTS {
        part(component, control::record(lab, component).map(|process| process.pid), String::new());
    }
    let outside = Process::read(&lab.path("run/outside.json")).map(|process| process.pid);
    part("outside host", outside, join(&outside::addresses(lab)));
    let objects = api::list(lab, "/api/v1/nodes").unwrap_or_default();
    for node in lab.nodes()? {
        let object = objects.iter().find(|object| api::text(object, "/metadata/name") == node.name);
        let ready = match object.map(|object| api::condition(object, "Ready")) {
            Some("True") => "Ready",
            Some(_) => "NotReady",
            None => "not registered",
        };
        let addresses = lab.plan.addresses(Net::Management, node.host());
        let pid = node::init(lab, &node).map(|process| process.pid);
        part(&format!("node {}", node.name), pid, format!("{ready:<14} {}", join(&addresses)));
    }
    Ok((lines, good))
}

fn join<T: ToString>(values: &[T]) -> String {
    values.iter().map(T::to_string).collect::<Vec<_>>().join(" ")
}

/// The pods of all namespaces that are not right, with the reason; empty when
/// every pod runs (or has completed) and its containers are ready.
pub fn unwell_pods(lab: &Lab) -> Result<Vec<String>> {
    let pods = api::list(lab, "/api/v1/pods")?;
    Ok(pods.iter().filter_map(unwell).collect())
}

fn unwell(pod: &Value) -> Option<String> {
    let phase = api::text(pod, "/status/phase");
    let ready = api::condition(pod, "Ready") == "True";
    if phase == "Succeeded" || (phase == "Running" && ready) {
        return None;
    }
    let statuses = ["/status/initContainerStatuses", "/status/containerStatuses"]
        .into_iter()
        .filter_map(|pointer| pod.pointer(pointer)?.as_array())
        .flatten();
    let reasons: Vec<_> = statuses
        .filter_map(|status| {
            let reason = api::text(status, "/state/waiting/reason");
            let message = api::text(status, "/state/waiting/message");
            (!reason.is_empty()).then(|| format!("{reason} {message}").trim().to_owned())
        })
        .collect();
    Some(format!(
        "{}/{} {phase} {}",
        api::text(pod, "/metadata/namespace"),
        api::text(pod, "/metadata/name"),
        if reasons.is_empty() { "not ready".to_owned() } else { reasons.join("; ") }
    ))
}

/// The processes of a lab, one line each: host, pid, memory, command.
pub fn processes(lab: &Lab) -> Result<String> {
    let mut text = String::new();
    let nodes = lab.nodes()?.into_iter().map(|node| node.name);
    for host in ["cp".to_owned(), "out".to_owned()].into_iter().chain(nodes) {
        for pid in cgroup::processes(&lab.plan.cgroup(&host))? {
            let read = |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            let words = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
            let status = String::from_utf8_lossy(&read("status")).into_owned();
            let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
            let short: String = words.chars().take(120).collect();
            text.push_str(&format!("{host:<8} {pid:>7} {:>12} {short}\n", memory.trim()));
        }
    }
    Ok(text)
}
