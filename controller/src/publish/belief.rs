//! What we know about an object beyond what its watch has shown: our own writes,
//! from the acknowledgement until the watch catches up. Nothing is sent twice by
//! that, and no successor is mistaken for its predecessor.

use serde_json::Value;

use super::json;
use super::plan::Observed;
use crate::io::KubeWrite;

/// An acknowledged write that no watch has shown yet.
pub(super) enum Believed {
    Patched { uid: String, patch: Value },
    Created { body: Value, instead_of: Option<String> },
    Deleted { uid: String },
}

pub(super) fn believe(old: Option<Believed>, write: KubeWrite) -> Believed {
    match (old, write) {
        (old, KubeWrite::Create { body, .. }) => {
            let instead_of = match old {
                Some(Believed::Deleted { uid }) => Some(uid),
                _ => None,
            };
            Believed::Created { body, instead_of }
        }
        (_, KubeWrite::Delete { uid, .. }) => Believed::Deleted { uid: uid.to_string() },
        (old, KubeWrite::Patch { uid, mut patch, .. }) => {
            if let Some(Value::Object(metadata)) = patch.get_mut("metadata") {
                metadata.remove("resourceVersion");
            }
            let patch = match old {
                Some(Believed::Patched { uid: other, patch: mut all }) if *other == *uid => {
                    // Nulls of both must survive, so merge as documents, not as a patch.
                    overlay(&mut all, patch);
                    all
                }
                _ => patch,
            };
            Believed::Patched { uid: uid.to_string(), patch }
        }
    }
}

/// Merges one patch into another, so that applying the result is applying both.
fn overlay(all: &mut Value, patch: Value) {
    match (all, patch) {
        (Value::Object(all), Value::Object(patch)) => {
            for (key, value) in patch {
                overlay(all.entry(key).or_insert(Value::Null), value);
            }
        }
        (all, patch) => *all = patch,
    }
}

/// The watch has neither shown nor contradicted it, and there is time left.
pub(super) fn still_believed(
    (believed, until): &(Believed, u64),
    now_ms: u64,
    watched: Option<&Observed>,
) -> bool {
    let unseen = match (believed, watched) {
        (Believed::Patched { uid, patch }, Some(o)) => o.uid == *uid && !json::holds(Some(&o.content), patch),
        (Believed::Patched { .. }, None) => false,
        (Believed::Created { instead_of, .. }, Some(o)) => instead_of.as_ref() == Some(&o.uid),
        (Believed::Created { .. }, None) => true,
        (Believed::Deleted { uid }, Some(o)) => o.uid == *uid,
        (Believed::Deleted { .. }, None) => false,
    };
    *until > now_ms && unseen
}

/// What the watch shows, with what we know to be written on top.
pub(super) fn effective(believed: Option<&Believed>, watched: Option<Observed>) -> Option<Observed> {
    match believed {
        None => watched,
        Some(Believed::Deleted { .. }) => None,
        Some(Believed::Created { body, .. }) => Some(Observed {
            uid: String::new(),
            resource_version: String::new(),
            generation: 0,
            deleting: false,
            content: body.clone(),
        }),
        Some(Believed::Patched { patch, .. }) => watched.map(|mut o| {
            json::apply(&mut o.content, patch);
            o
        }),
    }
}
