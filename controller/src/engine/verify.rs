//! What is kept of each unit against the unit compiled again.

use std::sync::Arc;

use super::{Engine, Fingerprints, Recompiled, Recorder, SchemaFacts};
use crate::desired::Desired;
use crate::facts::Facts;
use crate::verify::Differences;
use crate::world::{ReadKey, World};

impl Engine {
    /// Nothing waits to be compiled.
    pub fn idle(&self) -> bool {
        self.dirty.is_empty()
    }

    /// Compiles every unit that the world demands or that is kept, and compares.
    /// Returns the union of all facts, made anew.
    pub fn verify(&self, world: &World, schema: &SchemaFacts, found: &mut Differences) -> Desired {
        let mut desired = Desired::default();
        let mut units = world.units();
        let demanded = units.len();
        units.extend(self.units.iter().map(|(unit, _)| unit.clone()));
        found.same(|| "units".into(), &self.units.len(), &demanded);
        for unit in units {
            let recorder = Recorder::new(world, schema);
            let full = (self.compile)(&recorder, &unit);
            let reads = recorder.into_reads();
            let now = Fingerprints::of(&full);
            let Facts { rows, members, keeps, .. } = full;
            let mut facts = Arc::new(Facts { rows, members, keeps, ..Facts::default() });
            match self.units.by_key(&unit) {
                None => found.add(|| format!("unit {unit:?} is not kept; it states {facts:?}")),
                Some(kept) => {
                    found.same(|| format!("rows of unit {unit:?}"), &kept.facts, &facts);
                    found.same(
                        || format!("Kubernetes objects of unit {unit:?}"),
                        &kept.objects,
                        &now.objects,
                    );
                    found.same(
                        || format!("fingerprints of unit {unit:?}"),
                        &(kept.kube, &kept.events),
                        &(now.kube, &now.events),
                    );
                    let read: Vec<&ReadKey> =
                        kept.reads.iter().filter_map(|id| Some(&self.reads.get(*id)?.0)).collect();
                    found.same(|| format!("reads of unit {unit:?}"), &read, &reads.iter().collect());
                    // The same facts twice in memory serve nobody.
                    if kept.facts == facts {
                        facts = kept.facts.clone();
                    }
                }
            }
            desired.update(&Recompiled { unit, old: Arc::default(), new: facts, statement: None });
        }
        desired
    }
}
