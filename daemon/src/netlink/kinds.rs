//! What only some kinds of links have: VLAN links, bonds, second names.

use futures::StreamExt;
use rtnetlink::packet_route::link::{
    BondMode, InfoBond, InfoData, InfoVlan, LinkAttribute, LinkInfo, LinkMessage, VlanProtocol,
};
use rtnetlink::{LinkUnspec, LinkVlan};

use super::{Error, Mac, Netlink, Result};
use crate::steps;

/// What makes a link a VLAN link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlanLink {
    /// VLAN id.
    pub id: u16,
    /// Index of the link below.
    pub parent: u32,
    /// Plain 802.1Q, not a service tag.
    pub plain: bool,
}

/// A VLAN link to create.
#[derive(Clone, Debug)]
pub struct NewVlan<'a> {
    /// Name.
    pub name: &'a str,
    /// Index of the link below.
    pub parent: u32,
    /// VLAN id.
    pub id: u16,
    /// MAC; that of the link below if absent.
    pub mac: Option<Mac>,
    /// MTU; that of the link below if absent.
    pub mtu: Option<u32>,
    /// Alias, if it has one.
    pub alias: Option<&'a str>,
}

fn data(message: &LinkMessage) -> Option<&InfoData> {
    message.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::LinkInfo(info) => info.iter().find_map(|info| match info {
            LinkInfo::Data(data) => Some(data),
            _ => None,
        }),
        _ => None,
    })
}

fn vlan(message: &LinkMessage) -> Option<VlanLink> {
    let Some(InfoData::Vlan(info)) = data(message) else { return None };
    let parent = message.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Link(index) => Some(*index),
        _ => None,
    })?;
    let id = info.iter().find_map(|info| match info {
        InfoVlan::Id(id) => Some(*id),
        _ => None,
    })?;
    let service = info
        .iter()
        .any(|info| matches!(info, InfoVlan::Protocol(protocol) if *protocol != VlanProtocol::Ieee8021Q));
    Some(VlanLink { id, parent, plain: !service })
}

fn is_balance_alb(message: &LinkMessage) -> bool {
    let Some(InfoData::Bond(info)) = data(message) else { return false };
    info.iter().any(|info| matches!(info, InfoBond::Mode(BondMode::BalanceAlb)))
}

impl Netlink {
    async fn link_message(&self, index: u32) -> Result<Option<LinkMessage>> {
        let mut stream = std::pin::pin!(self.handle.link().get().match_index(index).execute());
        match stream.next().await {
            None => Ok(None),
            Some(Ok(message)) => Ok(Some(message)),
            Some(Err(error)) => {
                let error = Error::netlink(format!("read link {index}"), error);
                if error.is_missing() { Ok(None) } else { Err(error) }
            }
        }
    }

    /// What a VLAN link is made of; `None` for other kinds and for missing links.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub async fn vlan_link(&self, index: u32) -> Result<Option<VlanLink>> {
        Ok(self.link_message(index).await?.as_ref().and_then(vlan))
    }

    /// Whether a link is a bond, or a VLAN link on one, that gives each member a MAC of its own (`balance-alb`).
    ///
    /// # Errors
    /// When the kernel refuses.
    pub async fn balances_by_mac(&self, index: u32) -> Result<bool> {
        let Some(message) = self.link_message(index).await? else { return Ok(false) };
        let lower = match vlan(&message) {
            Some(vlan) => self.link_message(vlan.parent).await?,
            None => Some(message),
        };
        Ok(lower.as_ref().is_some_and(is_balance_alb))
    }

    /// Creates a VLAN link, up.
    ///
    /// # Errors
    /// `EEXIST` when the name, or the id on the link below, is taken.
    pub async fn add_vlan(&self, new: &NewVlan<'_>) -> Result<()> {
        let mut builder = LinkVlan::new(new.name, new.parent, new.id).up();
        if let Some(mac) = new.mac {
            builder = builder.address(mac.0.to_vec());
        }
        if let Some(mtu) = new.mtu {
            builder = builder.mtu(mtu);
        }
        if let Some(alias) = new.alias {
            builder = builder.alias(alias);
        }
        self.handle
            .link()
            .add(builder.build())
            .execute()
            .await
            .map_err(|error| Error::netlink(format!("create VLAN link {}", new.name), error))?;
        steps::done("create VLAN link").await;
        Ok(())
    }

    /// Sets a link down.
    ///
    /// # Errors
    /// When the link is missing or the kernel refuses.
    pub async fn set_down(&self, index: u32) -> Result<()> {
        let message = LinkUnspec::new_with_index(index).down().build();
        self.handle
            .link()
            .set(message)
            .execute()
            .await
            .map_err(|error| Error::netlink(format!("set link {index} down"), error))?;
        steps::done("set link down").await;
        Ok(())
    }

    /// Takes a second name of a link away; a missing one is a success.
    ///
    /// # Errors
    /// Any other refusal.
    pub async fn delete_altname(&self, index: u32, name: &str) -> Result<()> {
        match self.handle.link().property_del(index).alt_ifname(&[name]).execute().await {
            Ok(()) => {}
            // The library takes the acknowledgement for a refusal.
            Err(rtnetlink::Error::NetlinkError(message)) if message.code.is_none() => {}
            Err(error) => {
                let error = Error::netlink(format!("take name {name} off link {index}"), error);
                let absent = error.is_missing() || error.errno() == Some(libc::EINVAL);
                return if absent { Ok(()) } else { Err(error) };
            }
        }
        steps::done("take name").await;
        Ok(())
    }
}
