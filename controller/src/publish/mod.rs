//! Publish: makes Kubernetes objects say what the facts say, each only after the
//! rows that it stands for are in the database.
//!
//! Flows in: units' facts, which units are committed, which objects changed,
//! replies, time. Flows out: merge patches with only our fields, creations,
//! deletions, events. Level-triggered: an object is compared with the facts when
//! either changed. One write per object is in flight, a bounded number in all;
//! what is newest when its turn comes is sent. A write that was acknowledged is
//! remembered until the watch shows it, so that nothing is sent twice.

mod belief;
mod json;
mod news;
mod plan;
mod verify;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use crate::engine::{Engine, SchemaFacts, Statement};
use crate::facts::{EventFact, Facts, Fields, Gate, Kind, ObjectRef};
use crate::io::{KubeError, KubeWrite, Output};
use crate::view::UnitKey;
use crate::world::World;

use belief::{Believed, believe, effective, still_believed};
use news::{failure_event, object_of};
use plan::{Observed, Plan};

/// Writes in flight at most.
const IN_FLIGHT: usize = 64;
/// Objects compared in one call at most; the rest waits for the next, so that a
/// new leader with a big cluster serves new pods meanwhile.
const LOOKS: usize = 1000;
/// Units whose facts are kept at hand at most.
const RECENT: usize = 2048;
/// Class of objects that are looked at only because we became the leader.
const BACKGROUND: u8 = 2;
/// How long an acknowledged write is believed without being seen.
const BELIEVED_MS: u64 = 5_000;
/// First and longest back-off after a failed write; content that the API server
/// refuses waits the longest.
const BACK_OFF_MS: (u64, u64) = (250, 60_000);
/// Reason of the condition that tells of rows which can't be written.
const COMMIT_FAILED: &str = "CommitFailed";

/// Numbers since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counters {
    /// Objects created.
    pub creates: u64,
    /// Patches sent.
    pub patches: u64,
    /// Deletions sent.
    pub deletes: u64,
    /// Writes that failed and are tried again.
    pub retries: u64,
    /// Writes whose content the API server refused.
    pub invalid: u64,
    /// Events.
    pub events: u64,
}

#[derive(Default)]
struct State {
    in_flight: Option<u64>,
    believed: Option<(Believed, u64)>,
    failures: u32,
    blocked_until: Option<u64>,
    /// Writes to this UID are answered "gone": wait for the watch.
    gone: Option<String>,
    invalid: Option<String>,
}

struct Flight {
    object: ObjectRef,
    write: KubeWrite,
}

/// Where publish looks facts and objects up.
pub struct Source<'a> {
    /// Objects.
    pub world: &'a World,
    /// Facts.
    pub engine: &'a Engine,
    /// What compile may know about the database.
    pub schema: &'a SchemaFacts,
}

impl Source<'_> {
    fn facts(&self, unit: &UnitKey) -> Arc<Facts> {
        Arc::new(self.engine.full(self.world, self.schema, unit))
    }
}

/// The stage.
#[derive(Default)]
pub struct Publish {
    active: bool,
    units_of: BTreeMap<ObjectRef, BTreeSet<UnitKey>>,
    /// Units with rows that are not in the database yet.
    open: BTreeSet<UnitKey>,
    failing: BTreeMap<UnitKey, String>,
    /// Facts of units whose objects are being brought in line; those of all others
    /// are compiled again when needed.
    recent: BTreeMap<UnitKey, Arc<Facts>>,
    states: BTreeMap<ObjectRef, State>,
    dirty: BTreeMap<(u8, u64), ObjectRef>,
    places: BTreeMap<ObjectRef, (u8, u64)>,
    sequence: u64,
    flights: BTreeMap<u64, Flight>,
    id: u64,
    due: BTreeSet<(u64, ObjectRef)>,
    /// Events that were stated and neither sent nor found to be old news.
    unsaid: BTreeMap<ObjectRef, Vec<(UnitKey, EventFact)>>,
    outbox: Vec<EventFact>,
    drift: BTreeSet<ObjectRef>,
    counters: Counters,
}

impl Publish {
    /// Writing is allowed, or not any more.
    pub fn set_active(&mut self, active: bool) {
        if self.active == active {
            return;
        }
        self.active = active;
        if !active {
            // Another leader may write now: what we believe is worth nothing.
            self.flights.clear();
            self.states.clear();
            self.due.clear();
        }
        for object in self.units_of.keys().cloned().collect::<Vec<_>>() {
            self.mark_as(object, BACKGROUND);
        }
    }

    /// A unit changed what it states about objects.
    pub fn unit(&mut self, unit: &UnitKey, statement: &Statement) {
        let facts = &statement.facts;
        let before: BTreeSet<&ObjectRef> = statement.objects_before.iter().collect();
        let after: BTreeSet<&ObjectRef> = facts.kube.iter().map(|fact| &fact.object).collect();
        for object in before.difference(&after) {
            if let Some(units) = self.units_of.get_mut(*object) {
                units.remove(unit);
                if units.is_empty() {
                    self.units_of.remove(*object);
                }
            }
        }
        for object in &after {
            self.units_of.entry((*object).clone()).or_default().insert(unit.clone());
        }
        for object in before.union(&after) {
            self.mark((*object).clone());
        }
        self.unit_events(unit, statement);
        if after.is_empty() {
            self.recent.remove(unit);
        } else {
            self.recent.insert(unit.clone(), facts.clone());
            if self.recent.len() > RECENT {
                self.recent.pop_first();
            }
        }
    }

    /// Whether all rows of a unit are in the database.
    pub fn set_committed(&mut self, unit: &UnitKey, committed: bool, engine: &Engine) {
        let changed = if committed { self.open.remove(unit) } else { self.open.insert(unit.clone()) };
        if changed && committed {
            self.mark_unit(unit, engine);
        }
    }

    /// Why a unit's rows can't be written, or `None`.
    pub fn set_failing(&mut self, unit: &UnitKey, error: Option<&str>, engine: &Engine, world: &World) {
        if self.failing.get(unit).map(String::as_str) == error {
            return;
        }
        match error {
            Some(error) => {
                self.failing.insert(unit.clone(), error.to_owned());
                self.outbox.extend(failure_event(unit, error, world));
            }
            None => {
                self.failing.remove(unit);
            }
        }
        self.mark_unit(unit, engine);
        if let Some(object) = object_of(unit) {
            self.mark(object);
        }
    }

    fn mark_unit(&mut self, unit: &UnitKey, engine: &Engine) {
        for object in engine.objects(unit) {
            self.mark(object.clone());
        }
    }

    /// Watches delivered something about these objects.
    pub fn touched(&mut self, objects: BTreeSet<ObjectRef>) {
        for object in objects {
            if self.units_of.contains_key(&object) || self.states.contains_key(&object) {
                self.mark(object);
            }
        }
    }

    /// An object has to be looked at: the port path first.
    fn mark(&mut self, object: ObjectRef) {
        let class = u8::from(!matches!(object.kind, Kind::Pod | Kind::Ip));
        self.mark_as(object, class);
    }

    fn mark_as(&mut self, object: ObjectRef, class: u8) {
        // Nobody looks before we lead, and then at everything.
        let class = if self.active { class } else { BACKGROUND };
        match self.places.get(&object) {
            Some(place) if place.0 <= class => return,
            Some(place) => {
                self.dirty.remove(place);
            }
            None => {}
        }
        self.sequence += 1;
        let place = (class, self.sequence);
        self.dirty.insert(place, object.clone());
        self.places.insert(object, place);
    }

    /// A write was answered.
    pub fn reply(&mut self, now_ms: u64, id: u64, result: Result<(), KubeError>) {
        let Some(Flight { object, write }) = self.flights.remove(&id) else { return };
        self.mark(object.clone());
        let state = self.states.entry(object.clone()).or_default();
        state.in_flight = None;
        let Err(error) = result else {
            state.failures = 0;
            state.invalid = None;
            let until = now_ms + BELIEVED_MS;
            let old = state.believed.take().map(|(believed, _)| believed);
            state.believed = Some((believe(old, write), until));
            self.due.insert((until, object.clone()));
            self.speak(&object);
            return;
        };
        match (error, &write) {
            (KubeError::Gone, KubeWrite::Delete { uid, .. }) => {
                let until = now_ms + BELIEVED_MS;
                state.believed = Some((Believed::Deleted { uid: uid.to_string() }, until));
                self.due.insert((until, object));
            }
            (KubeError::Gone, KubeWrite::Patch { uid, .. }) => state.gone = Some(uid.to_string()),
            (KubeError::Invalid(message), _) => {
                self.counters.invalid += 1;
                state.invalid = Some(message);
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
    }

    /// What to send now.
    pub fn outputs(&mut self, now_ms: u64, unix_s: i64, source: &Source<'_>) -> Vec<Output> {
        let mut outputs = Vec::new();
        if !self.active {
            return outputs;
        }
        while let Some((until, object)) = self.due.first().filter(|(until, _)| *until <= now_ms).cloned() {
            self.due.remove(&(until, object.clone()));
            if self.states.contains_key(&object) {
                self.mark(object);
            }
        }
        let mut now = None;
        let mut looks = 0;
        while self.flights.len() < IN_FLIGHT && looks < LOOKS {
            looks += 1;
            let Some((place, object)) = self.dirty.pop_first() else { break };
            debug_assert_eq!(self.places.get(&object), Some(&place));
            self.places.remove(&object);
            let now = now.get_or_insert_with(|| rfc3339(unix_s));
            if let Some(write) = self.look(now_ms, now, &object, source) {
                match &write {
                    KubeWrite::Create { .. } => self.counters.creates += 1,
                    KubeWrite::Patch { .. } => self.counters.patches += 1,
                    KubeWrite::Delete { .. } => self.counters.deletes += 1,
                }
                self.id += 1;
                self.states.entry(object.clone()).or_default().in_flight = Some(self.id);
                self.flights.insert(self.id, Flight { object, write: write.clone() });
                outputs.push(Output::Kube { id: self.id, write });
            }
        }
        for event in std::mem::take(&mut self.outbox) {
            self.counters.events += 1;
            outputs.push(Output::Event(event));
        }
        outputs
    }

    /// Compares one object with the facts about it.
    fn look(&mut self, now_ms: u64, now: &str, object: &ObjectRef, source: &Source<'_>) -> Option<KubeWrite> {
        let watched = source.world.find(object).map(|o| Observed::of(&o));
        let state = self.states.entry(object.clone()).or_default();
        if state.in_flight.is_some() {
            return None;
        }
        if !state.believed.as_ref().is_some_and(|b| still_believed(b, now_ms, watched.as_ref())) {
            state.believed = None;
        }
        if state.gone.is_some() && state.gone.as_ref() != watched.as_ref().map(|o| &o.uid) {
            state.gone = None;
        }
        if state.blocked_until.is_some_and(|until| until <= now_ms) {
            state.blocked_until = None;
        }
        if state.blocked_until.is_some() || state.gone.is_some() {
            return None;
        }
        let seen = effective(state.believed.as_ref().map(|(b, _)| b), watched);
        let believing = state.believed.is_some();
        let plan = self.plan(object, seen.as_ref(), now, source);
        if plan.drift {
            self.drift.insert(object.clone());
        } else {
            self.drift.remove(object);
        }
        let write = first_write(object, seen.as_ref(), &plan, believing);
        if write.is_none() && plan.is_empty() {
            self.old_news(object);
            for unit in self.units_of.get(object).into_iter().flatten().filter(|u| !self.open.contains(*u)) {
                self.recent.remove(unit);
            }
            if self.states.get(object).is_some_and(|s| s.believed.is_none() && s.failures == 0) {
                self.states.remove(object);
            }
        }
        write
    }

    fn plan(&self, object: &ObjectRef, seen: Option<&Observed>, now: &str, source: &Source<'_>) -> Plan {
        let facts: Vec<(&UnitKey, Arc<Facts>)> = self
            .units_of
            .get(object)
            .into_iter()
            .flatten()
            .map(|unit| (unit, self.recent.get(unit).cloned().unwrap_or_else(|| source.facts(unit))))
            .collect();
        let mut fields: Vec<&Fields> = Vec::new();
        for (unit, facts) in &facts {
            let open = self.open.contains(*unit);
            let here = facts.kube.iter().filter(|fact| {
                fact.object == *object
                    && (fact.gate == Gate::Now || !open)
                    && fact.uid.as_ref().is_none_or(|uid| seen.is_some_and(|o| *o.uid == **uid))
            });
            fields.extend(here.map(|fact| &fact.fields));
        }
        let failure = self.failure_condition(object, seen);
        fields.extend(failure.iter());
        plan::plan(object.kind, seen, fields.into_iter(), now)
    }

    /// The condition `Error` of subnets, VPCs, pools and Vips whose rows can't be written; taken
    /// back when they can.
    fn failure_condition(&self, object: &ObjectRef, seen: Option<&Observed>) -> Option<Fields> {
        let unit = match object.kind {
            Kind::Subnet => UnitKey::Subnet(object.name.clone()),
            Kind::Vpc => UnitKey::Vpc(object.name.clone()),
            Kind::IpPool => UnitKey::IpPool(object.name.clone()),
            Kind::Vip => UnitKey::Vip(object.name.clone()),
            _ => return None,
        };
        let condition = |status, message: &str| Fields::Condition {
            r#type: "Error".into(),
            status,
            reason: COMMIT_FAILED.into(),
            message: message.into(),
        };
        if let Some(error) = self.failing.get(&unit) {
            return Some(condition(true, error));
        }
        let conditions = seen?.content.get("status")?.get("conditions")?.as_array()?;
        let stale = conditions.iter().any(|c| {
            let is = |key: &str, value: &str| c.get(key).is_some_and(|v| v == value);
            is("type", "Error") && is("status", "True") && is("reason", COMMIT_FAILED)
        });
        stale.then(|| condition(false, "all rows are in the database"))
    }

    /// When [`Publish::outputs`] has something to do next; 0 is at once.
    pub fn wake_at(&self) -> Option<u64> {
        let more = !self.dirty.is_empty() && self.flights.len() < IN_FLIGHT;
        let next = if more { Some(0) } else { self.due.first().map(|(until, _)| *until) };
        next.filter(|_| self.active)
    }

    /// Numbers since the start.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Objects to be looked at, writes in flight, objects whose written-once
    /// annotations differ.
    pub fn backlog(&self) -> (usize, usize, usize) {
        (self.dirty.len(), self.flights.len(), self.drift.len())
    }

    /// Units that state facts about an object.
    pub fn units_of(&self, object: &ObjectRef) -> impl Iterator<Item = &UnitKey> {
        self.units_of.get(object).into_iter().flatten()
    }

    /// Units whose rows can't be written, and why.
    pub fn failing(&self) -> &BTreeMap<UnitKey, String> {
        &self.failing
    }

    /// Objects whose content the API server refuses, and why.
    pub fn refused(&self) -> impl Iterator<Item = (&ObjectRef, &String)> {
        self.states.iter().filter_map(|(object, state)| Some((object, state.invalid.as_ref()?)))
    }
}

/// The write of a plan that comes first.
fn first_write(
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

fn rfc3339(unix_s: i64) -> String {
    jiff::Timestamp::from_second(unix_s).map(|t| t.to_string()).unwrap_or_default()
}
