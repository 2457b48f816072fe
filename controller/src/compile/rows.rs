//! Building blocks of facts, and the natural keys, names and priorities that
//! units and claims must agree on.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crds::keys::VENDOR;
use ovsdb::Value;

use crate::facts::{
    Column, Columns, EventFact, Facts, Fields, Gate, KubeFact, MemberFact, ObjectRef, RowFact, RowKey, Table,
};
use crate::objects::StringMap;
use crate::view::Lease;

/// Traffic to a subnet of ours is routed, whatever lower policies say.
pub(crate) const TO_SUBNET: i64 = 31000;
/// Traffic to what other clusters announce (interconnection).
pub(crate) const INTERCONNECTION: i64 = 29500;
/// Traffic to a node goes through that node's join port.
pub(crate) const TO_NODE: i64 = 30000;
/// Traffic of a pod that has a next hop of its own.
pub(crate) const NORTH_GATEWAY: i64 = 29250;
/// Traffic of pods that leaves goes through a gateway node.
pub(crate) const GATEWAY: i64 = 29000;

/// Reason of conditions and events about what this version does not do.
pub(crate) const NOT_YET: &str = "NotYetSupported";

/// Natural key of a policy.
pub(crate) fn policy_key(router: &str, priority: i64, matching: &str) -> String {
    format!("{router}|{priority}|{matching}")
}

/// Tier of ACLs of NetworkPolicies, security groups and subnets (contract §6.1).
pub(crate) const DEFAULT_TIER: i64 = 2;
/// Longest name of an ACL (contract §4.8).
const ACL_NAME: usize = 63;

/// Natural key of an ACL.
pub(crate) fn acl_key(
    table: Table,
    holder: &str,
    direction: &str,
    tier: i64,
    priority: i64,
    matching: &str,
) -> String {
    format!("{}:{holder}|{direction}|{tier}|{priority}|{matching}", table.name())
}

/// Name of an ACL as logs show it, shortened where it is too long.
pub(crate) fn acl_name(name: &str) -> String {
    if name.chars().count() <= ACL_NAME {
        return name.to_owned();
    }
    name.chars().take(ACL_NAME - 3).chain("...".chars()).collect()
}

/// Natural key of DHCP options.
pub(crate) fn dhcp_key(switch: &str, protocol: &str, port: &str) -> String {
    format!("{switch}|{protocol}|{port}")
}

/// Natural key of a chassis in a group.
pub(crate) fn ha_chassis_key(group: &str, chassis: &str) -> String {
    format!("{group}|{chassis}")
}

/// Natural key, and name, of a gateway of a router port (contract §4.3).
pub(crate) fn gateway_chassis_key(port: &str, chassis: &str) -> String {
    format!("{port}-{chassis}")
}

/// Natural key of a BFD session.
pub(crate) fn bfd_key(port: &str, peer: &str) -> String {
    format!("{port}|{peer}")
}

/// Natural key of a static route.
pub(crate) fn route_key(router: &str, table: &str, policy: &str, prefix: &str, nexthop: &str) -> String {
    format!("{router}|{table}|{policy}|{prefix}|{nexthop}")
}

/// Address set of the nodes' own addresses. No name of a Kubernetes object has an
/// underscore, and no port group makes a set that ends like this.
pub(crate) fn nodes_set(v4: bool) -> &'static str {
    if v4 { "weir_nodes_v4" } else { "weir_nodes_v6" }
}

/// Mark of rows for single pods: only those that we wrote are ours to delete, since
/// whose they are can't be told from the row.
pub(crate) const OF_POD: (&str, &str) = ("weir-owner", "pod");

/// Mark of rows of the external gateway's own switch, and of the default VPC's port
/// there, which we made: those that follow from Kube-OVN's ConfigMap look the same.
pub(crate) const OF_EXTERNAL: (&str, &str) = ("weir-owner", "external");

/// Marks of a pod's port that lists virtual addresses: which, and that there are some.
pub(crate) const VIP_MARKS: [&str; 2] = ["vips", "attach-vips"];

/// Options of a port that is active only once its host has announced itself (contract
/// §2.1, `activation_strategy`): where it is, and by what.
pub(crate) const ACTIVATION: [&str; 2] = ["requested-chassis", "activation-strategy"];

/// Mark of policies that lead to the DNS cache of a node.
pub(crate) const LOCAL_DNS: &str = "isLocalDnsCache";

/// From a node's pods to an address of its DNS cache.
pub(crate) fn local_dns_match(group: &str, cache: &IpAddr) -> String {
    let field = ip_field(cache);
    format!("{field}.src == ${group}_{field} && {field}.dst == {cache}")
}

/// `ip4` or `ip6`: the match field, and the suffix of a port group's address sets.
pub(crate) fn ip_field(ip: &IpAddr) -> &'static str {
    if ip.is_ipv4() { "ip4" } else { "ip6" }
}

/// A row of a root table, by name.
pub(crate) fn root(table: Table, name: &str) -> RowBuilder {
    top(RowKey::new(table, name)).whole("name", Value::string(name))
}

/// A row of a root table.
pub(crate) fn top(row: RowKey) -> RowBuilder {
    RowBuilder(RowFact { row, parent: None, columns: Columns::default() })
}

/// A row that a column of `parent` holds, by name.
pub(crate) fn named(table: Table, name: &str, parent: RowKey, column: &'static str) -> RowBuilder {
    child(table, name, parent, column).whole("name", Value::string(name))
}

/// A row that a column of `parent` holds; `key` is its natural key only.
pub(crate) fn child(table: Table, key: &str, parent: RowKey, column: &'static str) -> RowBuilder {
    let row = RowKey::new(table, key);
    RowBuilder(RowFact { row, parent: Some((parent, column)), columns: Columns::default() })
}

/// A row under construction.
pub(crate) struct RowBuilder(RowFact);

impl RowBuilder {
    /// The whole column is ours.
    pub(crate) fn whole(mut self, column: &'static str, value: Value) -> Self {
        self.0.columns.insert(column, Column::Whole(value));
        self
    }

    /// The column is set when the row is made.
    pub(crate) fn initial(mut self, column: &'static str, value: Value) -> Self {
        self.0.columns.insert(column, Column::Initial(value));
        self
    }

    /// These keys of the map are ours.
    pub(crate) fn keys<K: AsRef<str>, V: AsRef<str>>(
        mut self,
        column: &'static str,
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        self.0.columns.insert(column, Column::keys(pairs));
        self
    }

    /// The column, as given.
    pub(crate) fn column(mut self, name: &'static str, column: Column) -> Self {
        self.0.columns.insert(name, column);
        self
    }

    /// `external_ids` with the vendor mark and these (contract §4.1).
    pub(crate) fn ids(self, pairs: &[(&str, &str)]) -> Self {
        self.keys("external_ids", [("vendor", VENDOR)].iter().chain(pairs).copied())
    }

    /// Adds the row to a unit's facts.
    pub(crate) fn add(mut self, facts: &mut Facts) {
        self.0.columns.shrink();
        facts.rows.push(self.0);
    }
}

/// What is obviously wrong with an OVN match expression. OVN itself says what is
/// wrong with the rest, in northd's log only.
pub(crate) fn check_match(text: &str) -> Result<(), String> {
    if text.trim().is_empty() {
        return Err("match is empty; write an OVN match expression such as ip4.src == 10.0.0.0/8".to_owned());
    }
    let (mut open, mut quoted) = (Vec::new(), false);
    for c in text.chars() {
        match c {
            '"' => quoted = !quoted,
            _ if quoted => {}
            '(' | '{' => open.push(c),
            ')' | '}' => {
                let opening = if c == ')' { '(' } else { '{' };
                if open.pop() != Some(opening) {
                    return Err(format!("match has a {c:?} without its {opening:?}"));
                }
            }
            c if c.is_control() => {
                return Err("match has a line break or another control character".to_owned());
            }
            _ => {}
        }
    }
    if quoted {
        return Err("match has a quote that is not closed".to_owned());
    }
    open.last().map_or(Ok(()), |c| Err(format!("match has a {c:?} that is not closed")))
}

/// A policy of a router that lets through (`nexthop` `None`) or reroutes.
pub(crate) fn policy(
    facts: &mut Facts,
    router: &str,
    priority: i64,
    matching: &str,
    nexthop: Option<IpAddr>,
    ids: &[(&str, &str)],
) {
    let parent = RowKey::new(Table::LogicalRouter, router);
    let key = policy_key(router, priority, matching);
    let mut row = child(Table::Policy, &key, parent, "policies")
        .whole("priority", Value::integer(priority))
        .whole("match", Value::string(matching))
        .whole("action", Value::string(if nexthop.is_some() { "reroute" } else { "allow" }))
        .ids(ids);
    if let Some(ip) = nexthop {
        row = row.whole("nexthops", Value::strings([ip.to_string()]));
    }
    row.add(facts);
}

/// The port is in the group.
pub(crate) fn member(group: &str, port: &str) -> MemberFact {
    MemberFact {
        row: RowKey::new(Table::PortGroup, group),
        column: "ports",
        element: RowKey::new(Table::LogicalSwitchPort, port),
    }
}

/// Fields of a Kubernetes object.
pub(crate) fn kube(facts: &mut Facts, object: &ObjectRef, uid: &Arc<str>, gate: Gate, fields: Fields) {
    facts.kube.push(KubeFact { object: object.clone(), uid: Some(uid.clone()), gate, fields });
}

/// A condition of a Kubernetes object.
pub(crate) fn condition(
    facts: &mut Facts,
    object: &ObjectRef,
    uid: &Arc<str>,
    gate: Gate,
    (kind, status): (&str, bool),
    (reason, message): (&str, &str),
) {
    let fields =
        Fields::Condition { r#type: kind.into(), status, reason: reason.into(), message: message.into() };
    kube(facts, object, uid, gate, fields);
}

/// Condition `Error`, which is there beside `Validated` and `Ready` (contract §1): true with
/// what is wrong, else false with the reason of the good state.
pub(crate) fn error(
    facts: &mut Facts,
    object: &ObjectRef,
    uid: &Arc<str>,
    wrong: Option<(&str, &str)>,
    good: &str,
) {
    let why = wrong.unwrap_or((good, ""));
    condition(facts, object, uid, Gate::Now, ("Error", wrong.is_some()), why);
}

/// A warning.
pub(crate) fn warning(facts: &mut Facts, object: &ObjectRef, uid: &Arc<str>, reason: &str, message: &str) {
    facts.events.push(EventFact {
        object: object.clone(),
        uid: Some(uid.clone()),
        warning: true,
        reason: reason.into(),
        message: message.into(),
        gate: Gate::Now,
    });
}

/// Something that went well. Publish tells it only of objects that it writes to, so that
/// a restart repeats nothing.
pub(crate) fn success(facts: &mut Facts, object: &ObjectRef, uid: &Arc<str>, gate: Gate, reason: &str) {
    facts.events.push(EventFact {
        object: object.clone(),
        uid: Some(uid.clone()),
        warning: false,
        reason: reason.into(),
        message: "".into(),
        gate,
    });
}

/// The addresses of a lease, IPv4 first.
pub(crate) fn addresses(lease: &Lease) -> impl Iterator<Item = IpAddr> + use<> {
    lease.v4.map(IpAddr::V4).into_iter().chain(lease.v6.map(IpAddr::V6))
}

/// The addresses of a lease, each after the separator but the first.
pub(crate) fn joined(lease: &Lease, separator: &str) -> String {
    addresses(lease).map(|ip| ip.to_string()).collect::<Vec<_>>().join(separator)
}

/// `<mac> <v4> <v6>` as in column `addresses` (contract §4.2).
pub(crate) fn port_address(lease: &Lease) -> String {
    format!("{} {}", lease.mac, joined(lease, " "))
}

/// Whose addresses an IP object records.
pub(crate) struct IpOwner<'a> {
    /// Namespace of the pod, empty for a node.
    pub(crate) namespace: &'a str,
    /// Pod, virtual machine or node.
    pub(crate) pod: &'a str,
    /// `StatefulSet`, `VirtualMachine` or empty.
    pub(crate) pod_type: &'a str,
    /// The node, empty until it is known.
    pub(crate) node: &'a str,
    /// For whom the address is kept.
    pub(crate) annotations: &'a StringMap,
}

/// The IP object of a port (contract §1.2). `reference` is the owner reference, if any.
pub(crate) fn ip_object(
    lease: &Lease,
    owner: &IpOwner<'_>,
    reference: Option<serde_json::Value>,
) -> serde_json::Value {
    let IpOwner { namespace, pod, pod_type, node, annotations } = *owner;
    let text = |ip: Option<String>| ip.unwrap_or_default();
    let spec = crds::IpSpec {
        pod_name: pod.into(),
        namespace: namespace.into(),
        subnet: lease.subnet.to_string(),
        node_name: node.into(),
        ip_address: joined(lease, ","),
        v4_ip_address: text(lease.v4.map(|ip| ip.to_string())),
        v6_ip_address: text(lease.v6.map(|ip| ip.to_string())),
        mac_address: lease.mac.to_string(),
        pod_type: pod_type.into(),
        ..Default::default()
    };
    let mut labels = BTreeMap::from([
        (crds::keys::SUBNET_LABEL, &*lease.subnet),
        (crds::keys::IP_RESERVED_LABEL, "false"),
        (&*lease.subnet, ""),
    ]);
    if !node.is_empty() {
        labels.insert(crds::keys::NODE_NAME_LABEL, node);
    }
    let mut object = serde_json::json!({
        "apiVersion": crds::API_VERSION,
        "kind": "IP",
        "metadata": {
            "name": &*lease.port,
            "labels": labels,
            "finalizers": [crds::keys::FINALIZER],
        },
        "spec": spec,
    });
    if !annotations.is_empty() {
        object["metadata"]["annotations"] = serde_json::json!(annotations);
    }
    if let Some(reference) = reference {
        object["metadata"]["ownerReferences"] = serde_json::json!([reference]);
    }
    object
}
