//! The API server, as far as a controller can tell.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::facts::{Kind, ObjectRef};
use crate::io::{KubeError, KubeWrite};
use crate::objects::Object;
use crate::watch::decode::Decoder;

/// Seconds since 1970 at which every simulation starts.
pub(crate) const EPOCH_S: i64 = 1_800_000_000;

/// Something that a watch delivers.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Applied(String),
    Deleted(ObjectRef),
}

/// The server. A value: clone it to branch off.
#[derive(Clone, Default)]
pub(crate) struct Api {
    objects: BTreeMap<ObjectRef, Value>,
    /// Everything that happened, per kind: what watches deliver, in this order.
    pub(crate) log: BTreeMap<Kind, Vec<Change>>,
    version: u64,
    uids: u64,
    pub(crate) now_s: i64,
    /// Writes of controllers, as text.
    pub(crate) writes: Vec<String>,
}

fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut target[key.as_str()], value);
        }
    }
}

impl Api {
    pub(crate) fn new() -> Self {
        Self { now_s: EPOCH_S, ..Self::default() }
    }

    pub(crate) fn get(&self, object: &ObjectRef) -> Option<&Value> {
        self.objects.get(object)
    }

    pub(crate) fn names(&self, kind: Kind) -> Vec<ObjectRef> {
        self.objects.keys().filter(|o| o.kind == kind).cloned().collect()
    }

    pub(crate) fn annotation(&self, object: &ObjectRef, key: &str) -> Option<&str> {
        self.objects.get(object)?["metadata"]["annotations"][key].as_str()
    }

    fn note(&mut self, object: &ObjectRef) {
        self.version += 1;
        let value = self.objects.get_mut(object).unwrap();
        value["metadata"]["resourceVersion"] = self.version.to_string().into();
        let text = value.to_string();
        self.log.entry(object.kind).or_default().push(Change::Applied(text));
    }

    pub(crate) fn create(&mut self, object: &ObjectRef, body: Value) -> Result<(), KubeError> {
        if self.objects.contains_key(object) {
            return Err(KubeError::Exists);
        }
        let mut body = body;
        self.uids += 1;
        body["metadata"]["name"] = (*object.name).into();
        if body["metadata"]["uid"].is_null() {
            body["metadata"]["uid"] = format!("uid-{}", self.uids).into();
        }
        if !object.namespace.is_empty() {
            body["metadata"]["namespace"] = (*object.namespace).into();
        }
        if body["metadata"]["creationTimestamp"].is_null() {
            let now = jiff::Timestamp::from_second(self.now_s).unwrap().to_string();
            body["metadata"]["creationTimestamp"] = now.into();
        }
        if body["metadata"]["generation"].is_null() {
            body["metadata"]["generation"] = 1.into();
        }
        self.objects.insert(object.clone(), body);
        self.note(object);
        Ok(())
    }

    /// A user or component changes something.
    pub(crate) fn edit(&mut self, object: &ObjectRef, patch: Value) {
        let value = self.objects.get_mut(object).unwrap();
        let before = value.clone();
        merge(value, &patch);
        if *value != before {
            self.note(object);
        }
    }

    /// Deletes; objects with finalizers or a grace period stay for a while.
    pub(crate) fn delete(&mut self, object: &ObjectRef, grace: i64) {
        let Some(value) = self.objects.get_mut(object) else { return };
        let finalizers = value["metadata"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
        if !finalizers && grace == 0 {
            self.remove(object);
        } else if value["metadata"]["deletionTimestamp"].is_null() {
            let at = jiff::Timestamp::from_second(self.now_s + grace).unwrap().to_string();
            value["metadata"]["deletionTimestamp"] = at.into();
            self.note(object);
        }
    }

    /// The object is gone at once (force deletion, end of a grace period).
    pub(crate) fn remove(&mut self, object: &ObjectRef) {
        if self.objects.remove(object).is_some() {
            self.version += 1;
            self.log.entry(object.kind).or_default().push(Change::Deleted(object.clone()));
        }
    }

    /// Whatever grace period the object has is over.
    pub(crate) fn grace_over(&mut self, object: &ObjectRef) {
        let finalizers =
            |value: &Value| value["metadata"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
        if self.objects.get(object).is_some_and(|value| !finalizers(value)) {
            self.remove(object);
        }
    }

    /// Carries out a controller's write.
    pub(crate) fn write(&mut self, write: &KubeWrite) -> Result<(), KubeError> {
        match write {
            KubeWrite::Create { object, body } => {
                self.writes.push(format!("create {object}"));
                self.create(object, body.clone())
            }
            KubeWrite::Delete { object, uid } => {
                self.writes.push(format!("delete {object}"));
                let value = self.objects.get(object).ok_or(KubeError::Gone)?;
                if value["metadata"]["uid"] != **uid {
                    return Err(KubeError::Gone);
                }
                self.delete(object, 0);
                Ok(())
            }
            KubeWrite::Patch { object, uid, status, patch } => {
                self.writes.push(format!("patch {object} {status} {patch}"));
                let value = self.objects.get_mut(object).ok_or(KubeError::Gone)?;
                if value["metadata"]["uid"] != **uid {
                    return Err(KubeError::Gone);
                }
                let mut patch = patch.clone();
                let version = patch["metadata"]["resourceVersion"].take();
                if !version.is_null() && version != value["metadata"]["resourceVersion"] {
                    return Err(KubeError::Retry("conflict".into()));
                }
                let subresource = patch.get("status").is_some() && object.kind != Kind::Vip;
                assert_eq!(*status, subresource, "status only through its subresource");
                merge(&mut patch, &json!({ "metadata": { "resourceVersion": null } }));
                let before = value.clone();
                merge(value, &patch);
                if *value != before {
                    if before["spec"] != value["spec"] {
                        let generation = before["metadata"]["generation"].as_i64().unwrap_or(1) + 1;
                        value["metadata"]["generation"] = generation.into();
                    }
                    let gone = !value["metadata"]["deletionTimestamp"].is_null()
                        && value["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty);
                    if gone {
                        self.remove(object);
                    } else {
                        self.note(object);
                    }
                }
                Ok(())
            }
        }
    }

    /// Everything of a kind, as a list request answers.
    pub(crate) fn list(&self, kind: Kind) -> Vec<Object> {
        let objects = self.objects.iter().filter(|(o, _)| o.kind == kind);
        objects.map(|(_, value)| decode(kind, &value.to_string())).collect()
    }
}

pub(crate) fn decode(kind: Kind, text: &str) -> Object {
    Decoder::new(kind).object(text).unwrap()
}
