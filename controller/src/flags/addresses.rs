//! Addresses in flags: CIDRs per family, gateways inside them, exclude lists.
//!
//! Flows in: texts of flags. Flows out: normalised values, or a [`SettingError`].

use std::net::IpAddr;

use ipnet::{Ipv4Net, Ipv6Net};

use super::settings::{SettingError, wrong};

/// CIDRs of one flag, at most one per family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DualCidr {
    v4: Option<Ipv4Net>,
    v6: Option<Ipv6Net>,
}

impl DualCidr {
    pub(super) fn parse(flag: &str, text: &str) -> Result<Self, SettingError> {
        let mut cidrs = Self::default();
        let example = "give `v4`, `v6` or `v4,v6`, for instance 10.16.0.0/16,fd00:10:16::/112";
        for part in text.split(',').map(str::trim) {
            let twice = || wrong(flag, format!("two CIDRs of one family in `{text}`"), example);
            match part.parse() {
                Ok(ipnet::IpNet::V4(net)) if cidrs.v4.is_none() => cidrs.v4 = Some(net.trunc()),
                Ok(ipnet::IpNet::V6(net)) if cidrs.v6.is_none() => cidrs.v6 = Some(net.trunc()),
                Ok(_) => return Err(twice()),
                Err(_) => return Err(wrong(flag, format!("`{part}` is no CIDR"), example)),
            }
        }
        Ok(cidrs)
    }

    pub(super) fn families(&self) -> (bool, bool) {
        (self.v4.is_some(), self.v6.is_some())
    }

    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let v4 = self.v4.zip(other.v4).is_some_and(|(a, b)| a.contains(&b) || b.contains(&a));
        let v6 = self.v6.zip(other.v6).is_some_and(|(a, b)| a.contains(&b) || b.contains(&a));
        v4 || v6
    }

    fn contains(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.v4.is_some_and(|net| net.contains(&address)),
            IpAddr::V6(address) => self.v6.is_some_and(|net| net.contains(&address)),
        }
    }
}

impl std::fmt::Display for DualCidr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.v4, self.v6) {
            (Some(v4), Some(v6)) => write!(f, "{v4},{v6}"),
            (Some(v4), None) => v4.fmt(f),
            (None, Some(v6)) => v6.fmt(f),
            (None, None) => Ok(()),
        }
    }
}

/// Checks a comma list of addresses, one per family, inside the CIDRs; returns it
/// in the order v4, v6. Empty stays empty.
pub(super) fn gateway(flag: &str, text: &str, cidrs: &DualCidr) -> Result<String, SettingError> {
    if text.is_empty() {
        return Ok(String::new());
    }
    let mut found = Vec::new();
    for part in text.split(',').map(str::trim) {
        let address: IpAddr = part
            .parse()
            .map_err(|_| wrong(flag, format!("`{part}` is no IP address"), "give one address per family"))?;
        if !cidrs.contains(address) {
            let remedy = "choose an address inside the subnet, or leave the flag empty for its first one";
            return Err(wrong(flag, format!("{address} is outside {cidrs}"), remedy));
        }
        found.push(address);
    }
    found.sort();
    if found.windows(2).any(|pair| matches!(pair, [a, b] if a.is_ipv4() == b.is_ipv4())) {
        return Err(wrong(flag, format!("two addresses of one family in `{text}`"), "give one per family"));
    }
    let families = (found.iter().any(IpAddr::is_ipv4), found.iter().any(IpAddr::is_ipv6));
    if families != cidrs.families() {
        let remedy = "give one address per family of the CIDR, or leave the flag empty";
        return Err(wrong(flag, format!("`{text}` does not have the families of {cidrs}"), remedy));
    }
    Ok(found.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(","))
}

/// Checks `a,b..c` lists.
pub(super) fn excludes(flag: &str, text: &str) -> Result<(), SettingError> {
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once("..").unwrap_or((part, part));
        match (first.parse::<IpAddr>(), last.parse::<IpAddr>()) {
            (Ok(a), Ok(b)) if a.is_ipv4() == b.is_ipv4() && a <= b => {}
            _ => {
                let remedy = "give addresses and ranges such as 10.16.0.2,10.16.0.10..10.16.0.20";
                return Err(wrong(
                    flag,
                    format!("`{part}` is neither an address nor a rising range"),
                    remedy,
                ));
            }
        }
    }
    Ok(())
}
