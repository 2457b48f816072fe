//! What a subnet tells of itself: counts and ranges for statuses, some of those that
//! hold its addresses, free addresses that a pool could take.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use super::SubnetPool;
use crate::ipam::pool::Pool;
use crate::ipam::ranges::Ranges;
use crate::ipam::request::Family;
use crate::view::Usage;

/// Range strings of the status end after this many ranges (with `...`): a
/// fragmented subnet of 150,000 ports would otherwise exceed what the API server
/// stores in one object.
const MAX_RANGES: usize = 4096;

impl SubnetPool {
    /// Counts and ranges for the status (contract §3.7): `using` is the number of
    /// ports, the same for both families of a dual-stack subnet; those with an
    /// excluded address are not counted.
    pub(crate) fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        let using = self.leases - self.excluded;
        if let Some(pool) = &self.v4 {
            usage.v4_using = using;
            usage.v4_available = pool.capacity().saturating_sub(using);
            usage.v4_available_range = ranges(pool, pool.available().spans());
            usage.v4_using_range = ranges(pool, pool.using().spans());
        }
        if let Some(pool) = &self.v6 {
            usage.v6_using = using;
            usage.v6_available = pool.capacity().saturating_sub(using);
            usage.v6_available_range = ranges(pool, pool.available().spans());
            usage.v6_using_range = ranges(pool, pool.using().spans());
        }
        let families = [&self.v4, &self.v6].into_iter().flatten();
        usage.contested_vips = families.clone().flat_map(Pool::contested).collect();
        usage.contested_gateways = families.filter_map(Pool::contested_gateway).collect();
        usage
    }

    /// Counts and ranges of a named pool: addresses of it that can be had, and that
    /// are in use.
    pub(crate) fn pool_usage(&self, name: &str) -> Usage {
        let of = |pool: &Option<Pool>| -> (u128, u128, String, String) {
            let parts = pool.as_ref().and_then(|pool| Some((pool, pool.of_pool(name)?)));
            let Some((pool, (available, using))) = parts else { return Default::default() };
            let left = match self.pools.get(name).and_then(|pool| pool.size) {
                Some(size) => available.len().min(u128::from(size).saturating_sub(pool.used_in(name))),
                None => available.len(),
            };
            (left, using.len(), ranges(pool, available.spans()), ranges(pool, using.spans()))
        };
        let (v4_available, v4_using, v4_available_range, v4_using_range) = of(&self.v4);
        let (v6_available, v6_using, v6_available_range, v6_using_range) = of(&self.v6);
        Usage {
            v4_available,
            v4_using,
            v6_available,
            v6_using,
            v4_available_range,
            v4_using_range,
            v6_available_range,
            v6_using_range,
            ..Usage::default()
        }
    }

    /// See [`super::Ipam::usage_of`].
    pub(crate) fn usage_of(&self, set: &Ranges, most: usize) -> (Usage, Vec<Arc<str>>) {
        let mut ports = Vec::new();
        let mut of = |pool: &Option<Pool>, family| {
            let Some(pool) = pool else { return Default::default() };
            let using = pool.using_of(set.of(family));
            ports.extend(pool.holders_of(&using, most));
            (using.len(), ranges(pool, using.spans()))
        };
        let (v4_using, v4_using_range) = of(&self.v4, Family::V4);
        let (v6_using, v6_using_range) = of(&self.v6, Family::V6);
        ports.sort();
        ports.dedup();
        ports.truncate(most);
        (Usage { v4_using, v6_using, v4_using_range, v6_using_range, ..Usage::default() }, ports)
    }

    /// See [`super::Ipam::choose_free`].
    pub(crate) fn choose_free(
        &self,
        has: &Ranges,
        size: u64,
        taken: &[&Ranges],
        avoid: &BTreeSet<IpAddr>,
    ) -> Option<Vec<IpAddr>> {
        let mut chosen = Vec::new();
        for (pool, family) in [(&self.v4, Family::V4), (&self.v6, Family::V6)] {
            let Some(pool) = pool else { continue };
            let mut free = pool.unpooled();
            let here = has.of(family);
            let lacking = u128::from(size).saturating_sub(pool.usable_of(here));
            free.subtract(here);
            taken.iter().for_each(|other| free.subtract(other.of(family)));
            for ip in avoid {
                let (of, number) = Family::number(*ip);
                if of == family {
                    free.remove(number, number);
                }
            }
            if free.len() < lacking {
                return None;
            }
            let lowest = free.spans().flat_map(|(first, last)| first..=last);
            chosen.extend(lowest.map(|n| family.address(n)).take(usize::try_from(lacking).ok()?));
        }
        Some(chosen)
    }

    /// Some ports with addresses of a named pool.
    pub(crate) fn holders_in(&self, name: &str, most: usize) -> Vec<Arc<str>> {
        let families = [&self.v4, &self.v6].into_iter().flatten();
        let mut ports: Vec<_> = families.flat_map(|pool| pool.holders_in(name, most)).collect();
        ports.sort();
        ports.dedup();
        ports.truncate(most);
        ports
    }

    /// Some ports that have addresses here, lowest addresses first.
    pub(crate) fn holders(&self, most: usize) -> Vec<Arc<str>> {
        let families = [&self.v4, &self.v6].into_iter().flatten();
        let mut ports: Vec<_> = families.flat_map(|pool| pool.some_holders(most)).collect();
        ports.sort();
        ports.dedup();
        ports.truncate(most);
        ports
    }
}

/// `a-b,c` as in the status.
fn ranges(pool: &Pool, spans: impl Iterator<Item = (u128, u128)>) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for (n, (first, last)) in spans.enumerate() {
        if n > 0 {
            text.push(',');
        }
        if n == MAX_RANGES {
            text.push_str("...");
            break;
        }
        // Writing to a string cannot fail.
        let _ = write!(text, "{}", pool.text(first));
        if last > first {
            let _ = write!(text, "-{}", pool.text(last));
        }
    }
    text
}
