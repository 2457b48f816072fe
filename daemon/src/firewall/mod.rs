//! The kernel's packet filter by the system's batch tools: ipsets by `ipset save|restore`, rules by
//! `iptables-save|iptables-restore --noflush`.
//!
//! In: wanted sets ([`SetSpec`]) and wanted chains ([`WantedTable`]). Out: the smallest batch that makes the host agree,
//! or nothing. Pure except for [`Tools`], which runs the programs; this is not on the path of a pod, so starting a
//! process is allowed here. Nothing of anybody else's is moved, rewritten or flushed (pain list U62).

mod backend;
mod command;
mod counts;
mod diff;
mod ipset;
#[cfg(test)]
pub(crate) mod model;
mod probe;
mod ruleset;

pub use backend::{Backend, legacy_tables_in_use};
pub use command::{Error, Result, Tools};
pub use counts::{IpsetCounts, ipset_counts};
pub use diff::{Learned, TableChange, diff, render};
pub use ipset::{
    SavedSet, SavedSets, SetChange, SetConflict, SetKind, SetPlan, SetSpec, parse_save, plan_sets,
};
pub use probe::{Fingerprint, Probe};
pub(crate) use ruleset::is_kept;
pub use ruleset::{Jump, Rule, Saved, SavedTable, Table, WantedTable, parse_rules};

pub use crds::net::Family;
