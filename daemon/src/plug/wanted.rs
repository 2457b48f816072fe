//! What an ADD has to make, read from the pod's annotations. Pure.
//!
//! In: the request, the pod and the subnets as watched. Out: [`Readiness`]:
//! everything needed, or what is still missing, or why it can never work. The
//! caller asks again whenever a watch delivers something.

use std::net::IpAddr;

use cni::api::{CniRequest, PLUGIN_TYPE, Route as ApiRoute};
use ipnet::IpNet;

use super::error::{PlugError, Stage};
use super::names;
use crate::kube::{PodFacts, SubnetFacts};
use crate::netlink::Mac;
use crate::ovs::PortQos;
use crate::qos::limits;

/// Everything that the annotations say about one interface.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// UID of the pod.
    pub pod_uid: String,
    /// `iface-id`, the name of the logical switch port.
    pub port_name: String,
    /// Name inside the pod.
    pub if_name: String,
    /// Subnet; empty when the annotations name none.
    pub subnet: String,
    /// MAC.
    pub mac: Mac,
    /// Addresses with the prefix length of the subnet; none for a pod that
    /// gets them elsewhere.
    pub addresses: Vec<IpNet>,
    /// The subnet's prefixes, family by family as the addresses.
    pub cidrs: Vec<IpNet>,
    /// Gateways of the families present.
    pub gateways: Vec<IpAddr>,
    /// Whether the default route goes through this interface.
    pub default_route: bool,
    /// Extra routes: destination (absent: default) and gateway.
    pub routes: Vec<(Option<IpNet>, Option<IpAddr>)>,
    /// Routes that are none, for the event.
    pub bad_routes: Vec<String>,
    /// The provider is OVN's and the interface is ours to make.
    pub is_ovn: bool,
    /// Limits of its traffic.
    pub qos: PortQos,
    /// What of the limits can't be had, with the remedy.
    pub qos_notes: Vec<String>,
    /// Things asked for that this version doesn't do.
    pub unsupported: Vec<String>,
    /// Provider of the request, never empty.
    pub provider: String,
    /// How the interface is made.
    pub nic: NicKind,
    /// Provider network of an underlay pod.
    pub provider_network: Option<String>,
    /// The pod receives a virtual machine that still runs elsewhere: its
    /// address answers there, and its gateway not yet here.
    pub migrating: bool,
}

/// How a pod's interface is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NicKind {
    /// A veth pair, one end in the switch.
    #[default]
    Veth,
    /// A device that ovs-vswitchd makes (`type=internal`), moved into the pod.
    Internal,
}

/// Annotation by which KubeVirt marks the pod that a machine migrates to.
const MIGRATION_JOB: &str = "kubevirt.io/migrationJobName";

/// How far the controller is with a pod.
#[derive(Clone, Debug)]
pub enum Readiness {
    /// Everything is there.
    Ready(Box<Wanted>),
    /// Wait; the stage and the text are for the failure at the deadline.
    Waiting(Stage, String),
    /// Waiting is useless.
    Failed(PlugError),
}

/// Whether a provider is served by OVN: ours, or a three-part `….ovn`.
pub fn is_ovn_provider(provider: &str) -> bool {
    provider.is_empty()
        || provider == crds::keys::DEFAULT_PROVIDER
        || (provider.ends_with(".ovn") && provider.split('.').count() == 3)
}

/// The provider without the interface name that Multus users may append.
pub fn base_provider<'a>(provider: &'a str, if_name: &str) -> &'a str {
    provider.strip_suffix(if_name).and_then(|rest| rest.strip_suffix('.')).unwrap_or(provider)
}

/// The subnet that a request's provider is bound to, if it needs to be bound.
///
/// # Errors
/// Stage `provider` when no subnet names it.
pub fn check_provider<'a>(
    request: &CniRequest,
    subnets: impl Iterator<Item = &'a SubnetFacts>,
) -> Result<Option<String>, PlugError> {
    let provider = request.provider.as_str();
    if provider.is_empty() || provider == crds::keys::DEFAULT_PROVIDER {
        return Ok(None);
    }
    let base = base_provider(provider, &request.if_name);
    subnets
        .into_iter()
        .find(|subnet| subnet.provider == base)
        .map(|subnet| Some(subnet.name.clone()))
        .ok_or_else(|| {
            PlugError::new(Stage::Provider, format!("provider {provider} is not bound to any subnet"))
                .remedy(format!("create a Subnet with spec.provider {base}"))
        })
}

/// Reads the pod's annotations.
pub fn readiness(request: &CniRequest, pod: &PodFacts) -> Readiness {
    ready(read(request, pod, None))
}

/// The same for a pod that runs and lost a part of its interface. What somebody wrote into the annotations since must not
/// cost it its network: limits that can't be read stay `as_before`, and such routes are none.
pub fn readiness_again(request: &CniRequest, pod: &PodFacts, as_before: PortQos) -> Readiness {
    ready(read(request, pod, Some(as_before)))
}

fn ready(read: Result<Wanted, Stop>) -> Readiness {
    match read {
        Ok(wanted) => Readiness::Ready(Box::new(wanted)),
        Err(Stop::Wait(stage, text)) => Readiness::Waiting(stage, text),
        Err(Stop::Fail(error)) => Readiness::Failed(error),
    }
}

enum Stop {
    Wait(Stage, String),
    Fail(PlugError),
}

fn wait(text: impl Into<String>) -> Stop {
    Stop::Wait(Stage::WaitAddress, text.into())
}

fn read(request: &CniRequest, pod: &PodFacts, as_before: Option<PortQos>) -> Result<Wanted, Stop> {
    let base =
        if request.provider.is_empty() { crds::keys::DEFAULT_PROVIDER } else { request.provider.as_str() };
    let if_name = names::in_pod(&request.if_name);
    // The same attachment twice in one pod: annotations and names carry the
    // interface's name.
    let with_name = format!("{base}.{if_name}");
    let append = pod.annotation(&with_name, "ip_address").is_some();
    let provider = if append { with_name.as_str() } else { base };
    let get = |key| pod.annotation(provider, key);

    let ip = get("ip_address").unwrap_or_default();
    let mac_only = ip.is_empty()
        && get("allocated") == Some("true")
        && get("mac_address").is_some()
        && get("cidr").is_none();
    if ip.is_empty() && !mac_only {
        return Err(wait("the controller has given no address yet"));
    }
    let mac = get("mac_address").ok_or_else(|| wait("the controller has given no MAC yet"))?;
    let mac: Mac = mac.parse().map_err(|error| wait(format!("annotation mac_address: {error}")))?;
    let all_cidrs = parse_list::<IpNet>(get("cidr").unwrap_or_default())
        .map_err(|text| wait(format!("annotation cidr: {text:?} is no prefix")))?;
    let (mut addresses, mut cidrs) = (Vec::new(), Vec::new());
    for ip in parse_list::<IpAddr>(ip).map_err(|text| wait(format!("annotation ip_address: {text:?}")))? {
        let family = all_cidrs.iter().find(|cidr| cidr.addr().is_ipv6() == ip.is_ipv6());
        let cidr = family.ok_or_else(|| wait(format!("annotation cidr has no prefix for {ip}")))?;
        if !cidr.contains(&ip) {
            return Err(wait(format!("address {ip} is not in {cidr}")));
        }
        let net = IpNet::new(ip, cidr.prefix_len())
            .map_err(|error| Stop::Fail(PlugError::new(Stage::ParseAddress, error.to_string())))?;
        addresses.push(net);
        cidrs.push(cidr.trunc());
    }
    let mut gateways = parse_list::<IpAddr>(get("gateway").unwrap_or_default()).map_err(|text| {
        Stop::Fail(PlugError::new(Stage::ParseAddress, format!("annotation gateway: {text:?} is no address")))
    })?;
    gateways.retain(|gateway| addresses.iter().any(|net| net.addr().is_ipv6() == gateway.is_ipv6()));

    obeys_runtime(request, &addresses, mac).map_err(Stop::Fail)?;

    let default_route = match get("default_route") {
        Some("true") => true,
        Some("false") => false,
        _ => if_name == "eth0",
    };
    if !mac_only && default_route && is_ovn_provider(base) && get("routed") != Some("true") {
        return Err(Stop::Wait(Stage::WaitRoute, "the controller has not routed the pod yet".into()));
    }

    let annotated: Vec<ApiRoute> = match pod.annotation(base, "routes") {
        None => Vec::new(),
        Some(json) => match serde_json::from_str(json) {
            Ok(routes) => routes,
            Err(_) if as_before.is_some() => Vec::new(),
            Err(error) => {
                let message = format!("annotation routes: {error}");
                return Err(Stop::Fail(PlugError::new(Stage::ParseRoutes, message)));
            }
        },
    };
    let (mut routes, mut bad_routes) = (Vec::new(), Vec::new());
    for route in request.routes.iter().chain(&annotated) {
        match parse_route(route) {
            Some(route) => routes.push(route),
            None => bad_routes.push(format!("dst={:?} gw={:?}", route.dst, route.gw)),
        }
    }

    // A virtual machine's port keeps the machine's name through migrations.
    let owner = get("virtualmachine").unwrap_or(&request.pod_name);
    let mut port_name = crds::names::pod_port(owner, &request.pod_namespace, base);
    if append {
        port_name = format!("{port_name}.{if_name}");
    }
    // Before anything is made: the runtime asks again, and finds the annotation corrected.
    let limits = match (limits::read(get), as_before) {
        (Ok(limits), _) => limits,
        (Err(_), Some(qos)) => limits::Limits { qos, ..limits::Limits::default() },
        (Err(error), None) => {
            let refused = PlugError::new(Stage::ConfigureNic, error.to_string()).code(7);
            return Err(Stop::Fail(refused.remedy(error.remedy)));
        }
    };
    // An older executable does not say of what type it is.
    let is_ours = request.cni_type.is_empty() || request.cni_type == PLUGIN_TYPE;
    let mut unsupported = Vec::new();
    let nic = match get("pod_nic_type") {
        Some("internal-port") => NicKind::Internal,
        None | Some("veth-pair") => NicKind::Veth,
        // Virtual functions and vhost-user ports are asked for by the request,
        // which is refused; the annotation alone gets a pod with a veth pair.
        Some(_) => {
            unsupported.push(crds::keys::pod_key(provider, "pod_nic_type"));
            NicKind::Veth
        }
    };
    Ok(Wanted {
        pod_uid: pod.uid.clone(),
        port_name,
        if_name: if_name.to_owned(),
        subnet: get("logical_switch").unwrap_or_default().to_owned(),
        mac,
        addresses,
        cidrs,
        gateways,
        default_route,
        routes,
        bad_routes,
        is_ovn: is_ours && is_ovn_provider(base_provider(base, if_name)),
        qos: limits.qos,
        qos_notes: limits.notes,
        unsupported,
        provider: base.to_owned(),
        nic,
        provider_network: get("provider_network").map(str::to_owned),
        migrating: pod.annotations.contains_key(MIGRATION_JOB) || get("activation_strategy").is_some(),
    })
}

/// Addresses are given by the controller, which OVN's flows follow. What the runtime asks for beside it must agree, or the
/// pod would run with other addresses than its owner believes.
///
/// # Errors
/// What does not agree, with how to ask for it.
fn obeys_runtime(request: &CniRequest, addresses: &[IpNet], mac: Mac) -> Result<(), PlugError> {
    let refused = |what: &str, asked: &str, given: String| {
        PlugError::new(
            Stage::ValidateRequest,
            format!("runtimeConfig.{what} asks for {asked}, and the controller gave {given}"),
        )
        .code(7)
        .remedy(
            "ask by the pod's annotations ip_address and mac_address of this network, or by ips and mac of its element in \
             k8s.v1.cni.cncf.io/networks, before the pod is created",
        )
    };
    for text in &request.runtime_ips {
        let asked = text.split('/').next().and_then(|ip| ip.trim().parse::<IpAddr>().ok());
        if !asked.is_some_and(|asked| addresses.iter().any(|net| net.addr() == asked)) {
            let given: Vec<String> = addresses.iter().map(|net| net.addr().to_string()).collect();
            return Err(refused(
                "ips",
                text,
                if given.is_empty() { "none".into() } else { given.join(", ") },
            ));
        }
    }
    // Of an interface of another plugin we give no MAC.
    let ours = request.cni_type.is_empty() || request.cni_type == PLUGIN_TYPE;
    let asked = Some(request.runtime_mac.as_str()).filter(|asked| ours && !asked.is_empty());
    match asked {
        Some(asked) if asked.parse().ok() != Some(mac) => Err(refused("mac", asked, mac.to_string())),
        _ => Ok(()),
    }
}

fn parse_list<T: std::str::FromStr>(text: &str) -> Result<Vec<T>, &str> {
    text.split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .map(|part| part.parse().map_err(|_| part))
        .collect()
}

/// A route with neither part, or a part that does not parse, is left out and
/// told of (node contract §2.4 step 7).
fn parse_route(route: &ApiRoute) -> Option<(Option<IpNet>, Option<IpAddr>)> {
    let destination = match route.dst.as_str() {
        "" => None,
        text => Some(text.parse::<IpNet>().ok()?.trunc()),
    };
    let gateway = match route.gw.as_str() {
        "" => None,
        text => Some(text.parse().ok()?),
    };
    (destination.is_some() || gateway.is_some()).then_some((destination, gateway))
}

#[cfg(test)]
mod tests;
