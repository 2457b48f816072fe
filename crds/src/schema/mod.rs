//! The custom resource definitions as data.
//!
//! Every kind's schema, printer columns and subresources are Rust values built with
//! a few words (`text`, `list`, `object`, …); [`crate::yaml::all`] prints them
//! and `crds-gen` writes them into `deploy/crds/`. Tests hold the schemas and the
//! Rust types against each other field by field, and the files against the data.
//!
//! Choices: types, defaults and limits are those of the original API, so that
//! objects which users have stay valid. `spec` and `status` keep fields that this
//! version doesn't know: taking over a cluster of another release must not lose data.

mod build;
mod gateways;
mod nat;
mod network;
mod policy;
mod services;
#[cfg(test)]
mod tests;

pub use build::*;

use serde_json::{Value, json};

use crate::object::{KindInfo, Scope};

/// A printer column.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Heading.
    pub name: &'static str,
    /// JSON path.
    pub path: &'static str,
    /// `string`, `boolean`, `integer`, `number` or `date`.
    pub r#type: &'static str,
    /// 0 is always shown, 1 only with `-o wide`.
    pub priority: i32,
}

/// A text column.
pub(crate) const fn column(name: &'static str, path: &'static str) -> Column {
    Column { name, path, r#type: "string", priority: 0 }
}

impl Column {
    /// The column with another type.
    pub(crate) const fn typed(self, r#type: &'static str) -> Self {
        Self { r#type, ..self }
    }
    /// The column shown only with `-o wide`.
    pub(crate) const fn wide(self) -> Self {
        Self { priority: 1, ..self }
    }
}

/// The usual column of the object's age.
pub(crate) const fn age(name: &'static str) -> Column {
    column(name, ".metadata.creationTimestamp").typed("date")
}

/// A custom resource definition.
#[derive(Clone, Debug)]
pub struct Definition {
    /// Names and scope.
    pub info: KindInfo,
    /// Printer columns.
    pub columns: Vec<Column>,
    /// Schema of `metadata`, where names are restricted.
    pub metadata: Option<Schema>,
    /// Schema of `spec`.
    pub spec: Schema,
    /// Schema of `status`.
    pub status: Option<Schema>,
    /// The scale subresource: replicas in spec, replicas and selector in status.
    pub scale: bool,
}

impl Definition {
    pub(crate) fn new(info: KindInfo, spec: Schema) -> Self {
        Self { info, columns: Vec::new(), metadata: None, spec: spec.open(), status: None, scale: false }
    }

    pub(crate) fn columns(mut self, columns: impl IntoIterator<Item = Column>) -> Self {
        self.columns.extend(columns);
        self
    }

    pub(crate) fn status(mut self, status: Schema) -> Self {
        self.status = Some(status.open());
        self
    }

    /// Name of the definition object: `<plural>.<group>`.
    pub fn name(&self) -> String {
        format!("{}.{}", self.info.plural, crate::GROUP)
    }

    /// The definition as the API server takes it.
    pub fn to_json(&self) -> Value {
        let info = &self.info;
        let mut properties = serde_json::Map::new();
        if let Some(metadata) = &self.metadata {
            properties.insert("metadata".into(), metadata.to_json());
        }
        properties.insert("spec".into(), self.spec.to_json());
        if let Some(status) = &self.status {
            properties.insert("status".into(), status.to_json());
        }
        let mut version = json!({
            "name": crate::VERSION,
            "served": true,
            "storage": true,
            "schema": { "openAPIV3Schema": { "type": "object", "properties": properties } },
        });
        if !self.columns.is_empty() {
            version["additionalPrinterColumns"] = self.columns.iter().map(column_json).collect();
        }
        if info.has_status_subresource {
            version["subresources"] = json!({ "status": {} });
        }
        if self.scale {
            version["subresources"]["scale"] = json!({
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.labelSelector",
            });
        }
        let mut names = json!({
            "kind": info.kind,
            "listKind": format!("{}List", info.kind),
            "plural": info.plural,
            "singular": info.singular,
        });
        if !info.short_names.is_empty() {
            names["shortNames"] = info.short_names.into();
        }
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": { "name": self.name() },
            "spec": {
                "group": crate::GROUP,
                "names": names,
                "scope": match info.scope {
                    Scope::Cluster => "Cluster",
                    Scope::Namespaced => "Namespaced",
                },
                "versions": [version],
            },
        })
    }
}

fn column_json(column: &Column) -> Value {
    let mut json = json!({ "name": column.name, "type": column.r#type, "jsonPath": column.path });
    if column.priority != 0 {
        json["priority"] = column.priority.into();
    }
    json
}

/// All definitions, in the order of [`crate::KINDS`].
pub fn all() -> Vec<Definition> {
    vec![
        network::subnet(),
        network::ip(),
        network::ippool(),
        network::vpc(),
        network::provider_network(),
        network::vlan(),
        network::vip(),
        policy::security_group(),
        gateways::vpc_nat_gateway(),
        nat::iptables_eip(),
        nat::iptables_fip_rule(),
        nat::iptables_dnat_rule(),
        nat::iptables_snat_rule(),
        nat::ovn_eip(),
        nat::ovn_fip(),
        nat::ovn_snat_rule(),
        nat::ovn_dnat_rule(),
        services::switch_lb_rule(),
        services::router_lb_rule(),
        services::vpc_dns(),
        policy::qos_policy(),
        gateways::vpc_egress_gateway(),
        gateways::bgp_conf(),
        gateways::evpn_conf(),
        policy::dns_name_resolver(),
    ]
}
