//! What has to be written to one object, given what it is and what must hold:
//! a pure function.

use crds::keys::{DEPRECATED_FINALIZER, FINALIZER, IP_RESERVED_LABEL, IP_RETAIN, IP_RETAIN_FOR};
use serde_json::{Value, json};

use super::json;
use crate::facts::{Fields, Kind, NodeCondition};
use crate::objects::Object;

/// An object as publish sees it.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    /// UID; empty when the object was just created and no watch has shown it.
    pub uid: String,
    /// For optimistic patches.
    pub resource_version: String,
    /// Generation of the spec, for conditions.
    pub generation: i64,
    /// Being deleted.
    pub deleting: bool,
    /// `metadata` (annotations, labels, finalizers), `spec`, `status`.
    pub content: Value,
}

impl Observed {
    /// From a watched object.
    pub(super) fn of(object: &Object) -> Self {
        let meta = object.meta();
        let mut content = json!({ "metadata": {
            "annotations": meta.annotations,
            "labels": meta.labels,
            "finalizers": meta.finalizers,
        } });
        // These types serialise without fail: no maps with odd keys.
        let value = |v: serde_json::Result<Value>| v.unwrap_or_default();
        match object {
            Object::Subnet(o) => {
                json::set(&mut content, &["spec"], value(serde_json::to_value(&o.spec)));
                json::set(&mut content, &["status"], value(serde_json::to_value(&o.status)));
            }
            Object::Vpc(o) => {
                json::set(&mut content, &["spec"], value(serde_json::to_value(&o.spec)));
                json::set(&mut content, &["status"], value(serde_json::to_value(&o.status)));
            }
            Object::Ip(o) => json::set(&mut content, &["spec"], value(serde_json::to_value(&o.spec))),
            Object::IpPool(o) => {
                json::set(&mut content, &["spec"], value(serde_json::to_value(&o.spec)));
                json::set(&mut content, &["status"], value(serde_json::to_value(&o.status)));
            }
            Object::Vip(o) => {
                json::set(&mut content, &["spec"], value(serde_json::to_value(&o.spec)));
                json::set(&mut content, &["status"], value(serde_json::to_value(&o.status)));
            }
            Object::ProviderNetwork(o) => {
                json::set(&mut content, &["spec"], value(serde_json::to_value(&o.spec)));
                json::set(&mut content, &["status"], value(serde_json::to_value(&o.status)));
            }
            Object::OvnEip(o) => {
                json::set(&mut content, &["spec"], value(serde_json::to_value(&o.spec)));
                json::set(&mut content, &["status"], value(serde_json::to_value(&o.status)));
            }
            Object::Vlan(o) => json::set(&mut content, &["status"], value(serde_json::to_value(&o.status))),
            Object::Other(_, o) => {
                let conditions = value(serde_json::to_value(&o.conditions));
                json::set(&mut content, &["status", "conditions"], conditions);
            }
            Object::Pod(_)
            | Object::Node(_)
            | Object::Namespace(_)
            | Object::Workload(..)
            | Object::Nad(_)
            | Object::Machine(..)
            | Object::Migration(_) => {}
        }
        Self {
            uid: meta.uid.to_string(),
            resource_version: meta.resource_version.to_string(),
            generation: meta.generation,
            deleting: meta.deleting_at.is_some(),
            content,
        }
    }
}

/// What to send.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Plan {
    /// Create it with this content.
    pub create: Option<Value>,
    /// Patch the object.
    pub main: Option<Value>,
    /// Patch the status subresource.
    pub status: Option<Value>,
    /// Delete it, after the patch.
    pub delete: bool,
    /// Annotations that are written once differ from what they should be.
    pub drift: bool,
}

impl Plan {
    /// How many writes it is.
    pub(super) fn parts(&self) -> usize {
        let patches = [&self.create, &self.main, &self.status].into_iter().flatten().count();
        patches + usize::from(self.delete)
    }

    /// Nothing to send.
    pub(super) fn is_empty(&self) -> bool {
        self.parts() == 0
    }
}

/// The difference between an object and the facts about it, which come in the
/// order of their units: of two that disagree the first counts. `now` is RFC 3339.
pub(super) fn plan<'a>(
    kind: Kind,
    observed: Option<&Observed>,
    facts: impl Iterator<Item = &'a Fields>,
    now: &str,
) -> Plan {
    let facts: Vec<&Fields> = facts.collect();
    let absent = facts.iter().any(|fields| matches!(fields, Fields::Absent));
    let mut plan = Plan::default();
    let Some(observed) = observed else {
        if !absent {
            plan.create = facts.iter().find_map(|fields| match fields {
                Fields::Object(body) | Fields::Created(body) => Some(body.clone()),
                _ => None,
            });
        }
        return plan;
    };
    let mut draft = Draft { observed, patch: Value::Null, finalizer: None };
    for fields in &facts {
        draft.take(fields, now, absent, &mut plan);
    }
    if absent {
        draft.finalizer = Some(false);
        plan.delete = !observed.deleting;
    }
    draft.finish(kind, &mut plan);
    plan
}

struct Draft<'a> {
    observed: &'a Observed,
    patch: Value,
    finalizer: Option<bool>,
}

impl Draft<'_> {
    fn at(&self, path: &[&str]) -> Option<&Value> {
        path.iter().try_fold(&self.observed.content, |value, key| value.get(key))
    }

    fn wants(&mut self, path: &[&str], value: Value) {
        if !json::holds(self.at(path), &value) {
            self.put(path, value);
        }
    }

    /// Of two facts about one field the first counts.
    fn put(&mut self, path: &[&str], value: Value) {
        if path.iter().try_fold(&self.patch, |value, key| value.get(key)).is_none() {
            json::set(&mut self.patch, path, value);
        }
    }

    fn take(&mut self, fields: &Fields, now: &str, absent: bool, plan: &mut Plan) {
        match fields {
            Fields::Annotations(values) => {
                for (key, value) in values {
                    let value = value.as_deref().map_or(Value::Null, Value::from);
                    self.wants(&["metadata", "annotations", key], value);
                }
            }
            Fields::AnnotationsOnce { marker, values } => {
                let written = self.at(&["metadata", "annotations", marker]) == Some(&Value::from("true"));
                for (key, value) in values {
                    let path = ["metadata", "annotations", key];
                    if !written {
                        self.wants(&path, (**value).into());
                    } else if self.at(&path) != Some(&Value::from(&**value)) {
                        plan.drift = true;
                    }
                }
            }
            Fields::Labels(values) => {
                // An empty label is not the same as none.
                for (key, value) in values {
                    let (path, value) = (["metadata", "labels", key], Value::from(&**value));
                    if self.at(&path) != Some(&value) {
                        self.put(&path, value);
                    }
                }
            }
            Fields::Finalizer(present) => {
                // A finalizer can't be added to an object on its way out.
                if !(*present && self.observed.deleting) {
                    self.finalizer = self.finalizer.or(Some(*present));
                }
            }
            Fields::Spec(values) => {
                for (key, value) in values {
                    self.wants(&["spec", key], value.clone());
                }
            }
            Fields::Status(values) => {
                // All or none: zeros belong to the picture, but decoders can't tell
                // them from fields that were never written.
                let differs =
                    values.iter().any(|(key, value)| !json::holds(self.at(&["status", key]), value));
                for (key, value) in values.iter().filter(|_| differs) {
                    self.put(&["status", key], value.clone());
                }
            }
            Fields::Condition { r#type, status, reason, message } => {
                self.condition((r#type, None), *status, (reason, message), now);
            }
            Fields::NodeConditions(nodes) => self.node_conditions(nodes, now),
            Fields::Object(body) if !self.observed.deleting && !absent => self.object(body),
            Fields::Object(_) | Fields::Created(_) | Fields::Absent => {}
        }
    }

    fn without_finalizer(&self) -> bool {
        let finalizers = self.at(&["metadata", "finalizers"]).and_then(Value::as_array);
        !finalizers.is_some_and(|list| list.iter().any(|f| f == FINALIZER || f == DEPRECATED_FINALIZER))
    }

    fn object(&mut self, body: &Value) {
        let parts: [&[&str]; 3] = [&["metadata", "annotations"], &["metadata", "labels"], &["spec"]];
        for part in parts {
            let Some(Value::Object(values)) = part.iter().try_fold(body, |value, key| value.get(key)) else {
                continue;
            };
            for (key, value) in values {
                let path: Vec<&str> = part.iter().copied().chain([key.as_str()]).collect();
                // Whether an address is kept by hand is the user's to say, by the label or by
                // having made the object: ours have label and finalizer from the start.
                if key == IP_RESERVED_LABEL {
                    let label = self.at(&path).cloned();
                    if label.is_none() && self.without_finalizer() {
                        self.put(&path, "true".into());
                    } else if label.is_none_or(|label| label != "true") {
                        self.wants(&path, value.clone());
                    }
                    continue;
                }
                self.wants(&path, value.clone());
            }
        }
        // For whom an address is kept is said by these alone: what is not stated any more goes.
        for key in [IP_RETAIN, IP_RETAIN_FOR] {
            let path = ["metadata", "annotations", key];
            if self.at(&path).is_some() && path.iter().try_fold(body, |value, key| value.get(key)).is_none() {
                self.put(&path, Value::Null);
            }
        }
        let finalizers = body.get("metadata").and_then(|m| m.get("finalizers")).and_then(Value::as_array);
        if finalizers.is_some_and(|list| list.iter().any(|f| f == FINALIZER)) {
            self.finalizer = self.finalizer.or(Some(true));
        }
    }

    fn node_conditions(&mut self, nodes: &[NodeCondition], now: &str) {
        let path = ["status", "conditions"];
        let all = self.at(&path).and_then(Value::as_array).cloned().unwrap_or_default();
        let about = |condition: &Value| condition.get("node").and_then(Value::as_str).map(str::to_owned);
        let mut kept = all.clone();
        kept.retain(|condition| {
            about(condition).is_some_and(|node| nodes.iter().any(|one| *one.node == *node))
        });
        if kept.len() != all.len() {
            json::set(&mut self.patch, &path, Value::Array(kept));
        }
        for one in nodes {
            self.condition(("Ready", Some(&one.node)), one.status, (&one.reason, &one.message), now);
        }
    }

    /// The condition of a type, of a node if it is about one.
    fn condition(
        &mut self,
        (kind, node): (&str, Option<&str>),
        status: bool,
        (reason, message): (&str, &str),
        now: &str,
    ) {
        let path = ["status", "conditions"];
        let patched = path.iter().try_fold(&self.patch, |value, key| value.get(key));
        let mut list = patched.or(self.at(&path)).and_then(Value::as_array).cloned().unwrap_or_default();
        let status = if status { "True" } else { "False" };
        let same = |c: &Value| {
            let of = c.get("node").and_then(Value::as_str).unwrap_or_default();
            c.get("type").is_some_and(|t| t == kind) && of == node.unwrap_or_default()
        };
        let place = list.iter().position(same);
        let old = place.and_then(|at| list.get(at)).cloned().unwrap_or_default();
        let text = |key: &str| old.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        if place.is_some()
            && (text("status"), text("reason"), text("message"))
                == (status.to_owned(), reason.to_owned(), message.to_owned())
        {
            return;
        }
        let since = if text("status") == status { text("lastTransitionTime") } else { now.to_owned() };
        let mut new = old;
        json::apply(
            &mut new,
            &json!({
                "type": kind, "status": status, "reason": reason, "message": message,
                "observedGeneration": self.observed.generation,
                "lastUpdateTime": now, "lastTransitionTime": since,
            }),
        );
        if let Some(node) = node {
            json::set(&mut new, &["node"], node.into());
        }
        match place.and_then(|at| list.get_mut(at)) {
            Some(slot) => *slot = new,
            None => list.push(new),
        }
        json::set(&mut self.patch, &path, Value::Array(list));
    }

    fn finish(mut self, kind: Kind, plan: &mut Plan) {
        let current: Vec<Value> =
            self.at(&["metadata", "finalizers"]).and_then(Value::as_array).cloned().unwrap_or_default();
        let present = current.iter().any(|f| f == FINALIZER);
        // Of before 1.13: whoever deletes the object waits for it too (contract §1).
        let outdated = current.iter().any(|f| f == DEPRECATED_FINALIZER);
        if let Some(wanted) = self.finalizer.filter(|wanted| outdated || *wanted != present) {
            let mut list: Vec<Value> =
                current.into_iter().filter(|f| f != FINALIZER && f != DEPRECATED_FINALIZER).collect();
            if wanted {
                list.push(FINALIZER.into());
            }
            json::set(&mut self.patch, &["metadata", "finalizers"], Value::Array(list));
        }
        // A list is replaced as a whole: what somebody adds to it at this moment must not get lost, nor others' finalizers.
        let spec = self.patch.get("spec").and_then(Value::as_object);
        let lists = spec.is_some_and(|spec| spec.values().any(Value::is_array));
        if lists || self.patch.pointer("/metadata/finalizers").is_some() {
            let version = self.observed.resource_version.clone();
            json::set(&mut self.patch, &["metadata", "resourceVersion"], version.into());
        }
        let Value::Object(mut patch) = self.patch else { return };
        if has_status_subresource(kind)
            && let Some(status) = patch.remove("status")
        {
            plan.status = Some(json!({ "status": status }));
        }
        if !patch.is_empty() {
            plan.main = Some(Value::Object(patch));
        }
    }
}

fn has_status_subresource(kind: Kind) -> bool {
    match kind {
        Kind::Pod
        | Kind::Node
        | Kind::Namespace
        | Kind::Subnet
        | Kind::Vpc
        | Kind::IpPool
        | Kind::ProviderNetwork
        | Kind::OvnEip
        | Kind::Vlan
        | Kind::StatefulSet
        | Kind::Deployment
        | Kind::VirtualMachine
        | Kind::VirtualMachineInstance
        | Kind::Migration => true,
        Kind::Ip | Kind::Vip | Kind::Nad => false,
        Kind::Other(plural) => crds::KINDS
            .iter()
            .find(|info| info.plural == plural)
            .is_none_or(|info| info.has_status_subresource),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn observed(content: Value) -> Observed {
        Observed { uid: "u".into(), resource_version: "7".into(), generation: 3, deleting: false, content }
    }

    fn run(kind: Kind, observed: Option<&Observed>, facts: &[Fields]) -> Plan {
        plan(kind, observed, facts.iter(), "2026-01-01T00:00:00Z")
    }

    fn once() -> Fields {
        let values = [("routed", "true"), ("ip", "10.0.0.1")];
        Fields::AnnotationsOnce {
            marker: "routed".into(),
            values: values.map(|(k, v)| (Arc::from(k), Arc::from(v))).into(),
        }
    }

    #[test]
    fn only_what_differs_is_written_and_once_means_once() {
        let object = observed(json!({"metadata": {"annotations": {"ip": "10.0.0.1"}}}));
        let plan = run(Kind::Pod, Some(&object), &[once()]);
        assert_eq!(plan.main, Some(json!({"metadata": {"annotations": {"routed": "true"}}})));
        let object = observed(json!({"metadata": {"annotations": {"ip": "10.0.0.9", "routed": "true"}}}));
        let plan = run(Kind::Pod, Some(&object), &[once()]);
        assert!(plan.is_empty() && plan.drift);
    }

    #[test]
    fn objects_are_created_completed_and_let_go() {
        let body = json!({"metadata": {"labels": {"a": "b"}, "finalizers": [FINALIZER]},
            "spec": {"subnet": "s", "containerID": ""}});
        let facts = [Fields::Object(body.clone())];
        assert_eq!(run(Kind::Ip, None, &facts).create, Some(body));
        let object = observed(json!({"metadata": {"finalizers": ["other"]}, "spec": {"subnet": "s"}}));
        let patch = run(Kind::Ip, Some(&object), &facts).main.unwrap();
        assert_eq!(patch["metadata"]["finalizers"], json!(["other", FINALIZER]));
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        assert!(patch.get("spec").is_none());
        let lists = Fields::Spec([(Arc::from("excludeNodes"), json!(["n-1"]))].into());
        let object = observed(json!({"spec": {"excludeNodes": ["n-2"]}}));
        for kind in [Kind::ProviderNetwork, Kind::Subnet] {
            let patch = run(kind, Some(&object), std::slice::from_ref(&lists)).main.unwrap();
            assert_eq!(patch["metadata"]["resourceVersion"], "7", "a list that somebody else changes too");
        }
        let word = Fields::Spec([(Arc::from("gateway"), json!("10.0.0.1"))].into());
        let patch = run(Kind::Subnet, Some(&object), &[word]).main.unwrap();
        assert!(patch.get("metadata").is_none(), "one word is nobody's list");
        let object = observed(json!({"metadata": {"finalizers": [FINALIZER]}}));
        let plan = run(Kind::Ip, Some(&object), &[Fields::Absent]);
        assert_eq!(plan.main.unwrap()["metadata"]["finalizers"], json!([]));
        assert!(plan.delete);
    }

    #[test]
    fn the_finalizer_of_before_is_replaced_and_goes_with_ours() {
        let list = |plan: &Plan| plan.main.as_ref().map(|patch| patch["metadata"]["finalizers"].clone());
        for (has, wanted, becomes) in [
            (json!([DEPRECATED_FINALIZER]), true, Some(json!([FINALIZER]))),
            (json!([DEPRECATED_FINALIZER, "other", FINALIZER]), true, Some(json!(["other", FINALIZER]))),
            (json!([FINALIZER]), true, None),
            (json!(["other", DEPRECATED_FINALIZER]), false, Some(json!(["other"]))),
            (json!([FINALIZER, DEPRECATED_FINALIZER]), false, Some(json!([]))),
            (json!(["other"]), false, None),
        ] {
            let object = observed(json!({ "metadata": { "finalizers": has } }));
            let plan = run(Kind::Subnet, Some(&object), &[Fields::Finalizer(wanted)]);
            assert_eq!(list(&plan), becomes, "{has} {wanted}");
        }
        // An IP object that goes.
        let object = observed(json!({ "metadata": { "finalizers": [DEPRECATED_FINALIZER] } }));
        let plan = run(Kind::Ip, Some(&object), &[Fields::Absent]);
        assert_eq!((list(&plan), plan.delete), (Some(json!([])), true));
    }

    #[test]
    fn conditions_keep_their_time_until_they_change() {
        let fact = |status, message: &str| Fields::Condition {
            r#type: "Ready".into(),
            status,
            reason: "R".into(),
            message: message.into(),
        };
        let mut object = observed(json!({"status": {"conditions": [{"type": "Other", "status": "True"}]}}));
        let patch = run(Kind::Subnet, Some(&object), &[fact(true, "m")]).status.unwrap();
        json::apply(&mut object.content, &patch);
        assert!(run(Kind::Subnet, Some(&object), &[fact(true, "m")]).is_empty());
        let patch = plan(Kind::Subnet, Some(&object), [fact(true, "n")].iter(), "2027-01-01T00:00:00Z");
        let ready = &patch.status.unwrap()["status"]["conditions"][1];
        assert_eq!(ready["lastTransitionTime"], "2026-01-01T00:00:00Z");
        assert_eq!(ready["lastUpdateTime"], "2027-01-01T00:00:00Z");
        assert_eq!(ready["observedGeneration"], 3);
    }
}
