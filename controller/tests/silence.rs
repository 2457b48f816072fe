//! Packets to the API server vanish without a word: no RST, no error, links stay
//! up. Real kernel namespaces, real sockets, the whole binary; needs root, as the
//! lab does. (The database is on a unix socket here, so only the API server is cut.)
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fake;
mod rig;

use std::process::Command;
use std::time::{Duration, Instant};

use rig::{BINARY, Controller, PODS, Rig, eventually};
use serde_json::json;

/// How long the silence lasts. Longer than every timer that could notice it.
const SILENCE: Duration = Duration::from_secs(20);

/// Two namespaces joined by a bridge in a third; removed when dropped.
struct Net {
    name: String,
}

fn ip(arguments: &str) {
    let output =
        Command::new("ip").args(arguments.split_whitespace()).output().expect("ip (iproute2) is there");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {text} (these tests need root)");
}

impl Net {
    fn new() -> Self {
        let name = format!("wt{:08x}", rand::random::<u32>());
        let this = Self { name: name.clone() };
        for part in ["a", "b", "s"] {
            ip(&format!("netns add {name}{part}"));
        }
        ip(&format!("-n {name}s link add br0 type bridge"));
        ip(&format!("-n {name}s link set br0 up"));
        for (part, address) in [("a", "10.255.7.1/24"), ("b", "10.255.7.2/24")] {
            let space = format!("{name}{part}");
            ip(&format!("-n {space} link add eth0 type veth peer name port-{part} netns {name}s"));
            ip(&format!("-n {space} link set lo up"));
            ip(&format!("-n {space} address add {address} dev eth0"));
            ip(&format!("-n {space} link set eth0 up"));
            ip(&format!("-n {name}s link set dev port-{part} master br0 up"));
        }
        this
    }

    /// A listener inside the server's namespace.
    fn listen(&self) -> tokio::net::TcpListener {
        let path = format!("/run/netns/{}b", self.name);
        // A socket belongs to the namespace of the thread that opens it.
        let thread = std::thread::spawn(move || {
            let space = std::fs::File::open(path).unwrap();
            nix::sched::setns(space, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            std::net::TcpListener::bind("10.255.7.2:0").unwrap()
        });
        let listener = thread.join().unwrap();
        listener.set_nonblocking(true).unwrap();
        tokio::net::TcpListener::from_std(listener).unwrap()
    }

    fn cut(&self) {
        ip(&format!("-n {}s link set dev port-b nomaster", self.name));
    }

    fn heal(&self) {
        ip(&format!("-n {}s link set dev port-b master br0", self.name));
    }

    async fn controller(&self, rig: &Rig, arguments: &[&str]) -> Controller {
        let mut command = tokio::process::Command::new("ip");
        command.args(["netns", "exec", &format!("{}a", self.name), BINARY]);
        rig.configure(&mut command, arguments);
        let controller = rig.spawn(command).await;
        controller.quiet().await;
        controller
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for part in ["a", "b", "s"] {
            let _ = Command::new("ip").args(["netns", "delete", &format!("{}{part}", self.name)]).status();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_come_back_with_what_was_missed() {
    let net = Net::new();
    let rig = Rig::at(net.listen()).await;
    rig.node("n1", "192.0.2.1");
    rig.pod("goes", "n1");
    // A Lease that outlives the silence, so that this is about watches alone.
    let patient = ["--leader-elect-lease-duration=120s", "--leader-elect-renew-deadline=110s"];
    let controller = net.controller(&rig, &patient).await;
    rig.routed("goes").await;
    controller.quiet().await;

    net.cut();
    rig.api.delete(&format!("{PODS}/goes"));
    rig.pod("comes", "n1");
    tokio::time::sleep(SILENCE).await;
    let status = controller.call("status", json!([])).await;
    let pods =
        status["watches"].as_array().unwrap().iter().find(|watch| watch["kind"] == "pods").unwrap().clone();
    assert!(pods["problem"].is_string(), "noticed: {pods}");
    assert!(rig.has_port("goes.shop").await);

    net.heal();
    let healed = Instant::now();
    eventually("the missed deletion is done", async || !rig.has_port("goes.shop").await).await;
    rig.routed("comes").await;
    assert!(healed.elapsed() < Duration::from_secs(10), "{:?}", healed.elapsed());
    eprintln!("caught up {:?} after healing", healed.elapsed());
    assert_eq!(controller.stop().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_can_not_renew_leaves_and_nothing_of_it_arrives_later() {
    let net = Net::new();
    let rig = Rig::at(net.listen()).await;
    rig.node("n1", "192.0.2.1");
    let controller = net.controller(&rig, &[]).await;
    net.cut();
    let cut = Instant::now();
    // Work that it can't know of yet, and would do.
    rig.pod("p", "n1");
    assert_eq!(controller.ended().await, Some(1));
    // It stopped before others may take over (15 s), however long it was cut off.
    assert!(cut.elapsed() < Duration::from_secs(15), "{:?}", cut.elapsed());
    rig.api.forget_requests();
    net.heal();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(rig.api.requests(), Vec::<String>::new(), "no late write from a kernel buffer");
    assert!(!rig.has_port("p.shop").await);
}
