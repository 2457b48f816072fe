use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn others(count: usize) -> Vec<Arc<str>> {
    (1..=count).map(|n| format!("c{n}").into()).collect()
}

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
    port.judge(0, &others(1), false);
    assert_eq!(port.standing, Standing::Unknown, "what never was up is no reason to move");
    let set = |port: &mut Port, session| port.sessions.values_mut().for_each(|s| *s = session);
    let mut now = 0;
    let mut pauses = Vec::new();
    for _ in 0..8 {
        set(&mut port, Session::Up);
        port.judge(now, &others(1), false);
        if let Some(at) = port.raise_at() {
            assert_eq!(port.standing, Standing::Down);
            port.judge(at - 1, &others(1), false);
            assert_eq!(port.standing, Standing::Down, "not before its time");
            pauses.push(at - now);
            now = at;
            port.judge(now, &others(1), false);
        }
        assert_eq!(port.standing, Standing::Up);
        set(&mut port, Session::Down);
        port.judge(now + 1, &others(1), false);
        assert_eq!(port.standing, Standing::Down, "at once");
    }
    assert_eq!(pauses, [30, 60, 120, 240, 480, 960, 960].map(|s| s * 1000));
    // It holds for long: the next failure is a first one.
    set(&mut port, Session::Up);
    port.judge(now, &others(1), false);
    now = port.raise_at().unwrap();
    port.judge(now, &others(1), false);
    now += 960_001;
    set(&mut port, Session::Down);
    port.judge(now, &others(1), false);
    set(&mut port, Session::Up);
    port.judge(now, &others(1), false);
    assert_eq!(port.raise_at(), Some(now + PAUSE_MS));
}

#[test]
fn one_peer_that_answers_is_enough() {
    let mut port = port(&[Session::Up, Session::Up]);
    port.judge(0, &others(1), false);
    *port.sessions.values_mut().next().unwrap() = Session::Down;
    port.judge(1, &others(1), false);
    assert_eq!(port.standing, Standing::Up);
    // One on its way up is no failure.
    port.sessions.values_mut().for_each(|session| *session = Session::Other);
    port.judge(2, &others(1), false);
    assert_eq!(port.standing, Standing::Up);
}

/// The first gateway failed, the second one serves, and fails too: the first one is tried at once, and if that is no
/// better, later and later. One without another has nothing to try.
#[test]
fn a_second_gateway_that_fails_gives_the_port_back() {
    let mut port = port(&[Session::Up, Session::Up]);
    let set = |port: &mut Port, session| port.sessions.values_mut().for_each(|s| *s = session);
    port.judge(0, &others(1), false);
    set(&mut port, Session::Down);
    port.judge(1_000, &others(1), false);
    assert_eq!(port.standing, Standing::Down);
    port.judge(2_000, &others(1), false);
    assert_eq!(port.standing, Standing::Down, "they are on their way up on the second one");
    set(&mut port, Session::Up);
    port.judge(3_000, &others(1), false);
    set(&mut port, Session::Down);
    port.judge(9_000, &others(1), false);
    assert_eq!(port.standing, Standing::Up, "at once");
    port.judge(9_000 + GRACE_MS - 1, &others(1), false);
    assert_eq!(port.standing, Standing::Up, "they may take a while");
    assert_eq!(port.wake_at(), Some(9_000 + GRACE_MS));
    let mut now = 9_000 + GRACE_MS;
    let mut pauses = Vec::new();
    for _ in 0..3 {
        port.judge(now, &others(1), false);
        assert_eq!(port.standing, Standing::Down, "neither of them");
        port.judge(now, &others(1), false);
        let at = port.wake_at().unwrap();
        pauses.push(at - now);
        port.judge(at, &others(1), false);
        assert_eq!(port.standing, Standing::Up);
        now = at + GRACE_MS;
    }
    assert_eq!(pauses, [60, 120, 240].map(|s| s * 1000));
    port.judge(now, &[], false);
    port.judge(now, &[], false);
    assert_eq!((&port.standing, port.wake_at()), (&Standing::Down, None));
}

/// The gateway that has the port, as its rows say: the first one is 0.
fn holder(port: &Port, others: &[Arc<str>]) -> usize {
    port.place(others).map_or(0, |place| place + 1)
}

/// Time passes on a network in which the gateways `whole` reach a peer, sessions following the port after a second;
/// what the port went through, until nothing changes for long or one that is whole has it.
fn walk(port: &mut Port, others: &[Arc<str>], whole: &[usize], now: &mut u64, until: u64) -> Vec<usize> {
    let mut path = vec![holder(port, others)];
    while *now < until {
        *now += 500;
        let state = if whole.contains(&holder(port, others)) { Session::Up } else { Session::Down };
        port.sessions.values_mut().for_each(|session| *session = state);
        let woken = port.wake_at();
        port.judge(*now, others, false);
        let has = holder(port, others);
        if path.last() != Some(&has) {
            path.push(has);
        }
        assert!(
            woken.is_none_or(|at| at + 500 > *now) || port.wake_at() != woken,
            "a wake-up without effect"
        );
        if whole.contains(&has) && port.heard {
            break;
        }
    }
    path
}

/// Wires are cut while all gateways live: each of them gets its turn, and the one that is whole keeps the port.
#[test]
fn the_only_gateway_that_is_whole_gets_the_port() {
    for count in 2..5 {
        let others = others(count - 1);
        for whole in 0..count {
            let mut port = port(&[Session::Up]);
            let mut now = 0;
            port.judge(now, &others, false);
            let path = walk(&mut port, &others, &[whole], &mut now, 600_000);
            assert_eq!(path, (0..=whole).collect::<Vec<_>>(), "of {count}, each once and in order");
            assert!(now <= 1_000 + (GRACE_MS + 1_000) * whole as u64, "{whole} of {count}: {now}");
            // That one is cut too, and another one is whole again: nobody waits for the pause.
            for other in (0..count).filter(|other| *other != whole) {
                let mut again = Port { sessions: port.sessions.clone(), ..Port::default() };
                (again.standing, again.heard, again.worked) = (port.standing.clone(), true, whole > 0);
                let from = now;
                let path = walk(&mut again, &others, &[other], &mut now.clone(), from + 600_000);
                assert_eq!(path.last(), Some(&other), "{path:?}");
                assert!(path.len() <= count + 1, "{path:?}");
            }
        }
    }
}

/// What is well elsewhere stays there while the first gateway's own node says that it is cut; where nothing is well,
/// the first one is tried all the same.
#[test]
fn a_gateway_that_is_cut_does_not_get_what_is_well_elsewhere() {
    let mut port = port(&[Session::Up, Session::Up]);
    let set = |port: &mut Port, session| port.sessions.values_mut().for_each(|s| *s = session);
    port.judge(0, &others(1), false);
    set(&mut port, Session::Down);
    port.judge(1, &others(1), true);
    *port.sessions.values_mut().next().unwrap() = Session::Up;
    port.judge(2, &others(1), true);
    assert_eq!((&port.standing, port.wake_at()), (&Standing::Down, None));
    port.judge(10_000_000, &others(1), true);
    assert_eq!(port.standing, Standing::Down);
    set(&mut port, Session::Up);
    port.judge(10_000_001, &others(1), false);
    assert_eq!(port.wake_at(), Some(10_000_001 + PAUSE_MS), "from when it is back");
    set(&mut port, Session::Down);
    port.judge(10_000_002, &others(1), true);
    assert_eq!(port.standing, Standing::Up, "nobody else is left");
}

/// The first gateway is tried while another one is well: a try that fails ends there, and not at one that is cut.
#[test]
fn a_try_that_fails_ends_where_the_port_was_well() {
    let others = others(2);
    let mut port = port(&[Session::Up]);
    let mut now = 0;
    port.judge(now, &others, false);
    assert_eq!(walk(&mut port, &others, &[2], &mut now, 600_000), [0, 1, 2]);
    for pause in [30, 60, 120, 240] {
        let before = port.raise_at().unwrap();
        port.judge(before - 1, &others, false);
        assert_eq!(holder(&port, &others), 2, "pause {pause}");
        now = before;
        port.judge(now, &others, false);
        assert_eq!(holder(&port, &others), 0);
        let path = walk(&mut port, &others, &[2], &mut now, before + 60_000);
        assert_eq!(path, [0, 2], "pause {pause}");
        port.judge(now, &others, false);
        assert_eq!(port.raise_at().map(|at| at - now), Some(pause * 2000), "the next one is later");
    }
    // It goes, and with it its turn.
    port.judge(now, &others[..1], false);
    assert_eq!(port.standing, Standing::Down);
}

/// What a controller wrote is what the next one knows: who is the first, who has its turn, and who comes after it.
#[test]
fn rows_say_whose_turn_it_is() {
    let known = |rows: &[(&str, i64)]| {
        let rows = rows.iter().map(|(chassis, priority)| (Arc::from(*chassis), *priority)).collect();
        let mut sessions = Sessions { gateways: BTreeMap::from([("p".into(), rows)]), ..Sessions::default() };
        let (of, standing) = sessions.told("p");
        sessions.ports.insert("p".into(), Port { of: of.clone(), ..Port::default() });
        let others = sessions.others("p");
        (
            of.as_deref().map(str::to_owned),
            standing,
            others.iter().map(|one| one.to_string()).collect::<Vec<_>>(),
        )
    };
    let first = Some("a".to_owned());
    let turn = |chassis: &str| Standing::Turn(chassis.into());
    let three = |all: [i64; 3]| known(&[("a", all[0]), ("c", all[1]), ("b", all[2])]);
    let order = vec!["c".to_owned(), "b".to_owned()];
    assert_eq!(three([100, 99, 98]), (first.clone(), Standing::Unknown, order.clone()));
    assert_eq!(three([101, 99, 98]), (first.clone(), Standing::Up, order.clone()));
    assert_eq!(three([95, 99, 98]), (first.clone(), Standing::Down, order.clone()));
    assert_eq!(three([95, 99, 102]), (first.clone(), turn("b"), order.clone()));
    assert_eq!(three([95, 102, 98]), (first.clone(), turn("c"), order));
    let (of, standing, others) = known(&[("a", 95), ("b", 99), ("c", 102), ("d", 97)]);
    assert_eq!((of, standing), (first, turn("c")));
    assert_eq!(others, ["b", "c", "d"]);
    // The sixth one looks like the first one.
    let (of, standing, others) = known(&[("a", 95), ("b", 99), ("c", 102), ("d", 97), ("e", 96), ("f", 95)]);
    assert_eq!((of, standing), (None, turn("c")));
    assert_eq!(others, ["b", "c", "d", "e"]);
}

/// None is whole: everybody has a turn, and then there are pauses that grow.
#[test]
fn where_none_is_whole_the_port_comes_to_rest() {
    let others = others(3);
    let mut port = port(&[Session::Up]);
    let mut now = 0;
    port.judge(now, &others, false);
    let path = walk(&mut port, &others, &[], &mut now, 1_000_000);
    let round = [0, 1, 2, 3];
    assert!(path.chunks(4).all(|part| round.starts_with(part)), "{path:?}");
    assert!((16..=24).contains(&path.len()), "{path:?}");
}

proptest! {
    /// Whatever happens, a port is never lowered while a peer answers on its first
    /// gateway, and judging twice at one time changes nothing.
    #[test]
    fn judgement_is_stable(
        count in 0_usize..4,
        steps in proptest::collection::vec((0u64..50_000, 0usize..3, 0usize..3), 1..60),
    ) {
        let others = others(count);
        let mut port = port(&[Session::Other; 3]);
        let mut now = 0;
        for (pass, peer, state) in steps {
            now += pass;
            let before = port.standing.clone();
            let state = [Session::Up, Session::Down, Session::Other][state];
            *port.sessions.values_mut().nth(peer).unwrap() = state;
            port.judge(now, &others, false);
            let after = (port.standing.clone(), port.raise_at());
            if before == Standing::Up && port.standing != Standing::Up {
                prop_assert!(port.sessions.values().all(|session| *session == Session::Down));
            }
            port.judge(now, &others, false);
            prop_assert_eq!(after, (port.standing.clone(), port.raise_at()));
            prop_assert!(port.wake_at().is_none_or(|at| at > now), "it would never sleep");
        }
    }
}
