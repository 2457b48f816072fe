//! Named namespaces with wires between them, and the inputs of a small cluster: for tests of the gateway.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests fail by panicking

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use daemon::firewall::Tools;
use daemon::gateway::{Inputs, SubnetInput};
use daemon::sys::Namespace;

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A namespace with a name; goes with the value.
pub struct Ns(pub String);

impl Ns {
    pub fn new(kind: &str) -> Self {
        let name = format!("wg-{kind}-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        run("ip", &["netns", "add", &name], None);
        let ns = Self(name);
        ns.ip("link set lo up");
        ns
    }

    pub fn exec(&self, program: &str, arguments: &[&str], input: Option<&str>) -> String {
        let mut words = vec!["netns", "exec", &self.0, program];
        words.extend(arguments);
        run("ip", &words, input)
    }

    pub fn ip(&self, words: &str) -> String {
        let mut all = vec!["-n", self.0.as_str()];
        all.extend(words.split(' '));
        run("ip", &all, None)
    }

    /// The agent's programs; `WEIR_TEST_TOOLS_ROOT` takes those of another distribution, unpacked in that folder.
    pub fn tools(&self) -> Tools {
        let mut prefix: Vec<String> = ["ip", "netns", "exec", &self.0].map(String::from).into();
        prefix.extend(
            std::env::var("WEIR_TEST_TOOLS_ROOT").into_iter().flat_map(|root| ["chroot".into(), root]),
        );
        Tools::behind(prefix)
    }

    pub fn handle(&self) -> Namespace {
        Namespace::open(&Path::new("/run/netns").join(&self.0)).unwrap()
    }

    /// Rules without what differs from call to call.
    pub fn rules(&self, program: &str) -> Vec<String> {
        let saved = self.exec(&format!("{program}-save"), &[], None);
        let keep = |line: &&str| !line.starts_with('#');
        saved.lines().filter(keep).map(|line| line.split(" [").next().unwrap().to_owned()).collect()
    }

    pub fn listen(&self, port: u16) -> TcpListener {
        self.handle().run(move || TcpListener::bind(("::", port)).unwrap()).unwrap()
    }

    pub fn connect(&self, ip: IpAddr, port: u16) -> std::io::Result<TcpStream> {
        let address = SocketAddr::new(ip, port);
        self.handle().run(move || TcpStream::connect_timeout(&address, Duration::from_secs(5))).unwrap()
    }
}

impl Drop for Ns {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

pub fn run(program: &str, arguments: &[&str], input: Option<&str>) -> String {
    use std::io::Write;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.unwrap_or_default().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

pub fn may_run() -> bool {
    let root = nix::unistd::Uid::effective().is_root();
    if !root {
        eprintln!("skipped: network namespaces need root");
    }
    root
}

pub fn inputs() -> Inputs {
    let subnet = |name: &str, cidrs: [&str; 2]| SubnetInput {
        name: name.into(),
        uid: format!("00000000-0000-0000-0000-{name:0>12}"),
        cidrs: cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect(),
        validated: true,
        distributed: true,
        ..SubnetInput::default()
    };
    Inputs {
        ipv4: true,
        ipv6: true,
        subnets: vec![
            SubnetInput { nat_outgoing: true, ..subnet("default", ["10.16.0.0/16", "fd00:10:16::/112"]) },
            SubnetInput { join: true, ..subnet("join", ["100.64.0.0/16", "fd00:100:64::/112"]) },
        ],
        services: vec!["10.96.0.0/12".parse().unwrap(), "fd00:10:96::/112".parse().unwrap()],
        node_name: "n1".into(),
        node_ips: vec!["172.30.0.11".parse().unwrap(), "fd00:172::11".parse().unwrap()],
        other_node_ips: ["172.30.0.12", "fd00:172::12"].iter().map(|ip| ip.parse().unwrap()).collect(),
        ..Inputs::default()
    }
}

/// pod ── node ── the other node and a host that is none, all with real packets.
pub struct Wires {
    pub pod: Ns,
    pub node: Ns,
    pub outside: Ns,
}

impl Wires {
    pub fn new() -> Self {
        let (pod, node, outside) = (Ns::new("pod"), Ns::new("node"), Ns::new("out"));
        node.ip(&format!("link add ovn0 type veth peer name eth0 netns {}", pod.0));
        node.ip(&format!("link add eth0 type veth peer name eth0 netns {}", outside.0));
        for (ns, link, addresses) in [
            (&pod, "eth0", vec!["10.16.0.5/16", "fd00:10:16::5/112"]),
            // The logical router's part: the pod's gateway and the join address on one link.
            (&node, "ovn0", vec!["100.64.0.2/16", "fd00:100:64::2/112", "10.16.0.1/32", "fd00:10:16::1/128"]),
            (&node, "eth0", vec!["172.30.0.11/24", "fd00:172::11/64"]),
            (
                &outside,
                "eth0",
                vec!["172.30.0.12/24", "fd00:172::12/64", "172.30.0.99/24", "fd00:172::99/64"],
            ),
        ] {
            for address in addresses {
                let nodad = if address.contains(':') { " nodad" } else { "" };
                ns.ip(&format!("addr add {address} dev {link}{nodad}"));
            }
            ns.ip(&format!("link set {link} up"));
        }
        node.ip("route add 10.16.0.5/32 dev ovn0");
        node.ip("-6 route add fd00:10:16::5/128 dev ovn0");
        pod.ip("route add default via 10.16.0.1");
        pod.ip("-6 route add default via fd00:10:16::1");
        node.handle()
            .run(|| {
                for path in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
                    daemon::sys::write_sysctl(path, "1").unwrap();
                }
            })
            .unwrap();
        Self { pod, node, outside }
    }
}
