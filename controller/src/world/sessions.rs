//! BFD sessions of router ports in external networks (contract §4.6): whether the gateway
//! that a port is on reaches its peers.
//!
//! A port whose sessions are all down moves to its next gateway. The first one gets it back
//! when sessions are up again, but not at once: they are up on the other gateway, and what
//! broke the first one may still be broken. The pause doubles with every attempt that fails.
//! When they go down there too, the first one gets it back at once: nobody else is left.
//!
//! What is known is known of one gateway. Where another one becomes the first, nothing is
//! known of it until the sessions have been judged on it.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{ByName, ReadKey, World};
use crate::view::Standing;

/// Priorities of a port's first gateway: before anything is known of it, and then.
pub(crate) const FIRST: i64 = 100;
pub(crate) const RAISED: i64 = 101;
pub(crate) const LOWERED: i64 = 95;

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
    /// A session was up since the port moved last.
    heard: bool,
    /// Attempts in a row that failed.
    failures: u32,
}

impl Port {
    fn pause(&self) -> u64 {
        PAUSE_MS << self.failures.min(DOUBLINGS)
    }

    /// `alone`: there is no other gateway.
    fn judge(&mut self, now: u64, alone: bool) {
        let up = self.sessions.values().any(|session| *session == Session::Up);
        let down = self.all_down();
        self.heard |= up;
        if self.standing == Standing::Up && down && self.has_had_its_time(now) {
            let soon = self.raised_at.is_some_and(|at| now < at + self.pause());
            self.failures = if soon { self.failures + 1 } else { 0 };
            (self.standing, self.raise, self.heard) = (Standing::Down, None, false);
        }
        match self.standing {
            Standing::Unknown if up => self.standing = Standing::Up,
            Standing::Down if up || (down && !alone) => {
                // What was well on the other gateway until now is no better off there than on the first one.
                let pause = if down && self.heard { 0 } else { self.pause() };
                let decided = self.raise.filter(|(_, was_up)| *was_up == up);
                let (at, _) = *self.raise.insert(decided.unwrap_or((now + pause, up)));
                if now >= at {
                    (self.standing, self.raise, self.raised_at) = (Standing::Up, None, Some(now));
                    self.heard = up;
                }
            }
            Standing::Down => self.raise = None,
            Standing::Unknown | Standing::Up => {}
        }
    }

    /// Sessions that are down now were up on this gateway, or could have come up.
    fn has_had_its_time(&self, now: u64) -> bool {
        self.heard || self.raised_at.is_none_or(|at| now >= at + GRACE_MS)
    }

    fn all_down(&self) -> bool {
        self.sessions.values().all(|session| *session == Session::Down)
    }

    /// When time alone changes the judgement.
    fn wake_at(&self) -> Option<u64> {
        // Sessions that do not come up after the port was given back are judged in the end.
        let tried =
            self.raised_at.filter(|_| self.standing == Standing::Up && self.all_down() && !self.heard);
        let raise = self.raise.map(|(at, _)| at);
        [raise, tried.map(|at| at + GRACE_MS)].into_iter().flatten().min()
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
        if same { known.standing } else { Standing::Unknown }
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
        let known = self.ports.get(port).and_then(|port| port.of.as_ref());
        let mut lowered = with(LOWERED);
        match (lowered.next(), lowered.next()) {
            (None, _) => (None, Standing::Unknown),
            (Some(only), None) => (Some(only.clone()), Standing::Down),
            _ => (known.filter(|of| gateways.get(*of) == Some(&LOWERED)).cloned(), Standing::Down),
        }
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
    fn follow_rows(&mut self, name: &Arc<str>) {
        let (of, told) = self.sessions.told(name);
        if of.is_none() && told == Standing::Unknown {
            return;
        }
        let port = self.sessions.ports.entry(name.clone()).or_default();
        if port.of == of && port.standing != Standing::Unknown {
            return;
        }
        if port.of != of {
            (port.raise, port.raised_at, port.failures, port.heard) = (None, None, 0, false);
        }
        (port.of, port.standing) = (of, told);
    }

    /// Judges ports whose sessions changed, or whose pause is over.
    pub fn judge_sessions(&mut self, now_ms: u64) {
        let mut ports = std::mem::take(&mut self.sessions.stale);
        let due = |port: &Port| port.wake_at().is_some_and(|at| at <= now_ms);
        ports.extend(self.sessions.ports.iter().filter(|(_, port)| due(port)).map(|(name, _)| name.clone()));
        for name in ports {
            let said = |port: Option<&Port>| port.map(|port| (port.of.clone(), port.standing));
            let before = said(self.sessions.ports.get(&name));
            self.follow_rows(&name);
            let alone = self.sessions.gateways.get(&name).is_none_or(|gateways| gateways.len() < 2);
            if let Some(port) = self.sessions.ports.get_mut(&name) {
                port.judge(now_ms, alone);
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
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn port(sessions: &[Session]) -> Port {
        let sessions = sessions.iter().enumerate().map(|(n, session)| (n.to_string().into(), *session));
        Port { sessions: sessions.collect::<BTreeMap<_, _>>(), ..Port::default() }
    }

    impl Port {
        fn raise_at(&self) -> Option<u64> {
            self.raise.map(|(at, _)| at)
        }
    }

    #[test]
    fn the_first_gateway_gets_the_port_back_after_a_pause_that_grows() {
        let mut port = port(&[Session::Other, Session::Down]);
        port.judge(0, false);
        assert_eq!(port.standing, Standing::Unknown, "what never was up is no reason to move");
        let set = |port: &mut Port, session| port.sessions.values_mut().for_each(|s| *s = session);
        let mut now = 0;
        let mut pauses = Vec::new();
        for _ in 0..8 {
            set(&mut port, Session::Up);
            port.judge(now, false);
            if let Some(at) = port.raise_at() {
                assert_eq!(port.standing, Standing::Down);
                port.judge(at - 1, false);
                assert_eq!(port.standing, Standing::Down, "not before its time");
                pauses.push(at - now);
                now = at;
                port.judge(now, false);
            }
            assert_eq!(port.standing, Standing::Up);
            set(&mut port, Session::Down);
            port.judge(now + 1, false);
            assert_eq!(port.standing, Standing::Down, "at once");
        }
        assert_eq!(pauses, [30, 60, 120, 240, 480, 960, 960].map(|s| s * 1000));
        // It holds for long: the next failure is a first one.
        set(&mut port, Session::Up);
        port.judge(now, false);
        now = port.raise_at().unwrap();
        port.judge(now, false);
        now += 960_001;
        set(&mut port, Session::Down);
        port.judge(now, false);
        set(&mut port, Session::Up);
        port.judge(now, false);
        assert_eq!(port.raise_at(), Some(now + PAUSE_MS));
    }

    #[test]
    fn one_peer_that_answers_is_enough() {
        let mut port = port(&[Session::Up, Session::Up]);
        port.judge(0, false);
        *port.sessions.values_mut().next().unwrap() = Session::Down;
        port.judge(1, false);
        assert_eq!(port.standing, Standing::Up);
        // One on its way up is no failure.
        port.sessions.values_mut().for_each(|session| *session = Session::Other);
        port.judge(2, false);
        assert_eq!(port.standing, Standing::Up);
    }

    /// The first gateway failed, the second one serves, and fails too: the first one is tried at once, and if that is no
    /// better, later and later. One without another has nothing to try.
    #[test]
    fn a_second_gateway_that_fails_gives_the_port_back() {
        let mut port = port(&[Session::Up, Session::Up]);
        let set = |port: &mut Port, session| port.sessions.values_mut().for_each(|s| *s = session);
        port.judge(0, false);
        set(&mut port, Session::Down);
        port.judge(1_000, false);
        assert_eq!(port.standing, Standing::Down);
        port.judge(2_000, false);
        assert_eq!(port.standing, Standing::Down, "they are on their way up on the second one");
        set(&mut port, Session::Up);
        port.judge(3_000, false);
        set(&mut port, Session::Down);
        port.judge(9_000, false);
        assert_eq!(port.standing, Standing::Up, "at once");
        port.judge(9_000 + GRACE_MS - 1, false);
        assert_eq!(port.standing, Standing::Up, "they may take a while");
        assert_eq!(port.wake_at(), Some(9_000 + GRACE_MS));
        let mut now = 9_000 + GRACE_MS;
        let mut pauses = Vec::new();
        for _ in 0..3 {
            port.judge(now, false);
            assert_eq!(port.standing, Standing::Down, "neither of them");
            port.judge(now, false);
            let at = port.wake_at().unwrap();
            pauses.push(at - now);
            port.judge(at, false);
            assert_eq!(port.standing, Standing::Up);
            now = at + GRACE_MS;
        }
        assert_eq!(pauses, [60, 120, 240].map(|s| s * 1000));
        port.judge(now, true);
        port.judge(now, true);
        assert_eq!((port.standing, port.wake_at()), (Standing::Down, None));
    }

    proptest! {
        /// Whatever happens, a port is never lowered while a peer answers on its first
        /// gateway, and judging twice at one time changes nothing.
        #[test]
        fn judgement_is_stable(steps in proptest::collection::vec((0u64..50_000, 0usize..3, 0usize..3), 1..60)) {
            let mut port = port(&[Session::Other; 3]);
            let mut now = 0;
            for (pass, peer, state) in steps {
                now += pass;
                let before = port.standing;
                let state = [Session::Up, Session::Down, Session::Other][state];
                *port.sessions.values_mut().nth(peer).unwrap() = state;
                port.judge(now, false);
                let after = (port.standing, port.raise_at());
                if before == Standing::Up && port.standing == Standing::Down {
                    prop_assert!(port.sessions.values().all(|session| *session == Session::Down));
                }
                port.judge(now, false);
                prop_assert_eq!(after, (port.standing, port.raise_at()));
            }
        }
    }
}
