//! Addresses as the custom resources spell them: dual strings (`v4,v6`), CIDRs,
//! exclude ranges (contract §1.1, §3.3, §3.4).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Family of an address.
    pub fn of(ip: &IpAddr) -> Self {
        if ip.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// Up to one value per family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dual<A, B = A> {
    /// IPv4's.
    pub v4: Option<A>,
    /// IPv6's.
    pub v6: Option<B>,
}

/// Up to one address per family.
pub type DualIps = Dual<Ipv4Addr, Ipv6Addr>;
/// Up to one network per family.
pub type DualNets = Dual<Ipv4Net, Ipv6Net>;

impl<A, B> Default for Dual<A, B> {
    fn default() -> Self {
        Self { v4: None, v6: None }
    }
}

impl<A, B> Dual<A, B> {
    /// Neither family has a value.
    pub fn is_empty(&self) -> bool {
        self.v4.is_none() && self.v6.is_none()
    }

    /// Both families have a value.
    pub fn is_dual(&self) -> bool {
        self.v4.is_some() && self.v6.is_some()
    }

    /// Families that have a value, IPv4 first.
    pub fn families(&self) -> impl Iterator<Item = Family> + use<A, B> {
        [self.v4.as_ref().map(|_| Family::V4), self.v6.as_ref().map(|_| Family::V6)].into_iter().flatten()
    }

    /// Value of `spec.protocol`: `IPv4`, `IPv6`, `Dual`, or empty.
    pub fn protocol(&self) -> &'static str {
        match (&self.v4, &self.v6) {
            (Some(_), Some(_)) => "Dual",
            (Some(_), None) => "IPv4",
            (None, Some(_)) => "IPv6",
            (None, None) => "",
        }
    }
}

/// The dual string: `v4`, `v6`, or `v4,v6`, without blanks.
impl<A: fmt::Display, B: fmt::Display> fmt::Display for Dual<A, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(v4) = &self.v4 {
            write!(f, "{v4}")?;
        }
        if self.is_dual() {
            f.write_str(",")?;
        }
        if let Some(v6) = &self.v6 {
            write!(f, "{v6}")?;
        }
        Ok(())
    }
}

impl DualIps {
    /// The addresses, IPv4 first.
    pub fn iter(&self) -> impl Iterator<Item = IpAddr> + use<> {
        self.v4.map(IpAddr::V4).into_iter().chain(self.v6.map(IpAddr::V6))
    }

    /// `ip/len` of each address with the prefix length of its family's network, as
    /// router ports and `ovn0` spell it. Families without a network are left out.
    pub fn with_prefix(&self, nets: &DualNets) -> Vec<String> {
        let v4 = self.v4.zip(nets.v4).map(|(ip, net)| format!("{ip}/{}", net.prefix_len()));
        let v6 = self.v6.zip(nets.v6).map(|(ip, net)| format!("{ip}/{}", net.prefix_len()));
        v4.into_iter().chain(v6).collect()
    }
}

impl DualNets {
    /// The networks, IPv4 first.
    pub fn iter(&self) -> impl Iterator<Item = IpNet> + use<> {
        self.v4.map(IpNet::V4).into_iter().chain(self.v6.map(IpNet::V6))
    }

    /// True when the network of the address's family holds it.
    pub fn contains(&self, ip: &IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => self.v4.is_some_and(|net| net.contains(ip)),
            IpAddr::V6(ip) => self.v6.is_some_and(|net| net.contains(ip)),
        }
    }

    /// True when any address is in both.
    pub fn overlaps(&self, other: &Self) -> bool {
        let v4 = self.v4.zip(other.v4).is_some_and(|(a, b)| a.contains(&b) || b.contains(&a));
        v4 || self.v6.zip(other.v6).is_some_and(|(a, b)| a.contains(&b) || b.contains(&a))
    }

    /// First usable address of each family: the default gateway.
    pub fn first_usable(&self) -> DualIps {
        Dual { v4: self.v4.map(|n| usable_v4(&n).0), v6: self.v6.map(|n| usable_v6(&n).0) }
    }
}

/// Why a string is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetError {
    /// Not an address.
    #[error("{0:?} is not an IP address")]
    Address(String),
    /// Not a CIDR.
    #[error("{0:?} is not a CIDR")]
    Cidr(String),
    /// Two values of one family, or more than two.
    #[error("{0:?} has more than one value of a family")]
    Families(String),
    /// A range of two families, or upside down.
    #[error("{0:?} is not a range: both ends must have one family, the first not above the last")]
    Range(String),
}

/// Parses `v4`, `v6`, `v4,v6` (any order, blanks around entries tolerated). The
/// empty string has no address.
pub fn parse_dual_ips(text: &str) -> Result<DualIps, NetError> {
    let mut dual = DualIps::default();
    for part in entries(text) {
        let twice = match part.parse::<IpAddr>() {
            Ok(IpAddr::V4(ip)) => dual.v4.replace(ip).is_some(),
            Ok(IpAddr::V6(ip)) => dual.v6.replace(ip).is_some(),
            Err(_) => return Err(NetError::Address(part.to_owned())),
        };
        if twice {
            return Err(NetError::Families(text.to_owned()));
        }
    }
    Ok(dual)
}

/// Parses CIDRs like [`parse_dual_ips`]; host bits are cleared.
pub fn parse_dual_cidrs(text: &str) -> Result<DualNets, NetError> {
    let mut dual = DualNets::default();
    for part in entries(text) {
        let twice = match part.parse::<IpNet>() {
            Ok(IpNet::V4(net)) => dual.v4.replace(net.trunc()).is_some(),
            Ok(IpNet::V6(net)) => dual.v6.replace(net.trunc()).is_some(),
            Err(_) => return Err(NetError::Cidr(part.to_owned())),
        };
        if twice {
            return Err(NetError::Families(text.to_owned()));
        }
    }
    Ok(dual)
}

fn entries(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

/// First and last usable address: network+1 to broadcast−1; in a /31 and /32 all.
pub fn usable_v4(net: &Ipv4Net) -> (Ipv4Addr, Ipv4Addr) {
    let (first, last) = (net.network().to_bits(), net.broadcast().to_bits());
    let inset = u32::from(net.prefix_len() < 31);
    (Ipv4Addr::from_bits(first + inset), Ipv4Addr::from_bits(last - inset))
}

/// First and last usable address: like IPv4's, the last address of the network is
/// left out too; in a /127 and /128 all.
pub fn usable_v6(net: &Ipv6Net) -> (Ipv6Addr, Ipv6Addr) {
    let (first, last) = (net.network().to_bits(), net.broadcast().to_bits());
    let inset = u128::from(net.prefix_len() < 127);
    (Ipv6Addr::from_bits(first + inset), Ipv6Addr::from_bits(last - inset))
}

/// An inclusive range of addresses of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpRange {
    /// First address.
    pub first: IpAddr,
    /// Last address, same family, not below the first.
    pub last: IpAddr,
}

impl IpRange {
    /// Parses `ip` or `a..b`.
    pub fn parse(text: &str) -> Result<Self, NetError> {
        let address =
            |part: &str| part.trim().parse::<IpAddr>().map_err(|_| NetError::Address(part.trim().to_owned()));
        let Some((first, last)) = text.split_once("..") else {
            let ip = address(text)?;
            return Ok(Self { first: ip, last: ip });
        };
        let (first, last) = (address(first)?, address(last)?);
        if Family::of(&first) != Family::of(&last) || first > last {
            return Err(NetError::Range(text.to_owned()));
        }
        Ok(Self { first, last })
    }

    /// True when the address is in the range.
    pub fn contains(&self, ip: &IpAddr) -> bool {
        Family::of(ip) == Family::of(&self.first) && self.first <= *ip && *ip <= self.last
    }
}

impl fmt::Display for IpRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last { self.first.fmt(f) } else { write!(f, "{}..{}", self.first, self.last) }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("10.16.0.9", "10.16.0.9", "IPv4")]
    #[case("fd00::9", "fd00::9", "IPv6")]
    #[case("fd00::9, 10.16.0.9", "10.16.0.9,fd00::9", "Dual")]
    #[case("", "", "")]
    fn dual_ips(#[case] text: &str, #[case] normal: &str, #[case] protocol: &str) {
        let dual = parse_dual_ips(text).unwrap();
        assert_eq!(dual.to_string(), normal);
        assert_eq!(dual.protocol(), protocol);
    }

    #[rstest]
    #[case("10.16.3.4/16,FD00::1/64", "10.16.0.0/16,fd00::/64", "10.16.0.1,fd00::1")]
    #[case("10.0.0.0/31", "10.0.0.0/31", "10.0.0.0")]
    #[case("fd00::2/127", "fd00::2/127", "fd00::2")]
    fn dual_cidrs(#[case] text: &str, #[case] normal: &str, #[case] gateway: &str) {
        let nets = parse_dual_cidrs(text).unwrap();
        assert_eq!(nets.to_string(), normal);
        assert_eq!(nets.first_usable().to_string(), gateway);
    }

    #[rstest]
    #[case("10.0.0.1,10.0.0.2")]
    #[case("10.0.0.1,fd00::1,fd00::2")]
    #[case("10.0.0.256")]
    #[case("a")]
    fn refused_ips(#[case] text: &str) {
        parse_dual_ips(text).unwrap_err();
    }

    #[test]
    fn usable_addresses() {
        let nets = parse_dual_cidrs("192.0.2.0/24,2001:db8::/120").unwrap();
        assert_eq!(usable_v4(&nets.v4.unwrap()).1.to_string(), "192.0.2.254");
        assert_eq!(usable_v6(&nets.v6.unwrap()).1.to_string(), "2001:db8::fe");
        let whole = parse_dual_cidrs("0.0.0.0/0,::/0").unwrap();
        assert_eq!(whole.first_usable().to_string(), "0.0.0.1,::1");
    }

    #[test]
    fn prefixes_join_by_family() {
        let ips = parse_dual_ips("10.16.0.1,fd00::1").unwrap();
        let nets = parse_dual_cidrs("10.16.0.0/16,fd00::/112").unwrap();
        assert_eq!(ips.with_prefix(&nets), ["10.16.0.1/16", "fd00::1/112"]);
        assert!(nets.contains(&"10.16.255.255".parse().unwrap()));
        assert!(!nets.contains(&"fd01::".parse().unwrap()));
        assert!(nets.overlaps(&parse_dual_cidrs("10.0.0.0/8").unwrap()));
        assert!(!nets.overlaps(&parse_dual_cidrs("11.0.0.0/8,fd01::/16").unwrap()));
    }

    #[rstest]
    #[case("10.0.0.1", "10.0.0.1", "10.0.0.1", true)]
    #[case("10.0.0.1..10.0.0.9", "10.0.0.1..10.0.0.9", "10.0.0.5", true)]
    #[case("fd00::1..fd00::ff", "fd00::1..fd00::ff", "10.0.0.5", false)]
    fn ranges(#[case] text: &str, #[case] normal: &str, #[case] ip: &str, #[case] inside: bool) {
        let range = IpRange::parse(text).unwrap();
        assert_eq!(range.to_string(), normal);
        assert_eq!(range.contains(&ip.parse().unwrap()), inside);
    }

    #[rstest]
    #[case("10.0.0.9..10.0.0.1")]
    #[case("10.0.0.9..fd00::1")]
    #[case("..")]
    #[case("10.0.0.1..10.0.0.2..10.0.0.3")]
    fn refused_ranges(#[case] text: &str) {
        IpRange::parse(text).unwrap_err();
    }
}
