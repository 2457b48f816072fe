//! A node's life, seen from the machine: made, started, cut off, rebooted,
//! killed, removed; and commands run inside it.
//!
//! In: a lab and a node's name. Out: its folder with configuration, its
//! namespace with NICs, and a running process 1 (see [`crate::node_init`]).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;

use crate::cgroup::{self, Version};
use crate::node_init::{BINDS, Config, INSIDE};
use crate::pki::{Authority, Subject, certify, kubeconfig};
use crate::plan::{HOST_OUTSIDE, Net, POD_CIDR, SERVICE_DNS};
use crate::process::{Launch, Process};
use crate::progress::{Look, wait_for};
use crate::run::command;
use crate::state::{Lab, Node, check_name, write_json};
use crate::{api, cache, images, netns};

/// The pause image's name in containerd's configuration.
pub const PAUSE_IMAGE: &str = "registry.k8s.io/pause:3.10.1";

/// Adds a node to a lab (its name or the next `nN`) and starts it.
pub fn add(lab: &Lab, name: Option<&str>) -> Result<Node> {
    let number = lab.free_number()?;
    let name = name.map_or_else(|| format!("n{number}"), str::to_owned);
    check_name(&name)?;
    if ["net", "cp", "out", "run"].contains(&name.as_str()) {
        bail!("{name} is the name of a part of the lab, not for a node");
    }
    let node = Node { name, number };
    let dir = lab.node_dir(&node);
    if dir.join("node.json").exists() {
        bail!("lab {} has a node {} already", lab.plan.name, node.name);
    }
    // A run that was killed may have left half a node.
    netns::remove_node(&lab.plan, &node.name, number)?;
    cache::remove(&dir)?;
    configure(lab, &node)?;
    images::plant(lab, &node)?;
    netns::add_node(&lab.plan, &node.name, number)?;
    write_json(&dir.join("node.json"), &node)?;
    start(lab, &node)?;
    Ok(node)
}

/// Writes everything a node reads at its start.
fn configure(lab: &Lab, node: &Node) -> Result<()> {
    let dir = lab.node_dir(node);
    for folder in ["etc", "log", "fs", "upper/etc", "work", "root"] {
        fs::create_dir_all(dir.join(folder))?;
    }
    for path in BINDS {
        fs::create_dir_all(dir.join("fs").join(path.trim_start_matches('/')))?;
    }
    let plan = &lab.plan;
    let addresses = plan.addresses(Net::Management, node.host());
    let etc = dir.join("etc");
    let pki = lab.path("pki");

    let user = format!("system:node:{}", node.name);
    let names = [node.name.as_str()];
    let subject = Subject { name: &user, group: Some("system:nodes"), dns: &names, addresses: &addresses };
    certify(&pki, Authority::Cluster, &etc, "kubelet", &subject)?;
    fs::copy(pki.join("ca.crt"), etc.join("ca.crt"))?;
    for end in ["crt", "key"] {
        fs::copy(pki.join(format!("kube-proxy.{end}")), etc.join(format!("kube-proxy.{end}")))?;
    }
    for user in ["kubelet", "kube-proxy"] {
        kubeconfig(&etc.join(format!("{user}.kubeconfig")), &plan.api_url(), "ca.crt", user)?;
    }

    let join = |addresses: &[std::net::IpAddr]| {
        addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    };
    let dns = plan.family.select(SERVICE_DNS.0, SERVICE_DNS.1);
    write_json(&etc.join("kubelet.json"), &kubelet_config(dns.first().copied().unwrap_or_default()))?;
    let proxy = proxy_config(&node.name, &plan.family.join(POD_CIDR.0, POD_CIDR.1));
    write_json(&etc.join("kube-proxy.json"), &proxy)?;
    fs::write(etc.join("containerd.toml"), containerd_config())?;
    let config = Config {
        name: node.name.clone(),
        cgroup: plan.cgroup(&node.name),
        dir: dir.clone(),
        hidden: crate::state::base_folder(),
        kube: lab.kube.clone(),
        program: lab.program(),
        node_ip: join(&addresses),
    };
    write_json(&dir.join("init-config.json"), &config)?;

    let upper = dir.join("upper/etc");
    fs::write(upper.join("hostname"), format!("{}\n", node.name))?;
    let mut hosts = "127.0.0.1 localhost\n::1 localhost ip6-localhost\n".to_owned();
    for address in &addresses {
        hosts.push_str(&format!("{address} {}\n", node.name));
    }
    fs::write(upper.join("hosts"), hosts)?;
    let resolver = plan.primary(Net::Management, HOST_OUTSIDE);
    fs::write(upper.join("resolv.conf"), format!("nameserver {resolver}\n"))?;
    let id = cache::Key::default().text("lab", &plan.name).text("node", &node.name).finish();
    fs::write(upper.join("machine-id"), format!("{id}{id}\n"))?;
    Ok(())
}

fn containerd_config() -> String {
    format!(
        r#"version = 2
disabled_plugins = [
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.internal.v1.opt", "io.containerd.tracing.processor.v1.otlp",
]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # Without CAP_SYS_RESOURCE nobody may lower an oom_score_adj.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
"#
    )
}

fn kubelet_config(dns: &str) -> serde_json::Value {
    serde_json::json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": false,
        "cgroupDriver": "cgroupfs",
        "failSwapOn": false,
        "oomScoreAdj": 0,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": format!("{INSIDE}/etc/ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": format!("{INSIDE}/etc/kubelet.crt"),
        "tlsPrivateKeyFile": format!("{INSIDE}/etc/kubelet.key"),
        "clusterDNS": [dns],
        "clusterDomain": "cluster.local",
        "resolvConf": "/etc/resolv.conf",
        // All nodes share the machine's disk: its fill level is no node's.
        "evictionHard": {
            "memory.available": "100Mi", "nodefs.available": "1%",
            "nodefs.inodesFree": "1%", "imagefs.available": "1%",
        },
        // Nothing is ever pulled, so nothing may be collected either.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "serializeImagePulls": false,
        "registryPullQPS": 0,
        "eventRecordQPS": 0,
        "staticPodPath": "",
        "nodeStatusReportFrequency": "1m",
        "maxPods": 250,
    })
}

fn proxy_config(node: &str, pod_cidr: &str) -> serde_json::Value {
    serde_json::json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clusterCIDR": pod_cidr,
        "hostnameOverride": node,
        "clientConnection": {"kubeconfig": format!("{INSIDE}/etc/kube-proxy.kubeconfig")},
        "oomScoreAdj": 0,
        // nf_conntrack_max belongs to the machine and can't be set in a node.
        "conntrack": {
            "maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s",
        },
    })
}

/// The recorded, running process 1 of a node (its pid on the machine).
pub fn init(lab: &Lab, node: &Node) -> Option<Process> {
    Process::read(&lab.node_dir(node).join("init.json"))
}

/// Boots a node that is off; does nothing to one that runs.
pub fn start(lab: &Lab, node: &Node) -> Result<()> {
    if init(lab, node).is_some() {
        return Ok(());
    }
    let dir = lab.node_dir(node);
    let group = lab.plan.cgroup(&node.name);
    // A machine that boots has no processes and no cgroups of old pods
    // (cAdvisor spends seconds on each of those).
    cgroup::make(&group)?;
    cgroup::kill_all(&group)?;
    cgroup::remove(&group)?;
    cgroup::make(&group)?;
    let record = dir.join("init.json");
    cache::remove(&record)?;
    let launch = Launch {
        lab: &lab.program(),
        cgroup: &lab.plan.cgroup("run"),
        netns: Some(&lab.plan.netns(&node.name)),
        log: &dir.join("log/init.log"),
        record: dir.join("run.json"),
    };
    let mut boot = command(&lab.program().to_string_lossy(), ["node-run"]);
    boot.arg(dir.join("init-config.json")).arg(&record);
    launch.start(&boot)?;
    wait_for(&format!("process 1 of {}", node.name), Duration::from_secs(30), || {
        if Process::read(&record).is_some() {
            return Ok(Look::Ready(()));
        }
        if Process::read(&dir.join("run.json")).is_none() {
            let log = fs::read_to_string(dir.join("log/init.log")).unwrap_or_default();
            let last = log.lines().last().unwrap_or_default().to_owned();
            return Ok(Look::NotYet(format!("it ended: {last}")));
        }
        Ok(Look::NotYet("not started yet".into()))
    })
}

/// Ends a node. `power`: as a power failure does, with no chance to tidy up;
/// otherwise its services are asked to end first.
pub fn stop(lab: &Lab, node: &Node, power: bool) -> Result<()> {
    if let Some(init) = init(lab, node) {
        if power {
            init.signal(Signal::SIGKILL);
        }
        init.end(Duration::from_secs(10));
    }
    // Its parent ends by itself then; a start must not find it still there.
    if let Some(parent) = Process::read(&lab.node_dir(node).join("run.json")) {
        parent.end(Duration::from_secs(5));
    }
    // Whatever may be left of it: nothing outlives a machine that is off.
    let group = lab.plan.cgroup(&node.name);
    cgroup::kill_all(&group)?;
    cgroup::remove(&group)
}

/// Stops and removes a node: its Node object, its folder, its namespace.
pub fn delete(lab: &Lab, node: &Node) -> Result<()> {
    stop(lab, node, true)?;
    api::kubectl(lab, ["delete", "node", &node.name, "--ignore-not-found"])?;
    netns::remove_node(&lab.plan, &node.name, node.number)?;
    cache::remove(&lab.node_dir(node))
}

/// A command to be run inside a node: all its namespaces; its own `PATH` first
/// finds the lab's Kubernetes programs.
pub fn command_in(lab: &Lab, node: &Node) -> Result<Command> {
    let init = init(lab, node).with_context(|| format!("node {} is off", node.name))?;
    let mut enter = command("nsenter", ["--target", &init.pid.to_string()]);
    enter.args(["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--"]);
    enter.env("PATH", crate::node_init::path_variable());
    Ok(enter)
}

/// Runs a command inside a node and returns what it printed.
pub fn exec<'a>(lab: &Lab, node: &Node, args: impl IntoIterator<Item = &'a str>) -> Result<String> {
    crate::run::capture(command_in(lab, node)?.args(args))
}

/// Moves this program into a node's cgroup, so that what it becomes next is
/// accounted to the node and ends with it.
pub fn join_cgroup(lab: &Lab, node: &Node) -> Result<()> {
    let group = lab.plan.cgroup(&node.name);
    match cgroup::detect()? {
        Version::V1(_) => cgroup::join(&group),
        Version::V2 => cgroup::join(&format!("{group}/init")),
    }
}

/// A path of the node, as the machine sees it while the node runs (sockets in
/// it can be connected to from the machine).
pub fn path_in(lab: &Lab, node: &Node, path: &str) -> Result<PathBuf> {
    let init = init(lab, node).with_context(|| format!("node {} is off", node.name))?;
    Ok(Path::new("/proc").join(init.pid.to_string()).join("root").join(path.trim_start_matches('/')))
}

/// Waits until a node's containerd answers.
pub fn wait_containerd(lab: &Lab, node: &Node) -> Result<PathBuf> {
    wait_for(&format!("containerd of {}", node.name), Duration::from_secs(60), || {
        let socket = path_in(lab, node, "/run/containerd/containerd.sock")?;
        let up = std::os::unix::net::UnixStream::connect(&socket);
        Ok(match up {
            Ok(_) => Look::Ready(socket),
            Err(error) => Look::NotYet(error.to_string()),
        })
    })
}
