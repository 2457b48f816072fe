//! Control groups of a lab, version 1 or 2, whichever the machine has.
//!
//! In: names relative to a hierarchy's root. Out: groups made, joined, emptied
//! and removed. Everything a lab starts is in one of its groups (a node's pods
//! too), so the groups are also the exact list of what a `down` has to end.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};
use nix::unistd::Pid;

/// Where the machine's hierarchies are mounted.
pub const MOUNT: &str = "/sys/fs/cgroup";

/// How the machine mounts its cgroups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Version {
    /// One hierarchy per controller: their folder names under [`MOUNT`].
    V1(Vec<String>),
    /// The unified hierarchy.
    V2,
}

/// Looks at the machine.
pub fn detect() -> Result<Version> {
    let kind = statfs(MOUNT).with_context(|| format!("cannot look at {MOUNT}"))?.filesystem_type();
    if kind == CGROUP2_SUPER_MAGIC {
        return Ok(Version::V2);
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(MOUNT)?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        // The unified one beside version 1 has no controllers; combined
        // hierarchies (cpu,cpuacct) also have links by their single names.
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_folder && name != "unified" && entry.path().join("cgroup.procs").exists() {
            names.push(name);
        }
    }
    names.sort();
    if names.is_empty() {
        bail!("no cgroup hierarchies are mounted below {MOUNT}");
    }
    Ok(Version::V1(names))
}

/// The folders of a group, one per hierarchy.
fn folders(group: &str) -> Result<Vec<PathBuf>> {
    Ok(match detect()? {
        Version::V2 => vec![Path::new(MOUNT).join(group)],
        Version::V1(names) => names.iter().map(|name| Path::new(MOUNT).join(name).join(group)).collect(),
    })
}

/// Makes a group (and those above it) ready for processes.
pub fn make(group: &str) -> Result<()> {
    for folder in folders(group)? {
        let make = || fs::create_dir_all(&folder);
        make().with_context(|| format!("cannot make the cgroup {}", folder.display()))?;
        // Version 1: a new cpuset has no processors and takes no process until
        // it is given some, from the top down.
        let mut chain: Vec<&Path> =
            folder.ancestors().take_while(|path| path.join("cpuset.cpus").exists()).collect();
        chain.reverse();
        for pair in chain.windows(2) {
            let [above, below] = pair else { continue };
            for file in ["cpuset.cpus", "cpuset.mems"] {
                if fs::read_to_string(below.join(file)).is_ok_and(|value| value.trim().is_empty()) {
                    fs::write(below.join(file), fs::read(above.join(file))?)?;
                }
            }
        }
    }
    if detect()? == Version::V2 {
        let mut path = PathBuf::from(MOUNT);
        delegate(&path)?;
        // Controllers reach a group only through every group above it.
        let parts: Vec<_> = Path::new(group).components().collect();
        for part in parts.iter().take(parts.len().saturating_sub(1)) {
            path.push(part);
            delegate(&path)?;
        }
    }
    Ok(())
}

/// Version 2: lets the groups below `folder` use all controllers it has.
pub fn delegate(folder: &Path) -> Result<()> {
    let controllers = fs::read_to_string(folder.join("cgroup.controllers"))?;
    let on: Vec<_> = controllers.split_whitespace().map(|name| format!("+{name}")).collect();
    let file = folder.join("cgroup.subtree_control");
    fs::write(&file, on.join(" "))
        .with_context(|| format!("cannot pass controllers on in {}", file.display()))
}

/// Moves the calling process into a group, in every hierarchy.
pub fn join(group: &str) -> Result<()> {
    for folder in folders(group)? {
        let file = folder.join("cgroup.procs");
        fs::write(&file, "0").with_context(|| format!("cannot join {}", folder.display()))?;
    }
    Ok(())
}

/// The processes of a group and of those below it.
pub fn processes(group: &str) -> Result<Vec<i32>> {
    let mut pids = Vec::new();
    for folder in folders(group)? {
        collect(&folder, &mut pids);
    }
    pids.sort_unstable();
    pids.dedup();
    Ok(pids)
}

fn collect(folder: &Path, pids: &mut Vec<i32>) {
    let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|pid| *pid > 0));
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect(&entry.path(), pids);
        }
    }
}

/// Kills every process of a group and of those below it, and waits until none
/// is left.
pub fn kill_all(group: &str) -> Result<()> {
    let begun = Instant::now();
    loop {
        let pids = processes(group)?;
        if pids.is_empty() {
            return Ok(());
        }
        if begun.elapsed() > Duration::from_secs(20) {
            bail!("processes of {group} do not end: {pids:?}");
        }
        for pid in pids {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Removes a group and those below it; they must be empty of processes.
pub fn remove(group: &str) -> Result<()> {
    let begun = Instant::now();
    for folder in folders(group)? {
        // Ended processes leave their group a moment after they are gone.
        while folder.exists() && remove_tree(&folder).is_err() {
            if begun.elapsed() > Duration::from_secs(10) {
                bail!("cannot remove the cgroup {}", folder.display());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}

fn remove_tree(folder: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(folder)
}
