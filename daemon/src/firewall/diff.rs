//! The batch for `iptables-restore --noflush` between a saved table and a wanted one.
//!
//! Our chains are changed only if their rules differ: a few rules in place, which keeps the counters of all others, or the
//! whole chain; either is an atomic step, in which no packet sees a half. In
//! built-in chains only our own jumps are touched, by their text, never by an index found earlier; the one index used
//! is where a jump is inserted. The rest of the table is not even named.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::ruleset::{Jump, Rule, Saved, SavedTable, Table, WantedTable};

/// What a table needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableChange {
    /// The table.
    pub table: Table,
    /// Lines of the batch between `*table` and `COMMIT`.
    pub lines: Vec<String>,
    /// Our chains that are written.
    pub chains: Vec<String>,
}

/// How this host's tools print chains that we wrote: some versions use another notation than ours. A chain is right if
/// it is as wanted, or as it was printed just after we had written exactly that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Learned {
    printed: BTreeMap<(Table, String), (Vec<Rule>, Vec<Rule>)>,
}

impl Learned {
    /// Compares what was wanted with what is printed now, right after `changes` were written. Returns the chains whose
    /// notation differs.
    pub fn learn(
        &mut self,
        wanted: &BTreeMap<Table, WantedTable>,
        now: &Saved,
        changes: &[TableChange],
    ) -> Vec<String> {
        let mut different = Vec::new();
        for change in changes {
            for chain in &change.chains {
                let rules = wanted.get(&change.table).and_then(|table| table.chains.get(chain));
                let printed =
                    now.tables.get(&change.table).map(|table| table.rules(chain)).unwrap_or_default();
                if let Some(rules) = rules
                    && rules != printed
                    && rules.len() == printed.len()
                {
                    let key = (change.table, chain.clone());
                    self.printed.insert(key, (rules.clone(), printed.to_vec()));
                    different.push(format!("{} {chain}", change.table.as_str()));
                }
            }
        }
        different
    }

    fn is_right(&self, table: Table, chain: &str, wanted: &[Rule], printed: &[Rule]) -> bool {
        wanted == printed
            || self
                .printed
                .get(&(table, chain.to_owned()))
                .is_some_and(|(rules, as_printed)| rules == wanted && as_printed == printed)
    }
}

/// Plans the way from the host's tables to the wanted ones. Tables that are right don't appear.
pub fn diff(wanted: &BTreeMap<Table, WantedTable>, saved: &Saved, learned: &Learned) -> Vec<TableChange> {
    let nothing = SavedTable::default();
    wanted
        .iter()
        .filter_map(|(name, table)| {
            let change = table_change(*name, table, saved.tables.get(name).unwrap_or(&nothing), learned);
            (!change.lines.is_empty()).then_some(change)
        })
        .collect()
}

fn table_change(name: Table, wanted: &WantedTable, saved: &SavedTable, learned: &Learned) -> TableChange {
    let retired: Vec<&String> = saved.chains.keys().filter(|chain| wanted.is_retired(chain)).collect();
    let (mut declared, mut filled, mut edited) = (Vec::new(), Vec::new(), Vec::new());
    let mut chains = Vec::new();
    for (chain, rules) in &wanted.chains {
        let right =
            saved.chains.get(chain).is_some_and(|printed| learned.is_right(name, chain, rules, printed));
        if right {
            continue;
        }
        if let Some(edits) = saved.chains.get(chain).and_then(|printed| in_place(chain, rules, printed)) {
            edited.extend(edits);
            chains.push(chain.clone());
        } else {
            // Declaring a chain creates or empties it.
            declared.push(format!(":{chain} - [0:0]"));
            filled.extend(rules.iter().map(|rule| format!("-A {chain} {rule}")));
            chains.push(chain.clone());
        }
    }
    declared.extend(retired.iter().map(|chain| format!(":{chain} - [0:0]")));

    let mut lines = declared;
    lines.extend(filled);
    lines.extend(edited);
    for jump in &wanted.jumps {
        place(jump, saved.rules(&jump.from), &mut lines);
    }
    for (chain, rules) in &saved.chains {
        let obsolete = wanted.obsolete.get(chain);
        for rule in rules {
            let leads_nowhere = retired.iter().any(|chain| rule.is_plain_jump_to(chain));
            // Rules inside our own chains went with the chain.
            let in_built_in = !chain.starts_with("OVN-");
            let is_obsolete = obsolete.is_some_and(|obsolete| obsolete.contains(rule))
                || wanted.obsolete_counter.as_deref().is_some_and(|comment| rule.only_counts(comment));
            if in_built_in && (leads_nowhere || is_obsolete) {
                lines.push(format!("-D {chain} {rule}"));
            }
        }
    }
    lines.extend(retired.iter().map(|chain| format!("-X {chain}")));
    TableChange { table: name, lines, chains }
}

/// The lines that turn a chain into the wanted one rule by rule; `None` if rewriting it is simpler: nothing much is kept,
/// the order of what is kept differs, or equal rules make "which one" a question.
fn in_place(chain: &str, wanted: &[Rule], printed: &[Rule]) -> Option<Vec<String>> {
    let (old, new): (BTreeSet<&Rule>, BTreeSet<&Rule>) = (printed.iter().collect(), wanted.iter().collect());
    if old.len() != printed.len() || new.len() != wanted.len() {
        return None;
    }
    let kept = printed.iter().filter(|rule| new.contains(rule));
    if !kept.clone().eq(wanted.iter().filter(|rule| old.contains(rule))) || kept.count() * 2 < wanted.len() {
        return None;
    }
    let mut lines: Vec<String> =
        printed.iter().filter(|rule| !new.contains(rule)).map(|rule| format!("-D {chain} {rule}")).collect();
    // In order: each one's predecessors are in place when it comes.
    lines.extend(
        wanted
            .iter()
            .enumerate()
            .filter(|(_, rule)| !old.contains(rule))
            .map(|(at, rule)| format!("-I {chain} {} {rule}", at + 1)),
    );
    Some(lines)
}

/// Makes sure that there is exactly one jump, early enough.
fn place(jump: &Jump, rules: &[Rule], lines: &mut Vec<String>) {
    let ours: Vec<usize> = rules
        .iter()
        .enumerate()
        .filter(|(_, rule)| rule.is_plain_jump_to(&jump.to))
        .map(|(at, _)| at)
        .collect();
    let anchor =
        jump.before.as_deref().and_then(|target| rules.iter().position(|rule| rule.target() == Some(target)));
    let position = match (ours.as_slice(), anchor) {
        ([only], None) if rules.get(*only).is_some() => return,
        ([only], Some(anchor)) if *only < anchor => return,
        ([], _) => 0,
        // Duplicates: the first one's place is kept. All of ours before it: none, so the index holds after deletion.
        ([first, ..], Some(anchor)) => (*first).min(anchor),
        ([first, ..], None) => *first,
    };
    for at in &ours {
        if let Some(rule) = rules.get(*at) {
            lines.push(format!("-D {} {rule}", jump.from));
        }
    }
    lines.push(format!("-I {} {} {}", jump.from, position + 1, jump.rule()));
}

/// The batch as `iptables-restore` reads it.
pub fn render(changes: &[TableChange]) -> String {
    let mut batch = String::new();
    for change in changes {
        batch.push('*');
        batch.push_str(change.table.as_str());
        batch.push('\n');
        for line in &change.lines {
            batch.push_str(line);
            batch.push('\n');
        }
        batch.push_str("COMMIT\n");
    }
    batch
}

#[cfg(test)]
#[path = "diff_tests.rs"]
mod tests;
