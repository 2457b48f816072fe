//! What ports ask IPAM for: annotations, subnets and pools as a [`Request`]
//! (contract §3.2, §3.3).
//!
//! Flows in: a port and its owner. Flows out: a demand, the wish to wait for an
//! object that is on its way, or a refusal that names the remedy.

use std::collections::BTreeMap;
use std::sync::Arc;

use crds::{keys, net};

use super::leases::Owner;
use super::{World, attachments, networks, project, retain};
use crate::facts::Kind;
use crate::ipam::{self, Choice, Error, PoolRequest, Request, entry_of, pool_request};
use crate::objects::Meta;
use crate::wishes;

/// A request, and the port whose lease is handed over if it has one.
pub(super) struct Demand {
    pub(super) request: Request,
    pub(super) from: Option<Arc<str>>,
}

/// A request with the port whose lease is handed over; `None` when it can't be made
/// yet.
pub(super) type Asked = Result<Option<(Request, Option<Arc<str>>)>, Error>;

/// What a port asks for, or why it can't be asked yet.
pub(super) enum Ask {
    Demand(Box<Demand>),
    /// Not scheduled, on its way out, or an object is still to come.
    Wait,
    Refuse(Error),
}

impl From<Asked> for Ask {
    fn from(asked: Asked) -> Self {
        match asked {
            Ok(Some((request, from))) => Self::Demand(Box::new(Demand { request, from })),
            Ok(None) => Self::Wait,
            Err(error) => Self::Refuse(error),
        }
    }
}

impl World {
    pub(super) fn ask(&self, port: &Arc<str>, owner: &Owner, uid: &Arc<str>) -> Ask {
        let Some(meta) = self.owner_meta(owner) else { return Ask::Wait };
        let request = Request {
            port: port.clone(),
            owner: uid.clone(),
            avoid: self.node_ips.clone(),
            ..Request::default()
        };
        let ask: Ask = match owner {
            Owner::Node(_) => {
                // What a node's annotations say is our own answer, never a request.
                let request = Request { subnets: vec![self.config.node_switch.clone()], ..request };
                let told = project::allocated(meta);
                let request = if told { own_answer(meta, request) } else { Ok(request) };
                request.map(|request| Some((request, None))).into()
            }
            Owner::Vip(name) => {
                self.ask_for_vip(name, request).map(|request| request.map(|request| (request, None))).into()
            }
            Owner::Eip(name) => {
                self.ask_for_eip(name, request).map(|request| request.map(|request| (request, None))).into()
            }
            Owner::Nat(name) => {
                self.ask_for_nat(name, request).map(|request| request.map(|request| (request, None))).into()
            }
            Owner::Querier(subnet) => {
                self.ask_querier(subnet, request).map(|request| Some((request, None))).into()
            }
            Owner::Pod(namespace, name) => self.ask_pod(port, namespace, name, meta, request).into(),
            Owner::Attachment(namespace, name, provider) => {
                self.ask_attachment((namespace, name, provider), meta, request).into()
            }
        };
        // Subnets that we make ourselves are on their way.
        let ours = [&self.config.node_switch, &self.config.default_ls];
        let coming = |s: &Arc<str>| ours.contains(&s) && !self.subnet_views.contains_key(s);
        match ask {
            Ask::Demand(demand) if demand.request.subnets.iter().all(coming) => Ask::Wait,
            // Who was told an address has it, whatever became of the subnet.
            Ask::Demand(demand) if !self.told(port) => self.of_guarded(demand),
            ask => ask,
        }
    }

    /// A subnet gives no addresses before our finalizer is on it (contract §3.7): until then
    /// a deletion takes the object away at once, from under ports that were told an address
    /// of it a moment ago. Those that wait are looked at again when it is.
    fn of_guarded(&self, mut demand: Box<Demand>) -> Ask {
        let Demand { request, from } = &mut *demand;
        let lease = |port: &Arc<str>| self.ipam.lease(port).map(|lease| lease.subnet.clone());
        let has = [lease(&request.port), from.as_ref().and_then(lease)];
        let named = request.subnets.len();
        request
            .subnets
            .retain(|subnet| has.iter().flatten().any(|has| has == subnet) || !self.unguarded(subnet));
        let less = request.subnets.len() < named;
        // What is asked for may be in the one that is left out: no reason to refuse it.
        let wishes = request.v4.is_some()
            || request.v6.is_some()
            || !request.choices.is_empty()
            || !request.pools.is_empty();
        if less && (wishes || request.subnets.is_empty()) { Ask::Wait } else { Ask::Demand(demand) }
    }

    /// Our finalizer is on its way to the subnet. (One that can't work gets none, nor one
    /// that is being deleted; both give no addresses, for reasons that are told.)
    pub(super) fn unguarded(&self, name: &str) -> bool {
        let due = self.subnet_views.get(name).is_some_and(|view| {
            view.invalid.is_none() && !view.deleting && (view.supported || view.external)
        });
        due && self.subnets.get(name).is_some_and(|subnet| !networks::guarded(subnet))
    }

    fn ask_pod(
        &self,
        port: &Arc<str>,
        namespace: &Arc<str>,
        name: &Arc<str>,
        meta: &Meta,
        mut request: Request,
    ) -> Asked {
        let Some(pod) = self.pod(namespace, name) else { return Ok(None) };
        let told = project::allocated(meta);
        if !told && (pod.node.is_empty() || pod.terminating) {
            return Ok(None);
        }
        if !told && let Some(error) = ipam::unsupported(&pod.requests) {
            return Err(error);
        }
        if let Some(problem) = wishes::problem(&pod.requests).filter(|_| !told) {
            return Err(Error::InvalidRequest(problem));
        }
        let text = |key: &str| meta.annotations.get(key).map_or("", |value| value.trim());
        let switch: Vec<Arc<str>> = text(keys::LOGICAL_SWITCH)
            .split(',')
            .map(str::trim)
            .filter(|s| !s.is_empty())
            .map(Arc::from)
            .collect();
        if told {
            // Its own answer is what it asks for.
            request.subnets = if switch.is_empty() { self.candidates(namespace) } else { switch };
            return own_answer(meta, request).map(|request| Some((request, None)));
        }
        retain::asked(meta)?;
        request =
            request.with_annotations(None, Some(text(keys::MAC_ADDRESS)), Some(text(keys::IP_FAMILY)))?;
        if !text(keys::VIP).is_empty() {
            return self.ask_vip(text(keys::VIP), namespace, port, request);
        }
        let known = self.namespaces.contains_key(namespace);
        if !known && switch.is_empty() {
            return Ok(None);
        }
        let chosen = !switch.is_empty();
        request.subnets = if chosen {
            self.serving(port, &format!("annotation {}", keys::LOGICAL_SWITCH), switch)?
        } else {
            let binding = format!("namespace {namespace} is bound to subnets that can't be used");
            self.serving(port, &binding, self.candidates(namespace))?
        };
        // Where else a static address may be (contract §3.3).
        let others = |subnets: &mut Vec<Arc<str>>| {
            for subnet in self.namespace_subnets(namespace).iter() {
                if !subnets.contains(subnet) {
                    subnets.push(subnet.clone());
                }
            }
        };
        let address = text(keys::IP_ADDRESS);
        if !address.is_empty() {
            request = request.with_annotations(Some(address), None, None)?;
            others(&mut request.subnets);
        } else if !text(keys::IP_POOL).is_empty() {
            match pool_request(text(keys::IP_POOL))? {
                PoolRequest::Named(pool) => self.named_pool(&mut request, pool, chosen)?,
                PoolRequest::List(list) => {
                    list_of(&mut request, meta, name, list)?;
                    others(&mut request.subnets);
                }
            }
        } else {
            self.bound_pools(&mut request, namespace, chosen);
        }
        let from = self.spare_of(meta, keys::DEFAULT_PROVIDER, &request);
        Ok(Some((request, from)))
    }

    /// An interface beside the default one. Pools of the namespace do not concern it.
    fn ask_attachment(
        &self,
        (namespace, name, provider): (&Arc<str>, &Arc<str>, &Arc<str>),
        meta: &Meta,
        mut request: Request,
    ) -> Asked {
        let Some(pod) = self.pod(namespace, name) else { return Ok(None) };
        let told = attachments::told(meta, provider);
        if !told && (pod.node.is_empty() || pod.terminating) {
            return Ok(None);
        }
        if told {
            let value = |key: &str| meta.annotations.get(&keys::pod_key(provider, key)).map(|text| &**text);
            let switch = value("logical_switch").unwrap_or_default();
            request.subnets = match switch {
                "" => self.subnets_of_provider(provider),
                switch => vec![switch.into()],
            };
            let ip = value("ip_address").unwrap_or_default();
            if ip.is_empty() && !self.ips.contains_key(&request.port) {
                // Marked so that it gets none (contract §5.7, `noDefaultEIP`).
                return Ok(None);
            }
            request = request.with_annotations(Some(ip), value("mac_address"), value("ip_family"))?;
            return Ok(Some((request, None)));
        }
        let Some(interface) = self.interface(namespace, name, provider) else { return Ok(None) };
        if let Some(error) = ipam::unsupported(&interface.requests) {
            return Err(error);
        }
        if let Some(problem) = wishes::problem(&interface.requests) {
            return Err(Error::InvalidRequest(format!("interface {provider}: {problem}")));
        }
        let text = |key: &str| interface.requests.get(key).map_or("", |value| value.trim());
        let switch = text(keys::LOGICAL_SWITCH);
        request.subnets = match switch {
            "" => self.subnets_of_provider(provider),
            switch => vec![switch.into()],
        };
        if request.subnets.is_empty() {
            return Err(Error::InvalidRequest(format!(
                "no subnet has provider {provider}; create one, or name a subnet in annotation \
                 {provider}.kubernetes.io/logical_switch"
            )));
        }
        let source = format!("annotation {provider}.kubernetes.io/logical_switch");
        let source = if switch.is_empty() { format!("provider {provider}") } else { source };
        request.subnets = self.serving(&request.port, &source, request.subnets)?;
        let mac = Some(text(keys::MAC_ADDRESS));
        request = request.with_annotations(Some(text(keys::IP_ADDRESS)), mac, Some(text(keys::IP_FAMILY)))?;
        if text(keys::IP_ADDRESS).is_empty() && !text(keys::IP_POOL).is_empty() {
            match pool_request(text(keys::IP_POOL))? {
                PoolRequest::Named(pool) => self.named_pool(&mut request, pool, !switch.is_empty())?,
                PoolRequest::List(list) => list_of(&mut request, meta, name, list)?,
            }
        }
        let from = self.spare_of(meta, provider, &request);
        Ok(Some((request, from)))
    }

    /// Annotation `ip_pool` names a pool: its subnet, unless the pod names another.
    fn named_pool(&self, request: &mut Request, pool: Arc<str>, chosen: bool) -> Result<(), Error> {
        let Some(subnet) = self.subnet_of_pool(&pool) else {
            return Err(Error::NoPool { pool, subnet: String::new() });
        };
        if chosen && !request.subnets.contains(&subnet) {
            return Err(Error::NoPool { pool, subnet: request.subnets.join(", ") });
        }
        if let Some((_, message)) = self.ippool(&pool).and_then(|view| view.invalid.clone()) {
            return Err(Error::Blocked(format!("annotation {}: {message}", keys::IP_POOL)));
        }
        let source = format!("annotation {}: IPPool {pool}", keys::IP_POOL);
        request.subnets = self.serving(&request.port, &source, vec![subnet.clone()])?;
        request.pools = BTreeMap::from([(subnet, vec![pool])]);
        Ok(())
    }

    /// Pools bound to the namespace are mandatory, each in its own subnet.
    fn bound_pools(&self, request: &mut Request, namespace: &str, chosen: bool) {
        for pool in self.namespace_pools(namespace).iter() {
            let Some(subnet) = self.subnet_of_pool(pool) else { continue };
            if request.subnets.contains(&subnet) {
                request.pools.entry(subnet).or_default().push(pool.clone());
            }
        }
        if !request.pools.is_empty() && !chosen {
            request.subnets.retain(|subnet| request.pools.contains_key(subnet));
        }
    }

    /// What a user's IP object reserves: exactly its addresses, or any if it names none.
    pub(super) fn ask_reservation(&self, port: &Arc<str>) -> Option<Result<Request, Error>> {
        let ip = self.ips.get(port)?;
        let spec = &ip.spec;
        let request = Request {
            port: port.clone(),
            subnets: vec![spec.subnet.clone()],
            avoid: self.node_ips.clone(),
            ..Request::default()
        };
        let problem = |text: &str| {
            Error::InvalidRequest(format!("IP {port}: {text}; correct the object, or delete it"))
        };
        if spec.subnet.is_empty() {
            return Some(Err(problem(
                "spec.subnet is empty, so it is not known where to reserve an address",
            )));
        }
        let both = [&spec.ip_address, &spec.v4_ip_address, &spec.v6_ip_address];
        let mut asked = request;
        for text in both {
            match net::parse_dual_ips(text) {
                Ok(ips) => {
                    asked.v4 = ips.v4.or(asked.v4);
                    asked.v6 = ips.v6.or(asked.v6);
                }
                Err(error) => return Some(Err(problem(&error.to_string()))),
            }
        }
        Some(asked.with_mac(&format!("IP {port}: spec.macAddress"), Some(&*spec.mac_address)))
    }

    /// Of the subnets that something names those that take new ports, and the one that
    /// the port has its address of already.
    ///
    /// # Errors
    /// When none does: why the first one doesn't, and what to do. Ports that were
    /// refused are looked at again whenever a subnet comes, goes or changes.
    pub(super) fn serving(
        &self,
        port: &str,
        source: &str,
        named: Vec<Arc<str>>,
    ) -> Result<Vec<Arc<str>>, Error> {
        let has = self.ipam.lease(port).map(|lease| lease.subnet.clone());
        let mut problem = None;
        let mut serving = Vec::new();
        for name in named {
            match self.out_of_service(&name) {
                Some(text) if has.as_ref() != Some(&name) => {
                    problem.get_or_insert(text);
                }
                _ => serving.push(name),
            }
        }
        match problem {
            Some(text) if serving.is_empty() => Err(Error::Blocked(format!("{source}: {text}"))),
            _ => Ok(serving),
        }
    }

    /// Why a subnet takes no new ports, `None` when it does.
    fn out_of_service(&self, name: &Arc<str>) -> Option<String> {
        let Some(subnet) = self.subnet_views.get(name) else {
            // Those that we make ourselves are on their way.
            let ours = [&self.config.node_switch, &self.config.default_ls];
            let missing = format!("subnet {name} does not exist; create it, or name another one");
            return (!ours.contains(&name)).then_some(missing);
        };
        if let Some((_, message)) = &subnet.invalid {
            return Some(format!("subnet {name} can't be used: {message}"));
        }
        if subnet.deleting {
            return Some(format!(
                "subnet {name} is being deleted and takes no new ports; name another one, or create it again"
            ));
        }
        (!subnet.supported).then(|| {
            format!("subnet {name} is of a kind that this version of Weir does not act on; name another one")
        })
    }

    /// The namespace's subnets that can give addresses; all of them when none can,
    /// so that the refusal names them.
    pub(super) fn candidates(&self, namespace: &str) -> Vec<Arc<str>> {
        let bound = self.namespace_subnets(namespace);
        let usable = |name: &&Arc<str>| {
            self.subnet_views.get(*name).is_some_and(|s| s.supported && s.invalid.is_none() && !s.deleting)
        };
        let usable: Vec<_> = bound.iter().filter(usable).cloned().collect();
        if usable.is_empty() { bound.to_vec() } else { usable }
    }
}

/// A list of addresses: a StatefulSet's pod has the entry of its ordinal.
fn list_of(request: &mut Request, meta: &Meta, name: &str, list: Vec<Choice>) -> Result<(), Error> {
    let set = retain::workload_of(meta).filter(|(key, _)| key.0 == Kind::StatefulSet);
    match set.and_then(|_| retain::ordinal(name)) {
        Some(ordinal) => {
            let entry = entry_of(&list, ordinal)?;
            (request.v4, request.v6) = (entry.v4, entry.v6);
        }
        None => request.choices = list,
    }
    Ok(())
}

/// What an object that was told its address has.
fn own_answer(meta: &Meta, request: Request) -> Result<Request, Error> {
    let text = |key: &str| meta.annotations.get(key).map(|value| &**value);
    request.with_annotations(text(keys::IP_ADDRESS), text(keys::MAC_ADDRESS), text(keys::IP_FAMILY))
}
