//! Objects that differ from their facts must be known to do so.

use super::plan::Observed;
use super::writes::{first_write, rfc3339};
use super::{Publish, Source};
use crate::verify::Differences;

impl Publish {
    /// Looks at every object that is neither to be looked at nor waited for: nothing
    /// may be left to write to it.
    pub fn verify(&self, unix_s: i64, source: &Source<'_>, found: &mut Differences) {
        if !self.active {
            return;
        }
        let now = rfc3339(unix_s);
        self.last.take();
        for object in self.units_of.keys() {
            let waiting = self.places.contains_key(object)
                || self.states.get(object).is_some_and(|state| {
                    state.in_flight.is_some()
                        || state.believed.is_some()
                        || state.blocked_until.is_some()
                        || state.gone.is_some()
                });
            if waiting {
                continue;
            }
            let seen = source.world.find(object).map(|o| Observed::of(&o));
            let plan = self.plan(object, seen.as_ref(), &now, source);
            if let Some(write) = first_write(object, seen.as_ref(), &plan, false) {
                found.add(|| format!("{object} differs and nobody looks: {write:?}"));
            }
        }
    }
}
