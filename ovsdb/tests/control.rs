//! Control sockets of real daemons.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use ovsdb::testing::real::{Cluster, Root, Server};
use ovsdb::unixctl::{Daemon, Error, Role, SyncStatus};
use ovsdb::{Operation, Options, Session, Value};
use support::PATIENCE;

/// Waits until a question is answered as wanted.
async fn until<T: std::fmt::Debug, F: Future<Output = Result<T, Error>>>(
    mut ask: impl FnMut() -> F,
    wanted: impl Fn(&T) -> bool,
) -> T {
    let begin = Instant::now();
    loop {
        match ask().await {
            Ok(answer) if wanted(&answer) => return answer,
            other => assert!(begin.elapsed() < PATIENCE, "{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn an_ovsdb_server_answers() {
    let server = Server::northbound().unwrap();
    let daemon = Daemon::at(server.control_socket());
    let version = daemon.version().await.unwrap();
    assert!(version.starts_with("ovsdb-server (Open vSwitch) 3."), "{version}");
    let commands = daemon.commands().await.unwrap();
    for command in ["version", "memory/show", "ovsdb-server/compact"] {
        assert!(commands.iter().any(|c| c == command), "{command} in {commands:?}");
    }
    assert_eq!(daemon.databases().await.unwrap(), ["OVN_Northbound", "_Server"]);
    assert_eq!(daemon.sync_status().await.unwrap(), SyncStatus::Active);
    let remote = format!("punix:{}", server.directory().join("second.sock").display());
    daemon.add_remote(&remote).await.unwrap();
    assert!(daemon.remotes().await.unwrap().contains(&remote));
    daemon.remove_remote(&remote).await.unwrap();
    assert!(!daemon.remotes().await.unwrap().contains(&remote));
    // Memory is reported by the main loop, a little after the start.
    until(|| daemon.memory(), |counts| counts.contains_key("cells")).await;
    daemon.compact(None).await.unwrap();
    daemon.compact(Some("OVN_Northbound")).await.unwrap();
    let error = daemon.compact(Some("nope")).await.unwrap_err();
    assert!(matches!(error, Error::Refused(_)) && !error.to_string().is_empty(), "{error}");
    let error = daemon.cluster_status("OVN_Northbound").await.unwrap_err();
    assert!(matches!(error, Error::Refused(_)), "standalone: {error}");
    let error = daemon.call("no/such", &[]).await.unwrap_err();
    assert!(matches!(error, Error::Refused(_)), "{error}");
    daemon.drop_connections().await.unwrap();
    daemon.disable_monitor_cond().await.unwrap();
    daemon.exit().await.unwrap();
    let gone = until(|| async { Ok(daemon.version().await) }, Result::is_err).await;
    assert!(matches!(gone, Err(Error::Io(_))), "{gone:?}");
}

#[tokio::test]
async fn members_of_a_cluster_say_how_it_is() {
    let cluster = Cluster::northbound(3).unwrap();
    let daemons: Vec<Daemon> = (0..3).map(|i| Daemon::at(cluster.member(i).control_socket())).collect();
    let mut leaders = 0;
    for daemon in &daemons {
        let ask = || daemon.cluster_status("OVN_Northbound");
        let status = until(ask, |s| s.servers.len() == 3 && s.has_leader()).await;
        println!("{status:?}");
        assert_eq!((status.database.as_str(), status.status.as_str()), ("OVN_Northbound", "cluster member"));
        assert_eq!((status.cluster_id.len(), status.server_id.len()), (36, 36));
        assert!(status.term >= 1 && status.log.0 < status.log.1);
        assert_eq!(status.servers.iter().filter(|s| s.is_self).count(), 1);
        assert!(status.election_timer.is_some());
        if status.role == Role::Leader {
            leaders += 1;
            assert_eq!(status.leader, "self");
            daemon.change_election_timer("OVN_Northbound", Duration::from_millis(2000)).await.unwrap();
            let error = daemon.cluster_kick("OVN_Northbound", "nobody").await.unwrap_err();
            assert!(matches!(error, Error::Refused(_)), "{error}");
        } else {
            assert!(status.servers.iter().any(|s| s.id == status.leader), "{status:?}");
        }
    }
    assert_eq!(leaders, 1);
    until(
        || daemons[0].cluster_status("OVN_Northbound"),
        |s| s.election_timer == Some(Duration::from_secs(2)),
    )
    .await;
    daemons[2].cluster_leave("OVN_Northbound").await.unwrap();
    until(|| daemons[0].cluster_status("OVN_Northbound"), |s| s.servers.len() == 2).await;
}

/// Ended when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(mut command: Command) -> Running {
    Running(command.spawn().unwrap())
}

#[tokio::test]
async fn northd_and_a_controller_tell_their_connections() {
    let root = Root::from_env().unwrap();
    let northbound = Server::northbound().unwrap();
    let southbound = Server::start(&root.file("usr/share/ovn/ovn-sb.ovsschema").unwrap()).unwrap();
    let switch = Server::vswitch().unwrap();
    let directory = northbound.directory();
    let socket = |name: &str| directory.join(name);

    let mut command = root.command("usr/bin/ovn-northd", directory).unwrap();
    command
        .arg(format!("--ovnnb-db={}", northbound.endpoint()))
        .arg(format!("--ovnsb-db={}", southbound.endpoint()));
    command.arg(format!("--unixctl={}", socket("northd.ctl").display()));
    let _northd = run(command);
    let northd = Daemon::at(socket("northd.ctl"));
    until(|| northd.northd_is_connected(), |connected| *connected == (true, true)).await;
    until(|| northd.northd_status(), |status| status == "active").await;
    assert!(northd.version().await.unwrap().starts_with("ovn-northd "));
    let stats = northd.engine_stats().await.unwrap();
    assert!(stats.contains("Node: northd"), "{stats}");

    let (session, _events) = Session::connect(Options::new(vec![switch.endpoint()], "Open_vSwitch"));
    let ids = [
        ("system-id", "chassis-1".to_owned()),
        ("ovn-remote", southbound.endpoint().to_string()),
        ("ovn-encap-type", "geneve".to_owned()),
        ("ovn-encap-ip", "127.0.0.1".to_owned()),
    ];
    let row = Operation::insert("Open_vSwitch").column("external_ids", Value::string_map(ids)).build();
    session.transact(vec![row]).await.unwrap();
    let mut command = root.command("usr/bin/ovn-controller", directory).unwrap();
    command.arg(switch.endpoint().to_string());
    command.arg(format!("--unixctl={}", socket("controller.ctl").display()));
    let _controller = run(command);
    let controller = Daemon::at(socket("controller.ctl"));
    until(|| controller.is_connected(), |connected| *connected).await;
    assert!(!controller.engine_stats().await.unwrap().is_empty());
    drop(southbound);
    until(|| controller.is_connected(), |connected| !*connected).await;
    until(|| northd.northd_is_connected(), |connected| *connected == (true, false)).await;
}
