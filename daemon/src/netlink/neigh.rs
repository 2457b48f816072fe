//! Is a neighbour there? Asked of the kernel's own ARP and ND.
//!
//! A neighbour entry with the `use` flag makes the kernel resolve the address
//! at once, by ARP or ND, with its own retransmission; the answer comes as an
//! event. No raw socket, one code for both families, and the entry is warm for
//! the pod's first packet.

use std::net::IpAddr;
use std::time::Duration;

use futures::StreamExt;
use futures::channel::mpsc::UnboundedReceiver;
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rtnetlink::sys::SocketAddr;
use rtnetlink::{MulticastGroup, new_multicast_connection};

use super::{Error, Mac, Netlink, Result};

/// Asks for neighbours in one namespace and waits for the kernel's answers.
#[derive(Debug)]
pub struct Reachability {
    netlink: Netlink,
    events: UnboundedReceiver<(NetlinkMessage<RouteNetlinkMessage>, SocketAddr)>,
}

impl Reachability {
    /// Opens the sockets in the calling thread's namespace.
    ///
    /// # Errors
    /// When a socket can't be opened.
    pub fn open_on(runtime: &tokio::runtime::Handle) -> Result<Self> {
        let _guard = runtime.enter();
        let (connection, handle, events) = new_multicast_connection(&[MulticastGroup::Neigh])
            .map_err(|source| Error::io("open a netlink socket", source))?;
        let driver = runtime.spawn(connection).abort_handle();
        let netlink = Netlink { handle, _driver: std::sync::Arc::new(super::Driver(driver)) };
        Ok(Self { netlink, events })
    }

    /// Resolves `address` on link `index`. `None` when nobody answered within
    /// `patience`; asked again whenever the kernel gave up.
    ///
    /// # Errors
    /// When the kernel refuses the request.
    pub async fn resolve(&mut self, index: u32, address: IpAddr, patience: Duration) -> Result<Option<Mac>> {
        let found = tokio::time::timeout(patience, async {
            self.ask(index, address).await?;
            while let Some((message, _)) = self.events.next().await {
                let NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(entry)) = message.payload
                else {
                    continue;
                };
                if entry.header.ifindex != index || destination(&entry) != Some(address) {
                    continue;
                }
                match entry.header.state {
                    NeighbourState::Incomplete => {}
                    NeighbourState::Failed => self.ask(index, address).await?,
                    _ => {
                        if let Some(mac) = mac_of(&entry) {
                            return Ok(Some(mac));
                        }
                    }
                }
            }
            Ok(None)
        })
        .await;
        found.unwrap_or(Ok(None))
    }

    async fn ask(&self, index: u32, address: IpAddr) -> Result<()> {
        self.netlink
            .handle
            .neighbours()
            .add(index, address)
            .state(NeighbourState::None)
            .flags(NeighbourFlags::Use)
            .replace()
            .execute()
            .await
            .map_err(|error| Error::netlink(format!("resolve {address} on link {index}"), error))
    }
}

fn destination(entry: &NeighbourMessage) -> Option<IpAddr> {
    entry.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => Some(IpAddr::V4(*ip)),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => Some(IpAddr::V6(*ip)),
        _ => None,
    })
}

fn mac_of(entry: &NeighbourMessage) -> Option<Mac> {
    entry.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => bytes.as_slice().try_into().ok().map(Mac),
        _ => None,
    })
}
