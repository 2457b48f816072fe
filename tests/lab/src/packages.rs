//! Debian packages that a lab needs on the machine.
//!
//! In: what programs are there. Out: the missing ones installed. A program
//! counts, not a package: a machine with another vendor's containerd is fine.

use anyhow::{Result, bail};

use crate::progress::{say, step};
use crate::run::{command, find_program, run};

/// Programs the lab runs, with the Debian package that brings each.
const PROGRAMS: &[(&str, &str)] = &[
    ("containerd", "containerd"),
    ("containerd-shim-runc-v2", "containerd"),
    ("ctr", "containerd"),
    ("runc", "runc"),
    ("iptables", "iptables"),
    ("ipset", "ipset"),
    ("conntrack", "conntrack"),
    ("busybox", "busybox"),
    ("buildah", "buildah"),
    ("mmdebstrap", "mmdebstrap"),
    ("ip", "iproute2"),
    ("ethtool", "ethtool"),
    ("nsenter", "util-linux"),
    ("mount", "mount"),
    ("curl", "curl"),
    ("ping", "iputils-ping"),
    ("tcpdump", "tcpdump"),
    ("strace", "strace"),
    ("jq", "jq"),
];

/// Packages without a program of their own: certificates for the package
/// registries, and the keys that Debian signs its releases with.
const DATA: &[(&str, &str)] = &[
    ("/etc/ssl/certs/ca-certificates.crt", "ca-certificates"),
    ("/usr/share/keyrings/debian-archive-keyring.gpg", "debian-archive-keyring"),
];

/// Installs what is missing; does nothing, quickly, when all is there.
///
/// Errors: not Debian, not root, or apt's own.
pub fn ensure() -> Result<()> {
    let mut missing: Vec<&str> = PROGRAMS
        .iter()
        .filter(|(program, _)| find_program(program).is_none())
        .chain(DATA.iter().filter(|(file, _)| !std::path::Path::new(file).exists()))
        .map(|(_, package)| *package)
        .collect();
    missing.sort_unstable();
    missing.dedup();
    if missing.is_empty() {
        return Ok(());
    }
    if find_program("apt-get").is_none() {
        bail!("these programs' packages are missing, and there is no apt-get: {}", missing.join(" "));
    }
    say(format!("packages to install: {}", missing.join(" ")));
    step("apt-get update", || run("apt-get", ["update", "-q"]))?;
    step("apt-get install", || {
        let mut install = command("apt-get", ["install", "-q", "-y", "--no-install-recommends"]);
        install.args(&missing).env("DEBIAN_FRONTEND", "noninteractive");
        crate::run::check(&mut install)
    })
}
