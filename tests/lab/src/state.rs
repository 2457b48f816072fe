//! A lab's state folder, and the [`Lab`] that everything else works on.
//!
//! In: a name. Out: paths, records, the lock that keeps two changing commands
//! apart. Layout of `$WEIR_LAB_DIR/NAME` (default `/var/lib/weir-lab/NAME`):
//!
//! ```text
//! lab.json       identity (index, family) and the programs it runs
//! bin/lab        the program that places processes and is process 1 of nodes
//! pki/           certificates, kubeconfigs (`admin.kubeconfig` is yours to use)
//! etcd/          the cluster's data
//! log/           control plane logs, audit.json
//! run/           records of started processes
//! nodes/NAME/    node.json, etc/ (its configuration), log/, fs/ (its folders),
//!                upper/ (its own files over the machine's), init.json (process 1)
//! ```

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::cache::Cache;
use crate::netns;
use crate::plan::{Family, HOST_NODES, MAX_NODE, Plan};
use crate::programs::Programs;
use crate::progress::say;

/// The default lab's name.
pub const DEFAULT_NAME: &str = "weir";

/// A lab on this machine.
#[derive(Clone, Debug)]
pub struct Lab {
    /// Names and addresses.
    pub plan: Plan,
    /// State folder.
    pub dir: PathBuf,
    /// Cache of programs and images.
    pub cache: Cache,
    /// Folder of the Kubernetes programs.
    pub kube: PathBuf,
}

/// What `lab.json` holds.
#[derive(Serialize, Deserialize)]
struct Record {
    plan: Plan,
    kube: PathBuf,
}

/// A node of a lab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Kubernetes name, host name.
    pub name: String,
    /// Its number: addresses and port names come from it.
    pub number: u8,
}

impl Node {
    /// Its host number on both networks.
    pub fn host(&self) -> u8 {
        HOST_NODES + self.number
    }

    /// Its member name on the switches.
    pub fn member(&self) -> String {
        format!("n{}", self.number)
    }
}

/// The folder that holds the state of all labs.
pub fn base_folder() -> PathBuf {
    let set = std::env::var_os("WEIR_LAB_DIR").filter(|value| !value.is_empty());
    set.map_or_else(|| PathBuf::from("/var/lib/weir-lab"), PathBuf::from)
}

/// Names of the labs that have state on this machine.
pub fn names() -> Vec<String> {
    let entries = fs::read_dir(base_folder()).into_iter().flatten().flatten();
    let labs = entries.filter(|entry| entry.path().join("lab.json").exists());
    let mut names: Vec<_> = labs.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Keeps other changing commands away from a lab until dropped.
pub struct LabLock {
    _file: Flock<File>,
}

/// Waits for and takes a lab's lock (the lab need not exist).
pub fn lock(name: &str) -> Result<LabLock> {
    check_name(name)?;
    let base = base_folder();
    fs::create_dir_all(&base).with_context(|| format!("cannot make {}", base.display()))?;
    let file = File::options().create(true).append(true).open(base.join(format!(".{name}.lock")))?;
    let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(file) => file,
        Err((file, _)) => {
            say(format!("waiting for another command on lab {name} ..."));
            Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error)?
        }
    };
    Ok(LabLock { _file: file })
}

/// Names become parts of paths, host names and cgroups.
pub fn check_name(name: &str) -> Result<()> {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || name.len() > 40 || !name.chars().all(good) || name.starts_with('-') {
        bail!("{name:?} is no name for a lab or node: lower-case letters, digits and dashes, at most 40");
    }
    Ok(())
}

impl Lab {
    /// The lab of a name, if it has state.
    pub fn open(name: &str) -> Result<Option<Self>> {
        check_name(name)?;
        let dir = base_folder().join(name);
        if !dir.join("lab.json").exists() {
            return Ok(None);
        }
        let record: Record = read_json(&dir.join("lab.json"))?;
        Ok(Some(Self { plan: record.plan, dir, cache: Cache::open()?, kube: record.kube }))
    }

    /// The lab of a name, or an error that says how to get one.
    pub fn existing(name: &str) -> Result<Self> {
        Self::open(name)?.with_context(|| format!("there is no lab {name}; `lab up --name {name}` makes it"))
    }

    /// Makes the state of a new lab and claims an index for it.
    pub fn create(name: &str, family: Family, programs: &Programs, cache: &Cache) -> Result<Self> {
        check_name(name)?;
        let dir = base_folder().join(name);
        for folder in ["bin", "pki", "etcd", "log", "run", "nodes"] {
            fs::create_dir_all(dir.join(folder))?;
        }
        let plans = (1..=Plan::MAX_INDEX).map(|index| Plan { name: name.to_owned(), index, family });
        let plan = plans.into_iter().find(netns::claim).context("all lab indexes are taken")?;
        let record = Record { plan: plan.clone(), kube: programs.kube.clone() };
        write_json(&dir.join("lab.json"), &record)?;
        fs::copy(lab_program()?, dir.join("bin/lab")).context("cannot copy the lab program")?;
        Ok(Self { plan, dir, cache: cache.clone(), kube: programs.kube.clone() })
    }

    /// A path in the state folder.
    pub fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.dir.join(relative)
    }

    /// The administrator's kubeconfig, usable on the machine.
    pub fn kubeconfig(&self) -> PathBuf {
        self.path("pki/admin.kubeconfig")
    }

    /// The program that places this lab's processes.
    pub fn program(&self) -> PathBuf {
        self.path("bin/lab")
    }

    /// A Kubernetes program.
    pub fn kube_program(&self, name: &str) -> PathBuf {
        self.kube.join(name)
    }

    /// A node's folder.
    pub fn node_dir(&self, node: &Node) -> PathBuf {
        self.path("nodes").join(&node.name)
    }

    /// The nodes, by number.
    pub fn nodes(&self) -> Result<Vec<Node>> {
        let mut nodes = Vec::new();
        for entry in fs::read_dir(self.path("nodes"))?.flatten() {
            let file = entry.path().join("node.json");
            if file.exists() {
                nodes.push(read_json::<Node>(&file)?);
            }
        }
        nodes.sort_by_key(|node| node.number);
        Ok(nodes)
    }

    /// A node by name.
    pub fn node(&self, name: &str) -> Result<Node> {
        let nodes = self.nodes()?;
        let names: Vec<_> = nodes.iter().map(|node| node.name.clone()).collect();
        let found = nodes.into_iter().find(|node| node.name == name);
        found
            .with_context(|| format!("lab {} has no node {name}; it has {}", self.plan.name, names.join(" ")))
    }

    /// The lowest node number that is free.
    pub fn free_number(&self) -> Result<u8> {
        let taken: Vec<_> = self.nodes()?.into_iter().map(|node| node.number).collect();
        (1..=MAX_NODE).find(|number| !taken.contains(number)).context("the lab is full")
    }
}

/// The `lab` program on disk: this one, or the one that was built beside a test
/// program that uses the library.
fn lab_program() -> Result<PathBuf> {
    if let Some(set) = std::env::var_os("WEIR_LAB_PROGRAM") {
        return Ok(set.into());
    }
    let own = std::env::current_exe()?;
    if own.file_name().is_some_and(|name| name == "lab") {
        return Ok(own);
    }
    // target/PROFILE/deps/e2e-1234 -> target/PROFILE/lab
    let beside = own.ancestors().skip(1).take(2).map(|folder| folder.join("lab")).find(|path| path.is_file());
    beside.context("the lab program is not built: cargo build -p lab (or set WEIR_LAB_PROGRAM)")
}

/// Reads a JSON file.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&bytes).with_context(|| format!("{} is damaged", path.display()))
}

/// Writes a JSON file.
pub fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    fs::write(path, serde_json::to_vec_pretty(value)?)
        .with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe_as_parts_of_paths() {
        assert!(check_name("weir-2").is_ok());
        for bad in ["", "../x", "A", "-x", "a b", &"x".repeat(41)] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }
}
