//! Contract §10.

use rstest::rstest;
use serde_json::{Value, json};

use super::{cluster, database, lead, pod, schema};
use crate::compile::tests::fake::Families;
use crate::facts::{Kind, ObjectRef};
use crate::sim::Bench;

fn objects(bench: &Bench) -> String {
    let mut objects: Vec<ObjectRef> =
        vec![cluster(Kind::Namespace, "web"), cluster(Kind::Node, "n-1"), pod("a-0")];
    for kind in [Kind::Vpc, Kind::Subnet, Kind::Ip] {
        objects.extend(bench.api.names(kind));
    }
    let mut out = String::new();
    for object in objects {
        let mut value = bench.api.get(&object).cloned().unwrap();
        for field in ["resourceVersion", "uid", "generation", "creationTimestamp"] {
            value["metadata"].as_object_mut().unwrap().remove(field);
        }
        // Whether an empty message is written depends on how many patches there were.
        for condition in
            value.pointer_mut("/status/conditions").and_then(Value::as_array_mut).into_iter().flatten()
        {
            if condition["message"] == "" {
                condition.as_object_mut().unwrap().remove("message");
            }
        }
        let text = serde_json::to_string_pretty(&value).unwrap();
        out += &format!("{object} {text}\n");
    }
    out
}

#[rstest]
#[case(Families::V4, "ipv4")]
#[case(Families::V6, "ipv6")]
#[case(Families::Dual, "dual")]
fn rows_and_objects(#[case] families: Families, #[case] name: &str) {
    let mut bench = super::bench(families);
    lead(&mut bench, families);
    let address = families.pick("10.16.0.5", "fd00:10:16::5");
    let request = json!({
        "ovn.kubernetes.io/ip_address": address,
        "ovn.kubernetes.io/mac_address": "02:00:00:00:00:05",
    });
    bench.add_pod_with("a-0", "n-1", request);
    bench.settle();
    assert!(bench.core().quiet(), "{}", bench.core().status());
    assert!(bench.processes[0].events.iter().all(|event| !event.warning), "{:?}", bench.processes[0].events);
    for (kind, name) in [(Kind::Vpc, "Vpc"), (Kind::Subnet, "Subnet"), (Kind::Ip, "IP")] {
        for object in bench.api.names(kind) {
            let problems = schema::problems(name, bench.api.get(&object).unwrap());
            assert!(problems.is_empty(), "{object}: {problems:#?}");
        }
    }
    insta::with_settings!({ snapshot_suffix => name, omit_expression => true }, {
        insta::assert_snapshot!("rows", database::render(&bench.db.replica()));
        insta::assert_snapshot!("objects", objects(&bench));
    });
}
