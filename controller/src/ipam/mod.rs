//! IPAM: which port has which address (contract §3.3, §3.4).
//!
//! Flows in: subnets (CIDR, gateway, excludes), existing leases after a start,
//! requests and releases of ports. Flows out: leases, usage per subnet. Owned by
//! the world, pure and sans-I/O; no clock, no locks. Truth lives in the IP
//! objects and annotations; after a restart [`Ipam::restore`] is called with them.
//!
//! A refusal changes nothing. A running port never loses its address: not by a
//! changed CIDR, not by a removed exclude.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

mod interval;
mod layout;
pub mod mac;
#[cfg(test)]
mod model;
mod pool;
mod ranges;
mod request;
mod subnet;
#[cfg(test)]
mod tests;
mod unsupported;

use layout::SubnetLayout;
pub use ranges::Ranges;
pub use request::{Choice, Error, Family, PoolRequest, Request, entry_of, pool_request};
pub use subnet::PoolSpec;
use subnet::SubnetPool;
pub use unsupported::unsupported;

pub use crate::view::{Lease, Usage};

/// All subnets' pools and all leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ipam {
    seed: u64,
    subnets: HashMap<Arc<str>, SubnetPool>,
    /// By port name: a port has one lease.
    leases: HashMap<Arc<str>, Arc<Lease>>,
    /// Subnets whose usage changed since the last [`Ipam::take_changed`].
    changed: BTreeSet<Arc<str>>,
}

impl Ipam {
    /// An empty IPAM; `seed` decides which MAC addresses are drawn.
    pub fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// Adds a subnet or applies a change of its `cidrBlock`, `gateway`, `excludeIps` or
    /// `vips`; anything else in the spec is not looked at. A change resets
    /// the rotation order of released addresses; every port keeps its lease.
    ///
    /// # Errors
    /// [`Error::InvalidSubnet`] when a field does not parse; the subnet then keeps
    /// its previous configuration, if it had one.
    pub fn set_subnet(&mut self, name: &str, spec: &crds::SubnetSpec) -> Result<(), Error> {
        let layout = SubnetLayout::parse(
            name,
            &spec.cidr_block,
            &spec.gateway,
            spec.exclude_ips.iter().map(|text| &**text),
            spec.vips.iter().map(|text| &**text),
        )?;
        self.set_layout(name, layout);
        Ok(())
    }

    fn set_layout(&mut self, name: &str, layout: SubnetLayout) {
        match self.subnets.get_mut(name) {
            Some(pool) if !pool.differs(&layout) => return,
            Some(pool) => pool.reconfigure(layout, self.leases.values().filter(|l| &*l.subnet == name)),
            None => {
                self.subnets.insert(name.into(), SubnetPool::new(layout));
            }
        }
        self.changed.insert(name.into());
    }

    /// Forgets a subnet and its leases; returns the ports that had one.
    pub fn remove_subnet(&mut self, name: &str) -> Vec<Arc<str>> {
        if self.subnets.remove(name).is_none() {
            return Vec::new();
        }
        self.changed.insert(name.into());
        let mut ports: Vec<_> =
            self.leases.values().filter(|l| &*l.subnet == name).map(|l| l.port.clone()).collect();
        ports.sort();
        for port in &ports {
            self.leases.remove(port);
        }
        ports
    }

    /// The named pools of a subnet, which must be disjoint. A change resets the
    /// rotation order of released addresses; every port keeps its lease.
    pub fn set_pools(&mut self, subnet: &str, pools: BTreeMap<Arc<str>, PoolSpec>) {
        if let Some(pool) = self.subnets.get_mut(subnet)
            && *pool.pools() != pools
        {
            pool.set_pools(pools);
            self.changed.insert(subnet.into());
        }
    }

    /// Counts and ranges of a named pool; zero for one that is not known.
    pub fn pool_usage(&self, subnet: &str, pool: &str) -> Usage {
        self.subnets.get(subnet).map(|s| s.pool_usage(pool)).unwrap_or_default()
    }

    /// Free addresses of a subnet that a pool of `size` addresses lacks in each family:
    /// the lowest that no pool has and that are in none of `taken` and not in `avoid`.
    /// `None` when there are not enough.
    pub fn choose_free(
        &self,
        subnet: &str,
        has: &Ranges,
        size: u64,
        taken: &[&Ranges],
        avoid: &BTreeSet<IpAddr>,
    ) -> Option<Vec<IpAddr>> {
        self.subnets.get(subnet)?.choose_free(has, size, taken, avoid)
    }

    /// Some ports with addresses of a named pool.
    pub fn pool_holders(&self, subnet: &str, pool: &str, most: usize) -> Vec<Arc<str>> {
        self.subnets.get(subnet).map(|s| s.holders_in(pool, most)).unwrap_or_default()
    }

    /// Counts, ranges and some holders of what is in use of addresses that no named pool has.
    pub fn usage_of(&self, subnet: &str, ranges: &Ranges, most: usize) -> (Usage, Vec<Arc<str>>) {
        self.subnets.get(subnet).map(|s| s.usage_of(ranges, most)).unwrap_or_default()
    }

    /// The named pool that an address of a subnet is of.
    pub fn pool_of(&self, subnet: &str, ip: IpAddr) -> Option<&Arc<str>> {
        self.subnets.get(subnet)?.pool_of(ip)
    }

    /// The port that has an address of a subnet.
    pub fn holder(&self, subnet: &str, ip: IpAddr) -> Option<&Arc<str>> {
        self.subnets.get(subnet)?.holder(ip)
    }

    /// An address of the lease is its subnet's gateway.
    pub fn is_gateway(&self, lease: &Lease) -> bool {
        let ips = [lease.v4.map(IpAddr::from), lease.v6.map(IpAddr::from)];
        let pool = self.subnets.get(&lease.subnet);
        pool.is_some_and(|pool| ips.into_iter().flatten().any(|ip| pool.is_gateway(ip)))
    }

    /// The MAC of the subnet's router port, which no port may have.
    pub fn set_router_mac(&mut self, subnet: &str, mac: Option<mac::Mac>) {
        if let Some(pool) = self.subnets.get_mut(subnet) {
            pool.set_router_mac(mac);
        }
    }

    /// Puts back a lease that exists already (an IP object, an annotation). An
    /// address outside the subnet's present block is kept, uncounted.
    ///
    /// # Errors
    /// [`Error::NoSubnet`], [`Error::Conflict`] when another port has the address,
    /// [`Error::InvalidRequest`] for an unreadable MAC.
    pub fn restore(&mut self, lease: &Lease) -> Result<(), Error> {
        let pool =
            self.subnets.get(&lease.subnet).ok_or_else(|| Error::NoSubnet(lease.subnet.to_string()))?;
        pool.restorable(lease)?;
        if self.leases.get(&lease.port).is_some_and(|held| **held == *lease) {
            return Ok(());
        }
        self.release(&lease.port);
        if let Some(pool) = self.subnets.get_mut(&lease.subnet) {
            // The subnet's own name: a text less for each lease.
            let mut lease = Lease { subnet: pool.name().clone(), ..lease.clone() };
            if let Some(mac) = mac::parse(&lease.mac) {
                lease.mac = mac::format(mac).into();
            }
            pool.put_back(&lease);
            self.changed.insert(lease.subnet.clone());
            self.leases.insert(lease.port.clone(), Arc::new(lease));
        }
        Ok(())
    }

    /// Gives the port its address. A port that has one keeps it (a successor of
    /// the same name inherits it) unless the request names another address, MAC,
    /// family or subnet.
    ///
    /// # Errors
    /// See [`Error`]; nothing has changed then.
    pub fn allocate(&mut self, request: &Request) -> Result<Arc<Lease>, Error> {
        if request.choices.is_empty() { self.allocate_one(request) } else { self.choose(request) }
    }

    /// The first entry of a list that is free; the one that the port has, if it has
    /// one already.
    fn choose(&mut self, request: &Request) -> Result<Arc<Lease>, Error> {
        let has = |choice: &&Choice| {
            let held = self.leases.get(&request.port);
            held.is_some_and(|l| {
                (choice.v4.is_none() || choice.v4 == l.v4) && (choice.v6.is_none() || choice.v6 == l.v6)
            })
        };
        let first = request.choices.iter().find(has).copied();
        let mut error = None;
        for choice in first.into_iter().chain(request.choices.iter().copied()) {
            let one = Request { v4: choice.v4, v6: choice.v6, choices: Vec::new(), ..request.clone() };
            match (self.allocate_one(&one), &error) {
                (Ok(lease), _) => return Ok(lease),
                // An entry that can't be had by anybody says more than one that is taken.
                (Err(e), None | Some(Error::Conflict { .. })) if !matches!(e, Error::Conflict { .. }) => {
                    error = Some(e);
                }
                (Err(e), None) => error = Some(e),
                (Err(_), Some(_)) => {}
            }
        }
        Err(match error {
            Some(Error::Conflict { holder, .. }) => {
                Error::ListExhausted { entries: request.choices.len(), holder }
            }
            Some(error) => error,
            None => Error::NoSubnet(request.subnets.join(", ")),
        })
    }

    /// Hands the lease of one port over to another: addresses and MAC stay, the old
    /// port has none any more. Nothing happens if `from` has no lease or `port` has one.
    pub fn hand_to(&mut self, from: &str, port: &Arc<str>, owner: &Arc<str>) -> Option<Arc<Lease>> {
        if self.leases.contains_key(port) {
            return None;
        }
        let old = self.leases.remove(from)?;
        let lease = Lease { port: port.clone(), owner: owner.clone(), ..(*old).clone() };
        if let Some(pool) = self.subnets.get_mut(&lease.subnet) {
            pool.release(&old);
            pool.put_back(&lease);
        }
        self.changed.insert(lease.subnet.clone());
        let lease = Arc::new(lease);
        self.leases.insert(port.clone(), lease.clone());
        Some(lease)
    }

    fn allocate_one(&mut self, request: &Request) -> Result<Arc<Lease>, Error> {
        let held = self.leases.get(&request.port).cloned();
        let asks = request.v4.is_some() || request.v6.is_some() || request.mac.is_some();
        if let Some(lease) = &held
            && !asks
        {
            // The same owner's running port: whatever changed around it, it stays.
            if lease.owner == request.owner {
                return Ok(lease.clone());
            }
            // A lease restored from an IP object does not know whom it serves.
            if lease.owner.is_empty() {
                return Ok(self.hand_over(lease, &request.owner));
            }
        }
        let held_subnet = held.as_ref().map(|l| l.subnet.clone());
        // The subnet that the port is on comes first: inheriting beats moving.
        let mut order: Vec<&Arc<str>> = request.subnets.iter().collect();
        order.sort_by_key(|name| Some(*name) != held_subnet.as_ref());
        let mut error = Error::NoSubnet(request.subnets.join(", "));
        for name in order {
            let Some(pool) = self.subnets.get(name) else { continue };
            let current = held.as_deref().filter(|l| l.subnet == *name);
            match pool.plan(request, current, self.seed) {
                Ok(plan) => {
                    self.release(&request.port);
                    let Some(pool) = self.subnets.get_mut(name) else { continue };
                    let lease = Arc::new(pool.carry_out(&plan, request));
                    self.changed.insert(name.clone());
                    self.leases.insert(request.port.clone(), lease.clone());
                    return Ok(lease);
                }
                Err(e) if e.weight() > error.weight() => error = e,
                Err(_) => {}
            }
        }
        Err(error)
    }

    fn hand_over(&mut self, lease: &Lease, owner: &Arc<str>) -> Arc<Lease> {
        let lease = Arc::new(Lease { owner: owner.clone(), ..lease.clone() });
        self.leases.insert(lease.port.clone(), lease.clone());
        lease
    }

    /// Frees the port's address. It is given again as late as possible.
    pub fn release(&mut self, port: &str) {
        if let Some(lease) = self.leases.remove(port) {
            if let Some(pool) = self.subnets.get_mut(&lease.subnet) {
                pool.release(&lease);
            }
            self.changed.insert(lease.subnet.clone());
        }
    }

    /// The port's lease.
    pub fn lease(&self, port: &str) -> Option<&Arc<Lease>> {
        self.leases.get(port)
    }

    /// Some ports that have addresses of a subnet: those with the lowest addresses. Costs
    /// no more in a subnet with many.
    pub fn holders(&self, subnet: &str, most: usize) -> Vec<Arc<str>> {
        self.subnets.get(subnet).map(|s| s.holders(most)).unwrap_or_default()
    }

    /// Number of leases.
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// There is no lease.
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// All leases, in no order.
    pub fn leases(&self) -> impl Iterator<Item = &Arc<Lease>> {
        self.leases.values()
    }

    /// Counts and ranges of a subnet; zero for one that is not known. Costs as
    /// much as the ranges are many: ask once per change of the status, not per port.
    pub fn usage(&self, subnet: &str) -> Usage {
        self.subnets.get(subnet).map(SubnetPool::usage).unwrap_or_default()
    }

    /// Subnets whose usage changed since the last call. Refused requests of these
    /// are worth another try.
    pub fn take_changed(&mut self) -> BTreeSet<Arc<str>> {
        std::mem::take(&mut self.changed)
    }
}
