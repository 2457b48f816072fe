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
mod look;
mod news;
mod plan;
mod recent;
mod verify;
mod writes;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::engine::{Engine, SchemaFacts, Statement};
use crate::facts::{EventFact, Facts, Gate, Kind, ObjectRef};
use crate::io::{KubeWrite, Output};
use crate::view::UnitKey;
use crate::world::{News, World};

use belief::Believed;
use news::{failure_event, object_of};
use recent::Recent;
use writes::rfc3339;

/// Writes in flight at most.
const IN_FLIGHT: usize = 64;
/// Objects compared in one call at most; the rest waits for the next, so that a
/// new leader with a big cluster serves new pods meanwhile.
const LOOKS: usize = 1000;
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
    /// Something changed since the write in flight was planned, or it is one of several.
    again: bool,
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
    /// Sorted; mostly one, which no tree is worth.
    units_of: BTreeMap<ObjectRef, Vec<UnitKey>>,
    /// Units with rows that are not in the database yet.
    open: BTreeSet<UnitKey>,
    /// Units that state something new which waits for their rows, before it is known
    /// whether those are there.
    waiting: BTreeSet<UnitKey>,
    failing: BTreeMap<UnitKey, String>,
    /// Facts of units whose objects are being brought in line; those of all others
    /// are compiled again when needed.
    recent: Recent,
    /// Facts compiled last; worth nothing once units change.
    last: RefCell<Option<(UnitKey, Arc<Facts>)>>,
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
    /// Told once their unit's rows are in the database.
    news: VecDeque<News>,
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
            self.news.clear();
            self.states.clear();
            self.due.clear();
        }
        // Objects of one unit one after the other: its facts are compiled once for all.
        let mut objects: Vec<_> =
            self.units_of.iter().map(|(object, units)| (units.first(), object)).collect();
        objects.sort();
        let objects: Vec<ObjectRef> = objects.into_iter().map(|(_, object)| object.clone()).collect();
        for object in objects {
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
                units.retain(|other| other != unit);
                if units.is_empty() {
                    self.units_of.remove(*object);
                }
            }
        }
        for object in &after {
            let units = self.units_of.entry((*object).clone()).or_default();
            if let Err(at) = units.binary_search(unit) {
                units.reserve_exact(1);
                units.insert(at, unit.clone());
            }
        }
        // What waits for rows is worth no look before they are there.
        let now: BTreeSet<&ObjectRef> =
            facts.kube.iter().filter(|fact| fact.gate == Gate::Now).map(|fact| &fact.object).collect();
        for object in before.difference(&after).chain(&now) {
            self.mark((*object).clone());
        }
        self.waiting.insert(unit.clone());
        self.unit_events(unit, statement);
        // Before we lead nobody looks at them.
        if after.is_empty() || !self.active {
            self.recent.remove(unit);
        } else {
            self.recent.offer(unit, facts);
        }
    }

    /// Whether all rows of a unit are in the database.
    pub fn set_committed(&mut self, unit: &UnitKey, committed: bool, engine: &Engine) {
        let changed = if committed { self.open.remove(unit) } else { self.open.insert(unit.clone()) };
        // One that waits for its rows is looked at when they come.
        let stated = self.waiting.remove(unit);
        if committed && (changed || stated) {
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
                let secured = self.secures(unit);
                self.outbox.extend(failure_event(unit, error, secured, world));
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

    /// What to send now.
    pub fn outputs(&mut self, now_ms: u64, unix_s: i64, source: &Source<'_>) -> Vec<Output> {
        let mut outputs = Vec::new();
        self.last.take();
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
        self.release_news();
        for event in std::mem::take(&mut self.outbox) {
            self.counters.events += 1;
            outputs.push(Output::Event(event));
        }
        outputs
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
