use super::*;
use proptest::prelude::*;

/// The other end, as OVN plays it: active, speaks once a second until it is up.
struct Peer {
    state: State,
    yours: u32,
}

impl Peer {
    fn says(&self) -> Packet {
        Packet {
            state: self.state,
            detect_mult: 3,
            mine: 77,
            yours: self.yours,
            desired_min_tx: if self.state == State::Up { 100_000 } else { SLOW },
            required_min_rx: 100_000,
            ..Packet::default()
        }
    }

    fn hears(&mut self, packet: &Packet) {
        self.yours = packet.mine;
        self.state = match (self.state, packet.state) {
            (State::Down, State::Down) => State::Init,
            (State::Down, State::Init) | (State::Init, State::Init | State::Up) => State::Up,
            (_, State::AdminDown) | (State::Up, State::Down) => State::Down,
            (state, _) => state,
        };
    }
}

fn met() -> (Session, Peer, u64) {
    let (mut session, mut peer) = (Session::new(5, Timers::default()), Peer { state: State::Down, yours: 0 });
    let mut now = 0;
    for _ in 0..4 {
        if let Some(answer) = session.receive(&peer.says(), now) {
            peer.hears(&answer);
        }
        if let Some(packet) = session.tick(now, 0) {
            peer.hears(&packet);
        }
        now += 1_000_000;
        if peer.state == State::Up {
            now -= 1_000_000;
            session.receive(&peer.says(), now);
            break;
        }
    }
    assert_eq!((session.state(), peer.state), (State::Up, State::Up));
    (session, peer, now)
}

#[test]
fn it_is_silent_until_spoken_to_and_then_comes_up() {
    let mut session = Session::new(5, Timers::default());
    assert_eq!((session.tick(10_000_000, 0), session.wake_at()), (None, None));
    met();
}

#[test]
fn it_slows_down_while_down_and_asks_before_it_speeds_up() {
    let (mut session, mut peer, now) = met();
    // Up: ten times a second, with the question that announces it.
    let mut at = now;
    let mut sent = Vec::new();
    while at < now + 1_000_000 {
        at = session.wake_at().unwrap();
        if let Some(packet) = session.tick(at, 128) {
            sent.push((at, packet));
            peer.hears(&packet);
        }
        session.receive(&Packet { last: sent.len() == 3, ..peer.says() }, at);
    }
    assert!(sent.iter().take(3).all(|(_, packet)| packet.poll), "{sent:?}");
    assert!(sent.iter().skip(3).all(|(_, packet)| !packet.poll), "answered");
    assert!((9..=15).contains(&sent.len()), "{}", sent.len());
}

#[test]
fn silence_takes_it_down_after_the_multiplier_and_it_falls_silent() {
    let (mut session, _, now) = met();
    let mut last = now;
    while let Some(at) = session.wake_at() {
        last = at;
        session.tick(at, 0);
        assert!(at <= now + 3 * 100_000, "no later than the detection time");
    }
    assert_eq!(last, now + 300_000);
    assert_eq!(session.state(), State::Down);
    // It may be spoken to again, also by a peer that starts anew.
    let fresh = Packet { yours: 0, mine: 99, ..Peer { state: State::Down, yours: 0 }.says() };
    session.receive(&fresh, last);
    assert_eq!(session.state(), State::Init);
}

#[test]
fn what_the_other_end_says_is_followed() {
    for (said, state) in [(State::Down, State::Down), (State::AdminDown, State::Down), (State::Up, State::Up)]
    {
        let (mut session, peer, now) = met();
        session.receive(&Packet { state: said, ..peer.says() }, now);
        assert_eq!(session.state(), state, "{said:?}");
    }
    // A question is answered at once, a stranger's packet changes nothing.
    let (mut session, peer, now) = met();
    let answer = session.receive(&Packet { poll: true, ..peer.says() }, now).unwrap();
    assert!(answer.last && !answer.poll && answer.yours == 77);
    let before = session.clone();
    assert_eq!(session.receive(&Packet { yours: 1234, state: State::Down, ..peer.says() }, now), None);
    assert_eq!(session, before);
    // Who can't receive is not spoken to.
    session.receive(&Packet { required_min_rx: 0, ..peer.says() }, now);
    assert_eq!(session.tick(now + 200_000, 0), None);
}

#[test]
fn an_end_is_told() {
    let (mut session, mut peer, now) = met();
    let last = session.close().unwrap();
    assert_eq!((last.state, last.diagnostic), (State::AdminDown, diagnostic::ADMIN_DOWN));
    peer.hears(&last);
    assert_eq!(peer.state, State::Down);
    session.receive(&peer.says(), now);
    assert_eq!(session.state(), State::AdminDown, "it stays ended");
    assert_eq!(Session::new(5, Timers::default()).close(), None, "nobody is there to be told");
}

fn packets() -> impl Strategy<Value = Packet> {
    let states = prop_oneof![Just(State::AdminDown), Just(State::Down), Just(State::Init), Just(State::Up)];
    (
        states,
        any::<bool>(),
        any::<bool>(),
        1u8..6,
        prop_oneof![Just(0u32), Just(5), Just(6)],
        0u32..3_000_000,
        0u32..3_000_000,
    )
        .prop_map(|(state, poll, last, detect_mult, yours, desired_min_tx, required_min_rx)| Packet {
            state,
            poll,
            last,
            detect_mult,
            mine: 77,
            yours,
            desired_min_tx,
            required_min_rx,
            ..Packet::default()
        })
}

proptest! {
    /// Whatever is said to it: it is never up without having been heard in time, never sends faster than the other
    /// end can receive or, while not up, than once a second (less the jitter), and never without having been spoken to.
    #[test]
    fn laws(steps in proptest::collection::vec((proptest::option::of(packets()), 1u64..2_000_000, any::<u8>()), 1..80)) {
        let mut session = Session::new(5, Timers::default());
        let (mut now, mut spoken, mut sent): (u64, bool, Option<u64>) = (0, false, None);
        let mut min_rx = 0;
        for (packet, pass, jitter) in steps {
            if let Some(packet) = packet {
                if packet.yours != 6 {
                    (spoken, min_rx) = (true, packet.required_min_rx);
                }
                if let Some(answer) = session.receive(&packet, now) {
                    prop_assert!(packet.poll && answer.last && !answer.poll);
                }
                // A change may be told out of turn.
                sent = None;
            }
            let until = now + pass;
            while let Some(at) = session.wake_at().filter(|at| *at <= until) {
                now = now.max(at);
                let before = session.state();
                if let Some(out) = session.tick(now, jitter) {
                    prop_assert!(spoken && out.yours == 77 && out.mine == 5 && !out.last);
                    prop_assert!(min_rx != 0);
                    if let Some(sent) = sent {
                        let slow = if session.state() == State::Up { 100_000 } else { SLOW };
                        prop_assert!(now - sent >= u64::from(slow.max(min_rx)) * 75 / 100, "{} after {}", now, sent);
                    }
                    sent = Some(now);
                }
                if before == State::Up && session.state() != State::Up {
                    prop_assert_eq!(session.diagnostic, diagnostic::EXPIRED);
                }
                prop_assert!(session.wake_at().is_none_or(|next| next > now), "it always moves on");
            }
            now = until;
            if session.state() == State::Up {
                prop_assert!(session.heard.is_some_and(|heard| now <= heard + session.detection()));
            }
        }
    }
}
