//! New programs in a running lab within seconds, without a new image: for those
//! who change Weir's code and look at it in a cluster.
//!
//! In: a lab with Weir installed, programs in the target folder. Out: the files
//! in the nodes' image store replaced (each by a rename, so that nothing that
//! runs and no other lab's hard link sees it), and the workloads whose programs
//! differ started anew. The image's archive stays what it is: nodes that are
//! added later have the programs of the image until `lab demo` makes a new one.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::images::{self, BINARIES};
use crate::progress::{quiet_step, say};
use crate::state::{Lab, Node};
use crate::{api, install, life};

/// Where a node's containerd keeps the layers of images, below its folder.
const SNAPSHOTS: &str = "fs/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots";

/// Replaces what differs and waits until it runs. Returns the names of the
/// programs that did.
///
/// Errors: Weir's image is not in the lab, a program is not built.
pub fn swap(lab: &Lab) -> Result<Vec<&'static str>> {
    let mut swapped = Vec::new();
    for name in BINARIES {
        let new = images::program_folder().join(name);
        let mut differs = false;
        for node in lab.nodes()? {
            let copies = layers(lab, &node, name)?;
            if copies.is_empty() {
                bail!("{name} is not among the images of {}: `lab demo` installs Weir first", node.name);
            }
            for old in copies {
                differs |= replace(&new, &old)?;
            }
        }
        if differs {
            swapped.push(*name);
        }
    }
    if swapped.is_empty() {
        say("the lab has these programs already");
        return Ok(swapped);
    }
    say(format!("new in the lab: {}", swapped.join(" ")));
    install::install_plugin(lab)?;
    let concerned: Vec<_> = install::WORKLOADS[2..].iter().filter(|(_, name)| uses(name, &swapped)).collect();
    for (kind, name) in &concerned {
        api::kubectl(lab, ["-n", "kube-system", "rollout", "restart", &format!("{kind}/{name}")])?;
    }
    for (kind, name) in &concerned {
        quiet_step(&format!("{name} anew"), || install::wait_rollout(lab, kind, name))?;
    }
    install::note_programs(lab)?;
    life::wait_nodes_ready(lab, Duration::from_secs(90))?;
    Ok(swapped)
}

/// Whether a workload runs one of the programs. Every pod has `weir` to ask it with.
fn uses(workload: &str, programs: &[&str]) -> bool {
    let own: &[&str] = match workload {
        "kube-ovn-controller" => &["kube-ovn-controller", "weir"],
        "kube-ovn-cni" => &["kube-ovn-daemon", "kube-ovn", "weir"],
        _ => &[],
    };
    own.iter().any(|program| programs.contains(program))
}

/// The copies of a program in the layers of a node's images. (Containers have
/// it in no layer of their own: nobody writes to it there.)
fn layers(lab: &Lab, node: &Node, program: &str) -> Result<Vec<PathBuf>> {
    let folder = lab.node_dir(node).join(SNAPSHOTS);
    let entries = fs::read_dir(&folder).with_context(|| format!("no image store in {}", folder.display()))?;
    let files = entries.flatten().map(|entry| entry.path().join("fs/kube-ovn").join(program));
    Ok(files.filter(|file| file.is_file()).collect())
}

/// Puts a copy of `new` in the place of `old`, unless they are equal.
fn replace(new: &Path, old: &Path) -> Result<bool> {
    let content = fs::read(new).with_context(|| format!("{} is not built", new.display()))?;
    if fs::read(old).is_ok_and(|there| there == content) {
        return Ok(false);
    }
    let beside = old.with_extension("swapped");
    fs::copy(new, &beside).with_context(|| format!("cannot write {}", beside.display()))?;
    fs::rename(&beside, old).with_context(|| format!("cannot replace {}", old.display()))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hard_link_elsewhere_keeps_the_old_program() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("seed"), "old").unwrap();
        fs::hard_link(at("seed"), at("layer")).unwrap();
        fs::write(at("new"), "new").unwrap();
        assert!(replace(&at("new"), &at("layer")).unwrap());
        assert!(!replace(&at("new"), &at("layer")).unwrap(), "it is there");
        let read = |name: &str| fs::read_to_string(at(name)).unwrap();
        assert_eq!((read("seed").as_str(), read("layer").as_str()), ("old", "new"));
        assert!(!at("layer.swapped").exists());
        assert!(replace(&at("missing"), &at("layer")).is_err());
    }

    #[test]
    fn a_program_concerns_those_who_run_it() {
        assert!(uses("kube-ovn-cni", &["kube-ovn"]) && !uses("kube-ovn-controller", &["kube-ovn"]));
        assert!(uses("kube-ovn-controller", &["weir"]) && !uses("ovs-ovn", &["weir"]));
    }
}
