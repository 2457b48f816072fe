//! Everything that exists, to be compared before and after: rows of all
//! databases, links, namespaces, sets and rules of every node, IP objects and
//! the counts of subnets.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use lab::api;
use lab::progress::{Look, wait_for};
use serde_json::Value;

use crate::cluster::{Cluster, Database, PATIENCE};

/// A snapshot: what, by where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inventory(BTreeMap<String, BTreeSet<String>>);

impl Inventory {
    /// Takes one.
    pub fn take(cluster: &Cluster) -> Result<Self> {
        let mut all = BTreeMap::new();
        add_database(&mut all, "NB", &cluster.northbound()?);
        add_database(&mut all, "SB", &cluster.southbound()?);
        for node in cluster.nodes()? {
            let on = |what: &str| format!("{} {what}", node.name);
            add_database(&mut all, &on("OVS"), &cluster.open_vswitch(&node)?);
            let mut lines = |what: &str, script: &str| -> Result<()> {
                let text = cluster.sh(&node, script)?;
                all.insert(on(what), text.lines().map(str::to_owned).collect());
                Ok(())
            };
            // Link numbers and peers' numbers differ from boot to boot.
            lines("links", "ip -o link | sed -E 's/^[0-9]+: ([^:@]+).*/\\1/'")?;
            lines("routes", "ip route; ip -6 route | sed 's/ expires.*//'")?;
            lines("namespaces", NAMESPACES)?;
            lines("sets", "ipset save | grep ovn || true")?;
            // kube-proxy's own rules follow Services and their endpoints, and are none of ours, whatever their name.
            let rules = "(iptables-save; ip6tables-save) | grep -E 'OVN|ovn' | grep -v KUBE- || true";
            lines("rules", rules)?;
        }
        let ips = api::list(&cluster.lab, "/apis/kubeovn.io/v1/ips")?;
        all.insert(
            "IP objects".into(),
            ips.iter().map(|ip| api::text(ip, "/metadata/name").to_owned()).collect(),
        );
        let subnets = api::list(&cluster.lab, "/apis/kubeovn.io/v1/subnets")?;
        let counts = subnets.iter().map(|subnet| {
            let status = &subnet["status"];
            // The ranges of free addresses rotate, the numbers may not change.
            let numbers: Vec<&Value> = ["v4availableIPs", "v4usingIPs", "v6availableIPs", "v6usingIPs"]
                .iter()
                .map(|key| &status[key])
                .collect();
            format!("{} {numbers:?}", api::text(subnet, "/metadata/name"))
        });
        all.insert("subnet counts".into(), counts.collect());
        Ok(Self(all))
    }

    /// What is in one of two snapshots only, a line each.
    pub fn differences(&self, after: &Self) -> Vec<String> {
        let mut differences = Vec::new();
        let places: BTreeSet<&String> = self.0.keys().chain(after.0.keys()).collect();
        let none = BTreeSet::new();
        for place in places {
            let (old, new) = (self.0.get(place).unwrap_or(&none), after.0.get(place).unwrap_or(&none));
            differences.extend(old.difference(new).map(|line| format!("{place}: lost {line}")));
            differences.extend(new.difference(old).map(|line| format!("{place}: leaked {line}")));
        }
        differences
    }

    /// Waits until everything is as in this snapshot again.
    pub fn wait_restored(&self, cluster: &Cluster) -> Result<()> {
        wait_for("everything to be as before", PATIENCE, || {
            let differences = self.differences(&Self::take(cluster)?);
            Ok(if differences.is_empty() { Look::Ready(()) } else { Look::NotYet(differences.join("\n")) })
        })
    }
}

/// Network namespaces that have a link beside `lo`, which is what a network can
/// leak. A container runtime that is killed at the wrong instant leaves a plain
/// file or an empty namespace of its own behind; that is nobody else's to remove.
const NAMESPACES: &str = r#"
for namespace in $(awk '$3 == "nsfs" {print $2}' /proc/mounts); do
  nsenter --net="$namespace" ip -o link | grep -qv ': lo:' && echo "$namespace"
done || true
"#;

/// Rows by the text that identifies them; rows of a table without a name by
/// their whole content.
fn add_database(all: &mut BTreeMap<String, BTreeSet<String>>, place: &str, database: &Database<'_>) {
    for table in database.replica.tables() {
        let rows = table.rows().map(|row| {
            let named = ["name", "logical_port"].iter().find_map(|column| row.str(column));
            named.map_or_else(|| content(row), str::to_owned)
        });
        all.insert(format!("{place} {}", table.name()), rows.collect());
    }
}

/// Columns of a row that say what it is, without those that count or time.
fn content(row: &ovsdb::Row) -> String {
    let telling = ["ip_prefix", "nexthop", "priority", "match", "action", "type", "external_ids"];
    let columns = row.columns().filter(|(name, _)| telling.contains(&&***name));
    columns.map(|(name, value)| format!("{name}={value:?} ")).collect()
}
