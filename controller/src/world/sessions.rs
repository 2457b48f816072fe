//! BFD sessions of router ports in external networks (contract §4.6): whether the gateway
//! that a port is on reaches its peers.
//!
//! A port whose sessions are all down moves to its next gateway. The first one gets it back
//! when sessions are up again, but not at once: they are up on the other gateway, and what
//! broke the first one may still be broken. The pause doubles with every attempt that fails.
//! When they go down there too, or do not come up in time, it is the next one's turn, and so on;
//! after the last one the first one gets it back, at once if any of them was well. A try of the
//! first one that fails ends where the port was well before it.
//!
//! A session that was up on one gateway is told as up on the next one until that one has heard of
//! its peer, or for good if it hears nothing (seen with OVN 25.03: its ovn-controller begins at
//! down, and tells only changes). So a gateway on whose own node a peer is gets no port that is well
//! elsewhere as long as that peer does not answer: its wire is what is broken.
//!
//! What is known is known of one gateway. Where another one becomes the first, nothing is
//! known of it until the sessions have been judged on it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use super::{ByName, ReadKey, World};
use crate::view::{Lease, Standing};

/// Priorities of a port's first gateway: before anything is known of it, and then.
pub(crate) const FIRST: i64 = 100;
pub(crate) const RAISED: i64 = 101;
pub(crate) const LOWERED: i64 = 95;
/// Priority of a gateway behind the second one whose turn it is, before all others.
pub(crate) const TURN: i64 = 102;

/// The first pause, and how often it doubles at most.
const PAUSE_MS: u64 = 30_000;
const DOUBLINGS: u32 = 5;

/// How long sessions may take to come up on a gateway that gets the port while all are down.
const GRACE_MS: u64 = 5_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Session {
    Up,
    Down,
    /// Not told yet, or on its way up.
    Other,
}

#[derive(Default)]
struct Port {
    sessions: ByName<Session>,
    standing: Standing,
    /// The chassis that it is the standing of; `None` as long as two look alike.
    of: Option<Arc<str>>,
    /// When the first gateway gets the port back, and whether a session was up when that was decided.
    raise: Option<(u64, bool)>,
    /// When it got it back last.
    raised_at: Option<u64>,
    /// When the port moved last.
    moved_at: Option<u64>,
    /// A session was up since then.
    heard: bool,
    /// When the gateway that has it has had its time, if no session comes up.
    ends_at: Option<u64>,
    /// A session was up since the first gateway lost the port.
    worked: bool,
    /// How many others lost it since a session was up, or the first one had it.
    tried: usize,
    /// Where the port was well when the first one got it back.
    well: Option<Standing>,
    /// Attempts in a row that failed.
    failures: u32,
}

impl Port {
    fn pause(&self) -> u64 {
        PAUSE_MS << self.failures.min(DOUBLINGS)
    }

    /// The port moves.
    fn pass_on(&mut self, to: Standing, now: u64) {
        (self.standing, self.raise, self.heard, self.moved_at) = (to, None, false, Some(now));
    }

    /// `others`: the gateways behind the first one, in their order. `cut`: the peer on the first one's own node does not
    /// answer.
    fn judge(&mut self, now: u64, others: &[Arc<str>], cut: bool) {
        let up = self.sessions.values().any(|session| *session == Session::Up);
        let down = self.all_down();
        self.heard |= up;
        // A gateway that is none any more has no turn.
        if matches!(self.standing, Standing::Turn(_)) && self.place(others).is_none() {
            self.pass_on(Standing::Down, now);
        }
        if down && self.has_had_its_time(now) {
            self.give_up(now, others);
        }
        if up {
            (self.worked, self.tried) = (true, 0);
        }
        match self.standing {
            Standing::Unknown if up => self.standing = Standing::Up,
            Standing::Down | Standing::Turn(_) if (up && !cut) || (down && !others.is_empty()) => {
                // Where it was well until now is no better off than the first one.
                let over = down && self.worked && self.has_had_its_time(now);
                let pause = if over { 0 } else { self.pause() };
                let decided = self.raise.filter(|(at, was_up)| *was_up == up && *at <= now + pause);
                let (at, _) = *self.raise.insert(decided.unwrap_or((now + pause, up)));
                if now >= at {
                    self.well = up.then(|| self.standing.clone());
                    self.pass_on(Standing::Up, now);
                    (self.raised_at, self.heard) = (Some(now), up);
                }
            }
            Standing::Down | Standing::Turn(_) => self.raise = None,
            Standing::Unknown | Standing::Up => {}
        }
        let ends = match self.standing {
            Standing::Unknown => false,
            Standing::Up => true,
            Standing::Down | Standing::Turn(_) => self.worked || self.tried + 1 < others.len(),
        };
        let in_time = self.moved_at.map(|at| at + GRACE_MS).filter(|at| now < *at);
        self.ends_at = in_time.filter(|_| ends && down && !self.heard);
    }

    /// The gateway that has the port reaches nobody: another one gets it, if there is one to be tried.
    fn give_up(&mut self, now: u64, others: &[Arc<str>]) {
        if self.standing == Standing::Up {
            let soon = self.raised_at.is_some_and(|at| now < at + self.pause());
            self.failures = if soon { self.failures + 1 } else { 0 };
            let well = self.well.take().filter(|_| soon);
            self.pass_on(well.unwrap_or(Standing::Down), now);
            (self.worked, self.tried) = (false, 0);
            // Where it was well may be no gateway any more.
            if self.place(others).is_none() {
                self.standing = Standing::Down;
            }
        } else if let Some(place) = self.place(others)
            && self.tried + 1 < others.len()
            && let Some(next) = others.iter().cycle().nth(place + 1)
        {
            // The second one needs no word: it serves while the first one is lowered.
            let to = if place + 1 == others.len() { Standing::Down } else { Standing::Turn(next.clone()) };
            self.pass_on(to, now);
            self.tried += 1;
        }
    }

    /// The place among `others` of the gateway that has the port; `None` if it is none of them.
    fn place(&self, others: &[Arc<str>]) -> Option<usize> {
        match &self.standing {
            Standing::Turn(turn) => others.iter().position(|other| other == turn),
            Standing::Down => Some(0),
            Standing::Unknown | Standing::Up => None,
        }
    }

    /// Sessions that are down now were up on this gateway, or could have come up.
    fn has_had_its_time(&self, now: u64) -> bool {
        self.heard || self.moved_at.is_none_or(|at| now >= at + GRACE_MS)
    }

    fn all_down(&self) -> bool {
        self.sessions.values().all(|session| *session == Session::Down)
    }

    /// When time alone changes the judgement.
    fn wake_at(&self) -> Option<u64> {
        let raise = self.raise.map(|(at, _)| at);
        [raise, self.ends_at].into_iter().flatten().min()
    }
}

/// All ports that have sessions.
#[derive(Default)]
pub(super) struct Sessions {
    ports: ByName<Port>,
    stale: BTreeSet<Arc<str>>,
    /// Port and chassis of a gateway's row, by its name.
    rows: ByName<(Arc<str>, Arc<str>)>,
    /// Priorities in those rows: port, chassis.
    gateways: ByName<ByName<i64>>,
}

impl Sessions {
    pub(super) fn standing(&self, port: &str, chassis: &str) -> Standing {
        let Some(known) = self.ports.get(port) else { return Standing::Unknown };
        let same = match &known.of {
            Some(of) => **of == *chassis,
            None => self.priority(port, chassis) == Some(LOWERED),
        };
        if same { known.standing.clone() } else { Standing::Unknown }
    }

    fn priority(&self, port: &str, chassis: &str) -> Option<i64> {
        self.gateways.get(port)?.get(chassis).copied()
    }

    /// The first gateway as the rows show it, and what a controller wrote of it. With six
    /// gateways the last one has the priority of a first one that was lowered: then it is
    /// the one that is known to be.
    fn told(&self, port: &str) -> (Option<Arc<str>>, Standing) {
        let Some(gateways) = self.gateways.get(port) else { return (None, Standing::Unknown) };
        let with = |wanted: i64| {
            gateways.iter().filter(move |(_, priority)| **priority == wanted).map(|(chassis, _)| chassis)
        };
        for (priority, standing) in [(RAISED, Standing::Up), (FIRST, Standing::Unknown)] {
            if let Some(chassis) = with(priority).next() {
                return (Some(chassis.clone()), standing);
            }
        }
        let standing = with(TURN).next().map_or(Standing::Down, |turn| Standing::Turn(turn.clone()));
        let known = self.ports.get(port).and_then(|port| port.of.as_ref());
        let mut lowered = with(LOWERED);
        match (lowered.next(), lowered.next()) {
            (None, _) => (None, Standing::Unknown),
            (Some(only), None) => (Some(only.clone()), standing),
            _ => (known.filter(|of| gateways.get(*of) == Some(&LOWERED)).cloned(), standing),
        }
    }

    /// The gateways behind the first one, in their order. The one whose turn it is has lost its place among the
    /// priorities: it is where one is lacking. As long as two look like the first one, neither is here.
    fn others(&self, port: &str) -> Vec<Arc<str>> {
        let Some(gateways) = self.gateways.get(port) else { return Vec::new() };
        let of = self.ports.get(port).and_then(|port| port.of.as_ref());
        let first = |chassis: &Arc<str>, priority: i64| match of {
            Some(of) => of == chassis,
            None => priority == LOWERED,
        };
        let others = gateways.iter().filter(|(chassis, priority)| !first(chassis, **priority));
        let mut placed: Vec<(i64, &Arc<str>)> =
            others.map(|(chassis, priority)| (*priority, chassis)).collect();
        if let Some(turn) = placed.iter().position(|(priority, _)| *priority == TURN) {
            let has = |place: &i64| placed.iter().any(|(priority, _)| priority == place);
            let place = (0..FIRST).rev().find(|place| !has(place)).unwrap_or_default();
            placed[turn].0 = place;
        }
        placed.sort_by(|one, other| other.0.cmp(&one.0).then_with(|| one.1.cmp(other.1)));
        placed.into_iter().map(|(_, chassis)| chassis.clone()).collect()
    }

    /// When a port may go back.
    pub(super) fn wake_at(&self) -> Option<u64> {
        self.ports.values().filter_map(Port::wake_at).min()
    }
}

impl World {
    /// A session's row says so, or is gone. `key`: its natural key.
    pub fn session_row(&mut self, key: &str, status: Option<&str>) {
        let Some((port, peer)) = key.split_once('|') else { return };
        let sessions = &mut self.sessions.ports.entry(port.into()).or_default().sessions;
        match status {
            Some("up") => sessions.insert(peer.into(), Session::Up),
            Some("down") => sessions.insert(peer.into(), Session::Down),
            Some(_) => sessions.insert(peer.into(), Session::Other),
            None => sessions.remove(peer),
        };
        self.sessions.stale.insert(port.into());
    }

    /// A gateway's row has that port, chassis and priority, or is gone: what a controller
    /// before us made of the sessions, and who is the first. `key`: its natural key.
    pub fn gateway_row(&mut self, key: &str, row: Option<(Arc<str>, Arc<str>, i64)>) {
        let sessions = &mut self.sessions;
        let old = sessions.rows.remove(key);
        if let Some((port, chassis)) = &old
            && let Some(gateways) = sessions.gateways.get_mut(port)
        {
            gateways.remove(chassis);
            if gateways.is_empty() {
                sessions.gateways.remove(port);
            }
        }
        let ports = [old.map(|(port, _)| port), row.as_ref().map(|(port, ..)| port.clone())];
        if let Some((port, chassis, priority)) = row {
            sessions.rows.insert(key.into(), (port.clone(), chassis.clone()));
            sessions.gateways.entry(port).or_default().insert(chassis, priority);
        }
        // All rows of one change are looked at before anything is made of them.
        self.sessions.stale.extend(ports.into_iter().flatten());
    }

    /// Takes over what the rows of a port's gateways say.
    fn follow_rows(&mut self, name: &Arc<str>, now: u64) {
        let (of, told) = self.sessions.told(name);
        if of.is_none() && told == Standing::Unknown {
            return;
        }
        let port = self.sessions.ports.entry(name.clone()).or_default();
        if port.of == of && port.standing != Standing::Unknown {
            return;
        }
        if port.of != of {
            let sessions = std::mem::take(&mut port.sessions);
            *port = Port { sessions, ..Port::default() };
        }
        // Another controller has moved it, who knows when.
        port.moved_at = matches!(told, Standing::Down | Standing::Turn(_)).then_some(now);
        (port.of, port.standing) = (of, told);
    }

    /// The node of a port's first gateway is itself a peer, and none of its sessions is up.
    fn is_cut(&self, name: &str) -> bool {
        let Some(port) = self.sessions.ports.get(name) else { return false };
        let Some(eip) = self.ovn_eip(name) else { return false };
        let on_first = |peer: &Arc<Lease>| {
            let chassis = self.node(&peer.port).and_then(|node| node.chassis.clone());
            port.of.is_some() && chassis == port.of
        };
        let peers = self.peers(&eip.subnet);
        let ips = peers
            .iter()
            .filter(|peer| on_first(peer))
            .flat_map(|peer| [peer.v4.map(IpAddr::V4), peer.v6.map(IpAddr::V6)]);
        let mut own = ips.flatten().filter_map(|ip| port.sessions.get(ip.to_string().as_str())).peekable();
        own.peek().is_some() && own.all(|session| *session != Session::Up)
    }

    /// Judges ports whose sessions changed, or whose pause is over.
    pub fn judge_sessions(&mut self, now_ms: u64) {
        let mut ports = std::mem::take(&mut self.sessions.stale);
        let due = |port: &Port| port.wake_at().is_some_and(|at| at <= now_ms);
        ports.extend(self.sessions.ports.iter().filter(|(_, port)| due(port)).map(|(name, _)| name.clone()));
        for name in ports {
            let said = |port: Option<&Port>| port.map(|port| (port.of.clone(), port.standing.clone()));
            let before = said(self.sessions.ports.get(&name));
            self.follow_rows(&name, now_ms);
            let others = self.sessions.others(&name);
            let cut = self.is_cut(&name);
            if let Some(port) = self.sessions.ports.get_mut(&name) {
                port.judge(now_ms, &others, cut);
                if port.sessions.is_empty() {
                    self.sessions.ports.remove(&name);
                }
            }
            if before != said(self.sessions.ports.get(&name)) {
                self.changed.insert(ReadKey::Standing(name));
            }
        }
    }
}

#[cfg(test)]
#[path = "sessions_tests.rs"]
mod tests;
