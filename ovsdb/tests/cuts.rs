//! A cluster whose members live in network namespaces of their own: cut off from each
//! other, from the client, in one direction only; and one with a disk that is full.
//!
//! Everything is checked by `mirror`: no acknowledged write lost, no partial
//! replica visible, nothing applied twice.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod mirror;
mod support;

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;

use mirror::{Load, Mirror, leader_dump, options};
use ovsdb::testing::real::{Cluster, Place, Root};

const DATABASE: &str = "OVN_Northbound";
const INNER: &str = "WEIR_TEST_INNER";

/// Runs this test again in network and mount namespaces of its own, which go away
/// with it.
fn in_namespaces(test: &str, inner: impl Future<Output = ()>) {
    if std::env::var_os(INNER).is_some() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        return runtime.unwrap().block_on(inner);
    }
    let status = Command::new("unshare")
        .args(["--net", "--mount", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--include-ignored"])
        .env(INNER, "1")
        .status()
        .expect("unshare (util-linux)");
    assert!(status.success(), "{test} failed in its namespaces (root is needed)");
}

fn run(command: &str) {
    let mut words = command.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output();
    let output = output.unwrap_or_else(|e| panic!("{command}: {e}"));
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

fn address(member: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 99, 0, 10 + u8::try_from(member).unwrap()))
}

/// A bridge with so many namespaces on it, of which this process is a neighbour.
fn network(members: usize) -> Vec<Place> {
    std::fs::create_dir_all("/run/netns").unwrap();
    run("mount -t tmpfs tmpfs /run/netns");
    run("ip link set lo up");
    run("ip link add br0 type bridge");
    run("ip addr add 10.99.0.1/24 dev br0");
    run("ip link set br0 up");
    (0..members)
        .map(|m| {
            run(&format!("ip netns add m{m}"));
            run(&format!("ip link add v{m} type veth peer name eth0 netns m{m}"));
            run(&format!("ip link set v{m} master br0 up"));
            run(&format!("ip -n m{m} addr add {}/24 dev eth0", address(m)));
            run(&format!("ip -n m{m} link set eth0 up"));
            run(&format!("ip -n m{m} link set lo up"));
            Place::in_namespace(format!("m{m}"), address(m))
        })
        .collect()
}

/// Which packets are dropped without a word.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cut {
    /// All of the leader's.
    Leader,
    /// All of a follower's.
    Follower,
    /// The leader hears nothing any more, but is heard.
    LeaderDeaf,
    /// Between the leader and us only.
    Client,
}

const CUTS: [Cut; 4] = [Cut::Leader, Cut::Follower, Cut::Client, Cut::LeaderDeaf];

/// Makes a cut (`-I`) or heals it (`-D`).
fn drop_packets(how: &str, cut: Cut, member: usize) {
    if cut == Cut::Client {
        return run(&format!("iptables {how} INPUT -s {} -j DROP", address(member)));
    }
    run(&format!("ip netns exec m{member} iptables {how} INPUT -i eth0 -j DROP"));
    if cut != Cut::LeaderDeaf {
        run(&format!("ip netns exec m{member} iptables {how} OUTPUT -o eth0 -j DROP"));
    }
}

async fn cuts(wanted: u64) {
    let schema = Root::from_env().unwrap().northbound_schema().unwrap();
    let mut cluster = tokio::task::block_in_place(|| Cluster::start_at(&schema, network(3), None)).unwrap();
    let schema = cluster.member(0).schema(DATABASE).unwrap();
    let mut writer = options(cluster.endpoints(), &schema);
    writer.leader_only = true;
    let mut writer = Mirror::connect(writer);
    let mut reader = Mirror::connect(options(cluster.endpoints(), &schema));
    writer.begin().await;
    let mut load = Load::new(schema, 11);
    for round in 0..wanted {
        let cut = CUTS[(round % 4) as usize];
        for _ in 0..3 {
            writer.step(&mut load, || leader_dump(&mut cluster)).await;
        }
        let leader = tokio::task::block_in_place(|| cluster.wait_leader()).unwrap();
        let victim = if cut == Cut::Follower { (leader + 1) % 3 } else { leader };
        let connected = writer.session.state().connections;
        drop_packets("-I", cut, victim);
        (0..10).for_each(|_| writer.submit(load.transaction()));
        writer.answers().await;
        match cut {
            // Whoever is left has a leader, takes writes and is followed.
            Cut::Leader | Cut::LeaderDeaf => {
                writer
                    .until("another leader", |w| {
                        let state = w.session.state();
                        state.synced && state.connections > connected
                    })
                    .await;
                assert_ne!(writer.session.state().endpoint, Some(cluster.member(victim).endpoint()));
            }
            Cut::Follower => {}
            Cut::Client => writer.until("the loss", |w| !w.session.state().synced).await,
        }
        if cut != Cut::Client {
            (0..3).for_each(|_| writer.submit(load.transaction()));
            writer.answers().await;
        }
        drop_packets("-D", cut, victim);
        writer.settle(|| leader_dump(&mut cluster)).await;
        reader.settle(|| leader_dump(&mut cluster)).await;
    }
    writer.summary(&format!("writer after {wanted} cuts"));
    reader.summary("reader");
    assert!(writer.counts.committed > wanted);
}

#[test]
fn network_cuts_lose_and_double_nothing() {
    in_namespaces("network_cuts_lose_and_double_nothing", cuts(4));
}

#[test]
#[ignore = "long: make soak"]
fn soak_network_cuts() {
    let wanted = std::env::var("WEIR_CUTS").ok().and_then(|s| s.parse().ok()).unwrap_or(40);
    in_namespaces("soak_network_cuts", cuts(wanted));
}

/// A file system of a few megabytes.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn new(directory: &Path) -> Self {
        std::fs::create_dir(directory).unwrap();
        run(&format!("mount -t tmpfs -o size=4m tmpfs {}", directory.display()));
        Self(directory.into())
    }
    /// Leaves no byte free.
    fn fill(&self) {
        use std::io::Write;
        let mut file = std::fs::File::create(self.0.join("filler")).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
        while file.write_all(&[0]).is_ok() {}
    }
    fn free(&self) {
        std::fs::remove_file(self.0.join("filler")).unwrap();
    }
}

/// The disk of one member is full, first a follower's, then the leader's.
async fn disk_full() {
    let directory = tempfile::tempdir().unwrap();
    let disks: Vec<SmallDisk> =
        (0..3).map(|m| SmallDisk::new(&directory.path().join(m.to_string()))).collect();
    let places = disks.iter().map(|d| Place { parent: Some(d.0.clone()), ..Place::default() }).collect();
    let schema = Root::from_env().unwrap().northbound_schema().unwrap();
    let mut cluster = tokio::task::block_in_place(|| Cluster::start_at(&schema, places, None)).unwrap();
    let schema = cluster.member(0).schema(DATABASE).unwrap();
    let mut writer = options(cluster.endpoints(), &schema);
    writer.leader_only = true;
    let mut writer = Mirror::connect(writer);
    writer.begin().await;
    let mut load = Load::new(schema, 12);
    for leaders in [false, true] {
        let leader = tokio::task::block_in_place(|| cluster.wait_leader()).unwrap();
        let victim = if leaders { leader } else { (leader + 1) % 3 };
        disks[victim].fill();
        (0..10).for_each(|_| writer.submit(load.transaction()));
        writer.answers().await;
        println!("leader's {leaders}: {}", cluster.member(victim).log().lines().last().unwrap_or_default());
        // The cluster goes on with the other two.
        let (before, begin) = (writer.counts.committed, std::time::Instant::now());
        while writer.counts.committed < before + 5 {
            assert!(begin.elapsed() < mirror::PATIENCE, "{:?} {:?}", writer.counts, writer.session.state());
            writer.submit(load.transaction());
            writer.answers().await;
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        println!("leader's {leaders}: five more commits after {:?}", begin.elapsed());
        disks[victim].free();
        // Whatever the member made of it, with a free disk and a restart it is back.
        tokio::task::block_in_place(|| {
            cluster.member_mut(victim).resume().unwrap();
            cluster.wait_connected(victim).unwrap();
        });
        writer.settle(|| leader_dump(&mut cluster)).await;
        writer.settle(|| cluster.dump(victim).ok()).await;
    }
    writer.summary("disk full");
}

#[test]
fn a_full_disk_of_one_member_loses_and_doubles_nothing() {
    in_namespaces("a_full_disk_of_one_member_loses_and_doubles_nothing", disk_full());
}
