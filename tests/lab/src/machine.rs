//! The few settings that belong to the whole machine and that labs need other
//! than they are: changed with the first lab, put back after the last.
//!
//! In: `/proc/sys`. Out: the same, with the old values kept in a file.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::state::{read_json, write_json};
use crate::{cache, netns};

/// Settings and the least value that labs need: each kubelet, containerd and
/// watching pod takes inotify instances, and neighbour tables are shared by all
/// namespaces.
const SETTINGS: &[(&str, u64)] = &[
    ("fs/inotify/max_user_instances", 8192),
    ("fs/inotify/max_user_watches", 524_288),
    ("net/ipv4/neigh/default/gc_thresh3", 8192),
    ("net/ipv6/neigh/default/gc_thresh3", 8192),
];

/// One for the machine, whatever state folders labs use; like the settings, it
/// is gone after a reboot.
fn saved_file() -> PathBuf {
    PathBuf::from("/run/weir-lab-machine.json")
}

fn setting(name: &str) -> PathBuf {
    Path::new("/proc/sys").join(name)
}

/// Raises what is too low. What it was is remembered once, by the first lab.
pub fn prepare() -> Result<()> {
    let mut saved: BTreeMap<String, u64> =
        if saved_file().exists() { read_json(&saved_file())? } else { BTreeMap::new() };
    for &(name, least) in SETTINGS {
        let Ok(text) = fs::read_to_string(setting(name)) else { continue };
        let now: u64 = text.trim().parse().with_context(|| format!("{name} is {text:?}"))?;
        if now < least {
            saved.entry(name.to_owned()).or_insert(now);
            write_json(&saved_file(), &saved)?;
            fs::write(setting(name), least.to_string()).with_context(|| format!("cannot set {name}"))?;
        }
    }
    Ok(())
}

/// Puts everything back, if no lab is left on the machine.
pub fn restore() -> Result<()> {
    if !saved_file().exists() || netns::any_lab() {
        return Ok(());
    }
    let saved: BTreeMap<String, u64> = read_json(&saved_file())?;
    for (name, value) in saved {
        fs::write(setting(&name), value.to_string()).with_context(|| format!("cannot restore {name}"))?;
    }
    cache::remove(&saved_file())
}
