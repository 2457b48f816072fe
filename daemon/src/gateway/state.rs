//! The wanted state of a host as one value, and what a host lacks of it. Both can be shown (`explain`).

use std::collections::BTreeMap;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::inputs::Inputs;
use super::routes::{self, HostRoute, RouteChanges};
use super::{rules, sets};
use crate::firewall::{
    Family, Learned, Saved, SavedSets, SetPlan, SetSpec, Table, TableChange, WantedTable, diff, plan_sets,
};
use crate::netlink::Route;

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
        }
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
        HostChanges {
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
    /// Rules of the families in use.
    pub rules: BTreeMap<Family, Saved>,
    /// Routes of all tables.
    pub routes: Vec<Route>,
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
    #[serde(skip)]
    pub(super) delete: Vec<Route>,
}

impl HostChanges {
    /// Whether nothing is to be written.
    pub fn is_empty(&self) -> bool {
        self.sets.is_empty()
            && self.ipv4.is_empty()
            && self.ipv6.is_empty()
            && self.routes_set.is_empty()
            && self.routes_deleted.is_empty()
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
