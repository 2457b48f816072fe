//! Writes: which comes first, and what their answers mean.

use std::sync::Arc;

use serde_json::Value;

use super::belief::{Believed, believe};
use super::plan::{Observed, Plan};
use super::{BACK_OFF_MS, BELIEVED_MS, Flight, Publish};
use crate::facts::ObjectRef;
use crate::io::{KubeError, KubeWrite};

impl Publish {
    /// A write was answered.
    pub fn reply(&mut self, now_ms: u64, id: u64, result: Result<(), KubeError>) {
        let Some(Flight { object, write }) = self.flights.remove(&id) else { return };
        let state = self.states.entry(object.clone()).or_default();
        state.in_flight = None;
        let again = std::mem::take(&mut state.again);
        let Err(error) = result else {
            state.failures = 0;
            state.invalid = None;
            let until = now_ms + BELIEVED_MS;
            let old = state.believed.take().map(|(believed, _)| believed);
            state.believed = Some((believe(old, write), until));
            self.due.insert((until, object.clone()));
            self.speak(&object);
            // Else nothing is left to do until the watch shows it, or does not.
            if again {
                self.mark(object);
            }
            return;
        };
        self.mark(object.clone());
        let state = self.states.entry(object.clone()).or_default();
        let mut news = None;
        match (error, &write) {
            (KubeError::Gone, KubeWrite::Delete { uid, .. }) => {
                let until = now_ms + BELIEVED_MS;
                state.believed = Some((Believed::Deleted { uid: uid.to_string() }, until));
                self.due.insert((until, object));
            }
            (KubeError::Gone, KubeWrite::Patch { uid, .. }) => state.gone = Some(uid.to_string()),
            (KubeError::Invalid(message), _) => {
                self.counters.invalid += 1;
                let old = state.invalid.replace(message.clone());
                if old.as_ref() != Some(&message) {
                    news = Some(message);
                }
                state.blocked_until = Some(now_ms + BACK_OFF_MS.1);
                self.due.insert((now_ms + BACK_OFF_MS.1, object));
            }
            (KubeError::Gone | KubeError::Exists | KubeError::Retry(_), _) => {
                self.counters.retries += 1;
                state.failures += 1;
                let delay = BACK_OFF_MS.0 << state.failures.min(9).saturating_sub(1);
                let until = now_ms + delay.min(BACK_OFF_MS.1);
                state.blocked_until = Some(until);
                self.due.insert((until, object));
            }
        }
        if let Some(message) = news {
            self.refused_event(&write, &message);
        }
    }
}

/// The write of a plan that comes first.
pub(super) fn first_write(
    object: &ObjectRef,
    seen: Option<&Observed>,
    plan: &Plan,
    believing: bool,
) -> Option<KubeWrite> {
    let object = object.clone();
    if let Some(body) = &plan.create {
        return Some(KubeWrite::Create { object, body: body.clone() });
    }
    // Without a UID, the watch has to show what we created first.
    let seen = seen.filter(|o| !o.uid.is_empty())?;
    let uid: Arc<str> = seen.uid.as_str().into();
    let patch = |status, patch: &Value| {
        // An optimistic patch needs the version that our last write made.
        let optimistic = patch.get("metadata").is_some_and(|m| m.get("resourceVersion").is_some());
        (!(optimistic && believing)).then(|| KubeWrite::Patch {
            object: object.clone(),
            uid: uid.clone(),
            status,
            patch: patch.clone(),
        })
    };
    match (&plan.main, &plan.status) {
        (Some(main), _) => patch(false, main),
        (None, Some(status)) => patch(true, status),
        (None, None) if plan.delete => Some(KubeWrite::Delete { object, uid }),
        (None, None) => None,
    }
}

pub(super) fn rfc3339(unix_s: i64) -> String {
    jiff::Timestamp::from_second(unix_s).map(|t| t.to_string()).unwrap_or_default()
}
