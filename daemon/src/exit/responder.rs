//! BFD over UDP (RFC 5881) in a network namespace: answers the peers that it may know.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use rand::Rng;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::packet::{LENGTH, Packet, State};
use super::session::{Session, Timers};
use crate::sys::{Namespace, receive_with_hops, tell_hops};

/// Where control packets go (RFC 5881 §4), and where they come from.
const PORT: u16 = 3784;
const SOURCES: std::ops::RangeInclusive<u16> = 49152..=65535;
/// What no router has passed on (RFC 5881 §5).
const HOPS: u32 = 255;

/// Answers as long as it lives. Without [`Responder::stop`] peers notice its end by its silence.
#[derive(Debug)]
pub struct Responder {
    peers: watch::Sender<BTreeSet<IpAddr>>,
    states: watch::Receiver<BTreeMap<IpAddr, State>>,
    stop: CancellationToken,
    task: JoinHandle<()>,
    namespace: Namespace,
}

impl Drop for Responder {
    fn drop(&mut self) {
        // One that was stopped has come to its end.
        self.task.abort();
    }
}

impl Responder {
    /// Listens in a namespace.
    ///
    /// # Errors
    /// When it can't be entered or a port not be had.
    pub async fn start(namespace: &Namespace) -> io::Result<Self> {
        let runtime = tokio::runtime::Handle::current();
        let links = namespace
            .run_async(move || {
                let _guard = runtime.enter();
                let v4 = Link::open(Domain::IPV4)?;
                // A kernel without IPv6 has no peers of it.
                Ok::<_, io::Error>([Some(v4), Link::open(Domain::IPV6).ok()])
            })
            .await??;
        let (peers, allowed) = watch::channel(BTreeSet::new());
        let (told, states) = watch::channel(BTreeMap::new());
        let stop = CancellationToken::new();
        let work = Work {
            links,
            allowed,
            told,
            stop: stop.clone(),
            began: Instant::now(),
            sessions: BTreeMap::new(),
        };
        Ok(Self { peers, states, stop, task: tokio::spawn(work.run()), namespace: namespace.clone() })
    }

    /// Whom it answers. Sessions of others end.
    pub fn allow(&self, peers: BTreeSet<IpAddr>) {
        self.peers.send_if_modified(|old| {
            let changed = *old != peers;
            *old = peers;
            changed
        });
    }

    /// Its sessions.
    pub fn states(&self) -> watch::Receiver<BTreeMap<IpAddr, State>> {
        self.states.clone()
    }

    /// It answers in that namespace, and goes on doing so.
    pub fn serves(&self, namespace: &Namespace) -> bool {
        self.namespace == *namespace && !self.task.is_finished()
    }

    /// Ends it; peers are told.
    pub async fn stop(mut self) {
        self.stop.cancel();
        // It only ends by itself; a panic of it is in the log.
        let _ = (&mut self.task).await;
    }
}

/// The sockets of one family.
struct Link {
    listener: UdpSocket,
    sender: UdpSocket,
}

impl Link {
    /// Opens them in the calling thread's namespace.
    fn open(domain: Domain) -> io::Result<Self> {
        let v4 = domain == Domain::IPV4;
        let any: IpAddr = if v4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = |port: u16| {
            let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
            socket.set_nonblocking(true)?;
            if v4 {
                socket.set_ttl_v4(HOPS)?;
            } else {
                socket.set_only_v6(true)?;
                socket.set_unicast_hops_v6(HOPS)?;
            }
            socket.bind(&SocketAddr::new(any, port).into())?;
            Ok::<_, io::Error>(socket)
        };
        let listener = socket(PORT)?;
        tell_hops(&listener, v4)?;
        let mut attempts = 0;
        let sender = loop {
            let port = rand::rng().random_range(SOURCES);
            match socket(port) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && attempts < 16 => attempts += 1,
                result => break result?,
            }
        };
        let watched = |socket: Socket| UdpSocket::from_std(socket.into());
        Ok(Self { listener: watched(listener)?, sender: watched(sender)? })
    }

    /// The next packet that no router has passed on, and whose it is.
    async fn receive(&self) -> io::Result<(IpAddr, Packet)> {
        loop {
            let read = || receive_once(&self.listener);
            if let Some(found) = self.listener.async_io(Interest::READABLE, read).await? {
                return Ok(found);
            }
        }
    }

    async fn send(&self, peer: IpAddr, packet: &Packet) {
        if let Err(error) = self.sender.send_to(&packet.bytes(), SocketAddr::new(peer, PORT)).await {
            tracing::debug!(%peer, error = %error, "a BFD packet could not be sent");
        }
    }
}

/// Reads one datagram; `None` for what is no packet to be acted on.
fn receive_once(socket: &UdpSocket) -> io::Result<Option<(IpAddr, Packet)>> {
    // Longer ones have something behind the packet.
    let mut bytes = [0u8; 2 * LENGTH];
    let got = receive_with_hops(socket, &mut bytes)?;
    let packet = bytes.get(..got.length).filter(|_| got.hops == Some(HOPS)).and_then(Packet::parse);
    Ok(got.from.map(|from| from.ip()).zip(packet))
}

struct Work {
    links: [Option<Link>; 2],
    allowed: watch::Receiver<BTreeSet<IpAddr>>,
    told: watch::Sender<BTreeMap<IpAddr, State>>,
    stop: CancellationToken,
    began: Instant,
    sessions: BTreeMap<IpAddr, Session>,
}

/// Waits for ever for a family that is not there.
async fn next(link: Option<&Link>) -> io::Result<(IpAddr, Packet)> {
    match link {
        Some(link) => link.receive().await,
        None => std::future::pending().await,
    }
}

impl Work {
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn link(&self, peer: IpAddr) -> Option<&Link> {
        let [v4, v6] = &self.links;
        if peer.is_ipv4() { v4.as_ref() } else { v6.as_ref() }
    }

    async fn send(&self, peer: IpAddr, packet: Option<Packet>) {
        if let (Some(link), Some(packet)) = (self.link(peer), packet) {
            link.send(peer, &packet).await;
        }
    }

    async fn run(mut self) {
        let stop = self.stop.clone();
        loop {
            self.tell();
            let wake = self.sessions.values().filter_map(Session::wake_at).min();
            let sleep = match wake {
                Some(at) => tokio::time::sleep(Duration::from_micros(at.saturating_sub(self.now()))),
                None => tokio::time::sleep(Duration::from_secs(3600)),
            };
            let [v4, v6] = &self.links;
            let heard = tokio::select! {
                () = stop.cancelled() => break,
                changed = self.allowed.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.dismiss(false).await;
                    continue;
                }
                heard = next(v4.as_ref()) => heard,
                heard = next(v6.as_ref()) => heard,
                () = sleep => {
                    self.tick().await;
                    continue;
                }
            };
            match heard {
                Ok((peer, packet)) => self.hear(peer, &packet).await,
                Err(error) => {
                    tracing::warn!(error = %error, "BFD packets can't be read");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
            // Under a flood others are served all the same.
            self.tick().await;
        }
        self.dismiss(true).await;
    }

    fn tell(&self) {
        let states: BTreeMap<IpAddr, State> =
            self.sessions.iter().map(|(peer, session)| (*peer, session.state())).collect();
        self.told.send_if_modified(|old| {
            let changed = *old != states;
            if changed {
                for (peer, state) in states.iter().filter(|(peer, state)| old.get(*peer) != Some(*state)) {
                    tracing::info!(%peer, ?state, "BFD session");
                }
                *old = states;
            }
            changed
        });
    }

    async fn hear(&mut self, peer: IpAddr, packet: &Packet) {
        if !self.allowed.borrow().contains(&peer) {
            return;
        }
        let now = self.now();
        if !self.sessions.contains_key(&peer) {
            let taken: BTreeSet<u32> = self.sessions.values().map(Session::discriminator).collect();
            let mut number = rand::rng().random_range(1..=u32::MAX);
            while taken.contains(&number) {
                number = number.checked_add(1).unwrap_or(1);
            }
            self.sessions.insert(peer, Session::new(number, Timers::default()));
        }
        let answer = self.sessions.get_mut(&peer).and_then(|session| session.receive(packet, now));
        self.send(peer, answer).await;
    }

    async fn tick(&mut self) {
        let now = self.now();
        let due: Vec<(IpAddr, Packet)> = self
            .sessions
            .iter_mut()
            .filter_map(|(peer, session)| Some((*peer, session.tick(now, rand::rng().random())?)))
            .collect();
        for (peer, packet) in due {
            self.send(peer, Some(packet)).await;
        }
    }

    /// Ends sessions of those that are not allowed any more, or all.
    async fn dismiss(&mut self, all: bool) {
        let allowed = self.allowed.borrow_and_update().clone();
        let gone: Vec<IpAddr> =
            self.sessions.keys().copied().filter(|peer| all || !allowed.contains(peer)).collect();
        for peer in gone {
            let last = self.sessions.remove(&peer).and_then(|mut session| session.close());
            self.send(peer, last).await;
        }
        self.tell();
    }
}
