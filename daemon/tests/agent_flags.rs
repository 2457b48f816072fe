//! Flags that open ports and files, on the real process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use support::agent::{Machine, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The certificate is signed by itself: what matters here is that there is TLS.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }
    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

fn connect(machine: &Machine, port: u16) -> TcpStream {
    let stream =
        machine.namespace.run(move || std::net::TcpStream::connect(("127.0.0.1", port)).unwrap()).unwrap();
    stream.set_nonblocking(true).unwrap();
    TcpStream::from_std(stream).unwrap()
}

async fn ask<S>(mut stream: S, path: &str, token: Option<&str>) -> String
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let token = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n{token}connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = Vec::new();
    // The peer may close without TLS's farewell.
    let _ = stream.read_to_end(&mut text).await;
    String::from_utf8_lossy(&text).into_owned()
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

    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = |version: &'static rustls::SupportedProtocolVersion| {
        let config = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[version])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody))
            .with_no_client_auth();
        tokio_rustls::TlsConnector::from(Arc::new(config))
    };
    let name = ServerName::try_from("n1").unwrap();
    let secure = async |path: &str, token: Option<&str>| {
        let stream = client(&rustls::version::TLS13).connect(name.clone(), connect(&machine, 10665)).await;
        ask(stream.unwrap(), path, token).await
    };
    for (path, token, code, words) in [
        ("/metrics", Some("good"), 200, "cni_wait_address_seconds_total"),
        ("/metrics", Some("good"), 200, "cni_wait_address_seconds_total"),
        ("/metrics", None, 401, "a bearer token"),
        ("/metrics", Some("forged"), 401, "a bearer token"),
        ("/metrics", Some("poor"), 403, "somebody may not get /metrics"),
        ("/livez", None, 200, "ok"),
        ("/readyz", None, 200, "ok"),
    ] {
        let answer = secure(path, token).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {code}")) && answer.contains(words),
            "{path} {token:?}: {answer}"
        );
    }
    // A yes is believed for a while.
    assert_eq!(machine.api.asked("tokenreviews", ""), 3);
    assert_eq!(machine.api.asked("subjectaccessreviews", ""), 2);
    assert!(
        client(&rustls::version::TLS12).connect(name.clone(), connect(&machine, 10665)).await.is_err(),
        "--tls-min-version"
    );
    // Probes without TLS, metrics never.
    assert!(ask(connect(&machine, 10665), "/livez", None).await.starts_with("HTTP/1.1 200"));
    let plain = ask(connect(&machine, 10665), "/metrics", Some("good")).await;
    assert!(plain.starts_with("HTTP/1.1 403") && !plain.contains("cni_wait"), "{plain}");

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
