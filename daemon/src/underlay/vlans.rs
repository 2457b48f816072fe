//! VLAN links on a NIC that goes into a bridge (node contract §3.5 steps 2 to 4 and 10).
//!
//! The kernel hands a tagged packet to the NIC's VLAN link before the switch sees it, so beside a link the bridge would
//! never hear that VLAN. Hence each link gives way to an internal port of the bridge with its tag, MAC, MTU, addresses
//! and routes; it is made again, from what was recorded, when the NIC goes home.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::journal::{Journal, Load};
use super::member::Wish;
use super::run::Underlay;
use super::{host_failed, not_yet};
use crate::netlink::{Link, Mac, NewVlan, Placed, VlanLink};
use crate::node::NotYet;
use crate::ovs::{PortSpec, View, plan};

/// External id of a Port: the VLAN link that it stands for.
pub const SOURCE: &str = "provider-vlan-interface";
/// Longest name of a link.
const LINK_NAME: usize = 15;

/// A VLAN link as recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubInterface {
    /// Its name.
    pub name: String,
    /// Its MAC, unless it is the NIC's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Its MTU, 0 if unknown.
    #[serde(default)]
    pub mtu: u32,
    /// Its alias.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// What it carries, by itself or by the port.
    pub load: Load,
    /// What the port has still and is to lose: the host has made the link again, and configured it anew.
    #[serde(default, skip_serializing_if = "Load::is_empty")]
    pub stale: Load,
}

impl SubInterface {
    /// The link is there, with what it carries: before it gives way to the port, or since the host has made it again.
    fn renew(&mut self, link: &Load) {
        let load = self.load.renewed(link);
        self.stale.add(&self.load);
        self.stale = self.stale.beyond(&load);
        self.load = load;
    }
}

/// Alias of a link that was made for a provider network.
pub fn alias(network: &str) -> String {
    format!("kube-ovn:{network}")
}

/// `eth0.5` is VLAN 5 on eth0.
pub fn parse_name(name: &str) -> Option<(&str, u16)> {
    let (parent, id) = name.rsplit_once('.')?;
    let id = id.parse().ok().filter(|id| (1..4095).contains(id))?;
    (!parent.is_empty()).then_some((parent, id))
}

/// RFC 4648 in lower case, without padding.
fn base32(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let bits: Vec<u8> = bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1)).collect();
    bits.chunks(5)
        .map(|chunk| {
            let padded = chunk.iter().chain(std::iter::repeat(&0)).take(5);
            let index = padded.fold(0usize, |value, bit| value << 1 | usize::from(*bit));
            char::from(*ALPHABET.get(index).unwrap_or(&b'a'))
        })
        .collect()
}

/// Name of the internal port of a VLAN.
pub fn port_name(bridge: &str, id: u16) -> String {
    let plain = format!("{bridge}-vlan{id}");
    if plain.len() <= LINK_NAME {
        return plain;
    }
    let mut name = format!("kv{id}-{}", base32(&Sha256::digest(bridge.as_bytes())));
    name.truncate(LINK_NAME);
    name
}

/// The VLANs that have to be ports: names by id. Links that are missing and not recorded are no error: they may come.
///
/// # Errors
/// A link that is named and is no VLAN of the NIC; two with one id.
pub fn wanted(
    wish: &Wish,
    on_nic: &[(String, u16)],
    others: &BTreeSet<String>,
    recorded: &BTreeMap<u16, SubInterface>,
) -> Result<BTreeMap<u16, String>, NotYet> {
    let known: Vec<(&str, u16)> = on_nic
        .iter()
        .map(|(name, id)| (name.as_str(), *id))
        .chain(recorded.iter().map(|(id, sub)| (sub.name.as_str(), *id)))
        .collect();
    let mut names: BTreeMap<u16, String> = BTreeMap::new();
    let mut take = |name: &str, id: u16| match names.insert(id, name.to_owned()) {
        Some(old) if old != name => Err(not_yet(
            format!("{old} and {name} are both VLAN {id} of {}", wish.nic),
            "name one of them in spec.vlanInterfaces",
        )),
        _ => Ok(()),
    };
    for name in &wish.vlan_interfaces {
        match known.iter().find(|(known, _)| known == name) {
            Some((name, id)) => take(name, *id)?,
            None if others.contains(name) => {
                return Err(not_yet(
                    format!("{name} of spec.vlanInterfaces is no VLAN link on {}", wish.nic),
                    "take it out of the list, or give the network the NIC that it is on",
                ));
            }
            None => tracing::info!(name, network = wish.network, "a VLAN link is not there (yet)"),
        }
    }
    if wish.preserve_vlans {
        for (name, id) in known {
            if parse_name(name) == Some((wish.nic.as_str(), id)) {
                take(name, id)?;
            }
        }
    }
    Ok(names)
}

impl Underlay {
    /// Makes a NIC that is a VLAN of another one, if the network asks for that.
    pub(super) async fn make_nic(&self, wish: &Wish) -> Result<Option<Link>, NotYet> {
        let Some((parent, id)) = parse_name(&wish.nic).filter(|_| wish.auto_create) else { return Ok(None) };
        let Some(parent) = self.link(parent).await? else { return Ok(None) };
        let alias = alias(&wish.network);
        let new =
            NewVlan { name: &wish.nic, parent: parent.index, id, mac: None, mtu: None, alias: Some(&alias) };
        self.parts.host.netlink.add_vlan(&new).await.map_err(|error| host_failed(&error))?;
        self.link(&wish.nic).await
    }

    /// NICs that were made for a network, and are neither its NIC nor a VLAN link that goes on working, go again (node
    /// contract §3.5 step 4).
    pub(super) async fn drop_made(&self, wish: &Wish, journal: &Journal) -> Result<(), NotYet> {
        let host = &self.parts.host.netlink;
        let alias = alias(&wish.network);
        for link in host.links().await.map_err(|error| host_failed(&error))? {
            let kept = [&wish.nic, &wish.device()].contains(&&link.name)
                || wish.vlan_interfaces.contains(&link.name)
                || journal.vlans.values().any(|sub| sub.name == link.name);
            if link.kind.as_deref() == Some("vlan") && link.alias.as_ref() == Some(&alias) && !kept {
                tracing::info!(
                    network = wish.network,
                    link = link.name,
                    "takes away a NIC made for the network"
                );
                host.delete_link(&link.name).await.map_err(|error| host_failed(&error))?;
            }
        }
        Ok(())
    }

    /// VLAN links of the node with their parents.
    async fn vlan_links(&self) -> Result<Vec<(Link, VlanLink)>, NotYet> {
        let host = &self.parts.host.netlink;
        let mut found = Vec::new();
        for link in host.links().await.map_err(|error| host_failed(&error))? {
            if link.kind.as_deref() == Some("vlan")
                && let Some(vlan) = host.vlan_link(link.index).await.map_err(|error| host_failed(&error))?
            {
                found.push((link, vlan));
            }
        }
        Ok(found)
    }

    /// Brings the ports of VLAN links up to date; those that are not wanted any more become links again. The ids.
    pub(super) async fn vlans(
        &self,
        wish: &Wish,
        nic: &Link,
        journal: &mut Journal,
    ) -> Result<BTreeSet<u16>, NotYet> {
        // Ports of Kube-OVN that no record knows.
        let mut unknown = self.adopt_vlans(&self.parts.ovs.view(), &wish.bridge(), &journal.vlans).await?;
        if !unknown.is_empty() {
            journal.vlans.append(&mut unknown);
            self.write(&wish.network, journal).await?;
        }
        if wish.vlan_interfaces.is_empty() && !wish.preserve_vlans && journal.vlans.is_empty() {
            return Ok(BTreeSet::new());
        }
        let links = self.vlan_links().await?;
        let on_nic: Vec<&(Link, VlanLink)> =
            links.iter().filter(|(_, vlan)| vlan.parent == nic.index && vlan.plain).collect();
        let names: Vec<(String, u16)> =
            on_nic.iter().map(|(link, vlan)| (link.name.clone(), vlan.id)).collect();
        let all = self.parts.host.netlink.links().await.map_err(|error| host_failed(&error))?;
        let all = all.into_iter().map(|link| link.name).collect();
        let wanted = wanted(wish, &names, &all, &journal.vlans)?;
        let unwanted: Vec<u16> =
            journal.vlans.keys().filter(|id| !wanted.contains_key(id)).copied().collect();
        for id in unwanted {
            self.vlan_home(wish, nic, id, journal).await?;
            journal.vlans.remove(&id);
            self.write(&wish.network, journal).await?;
        }
        for (id, name) in &wanted {
            let link = on_nic.iter().find(|(link, _)| link.name == *name).map(|(link, _)| link);
            self.vlan_port(wish, nic, (*id, name), link, journal).await?;
        }
        Ok(wanted.into_keys().collect())
    }

    /// One link gives way to its port.
    async fn vlan_port(
        &self,
        wish: &Wish,
        nic: &Link,
        (id, name): (u16, &str),
        link: Option<&Link>,
        journal: &mut Journal,
    ) -> Result<(), NotYet> {
        let port = port_name(&wish.bridge(), id);
        self.check_vlan_port(&self.parts.ovs.view(), &port, name)?;
        if let Some(link) = link {
            let mut sub = journal.vlans.remove(&id).unwrap_or_default();
            name.clone_into(&mut sub.name);
            sub.mac = link.mac.filter(|mac| nic.mac != Some(*mac)).map(|mac| mac.to_string());
            sub.mtu = link.mtu;
            sub.alias.clone_from(&link.alias);
            sub.renew(&self.load(link.index).await?);
            journal.vlans.insert(id, sub);
            self.write(&wish.network, journal).await?;
        }
        let Some(sub) = journal.vlans.get(&id) else { return Ok(()) };
        let mac: Option<Mac> = sub.mac.as_deref().and_then(|mac| mac.parse().ok()).or(nic.mac);
        let mtu = if sub.mtu > 0 { sub.mtu } else { nic.mtu };
        let spec = PortSpec {
            bridge: wish.bridge(),
            name: port.clone(),
            kind: "internal".to_owned(),
            tag: Some(id),
            mac: mac.map(|mac| mac.to_string()),
            mtu_request: Some(mtu),
            port_external_ids: BTreeMap::from([
                ("vendor".to_owned(), crds::keys::VENDOR.to_owned()),
                (SOURCE.to_owned(), name.to_owned()),
            ]),
            ..PortSpec::default()
        };
        let inner = self.make_inner(&port, |view| plan::ensure_port(view, &spec)).await?;
        self.prepare_inner(&inner, mac, mtu, &sub.load).await?;
        self.place(&inner, &sub.load, Placed::Elsewhere).await?;
        if let Some(link) = link {
            self.parts.host.netlink.delete_link(&link.name).await.map_err(|error| host_failed(&error))?;
            self.place(&inner, &sub.load, Placed::Elsewhere).await?;
        }
        if sub.stale.is_empty() {
            return Ok(());
        }
        self.take(&inner, &sub.stale).await?;
        if let Some(sub) = journal.vlans.get_mut(&id) {
            sub.stale = Load::default();
        }
        self.write(&wish.network, journal).await
    }

    /// A port of that name must be for that link.
    fn check_vlan_port(&self, view: &View, port: &str, name: &str) -> Result<(), NotYet> {
        let Some(row) = view.port(port) else { return Ok(()) };
        let ours = row.map_get("external_ids", "vendor") == Some(crds::keys::VENDOR);
        match row.map_get("external_ids", SOURCE) {
            Some(source) if ours && source == name => Ok(()),
            None if ours => Ok(()),
            source => Err(not_yet(
                format!("port {port} is there for {}", source.unwrap_or("somebody else")),
                format!("take it away (ovs-vsctl del-port {port})"),
            )),
        }
    }

    /// One port becomes a link again. The record stays until it has everything.
    pub(super) async fn vlan_home(
        &self,
        wish: &Wish,
        nic: &Link,
        id: u16,
        journal: &mut Journal,
    ) -> Result<(), NotYet> {
        let port = port_name(&wish.bridge(), id);
        let Some(sub) = journal.vlans.get_mut(&id) else { return Ok(()) };
        let inner = self.link(&port).await?;
        if let Some(inner) = &inner {
            sub.load.add(&self.load(inner.index).await?);
            self.write(&wish.network, journal).await?;
        }
        let Some(sub) = journal.vlans.get(&id).cloned() else { return Ok(()) };
        self.change(|view| Ok(plan::remove_port(view, &port))).await?;
        if let Some(inner) = inner {
            self.wait_gone(&inner.name, inner.index).await?;
        }
        let link = match self.link(&sub.name).await? {
            Some(link) => {
                let vlan = self
                    .parts
                    .host
                    .netlink
                    .vlan_link(link.index)
                    .await
                    .map_err(|error| host_failed(&error))?;
                if !vlan.is_some_and(|vlan| vlan.id == id && vlan.parent == nic.index) {
                    return Err(not_yet(
                        format!("{} is not VLAN {id} of {} any more", sub.name, nic.name),
                        "rename it: that link has to be made again",
                    ));
                }
                link
            }
            None => {
                let new = NewVlan {
                    name: &sub.name,
                    parent: nic.index,
                    id,
                    mac: sub.mac.as_deref().and_then(|mac| mac.parse().ok()),
                    mtu: (sub.mtu > 0).then_some(sub.mtu),
                    alias: sub.alias.as_deref(),
                };
                self.parts.host.netlink.add_vlan(&new).await.map_err(|error| host_failed(&error))?;
                self.wait_link(&sub.name).await?
            }
        };
        self.place(&link, &sub.load, Placed::AsItWas).await.map(drop)
    }

    /// Our VLAN ports of a bridge that are not among the recorded ones.
    pub(super) async fn adopt_vlans(
        &self,
        view: &View,
        bridge: &str,
        recorded: &BTreeMap<u16, SubInterface>,
    ) -> Result<BTreeMap<u16, SubInterface>, NotYet> {
        let mut found = BTreeMap::new();
        for name in view.port_names(bridge) {
            let ours = |row: &&std::sync::Arc<ovsdb::Row>| {
                row.map_get("external_ids", "vendor") == Some(crds::keys::VENDOR)
            };
            let Some(row) = view.port(&name).filter(ours) else { continue };
            let tag = row.get("tag").and_then(ovsdb::Value::single).and_then(ovsdb::Atom::as_i64);
            let (Some(source), Some(id)) = (row.map_get("external_ids", SOURCE), tag) else { continue };
            let Some(id) = u16::try_from(id).ok().filter(|id| !recorded.contains_key(id)) else { continue };
            let Some(link) = self.link(&name).await? else { continue };
            let load = self.load(link.index).await?;
            let sub =
                SubInterface { name: source.to_owned(), mtu: link.mtu, load, ..SubInterface::default() };
            found.insert(id, sub);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(names: &[&str], preserve: bool) -> Wish {
        Wish {
            network: "net1".into(),
            nic: "eth0".into(),
            vlan_interfaces: names.iter().map(|name| (*name).to_owned()).collect(),
            preserve_vlans: preserve,
            ..Wish::default()
        }
    }

    #[test]
    fn ports_have_the_contracts_names() {
        assert_eq!(port_name("br-net1", 100), "br-net1-vlan100");
        let long = port_name("br-net1", 1000);
        assert!(long.starts_with("kv1000-") && long.len() == 15, "{long}");
        assert_ne!(long, port_name("br-net2", 1000));
        assert_eq!(base32(b"foobar"), "mzxw6ytboi");
    }

    #[test]
    fn names_tell_parent_and_id() {
        assert_eq!(parse_name("bond0.5"), Some(("bond0", 5)));
        for name in ["eth0", "eth0.", ".5", "eth0.0", "eth0.4095", "eth0.x"] {
            assert_eq!(parse_name(name), None, "{name}");
        }
    }

    #[test]
    fn a_link_that_the_host_makes_again_counts() {
        use crate::netlink::exact::tests::carried;
        let load = |addresses: &[&str]| Load::of(&carried(addresses, &[]), 7);
        let nets = |load: &Load| load.addresses.iter().map(ToString::to_string).collect::<Vec<_>>();
        let mut sub = SubInterface { name: "eth0.5".into(), ..SubInterface::default() };
        sub.renew(&load(&["10.5.0.11/24", "fd05::11/64"]));
        assert_eq!(
            (nets(&sub.load), sub.stale.is_empty()),
            (nets(&load(&["10.5.0.11/24", "fd05::11/64"])), true)
        );
        // A process died before it deleted the link.
        let before = sub.clone();
        sub.renew(&before.load);
        assert_eq!(sub, before);
        sub.renew(&load(&["10.5.0.99/24"]));
        assert_eq!(nets(&sub.load), ["10.5.0.99/24", "fd05::11/64"]);
        assert_eq!(nets(&sub.stale), ["10.5.0.11/24"]);
        let text = serde_json::to_string(&sub).unwrap();
        assert_eq!(serde_json::from_str::<SubInterface>(&text).unwrap(), sub);
    }

    #[test]
    fn the_spec_says_which_vlans_go_on_working() {
        let on_nic = [("eth0.5".to_owned(), 5), ("storage".to_owned(), 6)];
        let others = BTreeSet::from(["eth0.5".to_owned(), "storage".to_owned(), "eth1.7".to_owned()]);
        let none = BTreeMap::new();
        let ids = |wish: &Wish, recorded: &BTreeMap<u16, SubInterface>| {
            wanted(wish, &on_nic, &others, recorded).map(|names| names.into_keys().collect::<Vec<_>>())
        };
        assert_eq!(ids(&wish(&[], false), &none).unwrap(), Vec::<u16>::new());
        assert_eq!(ids(&wish(&["storage", "late"], false), &none).unwrap(), [6]);
        assert_eq!(ids(&wish(&[], true), &none).unwrap(), [5], "only those named after the NIC");
        let error = ids(&wish(&["eth1.7"], false), &none).unwrap_err();
        assert!(error.to_string().contains("eth1.7"), "{error}");
        // The link is gone since it is a port.
        let recorded =
            BTreeMap::from([(9, SubInterface { name: "eth0.9".into(), ..SubInterface::default() })]);
        assert_eq!(ids(&wish(&["eth0.9"], true), &recorded).unwrap(), [5, 9]);
        let twice = BTreeMap::from([(5, SubInterface { name: "other".into(), ..SubInterface::default() })]);
        let error = ids(&wish(&["eth0.5", "other"], false), &twice).unwrap_err();
        assert!(error.to_string().contains("both VLAN 5"), "{error}");
    }
}
