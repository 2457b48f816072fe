//! The whole agent as a process on a node of its own: the real binary, the
//! real OVS programs, an API server made for it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cni::api::{CniRequest, CniResponse};
use daemon::hostnet::HostNet;
use daemon::kube::PodFacts;
use daemon::netlink::{Netlink, Veth};
use daemon::ovs::{BR_INT, BridgeSpec, Ovs, PortSpec, plan};
use daemon::sys::{EthtoolSocket, Namespace};
use http_body_util::{BodyExt, Full};
use ovsdb::testing::real::Server;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use super::api::FakeApi;
use super::{
    Controller, MTU, Process, make_root, new_namespace, play_ovn_controller, start_vswitchd, wait_view,
};

/// A node with `eth0` for the API and `eth1` for tunnels.
pub struct Machine {
    pub namespace: Namespace,
    pub host: HostNet,
    /// The other end of eth1: 10.9.0.1 and fd09::1.
    pub underlay: Namespace,
    /// Answers for the join and the pods' gateway.
    pub gateway: Namespace,
    pub server: Server,
    pub vswitchd: Option<Process>,
    pub ovs: Ovs,
    pub api: FakeApi,
    pub url: String,
    pub folder: tempfile::TempDir,
    controller: Option<Controller>,
}

async fn veth(host: &HostNet, name: &str, other: &Namespace, peer: &str) {
    let veth = Veth { name, peer, peer_mac: None, peer_namespace: Some(other), mtu: None };
    host.netlink.add_veth(&veth).await.unwrap();
    let peer_name = peer.to_owned();
    other.run(move || EthtoolSocket::open().unwrap().tx_checksum_off(&peer_name).unwrap()).unwrap();
    let inside = Netlink::in_namespace(other).await.unwrap();
    let link = inside.require_link(peer).await.unwrap();
    inside.set_up(link.index).await.unwrap();
}

async fn give(netlink: &Netlink, link: &str, nets: &[&str]) {
    let link = netlink.require_link(link).await.unwrap();
    netlink.set_up(link.index).await.unwrap();
    for net in nets {
        netlink.add_address(link.index, net.parse().unwrap(), true).await.unwrap();
    }
}

/// What configures the host: addresses and default routes of the tunnel NIC.
async fn give_eth1(host: &HostNet, nets: &[&str]) {
    give(&host.netlink, "eth1", nets).await;
    let index = host.netlink.require_link("eth1").await.unwrap().index;
    for gateway in ["10.9.0.1", "fd09::1"] {
        let route = daemon::netlink::Route {
            link: Some(index),
            ..daemon::netlink::Route::default_via(gateway.parse().unwrap())
        };
        host.netlink.replace_route(&route).await.unwrap();
    }
}

impl Machine {
    /// Configures eth1 as at boot.
    pub async fn give_eth1(&self, nets: &[&str]) {
        give_eth1(&self.host, nets).await;
    }

    /// A page of the agent's health port.
    pub async fn get(&self, path: &'static str) -> String {
        let stream = self.namespace.run(|| std::net::TcpStream::connect("127.0.0.1:10665").unwrap()).unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut stream = tokio::net::TcpStream::from_std(stream).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut text).await.unwrap();
        text
    }

    /// A node whose br-int is a plain switch, with a gateway behind it and
    /// somebody who plays ovn-controller.
    pub async fn boot() -> Self {
        let mut machine = Self::bare().await;
        let (host, ovs) = (&machine.host, &machine.ovs);
        let bridge =
            BridgeSpec { name: BR_INT.into(), datapath_type: "netdev".into(), ..BridgeSpec::default() };
        ovs.apply(|view| plan::ensure_bridge(view, &bridge)).await.unwrap();
        veth(host, "gw-port", &machine.gateway, "gw").await;
        host.ethtool.tx_checksum_off("gw-port").unwrap();
        let inside = Netlink::in_namespace(&machine.gateway).await.unwrap();
        give(&inside, "gw", &["10.16.0.1/16", "fd00::1/112", "100.64.0.1/16", "fd00:100::1/112"]).await;
        wait_view(ovs, "br-int", |view| view.bridge(BR_INT).is_some()).await;
        let port = PortSpec { bridge: BR_INT.into(), name: "gw-port".into(), ..PortSpec::default() };
        ovs.apply(|view| plan::ensure_port(view, &port)).await.unwrap();
        machine.controller = Some(play_ovn_controller(ovs));
        machine
    }

    /// Questions for the pods' gateway go to it alone, as OVN's router answers them itself. A plain
    /// switch would flood each to every pod: with hundreds that ask again and again, nothing else gets through.
    pub fn ask_gateway_alone(&self) {
        for question in
            ["arp,arp_op=1,arp_tpa=10.16.0.1", "icmp6,icmp_type=135,icmp_code=0,nd_target=fd00::1"]
        {
            let flow = format!("priority=100,{question},actions=output:gw-port");
            super::ofctl(&self.server, BR_INT, &["add-flow", &flow]);
        }
    }

    /// A node without br-int: that is ovn-controller's to make.
    pub async fn bare() -> Self {
        let (namespace, underlay, gateway) = (new_namespace(), new_namespace(), new_namespace());
        let server = Server::vswitch().unwrap();
        let vswitchd = Some(start_vswitchd(&namespace, &server));
        let host = HostNet::open(namespace.clone()).await.unwrap();
        give(&host.netlink, "lo", &[]).await;
        veth(&host, "eth0", &underlay, "peer0").await;
        give(&host.netlink, "eth0", &["172.30.0.11/24"]).await;
        veth(&host, "eth1", &underlay, "peer1").await;
        let under = Netlink::in_namespace(&underlay).await.unwrap();
        give(&under, "peer0", &["172.30.0.1/24"]).await;
        give(&under, "peer1", &["10.9.0.1/24", "fd09::1/64"]).await;
        give_eth1(&host, &["10.9.0.11/24", "fd09::11/64"]).await;

        let ovs = Ovs::connect(vec![server.endpoint()]);
        ovs.connected().await;
        make_root(&ovs).await;
        wait_view(&ovs, "the root row", |view| view.root().is_some()).await;
        let ids = [("system-id", "chassis-1"), ("ovn-bridge-datapath-type", "netdev")];
        let ids = ids.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        ovs.apply(|view| plan::set_root_external_ids(view, &ids)).await.unwrap();
        let (api, url) = FakeApi::start(&underlay, "172.30.0.1");
        api.put("nodes", node_object());
        api.put("subnets", subnet_object("ovn-default", "10.16.0.0/16,fd00::/112", "10.16.0.1,fd00::1"));
        api.put("subnets", subnet_object("join", "100.64.0.0/16,fd00:100::/112", "100.64.0.1,fd00:100::1"));
        let folder = tempfile::tempdir().unwrap();
        Self { namespace, host, underlay, gateway, server, vswitchd, ovs, api, url, folder, controller: None }
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts the agent.
    pub fn start_agent(&self) -> Process {
        self.start_agent_with(&[])
    }

    /// Starts the agent with more flags.
    pub fn start_agent_with(&self, flags: &[&str]) -> Process {
        let mut command = self.agent_command();
        command.args(flags);
        Process(self.namespace.run(move || command.spawn()).unwrap().unwrap())
    }

    /// Runs the agent's executable to its end with one more argument: its status and what it printed.
    pub fn run_agent(&self, argument: &str) -> (bool, String) {
        let mut command = self.agent_command();
        command.arg(argument).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = self.namespace.run(move || command.output()).unwrap().unwrap();
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        (output.status.success(), text.concat())
    }

    fn agent_command(&self) -> Command {
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.url}}],
            "users": [{"name": "test", "user": {}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        });
        std::fs::write(self.file("kubeconfig"), kubeconfig.to_string()).unwrap();
        let log = std::fs::File::options().create(true).append(true).open(self.file("agent.log")).unwrap();
        // Another build of it, to be measured.
        let agent = std::env::var_os("WEIR_AGENT");
        let mut command = Command::new(agent.unwrap_or_else(|| env!("CARGO_BIN_EXE_kube-ovn-daemon").into()));
        command
            .arg("--iface=eth1")
            .arg(format!("--ovs-socket={}", self.server.socket().display()))
            .arg(format!("--bind-socket={}", self.file("cni.sock").display()))
            .arg(format!("--diagnostics-socket={}", self.file("diagnostics.sock").display()))
            .arg(format!("--kubeconfig={}", self.file("kubeconfig").display()))
            .arg(format!("--cni-conf-dir={}", self.file("net.d").display()))
            .arg(format!("--cni-conf-file={}", self.file("none").display()))
            .arg(format!("--cni-bin-dir={}", self.file("bin").display()))
            .env("NODE_NAME", "n1")
            // Not there unless a test makes it: then nothing is said of ovn-controller.
            .env("OVN_RUNDIR", self.file("ovn-run"))
            .env_remove("OVS_RUNDIR")
            .env("WEIR_LOG", "info,daemon=debug")
            .env_remove("KUBECONFIG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        command
    }

    /// Runs a program in the API server's namespace.
    pub fn run_in_underlay(&self, program: &'static str, arguments: &'static [&'static str]) {
        let status =
            self.underlay.run(move || Command::new(program).args(arguments).status()).unwrap().unwrap();
        assert!(status.success(), "{program} {arguments:?}");
    }

    /// A question to the diagnostics socket.
    pub async fn ask(&self, method: &str, params: serde_json::Value) -> serde_json::Value {
        let stream = tokio::net::UnixStream::connect(self.file("diagnostics.sock")).await.unwrap();
        let (read, mut write) = stream.into_split();
        let question = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        write.write_all(format!("{question}\n").as_bytes()).await.unwrap();
        let line = BufReader::new(read).lines().next_line().await.unwrap().unwrap();
        let mut answer: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert!(answer["error"].is_null(), "{answer}");
        answer["result"].take()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.file("agent.log")).unwrap_or_default()
    }

    /// Plays ovn-controller's control socket until the handle is dropped.
    pub fn play_control_socket(&self) -> tokio_util::task::AbortOnDropHandle<()> {
        let folder = self.file("ovn-run");
        std::fs::create_dir_all(&folder).unwrap();
        let socket = folder.join("ovn-controller.1.ctl");
        let _ = std::fs::remove_file(&socket);
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        std::fs::write(folder.join("ovn-controller.pid"), "1\n").unwrap();
        tokio_util::task::AbortOnDropHandle::new(tokio::spawn(async move {
            let mut calls = tokio::task::JoinSet::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                calls.spawn(async move {
                    let mut buffer = [0; 1024];
                    while tokio::io::AsyncReadExt::read(&mut stream, &mut buffer).await.is_ok_and(|n| n > 0) {
                        let answer = br#"{"id":0,"result":"ovn-controller 25.03.0","error":null}"#;
                        let _ = stream.write_all(answer).await;
                    }
                });
            }
        }))
    }

    /// Waits until the agent says that an ADD could succeed.
    pub async fn wait_ready(&self) {
        let mut last = String::new();
        for _ in 0..600 {
            if let Ok((200, _)) = call(&self.file("cni.sock"), "GET", "/api/v1/status", &json!({})).await {
                return;
            }
            last = format!("{:?}", call(&self.file("cni.sock"), "GET", "/api/v1/status", &json!({})).await);
            // The agent is another process: there is nothing to wait on but asking again.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the agent is not ready: {last}\n{}", self.log());
    }

    pub async fn add(&self, request: &CniRequest) -> CniResponse {
        let (code, body) =
            call(&self.file("cni.sock"), "POST", "/api/v1/add", &serde_json::to_value(request).unwrap())
                .await
                .unwrap();
        let answer: CniResponse = serde_json::from_slice(&body).unwrap();
        assert_eq!(code, 200, "{}\n{}", answer.error, self.log());
        answer
    }

    pub async fn del(&self, request: &CniRequest) {
        let (code, body) =
            call(&self.file("cni.sock"), "POST", "/api/v1/del", &serde_json::to_value(request).unwrap())
                .await
                .unwrap();
        assert_eq!(code, 204, "{}", String::from_utf8_lossy(&body));
    }

    /// Lets the controller have routed a pod.
    pub fn route_pod(&self, pod: &PodFacts) {
        self.api.put("pods", pod_object(pod));
    }
}

/// A pod of this node as the API server has it.
pub fn pod_object(pod: &PodFacts) -> serde_json::Value {
    json!({
        "metadata": {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid, "annotations": pod.annotations},
        "spec": {"nodeName": "n1", "containers": []},
        "status": {"phase": "Pending"},
    })
}

fn node_object() -> serde_json::Value {
    json!({
        "metadata": {"name": "n1", "uid": "node-uid", "annotations": {
            crds::keys::IP_ADDRESS: "100.64.0.2,fd00:100::2", crds::keys::CIDR: "100.64.0.0/16,fd00:100::/112",
            crds::keys::GATEWAY: "100.64.0.1,fd00:100::1", crds::keys::MAC_ADDRESS: "0a:58:64:40:00:02",
            crds::keys::PORT_NAME: "node-n1",
        }},
        "status": {"addresses": [{"type": "InternalIP", "address": "172.30.0.11"}]},
    })
}

fn subnet_object(name: &str, cidr: &str, gateway: &str) -> serde_json::Value {
    json!({
        "metadata": {"name": name, "uid": format!("uid-{name}")},
        "spec": {"cidrBlock": cidr, "gateway": gateway, "natOutgoing": true, "gatewayType": "distributed",
            "provider": "ovn", "vpc": "ovn-cluster", "mtu": MTU},
        "status": {"conditions": [{"type": "Validated", "status": "True"}]},
    })
}

/// One HTTP request over a unix socket.
pub async fn call(
    socket: &Path,
    method: &str,
    path: &str,
    body: &serde_json::Value,
) -> anyhow::Result<(u16, Vec<u8>)> {
    let stream = tokio::net::UnixStream::connect(socket).await?;
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
    let driver = tokio::spawn(connection);
    let request = hyper::Request::builder()
        .method(method)
        .uri(path)
        .header("host", "unix")
        .header("content-type", "application/json")
        .body(Full::new(bytes::Bytes::from(body.to_string())))?;
    let response = sender.send_request(request).await?;
    let code = response.status().as_u16();
    let body = response.into_body().collect().await?.to_bytes().to_vec();
    driver.abort();
    Ok((code, body))
}

/// Polls: the agent is another process.
pub async fn until(machine: &Machine, what: &str, condition: impl AsyncFn() -> bool) {
    let begin = Instant::now();
    while !condition().await {
        assert!(begin.elapsed() < Duration::from_secs(30), "timed out: {what}\n{}", machine.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
