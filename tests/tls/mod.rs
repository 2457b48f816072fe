//! A client of the metrics port with TLS, for the tests of both programs.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme, SupportedProtocolVersion};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

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

/// Shakes hands in exactly that version.
pub async fn shake(
    stream: TcpStream,
    version: &'static SupportedProtocolVersion,
) -> std::io::Result<TlsStream<TcpStream>> {
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[version])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody))
        .with_no_client_auth();
    let name = ServerName::try_from("n1").unwrap();
    tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// GET, with a bearer token; the whole answer.
pub async fn ask<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    path: &str,
    token: Option<&str>,
) -> String {
    let token = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n{token}connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = Vec::new();
    // The peer may close without TLS's farewell.
    let _ = stream.read_to_end(&mut text).await;
    String::from_utf8_lossy(&text).into_owned()
}

/// What an API server answers to a review: token `good` is `monitor`, who may read `/metrics`;
/// `poor` is somebody who may not. `None` for what is no review.
pub fn review(plural: &str, body: &serde_json::Value) -> Option<serde_json::Value> {
    use serde_json::json;
    let mut review = body.clone();
    review["status"] = match plural {
        "tokenreviews" => match review["spec"]["token"].as_str() {
            Some("good") => json!({"authenticated": true, "user": {"username": "monitor", "groups": ["g"]}}),
            Some("poor") => json!({"authenticated": true, "user": {"username": "somebody"}}),
            _ => json!({"authenticated": false}),
        },
        "subjectaccessreviews" => {
            let spec = &review["spec"];
            let asked = &spec["nonResourceAttributes"];
            json!({"allowed": spec["user"] == "monitor" && spec["groups"] == json!(["g"])
                && *asked == json!({"path": "/metrics", "verb": "get"})})
        }
        _ => return None,
    };
    Some(review)
}

/// Asks for every path as everybody, by TLS 1.3 with TLS 1.2 switched off, and without TLS. `open` makes a
/// connection; `word` is in the metrics.
pub async fn hold(open: impl Fn() -> TcpStream, word: &str) {
    use rustls::version::{TLS12, TLS13};
    for (path, token, code, words) in [
        ("/metrics", Some("good"), 200, word),
        ("/metrics", Some("good"), 200, word),
        ("/metrics", None, 401, "a bearer token"),
        ("/metrics", Some("forged"), 401, "a bearer token"),
        ("/metrics", Some("poor"), 403, "somebody may not get /metrics"),
        ("/livez", None, 200, "ok"),
        ("/readyz", None, 200, "ok"),
    ] {
        let answer = ask(shake(open(), &TLS13).await.unwrap(), path, token).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {code}")) && answer.contains(words),
            "{path} {token:?}: {answer}"
        );
    }
    assert!(shake(open(), &TLS12).await.is_err(), "--tls-min-version");
    // Probes without TLS, metrics never.
    assert!(ask(open(), "/livez", None).await.starts_with("HTTP/1.1 200"));
    let plain = ask(open(), "/metrics", Some("good")).await;
    assert!(plain.starts_with("HTTP/1.1 403") && !plain.contains(word), "{plain}");
}
