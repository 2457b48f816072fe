//! The executable as a runtime calls it, against an agent made of a socket and canned answers.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests fail by panicking

use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

const EXECUTABLE: &str = env!("CARGO_BIN_EXE_kube-ovn");

/// What arrived at the fake agent.
struct Seen {
    head: String,
    body: Value,
}

/// An agent that gives the same answer to every request.
struct Agent {
    dir: tempfile::TempDir,
    seen: Receiver<Seen>,
}

impl Agent {
    fn answering(status: u16, body: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("s")).unwrap();
        let (sender, seen) = channel();
        let answer = if status == 204 {
            "HTTP/1.1 204 No Content\r\n\r\n".to_owned()
        } else {
            format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{body}", body.len())
        };
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let seen = read_request(&mut stream);
                let _ = stream.write_all(answer.as_bytes());
                if sender.send(seen).is_err() {
                    return;
                }
            }
        });
        Self { dir, seen }
    }

    fn socket(&self) -> String {
        self.dir.path().join("s").to_str().unwrap().to_owned()
    }

    fn conf(&self, version: &str) -> Value {
        json!({"cniVersion": version, "name": "kube-ovn", "type": "kube-ovn", "server_socket": self.socket()})
    }
}

fn read_request(stream: &mut UnixStream) -> Seen {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        bytes.push(byte[0]);
    }
    let head = String::from_utf8(bytes).unwrap();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("Content-Length: "))
        .map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    Seen { head, body: serde_json::from_slice(&body).unwrap_or(Value::Null) }
}

fn call(verb: &str, conf: &[u8], extra: &[(&str, &str)]) -> Output {
    let mut command = Command::new(EXECUTABLE);
    command
        .env_clear()
        .env("CNI_COMMAND", verb)
        .env("CNI_CONTAINERID", "c0ffee")
        .env("CNI_NETNS", "/proc/self/ns/net")
        .env("CNI_NETNS_OVERRIDE", "1")
        .env("CNI_IFNAME", "eth0")
        .env("CNI_PATH", "/opt/cni/bin")
        .env("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns1;K8S_POD_NAME=web-0;K8S_POD_UID=u-1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    for (key, value) in extra {
        if value.is_empty() {
            command.env_remove(key);
        } else {
            command.env(key, value);
        }
    }
    let mut child = command.spawn().unwrap();
    let _ = child.stdin.take().unwrap().write_all(conf);
    child.wait_with_output().unwrap()
}

fn stdout(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
}

fn bytes(value: &Value) -> Vec<u8> {
    serde_json::to_vec(value).unwrap()
}

const ANSWER: &str = r#"{"ips":[{"protocol":"IPv4","ip":"10.16.0.5","cidr":"10.16.0.0/16","gateway":"10.16.0.1"}],
    "mac_address":"00:00:00:11:22:33","routes":null,"mtu":1400,"nicname":"eth0","dns":{},"error":"","new":1}"#;

#[test]
fn add_posts_the_contracts_body_and_prints_the_result() {
    let agent = Agent::answering(200, ANSWER);
    let mut conf = agent.conf("0.3.1");
    conf["dns"] = json!({"nameservers": ["10.96.0.10"]});
    let output = call("ADD", &bytes(&conf), &[]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        stdout(&output),
        json!({
            "cniVersion": "0.3.1",
            "interfaces": [{"name": "eth0", "mac": "00:00:00:11:22:33", "sandbox": "/proc/self/ns/net"}],
            "ips": [{"version": "4", "interface": 0, "address": "10.16.0.5/16", "gateway": "10.16.0.1"}],
            "routes": [{"dst": "0.0.0.0/0", "gw": "10.16.0.1"}],
            "dns": {"nameservers": ["10.96.0.10"]},
        })
    );
    let seen = agent.seen.recv().unwrap();
    assert!(seen.head.starts_with("POST /api/v1/add HTTP/1.1\r\n"));
    assert_eq!(
        seen.body,
        json!({
            "cni_type": "kube-ovn", "pod_name": "web-0", "pod_namespace": "ns1", "container_id": "c0ffee",
            "net_ns": "/proc/self/ns/net", "if_name": "eth0", "provider": "ovn", "routes": [],
            "dns": {"nameservers": ["10.96.0.10"]}, "vf_driver": "", "deviceID": "",
            "vhost_user_socket_volume_name": "", "vhost_user_socket_name": "",
            "vhost_user_socket_consumption": "", "pod_uid": "u-1", "network": "kube-ovn",
        })
    );
}

#[test]
fn del_needs_neither_namespace_nor_pod_name() {
    let agent = Agent::answering(204, "");
    let output = call("DEL", &bytes(&agent.conf("1.0.0")), &[("CNI_NETNS", ""), ("CNI_ARGS", "")]);
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    let seen = agent.seen.recv().unwrap();
    assert!(seen.head.starts_with("POST /api/v1/del "));
    assert_eq!(seen.body["container_id"], "c0ffee");
    assert_eq!(seen.body["net_ns"], "");
    let gone = call("DEL", &bytes(&agent.conf("1.0.0")), &[("CNI_NETNS", "/var/run/netns/gone")]);
    assert!(gone.status.success());
}

#[test]
fn refusals_carry_words_code_and_remedy() {
    let agent = Agent::answering(500, r#"{"error":"no address yet","remedy":"see the controller"}"#);
    let output = call("ADD", &bytes(&agent.conf("1.0.0")), &[]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        stdout(&output),
        json!({
            "cniVersion": "1.0.0", "code": 11, "msg": "RPC failed",
            "details": "request ip return 500 no address yet; remedy: see the controller",
        })
    );
    let agent = Agent::answering(400, r#"{"error":"nonsense","code":7}"#);
    assert_eq!(stdout(&call("ADD", &bytes(&agent.conf("1.0.0")), &[]))["code"], 7);
    // Kube-OVN's agent answers some failures with an empty 200.
    let agent = Agent::answering(200, "");
    assert_eq!(stdout(&call("ADD", &bytes(&agent.conf("1.0.0")), &[]))["code"], 11);
    let agent = Agent::answering(500, "plain words");
    let output = stdout(&call("DEL", &bytes(&agent.conf("1.0.0")), &[]));
    assert_eq!(output["details"], "delete ip return 500 plain words");
}

#[test]
fn an_absent_agent_is_try_again_and_for_status_not_available() {
    let conf = json!({"cniVersion":"1.1.0","name":"n","type":"kube-ovn","server_socket":"/nonexistent/s"});
    for (verb, code) in [("ADD", 11), ("DEL", 11), ("STATUS", 50)] {
        let output = stdout(&call(verb, &bytes(&conf), &[]));
        assert_eq!(output["code"], code, "{verb}");
        assert!(output["details"].as_str().unwrap().contains("remedy: "), "{output}");
    }
}

#[test]
fn status_of_both_kinds_of_agent() {
    let ready = Agent::answering(200, r#"{"ready":true}"#);
    assert!(call("STATUS", &bytes(&ready.conf("1.1.0")), &[]).status.success());
    assert!(ready.seen.recv().unwrap().head.starts_with("GET /api/v1/status "));
    let not_ready = Agent::answering(503, r#"{"ready":false,"reason":"ovn0 is missing","remedy":"wait"}"#);
    let output = stdout(&call("STATUS", &bytes(&not_ready.conf("1.1.0")), &[]));
    assert_eq!(output["code"], 50);
    assert_eq!(output["details"], "ovn0 is missing; remedy: wait");
    let limited = Agent::answering(503, r#"{"ready":false,"limited":true,"reason":"OVS is down"}"#);
    assert_eq!(stdout(&call("STATUS", &bytes(&limited.conf("1.1.0")), &[]))["code"], 51);
    let older = Agent::answering(404, "404: Page Not Found");
    assert!(call("STATUS", &bytes(&older.conf("1.1.0")), &[]).status.success());
    assert_eq!(stdout(&call("STATUS", &bytes(&older.conf("1.0.0")), &[]))["code"], 1);
}

#[test]
fn check_sends_what_add_had_printed() {
    let agent = Agent::answering(204, "");
    let mut conf = agent.conf("0.4.0");
    assert_eq!(stdout(&call("CHECK", &bytes(&conf), &[]))["code"], 7, "prevResult is required");
    conf["prevResult"] = json!({
        "cniVersion": "0.4.0",
        "interfaces": [{"name": "eth0", "mac": "m", "sandbox": "/proc/self/ns/net"}],
        "ips": [{"version": "4", "interface": 0, "address": "10.16.0.5/16"}],
    });
    assert!(call("CHECK", &bytes(&conf), &[]).status.success());
    let seen = agent.seen.recv().unwrap();
    assert!(seen.head.starts_with("POST /api/v1/check "));
    assert_eq!(
        seen.body["expected"],
        json!({"mac_address": "m", "addresses": ["10.16.0.5/16"], "routes": [], "mtu": 0})
    );
    assert_eq!(seen.body["pod_name"], "web-0");
    assert_eq!(stdout(&call("CHECK", &bytes(&agent.conf("0.3.1")), &[]))["code"], 1);
}

#[test]
fn gc_passes_the_list_and_never_invents_an_empty_one() {
    let agent = Agent::answering(204, "");
    let mut conf = agent.conf("1.1.0");
    assert!(call("GC", &bytes(&conf), &[]).status.success());
    assert!(agent.seen.try_recv().is_err(), "without a list there is nothing to ask");
    conf["cni.dev/valid-attachments"] = json!([{"containerID": "c1", "ifname": "eth0"}]);
    assert!(call("GC", &bytes(&conf), &[]).status.success());
    assert_eq!(
        agent.seen.recv().unwrap().body,
        json!({
            "network": "kube-ovn", "cni_type": "kube-ovn", "provider": "ovn",
            "valid_attachments": [{"container_id": "c1", "if_name": "eth0"}],
        })
    );
}

#[test]
fn version_echoes_and_lists() {
    let output = call("VERSION", br#"{"cniVersion":"0.4.0"}"#, &[]);
    assert!(output.status.success());
    let supported = json!(["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]);
    assert_eq!(stdout(&output), json!({"cniVersion": "0.4.0", "supportedVersions": supported}));
    assert!(call("VERSION", b"", &[]).status.success());
}

#[test]
fn the_hosts_own_namespace_is_refused() {
    let agent = Agent::answering(200, ANSWER);
    let output = call("ADD", &bytes(&agent.conf("1.0.0")), &[("CNI_NETNS_OVERRIDE", "")]);
    assert_eq!(stdout(&output)["code"], 8);
}

#[test]
fn environment_and_arguments_are_checked_first() {
    let agent = Agent::answering(200, ANSWER);
    for (extra, code) in [
        (("CNI_NETNS", ""), 4),
        (("CNI_CONTAINERID", ""), 4),
        (("CNI_IFNAME", "a/b"), 4),
        (("CNI_COMMAND", "PING"), 4),
        (("CNI_ARGS", ""), 7),
        (("CNI_ARGS", "K8S_POD_NAME=a"), 7),
    ] {
        assert_eq!(stdout(&call("ADD", &bytes(&agent.conf("1.0.0")), &[extra]))["code"], code, "{extra:?}");
    }
    assert_eq!(stdout(&call("ADD", b"{", &[]))["code"], 6);
    let person = call("", b"", &[("CNI_COMMAND", "")]);
    assert!(person.status.success() && person.stdout.is_empty());
}

/// A process in a network namespace of its own; both end with the value.
struct Sandbox(Child);

impl Sandbox {
    /// `None` without the right to make one.
    fn new() -> Option<Self> {
        nix::unistd::Uid::effective().is_root().then(|| {
            let child = Command::new("unshare")
                .args([
                    "-n",
                    "sh",
                    "-c",
                    "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; echo ready; cat",
                ])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut sandbox = Self(child);
            let mut ready = [0; 6];
            sandbox.0.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
            sandbox
        })
    }

    fn netns(&self) -> String {
        format!("/proc/{}/ns/net", self.0.id())
    }

    fn sysctl(&self, path: &str) -> String {
        let output = Command::new("nsenter")
            .arg(format!("--net={}", self.netns()))
            .args(["cat", path])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn add_turns_ipv6_on_in_the_pods_namespace() {
    let Some(sandbox) = Sandbox::new() else {
        eprintln!("skipped: making a network namespace needs root");
        return;
    };
    if !Path::new("/proc/sys/net/ipv6").exists() {
        eprintln!("skipped: this kernel has no IPv6");
        return;
    }
    let agent = Agent::answering(200, ANSWER);
    let netns = sandbox.netns();
    let extra = [("CNI_NETNS", netns.as_str()), ("CNI_NETNS_OVERRIDE", "")];
    let output = call("ADD", &bytes(&agent.conf("1.1.0")), &extra);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(stdout(&output)["interfaces"][0]["sandbox"], netns);
    for (name, value) in [("disable_ipv6", "0"), ("accept_ra", "0")] {
        for conf in ["all", "default"] {
            assert_eq!(
                sandbox.sysctl(&format!("/proc/sys/net/ipv6/conf/{conf}/{name}")),
                value,
                "{conf} {name}"
            );
        }
    }
}
