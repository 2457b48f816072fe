//! What is known of ports beside their leases: IP objects, rows of the database, and what
//! owners were told. Of it follows which rows stay and which IP objects nobody needs.

use std::sync::Arc;

use crds::{keys, names};

use super::leases::Owner;
use super::{ReadKey, World, attachments, project, retain};
use crate::ipam::mac;
use crate::objects::Ip;
use crate::view::LeaseState;

impl World {
    pub(super) fn set_ip(&mut self, ip: Arc<Ip>) {
        let name = ip.meta.name.clone();
        self.note_record(&ip);
        self.note_holder(&ip.spec.subnet);
        self.ips.insert(name.clone(), ip);
        self.leases.changed(name);
    }

    /// A port's row stays although no unit states it: its IP object belongs to a
    /// feature of its own, or its pod runs with an address that can't be leased now
    /// (its subnet is broken, or not one that this version serves).
    pub(super) fn reckon_kept(&mut self, port: &Arc<str>) {
        let elsewhere = self.ips.get(port).is_some_and(|ip| belongs_elsewhere(ip));
        let told = self.told(port);
        let held = matches!(self.leases.state(&self.ipam, port), LeaseState::Held(_));
        // It is of who had the name before, and has to go first.
        let before = self.leases.moving.contains(port);
        let kept = elsewhere || (told && !held && !before);
        let changed =
            if kept { self.foreign_ports.insert(port.clone()) } else { self.foreign_ports.remove(port) };
        if changed {
            self.foreign_changes.push((port.clone(), kept));
        }
    }

    pub(super) fn remove_ip(&mut self, name: &Arc<str>) {
        if let Some(ip) = self.ips.remove(name) {
            self.note_holder(&ip.spec.subnet);
        }
        if !self.leases.wanted.contains_key(name) {
            // Freed by hand, or by us: there is nothing to keep any more.
            self.forget(name);
        }
        self.leases.changed(name.clone());
    }

    /// A port row appeared in the replica, or the last of that name is gone.
    pub fn port_row(&mut self, name: Arc<str>, present: bool) {
        let changed =
            if present { self.leases.rows.insert(name.clone()) } else { self.leases.rows.remove(&name) };
        if changed {
            self.project_eip(&name);
            self.leases.changed(name);
        }
    }

    /// A router port of the replica has this MAC address, or is gone: no port of its
    /// switch may ask for the same (contract §3.3).
    pub fn router_port_row(&mut self, name: &str, mac: Option<&str>) {
        self.note_router_port(name, mac.is_some());
        let mac = mac.and_then(mac::parse);
        match mac {
            Some(mac) => self.router_macs.insert(name.into(), mac),
            None => self.router_macs.remove(name),
        };
        let Some(subnet) = self.router_ports.get(name).cloned() else { return };
        self.ipam.set_router_mac(&subnet, mac);
        let vips = self.vips.objects.iter();
        let concerned =
            vips.filter(|(_, vip)| *super::vips::subnet_of(vip) == *subnet).map(|(name, _)| name.clone());
        for name in concerned.collect::<Vec<_>>() {
            self.project_vip(&name);
        }
    }

    /// The owner of a port was told its address.
    pub(super) fn told(&self, port: &str) -> bool {
        let Some(owner) = self.leases.wanted.get(port) else { return false };
        let Some(meta) = self.owner_meta(owner) else { return false };
        match owner {
            Owner::Attachment(_, _, provider) => attachments::told(meta, provider),
            Owner::Querier(subnet) => {
                self.subnets.get(subnet).is_some_and(|subnet| super::querier::has(subnet))
            }
            Owner::Eip(name) => self.eips.objects.get(name).is_some_and(|eip| self.eip_told(eip).is_some()),
            // It says so itself; no address is chosen for one that does not.
            Owner::Nat(_) => true,
            _ => project::allocated(meta),
        }
    }

    /// An IP object is an orphan when nothing needs it and no row of its port is
    /// left. One that is being deleted is let go even if its port lives on: it is a
    /// record, and is written anew.
    pub(super) fn reckon_orphan(&mut self, name: &Arc<str>) {
        let owner = self.leases.wanted.get(name);
        // These have no record of their own: it is of who had the port's name before.
        let other = matches!(owner, Some(Owner::Vip(_) | Owner::Eip(_)));
        let wanted = owner.is_some() && !other && !self.leases.moving.contains(name);
        let needed = wanted || self.retention.kept.contains_key(name);
        let row = self.leases.rows.contains(name);
        let orphan = self.ips.get(name).filter(|ip| {
            let deleting = ip.meta.deleting_at.is_some();
            if needed { deleting } else { (other || !row) && (deleting || is_ours(ip)) }
        });
        let uid = orphan.map(|ip| ip.meta.uid.clone());
        if self.orphans.get(name) != uid.as_ref() {
            match uid {
                Some(uid) => self.orphans.insert(name.clone(), uid),
                None => self.orphans.remove(name),
            };
            self.changed.insert(ReadKey::OrphanIp(name.clone()));
        }
    }
}

/// Made for a pod's default interface or a node, and not kept by a user.
fn is_ours(ip: &Ip) -> bool {
    !retain::reserved(ip) && !belongs_elsewhere(ip)
}

/// Objects whose name is not their pod's (or machine's) belong to a feature of its own:
/// they and their rows stay.
fn belongs_elsewhere(ip: &Ip) -> bool {
    let spec = &ip.spec;
    let named = if spec.namespace.is_empty() {
        *ip.meta.name == *names::node_port(&spec.pod_name)
    } else {
        let default = names::pod_port(&spec.pod_name, &spec.namespace, keys::DEFAULT_PROVIDER);
        let rest = ip.meta.name.strip_prefix(&*default);
        // An attachment has its provider at the end.
        let querier = *ip.meta.name == *names::mcast_querier(&spec.subnet);
        querier || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    !named
}
