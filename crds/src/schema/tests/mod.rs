//! Holds types, schemas and files against each other.

mod filled;

use std::collections::BTreeSet;
use std::path::Path;

use rstest::rstest;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::object::{Kind, Scope};
use crate::schema::{Definition, all};

fn definition(kind: &str) -> Definition {
    all().into_iter().find(|definition| definition.info.kind == kind).unwrap()
}

#[test]
fn one_definition_per_kind_in_the_same_order() {
    let kinds: Vec<_> = all().iter().map(|definition| definition.info).collect();
    assert_eq!(kinds, crate::KINDS);
    assert_eq!(kinds.len(), 25);
    for field in ["kind", "plural", "singular"] {
        let distinct: BTreeSet<_> = kinds
            .iter()
            .map(|info| match field {
                "kind" => info.kind,
                "plural" => info.plural,
                _ => info.singular,
            })
            .collect();
        assert_eq!(distinct.len(), kinds.len(), "{field} repeats");
    }
    let namespaced: Vec<_> = kinds.iter().filter(|info| info.scope == Scope::Namespaced).collect();
    assert_eq!(namespaced.len(), 1);
    assert_eq!(namespaced[0].kind, "VpcEgressGateway");
}

#[test]
fn files_are_what_the_data_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/crds");
    let files = crate::yaml::all().unwrap();
    for (name, content) in &files {
        let found = std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        assert!(found == *content, "{name} differs: run `cargo run -p crds --bin crds-gen`");
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), files.len(), "a file too many in deploy/crds");
}

/// Leaf paths of a value; elements of lists and values of maps are all `*`.
fn paths_of(value: &Value, schema: &Value, path: &str, into: &mut BTreeSet<String>) {
    match value {
        // What a foreign API defines is not ours to compare.
        _ if schema.get("properties").is_none()
            && schema.get("x-kubernetes-preserve-unknown-fields").is_some() =>
        {
            into.insert(path.to_owned());
        }
        Value::Object(fields) if schema.get("additionalProperties").is_none() => {
            for (name, value) in fields {
                let below = schema.pointer(&format!("/properties/{name}")).unwrap_or(&Value::Null);
                paths_of(value, below, &format!("{path}.{name}"), into);
            }
        }
        Value::Array(items) => {
            for item in items {
                paths_of(item, &schema["items"], &format!("{path}[]"), into);
            }
        }
        _ => {
            into.insert(path.to_owned());
        }
    }
}

/// Leaf paths of a schema.
fn paths_in(schema: &Value, path: &str, into: &mut BTreeSet<String>) {
    if let Some(fields) = schema.get("properties").and_then(Value::as_object) {
        for (name, below) in fields {
            paths_in(below, &format!("{path}.{name}"), into);
        }
    } else if let Some(items) = schema.get("items") {
        paths_in(items, &format!("{path}[]"), into);
    } else {
        into.insert(path.to_owned());
    }
}

/// Every field of the type is in the schema and the other way round.
fn compare<T: Serialize + DeserializeOwned>(schema: &Value, what: &str) {
    let filled: T = filled::filled();
    let (mut of_type, mut of_schema) = (BTreeSet::new(), BTreeSet::new());
    paths_of(&serde_json::to_value(&filled).unwrap(), schema, what, &mut of_type);
    paths_in(schema, what, &mut of_schema);
    let only_type: Vec<_> = of_type.difference(&of_schema).collect();
    let only_schema: Vec<_> = of_schema.difference(&of_type).collect();
    assert!(only_type.is_empty(), "fields of the type that the schema lacks: {only_type:?}");
    // Every kind's conditions have one schema and one type; `node` is ProviderNetwork's.
    assert!(only_schema.is_empty(), "fields of the schema that the type lacks: {only_schema:?}");
}

fn check<K>()
where
    K: Kind + Serialize + DeserializeOwned + Default,
    K::Spec: Serialize + DeserializeOwned,
    K::Status: Serialize + DeserializeOwned,
{
    let definition = definition(K::INFO.kind);
    let mut status = definition.status.as_ref().map(crate::schema::Schema::to_json);
    // All kinds share the type Condition; only ProviderNetwork's has a node.
    if let Some(status) = &mut status {
        add_node(status);
    }
    compare::<K::Spec>(&definition.spec.to_json(), "spec");
    match &status {
        Some(status) => compare::<K::Status>(status, "status"),
        None => assert_eq!(serde_json::to_value(filled::filled::<K::Status>()).unwrap(), json!({})),
    }
    let has_conditions = status.as_ref().is_some_and(|s| s.pointer("/properties/conditions").is_some());
    assert_eq!(K::INFO.has_conditions, has_conditions);
    assert!(!K::INFO.has_status_subresource || status.is_some());

    // An object without spec and status is an object all the same, and a whole one
    // survives a round trip.
    let bare: K = serde_json::from_value(json!({ "metadata": { "name": "x" } })).unwrap();
    let written = serde_json::to_value(&bare).unwrap();
    assert_eq!(written["apiVersion"], "kubeovn.io/v1");
    assert_eq!(written["kind"], K::INFO.kind);
    assert_eq!(K::plural(&()), K::INFO.plural);
    let whole = json!({
        "metadata": { "name": "x" },
        "spec": filled::filled::<K::Spec>(),
        "status": filled::filled::<K::Status>(),
    });
    let read: K = serde_json::from_value(whole.clone()).unwrap();
    assert_eq!(serde_json::to_value(read.spec()).unwrap(), whole["spec"]);
    assert_eq!(serde_json::to_value(read.status()).unwrap(), whole["status"]);
}

fn add_node(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    if fields.contains_key("lastTransitionTime") {
        fields.insert("node".into(), json!({ "type": "string" }));
    }
    fields.values_mut().for_each(add_node);
}

#[rstest]
#[case(check::<crate::Subnet>)]
#[case(check::<crate::Ip>)]
#[case(check::<crate::IpPool>)]
#[case(check::<crate::Vpc>)]
#[case(check::<crate::ProviderNetwork>)]
#[case(check::<crate::Vlan>)]
#[case(check::<crate::Vip>)]
#[case(check::<crate::SecurityGroup>)]
#[case(check::<crate::VpcNatGateway>)]
#[case(check::<crate::IptablesEip>)]
#[case(check::<crate::IptablesFipRule>)]
#[case(check::<crate::IptablesDnatRule>)]
#[case(check::<crate::IptablesSnatRule>)]
#[case(check::<crate::OvnEip>)]
#[case(check::<crate::OvnFip>)]
#[case(check::<crate::OvnSnatRule>)]
#[case(check::<crate::OvnDnatRule>)]
#[case(check::<crate::SwitchLbRule>)]
#[case(check::<crate::RouterLbRule>)]
#[case(check::<crate::VpcDns>)]
#[case(check::<crate::QosPolicy>)]
#[case(check::<crate::VpcEgressGateway>)]
#[case(check::<crate::BgpConf>)]
#[case(check::<crate::EvpnConf>)]
#[case(check::<crate::DnsNameResolver>)]
fn type_and_schema_agree(#[case] check: fn()) {
    check();
}

/// Printer columns name fields that the schema has.
#[test]
fn columns_point_at_fields() {
    for definition in all() {
        let json = definition.to_json();
        let schema = &json["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        for column in &definition.columns {
            if column.path == ".metadata.creationTimestamp" {
                continue;
            }
            let pointer = column.path.replace('.', "/properties/");
            assert!(schema.pointer(&pointer).is_some(), "{}: {}", definition.info.kind, column.path);
        }
    }
}

/// Structural schemas: every value has a type, or says why it has none.
#[test]
fn schemas_are_structural() {
    fn walk(schema: &Value, path: &str) {
        let typed = ["type", "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"]
            .iter()
            .any(|key| schema.get(key).is_some());
        assert!(typed, "{path} has no type");
        for (name, below) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
            walk(below, &format!("{path}.{name}"));
        }
        if let Some(items) = schema.get("items") {
            walk(items, &format!("{path}[]"));
        }
        for field in schema.get("required").and_then(Value::as_array).into_iter().flatten() {
            let field = field.as_str().unwrap();
            assert!(schema["properties"].get(field).is_some(), "{path} requires {field}, which it lacks");
        }
    }
    for definition in all() {
        walk(&definition.spec.to_json(), definition.info.kind);
        if let Some(status) = definition.status {
            walk(&status.to_json(), definition.info.kind);
        }
    }
}

/// The columns that people know from `kubectl get` (contract §1.1–1.4, §1.7), with their fields.
#[rstest]
#[case(
    "Subnet",
    "Provider=.spec.provider Vpc=.spec.vpc Vlan=.spec.vlan Protocol=.spec.protocol CIDR=.spec.cidrBlock \
    Private=.spec.private NAT=.spec.natOutgoing Default=.spec.default GatewayType=.spec.gatewayType \
    V4Used=.status.v4usingIPs V4Available=.status.v4availableIPs V6Used=.status.v6usingIPs \
    V6Available=.status.v6availableIPs ExcludeIPs=.spec.excludeIps \
    U2OInterconnectionIP=.status.u2oInterconnectionIP"
)]
#[case(
    "IP",
    "V4IP=.spec.v4IpAddress V6IP=.spec.v6IpAddress Mac=.spec.macAddress Node=.spec.nodeName \
    Subnet=.spec.subnet"
)]
#[case(
    "IPPool",
    "Subnet=.spec.subnet enableAddressSet=.spec.enableAddressSet IPs=.spec.ips \
    V4Used=.status.v4UsingIPs V4Available=.status.v4AvailableIPs V6Used=.status.v6UsingIPs \
    V6Available=.status.v6AvailableIPs"
)]
#[case(
    "Vpc",
    "EnableExternal=.status.enableExternal EnableBfd=.status.enableBfd Standby=.status.standby \
    Subnets=.status.subnets ExtraExternalSubnets=.status.extraExternalSubnets Namespaces=.spec.namespaces \
    DefaultSubnet=.status.defaultLogicalSwitch Age=.metadata.creationTimestamp"
)]
#[case(
    "Vip",
    "Namespace=.spec.namespace V4IP=.status.v4ip V6IP=.status.v6ip Mac=.status.mac \
    Subnet=.spec.subnet Type=.status.type"
)]
fn printer_columns(#[case] kind: &str, #[case] expected: &str) {
    let columns = definition(kind).columns;
    let shown: Vec<_> = columns.iter().map(|column| format!("{}={}", column.name, column.path)).collect();
    assert_eq!(shown.join(" "), expected);
}

/// Plurals and short names, by which scripts ask (contract §1).
#[rstest]
#[case("Subnet", "subnets", &["subnet"], true)]
#[case("IP", "ips", &["ip"], false)]
#[case("IPPool", "ippools", &["ippool"], true)]
#[case("Vpc", "vpcs", &["vpc"], true)]
#[case("Vip", "vips", &["vip"], false)]
fn names_and_status_subresources(
    #[case] kind: &str,
    #[case] plural: &str,
    #[case] short: &[&str],
    #[case] status: bool,
) {
    let json = definition(kind).to_json();
    let names = &json["spec"]["names"];
    assert_eq!(names["plural"], plural);
    let known: Vec<_> =
        names["shortNames"].as_array().into_iter().flatten().chain([&names["singular"]]).collect();
    assert!(short.iter().all(|name| known.iter().any(|other| *other == name)), "{names}");
    assert_eq!(json["spec"]["scope"], "Cluster");
    let versions = json["spec"]["versions"].as_array().unwrap();
    assert_eq!(versions.len(), 1);
    assert_eq!((&versions[0]["name"], &versions[0]["storage"]), (&json!("v1"), &json!(true)));
    assert_eq!(versions[0]["subresources"].get("status").is_some(), status);
}
