//! A network that drops packets silently, between real sockets of the kernel.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::process::Command;
use std::time::{Duration, Instant};

use ovsdb::testing::real::Server;
use ovsdb::{Endpoint, Event, Operation, Options, Session, TransactErrorKind};
use support::{disconnected, next, replaced};

const INNER: &str = "WEIR_TEST_INNER";
const PORT: u16 = 16641;

/// Runs this test again in a network namespace of its own.
fn in_namespace(test: &str) {
    let status = Command::new("unshare")
        .args(["--net", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INNER, "1")
        .status()
        .expect("unshare (util-linux)");
    assert!(status.success(), "{test} failed in its namespace (root is needed)");
}

fn run(command: &str) {
    let mut words = command.split(' ');
    let status = Command::new(words.next().unwrap()).args(words).status();
    assert!(status.is_ok_and(|s| s.success()), "{command}");
}

fn switch(name: &str) -> Operation {
    Operation::insert("Logical_Switch").column("name", name).build()
}

#[test]
fn dropped_packets_are_noticed_busy_or_idle_and_healed_quickly() {
    if std::env::var_os(INNER).is_none() {
        return in_namespace("dropped_packets_are_noticed_busy_or_idle_and_healed_quickly");
    }
    run("ip link set lo up");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let server = Server::northbound().unwrap();
        let listen = format!("ptcp:{PORT}:127.0.0.1");
        let control = server.control_socket();
        ovsdb::unixctl::call(&control, "ovsdb-server/add-remote", &[&listen], support::PATIENCE)
            .await
            .unwrap();
        let endpoint = Endpoint::Tcp { host: "127.0.0.1".into(), port: PORT };
        let mut options = Options::new(vec![endpoint], "OVN_Northbound").table("Logical_Switch", ["name"]);
        options.probe_interval = Duration::from_secs(1);
        options.request_timeout = Duration::from_secs(600);
        let (session, mut events) = Session::connect(options);
        for busy in [false, true] {
            replaced(&mut events).await;
            session.transact(vec![switch("before")]).await.unwrap();
            run(&format!("iptables -I INPUT -p tcp --dport {PORT} -j DROP"));
            if busy {
                // Its own bound is far away: the kernel must tell that nobody acknowledges.
                session.submit(1, vec![switch("unknown")]);
                let outcome = loop {
                    if let Event::Reply { result, .. } = next(&mut events).await {
                        break result;
                    }
                };
                assert_eq!(outcome.unwrap_err().kind, TransactErrorKind::Disconnected);
            }
            let reason = disconnected(&mut events).await;
            println!("busy {busy}: {reason}");
            // Longer than any retransmission that a healed connection would wait for.
            tokio::time::sleep(Duration::from_secs(4)).await;
            assert!(!session.state().synced);
            run(&format!("iptables -D INPUT -p tcp --dport {PORT} -j DROP"));
            let healed = Instant::now();
            assert!(session.synced().await);
            println!("back {:?} after healing", healed.elapsed());
            assert!(healed.elapsed() < Duration::from_secs(10));
        }
    });
}
