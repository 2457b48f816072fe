//! The addresses of one subnet and family, and the order in which they are
//! given (contract §3.4).
//!
//! `free` holds what was never given since the last reconfiguration, `released`
//! what came back. The lowest free address goes first; only when none is left do
//! the released ones become free again. So a freed address is reused as late as
//! possible.

use std::collections::HashMap;
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
    Held(Arc<str>),
}

/// One family of a subnet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pool {
    layout: Layout,
    first: u128,
    last: u128,
    /// Usable addresses without the reserved ones.
    capacity: u128,
    /// Excludes and gateway.
    reserved: IntervalSet,
    free: IntervalSet,
    released: IntervalSet,
    using: IntervalSet,
    /// Who has which address; also addresses outside the block (leases older
    /// than a change of the CIDR), which are in none of the sets.
    holders: HashMap<u128, Arc<str>>,
}

impl Pool {
    pub(crate) fn new(layout: Layout) -> Self {
        Self::with_holders(layout, HashMap::new())
    }

    /// The pool after a change of its layout. Every port keeps its address: one
    /// that is outside the new block stays with its port and is not counted.
    pub(crate) fn reconfigured(self, layout: Layout) -> Self {
        if layout == self.layout { self } else { Self::with_holders(layout, self.holders) }
    }

    fn with_holders(layout: Layout, holders: HashMap<u128, Arc<str>>) -> Self {
        let (first, last) = layout.usable();
        let mut reserved = layout.excludes.clone();
        if let Some(gateway) = layout.gateway {
            reserved.insert(gateway, gateway);
        }
        let mut free = IntervalSet::of(first, last);
        free.subtract(&reserved);
        let capacity = free.len();
        let mut using = IntervalSet::default();
        for address in holders.keys().copied().filter(|a| (first..=last).contains(a)) {
            free.remove(address, address);
            using.insert(address, address);
        }
        Self {
            layout,
            first,
            last,
            capacity,
            reserved,
            free,
            released: IntervalSet::default(),
            using,
            holders,
        }
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

    /// The next dynamic address, `None` when there is none that `skip` allows.
    pub(crate) fn draw(&self, skip: impl Fn(u128) -> bool) -> Option<Draw> {
        if let Some(address) = self.free.lowest(&skip) {
            return Some(Draw { address, refill: false });
        }
        let address = self.released.lowest(|a| self.reserved.contains(a) || skip(a))?;
        Some(Draw { address, refill: true })
    }

    /// Whether `port` may have exactly this address. Excluded addresses may be
    /// asked for by name; the gateway may not.
    pub(crate) fn check(&self, address: u128, port: &str) -> Result<Draw, Refusal> {
        if !self.usable(address) {
            return Err(Refusal::OutOfRange);
        }
        if self.layout.gateway == Some(address) {
            return Err(Refusal::Gateway);
        }
        match self.holders.get(&address) {
            Some(holder) if &**holder != port => Err(Refusal::Held(holder.clone())),
            _ => Ok(Draw { address, refill: false }),
        }
    }

    /// Gives an address to a port (checked or drawn before).
    pub(crate) fn take(&mut self, draw: Draw, port: Arc<str>) {
        if draw.refill {
            let mut back = std::mem::take(&mut self.released);
            back.subtract(&self.reserved);
            self.free.extend(&back);
        }
        let address = draw.address;
        self.holders.insert(address, port);
        if self.usable(address) {
            self.free.remove(address, address);
            self.released.remove(address, address);
            self.using.insert(address, address);
        }
    }

    /// Takes an address back. One that is outside the block or excluded does not
    /// become available.
    pub(crate) fn give_back(&mut self, address: u128) {
        if self.holders.remove(&address).is_none() || !self.usable(address) {
            return;
        }
        self.using.remove(address, address);
        if !self.reserved.contains(address) {
            self.released.insert(address, address);
        }
    }

    /// The address is excluded (the gateway does not count).
    pub(crate) fn excluded(&self, address: u128) -> bool {
        self.layout.excludes.contains(address)
    }

    /// Usable addresses that are not excluded: what `using` is subtracted from.
    pub(crate) fn capacity(&self) -> u128 {
        self.capacity
    }

    /// Addresses that can still be had, as intervals (free and released).
    pub(crate) fn available(&self) -> impl Iterator<Item = (u128, u128)> + '_ {
        self.free.union(&self.released)
    }

    pub(crate) fn using(&self) -> &IntervalSet {
        &self.using
    }

    /// An address as text.
    pub(crate) fn text(&self, address: u128) -> IpAddr {
        self.layout.family.address(address)
    }
}
