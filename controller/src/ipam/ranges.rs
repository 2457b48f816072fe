//! Addresses as a list of texts: `ip`, `a..b` or CIDR (contract §1.3).
//!
//! Flows in: `spec.ips` of an IPPool. Flows out: the addresses of each family as
//! intervals, and the fewest CIDRs that cover exactly them.

use std::net::IpAddr;

use ipnet::IpNet;

use super::interval::IntervalSet;
use super::request::Family;

/// Addresses of both families.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    pub(crate) v4: IntervalSet,
    pub(crate) v6: IntervalSet,
}

impl Ranges {
    /// Reads a list. A CIDR stands for all of its addresses; which of them are
    /// usable is the subnet's business.
    ///
    /// # Errors
    /// Names the entry and what to write instead.
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut ranges = Self::default();
        for text in texts.into_iter().map(str::trim).filter(|text| !text.is_empty()) {
            let (first, last) = ends(text)?;
            let ((family, first), (_, last)) = (Family::number(first), Family::number(last));
            match family {
                Family::V4 => ranges.v4.insert(first, last),
                Family::V6 => ranges.v6.insert(first, last),
            }
        }
        Ok(ranges)
    }

    pub(crate) fn of(&self, family: Family) -> &IntervalSet {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }

    /// No address at all.
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    /// An address that is in none of the blocks.
    pub fn outside(&self, nets: &[IpNet]) -> Option<IpAddr> {
        [Family::V4, Family::V6].into_iter().find_map(|family| {
            let mut rest = self.of(family).clone();
            for net in nets.iter().filter(|net| Family::number(net.addr()).0 == family) {
                rest.remove(Family::number(net.network()).1, Family::number(net.broadcast()).1);
            }
            rest.spans().next().map(|(first, _)| family.address(first))
        })
    }

    /// The lowest address that both have.
    pub fn meets(&self, other: &Self) -> Option<IpAddr> {
        [Family::V4, Family::V6]
            .into_iter()
            .find_map(|family| self.of(family).meets(other.of(family)).map(|n| family.address(n)))
    }

    /// The fewest CIDRs that cover exactly these addresses, IPv4 first, ascending.
    /// One address is written without prefix length, as address sets of OVN have it.
    pub fn cidrs(&self) -> Vec<String> {
        let mut cidrs = Vec::new();
        for (family, bits) in [(Family::V4, 32u32), (Family::V6, 128)] {
            for (mut first, last) in self.of(family).spans() {
                loop {
                    // As large as the alignment of its start and what is left allow.
                    let aligned = first.trailing_zeros().min(bits);
                    let left = last - first;
                    let fits = if left == u128::MAX { 128 } else { 127 - (left + 1).leading_zeros() };
                    let size = aligned.min(fits);
                    let address = family.address(first);
                    cidrs.push(match size {
                        0 => address.to_string(),
                        size => format!("{address}/{}", bits - size),
                    });
                    let covered = if size == 128 { u128::MAX } else { (1 << size) - 1 };
                    if left <= covered {
                        break;
                    }
                    first += covered + 1;
                }
            }
        }
        cidrs
    }
}

fn ends(text: &str) -> Result<(IpAddr, IpAddr), String> {
    let wrong = || {
        format!(
            "{text:?} is no address, range or CIDR; write one like 10.16.0.5, 10.16.0.5..10.16.0.9 or \
             10.16.0.16/28"
        )
    };
    let address = |text: &str| text.trim().parse::<IpAddr>().map_err(|_| wrong());
    if text.contains('/') {
        let net: IpNet = text.parse().map_err(|_| wrong())?;
        return Ok((net.network(), net.broadcast()));
    }
    let Some((first, last)) = text.split_once("..") else {
        let ip = address(text)?;
        return Ok((ip, ip));
    };
    let (first, last) = (address(first)?, address(last)?);
    if first.is_ipv4() != last.is_ipv4() {
        return Err(format!("range {text:?} has ends of two families; write one range for each"));
    }
    if first > last {
        return Err(format!("range {text:?} ends before it begins; write the lower address first"));
    }
    Ok((first, last))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case(&["10.0.0.5"], &["10.0.0.5"])]
    #[case(&["10.0.0.0/30", "10.0.0.4..10.0.0.7"], &["10.0.0.0/29"])]
    #[case(&["10.0.0.1..10.0.0.6"], &["10.0.0.1", "10.0.0.2/31", "10.0.0.4/31", "10.0.0.6"])]
    #[case(&["fd00::/64", "10.0.0.9"], &["10.0.0.9", "fd00::/64"])]
    #[case(&["0.0.0.0/0", "::/0"], &["0.0.0.0/0", "::/0"])]
    #[case(&[" ", ""], &[])]
    fn lists_become_the_fewest_cidrs(#[case] given: &[&str], #[case] cidrs: &[&str]) {
        assert_eq!(Ranges::parse(given.iter().copied()).unwrap().cidrs(), cidrs);
    }

    #[rstest]
    #[case("10.0.0.9..10.0.0.1", "lower address first")]
    #[case("10.0.0.9..fd00::1", "two families")]
    #[case("10.0.0.9-10.0.0.12", "10.16.0.5..10.16.0.9")]
    #[case("10.0.0.0/33", "CIDR")]
    fn what_is_wrong_is_said(#[case] text: &str, #[case] needle: &str) {
        let error = Ranges::parse([text]).unwrap_err();
        assert!(error.contains(needle) && error.contains(text), "{error}");
    }

    #[test]
    fn outside_and_meeting() {
        let ranges = Ranges::parse(["10.0.0.250..10.0.1.3", "fd00::5"]).unwrap();
        let nets = |texts: &[&str]| texts.iter().map(|t| t.parse().unwrap()).collect::<Vec<IpNet>>();
        assert_eq!(ranges.outside(&nets(&["10.0.0.0/24", "fd00::/64"])), Some("10.0.1.0".parse().unwrap()));
        assert_eq!(ranges.outside(&nets(&["10.0.0.0/16", "fd00::/64"])), None);
        assert_eq!(ranges.outside(&nets(&["10.0.0.0/16"])), Some("fd00::5".parse().unwrap()));
        let other = Ranges::parse(["10.0.1.0/24"]).unwrap();
        assert_eq!(ranges.meets(&other), Some("10.0.1.0".parse().unwrap()));
        assert_eq!(ranges.meets(&Ranges::parse(["10.0.2.0/24"]).unwrap()), None);
    }

    proptest! {
        /// The CIDRs cover the same addresses, and no two of them could be one.
        #[test]
        fn cidrs_are_exact(spans in prop::collection::vec((0u32..2000, 0u32..300), 1..6)) {
            let base = u32::from(std::net::Ipv4Addr::new(10, 0, 0, 0));
            let text = |n: u32| std::net::Ipv4Addr::from(base + n).to_string();
            let texts: Vec<String> =
                spans.iter().map(|(a, len)| format!("{}..{}", text(*a), text(a + len))).collect();
            let ranges = Ranges::parse(texts.iter().map(String::as_str)).unwrap();
            let cidrs = ranges.cidrs();
            prop_assert_eq!(&Ranges::parse(cidrs.iter().map(String::as_str)).unwrap(), &ranges);
            let nets: Vec<IpNet> = cidrs
                .iter()
                .map(|c| c.parse().or_else(|_| c.parse::<IpAddr>().map(IpNet::from)).unwrap())
                .collect();
            prop_assert_eq!(IpNet::aggregate(&nets).len(), nets.len());
        }
    }
}
