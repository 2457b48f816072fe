//! Addresses of links.

use std::net::IpAddr;

use ipnet::IpNet;
use rtnetlink::packet_route::address::{
    AddressAttribute, AddressFlags, AddressMessage, AddressScope, CacheInfo,
};

use super::{Error, Netlink, Result};
use crate::steps;

/// An address of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The link.
    pub index: u32,
    /// Address and prefix length (host bits kept).
    pub net: IpNet,
    /// Peer address of a point-to-point link, when it differs.
    pub peer: Option<IpAddr>,
    /// Scope link (169.254/16, `fe80::/10`) or narrower.
    pub link_scope: bool,
    /// IPv6: duplicate detection is still running.
    pub tentative: bool,
    /// IPv6: duplicate detection found another owner.
    pub duplicate: bool,
    /// Came without a lifetime, so it was configured and not learnt.
    pub permanent: bool,
    /// A second address of the same prefix (IPv4), or a temporary one (IPv6).
    pub secondary: bool,
    /// The interface label of IPv4, when it is not the link's name.
    pub label: Option<String>,
}

impl Address {
    pub(super) fn from_message(message: &AddressMessage) -> Option<Self> {
        let (mut address, mut local, mut label) = (None, None, None);
        let mut flags = AddressFlags::from_bits_retain(u32::from(message.header.flags.bits()));
        let mut cache: Option<CacheInfo> = None;
        for attribute in &message.attributes {
            match attribute {
                AddressAttribute::Address(ip) => address = Some(*ip),
                AddressAttribute::Local(ip) => local = Some(*ip),
                AddressAttribute::Flags(value) => flags = *value,
                AddressAttribute::Label(text) => label = Some(text.clone()),
                AddressAttribute::CacheInfo(info) => cache = Some(*info),
                _ => {}
            }
        }
        let ip = local.or(address)?;
        let forever = cache.is_none_or(|info| info.ifa_valid == u32::MAX);
        Some(Self {
            index: message.header.index,
            net: IpNet::new(ip, message.header.prefix_len).ok()?,
            peer: address.filter(|address| *address != ip),
            link_scope: !matches!(message.header.scope, AddressScope::Universe | AddressScope::Site),
            tentative: flags.contains(AddressFlags::Tentative),
            duplicate: flags.contains(AddressFlags::Dadfailed),
            permanent: flags.contains(AddressFlags::Permanent) || forever,
            secondary: flags.contains(AddressFlags::Secondary),
            label,
        })
    }
}

impl Netlink {
    /// Addresses of one link, or of all.
    ///
    /// # Errors
    /// When the kernel refuses the dump.
    pub async fn addresses(&self, index: Option<u32>) -> Result<Vec<Address>> {
        let request = move |handle: rtnetlink::Handle| {
            let request = handle.address().get();
            match index {
                Some(index) => request.set_link_index_filter(index).execute(),
                None => request.execute(),
            }
        };
        // Without strict checking the kernel ignores the filter.
        let read = move |message: AddressMessage| {
            let wanted = index.is_none_or(|index| index == message.header.index);
            wanted.then(|| Address::from_message(&message)).flatten()
        };
        self.list("list addresses", request, read).await
    }

    /// Adds an address; one that is there is a success. `no_dad` skips
    /// duplicate detection of IPv6, for addresses that OVN vouches for.
    ///
    /// # Errors
    /// When the link is missing or the kernel refuses.
    pub async fn add_address(&self, index: u32, net: IpNet, no_dad: bool) -> Result<()> {
        let mut request = self.handle.address().add(index, net.addr(), net.prefix_len());
        if no_dad && net.addr().is_ipv6() {
            let message = request.message_mut();
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        match request.execute().await {
            Ok(()) => {
                steps::done("add address").await;
                Ok(())
            }
            Err(error) => {
                let error = Error::netlink(format!("add address {net} to link {index}"), error);
                if error.is_existing() { Ok(()) } else { Err(error) }
            }
        }
    }

    /// Removes an address; a missing one is a success.
    ///
    /// # Errors
    /// Any other refusal.
    pub async fn delete_address(&self, index: u32, net: IpNet) -> Result<()> {
        let request = self.handle.address().add(index, net.addr(), net.prefix_len());
        let mut request = request;
        let message = request.message_mut().clone();
        match self.handle.address().del(message).execute().await {
            Ok(()) => {
                steps::done("remove address").await;
                Ok(())
            }
            Err(error) => {
                let error = Error::netlink(format!("remove address {net} of link {index}"), error);
                if error.is_missing() { Ok(()) } else { Err(error) }
            }
        }
    }
}
