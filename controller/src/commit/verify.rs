//! What is pending and indexed against the replica as a whole.

use std::collections::BTreeSet;

use ovsdb::{RowChange, Uuid};

use super::index::Index;
use super::pending::Item;
use super::{Commit, MemberFact, RowKey};
use crate::desired::Desired;
use crate::io::Config;
use crate::verify::Differences;

impl Commit {
    /// Compares the index with one made anew from the replica, and what is pending
    /// with the difference between the desired state and the replica.
    pub fn verify(&self, config: &Config, desired: &Desired, found: &mut Differences) {
        let Some(replica) = self.index.replica().filter(|_| self.live) else { return };
        let rows = replica.tables().flat_map(|table| table.rows());
        let changes: Vec<RowChange> = rows
            .map(|row| RowChange {
                table: row.table().clone(),
                uuid: row.uuid,
                old: None,
                new: Some(row.clone()),
            })
            .collect();
        let mut fresh = Index::default();
        fresh.apply(config, replica.clone(), &changes);
        self.index.verify(&fresh, found);

        let keys: BTreeSet<&RowKey> =
            self.index.keys().chain(desired.keys()).chain(self.strays.keys()).collect();
        for key in keys {
            let (clean, strays) = self.judged_row(desired, key);
            let open = self.pending.has(&Item::Row(key.clone()));
            found.same(|| format!("{key} is to be written"), &open, &(clean == Some(false)));
            let known: BTreeSet<Uuid> = self.strays.get(key).cloned().unwrap_or_default();
            found.same(|| format!("{key}: rows too many"), &known, &strays);
        }
        let members: BTreeSet<MemberFact> = desired.members().chain(self.index.members()).collect();
        for member in members {
            let open = self.pending.has(&Item::Member(member.clone()));
            let expected = self.judged_member(desired, &member).is_some_and(|(clean, _)| !clean);
            found.same(|| format!("membership {member:?} is to be changed"), &open, &expected);
        }
    }
}
