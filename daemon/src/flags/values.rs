//! Values of flags, and how they are read.

use std::net::IpAddr;

use clap::ValueEnum;

/// How packets travel between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NetworkType {
    /// Geneve, UDP 6081.
    Geneve,
    /// VXLAN, UDP 4789.
    Vxlan,
    /// STT, TCP 7471.
    Stt,
    /// No tunnels: pods on the physical network; sized as geneve.
    Vlan,
}

impl NetworkType {
    /// Bytes of a packet that the encapsulation takes (node contract §3.2).
    pub fn overhead(self, encap_is_ipv6: bool) -> u32 {
        let base = match self {
            Self::Geneve | Self::Vlan => 100,
            Self::Vxlan => 50,
            Self::Stt => 72,
        };
        base + if encap_is_ipv6 { 20 } else { 0 }
    }
}

/// Go's `strconv.ParseBool`.
pub(super) fn go_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("{text:?} is not a boolean")),
    }
}

/// Ports and ranges of ports, first and last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ports(pub Vec<(u16, u16)>);

pub(super) fn parse_ports(text: &str) -> Result<Ports, String> {
    let one = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let port = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port > 0);
        match (port(first), port(last)) {
            (Some(first), Some(last)) if first <= last => Ok((first, last)),
            _ => Err(format!("{part:?} is no port and no range of ports; write 6641-6648,10665")),
        }
    };
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts.map(one).collect::<Result<_, _>>().map(Ports)
}

/// Addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses(pub Vec<IpAddr>);

pub(super) fn parse_addresses(text: &str) -> Result<Addresses, String> {
    let one = |part: &str| part.parse().map_err(|_| format!("{part:?} is no address"));
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts.map(one).collect::<Result<_, _>>().map(Addresses)
}
