//! The union kept step by step against one made anew.

use super::Desired;
use crate::verify::Differences;

impl Desired {
    /// Compares with a union of the same facts, made in another order.
    pub fn verify(&self, fresh: &Desired, found: &mut Differences) {
        let stated = |desired: &Desired| -> Vec<_> {
            let rows = desired.rows.iter();
            rows.map(|(key, list)| {
                let units: Vec<_> = list.iter().map(|c| (c.unit.clone(), c.fact().cloned())).collect();
                (key.clone(), units)
            })
            .collect()
        };
        let (kept, anew) = (stated(self), stated(fresh));
        found.maps("row", kept.iter().map(|(k, v)| (k, v)), anew.iter().map(|(k, v)| (k, v)));
        found.maps("memberships in", &self.members, &fresh.members);
        found.maps("groups of", &self.groups_of, &fresh.groups_of);
        found.maps("conflicts of", &self.conflicts, &fresh.conflicts);
        found.maps("kept row", &self.keeps, &fresh.keeps);
    }
}
