//! Objects as they stand in JSON: the fields that are read, and what a definition or
//! a rollout's limits say.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::objects::NadKind;

#[derive(Deserialize)]
pub(super) struct Wire<'a> {
    pub(super) metadata: WireMeta,
    #[serde(borrow)]
    pub(super) spec: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) status: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireMeta {
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
    pub(super) uid: Option<String>,
    pub(super) resource_version: Option<String>,
    pub(super) generation: Option<i64>,
    pub(super) creation_timestamp: Option<String>,
    pub(super) labels: Option<BTreeMap<String, Option<String>>>,
    pub(super) annotations: Option<BTreeMap<String, Option<String>>>,
    pub(super) finalizers: Option<Vec<String>>,
    pub(super) deletion_timestamp: Option<String>,
    pub(super) deletion_grace_period_seconds: Option<i64>,
    pub(super) owner_references: Option<Vec<WireOwner>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireOwner {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) uid: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WirePodSpec {
    pub(super) node_name: Option<String>,
    pub(super) host_network: Option<bool>,
    pub(super) restart_policy: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct WirePodStatus {
    pub(super) phase: Option<String>,
    pub(super) reason: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct WireWorkload {
    pub(super) replicas: Option<u64>,
    pub(super) ordinals: Option<WireOrdinals>,
    pub(super) strategy: Option<WireStrategy>,
    pub(super) template: Option<WireTemplate>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct WireOrdinals {
    pub(super) start: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireStrategy {
    pub(super) r#type: Option<String>,
    pub(super) rolling_update: Option<WireRolling>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireRolling {
    pub(super) max_surge: Option<serde_json::Value>,
    pub(super) max_unavailable: Option<serde_json::Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct WireTemplate {
    pub(super) metadata: Option<WireMeta>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct WireNad {
    pub(super) config: Option<String>,
}

/// What a CNI configuration (one plug-in, or a list of them) has to do with us.
pub(super) fn nad_kind(config: &str) -> NadKind {
    let config: serde_json::Value = serde_json::from_str(config).unwrap_or_default();
    let listed = config.get("plugins").and_then(|plugins| plugins.as_array());
    let plugins: Vec<&serde_json::Value> = listed.map_or_else(|| vec![&config], |list| list.iter().collect());
    let is = |value: Option<&serde_json::Value>| value.is_some_and(|value| value == "kube-ovn");
    if plugins.iter().any(|plugin| is(plugin.get("type"))) {
        NadKind::Ovn
    } else if plugins.iter().any(|plugin| is(plugin.pointer("/ipam/type"))) {
        NadKind::Ipam
    } else {
        NadKind::Other
    }
}

/// A number of pods, or a share of the replicas (Kubernetes' default is 25%).
pub(super) fn pods(value: Option<&serde_json::Value>, replicas: u64, up: bool) -> u64 {
    let share = |percent: u64| {
        let parts = replicas.saturating_mul(percent);
        if up { parts.div_ceil(100) } else { parts / 100 }
    };
    match value {
        None => share(25),
        Some(value) => match value.as_u64() {
            Some(number) => number,
            None => {
                let text = value.as_str().unwrap_or_default();
                text.strip_suffix('%').and_then(|text| text.trim().parse().ok()).map_or(0, share)
            }
        },
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct WireNodeStatus {
    pub(super) addresses: Option<Vec<WireTyped>>,
    pub(super) conditions: Option<Vec<WireTyped>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct WireTyped {
    pub(super) r#type: Option<String>,
    pub(super) address: Option<String>,
    pub(super) status: Option<String>,
}

/// What uses an OvnEip.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireUser {
    pub(super) ovn_eip: Option<String>,
}

/// What an IptablesEIP's gateway has.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct WireNatStatus {
    pub(super) ip: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct WireConditions {
    pub(super) conditions: Option<Vec<crds::Condition>>,
}
