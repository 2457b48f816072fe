//! What is asked of IPAM, and why it may refuse.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crds::keys;

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

/// One entry of a list of addresses: of each family at most one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// IPv4 address.
    pub v4: Option<Ipv4Addr>,
    /// IPv6 address.
    pub v6: Option<Ipv6Addr>,
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
    /// The first of these that is free (annotation `ip_pool` with a list). Empty
    /// when the request is not of that kind.
    pub choices: Vec<Choice>,
    /// By subnet the named pools that an address has to be drawn from, in order of
    /// preference. A subnet without an entry serves from what no pool has.
    pub pools: BTreeMap<Arc<str>, Vec<Arc<str>>>,
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
        let asked = choice(keys::IP_ADDRESS, ip_address.unwrap_or_default())?;
        (self.v4, self.v6) = (asked.v4.or(self.v4), asked.v6.or(self.v6));
        self = self.with_mac("annotation mac_address", mac_address)?;
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

impl Request {
    /// Reads a MAC address into the request; `source` is named in errors.
    pub fn with_mac(mut self, source: &str, text: Option<&str>) -> Result<Self, Error> {
        if let Some(text) = text.filter(|t| !t.is_empty()) {
            let mac = mac::parse(text).filter(|m| mac::is_usable(*m));
            self.mac = Some(mac.ok_or_else(|| {
                Error::InvalidRequest(format!(
                    "{source}: {text:?} is not a unicast MAC address; write it like 02:00:00:12:34:56"
                ))
            })?);
        }
        Ok(self)
    }
}

/// Reads `v4`, `v6` or `v4,v6`; `source` is named in errors.
pub(crate) fn choice(source: &str, text: &str) -> Result<Choice, Error> {
    let mut choice = Choice::default();
    for text in text.split(',').map(str::trim).filter(|t| !t.is_empty()) {
        let taken = match text.parse::<IpAddr>() {
            Ok(IpAddr::V4(a)) => choice.v4.replace(a).is_some(),
            Ok(IpAddr::V6(a)) => choice.v6.replace(a).is_some(),
            Err(_) => {
                return Err(Error::InvalidRequest(format!(
                    "annotation {source}: {text:?} is not an IP address; write one address per family, \
                     separated by a comma and without prefix length"
                )));
            }
        };
        if taken {
            return Err(Error::InvalidRequest(format!(
                "annotation {source}: {text} is the second address of its family; write at most one \
                 IPv4 and one IPv6 address"
            )));
        }
    }
    Ok(choice)
}

/// What annotation `ip_pool` says (contract §3.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolRequest {
    /// The name of an IPPool.
    Named(Arc<str>),
    /// Addresses, one entry for a pod.
    List(Vec<Choice>),
}

/// Reads annotation `ip_pool`: with `;` each entry is `v4,v6`; otherwise commas
/// separate entries, except that two addresses of different families are one dual
/// entry; a single word that is no address is the name of an IPPool.
///
/// # Errors
/// [`Error::InvalidRequest`].
pub fn pool_request(text: &str) -> Result<PoolRequest, Error> {
    let entries = |separator: char| -> Result<Vec<Choice>, Error> {
        let parts = text.split(separator).map(str::trim).filter(|part| !part.is_empty());
        parts.map(|part| choice(keys::IP_POOL, part)).collect()
    };
    let text = text.trim();
    if text.contains(';') {
        return entries(';').map(PoolRequest::List);
    }
    if !text.contains(',') && text.parse::<IpAddr>().is_err() && !text.contains(['/', ':']) {
        return Ok(PoolRequest::Named(text.into()));
    }
    let list = entries(',')?;
    if let [first, second] = list[..]
        && first.v4.is_some() != second.v4.is_some()
    {
        let both = Choice { v4: first.v4.or(second.v4), v6: first.v6.or(second.v6) };
        return Ok(PoolRequest::List(vec![both]));
    }
    Ok(PoolRequest::List(list))
}

/// The entry of a list that belongs to a pod of a StatefulSet, by its ordinal.
///
/// # Errors
/// [`Error::InvalidRequest`] when the list is too short.
pub fn entry_of(list: &[Choice], ordinal: u64) -> Result<Choice, Error> {
    let entry = usize::try_from(ordinal).ok().and_then(|at| list.get(at)).copied();
    entry.ok_or_else(|| {
        Error::InvalidRequest(format!(
            "annotation {}: it has {} entries, none for ordinal {ordinal}; add one for each replica",
            keys::IP_POOL,
            list.len()
        ))
    })
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
    /// The IPPool that is asked for is not there, or can't be used.
    #[error(
        "IPPool {pool} does not exist{subnet}; create it, correct what is wrong with it, or correct \
         annotation ip_pool", subnet = if subnet.is_empty() { String::new() } else { format!(" in subnet {subnet} or is not valid") }
    )]
    NoPool {
        /// The pool.
        pool: Arc<str>,
        /// Where it was looked for; empty when there is no object at all.
        subnet: String,
    },
    /// Nothing of the pools is free.
    #[error(
        "IPPool {pools} of subnet {subnet} has no free {family} address; delete pods that are not needed, or add \
         addresses to the pool"
    )]
    PoolExhausted {
        /// The pools.
        pools: String,
        /// Their subnet.
        subnet: Arc<str>,
        /// The family.
        family: &'static str,
    },
    /// Every entry of a list of addresses is taken.
    #[error(
        "all {entries} addresses of annotation ip_pool are in use, the first by {holder}; add addresses to the \
         list, or delete pods that are not needed"
    )]
    ListExhausted {
        /// Entries of the list.
        entries: usize,
        /// Who has the first.
        holder: Arc<str>,
    },
    /// Something that it needs can't be used; the text says what and why.
    #[error("{0}")]
    Blocked(String),
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
            Self::Conflict { .. } | Self::ListExhausted { .. } | Self::Blocked(_) => 5,
            Self::Exhausted { .. } | Self::PoolExhausted { .. } | Self::NoPool { .. } => 4,
            Self::InvalidFamily { .. } => 3,
            Self::OutOfRange { .. } => 2,
            Self::InvalidRequest(_) | Self::Unsupported(_) | Self::InvalidSubnet { .. } => 1,
            Self::NoSubnet(_) => 0,
        }
    }
}
