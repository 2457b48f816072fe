//! Flags that open ports and files, on the real process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use support::agent::{Machine, until};
use support::tls;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

fn connect(machine: &Machine, port: u16) -> TcpStream {
    let stream =
        machine.namespace.run(move || std::net::TcpStream::connect(("127.0.0.1", port)).unwrap()).unwrap();
    stream.set_nonblocking(true).unwrap();
    TcpStream::from_std(stream).unwrap()
}

/// §4.13 `--secure-serving`, §5.1 `--enable-verbose-conn-check`, `--log_file` and `--log-perm`; a signal that would write
/// a profile elsewhere does not end the process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_by_tls_for_those_who_may_and_echoes_for_the_pinger() {
    let machine = Machine::boot().await;
    let log = machine.file("cni.log");
    let agent = machine.start_agent_with(&[
        "--secure-serving",
        "--tls-min-version=TLS13",
        "--enable-verbose-conn-check",
        "--logtostderr=false",
        "--alsologtostderr=true",
        "--log-perm=600",
        &format!("--log_file={}", log.display()),
    ]);
    machine.wait_ready().await;
    for signal in [nix::sys::signal::SIGUSR1, nix::sys::signal::SIGUSR2] {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(agent.0.id().cast_signed()), signal).unwrap();
    }

    tls::hold(|| connect(&machine, 10665), "cni_wait_address_seconds_total").await;
    // A yes is believed for a while.
    assert_eq!(machine.api.asked("tokenreviews", ""), 3);
    assert_eq!(machine.api.asked("subjectaccessreviews", ""), 2);

    let mut answer = [0; 64];
    assert_eq!(connect(&machine, 8100).read(&mut answer).await.unwrap(), 0, "accepted and closed");
    let asker = machine.namespace.run(|| {
        let asker = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        asker.connect("127.0.0.1:8101").unwrap();
        asker.set_nonblocking(true).unwrap();
        asker
    });
    let asker = tokio::net::UdpSocket::from_std(asker.unwrap()).unwrap();
    until(&machine, "a datagram comes back", async || {
        asker.send(b"health check").await.unwrap();
        let mut answer = [0; 64];
        let wait = tokio::time::timeout(Duration::from_millis(500), asker.recv(&mut answer)).await;
        matches!(wait, Ok(Ok(length)) if answer.get(..length) == Some(b"health check".as_slice()))
    })
    .await;

    let written = std::fs::read_to_string(&log).unwrap();
    assert!(written.contains("kube-ovn-daemon starts") && written.contains("SIGUSR1"), "{written}");
    assert!(machine.log().contains("kube-ovn-daemon starts"), "--alsologtostderr");
    assert_eq!(std::fs::metadata(&log).unwrap().permissions().mode() & 0o777, 0o600);
}
