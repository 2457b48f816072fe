//! OvnEips (contract §1.11): addresses in external networks, for NAT, for routers' ports
//! there, and for ports of nodes.
//!
//! Each has a lease of its own as long as the object exists: its finalizer goes when
//! nothing uses the address any more.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crds::keys;

use super::leases::Owner;
use super::{ByName, ReadKey, World, restore};
use crate::ipam::{Error, Request, mac};
use crate::objects::{Other, OvnEip};
use crate::view::{EXTERNAL_TAKES, EipType, EipView, Lease, VpcView};

/// All OvnEips.
#[derive(Default)]
pub(super) struct Eips {
    pub(super) objects: ByName<Arc<OvnEip>>,
    pub(super) views: ByName<Arc<EipView>>,
    /// Addresses of nodes' ports that are ready, by external subnet.
    pub(super) peers: ByName<Arc<Vec<Arc<Lease>>>>,
    /// OvnEips of type `lsp` by external subnet.
    nodes: ByName<BTreeSet<Arc<str>>>,
    /// Names of router ports in the database.
    rows: BTreeSet<Arc<str>>,
    /// Objects that name an OvnEip, by its name, as `<plural>/<name>`.
    users: ByName<BTreeSet<Arc<str>>>,
}

/// Names of leases that no port of a switch has begin so; no object's name has a blank.
const LEASE: &str = "OvnEip ";

fn has_addresses(eip: &OvnEip) -> bool {
    !eip.status.v4_ip.is_empty() || !eip.status.v6_ip.is_empty()
}

/// Once it has addresses its type stays, whatever the spec says now.
fn kind_of(eip: &OvnEip) -> Option<EipType> {
    let fixed = has_addresses(eip) && !eip.status.r#type.is_empty();
    EipType::parse(if fixed { &eip.status.r#type } else { &eip.spec.r#type })
}

/// The name of its lease: that of its port where it has one.
fn lease_name(eip: &OvnEip) -> Arc<str> {
    match kind_of(eip) {
        Some(EipType::SwitchPort) => eip.meta.name.clone(),
        _ => format!("{LEASE}{}", eip.meta.name).into(),
    }
}

/// External subnets that a Vpc's spec names.
pub(super) fn externals(vpc: Option<&VpcView>, switch: &Arc<str>) -> Vec<Arc<str>> {
    let Some(vpc) = vpc.filter(|vpc| !vpc.mirrored) else { return Vec::new() };
    let first = vpc.spec.enable_external.then(|| switch.clone());
    first.into_iter().chain(vpc.spec.extra_external_subnets.iter().map(|name| name.as_str().into())).collect()
}

impl World {
    /// The external subnet that it has its addresses of: once it has some, the one of its
    /// label.
    fn subnet_of_eip(&self, eip: &OvnEip) -> Arc<str> {
        let label = eip.meta.labels.get(keys::SUBNET_LABEL);
        match label.filter(|name| has_addresses(eip) && !name.is_empty()) {
            Some(name) => name.clone(),
            None => self.asked_subnet(eip),
        }
    }

    fn asked_subnet(&self, eip: &OvnEip) -> Arc<str> {
        match &*eip.spec.external_subnet {
            "" => self.config.external_gateway_switch.clone(),
            name => name.into(),
        }
    }

    pub(super) fn set_eip(&mut self, eip: Arc<OvnEip>) {
        let name = eip.meta.name.clone();
        let new = vec![self.subnet_of_eip(&eip)];
        let old = self.eips.objects.insert(name.clone(), eip.clone());
        if let Some(old) = &old {
            self.unwant_eip(old);
        }
        let before = old.iter().map(|old| self.subnet_of_eip(old)).collect();
        self.note_externals(before, new);
        self.want_eip(&name);
        self.project_eip(&name);
        let decides = |eip: &OvnEip| (eip.meta.uid.clone(), eip.meta.deleting_at.is_some());
        if old.is_none_or(|old| decides(&old) != decides(&eip) || old.spec != eip.spec) {
            self.leases.retry_refused();
        }
    }

    pub(super) fn remove_eip(&mut self, name: &Arc<str>) {
        let Some(old) = self.eips.objects.remove(name) else { return };
        let before = vec![self.subnet_of_eip(&old)];
        self.note_externals(before, Vec::new());
        self.unwant_eip(&old);
        self.project_eip(name);
    }

    /// Which subnets are external networks depends on who names them.
    pub(super) fn note_externals(&mut self, old: Vec<Arc<str>>, new: Vec<Arc<str>>) {
        for name in new {
            let count = self.externals.entry(name).or_default();
            *count += 1;
            self.subnets_stale |= *count == 1;
        }
        for name in old {
            if let Some(count) = self.externals.get_mut(&name) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    self.externals.remove(&name);
                    self.subnets_stale = true;
                }
            }
        }
    }

    fn unwant_eip(&mut self, old: &OvnEip) {
        let port = lease_name(old);
        let name = &old.meta.name;
        let same = self.eips.objects.get(name).is_some_and(|new| lease_name(new) == port);
        if !same && self.leases.unwant(&port, |owner| *owner == Owner::Eip(name.clone())) {
            self.leases.changed(port);
        }
    }

    fn want_eip(&mut self, name: &Arc<str>) {
        let Some(eip) = self.eips.objects.get(name) else { return };
        let port = lease_name(eip);
        self.leases.wanted.entry(port.clone()).or_insert_with(|| Owner::Eip(name.clone()));
        self.leases.changed(port);
    }

    /// Who wants a lease of that name as soon as nobody else does.
    pub(super) fn eip_heir(&self, port: &str) -> Option<Owner> {
        self.eip_of_port(port).map(|name| Owner::Eip(name.clone()))
    }

    /// The OvnEip of that lease.
    pub(super) fn eip_of_port(&self, port: &str) -> Option<&Arc<str>> {
        let name = port.strip_prefix(LEASE).unwrap_or(port);
        let (name, eip) = self.eips.objects.get_key_value(name)?;
        (*lease_name(eip) == *port).then_some(name)
    }

    /// A router's port with that lease's address is in the database.
    pub(super) fn eip_row(&self, port: &str) -> bool {
        port.strip_prefix(LEASE).is_some_and(|name| self.eips.rows.contains(name))
    }

    /// A router port came to the database or went.
    pub(super) fn note_router_port(&mut self, name: &str, present: bool) {
        let changed = match present {
            true => self.eips.rows.insert(name.into()),
            false => self.eips.rows.remove(name),
        };
        if !changed {
            return;
        }
        let port: Arc<str> = format!("{LEASE}{name}").into();
        if self.ipam.lease(&port).is_some() {
            self.leases.changed(port);
        }
        self.project_eip(&name.into());
    }

    /// An object that uses an OvnEip came, changed or went.
    pub(super) fn note_user(&mut self, old: Option<&Other>, new: Option<&Other>) {
        let of =
            |other: Option<&Other>| other.map(|other| other.ovn_eip.clone()).filter(|eip| !eip.is_empty());
        let (before, now) = (of(old), of(new));
        if before == now {
            return;
        }
        let Some(object) = old.or(new) else { return };
        let user: Arc<str> = format!("{}/{}", object.plural, object.meta.name).into();
        if let Some(eip) = before {
            let users = self.eips.users.entry(eip.clone()).or_default();
            users.remove(&user);
            if users.is_empty() {
                self.eips.users.remove(&eip);
            }
            self.project_eip(&eip);
        }
        if let Some(eip) = now {
            self.eips.users.entry(eip.clone()).or_default().insert(user);
            self.project_eip(&eip);
        }
    }

    /// What the status says it has.
    pub(super) fn eip_told(&self, eip: &OvnEip) -> Option<Lease> {
        let status = &eip.status;
        let subnet = self.subnet_of_eip(eip);
        let told =
            restore::lease(lease_name(eip), &subnet, &status.v4_ip, &status.v6_ip, &status.mac_address);
        told.map(|lease| Lease { owner: eip.meta.uid.clone(), ..lease })
    }

    /// Projects one OvnEip anew, and the peers of its subnet.
    pub(super) fn project_eip(&mut self, name: &Arc<str>) {
        let view = self.eips.objects.get(name).map(|eip| self.view_of_eip(eip));
        let old = self.eips.views.get(name).cloned();
        if old.as_deref() == view.as_ref() {
            return self.list_peers(name);
        }
        let node = |view: &EipView| (view.kind == Some(EipType::SwitchPort)).then(|| view.subnet.clone());
        if let Some(subnet) = old.as_deref().and_then(node)
            && let Some(nodes) = self.eips.nodes.get_mut(&subnet)
        {
            nodes.remove(name);
        }
        if let Some(subnet) = view.as_ref().and_then(node) {
            self.eips.nodes.entry(subnet).or_default().insert(name.clone());
        }
        match view {
            Some(view) => self.eips.views.insert(name.clone(), Arc::new(view)),
            None => self.eips.views.remove(name),
        };
        self.changed.insert(ReadKey::OvnEip(name.clone()));
        if let Some(old) = old.as_deref().and_then(node) {
            self.peers_of(&old);
        }
        self.list_peers(name);
    }

    fn list_peers(&mut self, name: &Arc<str>) {
        let view = self.eips.views.get(name).filter(|view| view.kind == Some(EipType::SwitchPort));
        if let Some(subnet) = view.map(|view| view.subnet.clone()) {
            self.peers_of(&subnet);
        }
    }

    fn peers_of(&mut self, subnet: &Arc<str>) {
        let ready = |name: &&Arc<str>| self.eips.objects.get(*name).is_some_and(|eip| eip.status.ready);
        let nodes = self.eips.nodes.get(subnet).into_iter().flatten().filter(ready);
        let peers: Vec<Arc<Lease>> = nodes
            .filter_map(|name| self.eips.views.get(name).filter(|view| !view.deleting)?.lease.clone())
            .collect();
        if self.eips.peers.get(subnet).map_or(peers.is_empty(), |old| **old == peers) {
            return;
        }
        match peers.is_empty() {
            true => self.eips.peers.remove(subnet),
            false => self.eips.peers.insert(subnet.clone(), Arc::new(peers)),
        };
        self.changed.insert(ReadKey::Peers(subnet.clone()));
    }

    fn view_of_eip(&self, eip: &OvnEip) -> EipView {
        let (name, port) = (&eip.meta.name, lease_name(eip));
        let kind = kind_of(eip);
        let owner = self.leases.wanted.get(&port);
        let ours = owner == Some(&Owner::Eip(name.clone()));
        // That of who had the port's name before is on its way out.
        let held = self.ipam.lease(&port).filter(|lease| ours && lease.owner == eip.meta.uid).cloned();
        // Its port gives way to a pod's of that name, in whatever order they came.
        let told = || self.eip_told(eip).filter(|_| ours || owner.is_none()).map(Arc::new);
        let subnet = held.as_ref().map_or_else(|| self.subnet_of_eip(eip), |lease| lease.subnet.clone());
        let vpc = match kind {
            Some(EipType::RouterPort) => name
                .strip_suffix(&*subnet)
                .and_then(|rest| rest.strip_suffix('-'))
                .filter(|vpc| !vpc.is_empty()),
            _ => None,
        };
        let owned = eip.meta.owners.iter().any(|owner| &*owner.kind == "Vpc");
        // Kube-OVN's ConfigMap makes such a port too, and its OvnEip.
        let configured =
            vpc == Some(&*self.config.cluster_router) && subnet == self.config.external_gateway_switch;
        EipView {
            uid: eip.meta.uid.clone(),
            deleting: eip.meta.deleting_at.is_some(),
            kind,
            lease: held.or_else(told),
            made: vpc.is_some() && (owned || (eip.status.ready && !configured)),
            vpc: vpc.map(Arc::from),
            row: match kind {
                Some(EipType::RouterPort) => self.eips.rows.contains(name),
                Some(EipType::SwitchPort) => self.leases.has_row(name),
                _ => false,
            },
            users: self.eips.users.get(name).into_iter().flatten().cloned().collect(),
            changed: self.changed_eip(eip).map(Into::into),
            subnet,
            port,
        }
    }

    /// What the spec says otherwise than what it has, which stays (contract §1.11).
    fn changed_eip(&self, eip: &OvnEip) -> Option<String> {
        if !has_addresses(eip) {
            return None;
        }
        let (spec, status) = (&eip.spec, &eip.status);
        let same_ip = |a: &str, b: &str| {
            a.is_empty() || a == b || a.parse::<IpAddr>().is_ok_and(|ip| b.parse() == Ok(ip))
        };
        let same_mac =
            |a: &str, b: &str| a.is_empty() || (mac::parse(a).is_some() && mac::parse(a) == mac::parse(b));
        let (asked, has) = (self.asked_subnet(eip), self.subnet_of_eip(eip));
        let fields: [(&str, &str, &str, bool); 5] = [
            ("externalSubnet", &asked, &has, asked == has),
            ("type", &spec.r#type, &status.r#type, EipType::parse(&spec.r#type) == kind_of(eip)),
            ("v4Ip", &spec.v4_ip, &status.v4_ip, same_ip(&spec.v4_ip, &status.v4_ip)),
            ("v6Ip", &spec.v6_ip, &status.v6_ip, same_ip(&spec.v6_ip, &status.v6_ip)),
            (
                "macAddress",
                &spec.mac_address,
                &status.mac_address,
                same_mac(&spec.mac_address, &status.mac_address),
            ),
        ];
        let (field, asked, has, _) = fields.into_iter().find(|(.., same)| !same)?;
        let has = if has.is_empty() { "none" } else { has };
        Some(format!(
            "spec.{field} is {asked:?}, but the OvnEip has {has} and keeps it; write that, or delete the OvnEip and \
             create it again"
        ))
    }

    /// What an OvnEip asks for.
    pub(super) fn ask_for_eip(&self, name: &str, request: Request) -> Result<Option<Request>, Error> {
        let Some(eip) = self.eips.objects.get(name) else { return Ok(None) };
        let refuse = |text: String| Err(Error::InvalidRequest(format!("OvnEip {name}: {text}")));
        // What it was told once stays.
        if let Some(told) = self.eip_told(eip) {
            let request = Request { subnets: vec![told.subnet.clone()], v4: told.v4, v6: told.v6, ..request };
            return request.with_mac("status.macAddress", Some(&*told.mac)).map(Some);
        }
        if eip.meta.deleting_at.is_some() {
            return Ok(None);
        }
        let spec = &eip.spec;
        if EipType::parse(&spec.r#type).is_none() {
            return refuse(format!("spec.type {:?} is unknown; write nat, lrp or lsp", spec.r#type));
        }
        let subnet = self.asked_subnet(eip);
        if let Some(problem) = self.no_external(&subnet) {
            return Err(Error::Blocked(format!("OvnEip {name}: {problem}")));
        }
        let (mut v4, mut v6): (Option<Ipv4Addr>, Option<Ipv6Addr>) = (None, None);
        for (field, text, is_v4) in [("v4Ip", &spec.v4_ip, true), ("v6Ip", &spec.v6_ip, false)] {
            match text.parse::<IpAddr>() {
                _ if text.is_empty() => {}
                Ok(IpAddr::V4(ip)) if is_v4 => v4 = Some(ip),
                Ok(IpAddr::V6(ip)) if !is_v4 => v6 = Some(ip),
                _ => {
                    let family = if is_v4 { "IPv4" } else { "IPv6" };
                    return refuse(format!(
                        "spec.{field} {text:?} is no {family} address; write one of subnet {subnet}"
                    ));
                }
            }
        }
        let request = Request { subnets: vec![subnet], v4, v6, ..request };
        request.with_mac(&format!("OvnEip {name}: spec.macAddress"), Some(&*spec.mac_address)).map(Some)
    }

    /// Why a subnet gives no addresses to OvnEips.
    fn no_external(&self, name: &Arc<str>) -> Option<String> {
        let Some(subnet) = self.subnet_views.get(name) else {
            return Some(format!(
                "there is no Subnet {name}; create it, or name another one in externalSubnet"
            ));
        };
        if !subnet.external {
            return Some(format!(
                "Subnet {name} is no external network: {EXTERNAL_TAKES}; name another one in externalSubnet"
            ));
        }
        if let Some((_, message)) = &subnet.invalid {
            return Some(format!("Subnet {name} can't be used: {message}"));
        }
        subnet.deleting.then(|| format!("Subnet {name} is being deleted; name another one in externalSubnet"))
    }
}
