//! What is asked of IPAM, and why it may refuse.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use super::mac::{self, Mac};

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    /// `IPv4` or `IPv6`.
    pub fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    /// The numeric form of an address as interval sets hold it.
    pub(crate) fn number(ip: IpAddr) -> (Self, u128) {
        match ip {
            IpAddr::V4(a) => (Self::V4, u32::from(a).into()),
            IpAddr::V6(a) => (Self::V6, a.into()),
        }
    }

    /// The address of a number of this family.
    pub(crate) fn address(self, number: u128) -> IpAddr {
        match self {
            // Numbers of the IPv4 pool come from IPv4 ranges; the upper bits are zero.
            #[allow(clippy::cast_possible_truncation)]
            Self::V4 => Ipv4Addr::from(number as u32).into(),
            Self::V6 => Ipv6Addr::from(number).into(),
        }
    }
}

/// A request for the address of one port.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Port name; a port that has a lease keeps it.
    pub port: Arc<str>,
    /// UID of the object that the port serves.
    pub owner: Arc<str>,
    /// Subnets in order of preference (contract §3.2: the namespace's list).
    pub subnets: Vec<Arc<str>>,
    /// Requested IPv4 address.
    pub v4: Option<Ipv4Addr>,
    /// Requested IPv6 address.
    pub v6: Option<Ipv6Addr>,
    /// Requested MAC address.
    pub mac: Option<Mac>,
    /// Only this family of a dual-stack subnet (annotation `ip_family`).
    pub family: Option<Family>,
    /// Addresses that are never drawn: the nodes' own (contract §3.3). A request
    /// by address is not affected.
    pub avoid: Arc<BTreeSet<IpAddr>>,
}

impl Request {
    /// A dynamic request.
    pub fn new(port: impl Into<Arc<str>>, owner: impl Into<Arc<str>>, subnet: impl Into<Arc<str>>) -> Self {
        Self { port: port.into(), owner: owner.into(), subnets: vec![subnet.into()], ..Self::default() }
    }

    /// Reads the values of the annotations `ip_address`, `mac_address` and
    /// `ip_family` into the request (contract §2.1, §3.3 b and c).
    pub fn with_annotations(
        mut self,
        ip_address: Option<&str>,
        mac_address: Option<&str>,
        ip_family: Option<&str>,
    ) -> Result<Self, Error> {
        for text in ip_address.unwrap_or_default().split(',').map(str::trim).filter(|t| !t.is_empty()) {
            let taken = match text.parse::<IpAddr>() {
                Ok(IpAddr::V4(a)) => self.v4.replace(a).is_some(),
                Ok(IpAddr::V6(a)) => self.v6.replace(a).is_some(),
                Err(_) => {
                    return Err(Error::InvalidRequest(format!(
                        "annotation ip_address: {text:?} is not an IP address; write one address per family, \
                     separated by a comma and without prefix length"
                    )));
                }
            };
            if taken {
                return Err(Error::InvalidRequest(format!(
                    "annotation ip_address: {text} is the second address of its family; write at most one \
                     IPv4 and one IPv6 address"
                )));
            }
        }
        if let Some(text) = mac_address.filter(|t| !t.is_empty()) {
            let mac = mac::parse(text).filter(|m| mac::is_usable(*m));
            self.mac = Some(mac.ok_or_else(|| {
                Error::InvalidRequest(format!(
                    "annotation mac_address: {text:?} is not a unicast MAC address; write it like 02:00:00:12:34:56"
                ))
            })?);
        }
        self.family = match ip_family {
            None | Some("") => self.family,
            Some("ipv4") => Some(Family::V4),
            Some("ipv6") => Some(Family::V6),
            Some(other) => {
                return Err(Error::InvalidRequest(format!(
                    "annotation ip_family: {other:?} is unknown; write ipv4 or ipv6, or remove it"
                )));
            }
        };
        Ok(self)
    }
}

/// Why IPAM refuses. Every message names the subnet, what was asked and the
/// remedy; nothing has changed in any pool when one of these is returned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// None of the subnets is known.
    #[error(
        "no subnet to take an address from: {0} does not exist or is not one that this version serves; \
         create it, or correct annotation logical_switch or the namespace's binding"
    )]
    NoSubnet(String),
    /// A subnet's address fields do not parse.
    #[error("subnet {subnet}: {detail}")]
    InvalidSubnet {
        /// The subnet.
        subnet: Arc<str>,
        /// Which field, and what to write.
        detail: String,
    },
    /// The request does not parse or contradicts itself.
    #[error("{0}")]
    InvalidRequest(String),
    /// The request is understood, but not by this version (see [`super::unsupported`]).
    #[error("{0}")]
    Unsupported(String),
    /// The subnet does not have the family.
    #[error(
        "subnet {subnet} ({cidr}) has no {family} addresses as asked for by {by}; remove the request, or \
         choose a subnet of that family"
    )]
    InvalidFamily {
        /// The subnet.
        subnet: Arc<str>,
        /// Its CIDR block.
        cidr: Arc<str>,
        /// What is missing.
        family: &'static str,
        /// What asked for it.
        by: String,
    },
    /// A requested address is not a usable one of the subnet.
    #[error(
        "requested address {address} is not a host address of subnet {subnet} ({cidr}); request one inside \
         the block that is neither its first nor its last"
    )]
    OutOfRange {
        /// The subnet.
        subnet: Arc<str>,
        /// Its CIDR block.
        cidr: Arc<str>,
        /// The address.
        address: IpAddr,
    },
    /// A requested address or MAC is taken.
    #[error(
        "requested address {address} of subnet {subnet} is in use by {holder}; request another one or \
         release that one"
    )]
    Conflict {
        /// The subnet.
        subnet: Arc<str>,
        /// The address or MAC.
        address: String,
        /// The port that has it, or `the gateway`.
        holder: Arc<str>,
    },
    /// Nothing is free.
    #[error(
        "subnet {subnet} ({cidr}) has no free {family} address; delete pods that are not needed, shorten \
         excludeIps, or use a larger subnet"
    )]
    Exhausted {
        /// The subnet.
        subnet: Arc<str>,
        /// Its CIDR block.
        cidr: Arc<str>,
        /// The family.
        family: &'static str,
    },
}

impl Error {
    /// Reason of the event and condition that tell the user (contract §8.8).
    pub fn reason(&self) -> &'static str {
        match self {
            Self::InvalidRequest(_) => "ValidatePodNetworkFailed",
            _ => "AcquireAddressFailed",
        }
    }

    /// Of the errors of several candidate subnets the most telling one is
    /// reported: a conflict on one subnet says more than "not in range" of another.
    pub(crate) fn weight(&self) -> u8 {
        match self {
            Self::Conflict { .. } => 5,
            Self::Exhausted { .. } => 4,
            Self::InvalidFamily { .. } => 3,
            Self::OutOfRange { .. } => 2,
            Self::InvalidRequest(_) | Self::Unsupported(_) | Self::InvalidSubnet { .. } => 1,
            Self::NoSubnet(_) => 0,
        }
    }
}
