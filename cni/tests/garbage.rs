//! Whatever the environment and standard input hold, the answer is an error object and never a panic.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests fail by panicking

use cni::environment::Environment;
use cni::plugin;
use proptest::prelude::*;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

const VERBS: [&str; 8] = ["ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION", "add", "\u{0}"];

fn json_like() -> impl Strategy<Value = String> {
    let key = prop_oneof![
        Just("cniVersion"),
        Just("name"),
        Just("type"),
        Just("server_socket"),
        Just("ipam"),
        Just("routes"),
        Just("dns"),
        Just("prevResult"),
        Just("cni.dev/valid-attachments"),
        Just("deviceID"),
        Just("provider"),
    ];
    let value = prop_oneof![
        Just(r#""1.1.0""#.to_owned()),
        Just(r#""0.4.0""#.to_owned()),
        Just(r#""kube-ovn""#.to_owned()),
        Just(r#""/nonexistent/socket""#.to_owned()),
        Just("null".to_owned()),
        Just("{}".to_owned()),
        Just("[]".to_owned()),
        Just(r#"[{"dst":null,"gw":"x"}]"#.to_owned()),
        Just(r#"{"interfaces":[{"name":1}],"ips":[{"interface":-1,"address":7}],"routes":{}}"#.to_owned()),
        Just(r#"{"server_socket":"/nonexistent/socket"}"#.to_owned()),
        "[ -~]{0,12}",
    ];
    prop::collection::vec((key, value), 0..12).prop_map(|members| {
        let members: Vec<_> = members.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect();
        format!("{{{}}}", members.join(","))
    })
}

fn run(verb: &str, values: Vec<Vec<u8>>, stdin: &[u8]) -> Result<(), TestCaseError> {
    let names = ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_NETNS_OVERRIDE", "OTHER"];
    let vars = names
        .iter()
        .zip(values)
        .map(|(name, value)| (OsString::from(name), OsString::from_vec(value)))
        .chain([("CNI_COMMAND".into(), verb.into())]);
    let outcome = plugin::run(&Environment::from_vars(vars), stdin);
    if outcome.status != 0 {
        let printed: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("an error object");
        prop_assert!(printed["code"].as_u64() > Some(0));
        prop_assert!(!printed["msg"].as_str().unwrap_or_default().is_empty());
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_bytes(
        verb in prop::sample::select(VERBS.to_vec()),
        values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 6),
        stdin in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        run(verb, values, &stdin)?;
    }

    #[test]
    fn nearly_right_configurations(
        verb in prop::sample::select(VERBS.to_vec()),
        netns in "/nonexistent/[a-z]{0,4}",
        stdin in json_like(),
    ) {
        let args = b"K8S_POD_NAME=a;K8S_POD_NAMESPACE=b".to_vec();
        let values = vec![b"c1".to_vec(), netns.into_bytes(), b"eth0".to_vec(), args, b"1".to_vec(), Vec::new()];
        run(verb, values, stdin.as_bytes())?;
    }
}
