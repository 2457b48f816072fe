//! A provider network leaves this node: the NIC home again, with everything that it carried.
//!
//! In: what is recorded, or for a bridge of Kube-OVN what it carries. Out: a node as before, and nothing of others'
//! touched. Every step can be repeated; the record goes last.

use std::collections::BTreeMap;

use super::journal::{Journal, Load, boot_id};
use super::mappings::{self, BRIDGES, MACS};
use super::member::Wish;
use super::network::{is_made_by_switch, is_provider_bridge, string};
use super::run::Underlay;
use super::settings::Settings;
use super::{host_failed, not_yet};
use crate::netlink::Placed;
use crate::node::NotYet;
use crate::ovs::{PlanError, View, plan};

impl Underlay {
    /// What there is of a network that nothing is recorded of: Kube-OVN made it, or its record was lost. `None` if there
    /// is nothing.
    pub(super) async fn adopt(&self, view: &View, network: &str) -> Result<Option<Journal>, NotYet> {
        let usual = crds::names::provider_bridge(network);
        let list = view.root_external_id(BRIDGES).unwrap_or_default();
        let bridge = mappings::get(list, network).unwrap_or(&usual);
        if !is_provider_bridge(view, bridge) {
            return Ok(None);
        }
        let exchange = bridge != usual;
        let nic = view.port_names(bridge).into_iter().find(|name| {
            let ours = |port: &std::sync::Arc<ovsdb::Row>| {
                port.map_get("external_ids", "vendor") == Some(crds::keys::VENDOR)
            };
            view.port(name).is_some_and(ours)
                && view.interface(name).is_some_and(|interface| interface.kind().is_empty())
        });
        let (Some(nic), Some(link)) = (nic, self.link(bridge).await?) else { return Ok(None) };
        let load = self.load(link.index).await?;
        let vlans = self.adopt_vlans(view, bridge, &BTreeMap::new()).await?;
        tracing::info!(network, bridge, nic, "takes a bridge over");
        let settings = Settings::of(&self.parts.host, &nic).await;
        Ok(Some(Journal {
            settings,
            nic: if exchange { bridge.to_owned() } else { nic },
            exchange,
            moved: true,
            load,
            vlans,
            ..Journal::default()
        }))
    }

    /// The network leaves this node: the NIC has everything back, bridge and mappings are gone. Whether there was
    /// anything.
    ///
    /// # Errors
    /// What keeps it from being so; the record stays, and it can be called again.
    pub async fn leave(&self, network: &str) -> Result<bool, NotYet> {
        let view = self.parts.ovs.view();
        let journal = match Journal::read(&view, network)? {
            None => self.adopt(&view, network).await?,
            recorded => recorded,
        };
        match journal {
            Some(journal) => self.bring_home(network, journal).await.map(|()| true),
            None => self.unmap(network, &crds::names::provider_bridge(network)).await.map(|()| false),
        }
    }

    pub(super) async fn bring_home(&self, network: &str, mut journal: Journal) -> Result<(), NotYet> {
        let wish = Wish {
            network: network.to_owned(),
            nic: journal.nic.clone(),
            exchange: journal.exchange,
            ..Wish::default()
        };
        let (bridge_name, device) = (wish.bridge(), wish.device());
        let view = self.parts.ovs.view();
        let there = is_provider_bridge(&view, &bridge_name);
        // After a boot a NIC that had swapped names may have the bridge's.
        let bridge = if there { self.link(&bridge_name).await? } else { None };
        let bridge = bridge.filter(|link| is_made_by_switch(&view, link));
        if there {
            self.only_ours(&view, &bridge_name, &device)?;
        }
        // What was added to the bridge by hand comes along; what is on the NIC already is no news any more.
        if let Some(bridge) = &bridge {
            journal.load.add(&self.load(bridge.index).await?);
        }
        journal.moved = false;
        self.write(network, &journal).await?;
        let mut nic = self.link(&device).await?;
        if let Some(nic) = &nic {
            self.settings_home(&journal, &nic.name).await?;
            // Behind the bridge's, so that everything goes on by the bridge until the switch lets go of both at once.
            // Of IPv6 the kernel would choose among the two: it comes after.
            if bridge.is_some() {
                self.place(nic, &journal.load.family(false), Placed::AsItWas).await?;
            }
        }
        self.unmap(network, &bridge_name).await?;
        if let Some(bridge) = bridge {
            self.wait_gone(&bridge.name, bridge.index).await?;
        }
        if let Some(link) = nic.as_mut().filter(|_| wish.exchange) {
            self.rename(link, &wish.nic, &Load::default()).await?;
            link.name.clone_from(&wish.nic);
        } else if wish.exchange {
            nic = self.link(&wish.nic).await?;
        }
        if let Some(nic) = &nic {
            self.place(nic, &journal.load, Placed::AsItWas).await?;
            let ids: Vec<u16> = journal.vlans.keys().copied().collect();
            for id in ids {
                self.vlan_home(&wish, nic, id, &mut journal).await?;
            }
            let restored = journal.settings.restore_offload(&self.parts.host, &nic.name);
            restored.map_err(|error| not_yet(format!("checksum offload of {}: {error}", nic.name), ""))?;
            if journal.settings.managed {
                self.managers.hand_back(&nic.name).await?;
            }
            if nic.alias.as_deref() == Some(super::vlans::alias(network).as_str()) {
                self.parts.host.netlink.delete_link(&nic.name).await.map_err(|error| host_failed(&error))?;
            }
        }
        let key = Journal::key(network);
        self.change(|view| plan::delete_root_external_ids(view, &[key.as_str()])).await
    }

    pub(super) async fn settings_home(&self, journal: &Journal, device: &str) -> Result<(), NotYet> {
        let ipv6 = !journal.load.family(true).addresses.is_empty();
        let restored = journal.settings.restore(&self.parts.host, device, ipv6).await;
        restored.map_err(|error| not_yet(format!("settings of {device}: {error}"), ""))
    }

    /// A bridge with somebody else's ports is not taken away.
    pub(super) fn only_ours(&self, view: &View, bridge: &str, device: &str) -> Result<(), NotYet> {
        let foreign = view.port_names(bridge).into_iter().find(|name| {
            let kind = view.interface(name).map(|interface| interface.kind().to_owned()).unwrap_or_default();
            let vendor = view.port(name).and_then(|port| port.map_get("external_ids", "vendor"));
            name != bridge && name != device && kind != "patch" && vendor != Some(crds::keys::VENDOR)
        });
        match foreign {
            None => Ok(()),
            Some(port) => Err(not_yet(
                format!("bridge {bridge} has port {port}, which is somebody else's"),
                format!("take it away (ovs-vsctl del-port {bridge} {port})"),
            )),
        }
    }

    /// Bridge and mappings go in one step; those of others stay.
    async fn unmap(&self, network: &str, bridge: &str) -> Result<(), NotYet> {
        let edit = |now: &dyn Fn(&str) -> Option<String>| {
            let (bridges, macs) = (now(BRIDGES).unwrap_or_default(), now(MACS).unwrap_or_default());
            match mappings::get(&bridges, network) {
                // The network's name, mapped by somebody else.
                Some(mapped) if mapped != bridge => Vec::new(),
                _ => vec![
                    (string(BRIDGES), mappings::without(&bridges, network)),
                    (string(MACS), mappings::without(&macs, network)),
                ],
            }
        };
        self.change(|view| -> Result<_, PlanError> {
            let mut operations = plan::edit_root_external_ids(view, edit)?;
            if is_provider_bridge(view, bridge) {
                operations.extend(plan::remove_bridge(view, bridge)?);
            }
            Ok(operations)
        })
        .await
    }

    /// The switch is gone, and its interface that carried the node's addresses is gone or hears nothing (that of the
    /// userspace datapath hangs on its process): the NIC serves the node by itself until the switch is back. The database
    /// may be gone too; what was read of it is enough, and nothing is written. What kept it from being so, by network.
    pub(super) async fn stand_in(&self, view: &View) -> Vec<NotYet> {
        let mut failed = Vec::new();
        for network in Journal::networks(view) {
            if let Err(reason) = self.stand_in_for(view, network).await {
                failed.push(reason);
            }
        }
        failed
    }

    async fn stand_in_for(&self, view: &View, network: String) -> Result<(), NotYet> {
        let Some(journal) = Journal::read(view, &network)? else { return Ok(()) };
        let wish = Wish { network, nic: journal.nic.clone(), exchange: journal.exchange, ..Wish::default() };
        let (bridge, nic) = (self.link(&wish.bridge()).await?, self.link(&wish.device()).await?);
        let dead = !bridge.as_ref().is_some_and(|bridge| bridge.running);
        let Some(nic) = nic.filter(|_| dead) else { return Ok(()) };
        let load = self.load(nic.index).await?;
        if !journal.is_of_before(&load, &boot_id()) && !journal.load.beyond(&load).is_empty() {
            tracing::warn!(nic = nic.name, "the switch is gone; the NIC has the node's addresses meanwhile");
            self.settings_home(&journal, &nic.name).await?;
            self.place(&nic, &journal.load, Placed::AsItWas).await?;
        }
        // Routes into nowhere would win.
        if let Some(bridge) = bridge {
            let left = self.load(bridge.index).await?;
            self.take(&bridge, &left).await?;
        }
        Ok(())
    }
}
