//! Links: read, create veth pairs, change, delete.

use futures::StreamExt;
use rtnetlink::packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags,
    LinkInfo, LinkMessage,
};
use rtnetlink::{LinkMessageBuilder, LinkUnspec, LinkVeth};

use super::{Error, Mac, Netlink, Result};
use crate::steps;
use crate::sys::Namespace;

/// The group of links that are to be deleted: a number that nobody else uses.
const DOOMED: u32 = 0x7765_6972;

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
    /// The alias (`ip link set … alias`), by which ours are recognised under
    /// any name and in any namespace.
    pub alias: Option<String>,
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
            alias: None,
        };
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name.clone_from(name),
                LinkAttribute::Address(bytes) => link.mac = bytes.as_slice().try_into().ok().map(Mac),
                LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
                LinkAttribute::Link(peer) => link.peer = Some(*peer),
                LinkAttribute::IfAlias(alias) => link.alias = Some(alias.clone()),
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

/// The change that makes a link the switch's.
fn as_port(message: LinkMessageBuilder<LinkUnspec>) -> LinkMessage {
    let mode = AfSpecInet6::AddrGenMode(In6AddrGenMode::None);
    let family = LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(vec![mode])]);
    message.append_extra_attribute(family).up().promiscuous(true).build()
}

impl Netlink {
    /// All links of the namespace.
    ///
    /// # Errors
    /// When the kernel refuses the dump.
    pub async fn links(&self) -> Result<Vec<Link>> {
        let read = |message: LinkMessage| Some(Link::from_message(&message));
        self.list("list links", |handle| handle.link().get().execute(), read).await
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
        self.create_veth(veth, true).await
    }

    /// As [`Netlink::add_veth`], with the near end down.
    ///
    /// # Errors
    /// `EEXIST` when either name is taken.
    pub async fn add_veth_down(&self, veth: &Veth<'_>) -> Result<()> {
        self.create_veth(veth, false).await
    }

    /// As [`Netlink::set_up_port`], of a link that was made just now.
    ///
    /// # Errors
    /// When the link is missing or the kernel refuses.
    pub async fn set_up_new_port(&self, name: &str) -> Result<()> {
        self.make_port(|| LinkUnspec::new_with_name(name), format!("set port {name} up")).await
    }

    /// Sets a link up whose packets are the switch's: it is promiscuous, and the
    /// host gives it no link-local address. With one, a node has three routes more a pod, and
    /// ovs-vswitchd reads all routes again after each change of one.
    ///
    /// # Errors
    /// When the link is missing or the kernel refuses.
    pub async fn set_up_port(&self, index: u32) -> Result<()> {
        self.make_port(|| LinkUnspec::new_with_index(index), format!("set port {index} up")).await
    }

    async fn make_port(
        &self,
        link: impl Fn() -> LinkMessageBuilder<LinkUnspec>,
        operation: String,
    ) -> Result<()> {
        match self.change(as_port(link()), operation.clone()).await {
            // A kernel without IPv6, or a link without: no such address either.
            Err(error) if error.errno() == Some(libc::EAFNOSUPPORT) => {
                self.change(link().up().promiscuous(true).build(), operation).await
            }
            result => result,
        }
    }

    async fn create_veth(&self, veth: &Veth<'_>, up: bool) -> Result<()> {
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
            .txqueuelen(1000);
        if up {
            near = near.up();
        }
        if let Some(mtu) = veth.mtu {
            near = near.mtu(mtu);
        }
        self.handle
            .link()
            .add(near.build())
            .execute()
            .await
            .map_err(|error| Error::netlink(format!("create veth {}", veth.name), error))?;
        steps::done("create veth").await;
        Ok(())
    }

    /// Deletes a link; a missing one is a success.
    ///
    /// # Errors
    /// Any other refusal.
    pub async fn delete_link(&self, name: &str) -> Result<()> {
        let message = LinkMessageBuilder::<LinkUnspec>::new().name(name.to_owned()).build();
        match self.handle.link().del_with_message(message).execute().await {
            Ok(()) => {}
            Err(error) => {
                let error = Error::netlink(format!("delete link {name}"), error);
                return if error.is_missing() { Ok(()) } else { Err(error) };
            }
        }
        steps::done("delete link").await;
        Ok(())
    }

    /// Deletes several links in one go; missing ones are fine. The kernel waits
    /// for all processors once per request, tens of milliseconds with its big
    /// lock held: for a hundred links one request is as fast as for one.
    ///
    /// # Errors
    /// The first refusal; of the other links those that could be are deleted.
    pub async fn delete_links(&self, names: &[String]) -> Result<()> {
        if let [name] = names {
            return self.delete_link(name).await;
        }
        let mut result = Ok(());
        let mut marked = false;
        for name in names {
            let message = LinkUnspec::new_with_name(name).link_group(DOOMED).build();
            match self.change(message, format!("mark link {name} for deletion")).await {
                Ok(()) => marked = true,
                Err(error) if error.is_missing() => {}
                Err(error) => result = result.and(Err(error)),
            }
        }
        if marked {
            let message = LinkMessageBuilder::<LinkUnspec>::new().link_group(DOOMED).build();
            match self.handle.link().del_with_message(message).execute().await {
                Ok(()) => steps::done("delete links").await,
                Err(error) => {
                    let error = Error::netlink("delete links", error);
                    // Their other ends went with a namespace meanwhile.
                    if !error.is_missing() {
                        result = result.and(Err(error));
                    }
                }
            }
        }
        result
    }

    /// Sets a link up.
    ///
    /// # Errors
    /// When the link is missing or the kernel refuses.
    pub async fn set_up(&self, index: u32) -> Result<()> {
        self.change(LinkUnspec::new_with_index(index).up().build(), format!("set link {index} up")).await
    }

    /// Sets a link up and gives it an alias.
    ///
    /// # Errors
    /// When the link is missing or the kernel refuses.
    pub async fn set_up_as(&self, index: u32, alias: &str) -> Result<()> {
        let message = LinkUnspec::new_with_index(index).alias(alias).up().build();
        self.change(message, format!("set link {index} up")).await
    }

    /// Moves a link into another namespace, in one step with its alias and,
    /// if given, its new name. The link is down afterwards.
    ///
    /// # Errors
    /// `EEXIST` when the name is taken over there.
    pub async fn move_link(
        &self,
        index: u32,
        namespace: &Namespace,
        name: Option<&str>,
        alias: &str,
    ) -> Result<()> {
        let mut message =
            LinkUnspec::new_with_index(index).setns_by_fd(namespace.raw_fd()).alias(alias).down();
        if let Some(name) = name {
            message = message.name(name.to_owned());
        }
        self.change(message.build(), format!("move link {index} ({alias}) into the pod's namespace")).await
    }

    /// Gives a link a second name that it is found by.
    ///
    /// # Errors
    /// When the link is missing or the kernel refuses; one that is there is a success.
    pub async fn add_altname(&self, index: u32, name: &str) -> Result<()> {
        match self.handle.link().property_add(index).alt_ifname(&[name]).execute().await {
            Ok(()) => {}
            Err(error) => {
                let error = Error::netlink(format!("name link {index} {name} too"), error);
                return if error.is_existing() { Ok(()) } else { Err(error) };
            }
        }
        steps::done("name link").await;
        Ok(())
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
        let set = self.handle.link().set(message).execute().await;
        if let Err(error) = set {
            return Err(Error::netlink(operation, error));
        }
        steps::done(&operation).await;
        Ok(())
    }
}
