//! A subnet's address fields, parsed (contract §1.1).

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::pool::Layout;
use super::request::{Error, Family};

/// What a subnet's fields say, parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SubnetLayout {
    pub(crate) name: Arc<str>,
    pub(crate) cidr: Arc<str>,
    pub(crate) v4: Option<Layout>,
    pub(crate) v6: Option<Layout>,
}

impl SubnetLayout {
    /// Parses `cidrBlock`, `gateway`, `excludeIps` and `vips` (contract §1.1). A virtual
    /// address that is none of the block is left out: the subnet's condition names it.
    pub(crate) fn parse<'a>(
        name: &str,
        cidr: &str,
        gateway: &str,
        excludes: impl IntoIterator<Item = &'a str>,
        vips: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, Error> {
        let invalid = |detail: String| Error::InvalidSubnet { subnet: name.into(), detail };
        let mut layout = Self { name: name.into(), cidr: cidr.into(), v4: None, v6: None };
        for text in split(cidr) {
            let net: IpNet = text
                .parse()
                .map_err(|_| invalid(format!("cidrBlock: {text:?} is not a CIDR such as 10.16.0.0/16")))?;
            let net = net.trunc();
            let (family, slot) = match net {
                IpNet::V4(_) => (Family::V4, &mut layout.v4),
                IpNet::V6(_) => (Family::V6, &mut layout.v6),
            };
            let (excludes, vips) = Default::default();
            let new = Layout { family, cidr: net, gateway: None, excludes, vips };
            if slot.replace(new).is_some() {
                return Err(invalid(format!(
                    "cidrBlock: {cidr:?} has two blocks of one family; give one per family"
                )));
            }
        }
        if layout.v4.is_none() && layout.v6.is_none() {
            return Err(invalid("cidrBlock is empty; give a CIDR such as 10.16.0.0/16".into()));
        }
        for text in split(gateway) {
            let ip: IpAddr =
                text.parse().map_err(|_| invalid(format!("gateway: {text:?} is not an IP address")))?;
            let (family, number) = Family::number(ip);
            if let Some(part) = layout.part(family).filter(|p| p.cidr.contains(&ip)) {
                part.gateway = Some(number);
            }
        }
        for text in excludes {
            let (first, last) = text.split_once("..").unwrap_or((text, text));
            let ends = first.trim().parse::<IpAddr>().ok().zip(last.trim().parse::<IpAddr>().ok());
            let ends = ends.map(|(a, b)| (Family::number(a), Family::number(b)));
            match ends {
                Some(((f, a), (g, b))) if f == g && a <= b => {
                    if let Some(part) = layout.part(f) {
                        let low = Family::number(part.cidr.network()).1.max(a);
                        let high = Family::number(part.cidr.broadcast()).1.min(b);
                        part.excludes.insert(low, high);
                    }
                }
                _ => {
                    return Err(invalid(format!(
                        "excludeIps: {text:?} is neither an address nor a range such as 10.16.0.2..10.16.0.9"
                    )));
                }
            }
        }
        for ip in vips.into_iter().filter_map(|text| text.trim().parse::<IpAddr>().ok()) {
            let (family, number) = Family::number(ip);
            if let Some(part) = layout.part(family).filter(|part| part.cidr.contains(&ip)) {
                part.vips.insert(number, number);
            }
        }
        for part in [layout.v4.as_mut(), layout.v6.as_mut()].into_iter().flatten() {
            if let Some(gateway) = part.gateway {
                part.excludes.remove(gateway, gateway);
                part.vips.remove(gateway, gateway);
            }
        }
        Ok(layout)
    }

    fn part(&mut self, family: Family) -> Option<&mut Layout> {
        match family {
            Family::V4 => self.v4.as_mut(),
            Family::V6 => self.v6.as_mut(),
        }
    }
}

fn split(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|t| !t.is_empty())
}
