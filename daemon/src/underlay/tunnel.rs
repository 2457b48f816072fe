//! The tunnel NIC of the userspace datapath: a port of a bridge whose own interface carries the tunnels (node contract
//! §3.2). With `datapath_type=netdev` ovs-vswitchd can't send a tunnelled packet from an address elsewhere.
//!
//! The NIC moves as that of a provider network does, with the same record and the same steps; but nothing is mapped, no
//! VLAN is carried, and the record has a key of its own. An agent of before kept it in the bridge's row
//! ([`OldRecord`]).

use std::collections::BTreeMap;

use super::journal::{Journal, Load};
use super::member::Wish;
use super::network::string;
use super::old_record::{KEYS, OldRecord};
use super::run::Underlay;
use super::{host_failed, not_yet};
use crate::netlink::{Link, Placed};
use crate::node::NotYet;
use crate::ovs::{BridgeSpec, PlanError, PortSpec, View, plan};

/// Key of `Open_vSwitch:external_ids`.
const RECORD: &str = "weir-tunnel-nic";

/// Whether a NIC was moved into the bridge by an agent.
pub fn tunnel_is_recorded(view: &View, bridge: &str) -> bool {
    view.root_external_id(RECORD).is_some() || OldRecord::read(view, bridge).is_some()
}

impl Underlay {
    /// What is recorded of the tunnel NIC. An older record is taken over: the bridge gets what it says, and is read back.
    ///
    /// # Errors
    /// When the record can't be read, or the bridge of an older one has no interface.
    pub async fn tunnel_record(&self, view: &View, bridge: &str) -> Result<Option<Journal>, NotYet> {
        if let Some(journal) = Journal::read_at(view, RECORD)? {
            return Ok(Some(journal));
        }
        let Some(old) = OldRecord::read(view, bridge) else { return Ok(None) };
        let (host, link) = (&self.parts.host.netlink, self.wait_link(bridge).await?);
        tracing::info!(bridge, nic = old.nic, "takes over what an older agent recorded of the tunnel NIC");
        if !link.up {
            host.set_up(link.index).await.map_err(|error| host_failed(&error))?;
        }
        let there = self.load(link.index).await?;
        for net in old.addresses.iter().filter(|net| there.addresses.iter().all(|a| a.net() != **net)) {
            host.add_address(link.index, *net, true).await.map_err(|error| host_failed(&error))?;
        }
        for route in &old.routes {
            host.replace_route(&route.on(link.index)).await.map_err(|error| host_failed(&error))?;
        }
        // Not moved: what the NIC has, if the older agent died in between, is no news.
        let load = self.load(link.index).await?;
        let journal = Journal { nic: old.nic, load, ..Journal::default() };
        self.record(RECORD, &journal).await?;
        self.change(|view| Ok(plan::forget_bridge_ids(view, bridge, &KEYS))).await?;
        Ok(Some(journal))
    }

    /// The NIC becomes a port of the bridge, which gets everything that it carries.
    ///
    /// # Errors
    /// What keeps it from being so; the node has its addresses then, on NIC or bridge.
    pub async fn tunnel_in(&self, bridge: &str, nic: &Link, recorded: Option<Journal>) -> Result<(), NotYet> {
        let wish = Wish { nic: nic.name.clone(), ..Wish::default() };
        let mut journal = self.journal(recorded, &wish, nic).await?;
        self.record(RECORD, &journal).await?;
        let spec = BridgeSpec {
            name: bridge.to_owned(),
            datapath_type: string("netdev"),
            hwaddr: nic.mac.map(|mac| mac.to_string()),
            external_ids: BTreeMap::from([(string("vendor"), string(crds::keys::VENDOR))]),
            ..BridgeSpec::default()
        };
        let inner = self.make_inner(bridge, |view| plan::ensure_bridge(view, &spec)).await?;
        // Before br-int says so too.
        let off = self.parts.host.ethtool.tx_checksum_off(bridge);
        off.map_err(|error| not_yet(format!("checksum offload of {bridge}: {error}"), ""))?;
        self.prepare_inner(&inner, nic.mac, nic.mtu, &journal.load).await?;
        let load = journal.load.clone();
        let attach = async {
            self.release(RECORD, nic, &mut journal).await?;
            let port = PortSpec { bridge: bridge.to_owned(), name: nic.name.clone(), ..PortSpec::default() };
            self.open(nic, &port, true).await
        };
        let refused = self.carry_over(&inner, &load, attach).await?;
        self.clear(RECORD, (nic, &inner), refused, &mut journal).await?;
        self.silence(nic, &journal).await?;
        self.take(&inner, &journal.stale).await?;
        if !journal.moved || !journal.stale.is_empty() {
            journal.moved = true;
            journal.stale = Load::default();
            self.record(RECORD, &journal).await?;
        }
        Ok(())
    }

    /// The NIC has everything back, and the bridge is gone.
    ///
    /// # Errors
    /// What keeps it from being so; the record stays, and it can be called again.
    pub async fn tunnel_home(&self, bridge: &str, mut journal: Journal) -> Result<(), NotYet> {
        let Some(nic) = self.link(&journal.nic).await? else {
            return Err(not_yet(
                format!("the tunnel NIC {} is gone, whose addresses bridge {bridge} has", journal.nic),
                "bring it back, or give its addresses to another NIC and remove the bridge",
            ));
        };
        let inner = self.link(bridge).await?;
        if let Some(inner) = &inner {
            journal.load.add(&self.load(inner.index).await?);
        }
        journal.moved = false;
        self.record(RECORD, &journal).await?;
        self.settings_home(&journal, &nic.name).await?;
        // Behind the bridge's; of IPv6 the kernel would choose among the two.
        if inner.is_some() {
            self.place(&nic, &journal.load.family(false), Placed::AsItWas).await?;
        }
        self.change(|view| -> Result<_, PlanError> { plan::remove_bridge(view, bridge) }).await?;
        if let Some(inner) = inner {
            self.wait_gone(&inner.name, inner.index).await?;
        }
        self.place(&nic, &journal.load, Placed::AsItWas).await?;
        let restored = journal.settings.restore_offload(&self.parts.host, &nic.name);
        restored.map_err(|error| not_yet(format!("checksum offload of {}: {error}", nic.name), ""))?;
        if journal.settings.managed {
            self.managers.hand_back(&nic.name).await?;
        }
        self.change(|view| plan::delete_root_external_ids(view, &[RECORD])).await
    }
}
