//! What tests of limits share: the loop that keeps them, and measured rates.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use daemon::flags::Flags;
use daemon::kube::PodFacts;
use daemon::plug::Plugger;
use daemon::qos::Effect;
use daemon::sys::Namespace;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::Node;

pub const LIMIT: Duration = Duration::from_secs(30);

pub fn annotate(pod: &mut PodFacts, pairs: &[(&str, &str)]) {
    for (key, value) in pairs {
        pod.annotations.insert(crds::keys::pod_key("ovn", key), (*value).into());
    }
}

/// The loop that the agent runs, until the guard is dropped.
pub fn keep(plugger: &Arc<Plugger>, arguments: &[&str]) -> DropGuard {
    keep_told(plugger, arguments, tokio::sync::broadcast::Sender::new(16))
}

/// The same, told of changes by a feed.
pub fn keep_told(
    plugger: &Arc<Plugger>,
    arguments: &[&str],
    changes: tokio::sync::broadcast::Sender<daemon::netlink::Change>,
) -> DropGuard {
    let cancel = CancellationToken::new();
    let flags = Flags::parse_from(["kube-ovn-daemon"].iter().chain(arguments));
    let (plugger, stop) = (plugger.clone(), cancel.clone());
    tokio::spawn(async move {
        daemon::portloop::keep_ports(plugger, Arc::new(flags), changes.subscribe(), stop).await;
    });
    cancel.drop_guard()
}

/// Polls, since the kernel tells nobody.
pub async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    let begin = Instant::now();
    while !condition().await {
        assert!(begin.elapsed() < LIMIT, "timed out: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub fn effect(node: &Node, name: &str) -> Option<Effect> {
    node.plugger.limits.get(name).map(|entry| entry.effect)
}

/// Mbit/s of user data over one TCP connection, once the burst is spent.
pub fn mbits(from: &Namespace, to: &Namespace, address: &str) -> f64 {
    let address: SocketAddr = format!("{address}:5201").parse().unwrap();
    let listener = to.run(move || TcpListener::bind(address).unwrap()).unwrap();
    let sender = from.clone();
    let sending = std::thread::spawn(move || {
        let mut stream = sender.run(move || TcpStream::connect_timeout(&address, LIMIT).unwrap()).unwrap();
        let block = vec![7; 64 * 1024];
        // Until the other side has seen enough.
        while stream.write_all(&block).is_ok() {}
    });
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut buffer = vec![0; 64 * 1024];
    let mut count = |time: Duration| {
        let (begin, mut bytes) = (Instant::now(), 0usize);
        while begin.elapsed() < time {
            bytes += stream.read(&mut buffer).unwrap();
        }
        bytes as f64 * 8.0 / 1e6 / begin.elapsed().as_secs_f64()
    };
    count(Duration::from_millis(700));
    let rate = count(Duration::from_millis(2500));
    drop(stream);
    sending.join().unwrap();
    rate
}

/// User data is a little less than what is on the wire: headers of 66 in 1,400 bytes.
pub fn is_near(measured: f64, asked: f64) -> bool {
    (asked * 0.9..asked * 1.02).contains(&measured)
}
