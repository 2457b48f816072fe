//! The addresses of one subnet and family, and the order in which they are
//! given (contract §3.4).
//!
//! `free` holds what was never given since the last reconfiguration, `released`
//! what came back. The lowest free address goes first; only when none is left do
//! the released ones become free again. So a freed address is reused as late as
//! possible.
//!
//! Named pools are carved out of the block: an address is drawn only for requests
//! that name its pool, or, when no pool has it, for those that name none. Each part
//! rotates by itself.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::interval::IntervalSet;
use super::request::Family;

/// What a family of a subnet is made of, parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The family.
    pub(crate) family: Family,
    /// The block.
    pub(crate) cidr: IpNet,
    /// Gateway, never given.
    pub(crate) gateway: Option<u128>,
    /// Excluded addresses without the gateway.
    pub(crate) excludes: IntervalSet,
    /// Virtual addresses of the subnet without the gateway: no port has one for itself.
    pub(crate) vips: IntervalSet,
}

impl Layout {
    /// First and last host address: network + 1 to broadcast − 1 (in IPv6 too);
    /// both addresses of a /31 or /127, the only one of a /32 or /128.
    pub(crate) fn usable(&self) -> (u128, u128) {
        let first = Family::number(self.cidr.network()).1;
        let last = Family::number(self.cidr.broadcast()).1;
        if last - first < 2 { (first, last) } else { (first + 1, last - 1) }
    }
}

/// A draw that [`Pool::take`] can carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Draw {
    pub(crate) address: u128,
    /// The released addresses must become free first.
    pub(crate) refill: bool,
}

/// Why a requested address can't be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    OutOfRange,
    Gateway,
    Virtual,
    Held(Arc<str>),
}

/// A named pool's addresses, or what no named pool has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Part {
    /// All of its usable addresses that are not reserved.
    all: IntervalSet,
    free: IntervalSet,
    released: IntervalSet,
}

impl Part {
    fn of(all: IntervalSet, using: &IntervalSet) -> Self {
        let mut free = all.clone();
        free.subtract(using);
        Self { all, free, released: IntervalSet::default() }
    }
}

/// Named pools of a family: name to the addresses as configured.
pub(crate) type Named = BTreeMap<Arc<str>, IntervalSet>;

/// One family of a subnet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pool {
    layout: Layout,
    first: u128,
    last: u128,
    /// Usable addresses without the reserved ones.
    capacity: u128,
    /// Excludes, virtual addresses and gateway.
    reserved: IntervalSet,
    /// What no named pool has.
    common: Part,
    /// Named pools as configured, and what of them is usable.
    named: Named,
    parts: BTreeMap<Arc<str>, Part>,
    /// First address of each interval of a named pool, to its last and the pool.
    owners: BTreeMap<u128, (u128, Arc<str>)>,
    using: IntervalSet,
    /// Who has which address; also addresses outside the block (leases older
    /// than a change of the CIDR), which are in none of the sets.
    holders: HashMap<u128, Arc<str>>,
}

impl Pool {
    pub(crate) fn new(layout: Layout) -> Self {
        Self::with_holders(layout, Named::new(), HashMap::new())
    }

    /// The pool after a change of its layout. Every port keeps its address: one
    /// that is outside the new block stays with its port and is not counted.
    pub(crate) fn reconfigured(self, layout: Layout) -> Self {
        if layout == self.layout { self } else { Self::with_holders(layout, self.named, self.holders) }
    }

    /// The pool with other named pools, which must be disjoint. Nothing happens
    /// when they are the same, so that the rotation goes on.
    pub(crate) fn with_pools(self, named: Named) -> Self {
        if named == self.named { self } else { Self::with_holders(self.layout, named, self.holders) }
    }

    fn with_holders(layout: Layout, named: Named, holders: HashMap<u128, Arc<str>>) -> Self {
        let (first, last) = layout.usable();
        let mut reserved = layout.excludes.clone();
        reserved.extend(&layout.vips);
        if let Some(gateway) = layout.gateway {
            reserved.insert(gateway, gateway);
        }
        let mut using = IntervalSet::default();
        for address in holders.keys().copied().filter(|a| (first..=last).contains(a)) {
            using.insert(address, address);
        }
        let mut rest = IntervalSet::of(first, last);
        rest.subtract(&reserved);
        let capacity = rest.len();
        let mut parts = BTreeMap::new();
        let mut owners = BTreeMap::new();
        for (name, configured) in &named {
            let mut all = configured.within(first, last);
            all.subtract(&reserved);
            rest.subtract(configured);
            owners.extend(configured.spans().map(|(a, b)| (a, (b, name.clone()))));
            parts.insert(name.clone(), Part::of(all, &using));
        }
        let common = Part::of(rest, &using);
        Self { layout, first, last, capacity, reserved, common, named, parts, owners, using, holders }
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn holder(&self, address: u128) -> Option<&Arc<str>> {
        self.holders.get(&address)
    }

    fn usable(&self, address: u128) -> bool {
        (self.first..=self.last).contains(&address)
    }

    /// The next dynamic address of a named pool or of what no pool has; `None` when
    /// there is none that `skip` allows.
    pub(crate) fn draw(&self, pool: Option<&str>, skip: impl Fn(u128) -> bool) -> Option<Draw> {
        let part = match pool {
            None => &self.common,
            Some(name) => self.parts.get(name)?,
        };
        if let Some(address) = part.free.lowest(&skip) {
            return Some(Draw { address, refill: false });
        }
        let address = part.released.lowest(|a| self.reserved.contains(a) || skip(a))?;
        Some(Draw { address, refill: true })
    }

    /// The named pool that an address is of.
    pub(crate) fn pool_of(&self, address: u128) -> Option<&Arc<str>> {
        let (_, (last, name)) = self.owners.range(..=address).next_back()?;
        (*last >= address).then_some(name)
    }

    fn part_mut(&mut self, address: u128) -> &mut Part {
        let name = self.pool_of(address).cloned();
        match name.and_then(|name| self.parts.get_mut(&name)) {
            Some(part) => part,
            None => &mut self.common,
        }
    }

    /// Whether `port` may have exactly this address. Excluded addresses may be
    /// asked for by name; the gateway and virtual ones may not, unless the port has it.
    pub(crate) fn check(&self, address: u128, port: &str) -> Result<Draw, Refusal> {
        if !self.usable(address) {
            return Err(Refusal::OutOfRange);
        }
        if self.layout.gateway == Some(address) {
            return Err(Refusal::Gateway);
        }
        match self.holders.get(&address) {
            Some(holder) if &**holder != port => Err(Refusal::Held(holder.clone())),
            None if self.layout.vips.contains(address) => Err(Refusal::Virtual),
            _ => Ok(Draw { address, refill: false }),
        }
    }

    /// Gives an address to a port (checked or drawn before).
    pub(crate) fn take(&mut self, draw: Draw, port: Arc<str>) {
        let address = draw.address;
        self.holders.insert(address, port);
        if !self.usable(address) {
            return;
        }
        self.using.insert(address, address);
        let part = self.part_mut(address);
        if draw.refill {
            // Nothing reserved comes back: see `give_back`.
            let back = std::mem::take(&mut part.released);
            part.free.extend(&back);
        }
        part.free.remove(address, address);
        part.released.remove(address, address);
    }

    /// Takes an address back. One that is outside the block or excluded does not
    /// become available.
    pub(crate) fn give_back(&mut self, address: u128) {
        if self.holders.remove(&address).is_none() || !self.usable(address) {
            return;
        }
        self.using.remove(address, address);
        if !self.reserved.contains(address) {
            self.part_mut(address).released.insert(address, address);
        }
    }

    /// The address is excluded or virtual (the gateway does not count).
    pub(crate) fn excluded(&self, address: u128) -> bool {
        self.layout.excludes.contains(address) || self.layout.vips.contains(address)
    }

    /// Virtual addresses that a port has for itself all the same, since it had them
    /// first: each with its port.
    pub(crate) fn contested(&self) -> impl Iterator<Item = (IpAddr, Arc<str>)> + '_ {
        let vips = self.layout.vips.spans().flat_map(|(first, last)| first..=last);
        vips.filter_map(|vip| Some((self.text(vip), self.holders.get(&vip)?.clone())))
    }

    /// The gateway's address, while a port has it that had it first, and that port.
    pub(crate) fn contested_gateway(&self) -> Option<(IpAddr, Arc<str>)> {
        let gateway = self.layout.gateway?;
        Some((self.text(gateway), self.holders.get(&gateway)?.clone()))
    }

    /// Usable addresses that are not excluded: what `using` is subtracted from.
    pub(crate) fn capacity(&self) -> u128 {
        self.capacity
    }

    /// Addresses that can still be had (free and released), of all parts.
    pub(crate) fn available(&self) -> Cow<'_, IntervalSet> {
        if self.parts.is_empty() && self.common.released.is_empty() {
            return Cow::Borrowed(&self.common.free);
        }
        let mut all = self.common.free.clone();
        all.extend(&self.common.released);
        for part in self.parts.values() {
            all.extend(&part.free);
            all.extend(&part.released);
        }
        Cow::Owned(all)
    }

    /// Number of addresses of a named pool that are in use and not reserved.
    pub(crate) fn used_in(&self, name: &str) -> u128 {
        self.parts.get(name).map_or(0, |part| part.all.len() - part.free.len() - part.released.len())
    }

    /// Addresses that can be had and that no pool has.
    pub(crate) fn unpooled(&self) -> IntervalSet {
        let mut free = self.common.free.clone();
        free.extend(&self.common.released);
        free
    }

    /// How many of these addresses are usable and not reserved.
    pub(crate) fn usable_of(&self, set: &IntervalSet) -> u128 {
        let mut usable = set.within(self.first, self.last);
        usable.subtract(&self.reserved);
        usable.len()
    }

    /// Of a named pool: addresses that can be had, addresses in use.
    pub(crate) fn of_pool(&self, name: &str) -> Option<(IntervalSet, IntervalSet)> {
        let mut available = self.parts.get(name).map(|part| part.free.clone())?;
        available.extend(&self.parts.get(name)?.released);
        let mut using = IntervalSet::default();
        for (first, last) in self.named.get(name)?.spans() {
            using.extend(&self.using.within(first, last));
        }
        Some((available, using))
    }

    /// Which of these addresses are in use, without those of named pools.
    pub(crate) fn using_of(&self, set: &IntervalSet) -> IntervalSet {
        let mut using = IntervalSet::default();
        for (first, last) in set.spans() {
            using.extend(&self.using.within(first, last));
        }
        self.named.values().for_each(|pool| using.subtract(pool));
        using
    }

    /// Who has addresses of a named pool, at most `most` of them.
    pub(crate) fn holders_in(&self, name: &str, most: usize) -> Vec<Arc<str>> {
        let using = self.of_pool(name).map(|(_, using)| using).unwrap_or_default();
        self.holders_of(&using, most)
    }

    /// Who has these addresses, at most `most` of them.
    pub(crate) fn holders_of(&self, using: &IntervalSet, most: usize) -> Vec<Arc<str>> {
        let addresses = using.spans().flat_map(|(first, last)| first..=last);
        addresses.filter_map(|address| self.holders.get(&address).cloned()).take(most).collect()
    }

    /// Ports with the lowest addresses, at most `most`; those outside the block (older
    /// than a change of the CIDR) come last.
    pub(crate) fn some_holders(&self, most: usize) -> Vec<Arc<str>> {
        let inside = self.using.spans().flat_map(|(first, last)| first..=last);
        let mut ports: Vec<_> =
            inside.filter_map(|address| self.holders.get(&address).cloned()).take(most).collect();
        if ports.len() < most.min(self.holders.len()) {
            let outside = self.holders.iter().filter(|(address, _)| !self.usable(**address));
            let outside: BTreeMap<_, _> = outside.collect();
            ports.extend(outside.into_values().take(most - ports.len()).cloned());
        }
        ports
    }

    pub(crate) fn using(&self) -> &IntervalSet {
        &self.using
    }

    /// An address as text.
    pub(crate) fn text(&self, address: u128) -> IpAddr {
        self.layout.family.address(address)
    }
}
