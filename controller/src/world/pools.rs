//! IPPools: checked against their subnet and each other (contract §1.3), carved
//! out of the subnet's addresses, and bound to namespaces.
//!
//! A pool that can't be used keeps its namespaces waiting rather than sending their
//! pods to addresses that nobody wanted for them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crds::{names, net};

use super::renew::renew;
use super::{ByName, ReadKey, World};
use crate::ipam::{PoolSpec, Ranges};
use crate::objects::IpPool;
use crate::view::{IpPoolView, PoolUsage};

/// Reason of conditions about a pool that can't be used (contract §8.8).
const FAILED: &str = "UpdateIPAMFailed";
/// Ports named by a pool that waits for them at most.
const NAMED_HOLDERS: usize = 5;
/// Addresses that are chosen for one pool at most: they are written one by one.
const MOST_CHOSEN: u64 = 4096;

/// All pools.
#[derive(Default)]
pub(super) struct Pools {
    pub(super) objects: ByName<Arc<IpPool>>,
    pub(super) views: ByName<Arc<IpPoolView>>,
    pub(super) usage: ByName<Arc<PoolUsage>>,
    pub(super) by_namespace: ByName<Arc<Vec<Arc<str>>>>,
    /// What IPAM has of the pools of each subnet.
    carved: ByName<BTreeMap<Arc<str>, PoolSpec>>,
    /// Pools of each subnet that IPAM has nothing of: something is wrong with them.
    broken: ByName<BTreeSet<Arc<str>>>,
    /// Subnets with a pool on its way out.
    pub(super) leaving: BTreeSet<Arc<str>>,
    /// Subnets with a pool that has less addresses in its object than it should choose.
    pub(super) lacking: BTreeSet<Arc<str>>,
}

/// `spec.ips` as it has to be.
type Texts = Vec<Arc<str>>;
/// What is wrong, in words that name the remedy.
type Problem = String;

/// Its condition says that it works.
fn is_ready(pool: &IpPool) -> bool {
    pool.status.conditions.iter().any(|c| c.r#type == "Ready" && c.status == "True")
}

impl World {
    pub(super) fn set_pool(&mut self, pool: Arc<IpPool>) {
        let (name, subnet) = (pool.meta.name.clone(), Arc::<str>::from(&*pool.spec.subnet));
        let old = self.pools.objects.insert(name.clone(), pool.clone());
        let decides =
            |pool: &IpPool| (pool.meta.uid.clone(), pool.meta.deleting_at.is_some(), is_ready(pool));
        if old.as_ref().is_some_and(|old| decides(old) == decides(&pool) && old.spec == pool.spec) {
            return;
        }
        let moved = old.map(|old| Arc::<str>::from(&*old.spec.subnet)).filter(|old| *old != subnet);
        for subnet in moved.into_iter().chain([subnet]) {
            self.project_pools(&subnet);
            // Of one that can't be used it follows from what the object lists.
            self.usage_stale.insert(subnet);
        }
        self.project_namesakes(&name);
    }

    /// Pools of other subnets whose address set would have the same name.
    fn project_namesakes(&mut self, name: &str) {
        let set = names::dot_form(name);
        let others = self.pools.objects.values().filter(|pool| *pool.meta.name != *name);
        let others = others.filter(|pool| names::dot_form(&pool.meta.name) == set);
        let subnets: BTreeSet<Arc<str>> = others.map(|pool| Arc::from(&*pool.spec.subnet)).collect();
        for subnet in subnets {
            self.project_pools(&subnet);
        }
    }

    /// The pool that has the address set of that name already: dashes become dots (contract
    /// §4.4). Of two the one that works already has it, then the first by name.
    fn namesake(&self, pool: &IpPool) -> Option<Arc<str>> {
        let set = names::dot_form(&pool.meta.name);
        let rank = |pool: &IpPool| (!is_ready(pool), pool.meta.name.clone());
        let others = self.pools.objects.values().filter(|other| {
            other.spec.enable_address_set
                && other.meta.name != pool.meta.name
                && names::dot_form(&other.meta.name) == set
        });
        others.filter(|other| rank(other) < rank(pool)).map(|other| other.meta.name.clone()).next()
    }

    pub(super) fn remove_pool(&mut self, name: &Arc<str>) {
        let Some(pool) = self.pools.objects.remove(name) else { return };
        self.pools.views.remove(name);
        self.changed.insert(ReadKey::IpPool(name.clone()));
        if self.pools.usage.remove(name).is_some() {
            self.changed.insert(ReadKey::PoolUsage(name.clone()));
        }
        self.project_pools(&Arc::from(&*pool.spec.subnet));
        self.project_namesakes(name);
    }

    /// Projects all pools of a subnet anew: one's validity depends on the others and
    /// on the subnet.
    pub(super) fn project_pools(&mut self, subnet: &Arc<str>) {
        let mut order: Vec<Arc<IpPool>> =
            self.pools.objects.values().filter(|pool| *pool.spec.subnet == **subnet).cloned().collect();
        let before = self.pools.carved.remove(subnet).unwrap_or_default();
        let broken_before = self.pools.broken.remove(subnet).unwrap_or_default();
        self.pools.leaving.remove(subnet);
        self.pools.lacking.remove(subnet);
        if order.is_empty() && before.is_empty() && broken_before.is_empty() {
            return;
        }
        let mut broken = BTreeSet::new();
        let mut changed = false;
        // Of two that overlap the one that works already wins.
        order.sort_by_key(|pool| (!is_ready(pool), pool.meta.name.clone()));
        let mut carved: BTreeMap<Arc<str>, PoolSpec> = BTreeMap::new();
        for pool in order {
            let name = pool.meta.name.clone();
            let checked = self.check_pool(subnet, &pool, &carved);
            let (spec, fill, problem) = match checked {
                Ok((spec, fill)) => (Some(spec), fill, None),
                Err(problem) => (None, None, Some(problem)),
            };
            if pool.meta.deleting_at.is_some() {
                self.pools.leaving.insert(subnet.clone());
            }
            if fill.is_some() || (spec.is_none() && pool.spec.pre_allocate) {
                self.pools.lacking.insert(subnet.clone());
            }
            if spec.is_none() {
                broken.insert(name.clone());
            }
            let set = spec.as_ref().filter(|_| pool.spec.enable_address_set);
            let view = IpPoolView {
                uid: pool.meta.uid.clone(),
                deleting: pool.meta.deleting_at.is_some(),
                subnet: subnet.clone(),
                namespaces: pool.spec.namespaces.iter().map(|n| n.as_str().into()).collect(),
                fill,
                address_set: set.map(|spec| spec.ranges.cidrs().into_iter().map(Into::into).collect()),
                invalid: problem.map(|problem| (FAILED.into(), format!("IPPool {name}: {problem}").into())),
            };
            carved.extend(spec.map(|spec| (name.clone(), spec)));
            changed |= self.pools.views.get(&name).is_none_or(|old| **old != view);
            renew(&mut self.pools.views, &mut self.changed, ReadKey::IpPool, (name, view));
        }
        // Also when nothing has changed: the subnet itself may be new to IPAM.
        self.ipam.set_pools(subnet, carved.clone());
        changed |= carved != before || broken != broken_before;
        if !carved.is_empty() {
            self.pools.carved.insert(subnet.clone(), carved);
        }
        if !broken.is_empty() {
            self.pools.broken.insert(subnet.clone(), broken);
        }
        if !changed {
            return;
        }
        self.usage_stale.insert(subnet.clone());
        self.bind_pools();
        self.leases.retry_refused();
    }

    /// What IPAM gets of a pool, and `spec.ips` if addresses had to be chosen.
    fn check_pool(
        &self,
        subnet: &Arc<str>,
        pool: &IpPool,
        others: &BTreeMap<Arc<str>, PoolSpec>,
    ) -> Result<(PoolSpec, Option<Texts>), Problem> {
        let spec = &pool.spec;
        let Some(view) = self.subnet_views.get(subnet) else {
            return Err(format!("subnet {subnet} does not exist; create it, or name another one"));
        };
        if let Some((_, message)) = &view.invalid {
            return Err(format!("its subnet can't be used: {message}"));
        }
        if let Some(other) = self.namesake(pool).filter(|_| spec.enable_address_set) {
            return Err(format!(
                "enableAddressSet: its address set would be that of IPPool {other} ({}); rename the pool, or do without",
                names::dot_form(&pool.meta.name)
            ));
        }
        let mut ranges =
            Ranges::parse(spec.ips.iter().map(String::as_str)).map_err(|error| format!("ips: {error}"))?;
        let blocks: Vec<_> =
            net::parse_dual_cidrs(&view.spec.cidr_block).unwrap_or_default().iter().collect();
        if let Some(ip) = ranges.outside(&blocks) {
            return Err(format!(
                "ips: {ip} is outside cidrBlock {} of subnet {subnet}; write addresses inside",
                view.spec.cidr_block
            ));
        }
        for (name, other) in others {
            if let Some(ip) = ranges.meets(&other.ranges) {
                return Err(format!(
                    "ips: {ip} is in IPPool {name} too; an address can be in one pool only, remove it from one of \
                     them"
                ));
            }
        }
        let size = u64::from(spec.size);
        let fill = if spec.pre_allocate {
            if size == 0 || size > MOST_CHOSEN {
                return Err(format!(
                    "preAllocate needs size, the number of addresses to choose, from 1 to {MOST_CHOSEN}"
                ));
            }
            self.fill(subnet, &pool.meta.name, &mut ranges, size, others)?
        } else {
            None
        };
        if ranges.is_empty() {
            return Err("ips is empty; write addresses, ranges or CIDRs, or set size and preAllocate".into());
        }
        let size = (size > 0).then_some(size);
        Ok((PoolSpec { ranges, size }, fill))
    }

    /// Adds free addresses of the subnet until the pool has as many as it should, and
    /// says what `spec.ips` must be then. Only a leader chooses: the choice is in the
    /// object as soon as it is made.
    fn fill(
        &self,
        subnet: &Arc<str>,
        name: &str,
        ranges: &mut Ranges,
        size: u64,
        others: &BTreeMap<Arc<str>, PoolSpec>,
    ) -> Result<Option<Texts>, Problem> {
        let taken: Vec<&Ranges> = others.values().map(|other| &other.ranges).collect();
        let before = self.pools.objects.get(name).map(|pool| pool.spec.ips.clone()).unwrap_or_default();
        // What was chosen and is not in the object yet is not chosen anew.
        if let Some(fill) = self.pools.views.get(name).and_then(|view| view.fill.clone())
            && fill.len() > before.len()
            && fill.iter().zip(&before).all(|(a, b)| **a == **b)
        {
            *ranges = Ranges::parse(fill.iter().map(|text| &**text))?;
            return Ok(Some(fill));
        }
        let chosen = self.ipam.choose_free(subnet, ranges, size, &taken, &self.node_ips);
        if chosen.as_ref().is_some_and(Vec::is_empty) {
            return Ok(None);
        }
        if !self.leases.started {
            // Who has which address is put back after everything is listed.
            return Err(format!(
                "preAllocate: it is not known yet which addresses of subnet {subnet} are free"
            ));
        }
        let Some(chosen) = chosen else {
            return Err(format!(
                "preAllocate: subnet {subnet} has not enough free addresses for size {size}; lower it, or free \
                 addresses"
            ));
        };
        let mut texts: Vec<Arc<str>> = before.iter().map(|text| text.as_str().into()).collect();
        texts.extend(chosen.iter().map(|ip| Arc::from(ip.to_string())));
        *ranges = Ranges::parse(texts.iter().map(|text| &**text))?;
        Ok(Some(texts))
    }

    /// Who has which address was put back: what was chosen before may be somebody's.
    pub(super) fn choose_again(&mut self) {
        for subnet in self.pools.lacking.clone() {
            for (name, view) in &mut self.pools.views {
                if view.subnet == subnet && view.fill.is_some() {
                    *view = Arc::new(IpPoolView { fill: None, ..(**view).clone() });
                    self.changed.insert(ReadKey::IpPool(name.clone()));
                }
            }
            self.project_pools(&subnet);
        }
    }

    /// The pools that pods of each namespace must use.
    fn bind_pools(&mut self) {
        let mut bound: ByName<Vec<Arc<str>>> = BTreeMap::new();
        for (name, view) in self.pools.views.iter().filter(|(_, view)| !view.deleting) {
            for namespace in &view.namespaces {
                bound.entry(namespace.clone()).or_default().push(name.clone());
            }
        }
        let namespaces: BTreeSet<Arc<str>> =
            bound.keys().chain(self.pools.by_namespace.keys()).cloned().collect();
        for namespace in namespaces {
            let new = bound.remove(&namespace);
            if self.pools.by_namespace.get(&namespace).map(|old| &**old) == new.as_ref() {
                continue;
            }
            match new {
                Some(pools) => self.pools.by_namespace.insert(namespace.clone(), Arc::new(pools)),
                None => self.pools.by_namespace.remove(&namespace),
            };
            self.changed.insert(ReadKey::NamespacePools(namespace));
        }
    }

    /// Projects the usage of a subnet's pools. Of one that can't be used that is who has addresses
    /// which it lists and no other pool has.
    pub(super) fn project_pool_usage(&mut self, subnet: &Arc<str>) {
        for name in self.pools.broken.get(subnet).into_iter().flatten() {
            let ips = self.pools.objects.get(name).map(|pool| pool.spec.ips.iter().map(String::as_str));
            let ranges = ips.and_then(|ips| Ranges::parse(ips).ok()).unwrap_or_default();
            let (usage, holders) = self.ipam.usage_of(subnet, &ranges, NAMED_HOLDERS);
            let usage = PoolUsage { usage, holders };
            renew(&mut self.pools.usage, &mut self.changed, ReadKey::PoolUsage, (name.clone(), usage));
        }
        for name in self.pools.carved.get(subnet).into_iter().flat_map(BTreeMap::keys) {
            let usage = self.ipam.pool_usage(subnet, name);
            let holders = self.ipam.pool_holders(subnet, name, NAMED_HOLDERS);
            let usage = PoolUsage { usage, holders };
            renew(&mut self.pools.usage, &mut self.changed, ReadKey::PoolUsage, (name.clone(), usage));
        }
    }

    /// The subnet of a pool.
    pub(super) fn subnet_of_pool(&self, pool: &str) -> Option<Arc<str>> {
        Some(self.pools.views.get(pool)?.subnet.clone())
    }
}
