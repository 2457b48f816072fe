//! Vips (contract §1.7): addresses that no pod has for itself.
//!
//! A Vip holds a lease under a port of its own until a pod takes it by annotation
//! `vip`; the lease then moves to the pod's port, and back when the pod is gone. A
//! pod that lists a Vip in annotation `aaps` may answer for it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crds::{keys, names};

use super::ask::Asked;
use super::leases::Owner;
use super::renew::renew;
use super::{ByName, ReadKey, World};
use crate::ipam::{Error, Family, Request, mac};
use crate::objects::{StringMap, Vip};
use crate::view::{Lease, VipView};

/// All Vips.
#[derive(Default)]
pub(super) struct Vips {
    pub(super) objects: ByName<Arc<Vip>>,
    pub(super) views: ByName<Arc<VipView>>,
    /// Pod ports that carry a Vip's addresses, by Vip.
    pub(super) used_by: ByName<Arc<str>>,
    /// The same by port.
    carried: ByName<Arc<str>>,
    /// Pods that list a Vip in `aaps`, by its name: namespace and name.
    answering: ByName<BTreeSet<(Arc<str>, Arc<str>)>>,
    /// Which Vip has that port.
    ports: ByName<Arc<str>>,
}

/// The switch_lb_vip type answers with the MAC of the router.
pub(super) fn is_router_like(vip: &Vip) -> bool {
    vip.spec.r#type == "switch_lb_vip"
}

/// The subnet that it has its addresses of: once it has some, the one of its label,
/// whatever the spec says now.
pub(super) fn subnet_of(vip: &Vip) -> &str {
    let label = vip.meta.labels.get(keys::SUBNET_LABEL).filter(|name| has_addresses(vip) && !name.is_empty());
    label.map_or(&vip.spec.subnet, |name| name)
}

fn has_addresses(vip: &Vip) -> bool {
    !vip.status.v4_ip.is_empty() || !vip.status.v6_ip.is_empty()
}

/// What the spec says otherwise than what the Vip has, which stays (contract §1.7).
fn changed(vip: &Vip) -> Option<String> {
    if !has_addresses(vip) {
        return None;
    }
    let (spec, status) = (&vip.spec, &vip.status);
    let same_ip = |a: &str, b: &str| a == b || a.parse::<IpAddr>().is_ok_and(|ip| b.parse() == Ok(ip));
    let same_mac = |a: &str, b: &str| mac::parse(a).is_some() && mac::parse(a) == mac::parse(b);
    let fields: [(&str, &str, &str, bool); 4] = [
        ("subnet", &spec.subnet, subnet_of(vip), spec.subnet == subnet_of(vip)),
        ("v4ip", &spec.v4_ip, &status.v4_ip, same_ip(&spec.v4_ip, &status.v4_ip)),
        ("v6ip", &spec.v6_ip, &status.v6_ip, same_ip(&spec.v6_ip, &status.v6_ip)),
        (
            "macAddress",
            &spec.mac_address,
            &status.mac,
            // That of a router is nobody's to choose.
            is_router_like(vip) || same_mac(&spec.mac_address, &status.mac),
        ),
    ];
    let (field, asked, has, _) = fields.into_iter().find(|(_, asked, _, same)| !asked.is_empty() && !same)?;
    let has = if has.is_empty() { "none" } else { has };
    Some(format!(
        "spec.{field} is {asked}, but the Vip has {has} and keeps it; write that, or delete the Vip and create it \
         again"
    ))
}

fn listed(annotation: &str) -> impl Iterator<Item = Arc<str>> + '_ {
    annotation.split(',').map(str::trim).filter(|name| !name.is_empty()).map(Arc::from)
}

impl World {
    pub(super) fn set_vip(&mut self, vip: Arc<Vip>) {
        let name = vip.meta.name.clone();
        let old = self.vips.objects.insert(name.clone(), vip.clone());
        self.want_vip(&name);
        self.project_vip(&name);
        let decides = |vip: &Vip| (vip.meta.uid.clone(), vip.meta.deleting_at.is_some());
        if old.is_none_or(|old| decides(&old) != decides(&vip) || old.spec != vip.spec) {
            self.leases.retry_refused();
        }
    }

    pub(super) fn remove_vip(&mut self, name: &Arc<str>) {
        self.vips.objects.remove(name);
        self.set_carrier(name, None);
        self.want_vip(name);
        self.vips.views.remove(name);
        self.changed.insert(ReadKey::Vip(name.clone()));
    }

    fn set_carrier(&mut self, vip: &Arc<str>, port: Option<&Arc<str>>) {
        if let Some(old) = self.vips.used_by.remove(vip) {
            self.vips.carried.remove(&old);
        }
        if let Some(port) = port {
            self.vips.used_by.insert(vip.clone(), port.clone());
            self.vips.carried.insert(port.clone(), vip.clone());
        }
    }

    /// The port by which a Vip's address is leased: of the subnet's provider.
    fn vip_port(&self, vip: &Vip) -> Arc<str> {
        let provider = self.subnet_views.get(subnet_of(vip)).map(|subnet| subnet.spec.provider.clone());
        let provider = provider.unwrap_or_default();
        names::pod_port(&vip.meta.name, &vip.spec.namespace, &provider).into()
    }

    fn want_vip(&mut self, name: &Arc<str>) {
        let port = self.vips.objects.get(name).map(|vip| self.vip_port(vip));
        let old = self.vips.views.get(name).map(|view| view.port.clone());
        if let Some(old) = old.filter(|old| Some(old) != port.as_ref())
            && self.vips.ports.get(&old) == Some(name)
        {
            self.vips.ports.remove(&old);
            self.leases.unwant(&old, |owner| *owner == Owner::Vip(name.clone()));
            self.leases.changed(old);
        }
        let Some(port) = port else { return };
        self.vips.ports.insert(port.clone(), name.clone());
        let deleting = self.vips.objects.get(name).is_some_and(|vip| vip.meta.deleting_at.is_some());
        if deleting || self.vips.used_by.contains_key(name) {
            self.leases.unwant(&port, |owner| *owner == Owner::Vip(name.clone()));
        } else {
            self.leases.wanted.entry(port.clone()).or_insert_with(|| Owner::Vip(name.clone()));
        }
        self.leases.changed(port);
    }

    /// Who wants that port as soon as nobody else does.
    pub(super) fn vip_heir(&self, port: &str) -> Option<Owner> {
        let name = self.vip_of_port(port)?;
        let vip = self.vips.objects.get(name)?;
        let free = vip.meta.deleting_at.is_none() && !self.vips.used_by.contains_key(name);
        free.then(|| Owner::Vip(name.clone()))
    }

    /// The Vip of that port.
    pub(super) fn vip_of_port(&self, port: &str) -> Option<&Arc<str>> {
        self.vips.ports.get(port)
    }

    /// What a Vip's status says it has.
    pub(super) fn vip_told(&self, vip: &Vip) -> Option<Lease> {
        let status = &vip.status;
        let mac = if mac::parse(&status.mac).is_some() { status.mac.as_str() } else { return None };
        super::restore::lease(self.vip_port(vip), subnet_of(vip), &status.v4_ip, &status.v6_ip, mac)
            .map(|lease| Lease { owner: vip.meta.uid.clone(), ..lease })
    }

    /// Which pods carry Vips already, as the Vips' labels and the pods themselves say.
    pub(super) fn restore_vips(&mut self) {
        let mut used: ByName<Arc<str>> = BTreeMap::new();
        for (port, owner) in &self.leases.wanted {
            let Owner::Pod(..) = owner else { continue };
            let Some(meta) = self.owner_meta(owner) else { continue };
            let Some(name) = meta.annotations.get(keys::VIP).map(|text| text.trim()) else { continue };
            let Some(vip) = self.vips.objects.get(name) else { continue };
            let labelled = vip.meta.labels.get(keys::IP_RESERVED_LABEL).is_some_and(|user| user == port);
            let told = super::project::allocated(meta) && {
                let asked = meta.annotations.get(keys::IP_ADDRESS).map_or("", |text| text);
                let has = |ip: &str| ip.is_empty() || asked.split(',').any(|part| part.trim() == ip);
                has(&vip.status.v4_ip) && has(&vip.status.v6_ip)
            };
            if told || labelled && !used.contains_key(name) {
                used.insert(name.into(), port.clone());
            }
        }
        self.vips.carried = used.iter().map(|(vip, port)| (port.clone(), vip.clone())).collect();
        self.vips.used_by = used;
        for name in self.vips.objects.keys().cloned().collect::<Vec<_>>() {
            self.want_vip(&name);
            self.project_vip(&name);
        }
    }

    /// What a pod that carries a Vip asks for, and the port that has it now.
    pub(super) fn ask_vip(&self, name: &str, namespace: &str, port: &Arc<str>, request: Request) -> Asked {
        let refuse = |text: String| Err(Error::InvalidRequest(text));
        let Some(vip) = self.vips.objects.get(name) else {
            return refuse(format!(
                "annotation {}: Vip {name} does not exist; create it, or correct the name",
                keys::VIP
            ));
        };
        if !vip.spec.namespace.is_empty() && vip.spec.namespace != namespace {
            return refuse(format!(
                "annotation {}: Vip {name} is of namespace {}; use one of namespace {namespace}",
                keys::VIP,
                vip.spec.namespace
            ));
        }
        let subnet: Arc<str> = subnet_of(vip).into();
        if let Some(user) = self.vips.used_by.get(name).filter(|user| *user != port) {
            return Err(Error::Conflict { subnet, address: format!("Vip {name}"), holder: user.clone() });
        }
        let vip_port = self.vip_port(vip);
        let lease = self.ipam.lease(&vip_port).or_else(|| self.ipam.lease(port)).cloned();
        let Some(lease) = lease else {
            // It is about to get its address; a refusal of its own is in its condition.
            return match self.leases.refusal(&vip_port) {
                Some(message) => refuse(format!("Vip {name} has no address: {message}")),
                None => Ok(None),
            };
        };
        let request = Request { subnets: vec![subnet], v4: lease.v4, v6: lease.v6, ..request };
        Ok(Some((request, Some(vip_port))))
    }

    /// A pod took over a Vip's lease.
    pub(super) fn vip_taken(&mut self, vip_port: &Arc<str>, by: &Arc<str>) {
        let Some(name) = self.vips.ports.get(vip_port).cloned() else { return };
        self.set_carrier(&name, Some(by));
        self.want_vip(&name);
        self.project_vip(&name);
    }

    /// The lease of a pod that carried a Vip goes back to the Vip. `false` when it
    /// carried none, or the Vip is gone.
    pub(super) fn vip_returns(&mut self, port: &Arc<str>) -> bool {
        let Some(name) = self.vips.carried.get(port).cloned() else { return false };
        self.set_carrier(&name, None);
        let vip = self.vips.objects.get(&name).filter(|vip| vip.meta.deleting_at.is_none()).cloned();
        let handed = vip.is_some_and(|vip| {
            let vip_port = self.vip_port(&vip);
            self.ipam.hand_to(port, &vip_port, &vip.meta.uid).is_some()
        });
        self.want_vip(&name);
        self.project_vip(&name);
        self.leases.retry_refused();
        handed
    }

    /// A pod's list of Vips that it may answer for changed, or its labels did.
    pub(super) fn note_answering(
        &mut self,
        namespace: &Arc<str>,
        name: &Arc<str>,
        before: Option<&str>,
        now: Option<&str>,
    ) {
        let pod = (namespace.clone(), name.clone());
        let old: BTreeSet<Arc<str>> = before.into_iter().flat_map(listed).collect();
        let new: BTreeSet<Arc<str>> = now.into_iter().flat_map(listed).collect();
        for vip in old.union(&new) {
            let pods = self.vips.answering.entry(vip.clone()).or_default();
            if new.contains(vip) {
                pods.insert(pod.clone());
            } else {
                pods.remove(&pod);
            }
            if pods.is_empty() {
                self.vips.answering.remove(vip);
            }
            self.project_vip(vip);
        }
    }

    fn parents(&self, vip: &Vip) -> Vec<Arc<str>> {
        let wanted: StringMap = vip
            .spec
            .selector
            .iter()
            .filter_map(|pair| pair.split_once(':'))
            .map(|(key, value)| (key.trim().into(), value.trim().into()))
            .collect();
        let pods = self.vips.answering.get(&vip.meta.name).into_iter().flatten();
        pods.filter(|(namespace, _)| **namespace == *vip.spec.namespace)
            .filter(|(namespace, name)| {
                let stored = self.stored_pod(namespace, name).filter(|stored| stored.view.wants_network);
                stored.is_some_and(|stored| {
                    let labels = &stored.object.meta.labels;
                    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
                })
            })
            .flat_map(|(namespace, name)| self.ports_in_ovn(namespace, name))
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    }

    /// Ports that OVN has of a pod: of the cluster's own network, and of others that are ours.
    fn ports_in_ovn(&self, namespace: &Arc<str>, name: &Arc<str>) -> Vec<Arc<str>> {
        let interfaces = self.interfaces(namespace, name);
        let own = interfaces.as_ref().is_none_or(|interfaces| interfaces.default).then(|| {
            let base = self.base_name(namespace, name);
            Arc::from(names::pod_port(&base, namespace, keys::DEFAULT_PROVIDER))
        });
        let others = interfaces.iter().flat_map(|interfaces| &interfaces.list);
        own.into_iter().chain(others.filter(|other| other.ovn).map(|other| other.port.clone())).collect()
    }

    /// The ports of a pod may be others than before.
    pub(super) fn ports_changed(&mut self, namespace: &Arc<str>, name: &Arc<str>) {
        self.note_virtuals(namespace, name);
        let listed = self
            .stored_pod(namespace, name)
            .and_then(|stored| stored.object.meta.annotations.get(keys::AAPS).cloned());
        if listed.is_some() {
            self.note_answering(namespace, name, listed.as_deref(), listed.as_deref());
        }
    }

    /// Projects one Vip anew.
    pub(super) fn project_vip(&mut self, name: &Arc<str>) {
        let Some(vip) = self.vips.objects.get(name).cloned() else { return };
        let port = self.vip_port(&vip);
        let used_by = self.vips.used_by.get(name).cloned();
        // Its port gives way to a pod's of that name, in whatever order they came.
        let owner = self.leases.wanted.get(&port);
        let taken = used_by.is_none() && owner.is_some_and(|owner| *owner != Owner::Vip(name.clone()));
        // That of who had the port's name before is on its way out.
        let held = || match &used_by {
            Some(user) => self.ipam.lease(user).cloned(),
            None => self.ipam.lease(&port).filter(|lease| lease.owner == vip.meta.uid).cloned(),
        };
        let lease = if taken { None } else { held().or_else(|| self.vip_told(&vip).map(Arc::new)) };
        let router_mac = self.router_mac(subnet_of(&vip)).map(|mac| mac::format(mac).into());
        let view = VipView {
            uid: vip.meta.uid.clone(),
            deleting: vip.meta.deleting_at.is_some(),
            spec: Arc::new(vip.spec.clone()),
            port,
            used_by,
            lease,
            parents: Arc::new(self.parents(&vip)),
            router_mac: router_mac.filter(|_| is_router_like(&vip)),
            changed: changed(&vip).map(Into::into),
        };
        renew(&mut self.vips.views, &mut self.changed, ReadKey::Vip, (name.clone(), view));
    }

    /// What a Vip itself asks for.
    pub(super) fn ask_for_vip(&self, name: &str, request: Request) -> Result<Option<Request>, Error> {
        let Some(vip) = self.vips.objects.get(name) else { return Ok(None) };
        let refuse = |text: String| Err(Error::InvalidRequest(format!("Vip {name}: {text}")));
        let spec = &vip.spec;
        if spec.subnet.is_empty() {
            return refuse("spec.subnet is empty; name the subnet whose address it should have".into());
        }
        if !matches!(&*spec.r#type, "" | "switch_lb_vip" | "kube_host_vm_vip") {
            return refuse(format!(
                "spec.type {:?} is unknown; leave it empty or write switch_lb_vip or kube_host_vm_vip",
                spec.r#type
            ));
        }
        // What it was told once stays (contract §1.7).
        let told = self.vip_told(vip);
        if told.is_none() {
            let source = format!("Vip {name}: spec.subnet");
            self.serving(&request.port, &source, vec![spec.subnet.as_str().into()])?;
        }
        let (v4, v6) = match &told {
            Some(lease) => (lease.v4, lease.v6),
            None => {
                let ip = |field: &str, text: &str, family: Family| match text {
                    "" => Ok(None),
                    text if text.bytes().any(|b| b.is_ascii_uppercase()) => Err(Error::InvalidRequest(
                        format!("Vip {name}: write spec.{field} {text:?} in lower case"),
                    )),
                    text => match text.parse::<IpAddr>() {
                        Ok(ip) if Family::number(ip).0 == family => Ok(Some(ip)),
                        _ => Err(Error::InvalidRequest(format!(
                            "Vip {name}: spec.{field} {text:?} is no {} address; write one of subnet {}",
                            family.name(),
                            spec.subnet
                        ))),
                    },
                };
                let v4 = ip("v4ip", &spec.v4_ip, Family::V4)?;
                let v6 = ip("v6ip", &spec.v6_ip, Family::V6)?;
                let v4 = v4.and_then(|ip| if let IpAddr::V4(ip) = ip { Some(ip) } else { None });
                let v6 = v6.and_then(|ip| if let IpAddr::V6(ip) = ip { Some(ip) } else { None });
                (v4, v6)
            }
        };
        let mac = Some(spec.mac_address.as_str()).filter(|text| !text.is_empty() && told.is_none());
        let request = Request { subnets: vec![subnet_of(vip).into()], v4, v6, ..request };
        let source = format!("Vip {name}: spec.macAddress");
        request.with_mac(&source, mac).map(Some)
    }
}
