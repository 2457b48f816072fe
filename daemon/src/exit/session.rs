//! One BFD session: asynchronous mode, passive role (RFC 5880 §6). Pure: packets and time in, packets out.
//!
//! Passive: it says nothing before it was spoken to, and falls silent when the other end was not heard for long.

use super::packet::{Packet, State, diagnostic};

/// Intervals in microseconds, and the multiplier that we announce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timers {
    /// How often we would like to send.
    pub desired_min_tx: u32,
    /// How often we can receive.
    pub required_min_rx: u32,
    /// Detection multiplier.
    pub detect_mult: u8,
}

impl Default for Timers {
    /// As fast as any peer of ours asks for: the slower side decides.
    fn default() -> Self {
        Self { desired_min_tx: 100_000, required_min_rx: 100_000, detect_mult: 3 }
    }
}

/// While a session is not up, nobody sends more often than this (RFC 5880 §6.8.3), microseconds.
pub const SLOW: u32 = 1_000_000;

/// A session. Times are microseconds of any clock that never goes back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    timers: Timers,
    mine: u32,
    yours: u32,
    state: State,
    diagnostic: u8,
    /// Of the other end, from its last packet.
    remote_min_rx: u32,
    remote_min_tx: u32,
    remote_mult: u8,
    /// When the last packet came.
    heard: Option<u64>,
    /// When the next one goes.
    next: Option<u64>,
    /// An answer to our question is still to come.
    polling: bool,
    /// What we announced last, and may not exceed before it was answered.
    announced_tx: u32,
}

impl Session {
    /// A session that has not been spoken to. `mine` is not 0.
    pub fn new(mine: u32, timers: Timers) -> Self {
        Self {
            timers,
            mine,
            yours: 0,
            state: State::Down,
            diagnostic: diagnostic::NONE,
            remote_min_rx: 1,
            remote_min_tx: 0,
            remote_mult: 0,
            heard: None,
            next: None,
            polling: false,
            announced_tx: SLOW,
        }
    }

    /// Its state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Its number.
    pub fn discriminator(&self) -> u32 {
        self.mine
    }

    /// How often we would like to send now.
    fn desired_min_tx(&self) -> u32 {
        let fast = self.timers.desired_min_tx;
        if self.state == State::Up { fast } else { fast.max(SLOW) }
    }

    /// The pause between two packets, without jitter; `None` when none may be sent.
    fn interval(&self) -> Option<u64> {
        let silent = self.yours == 0 || self.remote_min_rx == 0;
        // A longer interval counts from its announcement's answer on, a shorter one at once.
        let desired =
            if self.polling { self.desired_min_tx().min(self.announced_tx) } else { self.desired_min_tx() };
        let desired = if self.state == State::Up { desired } else { desired.max(SLOW) };
        (!silent).then(|| u64::from(desired.max(self.remote_min_rx)))
    }

    /// How long the other end may be silent.
    fn detection(&self) -> u64 {
        u64::from(self.remote_mult) * u64::from(self.timers.required_min_rx.max(self.remote_min_tx))
    }

    fn packet(&self) -> Packet {
        Packet {
            diagnostic: self.diagnostic,
            state: self.state,
            poll: false,
            last: false,
            detect_mult: self.timers.detect_mult,
            mine: self.mine,
            yours: self.yours,
            desired_min_tx: self.desired_min_tx(),
            required_min_rx: self.timers.required_min_rx,
        }
    }

    fn enter(&mut self, state: State, diagnostic: u8) {
        if self.state == state {
            return;
        }
        let before = self.desired_min_tx();
        (self.state, self.diagnostic) = (state, diagnostic);
        if self.desired_min_tx() != before {
            // The other end has to know (RFC 5880 §6.8.3).
            (self.polling, self.announced_tx) = (true, before);
        }
    }

    /// A packet of the other end came. The answer to be sent at once, if it asks for one.
    pub fn receive(&mut self, packet: &Packet, now: u64) -> Option<Packet> {
        if packet.yours != 0 && packet.yours != self.mine {
            return None;
        }
        self.yours = packet.mine;
        self.remote_min_rx = packet.required_min_rx;
        self.remote_min_tx = packet.desired_min_tx;
        self.remote_mult = packet.detect_mult;
        self.heard = Some(now);
        if packet.last {
            self.polling = false;
        }
        match (self.state, packet.state) {
            (State::AdminDown, _) | (State::Down, State::AdminDown | State::Up) => {}
            (_, State::AdminDown) => self.enter(State::Down, diagnostic::NEIGHBOUR_DOWN),
            (State::Down, State::Down) => self.enter(State::Init, diagnostic::NONE),
            (State::Down, State::Init) | (State::Init, State::Init | State::Up) => {
                self.enter(State::Up, diagnostic::NONE);
            }
            (State::Up, State::Down) => self.enter(State::Down, diagnostic::NEIGHBOUR_DOWN),
            (State::Init, State::Down) | (State::Up, State::Init | State::Up) => {}
        }
        match self.interval() {
            // What changed is told at once; otherwise packets go at their time.
            Some(interval) => {
                let at = if self.next.is_none() { now } else { now + interval };
                self.next = Some(self.next.map_or(at, |next| next.min(at)));
            }
            None => self.next = None,
        }
        packet.poll.then(|| Packet { last: true, ..self.packet() })
    }

    /// What is due: silence of the other end is noticed, and a packet may have to go. `jitter` is a number of 0 to 255
    /// that shortens the pause by up to a quarter (RFC 5880 §6.8.7).
    pub fn tick(&mut self, now: u64, jitter: u8) -> Option<Packet> {
        if self.expires_at().is_some_and(|at| at <= now) {
            if matches!(self.state, State::Init | State::Up) {
                self.enter(State::Down, diagnostic::EXPIRED);
            }
            // It speaks again by itself, or is gone for good.
            (self.yours, self.heard, self.next) = (0, None, None);
            self.remote_min_rx = 1;
        }
        let due = self.next.is_some_and(|next| next <= now);
        let interval = self.interval().filter(|_| due)?;
        // With a multiplier of 1 at most 90% of the interval.
        let (most, least) = if self.timers.detect_mult == 1 { (90, 75) } else { (100, 75) };
        let percent = most - (most - least) * u64::from(jitter) / 255;
        self.next = Some(now + (interval * percent / 100).max(1));
        Some(Packet { poll: self.polling, ..self.packet() })
    }

    fn expires_at(&self) -> Option<u64> {
        Some(self.heard? + self.detection())
    }

    /// When [`Session::tick`] has something to do next.
    pub fn wake_at(&self) -> Option<u64> {
        self.next.into_iter().chain(self.expires_at()).min()
    }

    /// It ends: what the other end is told, so that it need not wait for our silence.
    pub fn close(&mut self) -> Option<Packet> {
        let known = self.yours != 0;
        self.enter(State::AdminDown, diagnostic::ADMIN_DOWN);
        known.then(|| self.packet())
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
