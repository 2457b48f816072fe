//! The inside of a node: `lab node-run` makes its namespaces, `lab node-init`
//! is its process 1.
//!
//! In: [`Config`]. Out: a machine of its own, as far as programs can tell. Its
//! root is an overlay: the real machine's root below, the node's own files on
//! top, so every host path that a pod may reach is the node's own, and the
//! machine's disk is never written to. After the root is switched, no mount of
//! the machine is left in the node (old cgroup mounts would mislead runc and
//! cAdvisor; others would keep namespaces alive).
//!
//! Process 1 starts containerd, kubelet and kube-proxy, starts them again when
//! they end, reaps orphans (containerd's shims), and ends in order on SIGTERM.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, chdir, pivot_root, sethostname};
use serde::{Deserialize, Serialize};

use crate::cgroup::{self, MOUNT, Version};
use crate::process::Process;
use crate::state::read_json;

/// Where a node finds its configuration (`etc`) and programs (`kube`, `lab`).
pub const INSIDE: &str = "/opt/weir-lab";

/// Folders that are the node's own and empty at first, on the machine's disk
/// (not the overlay: containerd stacks overlays of its own on them) and kept
/// over a reboot. They also hide what the machine has there.
pub const BINDS: &[&str] = &[
    "/etc/cni/net.d",
    "/etc/openvswitch",
    "/etc/origin",
    "/etc/ovn",
    "/opt/cni/bin",
    "/usr/local/bin",
    "/var/lib/cni",
    "/var/lib/containerd",
    "/var/lib/kubelet",
    "/var/lib/openvswitch",
    "/var/lib/ovn",
    "/var/log",
];

/// Kernel settings that kubelet changes and that belong to the whole machine:
/// in a node they are plain files with the machine's values.
const SHADOWED: &[&str] = &[
    "kernel/panic",
    "kernel/panic_on_oops",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
];

/// What process 1 needs to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Config {
    /// Host name and Kubernetes name.
    pub name: String,
    /// The node's cgroup, relative to a hierarchy's root.
    pub cgroup: String,
    /// The node's folder on the machine.
    pub dir: PathBuf,
    /// A folder of the machine that the node must not see.
    pub hidden: PathBuf,
    /// Folder of the Kubernetes programs.
    pub kube: PathBuf,
    /// The `lab` program.
    pub program: PathBuf,
    /// kubelet's `--node-ip`.
    pub node_ip: String,
}

/// `PATH` inside a node.
pub fn path_variable() -> String {
    format!("{INSIDE}/kube:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
}

/// The hidden subcommand `lab node-run`: makes the namespaces, starts process
/// 1, records it, waits for its end. It runs in the node's network namespace.
pub fn run(config: &Path, record: &Path) -> Result<()> {
    // The mount namespace is made by process 1 itself: switching the root moves
    // every process of a mount namespace, and this one stays on the machine.
    let flags = CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWUTS | CloneFlags::CLONE_NEWIPC;
    unshare(flags).context("cannot make the node's namespaces")?;
    let program: Config = read_json(config)?;
    let mut child = Command::new(program.program)
        .arg("node-init")
        .arg(config)
        .stdin(Stdio::null())
        .spawn()
        .context("cannot start process 1")?;
    Process::of(child.id())?.write(record)?;
    child.wait()?;
    Ok(())
}

/// The hidden subcommand `lab node-init`: process 1 of a node.
pub fn init(config: &Path) -> Result<()> {
    let config: Config = read_json(config)?;
    // The node ends with its parent; nobody would know of it otherwise.
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    cgroup::join(&config.cgroup)?;
    let version = cgroup::detect()?;
    let flags = CloneFlags::CLONE_NEWCGROUP | CloneFlags::CLONE_NEWNS;
    unshare(flags).context("cannot make cgroup and mount namespaces")?;
    build_root(&config, &version)?;
    sethostname(&config.name)?;
    for (file, value) in [
        ("net/ipv4/ip_forward", "1"),
        ("net/ipv6/conf/all/forwarding", "1"),
        ("net/ipv6/conf/default/forwarding", "1"),
    ] {
        let path = Path::new("/proc/sys").join(file);
        fs::write(&path, value).with_context(|| format!("cannot set {}", path.display()))?;
    }
    println!("node {} is up; starting its services", config.name);
    supervise(&config)
}

fn make_private() -> Result<()> {
    let flags = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, flags, None::<&str>).context("cannot make mounts private")
}

/// Mounts something new on `target`, which is made if it is missing.
fn mount_new(kind: &str, target: &Path, options: &str) -> Result<()> {
    fs::create_dir_all(target).with_context(|| format!("cannot make {}", target.display()))?;
    mount(Some(kind), target, Some(kind), MsFlags::empty(), Some(options))
        .with_context(|| format!("cannot mount {kind} on {} ({options})", target.display()))
}

/// Shows `source` at `target` too. A missing target is made: a folder or an
/// empty file, like the source.
fn bind(source: &Path, target: &Path) -> Result<()> {
    if source.is_dir() {
        fs::create_dir_all(target)?;
    } else if !target.exists() {
        if let Some(above) = target.parent() {
            fs::create_dir_all(above)?;
        }
        File::create(target)?;
    }
    mount(Some(source), target, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .with_context(|| format!("cannot bind {} to {}", source.display(), target.display()))
}

/// Builds the node's root file system and switches to it.
fn build_root(config: &Config, version: &Version) -> Result<()> {
    make_private()?;
    let dir = &config.dir;
    let root = dir.join("root");
    let at = |path: &str| root.join(path.trim_start_matches('/'));
    let overlay = format!("lowerdir=/,upperdir={0}/upper,workdir={0}/work", dir.display());
    mount_new("overlay", &root, &overlay)?;

    // Hidden before the node's own folders appear, which may be below it.
    mount_new("tmpfs", &at(&config.hidden.to_string_lossy()), "mode=755")?;
    for path in BINDS {
        bind(&dir.join("fs").join(path.trim_start_matches('/')), &at(path))?;
    }
    bind(&dir.join("etc"), &at(&format!("{INSIDE}/etc")))?;
    bind(&dir.join("log"), &at(&format!("{INSIDE}/log")))?;
    bind(&config.kube, &at(&format!("{INSIDE}/kube")))?;
    bind(&config.program, &at(&format!("{INSIDE}/lab")))?;

    mount_new("tmpfs", &at("/run"), "mode=755")?;
    fs::create_dir_all(at("/run/lock"))?;
    fs::create_dir_all(at("/run/netns"))?;
    mount_new("tmpfs", &at("/tmp"), "mode=1777")?;
    mount_new("proc", &at("/proc"), "")?;
    bind(Path::new("/dev"), &at("/dev"))?;
    mount_new("devpts", &at("/dev/pts"), "mode=620,ptmxmode=666")?;
    mount_new("tmpfs", &at("/dev/shm"), "mode=1777")?;
    // Message queues are not worth a failure where the kernel has none.
    let _ = mount_new("mqueue", &at("/dev/mqueue"), "");
    mount_new("sysfs", &at("/sys"), "")?;
    mount_cgroups(&at(MOUNT), version)?;
    let _ = mount_new("bpf", &at("/sys/fs/bpf"), "");
    let _ = mount_new("securityfs", &at("/sys/kernel/security"), "");
    shadow_settings(&at("/proc/sys"), &at("/run/weir-lab-sysctl"))?;

    chdir(&root)?;
    // With both names the same, the old root comes to lie on the new one, from
    // where it is dropped together with every mount of the machine.
    pivot_root(".", ".").context("cannot switch to the node's root")?;
    umount2(".", MntFlags::MNT_DETACH).context("cannot drop the machine's root")?;
    chdir("/")?;
    // Mounts made in pods with bidirectional propagation reach the node.
    let flags = MsFlags::MS_REC | MsFlags::MS_SHARED;
    mount(None::<&str>, "/", None::<&str>, flags, None::<&str>).context("cannot share mounts")
}

fn mount_cgroups(target: &Path, version: &Version) -> Result<()> {
    match version {
        Version::V1(names) => {
            mount_new("tmpfs", target, "mode=755")?;
            for name in names {
                let options = if name == "systemd" { "none,name=systemd" } else { name };
                mount_new("cgroup", &target.join(name), options)?;
            }
            Ok(())
        }
        Version::V2 => {
            mount_new("cgroup2", target, "")?;
            // Only a group without processes may pass controllers on.
            let own = target.join("init");
            fs::create_dir_all(&own)?;
            fs::write(own.join("cgroup.procs"), "0").context("cannot move process 1 to its own group")?;
            cgroup::delegate(target)
        }
    }
}

fn shadow_settings(sys: &Path, copies: &Path) -> Result<()> {
    fs::create_dir_all(copies)?;
    for setting in SHADOWED {
        let real = sys.join(setting);
        if let Ok(value) = fs::read(&real) {
            let copy = copies.join(setting.replace('/', "."));
            fs::write(&copy, value)?;
            bind(&copy, &real)?;
        }
    }
    Ok(())
}

/// A service that is kept running.
struct Service {
    name: &'static str,
    args: Vec<String>,
    pid: Option<i32>,
    /// When to start it (again).
    due: Option<Instant>,
    /// A socket that must accept connections before its first start.
    after: Option<&'static str>,
}

/// The pause before an ended service is started again.
const RESTART_PAUSE: Duration = Duration::from_secs(1);
/// How long services may take to end when the node is shut down.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);

fn services(config: &Config) -> Vec<Service> {
    let service =
        |name, args: Vec<String>, after| Service { name, args, pid: None, due: Some(Instant::now()), after };
    let containerd = Some("/run/containerd/containerd.sock");
    vec![
        service(
            "containerd",
            vec![format!("--config={INSIDE}/etc/containerd.toml"), "--log-level=warn".into()],
            None,
        ),
        service(
            "kubelet",
            vec![
                format!("--config={INSIDE}/etc/kubelet.json"),
                format!("--kubeconfig={INSIDE}/etc/kubelet.kubeconfig"),
                format!("--node-ip={}", config.node_ip),
                format!("--hostname-override={}", config.name),
                "--root-dir=/var/lib/kubelet".into(),
                "--v=1".into(),
            ],
            containerd,
        ),
        service("kube-proxy", vec![format!("--config={INSIDE}/etc/kube-proxy.json"), "--v=1".into()], None),
    ]
}

/// Keeps the services running until SIGTERM.
fn supervise(config: &Config) -> Result<()> {
    let signals = SigSet::from_iter([Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT]);
    signals.thread_block()?;
    let events = SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
    let mut services = services(config);
    loop {
        for service in &mut services {
            start_if_due(service)?;
        }
        wait_a_moment(&events, next_look(&services));
        let mut ended = reap();
        while let Some(info) = events.read_signal()? {
            if info.ssi_signo != Signal::SIGCHLD as u32 {
                return shut_down(&mut services);
            }
            ended.extend(reap());
        }
        for service in &mut services {
            let Some(status) = service.pid.and_then(|pid| ended.get(&pid)) else { continue };
            println!("{} ended ({status:?}), again in {RESTART_PAUSE:?}", service.name);
            service.pid = None;
            service.due = Some(Instant::now() + RESTART_PAUSE);
        }
    }
}

/// How long there is nothing to do but wait for a signal.
fn next_look(services: &[Service]) -> Duration {
    let waiting = services.iter().any(|service| service.due.is_some());
    if waiting { Duration::from_millis(50) } else { Duration::from_secs(60) }
}

/// Waits for a signal, at most `limit`.
fn wait_a_moment(events: &SignalFd, limit: Duration) {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::AsFd;
    let timeout = PollTimeout::try_from(limit.as_millis()).unwrap_or(PollTimeout::MAX);
    // An interrupted poll is just an early look.
    let _ = poll(&mut [PollFd::new(events.as_fd(), PollFlags::POLLIN)], timeout);
}

fn start_if_due(service: &mut Service) -> Result<()> {
    if service.due.is_none_or(|due| due > Instant::now()) {
        return Ok(());
    }
    if service.after.is_some_and(|socket| UnixStream::connect(socket).is_err()) {
        return Ok(());
    }
    let log = File::options().create(true).append(true).open(format!("{INSIDE}/log/{}.log", service.name))?;
    let child = Command::new(service.name)
        .args(&service.args)
        .env("PATH", path_variable())
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn();
    match child {
        Ok(child) => {
            println!("{} started, pid {}", service.name, child.id());
            service.pid = i32::try_from(child.id()).ok();
            service.due = None;
        }
        Err(error) => {
            println!("{} can't be started: {error}", service.name);
            service.due = Some(Instant::now() + RESTART_PAUSE);
        }
    }
    Ok(())
}

/// Takes every ended child, orphans of the node included.
fn reap() -> BTreeMap<i32, WaitStatus> {
    let mut ended = BTreeMap::new();
    while let Ok(status) = waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG)) {
        let Some(pid) = status.pid() else { break };
        ended.insert(pid.as_raw(), status);
    }
    ended
}

/// Asks the services to end, last started first. When this process then ends,
/// the kernel ends everything else in the node.
fn shut_down(services: &mut [Service]) -> Result<()> {
    println!("shutting down");
    for service in services.iter().rev() {
        if let Some(pid) = service.pid {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
    }
    let begun = Instant::now();
    while services.iter().any(|service| service.pid.is_some()) && begun.elapsed() < SHUTDOWN_LIMIT {
        let ended = reap();
        for service in services.iter_mut() {
            if service.pid.is_some_and(|pid| ended.contains_key(&pid)) {
                service.pid = None;
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("off");
    Ok(())
}
