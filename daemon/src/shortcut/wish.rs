//! Which flows the Services want. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::gateway::prefixes;
use crate::kube::{PodKey, ServiceFacts, SubnetFacts, VlanFacts};
use crate::netlink::Mac;
use crate::openflow::{Flow, Protocol};
use crate::ovs::{BR_INT, View};
use crate::underlay::is_provider_bridge;
use crate::underlay::mappings::{self, BRIDGES};

/// Cookie of flows for IPv4, and of those for IPv6 by its last bit.
pub const COOKIE: u64 = 0x1000;
/// The bits that tell our cookies from others'.
pub const COOKIES: u64 = !1;
const PRIORITY: u16 = 10_000;
/// Destination of packets to a Subnet that no router port connects with the overlay: nobody's.
const NOBODY: Mac = Mac([0, 0, 0, 1, 0, 1]);

/// The objects.
#[derive(Clone, Copy, Debug)]
pub struct Objects<'a> {
    /// Services of type LoadBalancer.
    pub services: &'a BTreeMap<PodKey, Arc<ServiceFacts>>,
    /// All Subnets.
    pub subnets: &'a BTreeMap<Arc<str>, Arc<SubnetFacts>>,
    /// All Vlans.
    pub vlans: &'a BTreeMap<Arc<str>, Arc<VlanFacts>>,
}

/// What is wanted on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// Flows of each provider bridge; one that is to have none is here too.
    pub bridges: BTreeMap<String, BTreeSet<Flow>>,
    /// Services that can't be served, with UID and reason.
    pub problems: BTreeMap<PodKey, (String, String)>,
}

/// Where packets to a Subnet's addresses come in and go.
struct Way {
    bridge: String,
    in_port: u32,
    vlan: u16,
    mac: Mac,
    output: u32,
}

/// The number of a port that the switch has opened.
fn number(view: &View, port: &str) -> Option<u32> {
    view.interface(port)?.ofport().and_then(|number| u32::try_from(number).ok()).filter(|number| *number > 0)
}

/// The NIC in a provider bridge.
fn nic(view: &View, bridge: &str) -> Option<u32> {
    view.port_names(bridge).into_iter().find_map(|name| {
        let port = view.port(&name)?;
        let ours = port.map_get("external_ids", "vendor") == Some(crds::keys::VENDOR);
        let kind = view.interface(&name)?;
        (ours && !matches!(kind.kind(), "internal" | "patch")).then(|| number(view, &name)).flatten()
    })
}

/// `None` as long as a part of it is missing.
fn way(view: &View, vlans: &BTreeMap<Arc<str>, Arc<VlanFacts>>, subnet: &SubnetFacts) -> Option<Way> {
    let vlan = vlans.get(subnet.vlan.as_str())?;
    let bridge = mappings::get(view.root_external_id(BRIDGES)?, &vlan.provider)?;
    if !is_provider_bridge(view, bridge) {
        return None;
    }
    let mac = match subnet.u2o_interconnection {
        true => subnet.u2o_interconnection_mac.parse().ok()?,
        false => NOBODY,
    };
    let patch = format!("patch-{}-to-{BR_INT}", crds::names::localnet_port(&subnet.name));
    let (in_port, output) = (nic(view, bridge)?, number(view, &patch)?);
    Some(Way { bridge: bridge.to_owned(), in_port, vlan: vlan.id, mac, output })
}

/// The Subnet of an address: the one that says so of itself and holds it. The Service's annotation decides between
/// several, and where none holds it.
fn subnet_of<'a>(objects: Objects<'a>, service: &ServiceFacts, address: IpAddr) -> Option<&'a SubnetFacts> {
    let serves = |subnet: &&SubnetFacts| subnet.external_lb_addresses && !subnet.deleting;
    let holds = |subnet: &SubnetFacts| prefixes(&subnet.cidr_block).iter().any(|net| net.contains(&address));
    let named = objects.subnets.get(service.subnet.as_str()).map(|subnet| &**subnet).filter(serves);
    let other =
        || objects.subnets.values().map(|subnet| &**subnet).filter(serves).find(|subnet| holds(subnet));
    match named {
        Some(named) if holds(named) => Some(named),
        named => other().or(named),
    }
}

/// What the Services want. Of two that want one address and port the first by namespace and name has it.
pub fn wishes(view: &View, objects: Objects<'_>) -> Wishes {
    let mut wishes = Wishes::default();
    for (_, bridge) in mappings::all(view.root_external_id(BRIDGES).unwrap_or_default()) {
        if is_provider_bridge(view, bridge) {
            wishes.bridges.entry(bridge.to_owned()).or_default();
        }
    }
    if wishes.bridges.is_empty() {
        return wishes;
    }
    let mut taken = BTreeSet::new();
    for (key, service) in objects.services.iter().filter(|(_, service)| !service.deleting) {
        for address in &service.addresses {
            let Some(way) = subnet_of(objects, service, *address).and_then(|of| way(view, objects.vlans, of))
            else {
                continue;
            };
            for (protocol, port) in &service.ports {
                let protocol = match protocol.as_str() {
                    "TCP" => Protocol::Tcp,
                    "UDP" => Protocol::Udp,
                    other => {
                        let reason = format!(
                            "port {port}/{other} can't be reached at {address} from the physical network: only TCP \
                             and UDP can; take the port out of the Service, or publish it by a NodePort"
                        );
                        wishes.problems.insert(key.clone(), (service.uid.clone(), reason));
                        continue;
                    }
                };
                if !taken.insert((way.bridge.clone(), way.vlan, *address, protocol, *port)) {
                    continue;
                }
                let flow = Flow {
                    cookie: COOKIE | u64::from(address.is_ipv6()),
                    priority: PRIORITY,
                    in_port: way.in_port,
                    // The same address in another VLAN is somebody else's, and OVN would throw its packets away.
                    vlan: way.vlan,
                    protocol,
                    destination: *address,
                    port: *port,
                    mac: way.mac,
                    output: way.output,
                };
                wishes.bridges.entry(way.bridge.clone()).or_default().insert(flow);
            }
        }
    }
    wishes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ovs::{BridgeSpec, PortSpec, plan};

    fn key(name: &str) -> PodKey {
        ("web".into(), name.into())
    }

    fn subnet(name: &str, block: &str, serves: bool) -> (Arc<str>, Arc<SubnetFacts>) {
        let facts = SubnetFacts {
            name: name.into(),
            cidr_block: block.into(),
            external_lb_addresses: serves,
            ..SubnetFacts::default()
        };
        (name.into(), Arc::new(facts))
    }

    #[test]
    fn an_address_belongs_to_the_subnet_that_says_so_and_holds_it() {
        let subnets = BTreeMap::from([
            subnet("a", "10.0.0.0/24", true),
            subnet("b", "10.0.0.0/24,fd00::/64", true),
            subnet("c", "10.0.1.0/24", false),
        ]);
        let (services, vlans) = (BTreeMap::new(), BTreeMap::new());
        let objects = Objects { services: &services, subnets: &subnets, vlans: &vlans };
        let of = |named: &str, ip: &str| {
            let service = ServiceFacts { subnet: named.into(), ..ServiceFacts::default() };
            subnet_of(objects, &service, ip.parse().unwrap())
                .map(|subnet| subnet.name.clone())
                .unwrap_or_default()
        };
        assert_eq!(of("", "10.0.0.9"), "a");
        assert_eq!(of("b", "10.0.0.9"), "b", "the annotation decides between two");
        assert_eq!(of("a", "fd00::9"), "b", "an annotation that is out of date misleads nobody");
        assert_eq!(of("a", "192.0.2.1"), "a", "where none holds it, it counts");
        assert_eq!((of("c", "10.0.1.9"), of("", "10.0.1.9")), (String::new(), String::new()));
    }

    /// The switch with the bridge of network `net1`, its NIC and the ports that are named.
    fn switch(ports: &[&str]) -> View {
        let mut database = crate::ovs::test_database();
        let text = |text: &str| text.to_owned();
        let ours = BTreeMap::from([(text("vendor"), text("kube-ovn"))]);
        let mut ids = ours.clone();
        ids.insert(text("exchange-link-name"), text("false"));
        let bridge = BridgeSpec { name: "br-net1".into(), external_ids: ids, ..BridgeSpec::default() };
        let mappings = BTreeMap::from([(text(BRIDGES), text("net1:br-net1"))]);
        let mut act = |wish: &dyn Fn(&View) -> Result<Vec<ovsdb::Operation>, plan::PlanError>| {
            let operations = wish(&View::new(database.replica())).unwrap();
            database.must(&operations);
        };
        act(&|view| plan::ensure_bridge(view, &bridge));
        act(&|view| plan::set_root_external_ids(view, &mappings));
        for (number, name) in ports.iter().enumerate() {
            let port = PortSpec {
                bridge: "br-net1".into(),
                name: (*name).into(),
                kind: if name.starts_with("patch-") { "patch".into() } else { String::new() },
                port_external_ids: ours.clone(),
                ..PortSpec::default()
            };
            act(&|view| plan::ensure_port(view, &port));
            let number = ovsdb::Value::integer(i64::try_from(number).unwrap() + 1);
            act(&|view| {
                let row = view.interface(name).unwrap().uuid();
                Ok(vec![
                    ovsdb::Operation::update("Interface")
                        .by_uuid(row)
                        .column("ofport", number.clone())
                        .build(),
                ])
            });
        }
        View::new(database.replica())
    }

    #[test]
    fn each_address_and_port_has_one_flow_once_its_way_is_complete() {
        let (name, mut facts) = subnet("u1", "10.0.0.0/24", true);
        Arc::make_mut(&mut facts).vlan = "v0".into();
        let subnets = BTreeMap::from([(name, facts)]);
        let vlan = VlanFacts { id: 0, provider: "net1".into() };
        let vlans = BTreeMap::from([(Arc::from("v0"), Arc::new(vlan))]);
        let service = |ports: &[(&str, u16)]| {
            let ports = ports.iter().map(|(protocol, port)| ((*protocol).to_owned(), *port)).collect();
            let addresses = ["10.0.0.9".parse().unwrap()].into();
            Arc::new(ServiceFacts { uid: "u".into(), addresses, ports, ..ServiceFacts::default() })
        };
        let services = BTreeMap::from([
            (key("first"), service(&[("TCP", 80), ("SCTP", 99), ("UDP", 80)])),
            (key("second"), service(&[("TCP", 80)])),
        ]);
        let objects = Objects { services: &services, subnets: &subnets, vlans: &vlans };
        let patch = "patch-localnet.u1-to-br-int";
        for ports in [&[][..], &["eth1"], &[patch]] {
            let wanted = wishes(&switch(ports), objects);
            assert_eq!(
                wanted.bridges,
                BTreeMap::from([("br-net1".to_owned(), BTreeSet::new())]),
                "{ports:?}"
            );
            assert!(wanted.problems.is_empty(), "nobody is told of what nobody could reach anyway");
        }
        let wanted = wishes(&switch(&["eth1", patch]), objects);
        let flows = &wanted.bridges["br-net1"];
        assert_eq!(flows.len(), 2, "{flows:?}");
        assert!(flows.iter().all(|flow| (flow.in_port, flow.output, flow.mac) == (1, 2, NOBODY)));
        let (uid, reason) = &wanted.problems[&key("first")];
        assert!(uid == "u" && reason.contains("99/SCTP") && reason.contains("10.0.0.9"), "{reason}");
        assert_eq!(wanted.problems.len(), 1);
        let none = BTreeMap::new();
        let nothing = wishes(&switch(&["eth1", patch]), Objects { services: &none, ..objects });
        assert!(nothing.bridges["br-net1"].is_empty());
    }
}
