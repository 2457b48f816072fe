//! Policy routes of a VPC's spec (contract §1.4, §4.3): one row per entry, with all
//! its next hops.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crds::{PolicyRoute, VpcSpec};
use ovsdb::Value;

use super::super::rows;
use crate::facts::{Facts, RowKey, Table};

/// States the policies; says which entries are wrong.
pub(super) fn rows(router: &str, spec: &VpcSpec, facts: &mut Facts) -> Vec<String> {
    let mut problems = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, entry) in spec.policy_routes.iter().enumerate() {
        let place = format!("policyRoutes[{index}] (priority {}, match {:?})", entry.priority, entry.r#match);
        match check(entry) {
            Err(problem) => problems.push(format!("{place}: {problem}")),
            Ok(_) if !seen.insert((entry.priority, entry.r#match.trim())) => {
                problems
                    .push(format!("{place}: an entry before it has the same priority and match; remove one"));
            }
            Ok(nexthops) => policy(router, entry, &nexthops, facts),
        }
    }
    problems
}

fn policy(router: &str, entry: &PolicyRoute, nexthops: &[IpAddr], facts: &mut Facts) {
    let matching = entry.r#match.trim();
    let priority = i64::from(entry.priority);
    let key = rows::policy_key(router, priority, matching);
    rows::child(Table::Policy, &key, RowKey::new(Table::LogicalRouter, router), "policies")
        .whole("priority", Value::integer(priority))
        .whole("match", Value::string(matching))
        .whole("action", Value::string(&*entry.action))
        .whole("nexthops", Value::strings(nexthops.iter().map(ToString::to_string)))
        .ids(&[])
        .add(facts);
}

/// The next hops of an entry, or what is wrong with it.
fn check(entry: &PolicyRoute) -> Result<Vec<IpAddr>, String> {
    if !(0..=32767).contains(&entry.priority) {
        return Err("priority must be between 0 and 32767".to_owned());
    }
    rows::check_match(&entry.r#match)?;
    match &*entry.action {
        "allow" | "drop" => return Ok(Vec::new()),
        "reroute" => {}
        other => return Err(format!("action {other:?} is unknown; write allow, drop or reroute")),
    }
    let parts = entry.next_hop_ip.split(',').map(str::trim).filter(|part| !part.is_empty());
    let mut nexthops = BTreeSet::new();
    for part in parts {
        let ip = part.parse::<IpAddr>().map_err(|_| format!("nextHopIP {part:?} is no address"))?;
        nexthops.insert(ip);
    }
    if nexthops.is_empty() {
        return Err("action reroute needs a nextHopIP".to_owned());
    }
    let v4 = nexthops.iter().filter(|ip| ip.is_ipv4()).count();
    if v4 != 0 && v4 != nexthops.len() {
        return Err("next hops of both families; write an entry for each".to_owned());
    }
    Ok(nexthops.into_iter().collect())
}
