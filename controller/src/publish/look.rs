//! A look at one object: what it is, what we believe it to be, and what of the facts
//! about it does not hold yet.

use std::sync::Arc;

use super::belief::{effective, still_believed};
use super::plan::{self, Observed, Plan};
use super::writes::first_write;
use super::{COMMIT_FAILED, Publish, Source};
use crate::facts::{Facts, Fields, Gate, Kind, ObjectRef};
use crate::io::KubeWrite;
use crate::view::UnitKey;

impl Publish {
    /// Compares one object with the facts about it.
    pub(super) fn look(
        &mut self,
        now_ms: u64,
        now: &str,
        object: &ObjectRef,
        source: &Source<'_>,
    ) -> Option<KubeWrite> {
        let watched = source.world.find(object).map(|o| Observed::of(&o));
        let state = self.states.entry(object.clone()).or_default();
        if state.in_flight.is_some() {
            state.again = true;
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
        if write.is_some() {
            if let Some(state) = self.states.get_mut(object) {
                state.again = plan.parts() > 1;
            }
            self.keep_last(object);
        } else if plan.is_empty() {
            self.old_news(object);
            // Also after failures: what failed is not wanted any more, and who comes by that name later starts anew.
            if self.states.get(object).is_some_and(|state| state.believed.is_none()) {
                self.states.remove(object);
            }
            self.let_go(object, source);
        }
        write
    }

    /// The facts that a write comes from are needed again soon.
    fn keep_last(&mut self, object: &ObjectRef) {
        let last = self.last.borrow();
        if let Some((unit, facts)) = &*last
            && self.units_of.get(object).is_some_and(|units| units.contains(unit))
        {
            self.recent.keep(unit, facts);
        }
    }

    /// Nothing is left to write to an object. Facts of its units are needed no more if the
    /// same holds for the other objects that they speak about.
    fn let_go(&mut self, object: &ObjectRef, source: &Source<'_>) {
        let Self { units_of, open, places, states, recent, .. } = self;
        let waiting = |object: &ObjectRef| {
            let state = states.get(object);
            places.contains_key(object)
                || state.is_some_and(|state| state.in_flight.is_some() || state.believed.is_some())
        };
        for unit in units_of.get(object).into_iter().flatten().filter(|unit| !open.contains(*unit)) {
            if !source.engine.objects(unit).iter().any(waiting) {
                recent.remove(unit);
            }
        }
    }

    pub(super) fn facts(&self, unit: &UnitKey, source: &Source<'_>) -> Arc<Facts> {
        if let Some(facts) = self.recent.get(unit) {
            return facts.clone();
        }
        let mut last = self.last.borrow_mut();
        if let Some((of, facts)) = &*last
            && of == unit
        {
            return facts.clone();
        }
        let facts = source.facts(unit);
        *last = Some((unit.clone(), facts.clone()));
        facts
    }

    pub(super) fn plan(
        &self,
        object: &ObjectRef,
        seen: Option<&Observed>,
        now: &str,
        source: &Source<'_>,
    ) -> Plan {
        let facts: Vec<(&UnitKey, Arc<Facts>)> = self
            .units_of
            .get(object)
            .into_iter()
            .flatten()
            .map(|unit| (unit, self.facts(unit, source)))
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
        // One condition of a type: that rows can't be written comes first, that they can
        // last. Both at once would be written in turns for ever.
        let is_error =
            |fields: &&Fields| matches!(fields, Fields::Condition { r#type, .. } if &**r#type == "Error");
        match &failure {
            Some(Fields::Condition { status: false, .. }) if fields.iter().any(is_error) => {}
            Some(failure) => {
                fields.retain(|fields| !is_error(fields));
                fields.push(failure);
            }
            None => {}
        }
        plan::plan(object.kind, seen, fields.into_iter(), now)
    }

    /// The condition `Error` of subnets, VPCs, pools, Vips and OvnEips whose rows can't be written; taken
    /// back when they can.
    fn failure_condition(&self, object: &ObjectRef, seen: Option<&Observed>) -> Option<Fields> {
        let unit = match object.kind {
            Kind::Subnet => UnitKey::Subnet(object.name.clone()),
            Kind::Vpc => UnitKey::Vpc(object.name.clone()),
            Kind::IpPool => UnitKey::IpPool(object.name.clone()),
            Kind::Vip => UnitKey::Vip(object.name.clone()),
            Kind::OvnEip => UnitKey::OvnEip(object.name.clone()),
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
}
