//! One subnet: up to two families and its MAC addresses.
//!
//! Allocation is planned first, against `&self`, and carried out only when
//! every part of it succeeded. So a refusal cannot leave half of a dual-stack
//! address behind.

mod usage;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use super::interval::IntervalSet;
use super::layout::SubnetLayout;
use super::mac::{self, Mac};
use super::pool::{Draw, Layout, Named, Pool, Refusal};
use super::ranges::Ranges;
use super::request::{Error, Family, Request};
use crate::view::Lease;

/// A MAC that is free is found at the first draw unless 2^46 are in use; the
/// bound only makes the loop finite.
const MAC_DRAWS: u32 = 64;

/// What an allocation will do.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    v4: Option<Draw>,
    v6: Option<Draw>,
    mac: Mac,
}

/// A named pool of a subnet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolSpec {
    /// Its addresses.
    pub ranges: Ranges,
    /// Most addresses that may be drawn from it, if there is a limit.
    pub size: Option<u64>,
}

/// The pools of one subnet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SubnetPool {
    name: Arc<str>,
    cidr: Arc<str>,
    v4: Option<Pool>,
    v6: Option<Pool>,
    /// Named pools; kept here for families that come later.
    pools: BTreeMap<Arc<str>, PoolSpec>,
    /// Who uses a MAC.
    macs: HashMap<Mac, Arc<str>>,
    /// Others that use the same: only after a restore of what was so.
    more_macs: BTreeSet<(Mac, Arc<str>)>,
    /// MAC of the subnet's router port, never given to a port.
    router_mac: Option<Mac>,
    /// Number of leases, and of those with an excluded (not gateway) address.
    leases: u128,
    excluded: u128,
}

impl SubnetPool {
    pub(crate) fn new(layout: SubnetLayout) -> Self {
        Self {
            name: layout.name,
            cidr: layout.cidr,
            v4: layout.v4.map(Pool::new),
            v6: layout.v6.map(Pool::new),
            pools: BTreeMap::new(),
            macs: HashMap::new(),
            more_macs: BTreeSet::new(),
            router_mac: None,
            leases: 0,
            excluded: 0,
        }
    }

    /// The layout differs from what the pools were built from.
    pub(crate) fn differs(&self, layout: &SubnetLayout) -> bool {
        self.cidr != layout.cidr
            || self.v4.as_ref().map(Pool::layout) != layout.v4.as_ref()
            || self.v6.as_ref().map(Pool::layout) != layout.v6.as_ref()
    }

    /// Rebuilds the families whose layout changed. `leases` are this subnet's: a
    /// family that is new may be older than some of them.
    pub(crate) fn reconfigure<'a>(
        &mut self,
        layout: SubnetLayout,
        leases: impl Iterator<Item = &'a Arc<Lease>>,
    ) {
        self.cidr = layout.cidr;
        let rebuild = |old: Option<Pool>, new: Option<Layout>| match (old, new) {
            (Some(pool), Some(layout)) => Some(pool.reconfigured(layout)),
            (_, new) => new.map(Pool::new),
        };
        self.v4 = rebuild(self.v4.take(), layout.v4);
        self.v6 = rebuild(self.v6.take(), layout.v6);
        self.carve();
        self.excluded = 0;
        for lease in leases {
            for (pool, address) in [(&mut self.v4, number(lease.v4)), (&mut self.v6, number(lease.v6))] {
                if let Some((pool, address)) = pool.as_mut().zip(address)
                    && pool.holder(address).is_none()
                {
                    pool.take(Draw { address, refill: false }, lease.port.clone());
                }
            }
            self.excluded += u128::from(self.is_excluded(lease));
        }
    }

    /// Other named pools, which must be disjoint.
    pub(crate) fn set_pools(&mut self, pools: BTreeMap<Arc<str>, PoolSpec>) {
        self.pools = pools;
        self.carve();
    }

    pub(crate) fn pools(&self) -> &BTreeMap<Arc<str>, PoolSpec> {
        &self.pools
    }

    fn carve(&mut self) {
        let named = |of: fn(&Ranges) -> &IntervalSet| -> Named {
            self.pools.iter().map(|(name, pool)| (name.clone(), of(&pool.ranges).clone())).collect()
        };
        let (v4, v6) = (named(|ranges| &ranges.v4), named(|ranges| &ranges.v6));
        self.v4 = self.v4.take().map(|pool| pool.with_pools(v4));
        self.v6 = self.v6.take().map(|pool| pool.with_pools(v6));
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(crate) fn set_router_mac(&mut self, mac: Option<Mac>) {
        self.router_mac = mac;
    }

    fn pool(&self, family: Family) -> Option<&Pool> {
        match family {
            Family::V4 => self.v4.as_ref(),
            Family::V6 => self.v6.as_ref(),
        }
    }

    /// Decides what `request` gets here. `current` is the port's lease if it is on
    /// this subnet.
    pub(crate) fn plan(&self, request: &Request, current: Option<&Lease>, seed: u64) -> Result<Plan, Error> {
        if let Some(family) = request.family.filter(|f| self.pool(*f).is_none()) {
            return Err(self.no_family(family, "annotation ip_family".into()));
        }
        let Some(pools) = request.pools.get(&self.name) else {
            return self.plan_in(None, request, current, seed);
        };
        let mut error = Error::PoolExhausted {
            pools: pools.join(", "),
            subnet: self.name.clone(),
            family: request.family.map_or("", Family::name),
        };
        for pool in pools {
            match self.plan_in(Some(pool), request, current, seed) {
                Ok(plan) => return Ok(plan),
                Err(e) if e.weight() > error.weight() => error = e,
                Err(_) => {}
            }
        }
        Err(error)
    }

    /// What `request` gets if what is drawn has to be of one named pool.
    fn plan_in(
        &self,
        pool: Option<&Arc<str>>,
        request: &Request,
        current: Option<&Lease>,
        seed: u64,
    ) -> Result<Plan, Error> {
        let plan = |family, asked, current| self.plan_family(family, pool, request, asked, current);
        let v4 = plan(Family::V4, number(request.v4), current.and_then(|l| number(l.v4)))?;
        let v6 = plan(Family::V6, number(request.v6), current.and_then(|l| number(l.v6)))?;
        let mac = self.plan_mac(request, current, seed)?;
        Ok(Plan { v4, v6, mac })
    }

    /// A pool that is limited has as many addresses in use as it may.
    fn is_full(&self, name: &str) -> bool {
        let Some(size) = self.pools.get(name).and_then(|pool| pool.size) else { return false };
        let used = |pool: &Option<Pool>| pool.as_ref().map_or(0, |pool| pool.used_in(name));
        used(&self.v4).max(used(&self.v6)) >= size.into()
    }

    fn plan_family(
        &self,
        family: Family,
        named: Option<&Arc<str>>,
        request: &Request,
        asked: Option<u128>,
        current: Option<u128>,
    ) -> Result<Option<Draw>, Error> {
        if request.family.is_some_and(|only| only != family) {
            return match asked {
                Some(address) => Err(Error::InvalidRequest(format!(
                    "port {}: address {} was requested, but annotation ip_family asks for the other family only; \
                     remove one of the two",
                    request.port,
                    family.address(address)
                ))),
                None => Ok(None),
            };
        }
        let Some(pool) = self.pool(family) else {
            return match asked {
                Some(address) => Err(self.no_family(family, format!("address {}", family.address(address)))),
                None => Ok(None),
            };
        };
        if let Some(address) = asked {
            return pool.check(address, &request.port).map(Some).map_err(|refusal| match refusal {
                Refusal::OutOfRange => Error::OutOfRange {
                    subnet: self.name.clone(),
                    cidr: self.cidr.clone(),
                    address: pool.text(address),
                },
                Refusal::Gateway => self.conflict(pool.text(address).to_string(), "its gateway".into()),
                Refusal::Virtual => self.conflict(pool.text(address).to_string(), "its spec.vips".into()),
                Refusal::Held(holder) => self.conflict(pool.text(address).to_string(), holder),
            });
        }
        if let Some(address) = current {
            return Ok(Some(Draw { address, refill: false }));
        }
        let avoid = |number: u128| request.avoid.contains(&family.address(number));
        if named.is_some_and(|name| self.is_full(name)) {
            return Err(self.exhausted(named, family));
        }
        pool.draw(named.map(|name| &**name), avoid).map(Some).ok_or_else(|| self.exhausted(named, family))
    }

    fn exhausted(&self, pool: Option<&Arc<str>>, family: Family) -> Error {
        let (subnet, family) = (self.name.clone(), family.name());
        match pool {
            Some(pool) if !self.pools.contains_key(pool) => {
                Error::NoPool { pool: pool.clone(), subnet: subnet.to_string() }
            }
            Some(pool) => Error::PoolExhausted { pools: pool.to_string(), subnet, family },
            None => Error::Exhausted { subnet, cidr: self.cidr.clone(), family },
        }
    }

    fn plan_mac(&self, request: &Request, current: Option<&Lease>, seed: u64) -> Result<Mac, Error> {
        let taken = |mac: Mac| {
            if self.router_mac == Some(mac) {
                return Some(Arc::from("its router port"));
            }
            self.mac_users(mac).find(|port| **port != request.port).cloned()
        };
        if let Some(mac) = request.mac {
            return match taken(mac) {
                Some(holder) => Err(self.conflict(mac::format(mac), holder)),
                None => Ok(mac),
            };
        }
        if let Some(mac) = current.and_then(|l| mac::parse(&l.mac)) {
            return Ok(mac);
        }
        (0..MAC_DRAWS)
            .map(|attempt| mac::draw(seed, &[&self.name, &request.port, &request.owner], attempt))
            .find(|mac| taken(*mac).is_none())
            .ok_or_else(|| self.conflict("any MAC".into(), "other ports".into()))
    }

    /// Carries out a plan; the port must hold nothing here any more.
    pub(crate) fn carry_out(&mut self, plan: &Plan, request: &Request) -> Lease {
        let lease = Lease {
            port: request.port.clone(),
            subnet: self.name.clone(),
            v4: plan.v4.and_then(|d| match Family::V4.address(d.address) {
                IpAddr::V4(a) => Some(a),
                IpAddr::V6(_) => None,
            }),
            v6: plan.v6.map(|d| Ipv6Addr::from(d.address)),
            mac: mac::format(plan.mac).into(),
            owner: request.owner.clone(),
        };
        for (pool, draw) in [(&mut self.v4, plan.v4), (&mut self.v6, plan.v6)] {
            if let Some((pool, draw)) = pool.as_mut().zip(draw) {
                pool.take(draw, request.port.clone());
            }
        }
        self.count(&lease);
        lease
    }

    /// Checks that an existing lease can be put back.
    pub(crate) fn restorable(&self, lease: &Lease) -> Result<(), Error> {
        if mac::parse(&lease.mac).is_none() {
            return Err(Error::InvalidRequest(format!(
                "port {}: its recorded MAC {:?} is not a MAC address; correct or delete its IP object",
                lease.port, lease.mac
            )));
        }
        for (pool, address) in [(&self.v4, number(lease.v4)), (&self.v6, number(lease.v6))] {
            if let Some((pool, address)) = pool.as_ref().zip(address)
                && let Some(holder) = pool.holder(address).filter(|h| **h != lease.port)
            {
                return Err(self.conflict(pool.text(address).to_string(), holder.clone()));
            }
        }
        Ok(())
    }

    /// Puts back a lease that [`Self::restorable`] accepted. An address outside
    /// the block stays with its port and is not counted.
    pub(crate) fn put_back(&mut self, lease: &Lease) {
        for (pool, address) in [(&mut self.v4, number(lease.v4)), (&mut self.v6, number(lease.v6))] {
            if let Some((pool, address)) = pool.as_mut().zip(address) {
                pool.take(Draw { address, refill: false }, lease.port.clone());
            }
        }
        self.count(lease);
    }

    fn count(&mut self, lease: &Lease) {
        if let Some(mac) = mac::parse(&lease.mac) {
            let first = self.macs.entry(mac).or_insert_with(|| lease.port.clone());
            if *first != lease.port {
                self.more_macs.insert((mac, lease.port.clone()));
            }
        }
        self.leases += 1;
        self.excluded += u128::from(self.is_excluded(lease));
    }

    /// Takes back everything a lease holds here.
    pub(crate) fn release(&mut self, lease: &Lease) {
        self.leases -= 1;
        self.excluded -= u128::from(self.is_excluded(lease));
        for (pool, address) in [(&mut self.v4, number(lease.v4)), (&mut self.v6, number(lease.v6))] {
            if let Some((pool, address)) = pool.as_mut().zip(address)
                && pool.holder(address) == Some(&lease.port)
            {
                pool.give_back(address);
            }
        }
        let Some(mac) = mac::parse(&lease.mac) else { return };
        if self.macs.get(&mac) != Some(&lease.port) {
            self.more_macs.remove(&(mac, lease.port.clone()));
            return;
        }
        let next = self.mac_users(mac).nth(1).cloned();
        match next {
            Some(next) => {
                self.more_macs.remove(&(mac, next.clone()));
                self.macs.insert(mac, next);
            }
            None => {
                self.macs.remove(&mac);
            }
        }
    }

    /// Ports that use a MAC, mostly one.
    fn mac_users(&self, mac: Mac) -> impl Iterator<Item = &Arc<str>> {
        let more = self.more_macs.range((mac, Arc::default())..).take_while(move |(other, _)| *other == mac);
        self.macs.get(&mac).into_iter().chain(more.map(|(_, port)| port))
    }

    fn is_excluded(&self, lease: &Lease) -> bool {
        let in_excludes = |pool: &Option<Pool>, address: Option<u128>| {
            pool.as_ref().zip(address).is_some_and(|(pool, address)| pool.excluded(address))
        };
        in_excludes(&self.v4, number(lease.v4)) || in_excludes(&self.v6, number(lease.v6))
    }

    /// The port that has an address here.
    pub(crate) fn holder(&self, ip: IpAddr) -> Option<&Arc<str>> {
        let (family, number) = Family::number(ip);
        self.pool(family)?.holder(number)
    }

    pub(crate) fn is_gateway(&self, ip: IpAddr) -> bool {
        let (family, number) = Family::number(ip);
        self.pool(family).is_some_and(|pool| pool.layout().gateway == Some(number))
    }

    /// The named pool of an address.
    pub(crate) fn pool_of(&self, ip: IpAddr) -> Option<&Arc<str>> {
        let (family, number) = Family::number(ip);
        self.pool(family)?.pool_of(number)
    }

    fn conflict(&self, address: String, holder: Arc<str>) -> Error {
        Error::Conflict { subnet: self.name.clone(), address, holder }
    }

    fn no_family(&self, family: Family, by: String) -> Error {
        Error::InvalidFamily { subnet: self.name.clone(), cidr: self.cidr.clone(), family: family.name(), by }
    }
}

/// The numeric form of a lease's address.
fn number<A: Into<IpAddr>>(address: Option<A>) -> Option<u128> {
    address.map(|a| Family::number(a.into()).1)
}
