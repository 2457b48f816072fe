//! Virtual machines of KubeVirt: the few fields that tell whose addresses stay, and
//! where a machine moves.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{BadObject, Decoder, WireMeta, part};
use crate::facts::Kind;
use crate::objects::{Machine, Meta, Migration};

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireMachine {
    template: Option<WireTemplate>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireTemplate {
    metadata: Option<WireMeta>,
    spec: Option<WireInstance>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireInstance {
    networks: Option<Vec<WireNetwork>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireNetwork {
    name: Option<String>,
    multus: Option<WireMultus>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireMultus {
    network_name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireInstanceStatus {
    node_name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireMigration {
    vmi_name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireMigrationStatus {
    phase: Option<String>,
    migration_state: Option<WireMigrationState>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireMigrationState {
    source_node: Option<String>,
}

type Raw<'a> = Option<&'a RawValue>;

impl Decoder {
    pub(super) fn machine(
        &mut self,
        kind: Kind,
        meta: Meta,
        spec: Raw<'_>,
        status: Raw<'_>,
        bad: &impl Fn(&str, serde_json::Error) -> BadObject,
    ) -> Result<Machine, BadObject> {
        let (instance, template, node) = if kind == Kind::VirtualMachine {
            let spec: WireMachine = part(spec).map_err(|error| bad("spec", error))?;
            let template = spec.template.unwrap_or_default();
            let annotations = template.metadata.unwrap_or_default().annotations;
            (template.spec.unwrap_or_default(), self.map(annotations, false), None)
        } else {
            let spec: WireInstance = part(spec).map_err(|error| bad("spec", error))?;
            let status: WireInstanceStatus = part(status).map_err(|error| bad("status", error))?;
            (spec, meta.annotations.clone(), status.node_name)
        };
        let networks = instance.networks.unwrap_or_default().into_iter().filter_map(|network| {
            let target = network.multus?.network_name.filter(|name| !name.is_empty())?;
            let full = if target.contains('/') { target } else { format!("{}/{target}", meta.namespace) };
            Some((network.name.unwrap_or_default().into(), full.into()))
        });
        let networks: Vec<(Arc<str>, Arc<str>)> = networks.collect();
        Ok(Machine { node: self.optional(node), template, networks, meta })
    }

    pub(super) fn migration(
        &mut self,
        meta: Meta,
        spec: Raw<'_>,
        status: Raw<'_>,
        bad: &impl Fn(&str, serde_json::Error) -> BadObject,
    ) -> Result<Migration, BadObject> {
        let spec: WireMigration = part(spec).map_err(|error| bad("spec", error))?;
        let status: WireMigrationStatus = part(status).map_err(|error| bad("status", error))?;
        let state = status.migration_state.unwrap_or_default();
        Ok(Migration {
            meta,
            instance: self.optional(spec.vmi_name),
            phase: self.optional(status.phase),
            source: self.optional(state.source_node),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::objects::Object;

    fn decode(kind: Kind, mut body: serde_json::Value) -> Object {
        body["metadata"]["uid"] = "u".into();
        body["metadata"]["name"] = "vm-1".into();
        body["metadata"]["namespace"] = "web".into();
        Decoder::new(kind).object(&body.to_string()).unwrap()
    }

    #[test]
    fn a_machine_tells_its_networks_and_its_next_pods_annotations() {
        let networks = json!([{ "name": "default", "pod": {} },
            { "name": "a", "multus": { "networkName": "net" } },
            { "name": "b", "multus": { "networkName": "infra/net" } }]);
        let template = json!({ "metadata": { "annotations": { "ovn.kubernetes.io/logical_switch": "s" } },
            "spec": { "networks": networks } });
        let object = decode(Kind::VirtualMachine, json!({ "spec": { "template": template } }));
        let Object::Machine(Kind::VirtualMachine, machine) = object else { panic!() };
        let expected: Vec<(Arc<str>, Arc<str>)> =
            vec![("a".into(), "web/net".into()), ("b".into(), "infra/net".into())];
        assert_eq!(machine.networks, expected);
        assert_eq!(&**machine.template.get("ovn.kubernetes.io/logical_switch").unwrap(), "s");
    }

    #[test]
    fn an_instance_tells_its_node_and_a_migration_its_phase() {
        let body = json!({ "spec": {}, "status": { "nodeName": "n-1" } });
        let Object::Machine(_, instance) = decode(Kind::VirtualMachineInstance, body) else { panic!() };
        assert_eq!(&*instance.node, "n-1");
        let body = json!({ "spec": { "vmiName": "vm-1" },
            "status": { "phase": "Running", "migrationState": { "sourceNode": "n-1" } } });
        let Object::Migration(migration) = decode(Kind::Migration, body) else { panic!() };
        let told = (&*migration.instance, &*migration.phase, &*migration.source);
        assert_eq!(told, ("vm-1", "Running", "n-1"));
        // One that has just been made says nothing yet.
        let Object::Migration(fresh) = decode(Kind::Migration, json!({ "spec": {} })) else { panic!() };
        assert_eq!(&*fresh.phase, "");
    }
}
