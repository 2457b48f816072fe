//! Leases that exist already: read from annotations, port rows and IP objects, and
//! put back into IPAM.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crds::{keys, net};

use super::leases::Owner;
use super::{ReadKey, World, attachments, retain};
use crate::ipam::mac;
use crate::objects::{Ip, Meta};
use crate::view::Lease;

/// A row of `Logical_Switch_Port` as far as leases are concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortRow {
    /// Port name.
    pub name: Arc<str>,
    /// Name of the switch that holds it.
    pub switch: Arc<str>,
    /// Column `addresses`.
    pub addresses: Vec<Arc<str>>,
}

impl World {
    /// Puts back the leases that exist already; called when everything is loaded,
    /// and again when we become the leader: what a follower learned on the way may
    /// be half of what the leader before did.
    ///
    /// What an owner was told comes first, since its network lives by it. Then rows,
    /// which only a leader behind the fence can have written. IP objects come last:
    /// a leader that had lost its lease without knowing may have created them. Within
    /// each the living go before leftovers.
    pub fn restore_leases(&mut self, rows: &[PortRow]) {
        (self.leases.started, self.leases.stale) = (true, false);
        self.restore_vips();
        let wanted = |port: &Arc<str>| self.leases.wanted.contains_key(port);
        let mut order: Vec<Lease> = Vec::new();
        for (port, owner) in &self.leases.wanted {
            let provider = match owner {
                Owner::Attachment(_, _, provider) => provider,
                _ => keys::DEFAULT_PROVIDER,
            };
            if let Owner::Querier(subnet) = owner {
                order.extend(self.querier_told(subnet));
                continue;
            }
            order.extend(self.owner_meta(owner).and_then(|meta| self.of_annotations(port, meta, provider)));
        }
        for vip in self.vips.objects.values().filter(|vip| !self.vips.used_by.contains_key(&vip.meta.name)) {
            order.extend(self.vip_told(vip));
        }
        order.extend(self.eips.objects.values().filter_map(|eip| self.eip_told(eip)));
        for alive in [true, false] {
            let rows = rows.iter().filter(|row| wanted(&row.name) == alive);
            order.extend(rows.filter_map(|row| self.of_row(row)));
            let ips = self.ips.values().filter(|ip| wanted(&ip.meta.name) == alive);
            order.extend(ips.filter_map(|ip| self.of_ip(ip)));
        }
        order.retain(|lease| {
            let vip = self.vip_of_port(&lease.port);
            vip.is_none_or(|vip| !self.vips.used_by.contains_key(vip))
        });
        let before: BTreeMap<Arc<str>, Arc<Lease>> =
            self.ipam.leases().map(|lease| (lease.port.clone(), lease.clone())).collect();
        for port in before.keys() {
            self.ipam.release(port);
        }
        for lease in order {
            self.restore(lease);
        }
        self.restore_nat();
        for (port, old) in before {
            if self.ipam.lease(&port) != Some(&old) {
                self.changed.insert(ReadKey::Lease(port));
            }
        }
        for port in self.leases.wanted.keys().cloned().collect::<Vec<_>>() {
            self.leases.queue(port);
        }
        for name in self.eips.objects.keys().cloned().collect::<Vec<_>>() {
            self.project_eip(&name);
        }
        for port in self.ips.keys().cloned().collect::<Vec<_>>() {
            self.leases.queue(port);
        }
        let leftovers: Vec<_> = self.ipam.leases().map(|lease| lease.port.clone()).collect();
        for port in leftovers {
            self.leases.queue(port);
        }
        // Queued in the order in which objects came, which differs between runs. An address that a
        // user reserves is drawn by nobody before.
        let mut todo = std::mem::take(&mut self.leases.todo);
        todo.make_contiguous().sort_by_cached_key(|port| {
            let reserved = self.ips.get(port).is_some_and(|ip| self.unserved(ip));
            (!reserved, port.clone())
        });
        self.leases.todo = todo;
        self.choose_again();
    }

    /// A failure is no loss: a living port asks for its own address again and is
    /// then told what is in its way.
    pub(super) fn restore(&mut self, lease: Lease) {
        if self.ipam.lease(&lease.port).is_none() && self.ipam.restore(&lease).is_ok() {
            self.changed.insert(ReadKey::Lease(lease.port));
        }
    }

    pub(super) fn of_ip(&self, ip: &Ip) -> Option<Lease> {
        let spec = &ip.spec;
        let port = ip.meta.name.clone();
        if self.unserved(ip) {
            return None;
        }
        let owner = self.served(&port);
        let mac = self.mac_or_drawn(&spec.mac_address, &spec.subnet, &port, &owner);
        lease(port.clone(), &spec.subnet, &spec.v4_ip_address, &spec.v6_ip_address, &mac)
            .or_else(|| lease(port.clone(), &spec.subnet, &spec.ip_address, "", &mac))
            .map(|lease| Lease { owner, ..lease })
            .filter(|lease| self.no_claim_to_gateway(lease))
    }

    /// A user's wish for an address, which nobody has looked at yet: it may be anybody's, or the
    /// gateway's.
    pub(super) fn unserved(&self, ip: &Ip) -> bool {
        let port = &ip.meta.name;
        retain::made_by_user(ip) && !self.told(port) && !self.leases.has_row(port)
    }

    /// Where we are only the IPAM, Kube-OVN records no MAC unless one was asked for (contract §3.3).
    /// Then the one that is drawn: a lease has one. (Of a port of OVN the row says it.)
    fn mac_or_drawn(&self, text: &str, subnet: &str, port: &str, owner: &str) -> Arc<str> {
        if text.trim().is_empty() && !self.of_ovn(subnet) {
            mac::format(mac::draw(self.config.seed, &[subnet, port, owner], 0)).into()
        } else {
            text.into()
        }
    }

    /// A port may have the address that is its subnet's gateway by now, since it had it first; of
    /// that its row is the evidence, while anybody can write an annotation or a record. (Of another
    /// CNI's interface there is no row.)
    fn no_claim_to_gateway(&self, lease: &Lease) -> bool {
        let found = !self.of_ovn(&lease.subnet) || self.leases.has_row(&lease.port);
        found || !self.ipam.is_gateway(lease)
    }

    /// Ports of that subnet are ports of OVN; so they are of one that is not known.
    pub(super) fn of_ovn(&self, subnet: &str) -> bool {
        self.subnet_views.get(subnet).is_none_or(|view| view.is_ovn())
    }

    fn of_row(&self, row: &PortRow) -> Option<Lease> {
        let mut words = row.addresses.first()?.split_ascii_whitespace();
        let mac = words.next().filter(|word| mac::parse(word).is_some())?;
        let ips = words.collect::<Vec<_>>().join(",");
        let lease = lease(row.name.clone(), &row.switch, &ips, "", mac)?;
        Some(Lease { owner: self.served(&row.name), ..lease })
    }

    fn of_annotations(&self, port: &Arc<str>, meta: &Meta, provider: &str) -> Option<Lease> {
        if !attachments::told(meta, provider) {
            return None;
        }
        let value = |key: &str| {
            let value = match key.strip_prefix("ovn.kubernetes.io/") {
                Some(name) if provider != keys::DEFAULT_PROVIDER => {
                    meta.annotations.get(&keys::pod_key(provider, name))
                }
                _ => meta.annotations.get(key),
            };
            value.map_or("", |v| &**v)
        };
        let (ips, mac) = (value(keys::IP_ADDRESS), value(keys::MAC_ADDRESS));
        let switch = match value(keys::LOGICAL_SWITCH) {
            // Of an interface of another CNI no switch is told (contract §2.1).
            "" if provider != keys::DEFAULT_PROVIDER => self.subnet_with(provider, ips)?,
            switch => switch.into(),
        };
        let mac = self.mac_or_drawn(mac, &switch, port, &meta.uid);
        let lease = lease(port.clone(), &switch, ips, "", &mac)?;
        Some(Lease { owner: meta.uid.clone(), ..lease }).filter(|lease| self.no_claim_to_gateway(lease))
    }

    /// The subnet of a provider that has these addresses.
    fn subnet_with(&self, provider: &str, ips: &str) -> Option<Arc<str>> {
        let ips = net::parse_dual_ips(ips).ok()?;
        let named = self.all_of_provider(provider).find(|name| {
            let nets = self.subnet_views.get(*name).map(|view| net::parse_dual_cidrs(&view.spec.cidr_block));
            nets.is_some_and(|nets| nets.is_ok_and(|nets| ips.iter().all(|ip| nets.contains(&ip))))
        });
        named.cloned()
    }

    /// UID of the owner that a lease which exists already serves: an owner that
    /// was told its address. One that was not may be a successor with wishes of
    /// its own; it inherits in [`World::settle_port`].
    fn served(&self, port: &Arc<str>) -> Arc<str> {
        let meta = self.leases.wanted.get(port).and_then(|owner| self.owner_meta(owner));
        meta.filter(|_| self.told(port)).map(|meta| meta.uid.clone()).unwrap_or_default()
    }
}

pub(super) fn lease(port: Arc<str>, subnet: &str, ips: &str, more: &str, mac: &str) -> Option<Lease> {
    let (a, b) = (net::parse_dual_ips(ips).ok()?, net::parse_dual_ips(more).ok()?);
    let (v4, v6): (Option<Ipv4Addr>, Option<Ipv6Addr>) = (a.v4.or(b.v4), a.v6.or(b.v6));
    let complete = (v4.is_some() || v6.is_some()) && mac::parse(mac).is_some() && !subnet.is_empty();
    complete.then(|| Lease { port, subnet: subnet.into(), v4, v6, mac: mac.into(), owner: Arc::default() })
}
