//! Is a neighbour there? Asked of the kernel's own ARP and ND.
//!
//! A neighbour entry with the `use` flag makes the kernel resolve the address
//! at once, by ARP or ND, with its own retransmission; the answer comes as an
//! event. No raw socket, one code for both families, and the entry is warm for
//! the pod's first packet.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use futures::channel::mpsc::UnboundedReceiver;
use futures::{FutureExt, StreamExt};
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::sys::SocketAddr;
use rtnetlink::{MulticastGroup, new_multicast_connection};

use super::{Error, Mac, Netlink, Result};

/// How often a question is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// The kernel's own: every second. For links that carry traffic.
    Gentle,
    /// Soon, then ever slower. OVS drops packets while it is being changed, and
    /// a second is long for a pod that starts. For links that nobody uses yet:
    /// the entry is made anew each time.
    Brisk,
}

impl Pace {
    /// Pause before the first repetition. The kernel repeats a question every
    /// second itself; after longer without any event something else happened.
    fn first(self) -> Duration {
        match self {
            Self::Gentle => Duration::from_millis(1500),
            Self::Brisk => Duration::from_millis(8),
        }
    }
}

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
        let netlink = Netlink::over(handle, driver);
        Ok(Self { netlink, events })
    }

    /// The socket that the questions go through, for other requests in the same namespace.
    pub fn netlink(&self) -> &Netlink {
        &self.netlink
    }

    /// Resolves `address` on link `index`, or confirms an entry that has grown
    /// old. `None` when nobody answered within `patience`; the kernel is asked
    /// again whenever it gave up.
    ///
    /// # Errors
    /// When the kernel refuses the request.
    pub async fn resolve(&mut self, index: u32, address: IpAddr, patience: Duration) -> Result<Option<Mac>> {
        Ok(self.resolve_all(index, &[address], patience, Pace::Gentle).await?.remove(&address))
    }

    /// As [`Reachability::resolve`], for several addresses at once. Those that
    /// nobody answered for are not in the result.
    ///
    /// # Errors
    /// When the kernel refuses a request.
    pub async fn resolve_all(
        &mut self,
        index: u32,
        addresses: &[IpAddr],
        patience: Duration,
        pace: Pace,
    ) -> Result<BTreeMap<IpAddr, Mac>> {
        let mut found = BTreeMap::new();
        // Events from before the questions are no answers to them.
        while let Some(Some(_)) = self.events.next().now_or_never() {}
        let asked = tokio::time::timeout(patience, async {
            let mut pause = pace.first();
            while found.len() < addresses.len() {
                for address in addresses {
                    if !found.contains_key(address)
                        && let Some(mac) = self.question(index, *address, pace).await?
                    {
                        found.insert(*address, mac);
                    }
                }
                // A link that loses its carrier loses its entries without a word.
                let answers = self.answers(index, addresses, &mut found);
                match tokio::time::timeout(pause, answers).await {
                    Ok(result) => result?,
                    Err(_) => pause = (pause * 2).min(Pace::Gentle.first()),
                }
            }
            Ok(())
        })
        .await;
        match asked {
            Ok(Err(error)) => Err(error),
            Ok(Ok(())) | Err(_) => Ok(found),
        }
    }

    /// As [`Reachability::resolve_all`], but what was confirmed before does not count: each has to answer now.
    ///
    /// # Errors
    /// When the kernel refuses a request.
    pub async fn confirm_all(
        &mut self,
        index: u32,
        addresses: &[IpAddr],
        patience: Duration,
    ) -> Result<BTreeMap<IpAddr, Mac>> {
        for address in addresses {
            let entry = self.entry(index, *address).await?;
            if entry.as_ref().is_some_and(|entry| matches!(verdict(entry), Verdict::Reachable(_))) {
                self.probe(index, *address).await?;
            }
        }
        self.resolve_all(index, addresses, patience, Pace::Gentle).await
    }

    /// Asks for one address, unless the kernel knows it for sure already.
    async fn question(&self, index: u32, address: IpAddr, pace: Pace) -> Result<Option<Mac>> {
        let entry = self.entry(index, address).await?;
        match entry.as_ref().map(verdict) {
            Some(Verdict::Reachable(mac)) => return Ok(Some(mac)),
            // The kernel would send the next question in a second.
            Some(Verdict::Unknown) if pace == Pace::Brisk => {
                self.forget(entry).await?;
                self.ask(index, address).await?;
            }
            Some(Verdict::Old) => self.probe(index, address).await?,
            Some(Verdict::Unknown | Verdict::Failed) | None => self.ask(index, address).await?,
        }
        Ok(None)
    }

    /// Takes events in until every address is found.
    async fn answers(
        &mut self,
        index: u32,
        addresses: &[IpAddr],
        found: &mut BTreeMap<IpAddr, Mac>,
    ) -> Result<()> {
        while found.len() < addresses.len() {
            let Some((message, _)) = self.events.next().await else {
                let gone = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
                return Err(Error::io("listen for neighbours", gone));
            };
            let NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(entry)) = message.payload
            else {
                continue;
            };
            let Some(address) = destination(&entry).filter(|address| addresses.contains(address)) else {
                continue;
            };
            if entry.header.ifindex != index || found.contains_key(&address) {
                continue;
            }
            match verdict(&entry) {
                Verdict::Reachable(mac) => {
                    found.insert(address, mac);
                }
                Verdict::Failed => self.ask(index, address).await?,
                Verdict::Old | Verdict::Unknown => {}
            }
        }
        Ok(())
    }

    async fn entry(&self, index: u32, address: IpAddr) -> Result<Option<NeighbourMessage>> {
        let family = if address.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet };
        let request =
            move |handle: rtnetlink::Handle| handle.neighbours().get().set_address_family(family).execute();
        let read = move |entry: NeighbourMessage| {
            (entry.header.ifindex == index && destination(&entry) == Some(address)).then_some(entry)
        };
        Ok(self.netlink.list("list neighbours", request, read).await?.pop())
    }

    async fn forget(&self, entry: Option<NeighbourMessage>) -> Result<()> {
        let Some(entry) = entry else { return Ok(()) };
        match self.netlink.handle.neighbours().del(entry).execute().await {
            Ok(()) => Ok(()),
            Err(error) => {
                let error = Error::netlink("forget a neighbour", error);
                if error.is_missing() { Ok(()) } else { Err(error) }
            }
        }
    }

    /// Makes the kernel resolve an address that it does not know.
    async fn ask(&self, index: u32, address: IpAddr) -> Result<()> {
        self.request(index, address, NeighbourState::None, NeighbourFlags::Use).await
    }

    /// Makes the kernel ask the known owner whether he is still there.
    async fn probe(&self, index: u32, address: IpAddr) -> Result<()> {
        self.request(index, address, NeighbourState::Probe, NeighbourFlags::empty()).await
    }

    async fn request(
        &self,
        index: u32,
        address: IpAddr,
        state: NeighbourState,
        flags: NeighbourFlags,
    ) -> Result<()> {
        self.netlink
            .handle
            .neighbours()
            .add(index, address)
            .state(state)
            .flags(flags)
            .replace()
            .execute()
            .await
            .map_err(|error| Error::netlink(format!("resolve {address} on link {index}"), error))
    }
}

/// What the kernel thinks of an entry.
enum Verdict {
    /// Confirmed lately.
    Reachable(Mac),
    /// Known, but not confirmed lately, or being confirmed.
    Old,
    /// Being resolved.
    Unknown,
    /// Nobody answered.
    Failed,
}

fn verdict(entry: &NeighbourMessage) -> Verdict {
    match (entry.header.state, mac_of(entry)) {
        (NeighbourState::Reachable | NeighbourState::Permanent | NeighbourState::Noarp, Some(mac)) => {
            Verdict::Reachable(mac)
        }
        (NeighbourState::Failed, _) => Verdict::Failed,
        (_, Some(_)) => Verdict::Old,
        (_, None) => Verdict::Unknown,
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
