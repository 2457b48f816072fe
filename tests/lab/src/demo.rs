//! From nothing to a cluster with Weir: what `make lab` and the end-to-end
//! tests begin with.
//!
//! In: a name, a size, a family. Out: a lab with Weir installed. Work that does
//! not depend on each other runs at once: the programs and images are made
//! while the control plane starts.

use anyhow::Result;

use crate::cache::Cache;
use crate::images::{self, Binaries};
use crate::install::Options;
use crate::plan::Family;
use crate::progress::at_once;
use crate::state::Lab;
use crate::{install, life, packages, programs};

/// Brings a lab up (or takes the one that is up), makes and imports the images
/// and installs Weir.
pub fn prepare(name: &str, nodes: u8, family: Family, binaries: Binaries, options: &Options) -> Result<Lab> {
    packages::ensure()?;
    let cache = Cache::open()?;
    let programs = programs::ensure(&cache)?;
    if binaries == Binaries::Build {
        // Before the cluster starts: a compiler leaves no time for anything else.
        images::build_binaries()?;
    }
    let weir = || images::weir_archive(&cache, &programs, Binaries::AsTheyAre);
    let up = || -> Result<Lab> {
        let lab = life::up(name, nodes, family, &programs, &cache)?;
        images::import(&lab, &images::base_archives(&cache, &programs)?)?;
        Ok(lab)
    };
    let mut lab = None;
    let mut archive = None;
    at_once::<()>(vec![
        Box::new(|| {
            lab = Some(up()?);
            Ok(())
        }),
        Box::new(|| {
            archive = Some(weir()?);
            Ok(())
        }),
    ])?;
    let (Some(lab), Some(archive)) = (lab, archive) else { anyhow::bail!("a step left no result") };
    // Workloads come after their images: a kubelet that looks for one too early
    // tries to pull it and then waits ten seconds.
    at_once::<()>(vec![
        Box::new(|| images::import(&lab, &[archive])),
        Box::new(|| install::apply_definitions(&lab, options)),
    ])?;
    install::apply(&lab, options)?;
    install::wait_ready(&lab)?;
    Ok(lab)
}
