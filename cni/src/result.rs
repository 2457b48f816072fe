//! The answer of ADD in the shape of the configuration's version, and the way back: what CHECK must find, read from
//! `prevResult`.
//!
//! In: the agent's [`CniResponse`]. Out: the JSON object that the runtime reads.

use crate::api::{CniResponse, Dns, ExpectedState, HostEnd, Route};
use crate::conf::NetConf;
use crate::error::{CniError, code};
use crate::version::Version;
use serde_json::{Map, Value, json};
use std::net::IpAddr;

struct Address {
    ip: IpAddr,
    prefix: u8,
    gateway: Option<IpAddr>,
}

struct Via {
    destination: String,
    gateway: Option<IpAddr>,
    is_v4: bool,
}

/// Builds the result of an ADD (node contract §1.3).
///
/// As an IPAM plugin we answer with addresses only, as the specification has it. Where the configuration has a
/// `prevResult` (we are not the first of the chain), ours is added to it.
///
/// # Errors
/// Code 999: an address, prefix or gateway that is none. Code 7: a `prevResult` that is no result.
pub fn build(conf: &NetConf, netns: &str, response: &CniResponse) -> Result<Value, CniError> {
    let addresses = response
        .addresses()
        .iter()
        .map(|ip| {
            let address = parse_ip("address", &ip.ip)?;
            let (network, prefix) =
                parse_prefix(&ip.cidr).ok_or_else(|| internal("subnet prefix", &ip.cidr))?;
            if network.is_ipv4() != address.is_ipv4() {
                return Err(internal("subnet prefix of the address's family", &ip.cidr));
            }
            let gateway = match ip.gateway.as_str() {
                "" => None,
                gateway => Some(parse_ip("gateway", gateway)?),
            };
            Ok(Address { ip: address, prefix, gateway })
        })
        .collect::<Result<Vec<_>, CniError>>()?;
    let routes = if response.routes.is_empty() {
        // Nothing read back from a kernel (we are only the IPAM, or there is no network device): say the default.
        addresses.iter().filter_map(|address| address.gateway).map(default_via).collect()
    } else {
        response.routes.iter().filter_map(via).collect::<Vec<_>>()
    };
    let dns = if response.dns.is_empty() { &conf.dns } else { &response.dns };

    let mut result = Map::new();
    result.insert("cniVersion".into(), conf.version.as_str().into());
    if conf.version <= Version::V020 {
        for (key, v4) in [("ip4", true), ("ip6", false)] {
            if let Some(address) = addresses.iter().find(|address| address.ip.is_ipv4() == v4) {
                let mut entry = address_object("ip", address);
                let own: Vec<_> = routes.iter().filter(|via| via.is_v4 == v4).map(via_object).collect();
                if !own.is_empty() {
                    entry.insert("routes".into(), own.into());
                }
                result.insert(key.into(), entry.into());
            }
        }
    } else {
        let delegate = conf.is_delegate();
        let (mut interfaces, mut ips, mut all_routes) = match conf.prev_result.as_ref().filter(|_| !delegate)
        {
            None => Default::default(),
            Some(previous) => (
                previous_list(previous, "interfaces")?,
                previous_list(previous, "ips")?,
                previous_list(previous, "routes")?,
            ),
        };
        let index = interfaces.len();
        if !delegate {
            // The pod's before the host's: Kube-OVN's result has it alone, at 0, and some take it from there.
            interfaces.push(interface(conf, netns, response));
            interfaces.extend(response.host.as_ref().and_then(|host| host_end(conf, host)));
        }
        ips.extend(addresses.iter().map(|address| {
            let mut entry = address_object("address", address);
            if !delegate {
                entry.insert("interface".into(), index.into());
            }
            if conf.version < Version::V100 {
                entry.insert("version".into(), if address.ip.is_ipv4() { "4" } else { "6" }.into());
            }
            entry.into()
        }));
        all_routes.extend(routes.iter().map(via_object));
        for (key, list) in [("interfaces", interfaces), ("ips", ips), ("routes", all_routes)] {
            if !list.is_empty() {
                result.insert(key.into(), list.into());
            }
        }
    }
    let previous_dns =
        conf.prev_result.as_ref().and_then(|previous| previous.get("dns")).filter(|_| dns.is_empty());
    result.insert("dns".into(), previous_dns.cloned().unwrap_or_else(|| dns_object(dns)));
    Ok(result.into())
}

/// A list of `prevResult`; an absent one is empty.
fn previous_list(previous: &Value, key: &str) -> Result<Vec<Value>, CniError> {
    let wrong = |what: String| {
        CniError::new(code::INVALID_CONFIG, "Invalid Configuration")
            .details(what)
            .remedy("prevResult is the runtime's to fill, with what the chain's earlier plugins answered")
    };
    let object = previous.as_object().ok_or_else(|| wrong("prevResult is no object".into()))?;
    match object.get(key) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(list)) => Ok(list.clone()),
        Some(_) => Err(wrong(format!("prevResult.{key} is no list"))),
    }
}

fn interface(conf: &NetConf, netns: &str, response: &CniResponse) -> Value {
    let mut interface = described(conf, &response.nicname, &response.mac_address, response.mtu);
    if !netns.is_empty() {
        interface.insert("sandbox".into(), netns.into());
    }
    interface.into()
}

/// C040: what is on the host has no sandbox. An agent that says no name says nothing.
fn host_end(conf: &NetConf, host: &HostEnd) -> Option<Value> {
    (!host.name.is_empty()).then(|| described(conf, &host.name, &host.mac, host.mtu).into())
}

fn described(conf: &NetConf, name: &str, mac: &str, mtu: i64) -> Map<String, Value> {
    let mut interface = Map::new();
    interface.insert("name".into(), name.into());
    if !mac.is_empty() {
        interface.insert("mac".into(), mac.into());
    }
    if conf.version >= Version::V110 && mtu > 0 {
        interface.insert("mtu".into(), mtu.into());
    }
    interface
}

fn address_object(key: &str, address: &Address) -> Map<String, Value> {
    let mut entry = Map::new();
    entry.insert(key.into(), format!("{}/{}", address.ip, address.prefix).into());
    if let Some(gateway) = address.gateway {
        entry.insert("gateway".into(), gateway.to_string().into());
    }
    entry
}

fn via_object(via: &Via) -> Value {
    match via.gateway {
        Some(gateway) => json!({"dst": via.destination, "gw": gateway.to_string()}),
        None => json!({"dst": via.destination}),
    }
}

fn dns_object(dns: &Dns) -> Value {
    serde_json::to_value(dns).unwrap_or_else(|_| json!({}))
}

fn default_via(gateway: IpAddr) -> Via {
    let destination = if gateway.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
    Via { destination: destination.into(), gateway: Some(gateway), is_v4: gateway.is_ipv4() }
}

/// A route of the agent; one without a usable destination says nothing and is left out.
fn via(route: &Route) -> Option<Via> {
    let gateway: Option<IpAddr> = route.gw.parse().ok();
    if route.dst.is_empty() {
        return gateway.map(default_via);
    }
    let (network, prefix) = parse_prefix(&route.dst)?;
    Some(Via { destination: format!("{network}/{prefix}"), gateway, is_v4: network.is_ipv4() })
}

/// `address/length`, or a bare address with its full length.
fn parse_prefix(text: &str) -> Option<(IpAddr, u8)> {
    let (ip, length) = match text.split_once('/') {
        Some((ip, length)) => (ip.parse::<IpAddr>().ok()?, Some(length.parse::<u8>().ok()?)),
        None => (text.parse::<IpAddr>().ok()?, None),
    };
    let full = if ip.is_ipv4() { 32 } else { 128 };
    let length = length.unwrap_or(full);
    (length <= full).then_some((ip, length))
}

fn parse_ip(what: &str, text: &str) -> Result<IpAddr, CniError> {
    text.parse().map_err(|_| internal(what, text))
}

fn internal(what: &str, text: &str) -> CniError {
    CniError::new(code::INTERNAL, format!("the node agent answered {text:?}, which is no {what}"))
}

/// What CHECK has to find, from `prevResult` (its shape from 0.3.0 on; CHECK does not exist before 0.4.0).
pub fn expected(prev_result: &Value, ifname: &str, netns: &str) -> ExpectedState {
    let list =
        |key: &str| prev_result.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let text =
        |object: &Value, key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let interfaces = list("interfaces");
    // The pod's interface among those of the whole chain; an empty name is ours as somebody's IPAM.
    let ours = interfaces.iter().position(|interface| {
        let name = text(interface, "name");
        (name == ifname || name.is_empty()) && text(interface, "sandbox") == netns
    });
    let belongs = |ip: &&Value| match (ip.get("interface").and_then(Value::as_u64), ours) {
        (Some(index), Some(ours)) => usize::try_from(index) == Ok(ours),
        (Some(_), None) => false,
        (None, _) => true,
    };
    ExpectedState {
        mac_address: ours.and_then(|index| interfaces.get(index)).map(|i| text(i, "mac")).unwrap_or_default(),
        addresses: list("ips").iter().filter(belongs).map(|ip| text(ip, "address")).collect(),
        routes: list("routes")
            .iter()
            .map(|route| Route { dst: text(route, "dst"), gw: text(route, "gw") })
            .collect(),
        mtu: ours.and_then(|index| interfaces.get(index)?.get("mtu")?.as_i64()).unwrap_or_default(),
    }
}

#[cfg(test)]
#[path = "result_tests.rs"]
mod tests;
