//! Everything that helps to understand a lab afterwards, in one folder.
//!
//! In: a lab, running or not. Out: logs and states as files. A part that can't
//! be had is noted and does not stop the rest.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::progress::say;
use crate::run::{capture, command, run};
use crate::state::Lab;
use crate::{api, netns, node};

/// Kinds listed whole.
const KINDS: &[&str] = &[
    "nodes",
    "pods",
    "services",
    "endpointslices",
    "events",
    "deployments",
    "daemonsets",
    "leases",
    "subnets",
    "vpcs",
    "ips",
];

/// What is asked on each node.
const ON_NODES: &[(&str, &str)] = &[
    ("network", "ip -d link; ip address; ip rule; ip route show table all; ip -6 route show table all"),
    ("firewall", "iptables-save; ip6tables-save; ipset list"),
    ("processes", "ps -eo pid,ppid,rss,etime,args"),
    ("cni", "ls -lR /etc/cni /opt/cni; cat /etc/cni/net.d/* 2>/dev/null"),
];

/// What is asked in our pods: label `app`, name of the file, command.
const IN_PODS: &[(&str, &str, &str)] = &[
    ("ovn-central", "northbound", "ovn-nbctl show; ovn-nbctl list Logical_Switch_Port"),
    ("ovn-central", "southbound", "ovn-sbctl show; ovn-sbctl list Chassis"),
    (
        "ovs",
        "ovs",
        "ovs-vsctl show; ovs-vsctl list Interface; ovs-vsctl list Open_vSwitch; ovs-ofctl dump-flows br-int",
    ),
];

/// Writes everything into `target`, which is made if it is missing.
pub fn collect(lab: &Lab, target: &Path) -> Result<()> {
    fs::create_dir_all(target).with_context(|| format!("cannot make {}", target.display()))?;
    let write = |name: &str, content: Result<String>| {
        let text = content.unwrap_or_else(|error| format!("not available: {error:#}\n"));
        if let Err(error) = fs::write(target.join(name), text) {
            say(format!("cannot write {name}: {error}"));
        }
    };
    copy(&lab.path("log"), &target.join("control-plane"));
    for kind in KINDS {
        write(&format!("{kind}.txt"), api::kubectl(lab, ["get", kind, "-A", "-o", "wide"]));
        write(&format!("{kind}.yaml"), api::kubectl(lab, ["get", kind, "-A", "-o", "yaml"]));
    }
    let switches = lab.plan.netns("net");
    if netns::path(&switches).exists() {
        write("switches.txt", capture(&mut command("ip", ["-n", &switches, "-d", "link"])));
    }
    for machine in lab.nodes()? {
        let folder = target.join(&machine.name);
        let _ = fs::create_dir_all(&folder);
        copy(&lab.node_dir(&machine).join("log"), &folder.join("services"));
        copy(&lab.node_dir(&machine).join("fs/var/log"), &folder.join("var-log"));
        for (name, script) in ON_NODES {
            let file = format!("{}/{name}.txt", machine.name);
            write(&file, node::exec(lab, &machine, ["sh", "-c", &format!("({script}) 2>&1")]));
        }
    }
    for (app, name, script) in IN_PODS {
        for pod in crate::checks::probe::pods(lab, "kube-system", app).unwrap_or_default() {
            let script = format!("({script}) 2>&1");
            let text = api::exec(lab, "kube-system", &pod.name, &["bash", "-c", &script]);
            write(&format!("{}/{name}.txt", pod.node), text);
        }
    }
    Ok(())
}

/// Copies a folder as far as it can be read (`/var/log/pods` has links to
/// nowhere once pods are gone).
fn copy(from: &Path, to: &Path) {
    if let Err(error) = run("cp", [Path::new("-r"), from, to]) {
        say(format!("{}: {error:#}", from.display()));
    }
}
