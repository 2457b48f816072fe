//! ipsets: what is wanted, what `ipset save` says, and the `ipset restore` script between the two.
//!
//! A few differing elements are added and deleted one by one, so that a change of one object costs its own elements. A set
//! that differs much, or in its settings, is filled under a temporary name and swapped in: rules that use it see the old
//! content or the new, never a part.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::Family;

/// As many changes are made one by one, whatever the size of the set.
const FEW: usize = 8;
/// Elements a set may hold.
const MAX_ELEMENTS: u32 = 1_048_576;

/// Type of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetKind {
    /// Prefixes.
    #[serde(rename = "hash:net")]
    HashNet,
    /// Addresses.
    #[serde(rename = "hash:ip")]
    HashIp,
}

impl SetKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::HashNet => "hash:net",
            Self::HashIp => "hash:ip",
        }
    }
}

/// A wanted set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetSpec {
    /// Type.
    pub kind: SetKind,
    /// Family of its elements.
    pub ipv6: bool,
    /// Elements, truncated to their prefix.
    pub entries: BTreeSet<IpNet>,
}

impl SetSpec {
    /// A set of prefixes of one family; others are left out. The kernel's type can't hold a prefix of length 0, which is
    /// written as its two halves.
    pub fn nets(family: Family, entries: impl IntoIterator<Item = IpNet>) -> Self {
        let ipv6 = family == Family::V6;
        let entries = entries
            .into_iter()
            .filter(|net| matches!(net, IpNet::V6(_)) == ipv6)
            .flat_map(|net| match net.prefix_len() {
                0 => net.subnets(1).map(Iterator::collect).unwrap_or_default(),
                _ => vec![net.trunc()],
            })
            .collect();
        Self { kind: SetKind::HashNet, ipv6, entries }
    }

    /// An empty set of addresses.
    pub fn no_addresses(family: Family) -> Self {
        Self { kind: SetKind::HashIp, ipv6: family == Family::V6, entries: BTreeSet::new() }
    }

    fn family(&self) -> &'static str {
        if self.ipv6 { "inet6" } else { "inet" }
    }

    fn create(&self, name: &str, script: &mut String) {
        // Writing to a String can't fail.
        let _ = writeln!(
            script,
            "create {name} {} family {} hashsize 1024 maxelem {MAX_ELEMENTS}",
            self.kind.as_str(),
            self.family()
        );
        for entry in &self.entries {
            let _ = writeln!(script, "add {name} {}", element(entry));
        }
    }
}

/// An element as the tool prints it: no length on a single address.
fn element(net: &IpNet) -> String {
    if net.prefix_len() == net.max_prefix_len() { net.addr().to_string() } else { net.to_string() }
}

/// A set of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedSet {
    /// Type, as printed.
    pub kind: String,
    /// `inet` or `inet6`.
    pub family: String,
    /// Limit of elements.
    pub max_elements: Option<u32>,
    /// Elements that are addresses or prefixes.
    pub entries: BTreeSet<IpNet>,
    /// Elements of any other shape: their presence alone is a difference.
    pub odd: BTreeSet<String>,
}

impl SavedSet {
    fn same_type(&self, spec: &SetSpec) -> bool {
        self.kind == spec.kind.as_str() && self.family == spec.family()
    }

    fn same_settings(&self) -> bool {
        self.max_elements == Some(MAX_ELEMENTS) && self.odd.is_empty()
    }

    fn equals(&self, spec: &SetSpec) -> bool {
        self.same_settings() && self.entries == spec.entries
    }
}

/// The host's sets: ours with content, everybody else's by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedSets {
    /// Sets whose name starts as ours do.
    pub ours: BTreeMap<String, SavedSet>,
    /// Names of all others.
    pub others: BTreeSet<String>,
}

impl SavedSets {
    /// For the metrics.
    pub fn count(&self) {
        super::counts::read(self);
    }
}

/// Whether a name is one of ours, a temporary one included: `ovn40…`, `ovn60…`, `ovn4t…`, `ovn6t…`.
pub(super) fn is_ours(name: &str) -> bool {
    ["ovn40", "ovn60"].iter().any(|prefix| name.starts_with(prefix)) || is_temporary(name)
}

fn is_temporary(name: &str) -> bool {
    ["ovn4t", "ovn6t"].iter().any(|prefix| name.starts_with(prefix))
}

/// The name under which a set is filled before it takes the place of the old one.
fn temporary(name: &str) -> String {
    match (name.get(..4), name.get(5..)) {
        (Some(family), Some(id)) => format!("{family}t{id}"),
        _ => format!("{name}-t"),
    }
}

/// Reads the output of `ipset save`. Lines it does not know say nothing about our sets and are skipped.
pub fn parse_save(text: &str) -> SavedSets {
    let mut sets = SavedSets::default();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        match (words.next(), words.next(), words.next()) {
            (Some("create"), Some(name), Some(kind)) if is_ours(name) => {
                let options: Vec<&str> = words.collect();
                let option = |key: &str| {
                    let at = options.iter().position(|word| *word == key)?;
                    options.get(at + 1).copied()
                };
                let set = sets.ours.entry(name.to_owned()).or_default();
                kind.clone_into(&mut set.kind);
                option("family").unwrap_or_default().clone_into(&mut set.family);
                set.max_elements = option("maxelem").and_then(|number| number.parse().ok());
            }
            (Some("create"), Some(name), _) => {
                sets.others.insert(name.to_owned());
            }
            (Some("add"), Some(name), Some(entry)) if is_ours(name) => {
                let set = sets.ours.entry(name.to_owned()).or_default();
                let parsed = entry
                    .parse::<IpNet>()
                    .ok()
                    .or_else(|| Some(IpNet::from(entry.parse::<std::net::IpAddr>().ok()?)));
                match parsed {
                    // Anything after the element (nomatch, timeout …) makes it another element.
                    Some(net) if words.next().is_none() => {
                        set.entries.insert(net);
                    }
                    _ => {
                        set.odd.insert(entry.to_owned());
                    }
                }
            }
            _ => {}
        }
    }
    sets
}

/// What changes in one set, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetChange {
    /// Name of the set.
    pub set: String,
    /// It does not exist yet.
    pub created: bool,
    /// Elements that come.
    pub added: BTreeSet<IpNet>,
    /// Elements that go.
    pub removed: BTreeSet<IpNet>,
}

/// A set of our name but another type, which no swap can replace while a rule uses it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error(
    "ipset {set} has type {found}, not {wanted}; remedy: remove the rules that use it, then `ipset destroy {set}`"
)]
pub struct SetConflict {
    /// Name of the set.
    pub set: String,
    /// Its type and family.
    pub found: String,
    /// Ours.
    pub wanted: String,
}

/// Scripts for `ipset restore` and what they mean.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetPlan {
    /// To run before the rules are changed: sets that rules are going to use.
    pub before: String,
    /// To run after it: sets that no rule uses any more.
    pub after: String,
    /// The content, set by set.
    pub changes: Vec<SetChange>,
    /// Sets that go.
    pub destroyed: Vec<String>,
    /// Sets that can't be made right.
    pub conflicts: Vec<SetConflict>,
}

impl SetPlan {
    /// Whether nothing is to be done (conflicts are not something to do).
    pub fn is_empty(&self) -> bool {
        self.before.is_empty() && self.after.is_empty()
    }
}

/// Plans the way from the host's sets to the wanted ones. A set of ours that is not wanted goes only if `retire` says
/// so: the sets of features that we don't have are kept.
pub fn plan_sets(
    wanted: &BTreeMap<String, SetSpec>,
    saved: &SavedSets,
    retire: impl Fn(&str) -> bool,
) -> SetPlan {
    let mut plan = SetPlan::default();
    for (name, spec) in wanted {
        match saved.ours.get(name) {
            None => {
                spec.create(name, &mut plan.before);
                plan.changes.push(SetChange {
                    set: name.clone(),
                    created: true,
                    added: spec.entries.clone(),
                    removed: BTreeSet::new(),
                });
            }
            Some(set) if !set.same_type(spec) => plan.conflicts.push(SetConflict {
                set: name.clone(),
                found: format!("{} {}", set.kind, set.family),
                wanted: format!("{} {}", spec.kind.as_str(), spec.family()),
            }),
            Some(set) if set.equals(spec) => {}
            Some(set) => {
                let added: BTreeSet<IpNet> = spec.entries.difference(&set.entries).copied().collect();
                let removed: BTreeSet<IpNet> = set.entries.difference(&spec.entries).copied().collect();
                if set.same_settings() && added.len() + removed.len() <= FEW.max(spec.entries.len() / 4) {
                    for entry in &added {
                        let _ = writeln!(plan.before, "add {name} {}", element(entry));
                    }
                    for entry in &removed {
                        let _ = writeln!(plan.before, "del {name} {}", element(entry));
                    }
                } else {
                    let spare = temporary(name);
                    if saved.ours.contains_key(&spare) {
                        let _ = writeln!(plan.before, "destroy {spare}");
                    }
                    spec.create(&spare, &mut plan.before);
                    let _ = writeln!(plan.before, "swap {spare} {name}\ndestroy {spare}");
                }
                plan.changes.push(SetChange { set: name.clone(), created: false, added, removed });
            }
        }
    }
    for name in saved.ours.keys().filter(|name| !wanted.contains_key(*name)) {
        // A temporary set is what a crash left, unless it was just used (then it is gone already).
        let used = plan.before.contains(&format!("destroy {name}\n"));
        if !used && (is_temporary(name) || retire(name)) {
            let _ = writeln!(plan.after, "destroy {name}");
            plan.destroyed.push(name.clone());
        }
    }
    plan
}

#[cfg(test)]
#[path = "ipset_tests.rs"]
mod tests;
