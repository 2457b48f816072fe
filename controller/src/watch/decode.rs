//! From an object's JSON to its projection: only the fields that Weir uses are
//! read, everything else is skipped without being stored.
//!
//! Flows in: one object's JSON text. Flows out: an [`Object`], or a [`BadObject`]
//! that says which object and which field. Field by field the types are lenient
//! (absent and `null` are defaults): what the API server stores is valid by its
//! schema already, and one odd object must not hide the others.

mod machines;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use thiserror::Error;

use crate::facts::Kind;
use crate::objects::{
    Custom, IPTABLES_EIPS, IpSpec, Meta, Nad, Namespace, NatAddress, Node, Object, Other, Owner, Pod,
    StringMap, Workload,
};
use crate::strings::Shared;
use wire::{
    Wire, WireConditions, WireMeta, WireNad, WireNatStatus, WireNodeStatus, WirePodSpec, WirePodStatus,
    WireTyped, WireUser, WireWorkload, nad_kind, pods,
};

/// An object that can't be projected. It is logged, counted and skipped.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{object}: {problem}")]
pub struct BadObject {
    /// Namespace and name as far as they could be read.
    pub object: String,
    /// The field and what is wrong with it.
    pub problem: String,
}

/// Decodes the objects of one kind and shares what is equal between them: label keys,
/// namespaces, node names and annotation keys are the same in thousands of pods, and
/// pods of one ReplicaSet have the same labels and owner.
#[derive(Debug)]
pub struct Decoder {
    kind: Kind,
    strings: Shared<Arc<str>>,
    maps: Shared<StringMap>,
    owners: Shared<Arc<[Owner]>>,
    finalizers: Shared<Arc<[Arc<str>]>>,
}

/// Strings, and label maps and lists, that are shared at most.
const SHARED: (usize, usize) = (32_768, 4_096);

/// Annotations that Weir reads: those of any provider (`<provider>.kubernetes.io/…`)
/// and Multus'. kubectl's copy of the whole object is not among them.
fn wanted_annotation(key: &str) -> bool {
    (key.contains("kubernetes.io/") && !key.starts_with("kubectl.kubernetes.io/"))
        || key.starts_with("k8s.")
        || key.contains("multus")
        || key == crds::keys::MIGRATION_JOB
}

fn part<T: DeserializeOwned + Default>(raw: Option<&RawValue>) -> Result<T, serde_json::Error> {
    match raw.map(RawValue::get) {
        None | Some("null") => Ok(T::default()),
        Some(text) => serde_json::from_str(text),
    }
}

impl Decoder {
    /// A decoder for one kind.
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            strings: Shared::new(SHARED.0),
            maps: Shared::new(SHARED.1),
            owners: Shared::new(SHARED.1),
            finalizers: Shared::new(SHARED.1),
        }
    }

    fn share(&mut self, text: &str) -> Arc<str> {
        self.strings.get(text)
    }

    fn optional(&mut self, text: Option<String>) -> Arc<str> {
        self.share(&text.unwrap_or_default())
    }

    fn map(&mut self, map: Option<BTreeMap<String, Option<String>>>, labels: bool) -> StringMap {
        let mut kept = Vec::new();
        for (key, value) in map.unwrap_or_default() {
            if labels || wanted_annotation(&key) {
                let value = value.unwrap_or_default();
                // Addresses are each their own; what else annotations say many pods have in common.
                let own = !labels && (key.ends_with("/ip_address") || key.ends_with("/mac_address"));
                let value = if own { value.into() } else { self.share(&value) };
                kept.push((self.share(&key), value));
            }
        }
        let kept: StringMap = kept.into_iter().collect();
        // Annotations of pods hold addresses, so no two are alike.
        if labels { self.maps.one(kept) } else { kept }
    }

    fn meta(&mut self, wire: WireMeta) -> Result<Meta, BadObject> {
        let bad = |object: String, problem: &str| BadObject { object, problem: problem.to_owned() };
        let Some(name) = wire.name.filter(|name| !name.is_empty()) else {
            return Err(bad("an object without name".to_owned(), "metadata.name is missing"));
        };
        let namespace = self.optional(wire.namespace);
        let full = || if namespace.is_empty() { name.clone() } else { format!("{namespace}/{name}") };
        let Some(uid) = wire.uid.filter(|uid| !uid.is_empty()) else {
            return Err(bad(full(), "metadata.uid is missing"));
        };
        let deleting_at = match &wire.deletion_timestamp {
            None => None,
            Some(text) => match text.parse::<jiff::Timestamp>() {
                // Contract §3.1. The grace period is in the time already: a node that hears of it late
                // gives it in full from then on.
                Ok(time) => {
                    Some(time.as_second().saturating_add(wire.deletion_grace_period_seconds.unwrap_or(0)))
                }
                Err(_) => return Err(bad(full(), "metadata.deletionTimestamp is no time")),
            },
        };
        // Only the order of objects depends on it: one that can't be read is no reason
        // to lose the object.
        let created =
            wire.creation_timestamp.as_deref().and_then(|text| text.parse::<jiff::Timestamp>().ok());
        let owners = wire.owner_references.unwrap_or_default().into_iter();
        let owners: Arc<[Owner]> = owners
            .map(|owner| Owner {
                api_version: self.share(&owner.api_version),
                kind: self.share(&owner.kind),
                name: self.share(&owner.name),
                uid: self.share(&owner.uid),
            })
            .collect();
        let finalizers = wire.finalizers.unwrap_or_default();
        let finalizers: Arc<[Arc<str>]> = finalizers.iter().map(|text| self.share(text)).collect();
        Ok(Meta {
            name: name.into(),
            uid: uid.into(),
            resource_version: wire.resource_version.unwrap_or_default().into(),
            generation: wire.generation.unwrap_or_default(),
            created_at: created.map_or(0, |time| time.as_second()),
            labels: self.map(wire.labels, true),
            annotations: self.map(wire.annotations, false),
            finalizers: self.finalizers.one(finalizers),
            deleting_at,
            owners: self.owners.one(owners),
            namespace,
        })
    }

    fn workload(&mut self, kind: Kind, meta: Meta, spec: WireWorkload) -> Workload {
        let replicas = spec.replicas.unwrap_or(1);
        let strategy = spec.strategy.unwrap_or_default();
        let rolling = kind == Kind::Deployment && strategy.r#type.as_deref() != Some("Recreate");
        let (mut surge, mut unavailable) = (0, replicas);
        if rolling {
            let limits = strategy.rolling_update.unwrap_or_default();
            surge = pods(limits.max_surge.as_ref(), replicas, true);
            unavailable = pods(limits.max_unavailable.as_ref(), replicas, false);
            if surge == 0 && unavailable == 0 {
                unavailable = 1;
            }
        }
        let template = spec.template.and_then(|template| template.metadata).unwrap_or_default();
        Workload {
            meta,
            replicas,
            start: spec.ordinals.and_then(|ordinals| ordinals.start).unwrap_or(0),
            surge,
            unavailable,
            template: self.map(template.annotations, false),
        }
    }

    /// Reads the metadata alone, which is all that a deletion needs.
    ///
    /// # Errors
    /// [`BadObject`].
    pub fn metadata(&mut self, json: &str) -> Result<Meta, BadObject> {
        #[derive(Deserialize)]
        struct Only {
            metadata: WireMeta,
        }
        let only: Only = serde_json::from_str(json)
            .map_err(|error| BadObject { object: guess_name(json), problem: format!("metadata: {error}") })?;
        self.meta(only.metadata)
    }

    /// Reads an object.
    ///
    /// # Errors
    /// [`BadObject`].
    pub fn object(&mut self, json: &str) -> Result<Object, BadObject> {
        let wire: Wire<'_> = serde_json::from_str(json)
            .map_err(|error| BadObject { object: guess_name(json), problem: error.to_string() })?;
        let meta = self.meta(wire.metadata)?;
        let full = if meta.namespace.is_empty() {
            meta.name.to_string()
        } else {
            format!("{}/{}", meta.namespace, meta.name)
        };
        let bad = |field: &str, error: serde_json::Error| BadObject {
            object: full.clone(),
            problem: format!("{field}: {error}"),
        };
        Ok(match self.kind {
            Kind::Pod => {
                let spec: WirePodSpec = part(wire.spec).map_err(|error| bad("spec", error))?;
                let status: WirePodStatus = part(wire.status).map_err(|error| bad("status", error))?;
                Object::Pod(Arc::new(Pod {
                    meta,
                    node: self.optional(spec.node_name),
                    host_network: spec.host_network.unwrap_or_default(),
                    restart_always: spec.restart_policy.as_deref().is_none_or(|policy| policy == "Always"),
                    restart_never: spec.restart_policy.as_deref() == Some("Never"),
                    phase: self.optional(status.phase),
                    reason: self.optional(status.reason),
                }))
            }
            Kind::Node => {
                let status: WireNodeStatus = part(wire.status).map_err(|error| bad("status", error))?;
                let is = |typed: &WireTyped, name: &str| typed.r#type.as_deref() == Some(name);
                let ready = status.conditions.unwrap_or_default();
                Object::Node(Arc::new(Node {
                    meta,
                    internal_ips: status
                        .addresses
                        .unwrap_or_default()
                        .into_iter()
                        .filter(|typed| is(typed, "InternalIP"))
                        .filter_map(|typed| typed.address)
                        .map(Into::into)
                        .collect(),
                    ready: ready
                        .iter()
                        .any(|typed| is(typed, "Ready") && typed.status.as_deref() == Some("True")),
                }))
            }
            Kind::Namespace => Object::Namespace(Arc::new(Namespace { meta })),
            Kind::Subnet => Object::Subnet(Arc::new(custom(meta, &wire.spec, &wire.status, &bad)?)),
            Kind::Vpc => Object::Vpc(Arc::new(custom(meta, &wire.spec, &wire.status, &bad)?)),
            Kind::Ip => {
                let spec: crds::IpSpec = part(wire.spec).map_err(|error| bad("spec", error))?;
                let spec = IpSpec::new(spec, |text| self.share(text));
                Object::Ip(Arc::new(Custom { meta, spec, status: () }))
            }
            Kind::IpPool => Object::IpPool(Arc::new(custom(meta, &wire.spec, &wire.status, &bad)?)),
            Kind::Vip => Object::Vip(Arc::new(custom(meta, &wire.spec, &wire.status, &bad)?)),
            Kind::ProviderNetwork => {
                Object::ProviderNetwork(Arc::new(custom(meta, &wire.spec, &wire.status, &bad)?))
            }
            Kind::OvnEip => Object::OvnEip(Arc::new(custom(meta, &wire.spec, &wire.status, &bad)?)),
            Kind::Vlan => Object::Vlan(Arc::new(custom(meta, &wire.spec, &wire.status, &bad)?)),
            Kind::Nad => {
                let spec: WireNad = part(wire.spec).map_err(|error| bad("spec", error))?;
                Object::Nad(Arc::new(Nad { meta, kind: nad_kind(&spec.config.unwrap_or_default()) }))
            }
            kind @ (Kind::StatefulSet | Kind::Deployment) => {
                let spec: WireWorkload = part(wire.spec).map_err(|error| bad("spec", error))?;
                Object::Workload(kind, Arc::new(self.workload(kind, meta, spec)))
            }
            kind @ (Kind::VirtualMachine | Kind::VirtualMachineInstance) => {
                Object::Machine(kind, Arc::new(self.machine(kind, meta, wire.spec, wire.status, &bad)?))
            }
            Kind::Migration => {
                Object::Migration(Arc::new(self.migration(meta, wire.spec, wire.status, &bad)?))
            }
            Kind::Other(plural) => {
                // Status is only looked at for conditions of our own; an odd one is no loss.
                let status: WireConditions = part(wire.status).unwrap_or_default();
                let conditions = status.conditions.unwrap_or_default();
                let spec: WireUser = part(wire.spec).unwrap_or_default();
                let ovn_eip = self.optional(spec.ovn_eip);
                let nat_address = match plural {
                    IPTABLES_EIPS => nat_address(&wire.spec, &wire.status, &bad)?,
                    _ => None,
                };
                let plural_name = plural.into();
                Object::Other(
                    plural,
                    Arc::new(Other { plural: plural_name, meta, conditions, ovn_eip, nat_address }),
                )
            }
        })
    }
}

/// A status that can't be read counts as none: it is ours to write, and the spec
/// is what matters.
fn custom<S, T>(
    meta: Meta,
    spec: &Option<&RawValue>,
    status: &Option<&RawValue>,
    bad: &impl Fn(&str, serde_json::Error) -> BadObject,
) -> Result<Custom<S, T>, BadObject>
where
    S: DeserializeOwned + Default,
    T: DeserializeOwned + Default,
{
    Ok(Custom {
        meta,
        spec: part(*spec).map_err(|error| bad("spec", error))?,
        status: part(*status).unwrap_or_default(),
    })
}

/// The address of an IptablesEIP.
fn nat_address(
    spec: &Option<&RawValue>,
    status: &Option<&RawValue>,
    bad: &impl Fn(&str, serde_json::Error) -> BadObject,
) -> Result<Option<Arc<NatAddress>>, BadObject> {
    let spec: crds::IptablesEipSpec = part(*spec).map_err(|error| bad("spec", error))?;
    // What a gateway answers for must not be taken for free because it can't be read.
    let status: WireNatStatus = part(*status).map_err(|error| bad("status", error))?;
    let text = |text: &str| -> Arc<str> { text.trim().into() };
    let address = NatAddress {
        subnet: text(&spec.external_subnet),
        given: text(&status.ip.unwrap_or_default()),
        v4: text(&spec.v4_ip),
        v6: text(&spec.v6_ip),
    };
    let has = [&address.given, &address.v4, &address.v6].iter().any(|text| !text.is_empty());
    Ok(has.then(|| Arc::new(address)))
}

/// The name in a JSON text that does not fit the types, for the log.
fn guess_name(json: &str) -> String {
    let value: serde_json::Value = serde_json::from_str(json).unwrap_or_default();
    let field =
        |name: &str| value.pointer(&format!("/metadata/{name}")).and_then(|v| v.as_str().map(str::to_owned));
    match (field("namespace"), field("name")) {
        (Some(namespace), Some(name)) => format!("{namespace}/{name}"),
        (None, Some(name)) => name,
        _ => "an object without name".to_owned(),
    }
}
