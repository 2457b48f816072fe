//! How much of each subnet is used, told at a pace that a burst of pods does not set.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{ReadKey, World, renew};

/// So many ports that hold addresses of a subnet on its way out are named.
const HOLDERS: usize = 5;

/// Usage of a subnet is projected at most this often: a burst of pods costs the
/// subnet's status one patch a second, not one per pod.
const USAGE_EVERY_MS: u64 = 1000;
/// Of many subnets each waits longer: one costs as much as a new pod or two, and they
/// shall take a few hundredths of the time at most.
const USAGE_EACH_MS: u64 = 20;
/// But not longer than this.
const USAGE_LONGEST_MS: u64 = 10_000;

impl World {
    /// Projects the usage of subnets when it is due. Called with every input, while a
    /// burst of pods leaves many subnets stale: until it is due only those on their way
    /// out are looked at.
    pub fn project_usage(&mut self, now_ms: u64) {
        self.usage_stale.extend(self.ipam.take_changed());
        let laid_out = std::mem::take(&mut self.laid_out);
        if self.usage_stale.is_empty() {
            return;
        }
        let now = if self.usage_due(now_ms) <= now_ms {
            self.usage_at_ms = Some(now_ms);
            std::mem::take(&mut self.usage_stale)
        } else {
            // What holds a deletion must be known before the object is let go, and who has an address
            // that is to be the gateway's before the router gets it.
            let stale = &mut self.usage_stale;
            let at_once = self.leaving.iter().chain(&self.pools.leaving).chain(&laid_out);
            at_once.filter(|subnet| stale.remove(*subnet)).cloned().collect()
        };
        for subnet in now {
            let mut usage = self.ipam.usage(&subnet);
            if self.subnet_views.get(&subnet).is_some_and(|view| view.deleting) {
                let mut first: BTreeSet<Arc<str>> = self.ipam.holders(&subnet, HOLDERS).into_iter().collect();
                // Of a subnet that can't be read no lease is known, but there are records. All
                // of them are looked at for the last few addresses only.
                if first.len() < HOLDERS {
                    let recorded = self.ips.values().filter(|ip| *ip.spec.subnet == *subnet);
                    first.extend(recorded.map(|ip| ip.meta.name.clone()));
                }
                usage.holders = first.into_iter().take(HOLDERS).collect();
            }
            renew::renew(&mut self.usage, &mut self.changed, ReadKey::Usage, (subnet.clone(), usage));
            if self.pools.lacking.contains(&subnet) {
                // There may be enough for a pool that waits for addresses to choose.
                self.project_pools(&subnet);
            }
            self.project_pool_usage(&subnet);
        }
    }

    /// The usage that units see is the current one.
    pub fn usage_settled(&self) -> bool {
        self.usage_stale.is_empty()
    }

    pub(super) fn usage_due(&self, now_ms: u64) -> u64 {
        let many = USAGE_EACH_MS * self.usage_stale.len() as u64;
        self.usage_at_ms.map_or(now_ms, |at| at + many.clamp(USAGE_EVERY_MS, USAGE_LONGEST_MS))
    }
}
