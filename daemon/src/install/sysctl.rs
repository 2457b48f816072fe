//! Kernel settings of a node (node contract §5.2), narrower than Kube-OVN's: it turns the reverse-path filter off for all
//! links, we loosen it on `ovn0` alone; it turns IPv6 forwarding on, which makes the kernel ignore router advertisements,
//! and a node that has its default route from one loses it: we keep that.
//!
//! All of it concerns the network namespace of the calling thread.

use std::collections::BTreeSet;
use std::fs;
use std::io;

use crate::firewall::Family;
use crate::sys::{SysctlOutcome, write_sysctl};

/// Lets the node forward packets. Returns the settings that were changed, as `path=value`.
///
/// # Errors
/// When the kernel refuses for another reason than missing rights or a missing family.
pub fn enable_forwarding(families: &BTreeSet<Family>) -> io::Result<Vec<String>> {
    let mut changed = Vec::new();
    if families.contains(&Family::V4) {
        set("net/ipv4/ip_forward", "1", &mut changed)?;
    }
    if families.contains(&Family::V6) {
        if read("net/ipv6/conf/all/forwarding").as_deref() == Some("0") {
            for link in listening_links() {
                // 2: listen to routers although forwarding.
                set(&format!("net/ipv6/conf/{link}/accept_ra"), "2", &mut changed)?;
            }
        }
        set("net/ipv6/conf/all/forwarding", "1", &mut changed)?;
    }
    Ok(changed)
}

/// Lets packets come in by `link` (`ovn0`) whose way back is another one, as with a gateway on another node. The kernel
/// takes the greater of this value and that for all links, so 2 (loose) wins over a strict default (1).
///
/// # Errors
/// When the kernel refuses for another reason than missing rights.
pub fn loosen_reverse_path(link: &str) -> io::Result<SysctlOutcome> {
    write_sysctl(&format!("net/ipv4/conf/{link}/rp_filter"), "2")
}

fn set(path: &str, value: &str, changed: &mut Vec<String>) -> io::Result<()> {
    if write_sysctl(path, value)? == SysctlOutcome::Written {
        changed.push(format!("{path}={value}"));
    }
    Ok(())
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(format!("/proc/sys/{path}")).ok().map(|text| text.trim().to_owned())
}

/// Links that take router advertisements now and would stop.
fn listening_links() -> Vec<String> {
    let Ok(links) = fs::read_dir("/proc/sys/net/ipv6/conf") else { return Vec::new() };
    links
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|link| !matches!(link.as_str(), "all" | "default" | "lo"))
        .filter(|link| read(&format!("net/ipv6/conf/{link}/accept_ra")).as_deref() == Some("1"))
        .collect()
}
