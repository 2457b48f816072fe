//! From nothing to a cluster with Weir: what `make lab` and the end-to-end
//! tests begin with.
//!
//! In: a name, a size, a family. Out: a lab with Weir installed. Work that does
//! not depend on each other runs at once: the programs and images are made
//! while the control plane starts.

use anyhow::{Context, Result};

use crate::cache::Cache;
use crate::images::{self, Binaries, Wanted};
use crate::install::Options;
use crate::plan::Family;
use crate::programs::Programs;
use crate::progress::at_once;
use crate::state::Lab;
use crate::{debian, install, life, packages, programs, seed};

/// Everything that labs and integration tests need from outside this source
/// tree: installed, built or fetched, once per machine.
pub fn tools(cache: &Cache) -> Result<Programs> {
    packages::ensure()?;
    let mut built = None;
    // Compiling needs the processors, Debian's packages the network.
    at_once::<()>(vec![
        Box::new(|| {
            built = Some(programs::ensure(cache)?);
            programs::cni_tools(cache).map(drop)
        }),
        Box::new(|| {
            debian::base_tarball(cache)?;
            debian::ovs_root(cache).map(drop)
        }),
    ])?;
    built.context("no programs")
}

/// Brings a lab up (or takes the one that is up), makes and imports the images
/// and installs Weir.
pub fn prepare(name: &str, nodes: u8, family: Family, binaries: Binaries, options: &Options) -> Result<Lab> {
    let cache = Cache::open()?;
    let programs = tools(&cache)?;
    if binaries == Binaries::Build {
        // Before the cluster starts: a compiler leaves no time for anything else.
        images::build_binaries()?;
    }
    let enough = match Lab::open(name)? {
        Some(lab) => life::is_up(&lab)? && lab.nodes()?.len() >= usize::from(nodes),
        None => false,
    };
    // The new nodes' image store is made while the control plane starts.
    let mut wanted = None;
    at_once::<()>(vec![
        Box::new(|| {
            let mut archives = images::base_archives(&cache, &programs)?;
            archives.push(images::weir_archive(&cache, &programs, Binaries::AsTheyAre)?);
            let seed = if enough { None } else { Some(seed::ensure(&cache, &archives)?) };
            wanted = Some(Wanted { archives, seed });
            Ok(())
        }),
        Box::new(|| life::up(name, 0, family, &programs, &cache).map(drop)),
    ])?;
    let lab = Lab::existing(name)?;
    wanted.context("no images")?.save(&lab)?;
    life::up(name, nodes, family, &programs, &cache)?;
    // Workloads come after their images: a kubelet that looks for one too early
    // tries to pull it and then waits ten seconds.
    at_once::<()>(vec![
        Box::new(|| images::import(&lab)),
        Box::new(|| install::apply_definitions(&lab, options)),
    ])?;
    install::apply(&lab, options)?;
    install::wait_ready(&lab)?;
    Ok(lab)
}
