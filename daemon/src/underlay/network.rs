//! One provider network on this node: its bridge with the NIC in it.
//!
//! Every step is idempotent and looks at what is there; [`super`] says why the order is as it is.

use std::collections::BTreeMap;

use super::journal::{Journal, Load, boot_id};
use super::mappings::{self, BRIDGES, MACS};
use super::member::Wish;
use super::run::Underlay;
use super::settings::Settings;
use super::{host_failed, not_yet};
use crate::netlink::{Link, Mac, Placed};
use crate::node::NotYet;
use crate::ovs::{BR_INT, BridgeSpec, PortSpec, View, plan};

/// External id of a bridge: whether NIC and bridge have swapped names.
pub(super) const EXCHANGED: &str = "exchange-link-name";

/// A network that works on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The NIC's own name.
    pub interface: String,
    /// Its MTU.
    pub mtu: u32,
    /// VLAN links on it are ports of the bridge.
    pub vlan_interfaces: bool,
}

pub(super) fn string(text: &str) -> String {
    text.to_owned()
}

/// A locally administered MAC.
fn random_mac() -> Mac {
    let mut bytes: [u8; 6] = rand::random();
    bytes[0] = (bytes[0] & 0xfc) | 2;
    Mac(bytes)
}

/// Whether a bridge was made for a provider network, by us or by Kube-OVN.
pub(crate) fn is_provider_bridge(view: &View, bridge: &str) -> bool {
    view.bridge(bridge).is_some_and(|row| {
        row.map_get("external_ids", "vendor") == Some(crds::keys::VENDOR)
            && row.map_get("external_ids", EXCHANGED).is_some()
    })
}

/// Whether a link is an interface of the switch's own; those of the userspace datapath are tap devices.
pub(super) fn is_made_by_switch(view: &View, link: &Link) -> bool {
    match link.kind.as_deref() {
        Some("openvswitch") => true,
        Some("tun") => view.is_userspace(),
        _ => false,
    }
}

/// The bridge of a port.
fn bridge_of(view: &View, port: &str) -> Option<String> {
    let row = view.port(port)?;
    view.bridge_of_port(&row.uuid)?.str("name").map(str::to_owned)
}

impl Underlay {
    /// Makes bridge and port as wished, with everything that the NIC carries on the bridge.
    ///
    /// # Errors
    /// What keeps it from being so; the node has its addresses then, on NIC or bridge.
    pub async fn ensure(&self, wish: &Wish) -> Result<Ready, NotYet> {
        let view = self.parts.ovs.view();
        if view.bridge(BR_INT).is_none() && !view.is_userspace() {
            // It says which datapath the node has; a bridge of the wrong one would cut the NIC off.
            return Err(not_yet(
                "the switch has no bridge br-int yet",
                "ovn-controller makes it: is the ovs-ovn pod running on this node?",
            ));
        }
        let recorded = match Journal::read(&view, &wish.network)? {
            None => self.adopt(&view, &wish.network).await?,
            recorded => recorded,
        };
        let recorded = match recorded {
            Some(old) if self.is_renamed(&old, wish).await? => {
                tracing::info!(
                    network = wish.network,
                    from = old.nic,
                    to = wish.nic,
                    "the NIC has another name"
                );
                Some(Journal { nic: wish.nic.clone(), ..old })
            }
            // The whole of the old NIC goes home before another one moves in.
            Some(old) if old.nic != wish.nic || old.exchange != wish.exchange => {
                self.bring_home(&wish.network, old).await?;
                None
            }
            recorded => recorded,
        };
        self.drop_stale_bridge(wish).await?;
        let view = self.parts.ovs.view();
        let Some(nic) = self.nic(&view, wish).await? else {
            return self.without_kernel(&view, wish).await;
        };
        self.check(&view, wish, &nic)?;
        let mut journal = self.journal(recorded, wish, &nic).await?;
        self.write(&wish.network, &journal).await?;
        if wish.exchange && nic.name == wish.nic {
            self.rename(&nic, &wish.device(), &journal.load).await?;
        }
        let nic = Link { name: wish.device(), ..nic };
        let bridge = self.bridge(wish, &nic, &journal).await?;
        let load = journal.load.clone();
        let attach = async {
            self.release(&Journal::key(&wish.network), &nic, &mut journal).await?;
            // VLANs that are ports already stay open.
            let trunks = wish.trunks.iter().chain(journal.vlans.keys()).copied().collect();
            self.attach(&Wish { trunks, ..wish.clone() }, &nic).await
        };
        let refused = self.carry_over(&bridge, &load, attach).await?;
        self.clear(&Journal::key(&wish.network), (&nic, &bridge), refused, &mut journal).await?;
        let vlans = self.vlans(wish, &nic, &mut journal).await?;
        self.drop_made(wish, &journal).await?;
        if !vlans.is_subset(&wish.trunks) {
            let trunks = wish.trunks.union(&vlans).copied().collect();
            self.attach(&Wish { trunks, ..wish.clone() }, &nic).await?;
        }
        if self.parts.ovs.view().is_userspace() {
            self.silence(&nic, &journal).await?;
        }
        self.map(wish).await?;
        self.take(&bridge, &journal.stale).await?;
        if !journal.moved || !journal.stale.is_empty() {
            journal.moved = true;
            journal.stale = Load::default();
            self.write(&wish.network, &journal).await?;
        }
        Ok(Ready { interface: wish.nic.clone(), mtu: nic.mtu, vlan_interfaces: !vlans.is_empty() })
    }

    /// Whether the network's NIC is the recorded one under another name: the bridge goes on with it.
    async fn is_renamed(&self, old: &Journal, wish: &Wish) -> Result<bool, NotYet> {
        if old.nic == wish.nic || old.exchange || wish.exchange || self.link(&old.nic).await?.is_some() {
            return Ok(false);
        }
        let (nic, bridge) = (self.link(&wish.nic).await?, self.link(&wish.bridge()).await?);
        let mac = nic.and_then(|nic| nic.mac);
        Ok(mac.is_some() && mac == bridge.and_then(|bridge| bridge.mac))
    }

    /// A boot gives a NIC that had swapped names with its bridge its own name back. The switch can't make the bridge's
    /// interface of that name beside it: the bridge goes, and is made anew (node contract §6.5).
    async fn drop_stale_bridge(&self, wish: &Wish) -> Result<(), NotYet> {
        let view = self.parts.ovs.view();
        if !wish.exchange
            || !is_provider_bridge(&view, &wish.nic)
            || self.link(&wish.device()).await?.is_some()
        {
            return Ok(());
        }
        if self.link(&wish.nic).await?.is_none_or(|link| is_made_by_switch(&view, &link)) {
            return Ok(());
        }
        self.only_ours(&view, &wish.nic, &wish.device())?;
        tracing::info!(network = wish.network, nic = wish.nic, "the NIC has its own name again");
        self.change(|view| plan::remove_bridge(view, &wish.nic)).await
    }

    /// The NIC, by whatever name it has now; `None` for one that only the switch knows (DPDK).
    async fn nic(&self, view: &View, wish: &Wish) -> Result<Option<Link>, NotYet> {
        let renamed = match wish.exchange && view.bridge(&wish.device()).is_none() {
            true => self.link(&wish.device()).await?,
            false => None,
        };
        let own = match renamed {
            // The bridge may have its name already.
            None if view.bridge(&wish.nic).is_none() => match self.link(&wish.nic).await? {
                None => self.make_nic(wish).await?,
                nic => nic,
            },
            renamed => renamed,
        };
        let by_switch = view.interface(&wish.nic).is_some_and(|port| port.kind().starts_with("dpdk"));
        match own {
            Some(nic) => Ok(Some(nic)),
            None if by_switch && view.is_userspace() => Ok(None),
            None => Err(not_yet(
                format!("this node has no interface {}", wish.nic),
                "correct spec.defaultInterface or spec.customInterfaces, or exclude the node; it goes on by itself when \
                 the interface appears",
            )),
        }
    }

    /// A NIC of the switch alone: nothing is moved.
    async fn without_kernel(&self, view: &View, wish: &Wish) -> Result<Ready, NotYet> {
        if bridge_of(view, &wish.nic).as_deref() != Some(wish.bridge().as_str()) {
            return Err(not_yet(
                format!("DPDK port {} is not on bridge {}", wish.nic, wish.bridge()),
                "make the bridge with its DPDK port when the switch starts",
            ));
        }
        self.map(wish).await?;
        let mtu = self.parts.status.borrow().mtu;
        let mtu = mtu.ok_or_else(|| not_yet("the node's tunnel interface is not chosen yet", ""))?;
        Ok(Ready { interface: wish.nic.clone(), mtu, vlan_interfaces: false })
    }

    /// What would break somebody else's network.
    fn check(&self, view: &View, wish: &Wish, nic: &Link) -> Result<(), NotYet> {
        if let Some(holder) = bridge_of(view, &nic.name)
            && holder != wish.bridge()
        {
            return Err(not_yet(
                format!("interface {} is a port of bridge {holder}", nic.name),
                "choose another interface, or take it out of that bridge",
            ));
        }
        let in_switch = view.port(&nic.name).is_some();
        if nic.controller.is_some() && !in_switch {
            return Err(not_yet(
                format!("interface {} is a member of a bond or bridge", nic.name),
                "name the bond itself as the interface of the provider network",
            ));
        }
        if nic.name == "lo" || view.interface(&nic.name).is_some_and(|port| !port.kind().is_empty()) {
            return Err(not_yet(format!("interface {} is no NIC", nic.name), "choose a physical interface"));
        }
        match view.bridge(&wish.bridge()).is_some() && !is_provider_bridge(view, &wish.bridge()) {
            true => Err(not_yet(
                format!("bridge {} was made by somebody else", wish.bridge()),
                "rename the provider network or that bridge",
            )),
            false => Ok(()),
        }
    }

    /// What a pass must work by.
    pub(super) async fn journal(
        &self,
        recorded: Option<Journal>,
        wish: &Wish,
        nic: &Link,
    ) -> Result<Journal, NotYet> {
        let load = self.load(nic.index).await?;
        if let Some(journal) = recorded {
            return Ok(journal.next(&load, &boot_id()));
        }
        let settings = Settings::of(&self.parts.host, &nic.name).await;
        Ok(Journal::first(wish, load, settings, &boot_id()))
    }

    pub(super) async fn write(&self, network: &str, journal: &Journal) -> Result<(), NotYet> {
        self.record(&Journal::key(network), journal).await
    }

    /// Writes a record under a key.
    pub(super) async fn record(&self, key: &str, journal: &Journal) -> Result<(), NotYet> {
        let ids = BTreeMap::from([(key.to_owned(), journal.text()?)]);
        self.change(|view| plan::set_root_external_ids(view, &ids)).await
    }

    /// Gives the NIC its new name: at once if the kernel renames links that are up (6.2), else with a moment down.
    pub(super) async fn rename(&self, nic: &Link, name: &str, load: &Load) -> Result<(), NotYet> {
        let host = &self.parts.host.netlink;
        match host.rename(nic.index, name).await {
            Ok(()) => {}
            Err(error) if error.errno() == Some(libc::EBUSY) => {
                host.set_down(nic.index).await.map_err(|error| host_failed(&error))?;
                host.rename(nic.index, name).await.map_err(|error| host_failed(&error))?;
            }
            Err(error) => return Err(host_failed(&error)),
        }
        host.set_up(nic.index).await.map_err(|error| host_failed(&error))?;
        let renamed = Link { name: name.to_owned(), ..nic.clone() };
        self.place(&renamed, load, Placed::AsItWas).await?;
        // The name is the bridge's now.
        host.delete_altname(nic.index, &nic.name).await.map_err(|error| host_failed(&error))
    }

    /// The bridge and its interface: MAC and MTU of the NIC, up, with a link-local address that neighbours can ask.
    async fn bridge(&self, wish: &Wish, nic: &Link, journal: &Journal) -> Result<Link, NotYet> {
        let name = wish.bridge();
        let view = self.parts.ovs.view();
        let host = &self.parts.host.netlink;
        let error = |error: crate::netlink::Error| host_failed(&error);
        // Such a bond answers with several MACs of its own.
        let foreign = host.balances_by_mac(nic.index).await.map_err(error)?;
        let had = view.bridge(&name).and_then(|row| row.map_get("other_config", "hwaddr")?.parse().ok());
        let mac = match (foreign, nic.mac) {
            (false, Some(mac)) => mac,
            _ => had.unwrap_or_else(random_mac),
        };
        let spec = BridgeSpec {
            name: name.clone(),
            datapath_type: string(if view.is_userspace() { "netdev" } else { "" }),
            hwaddr: Some(mac.to_string()),
            external_ids: BTreeMap::from([
                (string("vendor"), string(crds::keys::VENDOR)),
                (string(EXCHANGED), wish.exchange.to_string()),
            ]),
            other_config: BTreeMap::from([(
                string("mac-learning-fallback"),
                self.flags.mac_learning_fallback.to_string(),
            )]),
        };
        let local = PortSpec {
            bridge: name.clone(),
            name: name.clone(),
            kind: string("internal"),
            mtu_request: Some(nic.mtu),
            ..PortSpec::default()
        };
        self.change(|view| plan::and_apply(view, |view| plan::ensure_bridge(view, &spec))).await?;
        let link = self.make_inner(&name, |view| plan::ensure_port(view, &local)).await?;
        self.prepare_inner(&link, Some(mac), nic.mtu, &journal.load).await?;
        Ok(Link { mac: Some(mac), mtu: nic.mtu, up: true, ..link })
    }

    /// An interface of the switch gets MAC and MTU of the one that it stands for, and comes up.
    pub(super) async fn prepare_inner(
        &self,
        link: &Link,
        mac: Option<Mac>,
        mtu: u32,
        load: &Load,
    ) -> Result<(), NotYet> {
        let host = &self.parts.host.netlink;
        let error = |error: crate::netlink::Error| host_failed(&error);
        if let Some(mac) = mac.filter(|mac| link.mac != Some(*mac)) {
            host.set_mac(link.index, mac).await.map_err(error)?;
        }
        if link.mtu != mtu {
            host.set_mtu(link.index, mtu).await.map_err(error)?;
        }
        if self.parts.ovs.view().is_userspace() {
            let off = self.parts.host.ethtool.tx_checksum_off(&link.name);
            off.map_err(|error| not_yet(format!("checksum offload of {}: {error}", link.name), ""))?;
        }
        if load.addresses.iter().any(crate::netlink::ExactAddress::is_ipv6) {
            let file = format!("net/ipv6/conf/{}/disable_ipv6", link.name);
            let allowed =
                self.parts.host.namespace.run_async(move || crate::sys::write_sysctl(&file, "0")).await;
            allowed
                .and_then(|result| result)
                .map_err(|error| not_yet(format!("IPv6 on {}: {error}", link.name), ""))?;
            // Without duplicate detection, which would take a second: the NIC has the same one.
            if let Some(mac) = mac
                && let Ok(local) = ipnet::Ipv6Net::new(mac.link_local(), 64)
            {
                host.add_address(link.index, local.into(), true).await.map_err(error)?;
            }
        }
        if !link.up {
            host.set_up(link.index).await.map_err(error)?;
        }
        self.wait_served(&link.name).await
    }

    /// Who else configures the NIC lets go of it; the record says that it has to be handed back.
    pub(super) async fn release(&self, key: &str, nic: &Link, journal: &mut Journal) -> Result<(), NotYet> {
        if !self.managers.manages(&nic.name).await {
            return Ok(());
        }
        if !journal.settings.managed {
            journal.settings.managed = true;
            self.record(key, journal).await?;
        }
        self.managers.release(&nic.name).await
    }

    /// The NIC as a port of the bridge, and no other NIC of ours there (node contract §3.5 step 7).
    async fn attach(&self, wish: &Wish, nic: &Link) -> Result<(), NotYet> {
        let view = self.parts.ovs.view();
        let is_other_nic = |name: &String| {
            let ours = view.port(name).and_then(|port| port.map_get("external_ids", "vendor"));
            *name != nic.name
                && ours == Some(crds::keys::VENDOR)
                && view.interface(name).is_some_and(|interface| interface.kind().is_empty())
        };
        for other in view.port_names(&wish.bridge()).into_iter().filter(is_other_nic) {
            tracing::info!(network = wish.network, port = other, "takes another NIC out of the bridge");
            self.change(|view| Ok(plan::remove_port(view, &other))).await?;
        }
        let port = PortSpec {
            bridge: wish.bridge(),
            name: nic.name.clone(),
            trunks: Some(wish.trunks.clone()),
            port_external_ids: BTreeMap::from([(string("vendor"), string(crds::keys::VENDOR))]),
            ..PortSpec::default()
        };
        self.open(nic, &port, self.parts.ovs.view().is_userspace()).await
    }

    /// A NIC becomes a port; the userspace datapath needs its packets with complete checksums.
    pub(super) async fn open(&self, nic: &Link, port: &PortSpec, userspace: bool) -> Result<(), NotYet> {
        if userspace {
            let off = self.parts.host.ethtool.tx_checksum_off(&nic.name);
            off.map_err(|error| not_yet(format!("checksum offload of {}: {error}", nic.name), ""))?;
        }
        if !nic.up {
            self.parts.host.netlink.set_up(nic.index).await.map_err(|error| host_failed(&error))?;
        }
        self.change(|view| plan::ensure_port(view, port)).await?;
        self.wait_opened(&nic.name).await
    }

    /// Tells OVN which bridge leads to the network.
    async fn map(&self, wish: &Wish) -> Result<(), NotYet> {
        let mac = random_mac().to_string();
        let edit = |now: &dyn Fn(&str) -> Option<String>| {
            let (bridges, macs) = (now(BRIDGES).unwrap_or_default(), now(MACS).unwrap_or_default());
            let mac = mappings::get(&macs, &wish.network).unwrap_or(&mac);
            vec![
                (string(BRIDGES), Some(mappings::with(&bridges, &wish.network, &wish.bridge()))),
                (string(MACS), Some(mappings::with(&macs, &wish.network, mac))),
            ]
        };
        self.change(|view| plan::edit_root_external_ids(view, edit)).await
    }
}
