//! Virtual addresses that pods list for their ports (annotation `port_vips`, contract §2.1): which
//! ports may answer for an address of a subnet's `vips`.
//!
//! Each interface of a pod lists its own; what counts are the ports that OVN has.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crds::{keys, names};

use super::{ByName, ReadKey, World};
use crate::objects::StringMap;

/// Namespace and name.
type Name = (Arc<str>, Arc<str>);
/// Address and port.
type Listed = (Arc<str>, Arc<str>);

/// Who lists what.
#[derive(Default)]
pub(super) struct Virtuals {
    /// Addresses and ports of a pod; pods that list none are not here.
    of_pod: BTreeMap<Name, BTreeSet<Listed>>,
    /// Ports by address, and how many pods say so: those of one machine share its ports.
    ports: ByName<ByName<usize>>,
}

fn listed(requests: &StringMap) -> impl Iterator<Item = Arc<str>> + '_ {
    let parts = requests.get(keys::PORT_VIPS).into_iter().flat_map(|list| list.split(','));
    parts.filter_map(|part| part.trim().parse::<IpAddr>().ok()).map(|ip| ip.to_string().into())
}

impl Virtuals {
    /// Ports that list an address.
    pub(super) fn ports(&self, address: &str) -> BTreeSet<Arc<str>> {
        self.ports.get(address).into_iter().flat_map(|ports| ports.keys().cloned()).collect()
    }

    /// All of them, by address.
    pub(super) fn all(&self) -> &ByName<ByName<usize>> {
        &self.ports
    }

    /// Replaces what a pod lists; the addresses whose ports are others now.
    fn set(&mut self, pod: Name, new: BTreeSet<Listed>) -> Vec<Arc<str>> {
        let old = self.of_pod.remove(&pod).unwrap_or_default();
        let mut changed = Vec::new();
        for (address, port) in new.difference(&old) {
            let count = self.ports.entry(address.clone()).or_default().entry(port.clone()).or_default();
            *count += 1;
            if *count == 1 {
                changed.push(address.clone());
            }
        }
        for (address, port) in old.difference(&new) {
            let Some(ports) = self.ports.get_mut(address) else { continue };
            let Some(count) = ports.get_mut(port) else { continue };
            *count = count.saturating_sub(1);
            if *count == 0 {
                ports.remove(port);
                changed.push(address.clone());
            }
            if ports.is_empty() {
                self.ports.remove(address);
            }
        }
        if !new.is_empty() {
            self.of_pod.insert(pod, new);
        }
        changed
    }
}

impl World {
    /// A pod or its interfaces have changed, or it is gone.
    pub(super) fn note_virtuals(&mut self, namespace: &Arc<str>, name: &Arc<str>) {
        let mut new = BTreeSet::new();
        if let Some(pod) = self.pod(namespace, name).filter(|pod| pod.wants_network) {
            let interfaces = self.interfaces(namespace, name);
            if interfaces.as_ref().is_none_or(|interfaces| interfaces.default) {
                let mut addresses = listed(&pod.requests).peekable();
                if addresses.peek().is_some() {
                    let base = self.base_name(namespace, name);
                    let port: Arc<str> = names::pod_port(&base, namespace, keys::DEFAULT_PROVIDER).into();
                    new.extend(addresses.map(|address| (address, port.clone())));
                }
            }
            for other in interfaces.iter().flat_map(|interfaces| &interfaces.list).filter(|other| other.ovn) {
                new.extend(listed(&other.requests).map(|address| (address, other.port.clone())));
            }
        }
        for address in self.virtuals.set((namespace.clone(), name.clone()), new) {
            self.changed.insert(ReadKey::VipPorts(address));
        }
    }
}
