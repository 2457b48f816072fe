//! Listeners by which the pinger sees that TCP and UDP reach this node (`--enable-verbose-conn-check`, node contract
//! §5.1). A connection is accepted and closed; a datagram comes back, unless it comes
//! from the same port of another node: two agents would answer each other for ever, and a source is easily forged.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;

use crate::flags::Flags;
use crate::health;

/// Longest datagram that is answered whole; the pinger's have a dozen bytes.
const DATAGRAM: usize = 1500;
/// Pause after an error, which is the kernel's want of something.
const PAUSE: Duration = Duration::from_millis(100);

/// Binds what the flags ask for; nothing without `--enable-verbose-conn-check`. The listeners end with the set.
///
/// # Errors
/// When a port is taken; the text names it.
pub async fn listen(flags: &Flags) -> io::Result<JoinSet<()>> {
    let mut tasks = JoinSet::new();
    if !flags.enable_verbose_conn_check {
        return Ok(tasks);
    }
    let named = |what: &str, address: SocketAddr, error: io::Error| {
        io::Error::new(error.kind(), format!("{what} {address} of the connectivity check: {error}"))
    };
    for address in health::addresses(flags, flags.tcp_conn_check_port) {
        let listener = health::bind(address).await.map_err(|error| named("TCP", address, error))?;
        tasks.spawn(accept(listener));
    }
    for address in health::addresses(flags, flags.udp_conn_check_port) {
        let socket =
            health::or_ipv4(address, UdpSocket::bind).await.map_err(|error| named("UDP", address, error))?;
        tasks.spawn(echo(Arc::new(socket)));
    }
    Ok(tasks)
}

async fn accept(listener: TcpListener) {
    loop {
        if listener.accept().await.is_err() {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

async fn echo(socket: Arc<UdpSocket>) {
    let mut buffer = [0; DATAGRAM];
    let own = socket.local_addr().map(|address| address.port()).ok();
    loop {
        match socket.recv_from(&mut buffer).await {
            Ok((_, from)) if Some(from.port()) == own => {}
            Ok((length, from)) => {
                // Whoever asked is gone or asks again.
                let _ = socket.send_to(buffer.get(..length).unwrap_or_default(), from).await;
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use tokio::io::AsyncReadExt;

    fn free_port() -> u16 {
        std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }

    #[tokio::test]
    async fn a_connection_is_accepted_and_a_datagram_comes_back() {
        let (tcp, udp) = (free_port(), free_port());
        let mut flags = Flags::parse_from([
            "x",
            "--enable-verbose-conn-check",
            &format!("--tcp-conn-check-port={tcp}"),
            &format!("--udp-conn-check-port={udp}"),
        ]);
        flags.env.enable_bind_local_ip = Some("true".into());
        flags.env.pod_ips = Some("127.0.0.1".into());
        let listeners = listen(&flags).await.unwrap();
        assert_eq!(listeners.len(), 2);
        for _ in 0..3 {
            let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", tcp)).await.unwrap();
            assert_eq!(stream.read(&mut [0; 8]).await.unwrap(), 0, "closed at once");
        }
        let asker = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        asker.connect(("127.0.0.1", udp)).await.unwrap();
        let mut answer = [0; 64];
        let answered = async {
            loop {
                asker.send(b"health check").await.unwrap();
                let wait = tokio::time::timeout(Duration::from_secs(1), asker.recv(&mut answer)).await;
                if let Ok(Ok(length)) = wait {
                    return length;
                }
            }
        };
        let length = tokio::time::timeout(Duration::from_secs(30), answered).await.unwrap();
        assert_eq!(answer.get(..length).unwrap(), b"health check");
        // What seems to come from another agent's listener is not answered; what comes after it is.
        let twin = UdpSocket::bind(("127.0.0.2", udp)).await.unwrap();
        twin.send_to(b"for ever", ("127.0.0.1", udp)).await.unwrap();
        while asker.try_recv(&mut answer).is_ok() {}
        asker.send(b"after").await.unwrap();
        let wait = tokio::time::timeout(Duration::from_secs(30), asker.recv(&mut answer));
        wait.await.unwrap().unwrap();
        assert!(twin.try_recv(&mut answer).is_err(), "answered its twin");
        let taken = listen(&flags).await.unwrap_err();
        assert!(taken.to_string().contains(&format!("TCP 127.0.0.1:{tcp}")), "{taken}");
        flags.enable_verbose_conn_check = false;
        assert_eq!(listen(&flags).await.unwrap().len(), 0, "only when asked for");
    }
}
