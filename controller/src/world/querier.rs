//! Multicast queriers of subnets (contract §1.1, §4.2): each has an address of its
//! subnet, which is recorded in the subnet's status and in an IP object that the subnet
//! owns.

use std::sync::Arc;

use crds::names;

use super::leases::Owner;
use super::{World, restore};
use crate::ipam::{Error, Request};
use crate::objects::Subnet;
use crate::view::Lease;

/// The status says that the subnet has one.
pub(super) fn has(subnet: &Subnet) -> bool {
    !subnet.status.mcast_querier_ip.is_empty()
}

impl World {
    /// Whether the subnet wants one has changed, or may have.
    pub(super) fn want_querier(&mut self, subnet: &Arc<str>) {
        let wanted = self.subnet_views.get(subnet).is_some_and(|view| {
            view.spec.enable_multicast_snoop && view.supported && view.is_ovn() && !view.deleting
        });
        let port: Arc<str> = names::mcast_querier(subnet).into();
        let owner = Owner::Querier(subnet.clone());
        let is = self.leases.wanted.get(&port);
        if wanted == (is == Some(&owner)) {
            return;
        }
        if wanted {
            self.claim(&port, owner);
        } else {
            self.leases.wanted.remove(&port);
        }
        self.leases.changed(port);
    }

    /// What the status says it has.
    pub(super) fn querier_told(&self, subnet: &str) -> Option<Lease> {
        let object = self.subnets.get(subnet)?;
        let (ips, mac) = (&object.status.mcast_querier_ip, &object.status.mcast_querier_mac);
        let lease = restore::lease(names::mcast_querier(subnet).into(), subnet, ips, "", mac)?;
        Some(Lease { owner: object.meta.uid.clone(), ..lease })
    }

    /// What it asks for: once told, always the same.
    pub(super) fn ask_querier(&self, subnet: &Arc<str>, request: Request) -> Result<Request, Error> {
        let request = Request { subnets: vec![subnet.clone()], ..request };
        let Some(told) = self.querier_told(subnet) else {
            self.serving(&request.port, "enableMulticastSnoop", request.subnets.clone())?;
            return Ok(request);
        };
        let mac = told.mac.clone();
        Request { v4: told.v4, v6: told.v6, ..request }.with_mac("status.mcastQuerierMAC", Some(&*mac))
    }
}
