//! A host made of text, for tests: what the tools print, and what they do with our batches. It refuses what they would.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests fail by panicking

use std::collections::BTreeMap;

use super::diff::TableChange;
use super::ipset::{SavedSets, parse_save};
use super::ruleset::{Saved, Table, parse_rules};

/// The tables of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tables(BTreeMap<Table, BTreeMap<String, Vec<String>>>);

impl Tables {
    /// With these rules in the nat table.
    pub(crate) fn with_nat(rules: &[(&str, &str)]) -> Self {
        let mut tables = Self(BTreeMap::new());
        for table in [Table::Nat, Table::Filter, Table::Mangle] {
            for chain in ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"] {
                tables.0.entry(table).or_default().insert(chain.into(), Vec::new());
            }
        }
        for (chain, rule) in rules {
            tables.nat_mut().entry((*chain).into()).or_default().push((*rule).into());
        }
        tables
    }

    pub(crate) fn nat(&self) -> &BTreeMap<String, Vec<String>> {
        &self.0[&Table::Nat]
    }

    pub(crate) fn nat_mut(&mut self) -> &mut BTreeMap<String, Vec<String>> {
        self.0.get_mut(&Table::Nat).unwrap()
    }

    /// As `iptables-save` prints them, read back.
    pub(crate) fn saved(&self) -> Saved {
        let mut text = String::new();
        for (table, chains) in &self.0 {
            text.push_str(&format!("*{}\n", table.as_str()));
            for chain in chains.keys() {
                text.push_str(&format!(":{chain} - [0:0]\n"));
            }
            for (chain, rules) in chains {
                for rule in rules {
                    text.push_str(&format!("-A {chain} {rule}\n"));
                }
            }
            text.push_str("COMMIT\n");
        }
        parse_rules(&text)
    }

    /// Carries out a batch.
    pub(crate) fn restore(&mut self, changes: &[TableChange]) {
        for change in changes {
            let chains = self.0.get_mut(&change.table).unwrap();
            for line in &change.lines {
                one_line(chains, line);
            }
        }
    }

    /// Rules that are not ours, by their text.
    pub(crate) fn foreign(&self) -> Vec<(String, String)> {
        let ours = |rule: &String| rule.contains("-j OVN-") || rule.contains("obsolete");
        self.0
            .values()
            .flatten()
            .filter(|(chain, _)| !chain.starts_with("OVN-"))
            .flat_map(|(chain, rules)| rules.iter().filter(|r| !ours(r)).map(|r| (chain.clone(), r.clone())))
            .collect()
    }
}

fn one_line(chains: &mut BTreeMap<String, Vec<String>>, line: &str) {
    if let Some(chain) = line.strip_prefix(':') {
        chains.insert(chain.split(' ').next().unwrap().to_owned(), Vec::new());
        return;
    }
    let (verb, rest) = line.split_once(' ').unwrap();
    let (chain, rule) = rest.split_once(' ').unwrap_or((rest, ""));
    if verb == "-X" {
        assert!(chains[chain].is_empty());
        assert!(
            !chains.values().flatten().any(|rule| rule.ends_with(&format!("-j {chain}"))),
            "{chain} is in use"
        );
        chains.remove(chain);
        return;
    }
    if verb != "-D"
        && let Some((_, target)) = rule.rsplit_once("-j ")
    {
        assert!(!target.starts_with("OVN-") || chains.contains_key(target), "{line} leads nowhere");
    }
    let rules = chains.get_mut(chain).expect("the chain exists");
    match verb {
        "-A" => rules.push(rule.into()),
        "-D" => {
            let at = rules.iter().position(|present| present == rule).expect("the rule exists");
            rules.remove(at);
        }
        "-I" => {
            let (index, rule) = rule.split_once(' ').unwrap();
            rules.insert(index.parse::<usize>().unwrap() - 1, rule.into());
        }
        other => panic!("{other}"),
    }
}

/// What the tool does with a script, as far as ours use it.
pub(crate) fn restore_sets(sets: &mut SavedSets, script: &str) {
    for line in script.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words.as_slice() {
            ["create", name, ..] => {
                assert!(!sets.ours.contains_key(*name), "{name} exists");
                assert!(name.len() <= 31, "{name} is too long");
                sets.ours.extend(parse_save(line).ours);
            }
            ["add", name, entry] => {
                let set = sets.ours.get_mut(*name).expect("the set exists");
                assert!(
                    parse_save(line).ours[*name].entries.iter().all(|net| set.entries.insert(*net)),
                    "{entry}"
                );
            }
            ["del", name, entry] => {
                let set = sets.ours.get_mut(*name).expect("the set exists");
                let gone = parse_save(&format!("add {name} {entry}")).ours[*name].entries.clone();
                assert!(gone.iter().all(|net| set.entries.remove(net)), "{entry} is not there");
            }
            ["swap", a, b] => {
                let (old, new) = (sets.ours[*b].clone(), sets.ours[*a].clone());
                assert_eq!((&old.kind, &old.family), (&new.kind, &new.family));
                sets.ours.insert((*a).to_owned(), old);
                sets.ours.insert((*b).to_owned(), new);
            }
            ["destroy", name] => assert!(sets.ours.remove(*name).is_some(), "{name} is missing"),
            other => panic!("{other:?}"),
        }
    }
}
