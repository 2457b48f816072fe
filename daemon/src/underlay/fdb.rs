//! Static entries in the MAC tables of provider bridges (node contract §4.9).
//!
//! An underlay subnet that is connected with the overlay (`u2oInterconnection`) reaches it through a router port whose
//! MAC nobody ever sends from on the physical network; without an entry each packet to it would be flooded there.
//!
//! In: Subnets with their interconnection's MAC, Vlans, the bridges' patch ports as they come. Out: `fdb/add` and
//! `fdb/del` on the switch's control socket, only on a difference. Entries on other ports are others'.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use ovsdb::unixctl;

use super::mappings::{self, BRIDGES};
use super::network::is_provider_bridge;
use super::not_yet;
use super::run::Underlay;
use crate::netlink::Mac;
use crate::node::NotYet;
use crate::ovs::{BR_INT, View};

/// How long the switch may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A static entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// VLAN id.
    pub vlan: u16,
    /// Destination.
    pub mac: Mac,
    /// OpenFlow number of the port.
    pub port: i64,
}

/// The static entries of `fdb/show`.
pub fn parse(text: &str) -> BTreeSet<Entry> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (port, vlan) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            let mac = words.next()?.parse().ok()?;
            (words.next() == Some("static")).then_some(Entry { vlan, mac, port })
        })
        .collect()
}

/// What has to go and what has to come. `patches` are the numbers of OVN's patch ports: entries on others stay.
pub fn difference(
    have: &BTreeSet<Entry>,
    wanted: &BTreeSet<Entry>,
    patches: &BTreeSet<i64>,
) -> (Vec<Entry>, Vec<Entry>) {
    let gone = have.difference(wanted).filter(|entry| patches.contains(&entry.port)).cloned().collect();
    (gone, wanted.difference(have).cloned().collect())
}

impl Underlay {
    /// Entries that subnets want, by bridge. A patch port that is not there yet has its entry when it comes.
    fn wanted_entries(&self, view: &View) -> BTreeMap<String, BTreeSet<Entry>> {
        let list = view.root_external_id(BRIDGES).unwrap_or_default();
        let mut wanted: BTreeMap<String, BTreeSet<Entry>> = BTreeMap::new();
        for (_, bridge) in mappings::all(list) {
            if is_provider_bridge(view, bridge) {
                wanted.entry(bridge.to_owned()).or_default();
            }
        }
        let vlans = self.parts.cluster.vlans.get();
        for subnet in self.parts.cluster.subnets.get().objects.values() {
            let Some(vlan) = vlans.objects.get(subnet.vlan.as_str()) else { continue };
            let bridge = mappings::get(list, &vlan.provider).and_then(|bridge| wanted.get_mut(bridge));
            let patch = format!("patch-{}-to-{BR_INT}", crds::names::localnet_port(&subnet.name));
            let port = view.interface(&patch).and_then(|port| port.ofport()).filter(|number| *number > 0);
            if let (true, Ok(mac), Some(port), Some(entries)) = (
                subnet.is_underlay() && subnet.u2o_interconnection && !subnet.deleting,
                subnet.u2o_interconnection_mac.parse(),
                port,
                bridge,
            ) {
                entries.insert(Entry { vlan: vlan.id, mac, port });
            }
        }
        wanted
    }

    /// Makes the bridges' static entries what subnets want.
    ///
    /// # Errors
    /// When the switch does not answer.
    pub async fn entries(&self) -> Result<(), NotYet> {
        let view = self.parts.ovs.view();
        let wanted = self.wanted_entries(&view);
        for (bridge, wanted) in wanted {
            let patches: BTreeMap<i64, String> = view
                .port_names(&bridge)
                .into_iter()
                .filter(|name| name.starts_with("patch-"))
                .filter_map(|name| Some((view.interface(&name)?.ofport()?, name)))
                .collect();
            if patches.is_empty() {
                continue;
            }
            let have = match self.control("fdb/show", &[&bridge]).await {
                // Without a way to ask there is nothing of ours either.
                Err(_) if wanted.is_empty() => continue,
                shown => parse(&shown?),
            };
            let (gone, new) = difference(&have, &wanted, &patches.keys().copied().collect());
            for entry in gone {
                tracing::info!(bridge, ?entry, "takes a static MAC entry away");
                self.control("fdb/del", &[&bridge, &entry.vlan.to_string(), &entry.mac.to_string()]).await?;
            }
            for entry in new {
                let Some(port) = patches.get(&entry.port) else { continue };
                tracing::info!(bridge, port, ?entry, "makes a static MAC entry");
                let (vlan, mac) = (entry.vlan.to_string(), entry.mac.to_string());
                self.control("fdb/add", &[&bridge, port, &vlan, &mac]).await?;
            }
        }
        Ok(())
    }

    async fn control(&self, command: &str, arguments: &[&str]) -> Result<String, NotYet> {
        let failed = |error: &dyn std::fmt::Display| {
            not_yet(format!("ovs-vswitchd's {command}: {error}"), "is ovs-vswitchd running on this node?")
        };
        let endpoint = self.flags.ovs_endpoint();
        let database = PathBuf::from(endpoint.strip_prefix("unix:").unwrap_or(&endpoint));
        let folder = database.parent().map(PathBuf::from).unwrap_or_default();
        let socket = unixctl::socket_of(&folder, "ovs-vswitchd").map_err(|error| failed(&error))?;
        unixctl::call(&socket, command, arguments, PATIENCE).await.map_err(|error| failed(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOW: &str = " port  VLAN  MAC                Age\n\
                        LOCAL     0  aa:bb:cc:dd:ee:ff    1\n    \
                        2     0  00:00:00:01:00:01  static\n    \
                        2   100  00:00:00:01:00:02  static\n    \
                        1     0  00:00:00:01:00:03   12\n    \
                        7     0  00:00:00:01:00:04  static\n";

    fn entry(port: i64, vlan: u16, mac: &str) -> Entry {
        Entry { vlan, mac: mac.parse().unwrap(), port }
    }

    #[test]
    fn only_static_entries_on_patch_ports_are_ours() {
        let have = parse(SHOW);
        assert_eq!(have.len(), 3);
        let wanted = BTreeSet::from([entry(2, 100, "00:00:00:01:00:02"), entry(2, 0, "00:00:00:01:00:09")]);
        let (gone, new) = difference(&have, &wanted, &BTreeSet::from([2]));
        assert_eq!(gone, [entry(2, 0, "00:00:00:01:00:01")], "port 7's is somebody else's");
        assert_eq!(new, [entry(2, 0, "00:00:00:01:00:09")]);
        assert_eq!(difference(&wanted, &wanted, &BTreeSet::from([2])), (vec![], vec![]));
    }
}
