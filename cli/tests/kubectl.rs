//! What `weir` asks of kubectl: a script stands in for it and answers as a cluster
//! would.

// Helpers of tests are tests too, which the lint can't see.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output, Stdio};

use rstest::rstest;

const KUBECTL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake-kubectl.sh");

fn weir(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(arguments.split(' '))
        .env("KUBECTL", KUBECTL)
        .env_remove("KUBE_OVN_NS")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

#[rstest]
#[case(
    "nbctl --no-leader-only show",
    "ovn-central-x",
    "ovn-central",
    "[ovn-nbctl] [--no-leader-only] [show]"
)]
#[case("sbctl list Chassis", "ovn-central-y", "ovn-central", "[ovn-sbctl] [list] [Chassis]")]
#[case("vsctl n1 show", "ovs-ovn-n1", "openvswitch", "[ovs-vsctl] [show]")]
#[case("ofctl n1 dump-flows br-int", "ovs-ovn-n1", "openvswitch", "[ovs-ofctl] [dump-flows] [br-int]")]
#[case(
    "appctl n1 -t ovs-vswitchd version",
    "ovs-ovn-n1",
    "openvswitch",
    "[ovs-appctl] [-t] [ovs-vswitchd] [version]"
)]
#[case("dpctl n1 show", "ovs-ovn-n1", "openvswitch", "[ovs-dpctl] [show]")]
#[case(
    "explain pod web/a-0",
    "kube-ovn-controller-b",
    "kube-ovn-controller",
    "[/kube-ovn/weir] [explain] [pod] [web/a-0] [--socket] [/run/kube-ovn/controller.sock]"
)]
#[case(
    "verify --json",
    "kube-ovn-controller-b",
    "kube-ovn-controller",
    "[/kube-ovn/weir] [verify] [--socket] [/run/kube-ovn/controller.sock] [--json]"
)]
#[case(
    "status --node n1 --json",
    "kube-ovn-cni-n1",
    "cni-server",
    "[/kube-ovn/weir] [status] [--socket] [/run/kube-ovn/daemon.sock] [--json]"
)]
fn becomes_kubectl_exec(
    #[case] line: &str,
    #[case] pod: &str,
    #[case] container: &str,
    #[case] program: &str,
) {
    let output = weir(line);
    let expected = format!(
        "EXEC: [--namespace] [kube-system] [exec] [--stdin] [{pod}] [--container] [{container}] [--] {program}"
    );
    assert_eq!(text(&output.stdout), expected, "{}", text(&output.stderr));
    // The exit code is that of the program in the pod.
    assert_eq!(output.status.code(), Some(7));
}

#[test]
fn a_node_without_a_switch_is_named() {
    let output = weir("vsctl n9 show");
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(error.contains("app=ovs") && error.contains("n9") && error.contains("kube-system"), "{error}");
}

#[test]
fn a_missing_kubectl_is_named() {
    let output = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["--kubectl", "/nonexistent/kubectl", "nbctl", "show"])
        .output()
        .unwrap();
    let error = text(&output.stderr);
    assert!(error.contains("/nonexistent/kubectl") && error.contains("--kubectl"), "{error}");
}

#[test]
fn a_silent_socket_is_named() {
    let output = weir("status --socket /nonexistent/controller.sock");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("nobody answers at /nonexistent/controller.sock"));
}
