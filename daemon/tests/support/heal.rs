//! What tests of healing share: a ready node, and the wait until something is back.

use std::process::Command;
use std::time::{Duration, Instant};

use cni::api::CniRequest;
use daemon::kube::PodFacts;
use daemon::ovs::View;
use daemon::sys::Namespace;

use super::agent::Machine;
use super::{Process, new_namespace, request, routed_pod};

/// Far below the minute after which everything is looked at anyway.
pub const LIMIT: Duration = Duration::from_secs(25);

/// Polls: the agent is another process.
pub async fn heals(machine: &Machine, what: &str, healed: impl AsyncFn() -> bool) {
    let begin = Instant::now();
    while !healed().await {
        assert!(begin.elapsed() < LIMIT, "not healed: {what}\n{}", machine.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("{what}: back after {:?}", begin.elapsed());
}

/// A program's output in a namespace; it must succeed.
pub fn run(namespace: &Namespace, line: &str) -> String {
    let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
    let output = namespace.run(move || Command::new(&words[0]).args(&words[1..]).output().unwrap()).unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A ready node; `before` runs ahead of the agent.
pub async fn node_after(before: impl FnOnce(&Machine)) -> (Machine, Process) {
    let machine = Machine::boot().await;
    before(&machine);
    let agent = machine.start_agent();
    machine.wait_ready().await;
    (machine, agent)
}

pub async fn node() -> (Machine, Process) {
    node_after(|_| ()).await
}

/// A pod on it.
pub async fn plugged(machine: &Machine, pairs: &[(&str, &str)]) -> (PodFacts, Namespace, CniRequest, String) {
    let (mut pod, namespace) = (routed_pod(1), new_namespace());
    for (key, value) in pairs {
        pod.annotations.insert(crds::keys::pod_key("ovn", key), (*value).to_owned());
    }
    machine.route_pod(&pod);
    let request = request(&pod, &namespace, 1);
    machine.add(&request).await;
    let row = |view: &View| {
        let id = request.container_id.as_str();
        view.interfaces()
            .find(|row| row.external_id("container_id") == Some(id))
            .map(|row| row.name().to_owned())
    };
    let port = row(&machine.ovs.view()).unwrap();
    (pod, namespace, request, port)
}
