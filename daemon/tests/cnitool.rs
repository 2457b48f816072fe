//! The executable and the agent under libcni: `cnitool` calls them as a
//! runtime does, with every version of the specification, chained with
//! `portmap`, and as the IPAM of `macvlan`. Needs `WEIR_CNI_TOOLS` (`make
//! tools`, `lab cni-tools`).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use daemon::kube::PodFacts;
use daemon::netlink::Netlink;
use daemon::ovs::{BR_INT, plan};
use daemon::sys::Namespace;
use serde_json::{Value, json};
use support::agent::Machine;
use support::{MTU, addresses, new_namespace, path_of, routed_pod};

/// The executable that `cargo` builds beside this test's programs.
fn executable() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let folder = tests.parent().and_then(Path::parent).unwrap();
    let built = Command::new(env!("CARGO"))
        .args(["build", "-q", "-p", "cni", "--bin", "kube-ovn"])
        .args((folder.file_name().unwrap() == "release").then_some("--release"))
        .status()
        .unwrap();
    assert!(built.success());
    folder.join("kube-ovn")
}

struct Runtime<'a> {
    machine: &'a Machine,
    configurations: PathBuf,
    plugins: String,
    cnitool: PathBuf,
}

struct Outcome {
    success: bool,
    result: Value,
    text: String,
}

impl<'a> Runtime<'a> {
    fn new(machine: &'a Machine) -> Self {
        let tools =
            std::env::var("WEIR_CNI_TOOLS").expect("WEIR_CNI_TOOLS names the folder of `lab cni-tools`");
        let (plugins, configurations) = (machine.file("plugins"), machine.file("conf"));
        std::fs::create_dir_all(&plugins).unwrap();
        std::fs::create_dir_all(&configurations).unwrap();
        std::fs::copy(executable(), plugins.join("kube-ovn")).unwrap();
        Self {
            machine,
            configurations,
            plugins: format!("{}:{tools}", plugins.display()),
            cnitool: Path::new(&tools).join("cnitool"),
        }
    }

    fn write(&self, file: &str, configuration: &Value) {
        std::fs::write(self.configurations.join(file), configuration.to_string()).unwrap();
    }

    fn remove(&self, file: &str) {
        std::fs::remove_file(self.configurations.join(file)).unwrap();
    }

    fn ours(&self) -> Value {
        json!({"type": "kube-ovn", "server_socket": self.machine.file("cni.sock")})
    }

    /// A list with our plugin alone.
    fn list(&self, version: Option<&str>, name: &str) -> Value {
        let mut list = json!({"name": name, "plugins": [self.ours()]});
        if let Some(version) = version {
            list["cniVersion"] = version.into();
        }
        list
    }

    fn call(
        &self,
        verb: &str,
        network: &str,
        pod: &PodFacts,
        namespace: &Namespace,
        capabilities: &str,
    ) -> Outcome {
        let mut command = Command::new(&self.cnitool);
        command
            .args([verb, network, &path_of(namespace)])
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("NETCONFPATH", &self.configurations)
            .env("CNI_PATH", &self.plugins)
            .env("CNI_IFNAME", "eth0")
            .env(
                "CNI_ARGS",
                format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={}", pod.namespace, pod.name),
            )
            .stdin(Stdio::null());
        if !capabilities.is_empty() {
            command.env("CAP_ARGS", capabilities);
        }
        let output = self.machine.namespace.run(move || command.output()).unwrap().unwrap();
        let text =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        Outcome {
            success: output.status.success(),
            result: serde_json::from_slice(&output.stdout).unwrap_or_default(),
            text,
        }
    }

    fn must(&self, verb: &str, network: &str, pod: &PodFacts, namespace: &Namespace) -> Value {
        let outcome = self.call(verb, network, pod, namespace, "");
        assert!(outcome.success, "{verb} {network}: {}\n{}", outcome.text, self.machine.log());
        outcome.result
    }
}

/// The addresses in a result of any version.
fn addresses_in(result: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    match result["ips"].as_array() {
        Some(ips) => ips.iter().filter_map(|ip| text(&ip["address"])).collect(),
        None => ["ip4", "ip6"].iter().filter_map(|family| text(&result[*family]["ip"])).collect(),
    }
}

fn pod_ports(machine: &Machine) -> usize {
    machine.ovs.view().interfaces().filter(daemon::ovs::Interface::is_pod_port).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_version_of_the_specification_as_libcni_calls_it() {
    let machine = Machine::boot().await;
    let _agent = machine.start_agent();
    machine.wait_ready().await;
    let runtime = Runtime::new(&machine);
    let versions = [
        None,
        Some("0.1.0"),
        Some("0.2.0"),
        Some("0.3.0"),
        Some("0.3.1"),
        Some("0.4.0"),
        Some("1.0.0"),
        Some("1.1.0"),
    ];
    for (number, version) in versions.into_iter().enumerate() {
        let (pod, namespace) = (routed_pod(u8::try_from(number).unwrap()), new_namespace());
        machine.route_pod(&pod);
        let (network, file) = (format!("net{number}"), format!("{number}.conflist"));
        runtime.write(&file, &runtime.list(version, &network));
        let result = runtime.must("add", &network, &pod, &namespace);
        let expected = [format!("10.16.0.{}/16", 10 + number), format!("fd00::{:x}/112", 16 + number)];
        assert_eq!(addresses_in(&result), expected, "{version:?}: {result}");
        assert_eq!(addresses(&namespace, "eth0").await, expected);
        assert_eq!(result["cniVersion"], version.unwrap_or("0.2.0"), "{result}");
        let since = |least: &str| version.is_some_and(|version| version >= least);
        if since("0.3.0") {
            assert_eq!(result["interfaces"][0]["name"], "eth0");
            assert_eq!(result["interfaces"][0]["sandbox"], path_of(&namespace));
            host_end(&machine, &result).await;
            assert_eq!(result["ips"][0]["version"] == "4", !since("1.0.0"), "K038: {result}");
            assert_eq!(result["interfaces"][0]["mtu"] == json!(MTU), since("1.1.0"), "C041: {result}");
        }
        if since("0.4.0") {
            runtime.must("check", &network, &pod, &namespace);
            tamper(&runtime, &network, &pod, &namespace).await;
        }
        if since("1.1.0") {
            runtime.must("status", &network, &pod, &namespace);
            // cnitool's takes no attachment for valid: libcni deletes the ones that it remembers.
            runtime.must("gc", &network, &pod, &namespace);
            assert_eq!(pod_ports(&machine), 0);
            runtime.must("add", &network, &pod, &namespace);
        }
        // F042, C026: the configuration changes under a running pod.
        let mut changed = runtime.list(version, &network);
        changed["plugins"][0]["routes"] = json!([{"dst": "192.0.2.0/24"}]);
        changed["plugins"][0]["from_the_future"] = true.into();
        runtime.write(&file, &changed);
        for _ in 0..3 {
            runtime.must("del", &network, &pod, &namespace);
        }
        assert!(addresses(&namespace, "eth0").await.is_empty());
        assert_eq!(pod_ports(&machine), 0, "{version:?}");
        runtime.remove(&file);
    }
}

/// C040: the host's end is told as the host has it, without sandbox; addresses point at the pod's.
async fn host_end(machine: &Machine, result: &Value) -> daemon::netlink::Link {
    let told = &result["interfaces"][1];
    let name = told["name"].as_str().expect("the host's end has a name");
    let link = machine.host.netlink.require_link(name).await.unwrap();
    assert_eq!(told["mac"], link.mac.unwrap().to_string(), "{result}");
    assert_eq!(told.get("sandbox"), None, "{result}");
    for ip in result["ips"].as_array().unwrap() {
        assert_eq!(ip["interface"], 0, "{result}");
    }
    link
}

/// C040, C022: plugins that look for the host's end find it, and what they do beside us is no fault in CHECK's eyes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c_040_bandwidth_and_tuning_work_on_our_result() {
    let machine = Machine::boot().await;
    let _agent = machine.start_agent();
    machine.wait_ready().await;
    let runtime = Runtime::new(&machine);
    for (number, version) in ["0.4.0", "1.0.0", "1.1.0"].into_iter().enumerate() {
        let network = format!("chain{number}");
        let mut list = runtime.list(Some(version), &network);
        list["plugins"].as_array_mut().unwrap().extend([
            json!({"type": "bandwidth", "ingressRate": 8_000_000, "ingressBurst": 8_000_000}),
            json!({"type": "tuning", "sysctl": {"net.core.somaxconn": "500"}, "mtu": 1300}),
            json!({"type": "portmap", "capabilities": {"portMappings": true}}),
        ]);
        runtime.write(&format!("{network}.conflist"), &list);
        let (pod, namespace) = (routed_pod(30 + u8::try_from(number).unwrap()), new_namespace());
        machine.route_pod(&pod);
        let result = runtime.must("add", &network, &pod, &namespace);
        let end = host_end(&machine, &result).await;
        let root = machine.host.netlink.qdiscs(end.index).await.unwrap();
        assert!(root.iter().any(|qdisc| qdisc.kind == "tbf"), "{version}: bandwidth's bucket: {root:?}");
        runtime.must("check", &network, &pod, &namespace);
        let inside = Netlink::in_namespace(&namespace).await.unwrap();
        let link = inside.require_link("eth0").await.unwrap();
        assert_eq!(link.mtu, 1300, "tuning's");
        inside.set_mtu(link.index, 1500).await.unwrap();
        assert!(!runtime.call("check", &network, &pod, &namespace, "").success, "larger than the subnet's");
        for _ in 0..2 {
            runtime.must("del", &network, &pod, &namespace);
        }
    }
    assert_eq!(pod_ports(&machine), 0);
}

/// C035, C036: what CHECK has to find broken, one by one; ADD mends it.
async fn tamper(runtime: &Runtime<'_>, network: &str, pod: &PodFacts, namespace: &Namespace) {
    let inside = Netlink::in_namespace(namespace).await.unwrap();
    let link = inside.require_link("eth0").await.unwrap();
    let address = format!("10.16.0.{}/16", pod.name.trim_start_matches("pod-").parse::<u8>().unwrap() + 10);
    let routes = inside.routes().await.unwrap();
    let default =
        routes.iter().find(|r| r.is_default() && r.gateway == Some("10.16.0.1".parse().unwrap())).unwrap();
    for what in ["default route", "address", "MAC", "link"] {
        match what {
            "default route" => inside.delete_route(default).await.unwrap(),
            "address" => inside.delete_address(link.index, address.parse().unwrap()).await.unwrap(),
            "MAC" => inside.set_mac(link.index, "0a:00:00:00:00:77".parse().unwrap()).await.unwrap(),
            _ => inside.delete_link("eth0").await.unwrap(),
        }
        let outcome = runtime.call("check", network, pod, namespace, "");
        // The agent may have made the pair anew meanwhile.
        if what == "link" && outcome.success {
            continue;
        }
        assert!(!outcome.success, "{what} was changed and CHECK is content");
        let told = match what {
            "default route" => "10.16.0.1",
            "address" => address.as_str(),
            "MAC" => "0a:00:00:00:00:77",
            _ => "no interface eth0",
        };
        assert!(outcome.text.contains(told), "{what}: {}", outcome.text);
        runtime.must("add", network, pod, namespace);
        runtime.must("check", network, pod, namespace);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_005_a_host_port_by_the_chained_portmap_reaches_the_pod() {
    let machine = Machine::boot().await;
    let _agent = machine.start_agent();
    machine.wait_ready().await;
    // The gateway routes between the join network and the pods, the node for its pods.
    machine.namespace.run(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap()).unwrap();
    machine.gateway.run(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap()).unwrap();
    let inside = Netlink::in_namespace(&machine.gateway).await.unwrap();
    let back = daemon::netlink::Route {
        gateway: Some("100.64.0.2".parse().unwrap()),
        ..daemon::netlink::Route::new("172.30.0.0/24".parse().unwrap())
    };
    inside.replace_route(&back).await.unwrap();
    let runtime = Runtime::new(&machine);
    let mut list = runtime.list(Some("0.3.1"), "kube-ovn");
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    list["plugins"].as_array_mut().unwrap().push(portmap);
    runtime.write("01-kube-ovn.conflist", &list);
    let (pod, namespace) = (routed_pod(9), new_namespace());
    machine.route_pod(&pod);
    let ports = r#"{"portMappings":[{"hostPort":18080,"containerPort":8080,"protocol":"tcp"}]}"#;
    let added = runtime.call("add", "kube-ovn", &pod, &namespace, ports);
    assert!(added.success, "{}\n{}", added.text, machine.log());
    // K037: portmap leaves out an address that it can't place.
    assert_eq!(added.result["ips"][0]["interface"], 0);
    let listener = namespace.run(|| std::net::TcpListener::bind("0.0.0.0:8080").unwrap()).unwrap();
    let connect = || {
        let address = "172.30.0.11:18080".parse().unwrap();
        std::net::TcpStream::connect_timeout(&address, std::time::Duration::from_secs(10)).map(drop)
    };
    machine.underlay.run(connect).unwrap().expect("a client outside reaches the pod by the node's port");
    // Only the pod's listener can have answered; the connection is in its queue any moment.
    listener.accept().expect("it was the pod that answered");
    // K183, C021: portmap's DEL comes first, then ours.
    for _ in 0..2 {
        let deleted = runtime.call("del", "kube-ovn", &pod, &namespace, ports);
        assert!(deleted.success, "{}", deleted.text);
    }
    assert_eq!(pod_ports(&machine), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_007_macvlan_gets_its_addresses_from_us() {
    let machine = Machine::boot().await;
    let subnet = json!({
        "metadata": {"name": "lan", "uid": "uid-lan"},
        "spec": {"cidrBlock": "10.77.0.0/24", "gateway": "10.77.0.1", "provider": "lan.web"},
        "status": {"conditions": [{"type": "Validated", "status": "True"}]},
    });
    machine.api.put("subnets", subnet);
    let _agent = machine.start_agent();
    machine.wait_ready().await;
    let runtime = Runtime::new(&machine);
    let mut pod = routed_pod(10);
    // Nothing for eth0 of the cluster's own network.
    pod.annotations.clear();
    for (key, value) in [
        ("allocated", "true"),
        ("ip_address", "10.77.0.5"),
        ("mac_address", "0a:58:0a:4d:00:05"),
        ("cidr", "10.77.0.0/24"),
        ("gateway", "10.77.0.1"),
        ("logical_switch", "lan"),
    ] {
        pod.annotations.insert(crds::keys::pod_key("lan.web", key), value.into());
    }
    machine.route_pod(&pod);
    for (file, version) in [("lan0", "0.3.1"), ("lan1", "1.0.0"), ("lan2", "1.1.0")] {
        // As Multus writes it from a NetworkAttachmentDefinition.
        let ipam =
            json!({"type": "kube-ovn", "server_socket": machine.file("cni.sock"), "provider": "lan.web"});
        let plugin = json!({"type": "macvlan", "master": "eth1", "mode": "bridge", "ipam": ipam});
        let list = json!({"cniVersion": version, "name": file, "plugins": [plugin]});
        runtime.write(&format!("{file}.conflist"), &list);
        let namespace = new_namespace();
        let result = runtime.must("add", file, &pod, &namespace);
        assert_eq!(addresses_in(&result), ["10.77.0.5/24"], "{result}");
        assert_eq!(result["interfaces"].as_array().unwrap().len(), 1, "macvlan's own: {result}");
        assert_eq!(addresses(&namespace, "eth0").await, ["10.77.0.5/24"]);
        if version != "0.3.1" {
            runtime.must("check", file, &pod, &namespace);
        }
        if version == "1.1.0" {
            runtime.must("status", file, &pod, &namespace);
            runtime.must("gc", file, &pod, &namespace);
        }
        for _ in 0..2 {
            runtime.must("del", file, &pod, &namespace);
        }
        assert!(addresses(&namespace, "eth0").await.is_empty());
    }
    assert_eq!(pod_ports(&machine), 0, "we made nothing");
}

/// K001, C042: without an agent the runtime is told which socket is silent and what to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_001_without_the_agent_an_add_fails_in_words_and_works_later() {
    let machine = Machine::boot().await;
    let runtime = Runtime::new(&machine);
    runtime.write("1.conflist", &runtime.list(Some("1.1.0"), "kube-ovn"));
    let (pod, namespace) = (routed_pod(11), new_namespace());
    machine.route_pod(&pod);
    for verb in ["add", "status", "del"] {
        let outcome = runtime.call(verb, "kube-ovn", &pod, &namespace, "");
        assert!(!outcome.success);
        assert!(
            outcome.text.contains("cni.sock") && outcome.text.contains("remedy"),
            "{verb}: {}",
            outcome.text
        );
    }
    let _agent = machine.start_agent();
    machine.wait_ready().await;
    runtime.must("status", "kube-ovn", &pod, &namespace);
    runtime.must("add", "kube-ovn", &pod, &namespace);
    runtime.must("del", "kube-ovn", &pod, &namespace);
    // C032: without the bridge running pods suffer too.
    machine.ovs.apply(|view| plan::remove_bridge(view, BR_INT)).await.unwrap();
    let limited = runtime.call("status", "kube-ovn", &pod, &namespace, "");
    assert!(!limited.success && limited.text.contains("limited connectivity"), "{}", limited.text);
}
