//! A node for integration tests: network namespaces of its own, the real
//! ovsdb-server and ovs-vswitchd (userspace datapath) in them, and the agent's
//! own parts over it. Needs root and `WEIR_OVS_ROOT`. Everything ends with the
//! value: namespaces hang on open descriptors only, nothing has a name outside.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod agent;
pub mod api;
pub mod death;
pub mod heal;
pub mod ovn;
pub mod rates;
#[path = "../../../tests/tls/mod.rs"]
pub mod tls;
pub mod underlay;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

use cni::api::CniRequest;
use daemon::hostnet::HostNet;
use daemon::kube::{Cluster, Fact, PodFacts, Recorder, SubnetFacts};
use daemon::metrics::Metrics;
use daemon::netlink::{Netlink, Veth};
use daemon::ovs::{BR_INT, BridgeSpec, Ovs, PortSpec, View, plan};
use daemon::plug::{Locks, NodeNetwork, Patience, Plugger};
use daemon::sys::{EthtoolSocket, Namespace};
use nix::sched::{CloneFlags, unshare};
use ovsdb::testing::real::Server;
use ovsdb::{AtomMap, Operation, Value};
use tokio::sync::watch;

/// A new network namespace that lives as long as the handle.
pub fn new_namespace() -> Namespace {
    std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).expect("these tests need root");
        Namespace::current().unwrap()
    })
    .join()
    .unwrap()
}

/// The path by which others can open a namespace while the handle lives.
pub fn path_of(namespace: &Namespace) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), namespace.raw_fd())
}

/// The test's wait: on views of the database, never by sleeping.
pub async fn wait_view(ovs: &Ovs, what: &str, condition: impl Fn(&View) -> bool) {
    let mut views = ovs.subscribe();
    tokio::time::timeout(Duration::from_secs(30), views.wait_for(|view| condition(view)))
        .await
        .unwrap_or_else(|_| panic!("timed out: {what}"))
        .unwrap();
}

/// A process that dies with the value.
pub struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub struct Node {
    pub namespace: Namespace,
    pub host: HostNet,
    pub ovs: Ovs,
    pub server: Server,
    pub vswitchd: Option<Process>,
    pub gateway: Namespace,
    /// Handing it `None` makes the node uninitialised.
    pub network: watch::Sender<Option<NodeNetwork>>,
    pub plugger: Arc<Plugger>,
}

pub const SUBNET: &str = "ovn-default";
pub const MTU: u32 = 1400;

/// Starts ovs-vswitchd inside `namespace` on the server's database.
pub fn start_vswitchd(namespace: &Namespace, server: &Server) -> Process {
    let directory = server.directory().to_owned();
    // The name in usr/sbin is a link to an absolute path, the host's.
    let mut command = server.root().command("usr/lib/openvswitch-switch/ovs-vswitchd", &directory).unwrap();
    let log = std::fs::File::create(directory.join("vswitchd.log")).unwrap();
    command
        .arg(format!("unix:{}", server.socket().display()))
        // With its control socket beside it, named by the pid, where the agent looks.
        .arg(format!("--pidfile={}", directory.join("ovs-vswitchd.pid").display()))
        .arg("--overwrite-pidfile")
        .arg("--no-chdir")
        .stdout(Stdio::null())
        .stderr(log);
    // The child inherits the namespace of the thread that starts it.
    Process(namespace.run(move || command.spawn()).unwrap().unwrap())
}

/// Makes the database's root row, as `ovs-vsctl init` does.
pub async fn make_root(ovs: &Ovs) {
    let ids = Value::string_map([("system-id", "chassis-1")]);
    ovs.commit(vec![Operation::insert("Open_vSwitch").column("external_ids", ids).build()]).await.unwrap();
}

impl Node {
    /// A node with `br-int` and a gateway at 10.16.0.1 and fd00::1 behind it.
    pub async fn start() -> Self {
        let namespace = new_namespace();
        let server = Server::vswitch().unwrap();
        let vswitchd = Some(start_vswitchd(&namespace, &server));
        let host = HostNet::open(namespace.clone()).await.unwrap();
        let ovs = Ovs::connect(vec![server.endpoint()]);
        ovs.connected().await;
        make_root(&ovs).await;
        wait_view(&ovs, "the root row", |view| view.root().is_some()).await;
        let bridge =
            BridgeSpec { name: BR_INT.into(), datapath_type: "netdev".into(), ..BridgeSpec::default() };
        ovs.apply(|view| plan::ensure_bridge(view, &bridge)).await.unwrap();
        wait_view(&ovs, "br-int", |view| view.interface(BR_INT).is_some_and(|i| i.ofport().is_some())).await;
        let gateway = new_namespace();
        add_gateway(&host, &ovs, &gateway).await;

        let cluster = Arc::new(Cluster::default());
        cluster.pods.replace(BTreeMap::new());
        cluster.nodes.replace(BTreeMap::new());
        cluster.service_cidrs.replace(BTreeMap::new());
        let subnet = SubnetFacts {
            name: SUBNET.into(),
            cidr_block: "10.16.0.0/16,fd00::/112".into(),
            gateway: "10.16.0.1,fd00::1".into(),
            validated: true,
            ..SubnetFacts::default()
        };
        cluster.subnets.replace(BTreeMap::from([(SUBNET.into(), subnet)]));
        let (network, receiver) =
            watch::channel(Some(NodeNetwork { mtu: MTU, userspace: true, node_networks: BTreeMap::new() }));
        let plugger = Arc::new(new_plugger(cluster, &ovs, &host, receiver));
        Self { namespace, host, ovs, server, vswitchd, gateway, network, plugger }
    }

    /// The agent's process ends and another starts: what it held in memory,
    /// namespaces included, is gone; the watches know the same.
    pub fn restart_agent(&mut self) {
        let old = &self.plugger;
        let new = new_plugger(old.cluster.clone(), &self.ovs, &self.host, old.network.clone());
        self.plugger = Arc::new(new);
    }

    /// An API server that has the events of the agent; of the one that runs now.
    pub fn take_events(&mut self) -> api::FakeApi {
        let (api, url) = api::FakeApi::start(&Namespace::current().unwrap(), "127.0.0.1");
        let client = kube::Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap();
        let (sink, recorder) = daemon::kube::EventSink::new(client, "n1");
        tokio::spawn(sink.run());
        Arc::get_mut(&mut self.plugger).unwrap().recorder = recorder;
        api
    }

    /// Plays ovn-controller, until the guard is dropped.
    pub fn play_ovn_controller(&self) -> Controller {
        play_ovn_controller(&self.ovs)
    }

    /// Lets the controller have routed a pod.
    pub fn route_pod(&self, pod: &PodFacts) {
        self.plugger.cluster.pods.put(PodFacts::key(&pod.namespace, &pod.name), Some(pod.clone()));
    }

    /// Subnets whose gateway need not answer.
    pub fn without_gateway_check(&self) {
        let subnets = &self.plugger.cluster.subnets;
        let mut subnet = SubnetFacts::clone(&subnets.object(&SUBNET.into()).unwrap());
        subnet.disable_gateway_check = true;
        subnets.put(SUBNET.into(), Some(subnet));
    }

    /// The interface of a pod in the switch.
    pub fn interface(&self, name: &str) -> Option<daemon::ovs::Interface> {
        self.ovs.view().interface(name)
    }

    /// Names of the ports on br-int that are pods'.
    pub fn pod_ports(&self) -> Vec<String> {
        self.ovs
            .view()
            .port_names(BR_INT)
            .into_iter()
            .filter(|name| name != "gw-port" && name != BR_INT)
            .collect()
    }

    /// Names of the host ends of pods' links.
    pub async fn pod_links(&self) -> Vec<String> {
        let links = self.host.netlink.links().await.unwrap();
        let pods = |name: &String| name.ends_with("_h") || name.ends_with("_c") || name.starts_with("wp");
        links.into_iter().map(|link| link.name).filter(pods).collect()
    }
}

fn new_plugger(
    cluster: Arc<Cluster>,
    ovs: &Ovs,
    host: &HostNet,
    network: watch::Receiver<Option<NodeNetwork>>,
) -> Plugger {
    Plugger::new(
        "n1".into(),
        cluster,
        ovs.clone(),
        host.clone(),
        network,
        Recorder::disabled(),
        Arc::new(Metrics::new("n1")),
        Patience {
            annotations: Duration::from_secs(20),
            watch: Duration::from_secs(20),
            unknown_pod: Duration::from_millis(500),
            installed: Duration::from_secs(20),
            gateway: Duration::from_secs(20),
            unique: Duration::from_secs(20),
            whole: Duration::from_secs(90),
        },
        Locks::default(),
    )
}

/// Plays ovn-controller: marks every interface with an `iface-id` as
/// installed, until the guard is dropped.
pub fn play_ovn_controller(ovs: &Ovs) -> Controller {
    let ovs = ovs.clone();
    let task = tokio::spawn(async move {
        let mut views = ovs.subscribe();
        loop {
            let view = views.borrow_and_update().clone();
            for interface in view.interfaces() {
                let bound = interface.external_id("iface-id").is_some();
                if bound && interface.external_id("ovn-installed").is_none() && interface.ofport() > Some(0) {
                    let pairs: AtomMap = [("ovn-installed".into(), "true".into())].into_iter().collect();
                    let operation = Operation::mutate("Interface")
                        .by_uuid(interface.uuid())
                        .set_map("external_ids", pairs)
                        .build();
                    // The interface may be gone again.
                    let _ = ovs.commit(vec![operation]).await;
                }
            }
            if views.changed().await.is_err() {
                return;
            }
        }
    });
    Controller(task)
}

pub struct Controller(tokio::task::JoinHandle<()>);

impl Drop for Controller {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn add_gateway(host: &HostNet, ovs: &Ovs, gateway: &Namespace) {
    let veth = Veth {
        name: "gw-port",
        peer: "gw",
        peer_mac: Some("0a:00:00:00:00:01".parse().unwrap()),
        peer_namespace: Some(gateway),
        mtu: None,
    };
    host.netlink.add_veth(&veth).await.unwrap();
    host.ethtool.tx_checksum_off("gw-port").unwrap();
    gateway.run(|| EthtoolSocket::open().unwrap().tx_checksum_off("gw").unwrap()).unwrap();
    let inside = Netlink::in_namespace(gateway).await.unwrap();
    let link = inside.require_link("gw").await.unwrap();
    inside.set_up(link.index).await.unwrap();
    for net in ["10.16.0.1/16", "fd00::1/112"] {
        inside.add_address(link.index, net.parse().unwrap(), true).await.unwrap();
    }
    let port = PortSpec { bridge: BR_INT.into(), name: "gw-port".into(), ..PortSpec::default() };
    ovs.apply(|view| plan::ensure_port(view, &port)).await.unwrap();
    wait_view(ovs, "the gateway's port", |view| {
        view.interface("gw-port").is_some_and(|interface| interface.ofport() > Some(0))
    })
    .await;
}

/// A pod as the controller leaves it: number `n` has 10.16.0.(10+n).
pub fn routed_pod(n: u8) -> PodFacts {
    let annotations = [
        ("allocated", "true".to_owned()),
        ("routed", "true".to_owned()),
        ("ip_address", format!("10.16.0.{},fd00::{:x}", 10 + n, 0x10 + u32::from(n))),
        ("mac_address", format!("0a:58:0a:10:00:{:02x}", 10 + n)),
        ("cidr", "10.16.0.0/16,fd00::/112".to_owned()),
        ("gateway", "10.16.0.1,fd00::1".to_owned()),
        ("logical_switch", SUBNET.to_owned()),
    ];
    PodFacts {
        namespace: "web".into(),
        name: format!("pod-{n}"),
        uid: format!("uid-{n}"),
        annotations: annotations.map(|(key, value)| (crds::keys::pod_key("ovn", key), value)).into(),
        ..PodFacts::default()
    }
}

/// An ADD of the pod in a namespace; container ids differ by `generation`.
pub fn request(pod: &PodFacts, namespace: &Namespace, generation: u8) -> CniRequest {
    let seed: u32 = pod.name.bytes().fold(17, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
    CniRequest {
        cni_type: "kube-ovn".into(),
        pod_name: pod.name.clone(),
        pod_namespace: pod.namespace.clone(),
        container_id: format!("{generation:02x}{seed:08x}{:0>54}", ""),
        net_ns: path_of(namespace),
        if_name: "eth0".into(),
        provider: "ovn".into(),
        network: "kube-ovn".into(),
        ..CniRequest::default()
    }
}

/// Addresses (with prefixes) of an interface in a namespace.
pub async fn addresses(namespace: &Namespace, name: &str) -> Vec<String> {
    let inside = Netlink::in_namespace(namespace).await.unwrap();
    let Some(link) = inside.link(name).await.unwrap() else { return Vec::new() };
    let mut nets: Vec<String> = inside
        .addresses(Some(link.index))
        .await
        .unwrap()
        .into_iter()
        .filter(|address| !address.link_scope)
        .map(|address| address.net.to_string())
        .collect();
    nets.sort();
    nets
}

/// Whether a neighbour answers from inside a namespace.
pub async fn answers(namespace: &Namespace, interface: &str, address: &str) -> bool {
    let runtime = tokio::runtime::Handle::current();
    let mut reach =
        namespace.run_async(move || daemon::netlink::Reachability::open_on(&runtime)).await.unwrap().unwrap();
    let link = Netlink::in_namespace(namespace).await.unwrap().require_link(interface).await.unwrap();
    let address: IpAddr = address.parse().unwrap();
    reach.resolve(link.index, address, Duration::from_secs(5)).await.unwrap().is_some()
}

/// What `ovs-ofctl` says of a bridge of the switch whose database that is.
pub fn ofctl(server: &Server, bridge: &str, arguments: &[&str]) -> String {
    let directory = server.directory();
    let mut command = server.root().command("usr/bin/ovs-ofctl", directory).unwrap();
    let bridge = format!("unix:{}", directory.join(format!("{bridge}.mgmt")).display());
    let (verb, rest) = arguments.split_first().unwrap();
    let output = command.args(["-O", "OpenFlow14", "--no-stats", verb, &bridge]).args(rest).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
