//! The CNI socket as its callers see it: codes, bodies and log lines of every kind of call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use cni::api::{CniRequest, CniResponse};
use serde_json::{Value, json};
use support::agent::{Machine, call, pod_object};
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
        (add, with(|_| ()), 500, "the API server knows no such pod", "nothing is to be done"),
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
    // What nobody understands counts too.
    let gc = "/api/v1/gc";
    for path in [check, gc] {
        assert_eq!(ask(&machine, path, &json!("no object")).await.0, 400, "{path}");
    }
    // Every failure of an ADD is an event too, also of a pod that the agent's watch does not know (node contract §2.2).
    support::heal::heals(&machine, "failures are told", async || {
        let told = machine.api.told();
        ["validate-request", "provider", "get-pod"].iter().all(|stage| {
            told.iter().any(|event| {
                event["reason"] == "PodNetworkConfigureFailed"
                    && event["involvedObject"]["name"] == "pod-2"
                    && event["message"].as_str().unwrap().starts_with(&format!("stage={stage} "))
            })
        })
    })
    .await;
    let log = machine.log();
    for path in [add, del, check, gc] {
        let told = |line: &&str| line.contains(&format!("call=\"{path}\" status=400 took_ms="));
        assert!(log.lines().any(|line| told(&line)), "{path}\n{log}");
    }
    for (path, code) in [(add, 200), (add, 500), (check, 204), (del, 204)] {
        let line = log.lines().find(|line| line.contains(path) && line.contains(&format!("{code}")));
        let line = line.unwrap_or_else(|| panic!("{path} {code} is not in the log\n{log}"));
        assert!(line.contains("took_ms") && line.contains("pod-"), "{line}");
    }
    let metrics = machine.get("/metrics").await;
    for (path, code) in [(add, 200), (add, 500), (del, 204), (add, 400), (del, 400), (check, 400), (gc, 400)]
    {
        let series = format!("method=\"{path}\",status_code=\"{code}\"");
        assert!(metrics.contains(&series), "{series} is not in the metrics");
    }
}

/// L3 of the contract's §7.1: the watch of a busy node lags behind the kubelet. A pod that exists is waited for, for as
/// long as its call may take; one that does not, that has a successor, or is another node's, is refused at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_the_watch_does_not_know_yet_is_waited_for_and_one_that_does_not_exist_is_not() {
    let machine = Machine::boot().await;
    let _agent = machine.start_agent();
    machine.wait_ready().await;
    let (pod, namespace) = (routed_pod(1), new_namespace());
    machine.api.put_silently("pods", pod_object(&pod));
    let call = request(&pod, &namespace, 1);
    let late = async {
        // Thrice is 3.5 s of silence.
        machine.api.wait_asked("pods", "web/pod-1", 3).await;
        machine.route_pod(&pod);
    };
    let (answer, ()) = tokio::join!(machine.add(&call), late);
    assert_eq!(answer.ips[0].ip, "10.16.0.11");
    machine.del(&call).await;

    let mut elsewhere = pod_object(&routed_pod(2));
    elsewhere["spec"]["nodeName"] = json!("n2");
    machine.api.put_silently("pods", elsewhere);
    let mut hosts = pod_object(&routed_pod(3));
    hosts["spec"]["hostNetwork"] = json!(true);
    machine.api.put_silently("pods", hosts);
    machine.route_pod(&routed_pod(4));
    for (n, uid, words) in [
        (2, "", "belongs to node n2"),
        (3, "", "hostNetwork"),
        (4, "uid-before", "another one has its name"),
        (5, "", "no such pod"),
    ] {
        let mut call = request(&routed_pod(n), &namespace, n);
        call.pod_uid = uid.into();
        let (code, answer) = ask(&machine, "/api/v1/add", &serde_json::to_value(&call).unwrap()).await;
        assert!(code == 500 && answer.error.contains(words), "{n}: {answer:?}");
        assert_eq!(machine.api.asked("pods", &format!("web/pod-{n}")), 1, "the first answer is final");
    }

    // A static pod: the runtime knows it by its file's UID, the API server by its mirror's.
    let mut mirror = pod_object(&routed_pod(6));
    mirror["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!("uid-of-the-file");
    machine.api.put("pods", mirror);
    let mut call = request(&routed_pod(6), &namespace, 6);
    call.pod_uid = "uid-of-the-file".into();
    assert_eq!(machine.add(&call).await.ips[0].ip, "10.16.0.16");
    machine.del(&call).await;
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
