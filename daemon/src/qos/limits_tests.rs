use super::*;
use proptest::prelude::*;

fn of(pairs: &[(&'static str, &'static str)]) -> Result<Limits, Invalid> {
    read(|key| pairs.iter().find(|(name, _)| *name == key).map(|(_, value)| *value))
}

#[test]
fn k_161_the_pods_egress_is_policed_in_kbit() {
    let qos = of(&[("egress_rate", "1")]).unwrap().qos;
    assert_eq!((qos.policing_rate, qos.policing_burst, qos.discipline), (1000, 800, None));
    let burst = |text| of(&[("egress_rate", "10"), ("egress_burst", text)]).unwrap();
    assert_eq!(burst("3").qos.policing_burst, 3000);
    assert_eq!(burst("0").qos.policing_burst, 0, "a zero is honoured");
    let unreadable = burst("much");
    assert_eq!(unreadable.qos.policing_burst, 8000);
    assert!(unreadable.notes[0].contains("egress_burst"), "{:?}", unreadable.notes);
    assert_eq!(of(&[("egress_burst", "5")]).unwrap().qos, PortQos::default(), "no rate, no burst");
    // Less than a unit is a limit nevertheless.
    assert_eq!(of(&[("egress_rate", "0.0001")]).unwrap().qos.policing_rate, 1);
}

#[test]
fn k_162_the_pods_ingress_is_shaped_in_bit() {
    let htb = |pairs: &[(&'static str, &'static str)]| of(pairs).unwrap().qos.discipline.unwrap();
    assert_eq!(htb(&[("ingress_rate", "3")]), Discipline::Htb { max_rate: 3_000_000, burst: 300_000 });
    assert_eq!(
        htb(&[("ingress_rate", "3"), ("ingress_burst", "2")]),
        Discipline::Htb { max_rate: 3_000_000, burst: 250_000 }
    );
    assert_eq!(of(&[("ingress_rate", "0")]).unwrap().qos, PortQos::default());
}

#[test]
fn k_131_the_nodes_own_port_is_limited_the_other_way_round() {
    let node = |pairs: &[(&'static str, &'static str)]| {
        read_node(|key| pairs.iter().find(|(name, _)| *name == key).map(|(_, value)| *value))
    };
    let qos = node(&[("ingress_rate", "50"), ("egress_rate", "8"), ("egress_burst", "1"), ("latency", "9")]);
    let htb = Discipline::Htb { max_rate: 8_000_000, burst: 125_000 };
    let wanted = PortQos { policing_rate: 50_000, policing_burst: 40_000, discipline: Some(htb) };
    assert_eq!(qos.unwrap().qos, wanted, "delays are for pods");
    assert_eq!(node(&[("egress_rate", "x")]).unwrap_err().key, "egress_rate");
    let notes = node(&[("ingress_rate", "1"), ("ingress_burst", "x")]).unwrap().notes;
    assert!(notes[0].contains("ingress_burst"), "{notes:?}");
}

#[test]
fn delays_are_in_microseconds_and_yield_to_a_rate() {
    let delays = [("latency", "100"), ("jitter", "5"), ("limit", "2000"), ("loss", "12.5")];
    let netem = Discipline::Netem { latency: 100_000, jitter: 5000, limit: 2000, loss: 12.5 };
    assert_eq!(of(&delays).unwrap().qos.discipline, Some(netem));
    let both = of(&[delays.as_slice(), &[("ingress_rate", "1")]].concat()).unwrap();
    assert!(matches!(both.qos.discipline, Some(Discipline::Htb { .. })));
    assert!(both.notes[0].contains("no effect beside ingress_rate"), "{:?}", both.notes);
    assert_eq!(of(&[("latency", "0"), ("loss", "0")]).unwrap().qos.discipline, None);
}

#[test]
fn k_164_what_is_no_number_is_an_error_that_names_it() {
    for (key, value) in [
        ("ingress_rate", "abc"),
        ("egress_rate", "-1"),
        ("egress_rate", "NaN"),
        ("egress_rate", "inf"),
        ("ingress_rate", "1e300"),
        ("latency", "1.5"),
        ("latency", "99999999999"),
        ("jitter", "-3"),
        ("limit", "x"),
        ("limit", "4294967296"),
        ("loss", "101"),
    ] {
        let error = of(&[(key, value)]).unwrap_err();
        assert_eq!((error.key, error.value.as_str()), (key, value));
        assert!(!error.remedy.is_empty());
    }
}

proptest! {
    /// A limit that is asked for is never read as none, and nothing that can be read is out of its column's range.
    #[test]
    fn a_limit_stays_a_limit(rate in 1e-6f64..4_294_967.0, burst in proptest::option::of(0f64..1e6)) {
        let (rate, burst) = (rate.to_string(), burst.map(|burst| burst.to_string()));
        let limits = read(|key| match key {
            "ingress_rate" | "egress_rate" => Some(rate.as_str()),
            "ingress_burst" | "egress_burst" => burst.as_deref(),
            _ => None,
        }).unwrap();
        prop_assert!(limits.qos.policing_rate > 0);
        let shaped = matches!(limits.qos.discipline, Some(Discipline::Htb { max_rate, .. }) if max_rate > 0);
        prop_assert!(shaped);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,12}", key in 0usize..8) {
        let _ = read(|asked| (asked == KEYS[key]).then_some(text.as_str()));
    }
}
