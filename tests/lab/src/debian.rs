//! Debian trixie, made here: the base image that `deploy/Dockerfile` starts
//! from, and a *tools root* with OVS and OVN that integration tests run
//! programs from.
//!
//! In: Debian's packages. Out: a tarball and a folder in the cache. Both hold
//! newer programs than the machine's own Debian 12 has, hence the tools root:
//! its programs are started through its own dynamic loader (see
//! [`ovs_root`]), so nothing is installed on the machine.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::cache::Cache;
use crate::progress::{Heartbeat, step};
use crate::run::{check, command};

/// The release of images and tools root.
pub const SUITE: &str = "trixie";

/// Raised when the way of making these changes, so that caches refresh.
const RECIPE: &str = "1";

/// The minimal root file system as a tarball: content of `debian:trixie-slim`.
pub fn base_tarball(cache: &Cache) -> Result<PathBuf> {
    cache.get("debian-base", &format!("{SUITE}-{RECIPE}.tar"), |draft| {
        step(&format!("make the Debian {SUITE} base image (about a minute, once per machine)"), || {
            // mmdebstrap tells the format from the name's end.
            let draft_tar = draft.with_extension("tar");
            bootstrap(&[], &draft_tar)?;
            Ok(std::fs::rename(draft_tar, draft)?)
        })
    })
}

/// A folder with trixie's ovsdb-server, ovs-vswitchd, ovn-northd,
/// ovn-controller, their tools and the schema files (`usr/share/openvswitch`,
/// `usr/share/ovn`).
///
/// A program in it runs as `ROOT/lib64/ld-linux-x86-64.so.2 --library-path
/// ROOT/usr/lib/x86_64-linux-gnu ROOT/usr/sbin/PROGRAM ...`; tests find the
/// root by the environment variable `WEIR_OVS_ROOT`.
pub fn ovs_root(cache: &Cache) -> Result<PathBuf> {
    cache.get("ovs-root", &format!("{SUITE}-{RECIPE}"), |draft| {
        step(&format!("make the {SUITE} tools root with OVS and OVN (a minute, once per machine)"), || {
            bootstrap(&["openvswitch-switch", "ovn-central", "ovn-host"], draft)
        })
    })
}

fn bootstrap(packages: &[&str], target: &std::path::Path) -> Result<()> {
    let _heartbeat = Heartbeat::start(Duration::from_secs(20), |since| {
        format!("  still fetching and unpacking Debian packages ({:.0} s)", since.as_secs_f64())
    });
    let mut mmdebstrap = command("mmdebstrap", ["--mode=root", "--variant=minbase"]);
    if !packages.is_empty() {
        mmdebstrap.arg(format!("--include={}", packages.join(",")));
    }
    // Documentation and translations are half of a small image's files.
    for pattern in ["/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*"] {
        mmdebstrap.arg(format!("--dpkgopt=path-exclude={pattern}"));
    }
    mmdebstrap.arg(SUITE).arg(target);
    check(&mut mmdebstrap).context("mmdebstrap could not make a Debian root")
}
