//! A subnet's status: counts and ranges, rows and nodes that serve it (contract §1.1,
//! §3.7).

use std::collections::BTreeMap;
use std::sync::Arc;

use crds::{Count, NatOutgoingPolicyRule};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::super::dhcp;
use super::querier::Querier;
use crate::view::{SubnetView, Usage, View};

/// Counts and ranges of addresses.
pub(super) fn counters(usage: &Usage) -> BTreeMap<Arc<str>, serde_json::Value> {
    let count = |n: u128| Count::new(n).to_json();
    BTreeMap::from([
        ("v4availableIPs".into(), count(usage.v4_available)),
        ("v4usingIPs".into(), count(usage.v4_using)),
        ("v6availableIPs".into(), count(usage.v6_available)),
        ("v6usingIPs".into(), count(usage.v6_using)),
        ("v4availableIPrange".into(), json!(usage.v4_available_range)),
        ("v4usingIPrange".into(), json!(usage.v4_using_range)),
        ("v6availableIPrange".into(), json!(usage.v6_available_range)),
        ("v6usingIPrange".into(), json!(usage.v6_using_range)),
    ])
}

/// Reason of the condition of a subnet that waits for its addresses to be free.
pub(super) const IN_USE: &str = "AddressesInUse";

/// Who holds addresses of a subnet, in words; `None` when nobody does.
pub(super) fn held(usage: &Usage) -> Option<String> {
    let count = usage.v4_using.max(usage.v6_using).max(usage.holders.len() as u128);
    let first = usage.holders.iter().map(|holder| &**holder).collect::<Vec<_>>().join(", ");
    (count > 0).then(|| {
        format!(
            "being deleted, waits for {count} addresses in use, held by {first}{}; delete what uses them",
            if count > usage.holders.len() as u128 { " and others" } else { "" }
        )
    })
}

/// What serves the subnet: its DHCP rows, active gateway, multicast querier, and the ids under which
/// nodes know its NAT rules.
pub(super) fn network(
    view: &dyn View,
    name: &Arc<str>,
    subnet: &SubnetView,
    active: Option<&str>,
    querier: &Querier,
) -> BTreeMap<Arc<str>, Value> {
    let uuid = |v4| {
        let row = subnet.spec.enable_dhcp.then(|| view.row_uuid(&dhcp::subnet_row(name, v4))).flatten();
        json!(row.as_deref().unwrap_or_default())
    };
    let rules = subnet.spec.nat_outgoing_policy_rules.iter().enumerate();
    let rules: Vec<Value> = rules.map(|(index, rule)| nat_rule(name, index, rule)).collect();
    let mut status = BTreeMap::from([
        ("activateGateway".into(), json!(active.unwrap_or_default())),
        ("dhcpV4OptionsUUID".into(), uuid(true)),
        ("dhcpV6OptionsUUID".into(), uuid(false)),
        ("natOutgoingPolicyRules".into(), json!(rules)),
    ]);
    if let Some((ip, mac)) = &querier.status {
        status.insert("mcastQuerierIP".into(), json!(ip));
        status.insert("mcastQuerierMAC".into(), json!(mac));
    }
    status
}

/// A rule with its id: the first 12 hex digits of SHA-256 over the subnet's name, the
/// rule's place and its JSON (contract §1.1).
fn nat_rule(subnet: &str, index: usize, rule: &NatOutgoingPolicyRule) -> Value {
    // The type serialises without fail.
    let text = serde_json::to_string(rule).unwrap_or_default();
    let digest = Sha256::digest(format!("{subnet}{index}{text}"));
    let id: String = digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    json!({ "ruleID": id, "match": rule.r#match, "action": rule.action })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_nat_rules_follow_name_place_and_content() {
        let rule: NatOutgoingPolicyRule =
            serde_json::from_value(json!({ "match": { "srcIPs": "10.16.0.0/24" }, "action": "forward" }))
                .unwrap();
        assert_eq!(
            serde_json::to_string(&rule).unwrap(),
            r#"{"match":{"srcIPs":"10.16.0.0/24"},"action":"forward"}"#,
            "nodes of the original compute it from this text"
        );
        let id = |subnet: &str, index| nat_rule(subnet, index, &rule)["ruleID"].as_str().unwrap().to_owned();
        assert_eq!(id("s", 0).len(), 12);
        assert_ne!(id("s", 0), id("s", 1));
        assert_ne!(id("s", 0), id("t", 0));
    }
}
