//! The contract's algorithm (§3.4) written down as plainly as possible, on sets
//! of single addresses, to check [`super::Ipam`] against.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use proptest::prelude::*;

use super::{Error, Family, Ipam, PoolSpec, Ranges, Request};

/// Names of pools; 0 stands for what no pool has.
const POOLS: [&str; 3] = ["", "a", "b"];

#[derive(Clone, Debug, Default)]
struct ModelFamily {
    usable: BTreeSet<u128>,
    gateway: u128,
    reserved: BTreeSet<u128>,
    /// Of each pool.
    free: [BTreeSet<u128>; 3],
    released: [BTreeSet<u128>; 3],
}

#[derive(Clone, Debug)]
struct ModelLease {
    owner: u8,
    addresses: [Option<u128>; 2],
}

#[derive(Clone, Debug, Default)]
struct Model {
    families: [ModelFamily; 2],
    leases: BTreeMap<u8, ModelLease>,
    excludes: Vec<u8>,
    vips: Vec<u8>,
    /// Offsets of the pools.
    pools: [BTreeSet<u8>; 3],
}

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

fn base(family: usize) -> u128 {
    if family == 0 { u32::from(std::net::Ipv4Addr::new(10, 0, 0, 0)).into() } else { 0xfd00 << 112 }
}

impl Model {
    /// Excluded addresses or pools changed: everything starts anew but the leases.
    fn rebuild(&mut self) {
        for (f, family) in self.families.iter_mut().enumerate() {
            family.usable = (1..15).map(|x| base(f) + x).collect();
            family.gateway = base(f) + 1;
            let reserved = self.excludes.iter().chain(&self.vips);
            family.reserved = reserved.map(|x| base(f) + u128::from(*x)).collect();
            family.reserved.insert(family.gateway);
            let using: BTreeSet<u128> = self.leases.values().filter_map(|l| l.addresses[f]).collect();
            family.free = Default::default();
            family.released = Default::default();
            for address in &family.usable {
                if !family.reserved.contains(address) && !using.contains(address) {
                    family.free[pool_of(&self.pools, f, *address)].insert(*address);
                }
            }
        }
    }

    fn release(&mut self, port: u8) {
        if let Some(lease) = self.leases.remove(&port) {
            for (f, address) in lease.addresses.into_iter().enumerate() {
                let pools = &self.pools;
                let family = &mut self.families[f];
                if let Some(a) = address
                    && family.usable.contains(&a)
                    && !family.reserved.contains(&a)
                {
                    family.released[pool_of(pools, f, a)].insert(a);
                }
            }
        }
    }

    fn hand(&mut self, from: u8, to: u8, owner: u8) -> bool {
        if self.leases.contains_key(&to) {
            return false;
        }
        let Some(lease) = self.leases.remove(&from) else { return false };
        self.leases.insert(to, ModelLease { owner, ..lease });
        true
    }

    /// The first of the pools that has everything.
    fn allocate(
        &mut self,
        port: u8,
        owner: u8,
        asked: [Option<u128>; 2],
        only: Option<usize>,
        avoid: u8,
        pools: &[usize],
    ) -> bool {
        pools.iter().any(|pool| self.allocate_in(*pool, port, owner, asked, only, avoid))
    }

    /// The addresses that the request gets, or `None`.
    fn allocate_in(
        &mut self,
        pool: usize,
        port: u8,
        owner: u8,
        asked: [Option<u128>; 2],
        only: Option<usize>,
        avoid: u8,
    ) -> bool {
        let held = self.leases.get(&port).cloned();
        if asked == [None, None] && held.as_ref().is_some_and(|h| h.owner == owner) {
            return true;
        }
        let mut addresses = [None, None];
        let mut refill = [false, false];
        for f in 0..2 {
            if only.is_some_and(|o| o != f) {
                if asked[f].is_some() {
                    return false;
                }
                continue;
            }
            let family = &self.families[f];
            addresses[f] = if let Some(a) = asked[f] {
                let taken = self.leases.iter().any(|(p, l)| *p != port && l.addresses[f] == Some(a));
                let has = held.as_ref().is_some_and(|h| h.addresses[f] == Some(a));
                let is_virtual = !has && self.vips.iter().any(|x| base(f) + u128::from(*x) == a);
                if !family.usable.contains(&a) || a == family.gateway || taken || is_virtual {
                    return false;
                }
                Some(a)
            } else if let Some(a) = held.as_ref().and_then(|h| h.addresses[f]) {
                Some(a)
            } else {
                let skip = base(f) + u128::from(avoid);
                let lowest = |set: &BTreeSet<u128>| set.iter().copied().find(|a| *a != skip);
                match lowest(&family.free[pool]) {
                    Some(a) => Some(a),
                    None => {
                        refill[f] = true;
                        match lowest(&family.released[pool]) {
                            Some(a) => Some(a),
                            None => return false,
                        }
                    }
                }
            };
        }
        self.release(port);
        for f in 0..2 {
            let family = &mut self.families[f];
            if refill[f] {
                let mut back = std::mem::take(&mut family.released[pool]);
                family.free[pool].append(&mut back);
            }
            for set in family.free.iter_mut().chain(&mut family.released) {
                if let Some(a) = addresses[f] {
                    set.remove(&a);
                }
            }
        }
        self.leases.insert(port, ModelLease { owner, addresses });
        true
    }
}

fn pool_of(pools: &[BTreeSet<u8>; 3], family: usize, address: u128) -> usize {
    let offset = u8::try_from(address - base(family)).unwrap();
    (1..3).find(|pool| pools[*pool].contains(&offset)).unwrap_or(0)
}

#[derive(Clone, Debug)]
enum Op {
    Allocate {
        port: u8,
        owner: u8,
        v4: Option<u8>,
        v6: Option<u8>,
        only: Option<usize>,
        avoid: u8,
        pools: Vec<usize>,
    },
    Hand {
        from: u8,
        to: u8,
        owner: u8,
    },
    Pools {
        a: Vec<u8>,
        b: Vec<u8>,
    },
    Release {
        port: u8,
    },
    Configure {
        excludes: Vec<u8>,
        vips: Vec<u8>,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let asked = || prop_oneof![3 => Just(None), 1 => (0u8..18).prop_map(Some)];
    let only = prop_oneof![4 => Just(None), 1 => (0usize..2).prop_map(Some)];
    let pools = prop_oneof![3 => Just(vec![0]), 1 => Just(vec![1]), 1 => Just(vec![2, 1])];
    prop_oneof![
        6 => (0u8..20, 0u8..3, asked(), asked(), only, 0u8..16, pools).prop_map(
            |(port, owner, v4, v6, only, avoid, pools)| Op::Allocate { port, owner, v4, v6, only, avoid, pools }
        ),
        1 => (0u8..20, 0u8..20, 0u8..3).prop_map(|(from, to, owner)| Op::Hand { from, to, owner }),
        1 => (prop::collection::vec(0u8..16, 0..6), prop::collection::vec(0u8..16, 0..6))
            .prop_map(|(a, b)| Op::Pools { a, b }),
        4 => (0u8..20).prop_map(|port| Op::Release { port }),
        1 => (prop::collection::vec(0u8..18, 0..5), prop::collection::vec(0u8..18, 0..3))
            .prop_map(|(excludes, vips)| Op::Configure { excludes, vips }),
    ]
}

fn address(family: usize, offset: u8) -> IpAddr {
    FAMILIES[family].address(base(family) + u128::from(offset))
}

fn spec(excludes: &[u8], vips: &[u8]) -> crds::SubnetSpec {
    let texts = |list: &[u8]| -> Vec<String> {
        list.iter().flat_map(|x| (0..2).map(|f| address(f, *x).to_string())).collect()
    };
    crds::SubnetSpec {
        cidr_block: "10.0.0.0/28,fd00::/124".into(),
        gateway: "10.0.0.1,fd00::1".into(),
        exclude_ips: texts(excludes),
        vips: texts(vips),
        ..Default::default()
    }
}

fn pool_specs(pools: &[BTreeSet<u8>; 3]) -> BTreeMap<Arc<str>, PoolSpec> {
    let texts = |pool: &BTreeSet<u8>| -> Vec<String> {
        pool.iter().flat_map(|x| (0..2).map(|f| address(f, *x).to_string())).collect()
    };
    let spec = |pool: usize| {
        let ranges = Ranges::parse(texts(&pools[pool]).iter().map(String::as_str)).unwrap();
        (Arc::from(POOLS[pool]), PoolSpec { ranges, size: None })
    };
    [spec(1), spec(2)].into()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// U07: every result and every pool equals the model's; a refusal changes nothing;
    /// MACs are unique.
    #[test]
    fn u_07_equals_the_model(ops in prop::collection::vec(op(), 1..120)) {
        let mut ipam = Ipam::new(1);
        let mut model = Model::default();
        ipam.set_subnet("s", &spec(&[], &[])).unwrap();
        model.rebuild();
        let mut pools_now = pool_specs(&model.pools);
        ipam.set_pools("s", pools_now.clone());
        let mut fields_now = (Vec::new(), Vec::new());
        for op in ops {
            match op.clone() {
                Op::Allocate { port, owner, v4, v6, only, avoid, pools } => {
                    let asked = [v4, v6].map(|a| a.map(u128::from));
                    let asked = [asked[0].map(|a| a + base(0)), asked[1].map(|a| a + base(1))];
                    let wanted = model.allocate(port, owner, asked, only, avoid, &pools);
                    let mut request = Request::new(format!("p{port}"), format!("u{owner}"), "s");
                    for (f, offset) in [v4, v6].into_iter().enumerate() {
                        match offset.map(|o| address(f, o)) {
                            Some(IpAddr::V4(a)) => request.v4 = Some(a),
                            Some(IpAddr::V6(a)) => request.v6 = Some(a),
                            None => {}
                        }
                    }
                    request.family = only.map(|f| FAMILIES[f]);
                    request.avoid = Arc::new((0..2).map(|f| address(f, avoid)).collect());
                    if pools != [0] {
                        let names = pools.iter().map(|pool| POOLS[*pool].into()).collect();
                        request.pools = BTreeMap::from([("s".into(), names)]);
                    }
                    let before = ipam.clone();
                    let got = ipam.allocate(&request);
                    prop_assert_eq!(got.is_ok(), wanted, "{:?}: {:?}", op, got);
                    if let Err(error) = got {
                        prop_assert_eq!(&before, &ipam);
                        prop_assert!(!matches!(error, Error::NoSubnet(_)));
                    }
                }
                Op::Hand { from, to, owner } => {
                    let wanted = model.hand(from, to, owner);
                    let owner = format!("u{owner}").into();
                    let got = ipam.hand_to(&format!("p{from}"), &format!("p{to}").into(), &owner);
                    prop_assert_eq!(got.is_some(), wanted);
                }
                Op::Pools { a, b } => {
                    let a: BTreeSet<u8> = a.into_iter().collect();
                    let b: BTreeSet<u8> = b.into_iter().filter(|x| !a.contains(x)).collect();
                    let new = [BTreeSet::new(), a, b];
                    pools_now = pool_specs(&new);
                    ipam.set_pools("s", pools_now.clone());
                    // Unchanged pools keep the order of released addresses.
                    if model.pools != new {
                        model.pools = new;
                        model.rebuild();
                    }
                }
                Op::Release { port } => {
                    ipam.release(&format!("p{port}"));
                    model.release(port);
                }
                Op::Configure { excludes, vips } => {
                    ipam.set_subnet("s", &spec(&excludes, &vips)).unwrap();
                    // An unchanged layout keeps the order of released addresses.
                    let set = |list: &[u8]| {
                        let mut list: BTreeSet<u8> = list.iter().copied().filter(|x| *x < 16).collect();
                        list.remove(&1);
                        list
                    };
                    let sets = |(a, b): &(Vec<u8>, Vec<u8>)| (set(a), set(b));
                    let fields = (excludes, vips);
                    if sets(&fields) != sets(&fields_now) {
                        (model.excludes, model.vips) = fields.clone();
                        model.rebuild();
                    }
                    fields_now = fields;
                }
            }
            check(&ipam, &model)?;
        }
        // A restart: the same leases put back in any order give the same users.
        let mut again = Ipam::new(2);
        again.set_subnet("s", &spec(&fields_now.0, &fields_now.1)).unwrap();
        again.set_pools("s", pools_now);
        for lease in ipam.leases() {
            again.restore(lease).unwrap();
        }
        prop_assert_eq!(again.usage("s"), ipam.usage("s"));
        for lease in ipam.leases() {
            prop_assert_eq!(again.lease(&lease.port), Some(lease));
        }
    }
}

fn check(ipam: &Ipam, model: &Model) -> Result<(), TestCaseError> {
    let mut macs = BTreeSet::new();
    prop_assert_eq!(ipam.leases().count(), model.leases.len());
    for (port, wanted) in &model.leases {
        let lease = ipam.lease(&format!("p{port}")).expect("the model has a lease");
        let v4 = lease.v4.map(|a| Family::number(a.into()).1);
        let v6 = lease.v6.map(|a| Family::number(a.into()).1);
        prop_assert_eq!([v4, v6], wanted.addresses, "p{}", port);
        prop_assert!(macs.insert(lease.mac.clone()), "MAC twice");
    }
    let usage = ipam.usage("s");
    for (f, (text, wanted)) in
        [usage.v4_available_range, usage.v6_available_range].iter().zip(&model.families).enumerate()
    {
        let all: BTreeSet<u128> = wanted.free.iter().chain(&wanted.released).flatten().copied().collect();
        prop_assert_eq!(text, &ranges(f, &all.into_iter().collect::<Vec<_>>()));
    }
    for (pool, name) in POOLS.iter().enumerate().skip(1) {
        let usage = ipam.pool_usage("s", name);
        let texts = [usage.v4_available_range, usage.v6_available_range];
        for (f, (text, wanted)) in texts.iter().zip(&model.families).enumerate() {
            let all: Vec<u128> = wanted.free[pool].union(&wanted.released[pool]).copied().collect();
            prop_assert_eq!(text, &ranges(f, &all), "pool {}", name);
        }
        let using = [usage.v4_using, usage.v6_using];
        for (f, using) in using.into_iter().enumerate() {
            let wanted = model.leases.values().filter_map(|lease| lease.addresses[f]);
            prop_assert_eq!(using, wanted.filter(|a| pool_of(&model.pools, f, *a) == pool).count() as u128);
        }
    }
    Ok(())
}

fn ranges(family: usize, numbers: &[u128]) -> String {
    let mut parts: Vec<(u128, u128)> = Vec::new();
    for n in numbers {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == *n => *last = *n,
            _ => parts.push((*n, *n)),
        }
    }
    let text = |n: u128| FAMILIES[family].address(n).to_string();
    let one = |(a, b): &(u128, u128)| if a == b { text(*a) } else { format!("{}-{}", text(*a), text(*b)) };
    parts.iter().map(one).collect::<Vec<_>>().join(",")
}
