use super::*;

fn policed(rate: u32, burst: u32) -> PortQos {
    PortQos { policing_rate: rate, policing_burst: burst, discipline: None }
}

#[test]
fn the_pods_shaper_lets_packets_pass_at_any_rate() {
    let tbf = shaper(&policed(10_000, 8000), 1400);
    assert_eq!(tbf, Tbf { rate: 1_250_000, burst: 1_000_000, limit: 1_062_500 });
    // No burst asked for, a rate of a few bytes, the highest rate.
    for (rate, burst) in [(1000, 0), (1, 0), (u32::MAX, 0), (u32::MAX, u32::MAX)] {
        let tbf = shaper(&policed(rate, burst), 1400);
        assert!(tbf.burst >= 2 * 1418 && tbf.limit >= tbf.burst, "{tbf:?}");
    }
}

#[test]
fn every_word_is_listed() {
    let all = [
        Hold::Unlimited,
        Hold::Police,
        Hold::PodShaper,
        Hold::NodeShaper,
        Hold::Htb,
        Hold::Netem,
        Hold::Missing("x".into()),
    ];
    assert_eq!(all.each_ref().map(Hold::as_str), Hold::WORDS);
}

#[test]
fn what_was_lost_is_set_up_anew_once() {
    let htb = PortQos { discipline: Some(Discipline::Htb { max_rate: 8, burst: 8 }), ..PortQos::default() };
    let missing = || Hold::Missing("x".into());
    let effect = |egress, ingress| Effect { egress, ingress };
    let gone = effect(Hold::Unlimited, missing());
    let lost = |effect: &Effect, before: Option<&Effect>, wanted: &PortQos| {
        effect.without_lost(before, wanted) != *wanted
    };
    assert!(lost(&gone, Some(&effect(Hold::Unlimited, Hold::Htb)), &htb));
    assert!(lost(&gone, None, &htb), "a restart of the agent hides who took it away");
    assert!(!lost(&gone, Some(&gone), &htb), "a kernel without it is not asked again and again");
    assert!(!lost(&gone, None, &PortQos::default()));
    let shaper = effect(Hold::PodShaper, Hold::Htb);
    let both = PortQos { policing_rate: 8000, policing_burst: 800, ..htb.clone() };
    let kept = shaper.without_lost(Some(&effect(Hold::Police, Hold::Htb)), &both);
    assert_eq!(kept, htb, "what holds is left in place");
    assert!(!lost(&shaper, Some(&shaper), &both));
    assert_eq!(gone.crossed(), effect(missing(), Hold::Unlimited));
}

#[test]
fn reasons_name_the_direction() {
    let effect = Effect { egress: Hold::Missing("x".into()), ingress: Hold::Htb };
    assert_eq!(effect.missing().collect::<Vec<_>>(), [("egress", "x")]);
}

/// What the kernel shows of a netem that ovs-vswitchd set up.
fn shown(latency: u64, jitter: u64, limit: u32, loss: f64) -> Netem {
    let loss = (f64::from(u32::MAX) * (loss / 100.0)).floor() as u32;
    Netem { latency: latency * 1000, jitter: jitter * 1000, limit, loss }
}

#[test]
fn a_netem_of_other_values_is_missing() {
    let wanted = Discipline::Netem { latency: 20_000, jitter: 1000, limit: 0, loss: 3.0 };
    let right = shown(20_000, 1000, 1000, 3.0);
    assert_eq!(netem(&wanted, &right), Hold::Netem);
    assert_eq!(netem(&wanted, &Netem { latency: right.latency - 63, ..right }), Hold::Netem, "ticks");
    for other in [
        shown(10_000, 1000, 1000, 3.0),
        shown(20_000, 0, 1000, 3.0),
        shown(20_000, 1000, 500, 3.0),
        shown(20_000, 1000, 1000, 4.0),
    ] {
        let hold = netem(&wanted, &other);
        assert!(matches!(&hold, Hold::Missing(reason) if !reason.contains("whole")), "{hold:?}");
        let (effect, held) = (|ingress| Effect { egress: Hold::Unlimited, ingress }, Hold::Netem);
        let wanted = PortQos { discipline: Some(wanted), ..PortQos::default() };
        let first = effect(hold.clone()).without_lost(Some(&effect(held)), &wanted);
        assert_eq!(first, PortQos::default(), "it is set up anew");
        assert_eq!(effect(hold.clone()).without_lost(Some(&effect(hold)), &wanted), wanted, "once");
    }
    let all = Discipline::Netem { latency: 0, jitter: 0, limit: 7, loss: 100.0 };
    assert_eq!(netem(&all, &shown(0, 0, 7, 100.0)), Hold::Netem);
}

#[test]
fn losses_that_the_switch_does_not_carry_are_missing() {
    for (asked, carried) in [(0.5, 0.0), (12.5, 12.0), (12.5, 0.0)] {
        let wanted = Discipline::Netem { latency: 0, jitter: 0, limit: 0, loss: asked };
        let hold = netem(&wanted, &shown(0, 0, 1000, carried));
        assert!(matches!(&hold, Hold::Missing(reason) if reason.contains("whole percents")), "{hold:?}");
        assert_eq!(netem(&wanted, &shown(0, 0, 1000, asked)), Hold::Netem, "one that does");
    }
}
