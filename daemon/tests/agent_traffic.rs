//! Traffic settings through the whole agent: limits by annotation, complaints as events, external egress gateways, the
//! host's settings; and that a quiet node is not written to.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use daemon::kube::PodFacts;
use daemon::netlink::{Change, Monitor, Netlink};
use futures::FutureExt;
use serde_json::json;
use support::agent::{Machine, until};
use support::{new_namespace, request, routed_pod, wait_view};

fn annotate(pod: &mut PodFacts, key: &str, value: &str) {
    pod.annotations.insert(crds::keys::pod_key("ovn", key), value.into());
}

async fn limits(machine: &Machine, pod: &PodFacts) -> serde_json::Value {
    let asked = json!({"kind": "Pod", "namespace": pod.namespace, "name": pod.name});
    machine.ask("explain", asked).await["interfaces"][0]["limits"].take()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_113_k_114_annotations_limit_a_running_pod_and_bad_ones_are_told() {
    let machine = Machine::boot().await;
    let _agent = machine.start_agent();
    machine.wait_ready().await;
    let (mut pod, namespace) = (routed_pod(1), new_namespace());
    machine.route_pod(&pod);
    machine.add(&request(&pod, &namespace, 1)).await;
    assert!(limits(&machine, &pod).await.is_null());

    annotate(&mut pod, "egress_rate", "10");
    annotate(&mut pod, "ingress_rate", "20");
    machine.route_pod(&pod);
    until(&machine, "the limits", async || !limits(&machine, &pod).await.is_null()).await;
    let found = limits(&machine, &pod).await;
    assert_eq!(found["effect"], json!({"egress": "pod-shaper", "ingress": "htb"}), "{found}");
    until(&machine, "the event", async || machine.api.reasons().contains(&"PodQoSUpdated".into())).await;
    let metrics = machine.get("/metrics").await;
    for line in [
        "weir_limited_interfaces{direction=\"egress\",mechanism=\"pod-shaper\"} 1",
        "weir_limited_interfaces{direction=\"ingress\",mechanism=\"htb\"} 1",
        "rest_client_request_latency_seconds_count{verb=\"GET\",url=\"/api/v1/pods\"}",
        "rest_client_requests_total{code=\"200\",method=\"GET\"",
        "ovn_subnet_gateway_packets{hostname=\"n1\",subnet_name=\"ovn-default\"",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }

    annotate(&mut pod, "egress_rate", "abc");
    machine.route_pod(&pod);
    let told = async || machine.api.reasons().contains(&"ValidatePodNetworkFailed".into());
    until(&machine, "the complaint", told).await;
    let still = limits(&machine, &pod).await;
    assert_eq!(still["wanted"]["policing_rate"], 10_000, "the old limits stay");
    // A pod that asks for the same from the start does not start without its limit.
    let (mut other, inside) = (routed_pod(2), new_namespace());
    annotate(&mut other, "egress_rate", "abc");
    machine.route_pod(&other);
    let body = serde_json::to_value(request(&other, &inside, 1)).unwrap();
    let (code, answer) =
        support::agent::call(&machine.file("cni.sock"), "POST", "/api/v1/add", &body).await.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    assert!(code >= 400 && answer.contains("egress_rate") && answer.contains("abc"), "{code} {answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_130_external_egress_follows_the_subnet_and_its_pods() {
    let machine = Machine::boot().await;
    let agent = machine.start_agent();
    machine.wait_ready().await;
    let mut subnet = machine.api.get("subnets", "", "ovn-default").unwrap();
    subnet["spec"]["natOutgoing"] = json!(false);
    subnet["spec"]["externalEgressGateway"] = json!("172.30.0.1");
    subnet["spec"]["policyRoutingTableID"] = json!(1000);
    subnet["spec"]["policyRoutingPriority"] = json!(900);
    machine.api.put("subnets", subnet.clone());
    let rules = async || -> Vec<String> {
        let rules = machine.host.netlink.rules().await.unwrap();
        let ours = rules.into_iter().filter(|rule| rule.priority == 900);
        ours.map(|rule| format!("{} {}", rule.source.unwrap(), rule.table)).collect()
    };
    let routed = async || {
        let routes = machine.host.netlink.routes().await.unwrap();
        routes.iter().any(|route| route.table == 1000 && route.is_default())
    };
    until(&machine, "the route", routed).await;
    assert_eq!(rules().await, Vec::<String>::new());
    // ADD itself makes the rule: the first packet goes the right way.
    let (pod, namespace) = (routed_pod(1), new_namespace());
    machine.route_pod(&pod);
    machine.add(&request(&pod, &namespace, 1)).await;
    assert_eq!(rules().await, ["10.16.0.11/32 1000"]);
    // Somebody deletes it: the kernel's report is enough.
    for rule in machine.host.netlink.rules().await.unwrap().iter().filter(|rule| rule.priority == 900) {
        machine.host.netlink.delete_rule(rule).await.unwrap();
    }
    until(&machine, "the rule again", async || rules().await == ["10.16.0.11/32 1000"]).await;
    // One that is being deleted sends as long as its grace lasts.
    let deletion = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    machine.api.edit("pods", "web", "pod-1", &deletion);
    // The next pass is known by what it does.
    let (other, elsewhere) = (routed_pod(2), new_namespace());
    machine.route_pod(&other);
    machine.add(&request(&other, &elsewhere, 1)).await;
    assert_eq!(rules().await.len(), 2);
    machine.del(&request(&other, &elsewhere, 1)).await;
    machine.api.delete("pods", "web", "pod-2");
    until(&machine, "the other rule's end", async || rules().await.len() < 2).await;
    assert_eq!(rules().await, ["10.16.0.11/32 1000"]);
    // A new agent that does not know its pods yet takes nothing away.
    drop(agent);
    machine.api.refuse("pods", 503, usize::MAX);
    let asked = machine.api.queries("pods").len();
    let runtime = tokio::runtime::Handle::current();
    let mut monitor = machine.namespace.run(move || Monitor::open_on(&runtime).unwrap()).unwrap();
    let _agent = machine.start_agent();
    until(&machine, "questions for pods", async || machine.api.queries("pods").len() > asked + 2).await;
    assert_eq!(rules().await, ["10.16.0.11/32 1000"]);
    machine.api.refuse("pods", 503, 0);
    machine.wait_ready().await;
    assert_eq!(rules().await, ["10.16.0.11/32 1000"]);
    while let Some(Some(change)) = monitor.next().now_or_never() {
        assert!(!matches!(change, Change::Rule | Change::Lost), "the rule was taken away and came back");
    }
    // Forwarding, turned off behind the agent's back, comes with the next pass.
    machine.namespace.run(|| daemon::sys::write_sysctl("net/ipv4/ip_forward", "0").unwrap()).unwrap();
    machine.del(&request(&pod, &namespace, 1)).await;
    machine.api.delete("pods", "web", "pod-1");
    until(&machine, "the rule's end", async || rules().await.is_empty()).await;
    let forwards =
        machine.namespace.run(|| std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap()).unwrap();
    assert_eq!(forwards.trim(), "1");
    subnet["spec"]["externalEgressGateway"] = json!("");
    machine.api.put("subnets", subnet);
    until(&machine, "the route's end", async || !routed().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quiet_node_is_not_written_to() {
    let machine = Machine::boot().await;
    let agent = machine.start_agent();
    machine.wait_ready().await;
    let (mut pod, namespace) = (routed_pod(1), new_namespace());
    annotate(&mut pod, "egress_rate", "10");
    annotate(&mut pod, "mirror", "true");
    machine.route_pod(&pod);
    machine.add(&request(&pod, &namespace, 1)).await;
    let mirrored = |view: &daemon::ovs::View| {
        let uuid = view.bridge("br-int")?.get("mirrors")?.set_uuids().next()?;
        Some(view.mirror(&uuid)?.get("select_dst_port")?.set_uuids().count())
    };
    wait_view(&machine.ovs, "the mirror", |view| mirrored(view) == Some(1)).await;
    drop(agent);
    // A new agent finds everything as it should be.
    let before = machine.ovs.view().configurations().0;
    let _agent = machine.start_agent();
    machine.wait_ready().await;
    until(&machine, "the limits", async || !limits(&machine, &pod).await.is_null()).await;
    let metrics = machine.get("/metrics").await;
    let value = |name: &str| {
        let line = metrics.lines().find(|line| line.starts_with(name)).map(str::to_owned);
        line.and_then(|line| line.rsplit(' ').next().map(str::to_owned))
    };
    assert_eq!(value("weir_host_changes_total").as_deref(), Some("0"), "{}", machine.log());
    assert_eq!(
        value("ovs_client_request_latency_milliseconds_count"),
        None,
        "no transaction was sent: {}",
        machine.log()
    );
    assert_eq!(machine.ovs.view().configurations().0, before);
    let inside = Netlink::in_namespace(&namespace).await.unwrap();
    let index = inside.require_link("eth0").await.unwrap().index;
    assert!(inside.qdiscs(index).await.unwrap().iter().any(|qdisc| qdisc.tbf.is_some()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_tells_what_it_found_and_contradicting_flags_end_it() {
    let machine = Machine::boot().await;
    let _agent = machine.start_agent();
    machine.wait_ready().await;
    // This machine's ovn-controller is played: its control socket does not exist.
    until(&machine, "the finding", async || {
        machine.api.reasons().contains(&"PreflightFinding".into())
            && machine.log().contains("ovn-controller does not answer")
    })
    .await;
    let run = |arguments: Vec<String>| {
        let run = move || {
            let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_kube-ovn-daemon"));
            command.args(arguments).env("NODE_NAME", "n1").env_remove("KUBECONFIG").output().unwrap()
        };
        machine.namespace.run(run).unwrap()
    };
    let kubeconfig = format!("--kubeconfig={}", machine.file("kubeconfig").display());
    let ended = run(vec!["--mirror-iface=br-int".into(), kubeconfig.clone()]);
    assert!(!ended.status.success());
    let log = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(log.contains("--mirror-iface=br-int") && log.contains("remedy: keep mirror0"), "{log}");

    let socket = format!("--ovs-socket={}", machine.server.socket().display());
    let checked = run(vec!["--check".into(), socket, kubeconfig.clone()]);
    let text = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(text.contains("warning: ovn: ovn-controller does not answer"), "{text}");
    assert!(text.lines().last().unwrap().contains(" findings, "), "{text}");
    let nowhere = run(vec!["--check".into(), "--ovs-socket=/nowhere".into(), kubeconfig]);
    let text = String::from_utf8_lossy(&nowhere.stdout).into_owned();
    assert!(!nowhere.status.success() && text.contains("fatal: ovs:"), "{text}");
}
