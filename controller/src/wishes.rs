//! What pods ask of their port beside its address (contract §2.1), parsed: read by the
//! world, which refuses a pod whose wish can't be read, and by compile, which states the
//! rows.

use std::collections::BTreeMap;

use crds::{keys, net};

use crate::objects::StringMap;

/// `k=v,k=v`; a value in braces may hold commas.
///
/// # Errors
/// What is wrong, in words.
pub(crate) fn options(text: &str) -> Result<BTreeMap<String, String>, String> {
    let mut options = BTreeMap::new();
    let (mut depth, mut start) = (0_i32, 0);
    let mut parts = Vec::new();
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text.get(start..at).unwrap_or_default());
                start = at + 1;
            }
            _ => {}
        }
        if depth < 0 {
            break;
        }
    }
    if depth != 0 {
        return Err(format!("{text:?} has braces that do not match"));
    }
    parts.push(text.get(start..).unwrap_or_default());
    for part in parts.iter().map(|part| part.trim()).filter(|part| !part.is_empty()) {
        match part.split_once('=') {
            Some((key, value)) if !key.trim().is_empty() && !value.trim().is_empty() => {
                options.insert(key.trim().to_owned(), value.trim().to_owned());
            }
            _ => return Err(format!("{part:?} is not of the form option=value")),
        }
    }
    Ok(options)
}

/// Next hops of annotation `north_gateway`, one of a family at most.
///
/// # Errors
/// What is wrong, in words.
pub(crate) fn north_gateway(text: &str) -> Result<net::DualIps, String> {
    let ips = net::parse_dual_ips(text).map_err(|error| error.to_string())?;
    if ips.is_empty() { Err(format!("{text:?} is no address")) } else { Ok(ips) }
}

/// The first wish that can't be read: its annotation, what is wrong, and the remedy.
pub(crate) fn problem(requests: &StringMap) -> Option<String> {
    let text = |key: &str| requests.get(key).map(|text| text.trim()).filter(|text| !text.is_empty());
    let gateway = text(keys::NORTH_GATEWAY).and_then(|text| {
        let error = north_gateway(text).err()?;
        Some((keys::NORTH_GATEWAY, error, "one address, or one of each family separated by a comma"))
    });
    let dhcp = |key: &'static str| {
        let error = options(text(key)?).err()?;
        Some((key, error, "option=value,option=value"))
    };
    let first = gateway.or_else(|| dhcp(keys::DHCP_V4_OPTIONS)).or_else(|| dhcp(keys::DHCP_V6_OPTIONS));
    first.map(|(key, error, form)| format!("annotation {key}: {error}; write {form}, or remove it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_with_lists() {
        let parsed = options("dns_server={8.8.8.8,1.1.1.1}, lease_time=60,").unwrap();
        assert_eq!(parsed["dns_server"], "{8.8.8.8,1.1.1.1}");
        assert_eq!(parsed["lease_time"], "60");
        assert_eq!(parsed.len(), 2);
        assert!(options("").unwrap().is_empty());
        for wrong in ["lease_time", "=1", "a=", "a={1", "a=1}"] {
            options(wrong).unwrap_err();
        }
    }

    #[test]
    fn wishes_that_cannot_be_read_are_named() {
        let of = |key: &str, value: &str| problem(&StringMap::from([(key.into(), value.into())]));
        for (key, good, wrong) in [
            (keys::NORTH_GATEWAY, "192.0.2.1,2001:db8::1", "192.0.2.1,192.0.2.2"),
            (keys::NORTH_GATEWAY, "2001:db8::1", "here"),
            (keys::DHCP_V4_OPTIONS, "lease_time=60", "lease_time"),
            (keys::DHCP_V6_OPTIONS, "", "a={1"),
        ] {
            assert_eq!(of(key, good), None);
            let said = of(key, wrong).expect("named");
            assert!(said.contains(key) && said.contains("write"), "{said}");
        }
    }
}
