//! The CNI socket as its callers see it: codes, bodies and log lines of every kind of call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use cni::api::{CniRequest, CniResponse};
use serde_json::{Value, json};
use support::agent::{Machine, call};
use support::{new_namespace, request, routed_pod};

async fn ask(machine: &Machine, path: &str, body: &Value) -> (u16, CniResponse) {
    let (code, body) = call(&machine.file("cni.sock"), "POST", path, body).await.unwrap();
    (code, serde_json::from_slice(&body).unwrap_or_default())
}

/// K144, K145, K146: each code of the contract over the real socket; a failure has words, its object and a remedy, and
/// every call is in the log with its path, code and duration.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_144_k_145_every_call_has_its_code_its_words_and_a_line_in_the_log() {
    let machine = Machine::boot().await;
    let _agent = machine.start_agent();
    machine.wait_ready().await;
    let (pod, namespace) = (routed_pod(1), new_namespace());
    machine.route_pod(&pod);
    let good = request(&pod, &namespace, 1);
    let with = |edit: fn(&mut CniRequest)| {
        let mut request = request(&routed_pod(2), &namespace, 2);
        edit(&mut request);
        serde_json::to_value(request).unwrap()
    };
    let whole = serde_json::to_value(&good).unwrap();
    let [add, del, check] = ["/api/v1/add", "/api/v1/del", "/api/v1/check"];
    let unknown = "pod web/pod-2 interface eth0: ";
    for (path, body, code, words, remedy) in [
        (add, json!("no object"), 400, "is not understood", "CNI executable"),
        (
            add,
            with(|r| r.provider = "lan.web".into()),
            400,
            "provider lan.web is not bound",
            "spec.provider lan",
        ),
        (add, with(|r| r.container_id = "a/b".into()), 400, "container_id", "container runtime"),
        (add, with(|r| r.device_id = "0000:01:00.2".into()), 400, "SR-IOV", "remove deviceID"),
        (add, with(|_| ()), 500, "not known on this node", "kubectl -n web get pod pod-2"),
        (check, with(|_| ()), 500, "the OVS port is gone", "delete the pod"),
        (del, json!(3), 400, "is not understood", "CNI executable"),
        (del, with(|r| r.container_id = String::new()), 400, "container_id", "container runtime"),
    ] {
        let (got, answer) = ask(&machine, path, &body).await;
        assert_eq!(got, code, "{path} {body}: {answer:?}");
        assert!(answer.error.contains(words) && answer.remedy.contains(remedy), "{path}: {answer:?}");
        let named = answer.error.starts_with(unknown);
        assert!(named || words == "is not understood", "{path}: {answer:?}");
    }
    assert_eq!(call(&machine.file("cni.sock"), "POST", "/api/v1/none", &json!({})).await.unwrap().0, 404);
    // DEL of what nobody knows, and the good calls.
    assert_eq!(ask(&machine, del, &with(|_| ())).await.0, 204);
    let (code, answer) = ask(&machine, add, &whole).await;
    assert_eq!((code, answer.error.as_str()), (200, ""));
    assert_eq!(ask(&machine, check, &whole).await.0, 204);
    assert_eq!(ask(&machine, del, &whole).await.0, 204);
    let log = machine.log();
    for (path, code) in [(add, 200), (add, 500), (check, 204), (del, 204)] {
        let line = log.lines().find(|line| line.contains(path) && line.contains(&format!("{code}")));
        let line = line.unwrap_or_else(|| panic!("{path} {code} is not in the log\n{log}"));
        assert!(line.contains("took_ms") && line.contains("pod-"), "{line}");
    }
    let metrics = machine.get("/metrics").await;
    for (path, code) in [(add, 200), (add, 500), (del, 204)] {
        let series = format!("method=\"{path}\",status_code=\"{code}\"");
        assert!(metrics.contains(&series), "{series} is not in the metrics");
    }
}

/// K195, K053: somebody else writes labels and annotations of the node all the time; nothing of it is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_195_what_others_write_meanwhile_survives() {
    let machine = Machine::boot().await;
    let agent = machine.start_agent();
    let mut written = 0;
    // Through the whole start, in which the agent writes its own.
    let socket = machine.file("cni.sock");
    while written < 20 || !matches!(call(&socket, "GET", "/api/v1/status", &json!({})).await, Ok((200, _))) {
        let others = json!({ format!("other/{written}"): "x" });
        let patch = json!({"metadata": {"labels": others, "annotations": others}});
        machine.api.edit("nodes", "", "n1", &patch).unwrap();
        written += 1;
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    drop(agent);
    let node = machine.api.get("nodes", "", "n1").unwrap();
    assert_eq!(node["metadata"]["annotations"][crds::keys::CHASSIS], "chassis-1", "the agent wrote too");
    for n in 0..written {
        assert_eq!(node["metadata"]["labels"][format!("other/{n}")], "x", "{n} of {written}");
        assert_eq!(node["metadata"]["annotations"][format!("other/{n}")], "x", "{n} of {written}");
    }
}
