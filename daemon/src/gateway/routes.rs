//! Routes of the host to pods, through `ovn0` (node contract §3.4).
//!
//! In: [`Inputs`] and the main routing table. Out: routes to set and to delete. Pure; [`super::Gateway`] applies it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::inputs::{Inputs, SubnetInput};
use crate::firewall::Family;
use crate::netlink::{MAIN_TABLE, Route, RouteKind, Scope, protocol};

/// A wanted route over `ovn0`, in a form that can be shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRoute {
    /// Destination.
    pub destination: IpNet,
    /// The join subnet's gateway; none for the join subnet itself.
    pub gateway: Option<IpAddr>,
    /// Preferred source.
    pub source: Option<IpAddr>,
    /// Index of `ovn0`.
    pub link: u32,
    /// The join subnet's own route.
    pub join: bool,
    /// Its Subnet is not found good: a route that is there stays, for its pods run on; none is added.
    pub only_kept: bool,
}

impl HostRoute {
    /// The route as netlink takes it.
    pub fn to_netlink(&self) -> Route {
        let mut route = Route::new(self.destination);
        route.gateway = self.gateway;
        route.source = self.source;
        route.link = Some(self.link);
        if self.join {
            route.protocol = protocol::KERNEL;
            match self.destination {
                IpNet::V4(_) => route.scope = Scope::Link,
                // The metric of the kernel's own routes to connected prefixes; IPv6 routes have no scope.
                IpNet::V6(_) => route.metric = Some(256),
            }
        }
        route
    }
}

/// The wanted routes; none before `ovn0` is up.
pub(super) fn wanted(inputs: &Inputs) -> Vec<HostRoute> {
    let Some(join) = &inputs.join else { return Vec::new() };
    let mut routes = BTreeMap::new();
    // Underlay pods are reached through the physical network, unless the two are connected.
    let routed = |subnet: &&SubnetInput| !subnet.underlay || (subnet.u2o && !subnet.enable_lb);
    let is_good = |subnet: &SubnetInput| subnet.validated || subnet.join;
    let mut subnets: Vec<&SubnetInput> = inputs.subnets.iter().filter(routed).collect();
    // Of two with one prefix the good one has it.
    subnets.sort_by_key(|subnet| is_good(subnet));
    for subnet in subnets {
        let only_kept = !is_good(subnet);
        for cidr in &subnet.cidrs {
            let family = Family::of(&cidr.addr());
            if !inputs.families().contains(&family) || inputs.node_ips.iter().any(|ip| cidr.contains(ip)) {
                continue;
            }
            let of_family = |ips: &[IpAddr]| ips.iter().copied().find(|ip| Family::of(ip) == family);
            let route = if subnet.join {
                let source = if family == Family::V4 { of_family(&join.ips) } else { None };
                HostRoute {
                    destination: *cidr,
                    gateway: None,
                    source,
                    link: join.link,
                    join: true,
                    only_kept,
                }
            } else {
                let Some(gateway) = of_family(&join.gateways) else { continue };
                HostRoute {
                    destination: *cidr,
                    gateway: Some(gateway),
                    source: inputs.node_ip(family),
                    link: join.link,
                    join: false,
                    only_kept,
                }
            };
            routes.insert(*cidr, route);
        }
    }
    routes.into_values().collect()
}

/// What the routing table needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteChanges {
    /// To add or replace.
    pub set: Vec<HostRoute>,
    /// To delete.
    pub delete: Vec<Route>,
    /// Wanted prefixes that another link has a route to; that link keeps them.
    pub conflicts: Vec<IpNet>,
}

impl RouteChanges {
    /// Whether nothing is to be done.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.delete.is_empty()
    }
}

/// Compares the wanted routes with the host's. `link`: index of `ovn0`.
pub(super) fn diff(wanted: &[HostRoute], link: u32, present: &[Route]) -> RouteChanges {
    let main: Vec<&Route> = present
        .iter()
        .filter(|route| route.table == MAIN_TABLE && route.kind == RouteKind::Unicast)
        .collect();
    let on_ovn0 = |route: &Route| route.link == Some(link);
    let elsewhere = |net: &IpNet| main.iter().any(|route| !on_ovn0(route) && route.destination == *net);
    let mut changes = RouteChanges::default();
    for route in wanted {
        if !route.join && elsewhere(&route.destination) {
            if !route.only_kept {
                changes.conflicts.push(route.destination);
            }
            continue;
        }
        let mut here = main.iter().filter(|have| on_ovn0(have) && have.destination == route.destination);
        let right = |have: &&Route| {
            have.gateway == route.gateway
                && (have.source == route.source || (route.join && route.source.is_none()))
        };
        let is_set = here.clone().any(right);
        if !is_set && (!route.only_kept || here.next().is_some()) {
            changes.set.push(route.clone());
        }
    }
    for have in &main {
        let link_local = match have.destination {
            IpNet::V4(net) => net.addr().is_link_local(),
            IpNet::V6(net) => net.addr().is_unicast_link_local() || net.addr().is_multicast(),
        };
        // Connected prefixes are the kernel's, they follow the addresses of the link.
        let connected =
            have.gateway.is_none() && (have.scope == Scope::Link || have.destination.addr().is_ipv6());
        if !on_ovn0(have) || link_local || connected {
            continue;
        }
        let is_wanted = wanted.iter().any(|route| {
            route.destination == have.destination && (route.join || !elsewhere(&route.destination))
        });
        if !is_wanted {
            changes.delete.push((*have).clone());
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::inputs::{JoinInput, SubnetInput};

    fn inputs() -> Inputs {
        let subnet = |name: &str, cidrs: &[&str]| SubnetInput {
            name: name.into(),
            cidrs: cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect(),
            validated: true,
            ..SubnetInput::default()
        };
        Inputs {
            ipv4: true,
            ipv6: true,
            subnets: vec![
                subnet("ovn-default", &["10.16.0.0/16", "fd00:10:16::/112"]),
                SubnetInput { join: true, ..subnet("join", &["100.64.0.0/16", "fd00:100:64::/112"]) },
                SubnetInput { underlay: true, ..subnet("vlan", &["10.50.0.0/24"]) },
                SubnetInput { underlay: true, u2o: true, ..subnet("u2o", &["10.51.0.0/24"]) },
                SubnetInput {
                    underlay: true,
                    u2o: true,
                    enable_lb: true,
                    ..subnet("u2o-lb", &["10.52.0.0/24"])
                },
                SubnetInput { validated: false, ..subnet("wrong", &["10.53.0.0/24"]) },
                subnet("over-the-node", &["172.30.0.0/24"]),
            ],
            node_ips: vec!["172.30.0.11".parse().unwrap(), "fd00:172::11".parse().unwrap()],
            join: Some(JoinInput {
                link: 7,
                ips: vec!["100.64.0.2".parse().unwrap(), "fd00:100:64::2".parse().unwrap()],
                gateways: vec!["100.64.0.1".parse().unwrap(), "fd00:100:64::1".parse().unwrap()],
            }),
            ..Inputs::default()
        }
    }

    #[test]
    fn k_111_routes_to_overlay_and_connected_subnets() {
        let routes = wanted(&inputs());
        let shown: Vec<String> = routes
            .iter()
            .filter(|route| !route.only_kept)
            .map(|r| format!("{} via {:?} src {:?}", r.destination, r.gateway, r.source))
            .collect();
        assert_eq!(
            shown,
            [
                "10.16.0.0/16 via Some(100.64.0.1) src Some(172.30.0.11)",
                "10.51.0.0/24 via Some(100.64.0.1) src Some(172.30.0.11)",
                "100.64.0.0/16 via None src Some(100.64.0.2)",
                "fd00:10:16::/112 via Some(fd00:100:64::1) src Some(fd00:172::11)",
                "fd00:100:64::/112 via None src None",
            ]
        );
        assert_eq!(wanted(&Inputs { join: None, ..inputs() }), []);
    }

    #[test]
    fn setting_them_leaves_nothing_to_do() {
        let wanted = wanted(&inputs());
        let mut host: Vec<Route> = Vec::new();
        let changes = diff(&wanted, 7, &host);
        assert_eq!(changes.set.len(), 5);
        host.extend(changes.set.iter().map(HostRoute::to_netlink));
        // What the kernel has besides: its link-local and connected routes, other links, other tables.
        host.push(Route { link: Some(7), ..Route::new("fe80::/64".parse().unwrap()) });
        host.push(Route { link: Some(2), ..Route::default_via("172.30.0.1".parse().unwrap()) });
        host.push(Route { link: Some(7), table: 100, ..Route::new("10.99.0.0/16".parse().unwrap()) });
        assert!(diff(&wanted, 7, &host).is_empty());
    }

    #[test]
    fn k_111_a_subnet_that_is_not_good_any_more_keeps_its_route() {
        let good = inputs();
        let host: Vec<Route> = diff(&wanted(&good), 7, &[]).set.iter().map(HostRoute::to_netlink).collect();
        let mut bad = inputs();
        bad.subnets.iter_mut().for_each(|subnet| subnet.validated = false);
        assert_eq!(diff(&wanted(&bad), 7, &host), RouteChanges::default());
        // It follows the gateway; it is not added; another link's wins without a complaint.
        bad.join.as_mut().unwrap().gateways[0] = "100.64.0.254".parse().unwrap();
        assert_eq!(diff(&wanted(&bad), 7, &host).set.len(), 2);
        let shown: Vec<String> =
            diff(&wanted(&bad), 7, &[]).set.iter().map(|route| route.destination.to_string()).collect();
        assert_eq!(shown, ["100.64.0.0/16", "fd00:100:64::/112"]);
        let taken = Route { link: Some(2), ..Route::new("10.16.0.0/16".parse().unwrap()) };
        let changes = diff(&wanted(&bad), 7, &[host.clone(), vec![taken]].concat());
        assert_eq!((changes.delete.len(), changes.conflicts.len()), (1, 0));
        // Of two with one prefix the good one decides; one that is gone leaves nothing.
        let twin = SubnetInput { validated: false, ..good.subnets[0].clone() };
        for at in [0, 1] {
            let mut both = inputs();
            both.subnets.insert(at, twin.clone());
            assert_eq!(wanted(&both), wanted(&good));
        }
        bad.subnets.remove(0);
        assert_eq!(diff(&wanted(&bad), 7, &host).delete.len(), 2);
    }

    #[test]
    fn k_111_a_gone_subnets_route_goes_and_a_wrong_one_is_replaced() {
        let mut host: Vec<Route> =
            diff(&wanted(&inputs()), 7, &[]).set.iter().map(HostRoute::to_netlink).collect();
        let mut less = inputs();
        less.subnets.retain(|subnet| subnet.name != "u2o");
        less.join.as_mut().unwrap().gateways[0] = "100.64.0.254".parse().unwrap();
        let changes = diff(&wanted(&less), 7, &host);
        assert_eq!(
            changes.delete.iter().map(|r| r.destination.to_string()).collect::<Vec<_>>(),
            ["10.51.0.0/24"]
        );
        assert_eq!(
            changes.set.iter().map(|r| r.destination.to_string()).collect::<Vec<_>>(),
            ["10.16.0.0/16"]
        );
        // Another link's route wins.
        host.push(Route { link: Some(2), ..Route::new("10.16.0.0/16".parse().unwrap()) });
        let changes = diff(&wanted(&inputs()), 7, &host);
        assert_eq!(changes.conflicts, ["10.16.0.0/16".parse::<IpNet>().unwrap()]);
        assert_eq!(changes.delete.len(), 1);
        assert_eq!(changes.delete[0].link, Some(7));
    }
}
