//! Changes of links, addresses, routes and rules, as they happen.

use futures::StreamExt;
use futures::channel::mpsc::UnboundedReceiver;
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::sys::SocketAddr;
use rtnetlink::{MulticastGroup, new_multicast_connection};
use tokio::sync::broadcast::{self, error::TryRecvError};

use super::{Address, Error, Link, Result, Route};

/// Something changed in the namespace. Level-triggered users re-read what they
/// care about; the payload only says whether they care.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A link appeared or changed.
    LinkChanged(Link),
    /// A link is gone.
    LinkGone(Link),
    /// An address appeared, changed or went.
    Address(Address),
    /// A route appeared or changed.
    RouteChanged(Route),
    /// A route is gone.
    RouteGone(Route),
    /// A policy rule changed.
    Rule,
    /// Something of the packet filter changed that may be ours.
    Filter,
    /// A set of ours changed.
    Sets,
    /// A setting (sysctl) of the link of this index changed, or of [all links](super::ALL_LINKS).
    Setting(i32),
    /// A queueing discipline, a class or a filter changed, here or in a pod.
    Traffic,
    /// The kernel dropped notifications: everything may have changed.
    Lost,
}

/// The changes that wait in a feed of them; none is waited for. [`Change::Lost`] stands for those that a slow reader missed.
pub fn waiting(changes: &mut broadcast::Receiver<Change>) -> impl Iterator<Item = Change> {
    std::iter::from_fn(|| match changes.try_recv() {
        Ok(change) => Some(change),
        Err(TryRecvError::Lagged(_)) => Some(Change::Lost),
        Err(TryRecvError::Empty | TryRecvError::Closed) => None,
    })
}

/// A stream of [`Change`]s of one namespace.
#[derive(Debug)]
pub struct Monitor {
    events: UnboundedReceiver<(NetlinkMessage<RouteNetlinkMessage>, SocketAddr)>,
    _driver: super::Driver,
}

impl Monitor {
    /// Subscribes in the calling thread's namespace.
    ///
    /// # Errors
    /// When the socket can't be opened.
    pub fn open_on(runtime: &tokio::runtime::Handle) -> Result<Self> {
        let _guard = runtime.enter();
        let (connection, _handle, events) = new_multicast_connection(&[
            MulticastGroup::Link,
            MulticastGroup::Ipv4Ifaddr,
            MulticastGroup::Ipv6Ifaddr,
            MulticastGroup::Ipv4Route,
            MulticastGroup::Ipv6Route,
            MulticastGroup::Ipv4Rule,
            MulticastGroup::Ipv6Rule,
        ])
        .map_err(|source| Error::io("open a netlink socket", source))?;
        let driver = runtime.spawn(connection).abort_handle();
        Ok(Self { events, _driver: super::Driver(driver) })
    }

    /// The next change; `None` when the socket died.
    pub async fn next(&mut self) -> Option<Change> {
        loop {
            let (message, _) = self.events.next().await?;
            if let Some(change) = change_of(message.payload) {
                return Some(change);
            }
        }
    }
}

fn change_of(payload: NetlinkPayload<RouteNetlinkMessage>) -> Option<Change> {
    match payload {
        NetlinkPayload::Overrun(_) => Some(Change::Lost),
        NetlinkPayload::InnerMessage(message) => match message {
            RouteNetlinkMessage::NewLink(link) => Some(Change::LinkChanged(Link::from_message(&link))),
            RouteNetlinkMessage::DelLink(link) => Some(Change::LinkGone(Link::from_message(&link))),
            RouteNetlinkMessage::NewAddress(address) | RouteNetlinkMessage::DelAddress(address) => {
                Address::from_message(&address).map(Change::Address)
            }
            RouteNetlinkMessage::NewRoute(route) => Route::from_message(&route).map(Change::RouteChanged),
            RouteNetlinkMessage::DelRoute(route) => Route::from_message(&route).map(Change::RouteGone),
            RouteNetlinkMessage::NewRule(_) | RouteNetlinkMessage::DelRule(_) => Some(Change::Rule),
            _ => None,
        },
        _ => None,
    }
}
