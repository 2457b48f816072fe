//! Rules as text, in the exact form in which `iptables-save` prints them; wanted tables and saved ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

/// A table of the packet filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Table {
    /// Accept, refuse.
    Filter,
    /// Header changes.
    Mangle,
    /// Address translation.
    Nat,
}

impl Table {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Mangle => "mangle",
            Self::Nat => "nat",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::Filter, Self::Mangle, Self::Nat].into_iter().find(|table| table.as_str() == text)
    }
}

/// A rule without its `-A CHAIN`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rule(String);

impl Rule {
    /// A rule in the form of `iptables-save`.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// A bare jump with a comment.
    pub fn jump(comment: &str, chain: &str) -> Self {
        Self(format!("-m comment --comment {} -j {chain}", quoted(comment)))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The target, if the rule ends in one without options.
    pub fn target(&self) -> Option<&str> {
        self.0.rsplit_once("-j ").map(|(_, target)| target).filter(|target| !target.contains(' '))
    }

    /// Whether it does nothing but count what comes from or goes to a prefix: no target, and a comment that begins so.
    pub(super) fn only_counts(&self, comment: &str) -> bool {
        let side = self.0.strip_prefix("-s ").or_else(|| self.0.strip_prefix("-d "));
        let Some((_, rest)) = side.and_then(|side| side.split_once(' ')) else { return false };
        rest.strip_prefix("-m comment --comment ")
            .is_some_and(|text| text.trim_start_matches('"').starts_with(comment))
            && after_comment(rest).trim().is_empty()
    }

    /// Whether it is nothing but a jump to `chain`: no matches apart from a comment.
    pub(super) fn is_plain_jump_to(&self, chain: &str) -> bool {
        if self.target() != Some(chain) {
            return false;
        }
        let matches = self.0.rsplit_once("-j ").map(|(matches, _)| matches.trim()).unwrap_or_default();
        matches.is_empty()
            || (matches.starts_with("-m comment --comment ") && !after_comment(matches).contains('-'))
    }
}

/// What stands behind the comment of `-m comment --comment …`.
fn after_comment(matches: &str) -> &str {
    let comment = matches.strip_prefix("-m comment --comment ").unwrap_or_default();
    let end = match comment.strip_prefix('"') {
        Some(inside) => {
            let mut escaped = false;
            inside
                .find(|c| {
                    let end = c == '"' && !escaped;
                    escaped = c == '\\' && !escaped;
                    end
                })
                .map_or(comment.len(), |at| at + 2)
        }
        None => comment.find(' ').unwrap_or(comment.len()),
    };
    comment.get(end..).unwrap_or_default()
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A word as `iptables-save` prints it: in quotes unless it is made of letters, digits, `_` and `-`.
pub(crate) fn quoted(text: &str) -> String {
    if !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-')) {
        return text.to_owned();
    }
    let mut quoted = String::from('"');
    for c in text.chars() {
        if matches!(c, '"' | '\\' | '\'') {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    quoted.push('"');
    quoted
}

/// A jump from a built-in chain into one of ours: exactly one, put first when it is missing, never moved without need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Jump {
    /// The built-in chain.
    pub from: String,
    /// Ours.
    pub to: String,
    /// Its comment.
    pub comment: String,
    /// If the built-in chain jumps to this one, ours has to stand before it.
    pub before: Option<String>,
}

impl Jump {
    pub(super) fn rule(&self) -> Rule {
        Rule::jump(&self.comment, &self.to)
    }
}

/// What we want in one table of one family.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedTable {
    /// Our chains with all their rules.
    pub chains: BTreeMap<String, Vec<Rule>>,
    /// How packets get there.
    pub jumps: Vec<Jump>,
    /// Rules in built-in chains that an older agent put there and our chains replace.
    pub obsolete: BTreeMap<String, BTreeSet<Rule>>,
    /// The same of rules that only count: what their comments begin with.
    pub obsolete_counter: Option<String>,
    /// Our chains that go when they are not wanted, with the jumps to them; a `*` at the end stands for any ending.
    pub retired: BTreeSet<String>,
}

impl WantedTable {
    pub(crate) fn is_retired(&self, chain: &str) -> bool {
        !self.chains.contains_key(chain)
            && self.retired.iter().any(|pattern| match pattern.strip_suffix('*') {
                Some(prefix) => chain.starts_with(prefix),
                None => chain == pattern,
            })
    }
}

/// One table of the host: built-in chains and ours with their rules, all others by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedTable {
    /// Chains with rules.
    pub chains: BTreeMap<String, Vec<Rule>>,
    /// Names of chains that are neither built in nor ours.
    pub foreign: BTreeSet<String>,
}

impl SavedTable {
    /// The rules of a chain, none if it does not exist.
    pub fn rules(&self, chain: &str) -> &[Rule] {
        self.chains.get(chain).map(Vec::as_slice).unwrap_or_default()
    }
}

/// The tables of one family.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// Tables that exist.
    pub tables: BTreeMap<Table, SavedTable>,
}

const BUILT_IN: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];

/// Chains of this prefix are ours.
const PREFIX: &str = "OVN-";

/// Reads the output of `iptables-save`. The rules of other people's chains are not kept: there may be tens of thousands.
pub fn parse_rules(text: &str) -> Saved {
    let mut saved = Saved::default();
    let mut table: Option<&mut SavedTable> = None;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = Table::parse(name.trim()).map(|name| saved.tables.entry(name).or_default());
            continue;
        }
        let Some(table) = table.as_deref_mut() else { continue };
        if let Some(chain) = line.strip_prefix(':') {
            let name = chain.split(' ').next().unwrap_or_default().to_owned();
            if is_kept(&name) {
                table.chains.entry(name).or_default();
            } else {
                table.foreign.insert(name);
            }
        } else if let Some((chain, rule)) = line.strip_prefix("-A ").and_then(|rule| rule.split_once(' '))
            && is_kept(chain)
        {
            table.chains.entry(chain.to_owned()).or_default().push(Rule::new(rule.trim_end()));
        }
    }
    saved
}

/// Whether a chain is ours or built in: what we look at.
pub(crate) fn is_kept(chain: &str) -> bool {
    chain.starts_with(PREFIX) || BUILT_IN.contains(&chain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_save() {
        let text = "# Generated\n# Table `x' is incompatible, use 'nft' tool.\n*raw\n:OVN-X - [0:0]\nCOMMIT\n*nat\n\
            :PREROUTING ACCEPT [3:4]\n:KUBE-SVC - [0:0]\n:OVN-PREROUTING - [0:0]\n\
            -A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
            -A KUBE-SVC -j RETURN\n-A OVN-PREROUTING -i ovn0 -j RETURN\nCOMMIT\n";
        let saved = parse_rules(text);
        assert_eq!(saved.tables.len(), 1);
        let nat = &saved.tables[&Table::Nat];
        assert_eq!(nat.foreign, BTreeSet::from(["KUBE-SVC".to_owned()]));
        assert_eq!(nat.rules("OVN-PREROUTING"), [Rule::new("-i ovn0 -j RETURN")]);
        assert_eq!(nat.rules("PREROUTING")[0].target(), Some("KUBE-SERVICES"));
        assert!(nat.rules("POSTROUTING").is_empty());
    }

    #[test]
    fn only_plain_jumps_are_ours() {
        let ours = |text: &str| Rule::new(text).is_plain_jump_to("OVN-INPUT");
        assert!(ours("-j OVN-INPUT"));
        assert!(ours("-m comment --comment \"kube-ovn \\\"input\\\" rules\" -j OVN-INPUT"));
        assert!(ours("-m comment --comment word -j OVN-INPUT"));
        assert!(!ours("-i eth0 -j OVN-INPUT"));
        assert!(!ours("-m comment --comment word -i eth0 -j OVN-INPUT"));
        assert!(!ours("-j OVN-INPUT2"));
        assert!(!ours("-j REJECT --reject-with tcp-reset"));
    }

    #[test]
    fn rules_that_only_count_are_known_by_their_comments() {
        let counts = |text: &str| Rule::new(text).only_counts("ovn-subnet-gateway,");
        assert!(counts("-s 10.16.0.0/16 -m comment --comment \"ovn-subnet-gateway,ovn-default\""));
        assert!(counts("-d fd00::/112 -m comment --comment \"ovn-subnet-gateway,a.b\""));
        assert!(!counts("-s 10.16.0.0/16 -m comment --comment \"ovn-subnet-gateway,a\" -j DROP"));
        assert!(!counts("-s 10.16.0.0/16 -i eth0 -m comment --comment \"ovn-subnet-gateway,a\""));
        assert!(!counts("-s 10.16.0.0/16 -m comment --comment \"my ovn-subnet-gateway,a\""));
        assert!(!counts("-m comment --comment \"ovn-subnet-gateway,a\""));
    }

    #[test]
    fn words_are_quoted_as_the_tool_does() {
        assert_eq!(quoted("natPolicySubnet-x"), "natPolicySubnet-x");
        assert_eq!(quoted("natPolicySubnet-a.b"), "\"natPolicySubnet-a.b\"");
        assert_eq!(quoted("it's"), "\"it\\'s\"");
    }
}
