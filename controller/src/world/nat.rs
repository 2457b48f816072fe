//! IptablesEIPs (contract §1.10, §5.7): external addresses of NAT gateways.
//!
//! Gateways are not acted on, so none gets an address here. What one has (a gateway of
//! Kube-OVN goes on answering for it) or asks for is nobody else's as long as the object
//! exists: it is leased (§8.3), which also counts it in the subnet's status and lets a
//! deletion of the subnet wait and name it (§3.7).

use std::net::IpAddr;
use std::sync::Arc;

use crds::{keys, net};

use super::World;
use super::leases::{Owner, fits};
use crate::ipam::{Error, Family, Request};
use crate::objects::{IPTABLES_EIPS, NatAddress, Other};
use crate::view::nat_port;

/// The external subnet of gateways whose spec names none (contract §1.9).
const DEFAULT_SUBNET: &str = "ovn-vpc-external-network";

/// Where its address is from: once it has one, where the label says.
fn subnet_of(eip: &Other, address: &NatAddress) -> Arc<str> {
    let label = eip.meta.labels.get(keys::SUBNET_LABEL);
    match label.filter(|name| !address.given.is_empty() && !name.is_empty()) {
        Some(name) => name.clone(),
        None if address.subnet.is_empty() => DEFAULT_SUBNET.into(),
        None => address.subnet.clone(),
    }
}

impl World {
    pub(super) fn nat_eip(&self, name: &Arc<str>) -> Option<&Arc<Other>> {
        self.others.get(&(IPTABLES_EIPS, Arc::default(), name.clone()))
    }

    /// An IptablesEIP came, changed or went.
    pub(super) fn note_nat_address(&mut self, old: Option<&Other>, new: Option<&Other>) {
        let what = |eip: &Other| {
            let address = eip.nat_address.clone()?;
            Some((eip.meta.uid.clone(), subnet_of(eip, &address), address))
        };
        let (before, now) = (old.and_then(what), new.and_then(what));
        let Some(name) = old.or(new).map(|eip| eip.meta.name.clone()).filter(|_| before != now) else {
            return;
        };
        let port: Arc<str> = nat_port(&name).into();
        match now {
            Some(_) => self.leases.wanted.insert(port.clone(), Owner::Nat(name.clone())),
            None => self.leases.wanted.remove(&port),
        };
        // No port of a switch has it, so what it has no more is free at once.
        let asked = self.ask_for_nat(&name, Request::default());
        if let Some(lease) = self.ipam.lease(&port).cloned()
            && !matches!(&asked, Ok(Some(request)) if fits(&lease, request))
        {
            self.free(&lease);
            self.changed.insert(super::ReadKey::Lease(port.clone()));
        }
        self.leases.changed(port);
    }

    /// What an IptablesEIP has, else what it asks for; `None` when there is nothing, or no
    /// address of its subnet is given to anybody.
    pub(super) fn ask_for_nat(&self, name: &Arc<str>, request: Request) -> Result<Option<Request>, Error> {
        let Some((eip, address)) = self.nat_eip(name).and_then(|eip| Some((eip, eip.nat_address.as_ref()?)))
        else {
            return Ok(None);
        };
        let subnet = subnet_of(eip, address);
        let pooled = self
            .subnet_views
            .get(&subnet)
            .is_some_and(|view| (view.supported || view.external) && view.invalid.is_none());
        if !pooled {
            return Ok(None);
        }
        let refuse = |text: String| Err(Error::InvalidRequest(format!("IptablesEIP {name}: {text}")));
        let mut ips = match net::parse_dual_ips(&address.given) {
            Ok(ips) => ips,
            Err(error) => return refuse(format!("status.ip: {error}")),
        };
        let fields = [("v4ip", &address.v4, Family::V4), ("v6ip", &address.v6, Family::V6)];
        for (field, text, family) in fields.into_iter().filter(|(_, text, _)| !text.is_empty()) {
            match (text.parse::<IpAddr>(), family) {
                (Ok(IpAddr::V4(ip)), Family::V4) => ips.v4 = ips.v4.or(Some(ip)),
                (Ok(IpAddr::V6(ip)), Family::V6) => ips.v6 = ips.v6.or(Some(ip)),
                _ => {
                    let family = family.name();
                    return refuse(format!(
                        "spec.{field} {text:?} is no {family} address; write one of subnet {subnet}"
                    ));
                }
            }
        }
        // Its gateway uses one family: none is drawn for it. Nor is its MAC asked for, since
        // the gateway's interface, which has a lease of its own, answers for the address.
        let family = match (ips.v4, ips.v6) {
            (Some(_), None) => Some(Family::V4),
            (None, Some(_)) => Some(Family::V6),
            _ => None,
        };
        Ok(Some(Request { subnets: vec![subnet], v4: ips.v4, v6: ips.v6, family, ..request }))
    }

    /// Leases what IptablesEIPs say that they have. Whoever was told the same address, or
    /// has a row or a record of it, was there first.
    pub(super) fn restore_nat(&mut self) {
        let named: Vec<Arc<Other>> = self
            .others
            .iter()
            .filter(|((plural, ..), _)| *plural == IPTABLES_EIPS)
            .map(|(_, eip)| eip.clone())
            .collect();
        for eip in named {
            let port = nat_port(&eip.meta.name).into();
            let request = Request { port, owner: eip.meta.uid.clone(), ..Request::default() };
            // A refusal is told when the port is settled.
            if let Ok(Some(request)) = self.ask_for_nat(&eip.meta.name, request)
                && let Ok(lease) = self.ipam.allocate(&request)
            {
                self.changed.insert(super::ReadKey::Lease(lease.port.clone()));
            }
        }
    }
}
