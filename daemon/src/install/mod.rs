//! What the agent puts onto a node's disk and into its kernel settings before it can serve: plugins, the network
//! configuration, sysctls.
//!
//! In: the image's folder, the node's folders. Out: files that are always whole, the old or the new one, whatever
//! crashes when (pain list U21); nothing is written that is there already.
//!
//! Two callers: the init container ([`prepare_node`]: plugins and sysctls), and the agent, which puts the network
//! configuration into place last, when it can serve ([`conflist`]): that is what makes a node Ready.

mod atomic;
pub mod conflist;
mod plugins;
mod sysctl;

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

pub use atomic::{Outcome, replace};
pub use plugins::{Installed, install_kubectl, install_plugins};
pub use sysctl::{enable_forwarding, loosen_reverse_path};

use crate::firewall::Family;

/// Where kubectl looks for its plugins; the node's, if that folder is mounted (node contract §5.2).
const KUBECTL_FOLDER: &str = "/usr/local/bin";

/// Installs the plugins from `source` into `plugins` and turns forwarding on for the families in `pod_ips`
/// (the environment variable `POD_IPS`). Returns what was done, for the log.
///
/// # Errors
/// When our own plugin can't be installed, or a kernel setting is refused for another reason than missing rights.
pub fn prepare_node(source: &Path, plugins: &Path, pod_ips: &str) -> io::Result<Vec<String>> {
    let mut done = Vec::new();
    for installed in install_plugins(source, plugins)? {
        done.push(format!("plugin {}: {}", installed.name, installed.what));
    }
    if let Some(installed) = install_kubectl(source, Path::new(KUBECTL_FOLDER))? {
        done.push(format!("kubectl plugin {}: {}", installed.name, installed.what));
    }
    for change in enable_forwarding(&families(pod_ips))? {
        done.push(format!("sysctl {change}"));
    }
    Ok(done)
}

fn families(pod_ips: &str) -> BTreeSet<Family> {
    pod_ips.split(',').filter_map(|ip| ip.trim().parse().ok()).map(|ip| Family::of(&ip)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_of_a_pod() {
        assert_eq!(families("172.30.0.11,fd00::1"), BTreeSet::from([Family::V4, Family::V6]));
        assert_eq!(families("fd00::1"), BTreeSet::from([Family::V6]));
        assert!(families("").is_empty());
    }
}
