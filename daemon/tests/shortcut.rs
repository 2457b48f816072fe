//! Services at addresses of a physical network (contract §4.9), with a real switch: what comes in by the NIC arrives at
//! `br-int` with a router port's MAC, and what others have in the bridge stays.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use daemon::kube::{EventSink, ServiceFacts, SubnetFacts, VlanFacts};
use daemon::netlink::{Netlink, Veth};
use daemon::openflow::{Flow, Protocol, Session, flow};
use daemon::parts::NodeParts;
use daemon::shortcut::Shortcut;
use daemon::sys::{Namespace, PacketSocket};
use support::api::FakeApi;
use support::underlay::{Agent, Wire, changes, patch, sh, until};
use support::{Node, new_namespace, start_vswitchd, wait_view};
use tokio_util::sync::CancellationToken;

const V4: &str = "10.9.0.50";
const V6: &str = "fd09::50";
const BRIDGE: &str = "br-net1";
const PATCH: [&str; 2] = ["patch-localnet.u1-to-br-int", "patch-br-int-to-localnet.u1"];

fn subnet() -> SubnetFacts {
    SubnetFacts {
        name: "u1".into(),
        vlan: "v0".into(),
        cidr_block: "10.9.0.0/24,fd09::/64".into(),
        external_lb_addresses: true,
        ..SubnetFacts::default()
    }
}

fn service(addresses: &[&str], ports: &[(&str, u16)]) -> ServiceFacts {
    ServiceFacts {
        uid: "s".into(),
        subnet: "u1".into(),
        addresses: addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
        ports: ports.iter().map(|(protocol, port)| ((*protocol).to_owned(), *port)).collect(),
        ..ServiceFacts::default()
    }
}

/// The node with its provider network, and the loop.
struct Bed {
    node: Node,
    wire: Wire,
    agent: Agent,
    cancel: CancellationToken,
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

impl Bed {
    async fn start() -> Self {
        let node = Node::start().await;
        let wire = Wire::bare(&node, "eth1").await;
        let agent = Agent::new(&node);
        agent.want("net1", "eth1");
        agent.cluster.vlans.put("v0".into(), Some(VlanFacts { id: 0, provider: "net1".into() }));
        agent.cluster.subnets.put("u1".into(), Some(subnet()));
        agent.cluster.services.replace(BTreeMap::new());
        let mut underlay = agent.start(&node);
        assert!(underlay.pass().await);
        // Who stands behind the patch port: it takes what is for the router port's MAC, and nothing else.
        let behind = format!(
            "ip link set gw address 00:00:00:01:00:01
            ip addr add {V4}/24 dev gw\nip addr add {V6}/64 dev gw nodad"
        );
        sh(&node.gateway, &behind);
        // Packets to it have a MAC that nobody has, as those that MetalLB's speaker on another node attracts.
        let ahead = format!(
            "ip neigh add {V4} lladdr 02:00:00:00:00:99 dev wire
            ip neigh add {V6} lladdr 02:00:00:00:00:99 dev wire"
        );
        sh(&wire.namespace, &ahead);
        // Whose questions are answered to that MAC, which only TCP and UDP have a way for.
        let mac = sh(&wire.namespace, "ip -o link show wire | sed 's/.*ether //; s/ .*//'");
        sh(&node.gateway, &format!("ip neigh add fd09::1 lladdr {} dev gw", mac.trim()));
        let cancel = CancellationToken::new();
        let shortcut = Shortcut::new(agent.parts(&node), node.server.directory().to_owned());
        tokio::spawn(shortcut.run(changes(&node).await.subscribe(), cancel.clone()));
        Self { node, wire, agent, cancel }
    }

    async fn patch(&self) {
        patch(&self.node, BRIDGE, PATCH[0], "br-int", PATCH[1]).await;
    }

    fn serve(&self, name: &str, service: Option<ServiceFacts>) {
        self.agent.cluster.services.put(("web".into(), name.into()), service);
    }

    fn vsctl(&self, arguments: &[&str]) {
        let server = &self.node.server;
        let mut vsctl = server.root().command("usr/bin/ovs-vsctl", server.directory()).unwrap();
        let database = format!("--db=unix:{}", server.socket().display());
        assert!(vsctl.arg(&database).args(arguments).status().unwrap().success(), "{arguments:?}");
    }

    fn ofctl(&self, arguments: &[&str]) -> String {
        support::ofctl(&self.node.server, BRIDGE, arguments)
    }

    /// Flows without what counts, ours or others'.
    fn flows(&self, ours: bool) -> Vec<String> {
        let mut flows: Vec<String> = self
            .ofctl(&["dump-flows"])
            .lines()
            .map(|line| line.trim().to_owned())
            .filter(|line| line.contains("actions="))
            .collect();
        flows.retain(|line| (line.contains("cookie=0x1000,") || line.contains("cookie=0x1001,")) == ours);
        flows.sort();
        flows
    }

    async fn until_flows(&self, count: usize) -> Vec<String> {
        until(&format!("{count} flows"), || self.flows(true).len() == count).await;
        self.flows(true)
    }

    /// Whether a datagram from the wire arrives behind the patch port.
    fn arrives(&self, ip: &str, port: u16) -> bool {
        let ip: IpAddr = ip.parse().unwrap();
        let any = if ip.is_ipv4() { "0.0.0.0" } else { "::" };
        let behind = self.node.gateway.run(move || UdpSocket::bind((ip, port)).unwrap()).unwrap();
        behind.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let ahead = self.wire.namespace.run(move || UdpSocket::bind((any, 0)).unwrap()).unwrap();
        // The first packets of a port may meet a switch that still sets up.
        (0..5).any(|_| {
            ahead.send_to(b"hello", (ip, port)).unwrap();
            behind.recv(&mut [0; 8]).is_ok()
        })
    }

    /// Whether a connection from the wire is served there.
    fn connects(&self, ip: &str, port: u16) -> bool {
        let ip: IpAddr = ip.parse().unwrap();
        let listener = self.node.gateway.run(move || TcpListener::bind((ip, port)).unwrap()).unwrap();
        let serving = std::thread::spawn(move || {
            listener.accept().unwrap().0.write_all(b"served").unwrap();
        });
        let connected = self.wire.namespace.run(move || {
            TcpStream::connect_timeout(&(ip, port).into(), Duration::from_secs(10)).and_then(|mut stream| {
                let mut text = String::new();
                stream.read_to_string(&mut text).map(|_| text)
            })
        });
        let served = connected.unwrap().is_ok_and(|text| text == "served");
        if served {
            serving.join().unwrap();
        }
        served
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_for_a_service_is_handed_to_ovn_and_nothing_else_is() {
    let bed = Bed::start().await;
    bed.ofctl(&["add-flow", "cookie=0x77,priority=10000,tcp,nw_dst=10.9.0.77,tp_dst=80,actions=drop"]);
    bed.ofctl(&["add-flow", "cookie=0x10001,table=3,priority=5,ip,actions=NORMAL"]);
    let others = bed.flows(false);
    assert_eq!(others.len(), 3, "the two and the bridge's own: {others:?}");

    // The patch port comes last; a Service without an address of its own has no flow.
    bed.serve("web", Some(service(&[V4, V6], &[("TCP", 80), ("UDP", 53)])));
    bed.serve("waiting", Some(ServiceFacts::default()));
    bed.serve(
        "elsewhere",
        Some(ServiceFacts { subnet: String::new(), ..service(&["192.0.2.9"], &[("TCP", 80)]) }),
    );
    assert!(!bed.arrives(V4, 53), "there is no way yet");
    bed.patch().await;
    let flows = bed.until_flows(4).await;
    let shown = flows.join("\n");
    for part in [
        "cookie=0x1000, priority=10000,tcp,in_port=",
        "cookie=0x1001, priority=10000,udp6,in_port=",
        "vlan_tci=0x0000/0x0fff,nw_dst=10.9.0.50,tp_dst=80 actions=set_field:00:00:00:01:00:01->eth_dst,output:",
        "ipv6_dst=fd09::50,tp_dst=53",
    ] {
        assert!(shown.contains(part), "{part}\n{shown}");
    }
    for ip in [V4, V6] {
        assert!(bed.arrives(ip, 53) && bed.connects(ip, 80), "{ip}");
        assert!(!bed.arrives(ip, 54), "another port is the physical network's");
    }

    // Another MAC; an address that goes; a Service that goes.
    let u2o = SubnetFacts { u2o_interconnection: true, ..subnet() };
    bed.agent.cluster.subnets.put("u1".into(), Some(u2o.clone()));
    bed.until_flows(0).await;
    let mac = "00:00:00:aa:bb:cc".to_owned();
    bed.agent.cluster.subnets.put("u1".into(), Some(SubnetFacts { u2o_interconnection_mac: mac, ..u2o }));
    let flows = bed.until_flows(4).await;
    assert!(flows.iter().all(|flow| flow.contains("00:00:00:aa:bb:cc")), "{flows:?}");
    bed.agent.cluster.subnets.put("u1".into(), Some(subnet()));
    until("the first MAC", || bed.flows(true).iter().all(|flow| flow.contains("00:00:00:01:00:01"))).await;
    bed.serve("web", Some(service(&[V4], &[("TCP", 80), ("SCTP", 81)])));
    bed.until_flows(1).await;
    bed.serve("web", None);
    bed.until_flows(0).await;
    assert!(!bed.arrives(V4, 53));
    assert_eq!(bed.flows(false), others);
}

/// A UDP datagram to [`V4`] and a port in a frame that nobody has the MAC of, with a VLAN tag or without.
fn datagram(tag: Option<u16>, port: u16) -> Vec<u8> {
    let mut frame = ABSENT.to_vec();
    frame.extend([2, 0, 0, 0, 0, 0x98]);
    if let Some(tag) = tag {
        frame.extend([0x81, 0x00]);
        frame.extend(tag.to_be_bytes());
    }
    frame.extend([0x08, 0x00, 0x45, 0, 0, 33, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 9, 0, 1, 10, 9, 0, 50]);
    let header = frame.len() - 20;
    let words = frame[header..].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[header + 10..header + 12].copy_from_slice(&sum.to_be_bytes());
    frame.extend([[0x30, 0x39], port.to_be_bytes(), [0, 13], [0, 0]].concat());
    frame.extend(b"hello");
    frame
}

const ABSENT: [u8; 6] = [2, 0, 0, 0, 0, 0x99];

impl Bed {
    /// Where a datagram arrives that comes in by the wire with that tag: behind the patch port, or at the neighbour.
    async fn goes(&self, neighbour: &Namespace, tag: Option<u16>) -> (bool, bool) {
        let inside = Netlink::in_namespace(&self.wire.namespace).await.unwrap();
        let wire = inside.require_link("wire").await.unwrap().index;
        let open = |namespace: &Namespace| {
            let socket = namespace.run(|| UdpSocket::bind((V4, 53)).unwrap()).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        };
        let (behind, beside) = (open(&self.node.gateway), open(neighbour));
        let frame = datagram(tag, 53);
        let sender = self.wire.namespace.run(|| PacketSocket::open().unwrap()).unwrap();
        let begin = Instant::now();
        let (mut there, mut here) = (false, false);
        // Until it came somewhere; then a little longer, for where it must not come.
        let mut rest = 20;
        while rest > 0 && begin.elapsed() < Duration::from_secs(10) {
            sender.send(wire, &frame).unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
            there |= behind.recv(&mut [0; 8]).is_ok();
            here |= beside.recv(&mut [0; 8]).is_ok();
            rest -= i32::from(there || here);
        }
        (there, here)
    }
}

/// Two networks on one wire have the same address: what comes for the Service in its VLAN is handed over with its tag,
/// what comes in another one goes where it went without the Service.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_is_reached_in_its_own_vlan_alone() {
    let bed = Bed::start().await;
    bed.patch().await;
    // The neighbour has the Service's address, in the VLAN that the Service has not.
    let neighbour = new_namespace();
    let veth =
        Veth { name: "beside", peer: "eth0", peer_mac: None, peer_namespace: Some(&neighbour), mtu: None };
    bed.node.host.netlink.add_veth(&veth).await.unwrap();
    sh(&bed.node.namespace, "ip link set beside up");
    let mac = ABSENT.map(|byte| format!("{byte:02x}")).join(":");
    sh(
        &neighbour,
        &format!("ip link set eth0 address {mac}; ip link set eth0 up; ip addr add {V4}/24 dev eth0"),
    );
    for (vlan, other, shown) in [
        (100, None, "dl_vlan=100"),
        (0, Some(100), "vlan_tci=0x0000/0x0fff"),
        (100, Some(200), "dl_vlan=100"),
    ] {
        bed.agent.cluster.vlans.put("v0".into(), Some(VlanFacts { id: vlan, provider: "net1".into() }));
        // Both are access ports of their networks, as OVN's localnet port is of the Subnet's.
        bed.vsctl(&["set", "port", "gw-port", &format!("tag={vlan}")]);
        bed.vsctl(&["--may-exist", "add-port", BRIDGE, "beside"]);
        bed.vsctl(&["set", "port", "beside", &format!("tag={}", other.unwrap_or(0))]);
        bed.vsctl(&["clear", "port", "eth1", "trunks"]);
        bed.serve("web", Some(service(&[V4, V6], &[("UDP", 53)])));
        until(shown, || {
            let flows = bed.flows(true);
            flows.len() == 2 && flows.iter().all(|flow| flow.contains(shown))
        })
        .await;
        let own = (vlan > 0).then_some(vlan);
        assert_eq!(bed.goes(&neighbour, own).await, (true, false), "the Service's VLAN {vlan}");
        assert_eq!(bed.goes(&neighbour, other).await, (false, true), "not its VLAN: {other:?} beside {vlan}");
        if vlan == 0 {
            assert_eq!(
                bed.goes(&neighbour, Some(0xe000)).await,
                (true, false),
                "a tag with a priority alone"
            );
        }
        // The switch tells of them what was written: nothing is written again.
        let mut session = Session::open(bed.node.server.directory(), BRIDGE).await.unwrap();
        let told = session.flows(0x1000, !1).await.unwrap();
        assert!(told.iter().all(|seen| seen.flow.as_ref().is_some_and(|flow| flow.vlan == vlan)), "{told:?}");
        bed.serve("web", None);
        bed.until_flows(0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flows_of_services_heal() {
    let mut bed = Bed::start().await;
    bed.patch().await;
    bed.serve("web", Some(service(&[V4, V6], &[("UDP", 53)])));
    let flows = bed.until_flows(2).await;
    // By hand: one, all, and one that is changed.
    bed.ofctl(&["del-flows", "udp,nw_dst=10.9.0.50"]);
    assert_eq!(bed.until_flows(2).await, flows);
    bed.ofctl(&["del-flows"]);
    assert_eq!(bed.until_flows(2).await, flows);
    bed.ofctl(&["mod-flows", "udp6,ipv6_dst=fd09::50,actions=drop"]);
    until("its actions", || bed.flows(true) == flows).await;
    // One of ours that nothing wants.
    bed.ofctl(&["add-flow", "cookie=0x1001,table=2,priority=7,icmp6,actions=drop"]);
    until("only what is wanted", || bed.flows(true) == flows).await;
    assert!(bed.flows(false).is_empty(), "the bridge's own flow was deleted by the test, and is not ours");
    // Another switch starts without flows.
    bed.node.vswitchd = None;
    wait_view(&bed.node.ovs, "the database", daemon::ovs::View::is_connected).await;
    bed.node.vswitchd = Some(start_vswitchd(&bed.node.namespace, &bed.node.server));
    let socket = bed.node.server.directory().join(format!("{BRIDGE}.mgmt"));
    until("the bridge", || std::os::unix::net::UnixStream::connect(&socket).is_ok()).await;
    bed.until_flows(2).await;
    until("the way through the new switch", || bed.arrives(V4, 53)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bundle_is_all_or_nothing_and_what_the_switch_refuses_is_said() {
    let bed = Bed::start().await;
    bed.cancel.cancel();
    let folder = bed.node.server.directory();
    let flow = |port, output| Flow {
        cookie: 0x1000,
        priority: 10_000,
        in_port: 1,
        vlan: 0,
        protocol: Protocol::Tcp,
        destination: V4.parse().unwrap(),
        port,
        mac: "00:00:00:01:00:01".parse().unwrap(),
        output,
    };
    let mut session = Session::open(folder, BRIDGE).await.unwrap();
    // A number that no port can have.
    let (good, bad) = (flow(80, 1), flow(81, 0xffff_ff05));
    let refused = session.exchange(&[], &[&good, &bad]).await.unwrap_err().to_string();
    assert!(refused.contains("refuses: OpenFlow error type") && refused.contains(BRIDGE), "{refused}");
    let mut session = Session::open(folder, BRIDGE).await.unwrap();
    assert!(session.flows(0x1000, !1).await.unwrap().is_empty(), "the good one came with the bad one");
    // Many, which take several messages to tell.
    let many: std::collections::BTreeSet<Flow> = (1..=2000).map(|port| flow(port, 1)).collect();
    session.exchange(&[], &many.iter().collect::<Vec<_>>()).await.unwrap();
    let have = session.flows(0x1000, !1).await.unwrap();
    let (gone, new) = flow::difference(&have, &many);
    assert_eq!((have.len(), gone.len(), new.len()), (2000, 0, 0));
    session.exchange(&have.iter().collect::<Vec<_>>(), &[]).await.unwrap();
    assert!(session.flows(0x1000, !1).await.unwrap().is_empty());
    // A bridge that speaks older versions only says what to do.
    bed.vsctl(&["set", "bridge", BRIDGE, "protocols=OpenFlow10,OpenFlow13"]);
    let said = Session::open(folder, BRIDGE).await.unwrap_err().to_string();
    assert!(said.contains("add OpenFlow14"), "{said}");
    let absent = Session::open(folder, "br-none").await.unwrap_err().to_string();
    assert!(absent.contains("br-none"), "{absent}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flows_of_older_versions_go_at_the_start_and_only_then() {
    let bed = Bed::start().await;
    bed.cancel.cancel();
    let older = ["add-flow", "cookie=0x0,priority=10001,udp,nw_dst=10.9.0.50,actions=drop"];
    bed.ofctl(&older);
    let before = bed.flows(false);
    let mut shortcut = Shortcut::new(bed.agent.parts(&bed.node), bed.node.server.directory().to_owned());
    assert!(shortcut.pass().await);
    let after = bed.flows(false);
    assert_eq!((before.len(), after.len()), (2, 1), "{after:?}");
    bed.ofctl(&older);
    assert!(shortcut.pass().await);
    assert_eq!(bed.flows(false), before, "who adds one now is somebody else");
}

/// What every node finds is one event, whoever is first, also after a restart; another port is another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_that_no_node_can_serve_is_told_once() {
    let bed = Bed::start().await;
    bed.patch().await;
    let (api, url) = FakeApi::start(&Namespace::current().unwrap(), "127.0.0.1");
    let pass = async |node: &str| {
        let client = kube::Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap();
        let (sink, recorder) = EventSink::new(client, node);
        let parts = NodeParts { recorder, ..bed.agent.parts(&bed.node) };
        let mut shortcut = Shortcut::new(parts, bed.node.server.directory().to_owned());
        // Beside the loop of the bed, which writes the same.
        shortcut.pass().await;
        drop(shortcut);
        // It ends with its last recorder, all sent.
        sink.run().await;
    };
    bed.serve("web", Some(service(&[V4], &[("SCTP", 81)])));
    for node in ["n1", "n2", "n1"] {
        pass(node).await;
    }
    let told = api.told();
    assert_eq!(told.len(), 1, "{told:?}");
    let event = &told[0];
    assert_eq!((&event["reason"], &event["type"]), (&"UnderlayServiceFlowFailed".into(), &"Warning".into()));
    assert_eq!(event["involvedObject"]["kind"], "Service");
    assert_eq!(
        (&event["source"]["component"], &event["involvedObject"]["uid"]),
        (&"kube-ovn-cni".into(), &"s".into())
    );
    assert!(event["source"]["host"].is_null(), "no node is named");
    let text = event["message"].as_str().unwrap();
    assert!(text.contains("81/SCTP") && text.contains(V4), "{text}");
    bed.serve("web", Some(service(&[V4], &[("SCTP", 82)])));
    pass("n2").await;
    assert_eq!(api.told().len(), 2);
}
