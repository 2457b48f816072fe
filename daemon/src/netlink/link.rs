//! Links: read, create veth pairs, change, delete.

use futures::{StreamExt, TryStreamExt};
use rtnetlink::packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use rtnetlink::{LinkMessageBuilder, LinkUnspec, LinkVeth};

use super::{Error, Mac, Netlink, Result};
use crate::sys::Namespace;

/// What the daemon uses of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Interface index.
    pub index: u32,
    /// Interface name.
    pub name: String,
    /// MAC; absent on links without one.
    pub mac: Option<Mac>,
    /// MTU in bytes.
    pub mtu: u32,
    /// Administratively up.
    pub up: bool,
    /// The lower layer is up too.
    pub running: bool,
    /// `veth`, `tun`, `bridge` …; absent on physical NICs.
    pub kind: Option<String>,
    /// Index of the peer or the lower device, in that one's namespace.
    pub peer: Option<u32>,
    /// Index of the bridge or bond that holds the link.
    pub controller: Option<u32>,
    /// Transmit queue length in packets.
    pub tx_queue_len: u32,
}

/// A veth pair to create.
#[derive(Clone, Debug)]
pub struct Veth<'a> {
    /// Name of the end that stays here.
    pub name: &'a str,
    /// Name of the other end.
    pub peer: &'a str,
    /// MAC of the other end; the kernel's choice if absent.
    pub peer_mac: Option<Mac>,
    /// Namespace that receives the other end; this one if absent.
    pub peer_namespace: Option<&'a Namespace>,
    /// MTU of both ends; the kernel's default if absent.
    pub mtu: Option<u32>,
}

impl Link {
    pub(super) fn from_message(message: &LinkMessage) -> Self {
        let mut link = Self {
            index: message.header.index,
            name: String::new(),
            mac: None,
            mtu: 0,
            up: message.header.flags.contains(LinkFlags::Up),
            running: message.header.flags.contains(LinkFlags::LowerUp),
            kind: None,
            peer: None,
            controller: None,
            tx_queue_len: 0,
        };
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name.clone_from(name),
                LinkAttribute::Address(bytes) => link.mac = bytes.as_slice().try_into().ok().map(Mac),
                LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
                LinkAttribute::Link(peer) => link.peer = Some(*peer),
                LinkAttribute::Controller(index) => link.controller = Some(*index),
                LinkAttribute::TxQueueLen(length) => link.tx_queue_len = *length,
                LinkAttribute::LinkInfo(info) => {
                    link.kind = info.iter().find_map(|info| match info {
                        LinkInfo::Kind(kind) => Some(kind.to_string()),
                        _ => None,
                    });
                }
                _ => {}
            }
        }
        link
    }
}

impl Netlink {
    /// All links of the namespace.
    ///
    /// # Errors
    /// When the kernel refuses the dump.
    pub async fn links(&self) -> Result<Vec<Link>> {
        let _dump = self.dumps.lock().await;
        let mut stream = std::pin::pin!(self.handle.link().get().execute());
        let mut links = Vec::new();
        while let Some(message) =
            stream.try_next().await.map_err(|error| Error::netlink("list links", error))?
        {
            links.push(Link::from_message(&message));
        }
        Ok(links)
    }

    /// The link of that name, if it exists.
    ///
    /// # Errors
    /// Any failure but a missing link.
    pub async fn link(&self, name: &str) -> Result<Option<Link>> {
        let mut stream = std::pin::pin!(self.handle.link().get().match_name(name.to_owned()).execute());
        match stream.next().await {
            None => Ok(None),
            Some(Ok(message)) => Ok(Some(Link::from_message(&message))),
            Some(Err(error)) => {
                let error = Error::netlink(format!("read link {name}"), error);
                if error.is_missing() { Ok(None) } else { Err(error) }
            }
        }
    }

    /// As [`Netlink::link`], with an error for a missing link.
    ///
    /// # Errors
    /// When the link is missing or can't be read.
    pub async fn require_link(&self, name: &str) -> Result<Link> {
        self.link(name).await?.ok_or_else(|| {
            Error::io(format!("read link {name}"), std::io::Error::from_raw_os_error(libc::ENODEV))
        })
    }

    /// Creates a veth pair in one request: names, MAC, MTU and the namespace
    /// of the other end included. The near end is up on return; the other must
    /// be set up from inside its namespace (the kernel answers `ENOTCONN`
    /// otherwise).
    ///
    /// # Errors
    /// `EEXIST` when either name is taken.
    pub async fn add_veth(&self, veth: &Veth<'_>) -> Result<()> {
        let mut peer = LinkMessageBuilder::<LinkUnspec>::new().name(veth.peer.to_owned());
        if let Some(mac) = veth.peer_mac {
            peer = peer.address(mac.0.to_vec());
        }
        if let Some(mtu) = veth.mtu {
            peer = peer.mtu(mtu);
        }
        if let Some(namespace) = veth.peer_namespace {
            peer = peer.setns_by_fd(namespace.raw_fd());
        }
        let mut near = LinkMessageBuilder::<LinkVeth>::new_with_info_kind(InfoKind::Veth)
            .name(veth.name.to_owned())
            .set_info_data(InfoData::Veth(InfoVeth::Peer(peer.build())))
            .txqueuelen(1000)
            .up();
        if let Some(mtu) = veth.mtu {
            near = near.mtu(mtu);
        }
        self.handle
            .link()
            .add(near.build())
            .execute()
            .await
            .map_err(|error| Error::netlink(format!("create veth {}", veth.name), error))
    }

    /// Deletes a link; a missing one is a success.
    ///
    /// # Errors
    /// Any other refusal.
    pub async fn delete_link(&self, name: &str) -> Result<()> {
        let message = LinkMessageBuilder::<LinkUnspec>::new().name(name.to_owned()).build();
        match self.handle.link().del_with_message(message).execute().await {
            Ok(()) => Ok(()),
            Err(error) => {
                let error = Error::netlink(format!("delete link {name}"), error);
                if error.is_missing() { Ok(()) } else { Err(error) }
            }
        }
    }

    /// Sets a link up.
    ///
    /// # Errors
    /// When the link is missing or the kernel refuses.
    pub async fn set_up(&self, index: u32) -> Result<()> {
        self.change(LinkUnspec::new_with_index(index).up().build(), format!("set link {index} up")).await
    }

    /// Sets a link's MAC.
    ///
    /// # Errors
    /// When the link is missing or the kernel refuses.
    pub async fn set_mac(&self, index: u32, mac: Mac) -> Result<()> {
        let message = LinkUnspec::new_with_index(index).address(mac.0.to_vec()).build();
        self.change(message, format!("set MAC {mac} of link {index}")).await
    }

    /// Sets a link's MTU.
    ///
    /// # Errors
    /// When the link is missing or the kernel refuses.
    pub async fn set_mtu(&self, index: u32, mtu: u32) -> Result<()> {
        let message = LinkUnspec::new_with_index(index).mtu(mtu).build();
        self.change(message, format!("set MTU {mtu} of link {index}")).await
    }

    /// Renames a link (it must be down).
    ///
    /// # Errors
    /// `EEXIST` when the name is taken.
    pub async fn rename(&self, index: u32, name: &str) -> Result<()> {
        let message = LinkUnspec::new_with_index(index).name(name.to_owned()).build();
        self.change(message, format!("rename link {index} to {name}")).await
    }

    /// Sets a link's transmit queue length.
    ///
    /// # Errors
    /// When the link is missing or the kernel refuses.
    pub async fn set_tx_queue_len(&self, index: u32, packets: u32) -> Result<()> {
        let message = LinkUnspec::new_with_index(index).txqueuelen(packets).build();
        self.change(message, format!("set the queue length of link {index}")).await
    }

    async fn change(&self, message: LinkMessage, operation: String) -> Result<()> {
        self.handle.link().set(message).execute().await.map_err(|error| Error::netlink(operation, error))
    }
}
