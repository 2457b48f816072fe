//! The wanted state of a host as one value, and what a host lacks of it. Both can be shown (`explain`).

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::inputs::Inputs;
use super::policy::{self, Policies, PolicyRoute, PolicyRule};
use super::routes::{self, HostRoute, RouteChanges};
use super::{rules, sets};
use crate::firewall::{
    Family, Learned, Saved, SavedSets, SetPlan, SetSpec, Table, TableChange, WantedTable, diff, plan_sets,
};
use crate::netlink::{Route, Rule};

/// Wanted tables of one family.
pub type FamilyRules = BTreeMap<Table, WantedTable>;

/// Everything wanted of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostState {
    /// ipsets by name.
    pub sets: BTreeMap<String, SetSpec>,
    /// Rules of IPv4, `None` if the cluster has none.
    pub ipv4: Option<FamilyRules>,
    /// Rules of IPv6.
    pub ipv6: Option<FamilyRules>,
    /// Routes over `ovn0`.
    pub routes: Vec<HostRoute>,
    /// Index of `ovn0`, once it is up.
    pub link: Option<u32>,
    /// Rules and tables of subnets with an external egress gateway.
    pub policies: Policies,
}

impl HostState {
    /// The state that follows from the inputs. Pure.
    pub fn wanted(inputs: &Inputs) -> Self {
        Self {
            sets: sets::wanted(inputs),
            ipv4: inputs.ipv4.then(|| rules::wanted(inputs, Family::V4)),
            ipv6: inputs.ipv6.then(|| rules::wanted(inputs, Family::V6)),
            routes: routes::wanted(inputs),
            link: inputs.join.as_ref().map(|join| join.link),
            policies: policy::wanted(inputs),
        }
    }

    /// The same without sets and rules: routes alone.
    pub(super) fn without_firewall(self) -> Self {
        Self { sets: BTreeMap::new(), ipv4: None, ipv6: None, ..self }
    }

    pub(super) fn rules(&self, family: Family) -> Option<&FamilyRules> {
        match family {
            Family::V4 => self.ipv4.as_ref(),
            Family::V6 => self.ipv6.as_ref(),
        }
    }

    /// What the host lacks, given what was read from it. Pure.
    pub fn changes(&self, host: &Observed, learned: &BTreeMap<Family, Learned>) -> HostChanges {
        let nothing_learned = Learned::default();
        let table_changes = |family: Family| match (self.rules(family), host.rules.get(&family)) {
            (Some(wanted), Some(saved)) => {
                diff(wanted, saved, learned.get(&family).unwrap_or(&nothing_learned))
            }
            _ => Vec::new(),
        };
        let routes = match self.link {
            Some(link) => routes::diff(&self.routes, link, &host.routes),
            None => RouteChanges::default(),
        };
        let policies = policy::diff(&self.policies, &host.policy_rules, &host.routes, &host.known_tables);
        let shown = |rule: &Rule| {
            Some(PolicyRule { priority: rule.priority, source: rule.source?, table: rule.table })
        };
        HostChanges {
            policy_rules_deleted: policies.delete_rules.iter().filter_map(shown).collect(),
            policy_routes_deleted: policies
                .delete_routes
                .iter()
                .filter_map(|route| Some(PolicyRoute { table: route.table, gateway: route.gateway? }))
                .collect(),
            policy_rules: policies.add_rules,
            policy_routes: policies.add_routes,
            delete_rules: policies.delete_rules,
            delete_policy_routes: policies.delete_routes,
            sets: plan_sets(&self.sets, &host.sets, sets::is_retired),
            ipv4: table_changes(Family::V4),
            ipv6: table_changes(Family::V6),
            routes_set: routes.set,
            routes_deleted: routes.delete.iter().map(|route| route.destination).collect(),
            route_conflicts: routes.conflicts,
            delete: routes.delete,
        }
    }
}

/// What was read from a host.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// ipsets.
    pub sets: SavedSets,
    /// Rules of the families in use that could be read.
    pub rules: BTreeMap<Family, Saved>,
    /// What could not be read; what belongs to it is left as it is.
    pub unread: Vec<crate::firewall::Error>,
    /// The sets are among that.
    pub sets_unread: bool,
    /// Routes of all tables.
    pub routes: Vec<Route>,
    /// Policy routing rules.
    pub policy_rules: Vec<Rule>,
    /// Tables of external egress gateways that earlier passes filled.
    pub known_tables: BTreeSet<u32>,
}

/// The difference between a host and its wanted state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HostChanges {
    /// ipsets.
    pub sets: SetPlan,
    /// Batches of IPv4.
    pub ipv4: Vec<TableChange>,
    /// Batches of IPv6.
    pub ipv6: Vec<TableChange>,
    /// Routes to add or replace.
    pub routes_set: Vec<HostRoute>,
    /// Destinations of routes to delete.
    pub routes_deleted: Vec<IpNet>,
    /// Wanted destinations that another link has.
    pub route_conflicts: Vec<IpNet>,
    /// Rules of external egress gateways to add.
    pub policy_rules: Vec<PolicyRule>,
    /// Those that go.
    pub policy_rules_deleted: Vec<PolicyRule>,
    /// Default routes of their tables to set.
    pub policy_routes: Vec<PolicyRoute>,
    /// Those that go.
    pub policy_routes_deleted: Vec<PolicyRoute>,
    #[serde(skip)]
    pub(super) delete: Vec<Route>,
    #[serde(skip)]
    pub(super) delete_rules: Vec<Rule>,
    #[serde(skip)]
    pub(super) delete_policy_routes: Vec<Route>,
}

impl HostChanges {
    /// Whether nothing is to be written.
    pub fn is_empty(&self) -> bool {
        self.sets.is_empty()
            && self.ipv4.is_empty()
            && self.ipv6.is_empty()
            && self.routes_set.is_empty()
            && self.routes_deleted.is_empty()
            && self.policy_rules.is_empty()
            && self.delete_rules.is_empty()
            && self.policy_routes.is_empty()
            && self.delete_policy_routes.is_empty()
    }

    /// Number of single things to write: elements, lines, routes, rules.
    pub fn size(&self) -> usize {
        let sets: usize = self
            .sets
            .changes
            .iter()
            .map(|set| set.added.len() + set.removed.len() + usize::from(set.created))
            .sum();
        let lines: usize = self.ipv4.iter().chain(&self.ipv6).map(|table| table.lines.len()).sum();
        sets + self.sets.destroyed.len()
            + lines
            + self.routes_set.len()
            + self.routes_deleted.len()
            + self.policy_rules.len()
            + self.delete_rules.len()
            + self.policy_routes.len()
            + self.delete_policy_routes.len()
    }

    pub(super) fn rules(&self, family: Family) -> &[TableChange] {
        match family {
            Family::V4 => &self.ipv4,
            Family::V6 => &self.ipv6,
        }
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
