//! What tests of limits share: the loop that keeps them, and measured rates.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use daemon::flags::Flags;
use daemon::kube::{EventSink, PodFacts, Recorder};
use daemon::netlink::Netlink;
use daemon::plug::{Locks, Patience, Plugger};
use daemon::qos::Effect;
use daemon::sys::Namespace;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::Node;
use super::api::FakeApi;

pub const LIMIT: Duration = Duration::from_secs(30);

pub fn annotate(pod: &mut PodFacts, pairs: &[(&str, &str)]) {
    for (key, value) in pairs {
        pod.annotations.insert(crds::keys::pod_key("ovn", key), (*value).into());
    }
}

/// A daemon of its own on the same node, as after a restart.
pub fn restarted(node: &Node) -> Arc<Plugger> {
    restarted_telling(node, node.plugger.recorder.clone())
}

fn restarted_telling(node: &Node, recorder: Recorder) -> Arc<Plugger> {
    let old = &node.plugger;
    Arc::new(Plugger::new(
        old.node.clone(),
        old.cluster.clone(),
        old.ovs.clone(),
        old.host.clone(),
        old.network.clone(),
        recorder,
        old.metrics.clone(),
        Patience::default(),
        Locks::default(),
    ))
}

/// The events that `work` tells by a daemon of its own: reasons and messages, all that it leaves no time to tell too.
pub async fn told(node: &Node, work: impl AsyncFnOnce(Arc<Plugger>)) -> Vec<(String, String)> {
    let (api, url) = FakeApi::start(&Namespace::current().unwrap(), "127.0.0.1");
    let client = kube::Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap();
    let (sink, recorder) = EventSink::new(client, "n1");
    work(restarted_telling(node, recorder)).await;
    // It ends with its last recorder, all sent.
    sink.run().await;
    let text = |event: &serde_json::Value, key: &str| event[key].as_str().unwrap().to_owned();
    api.told().iter().map(|event| (text(event, "reason"), text(event, "message"))).collect()
}

/// The kind of what waits at the root of a pod's interface.
pub async fn root_qdisc(namespace: &Namespace) -> Option<String> {
    let inside = Netlink::in_namespace(namespace).await.unwrap();
    let link = inside.require_link("eth0").await.unwrap();
    inside.qdiscs(link.index).await.unwrap().into_iter().find(|q| q.root).map(|q| q.kind)
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
