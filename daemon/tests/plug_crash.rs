//! The agent dies after every single step of ADD and DEL, is started again,
//! and whatever the runtime does then, the state converges and nothing is
//! left. Against a real ovs-vswitchd and real namespaces.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::time::Duration;

use cni::api::{CheckRequest, CniRequest, ExpectedState};
use daemon::kube::{Fact, PodFacts};
use daemon::netlink::Netlink;
use daemon::plug::lost::Suspects;
use daemon::sys::Namespace;
use support::death::{killed_after, settle};
use support::{Node, addresses, answers, new_namespace, request, routed_pod};

/// What happens after the restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// The runtime repeats the call.
    Repeat,
    /// The runtime gives the sandbox up with DEL.
    Delete,
    /// Nobody ever calls again: pod and sandbox are gone.
    Forget,
}

async fn nothing_is_left(node: &Node, namespace: Option<&Namespace>, what: &str) {
    assert_eq!(node.pod_ports(), Vec::<String>::new(), "{what}: ports");
    assert_eq!(node.pod_links().await, Vec::<String>::new(), "{what}: links");
    if let Some(namespace) = namespace {
        // ovs-vswitchd takes an internal port's device away a moment later.
        let inside = Netlink::in_namespace(namespace).await.unwrap();
        for _ in 0..500 {
            if inside.link("eth0").await.unwrap().is_none() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{what}: eth0 is left in the pod");
    }
}

/// Everything about one attempt.
struct Attempt {
    pod: PodFacts,
    namespace: Namespace,
    request: CniRequest,
    /// Holds the path by which the agent knows the namespace: a descriptor's number may be another namespace's soon.
    folder: tempfile::TempDir,
}

fn attempt(node: &Node, number: u8, nic: &str) -> Attempt {
    let (mut pod, namespace) = (routed_pod(number), new_namespace());
    // Another pod of the same name: a port is made ready once for each.
    pod.uid = uuid::Uuid::new_v4().to_string();
    pod.annotations.insert(crds::keys::pod_key("ovn", "pod_nic_type"), nic.into());
    pod.annotations.insert(crds::keys::pod_key("ovn", "ingress_rate"), "20".into());
    pod.annotations.insert(
        crds::keys::pod_key("ovn", "routes"),
        r#"[{"dst":"192.168.7.0/24","gw":"10.16.0.1"}]"#.into(),
    );
    node.route_pod(&pod);
    let mut request = request(&pod, &namespace, 1);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("netns");
    std::os::unix::fs::symlink(&request.net_ns, &path).unwrap();
    request.net_ns = path.to_str().unwrap().to_owned();
    Attempt { pod, namespace, request, folder }
}

/// What follows the restart, and that it ends well.
async fn recover(node: &Node, attempt: Attempt, then: Then, what: &str) {
    let Attempt { pod, namespace, request, folder } = attempt;
    let key = PodFacts::key(&pod.namespace, &pod.name);
    match then {
        Then::Repeat => {
            let answer = node.plugger.add(&request).await.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(addresses(&namespace, "eth0").await.len(), 2, "{what}");
            assert_eq!(node.pod_ports().len(), 1, "{what}: {:?}", node.pod_ports());
            let check = CheckRequest {
                request: request.clone(),
                expected: ExpectedState {
                    mac_address: answer.mac_address,
                    routes: answer.routes,
                    mtu: answer.mtu,
                    ..ExpectedState::default()
                },
            };
            node.plugger.check(&check).await.unwrap_or_else(|error| panic!("{what}: {error}"));
            node.plugger.del(&request).await.unwrap();
            nothing_is_left(node, Some(&namespace), what).await;
        }
        Then::Delete => {
            node.plugger.del(&request).await.unwrap_or_else(|error| panic!("{what}: {error}"));
            nothing_is_left(node, Some(&namespace), what).await;
        }
        Then::Forget => {
            node.plugger.cluster.pods.put(key.clone(), None);
            drop((namespace, folder));
            // The kernel takes a namespace down in its own time.
            let mut suspects = Suspects::default();
            for _ in 0..500 {
                node.plugger.clean_lost(&mut suspects).await;
                if node.pod_ports().is_empty() && node.pod_links().await.is_empty() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            nothing_is_left(node, None, what).await;
        }
    }
    node.plugger.cluster.pods.put(key, None);
}

const NICS: [&str; 2] = ["veth-pair", "internal-port"];

async fn add_dies(nic: &str, ahead: bool) {
    let mut node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let mut survived = Vec::new();
    for then in [Then::Repeat, Then::Delete, Then::Forget] {
        for steps in 1.. {
            let attempt = attempt(&node, 1, nic);
            if ahead {
                node.plugger.prepare().await;
                assert_eq!(node.plugger.prepared.waiting(), 1);
            }
            let died = killed_after(steps, node.plugger.add(&attempt.request)).await;
            let what = format!("{nic}, ahead {ahead}, ADD died after step {steps} ({died:?}), then {then:?}");
            settle(&node).await;
            node.restart_agent();
            if ahead && then == Then::Repeat && died.is_some() {
                // What the dead process held waits for nobody any more.
                node.plugger.add(&attempt.request).await.unwrap_or_else(|error| panic!("{what}: {error}"));
                let mut suspects = Suspects::default();
                for _ in 0..500 {
                    node.plugger.clean_lost(&mut suspects).await;
                    if node.pod_ports().len() == 1 && node.pod_links().await.len() == 1 {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
            if ahead && then == Then::Delete && died.is_some() {
                node.plugger.del(&attempt.request).await.unwrap();
                recover(&node, attempt, Then::Forget, &what).await;
            } else {
                recover(&node, attempt, then, &what).await;
            }
            match died {
                Some(step) => survived.push(step),
                None => break,
            }
        }
    }
    println!(
        "{nic}, ahead {ahead}: {} deaths survived: {:?}",
        survived.len(),
        &survived[..survived.len() / 3]
    );
    assert!(survived.len() >= 3 * 6, "{survived:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c_034_add_of_a_veth_pair_dies_after_every_step() {
    add_dies(NICS[0], false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c_034_add_of_an_internal_port_dies_after_every_step() {
    add_dies(NICS[1], false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c_034_add_of_a_port_made_ready_dies_after_every_step() {
    add_dies(NICS[0], true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c_037_del_dies_after_every_step() {
    let mut node = Node::start().await;
    let _controller = node.play_ovn_controller();
    for nic in NICS {
        for then in [Then::Delete, Then::Forget, Then::Repeat] {
            for steps in 1.. {
                let attempt = attempt(&node, 1, nic);
                node.plugger.add(&attempt.request).await.unwrap();
                let died = killed_after(steps, node.plugger.del(&attempt.request)).await;
                let what = format!("{nic}, DEL died after step {steps} ({died:?}), then {then:?}");
                settle(&node).await;
                node.restart_agent();
                recover(&node, attempt, then, &what).await;
                if died.is_none() {
                    break;
                }
            }
        }
    }
}

/// The same for the preparation itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_preparation_that_dies_leaves_nothing() {
    let mut node = Node::start().await;
    let _controller = node.play_ovn_controller();
    for steps in 1.. {
        let attempt = attempt(&node, 1, NICS[0]);
        let died = killed_after(steps, node.plugger.prepare()).await;
        settle(&node).await;
        node.restart_agent();
        recover(&node, attempt, Then::Forget, &format!("preparation died after step {steps} ({died:?})"))
            .await;
        if died.is_none() {
            assert!(steps > 2);
            break;
        }
    }
}

/// The agent dies while it gives a running pod back what it lost. The row is all that tells how; its successor has to find
/// it, or what stands for it, and nobody may take it for a leftover meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mending_dies_after_every_step() {
    let mut node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let notes = |node: &Node| {
        let view = node.ovs.view();
        view.root_external_ids().filter(|(key, _)| key.starts_with("weir-port-")).count()
    };
    let mut noted = 0;
    for nic in NICS {
        for then in [Then::Repeat, Then::Delete, Then::Forget] {
            for steps in 1.. {
                let attempt = attempt(&node, 1, nic);
                node.plugger.add(&attempt.request).await.unwrap();
                // The handle would keep the namespace alive.
                let inside = Netlink::in_namespace(&attempt.namespace).await.unwrap();
                inside.delete_link("eth0").await.unwrap();
                drop(inside);
                let died = killed_after(steps, node.plugger.replug(true)).await;
                let what = format!("{nic}, mending died after step {steps} ({died:?}), then {then:?}");
                settle(&node).await;
                noted += notes(&node);
                node.restart_agent();
                let mut suspects = Suspects::default();
                for _ in 0..3 {
                    node.plugger.clean_lost(&mut suspects).await;
                }
                if then == Then::Repeat {
                    // The runtime knows of nothing: the pod runs.
                    let result = node.plugger.replug(true).await;
                    assert!(result.failed.is_empty(), "{what}: {result:?}");
                    assert_eq!(addresses(&attempt.namespace, "eth0").await.len(), 2, "{what}");
                    assert!(answers(&attempt.namespace, "eth0", "10.16.0.1").await, "{what}");
                    assert_eq!(node.pod_ports().len(), 1, "{what}");
                    assert_eq!(notes(&node), 0, "{what}");
                }
                recover(&node, attempt, then, &what).await;
                assert_eq!(notes(&node), 0, "{what}");
                if died.is_none() {
                    break;
                }
            }
        }
    }
    assert!(noted > 0, "no death left a note");
}
