//! The contract's algorithm (§3.4) written down as plainly as possible, on sets
//! of single addresses, to check [`super::Ipam`] against.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use proptest::prelude::*;

use super::{Error, Family, Ipam, Request};

#[derive(Clone, Debug, Default)]
struct ModelFamily {
    usable: BTreeSet<u128>,
    gateway: u128,
    reserved: BTreeSet<u128>,
    free: BTreeSet<u128>,
    released: BTreeSet<u128>,
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
}

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

fn base(family: usize) -> u128 {
    if family == 0 { u32::from(std::net::Ipv4Addr::new(10, 0, 0, 0)).into() } else { 0xfd00 << 112 }
}

impl Model {
    fn set(&mut self, excludes: &[u8]) {
        for (f, family) in self.families.iter_mut().enumerate() {
            family.usable = (1..15).map(|x| base(f) + x).collect();
            family.gateway = base(f) + 1;
            family.reserved = excludes.iter().map(|x| base(f) + u128::from(*x)).collect();
            family.reserved.insert(family.gateway);
            let using: BTreeSet<u128> = self.leases.values().filter_map(|l| l.addresses[f]).collect();
            family.free = family
                .usable
                .iter()
                .filter(|a| !family.reserved.contains(a) && !using.contains(a))
                .copied()
                .collect();
            family.released.clear();
        }
    }

    fn release(&mut self, port: u8) {
        if let Some(lease) = self.leases.remove(&port) {
            for (family, address) in self.families.iter_mut().zip(lease.addresses) {
                if let Some(a) = address
                    && family.usable.contains(&a)
                    && !family.reserved.contains(&a)
                {
                    family.released.insert(a);
                }
            }
        }
    }

    /// The addresses that the request gets, or `None`.
    fn allocate(
        &mut self,
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
                if !family.usable.contains(&a) || a == family.gateway || taken {
                    return false;
                }
                Some(a)
            } else if let Some(a) = held.as_ref().and_then(|h| h.addresses[f]) {
                Some(a)
            } else {
                let skip = base(f) + u128::from(avoid);
                let lowest = |set: &BTreeSet<u128>| set.iter().copied().find(|a| *a != skip);
                match lowest(&family.free) {
                    Some(a) => Some(a),
                    None => {
                        refill[f] = true;
                        match lowest(&family.released) {
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
                family.free.append(&mut family.released);
            }
            if let Some(a) = addresses[f] {
                family.free.remove(&a);
                family.released.remove(&a);
            }
        }
        self.leases.insert(port, ModelLease { owner, addresses });
        true
    }
}

#[derive(Clone, Debug)]
enum Op {
    Allocate { port: u8, owner: u8, v4: Option<u8>, v6: Option<u8>, only: Option<usize>, avoid: u8 },
    Release { port: u8 },
    Configure { excludes: Vec<u8> },
}

fn op() -> impl Strategy<Value = Op> {
    let asked = || prop_oneof![3 => Just(None), 1 => (0u8..18).prop_map(Some)];
    let only = prop_oneof![4 => Just(None), 1 => (0usize..2).prop_map(Some)];
    prop_oneof![
        6 => (0u8..20, 0u8..3, asked(), asked(), only, 0u8..16)
            .prop_map(|(port, owner, v4, v6, only, avoid)| Op::Allocate { port, owner, v4, v6, only, avoid }),
        4 => (0u8..20).prop_map(|port| Op::Release { port }),
        1 => prop::collection::vec(0u8..18, 0..5).prop_map(|excludes| Op::Configure { excludes }),
    ]
}

fn address(family: usize, offset: u8) -> IpAddr {
    FAMILIES[family].address(base(family) + u128::from(offset))
}

fn spec(excludes: &[u8]) -> crds::SubnetSpec {
    crds::SubnetSpec {
        cidr_block: "10.0.0.0/28,fd00::/124".into(),
        gateway: "10.0.0.1,fd00::1".into(),
        exclude_ips: excludes.iter().flat_map(|x| (0..2).map(|f| address(f, *x).to_string())).collect(),
        ..Default::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Every result and every pool equals the model's; a refusal changes nothing;
    /// MACs are unique.
    #[test]
    fn equals_the_model(ops in prop::collection::vec(op(), 1..120)) {
        let mut ipam = Ipam::new(1);
        let mut model = Model::default();
        ipam.set_subnet("s", &spec(&[])).unwrap();
        model.set(&[]);
        let mut excludes_now = Vec::new();
        for op in ops {
            match op.clone() {
                Op::Allocate { port, owner, v4, v6, only, avoid } => {
                    let asked = [v4, v6].map(|a| a.map(u128::from));
                    let asked = [asked[0].map(|a| a + base(0)), asked[1].map(|a| a + base(1))];
                    let wanted = model.allocate(port, owner, asked, only, avoid);
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
                    let before = ipam.clone();
                    let got = ipam.allocate(&request);
                    prop_assert_eq!(got.is_ok(), wanted, "{:?}: {:?}", op, got);
                    if let Err(error) = got {
                        prop_assert_eq!(&before, &ipam);
                        prop_assert!(!matches!(error, Error::NoSubnet(_)));
                    }
                }
                Op::Release { port } => {
                    ipam.release(&format!("p{port}"));
                    model.release(port);
                }
                Op::Configure { excludes } if excludes != excludes_now => {
                    ipam.set_subnet("s", &spec(&excludes)).unwrap();
                    // An unchanged layout keeps the order of released addresses.
                    let set = |list: &[u8]| {
                        let mut list: BTreeSet<u8> = list.iter().copied().filter(|x| *x < 16).collect();
                        list.remove(&1);
                        list
                    };
                    if set(&excludes) != set(&excludes_now) {
                        model.set(&excludes);
                    }
                    excludes_now = excludes;
                }
                Op::Configure { .. } => {}
            }
            check(&ipam, &model)?;
        }
        // A restart: the same leases put back in any order give the same users.
        let mut again = Ipam::new(2);
        again.set_subnet("s", &spec(&excludes_now)).unwrap();
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
        let all: Vec<u128> = wanted.free.union(&wanted.released).copied().collect();
        prop_assert_eq!(text, &ranges(f, &all));
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
