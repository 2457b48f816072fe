//! TLS against a real ovsdb-server, with certificates of the kind that OVS makes: no
//! name that could be checked.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::path::PathBuf;
use std::time::Duration;

use ovsdb::testing::real::{Place, Root, Server};
use ovsdb::{Endpoint, Event, EventStream, Operation, Options, Session, TlsFiles};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use support::{disconnected, next, replaced};

/// An authority, and a directory with what it issued.
struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    /// A certificate and its key; names nobody, as those of `ovs-pki`.
    fn issue(&self, expired: bool, name: Option<&str>) -> (String, String) {
        let names = name.map(str::to_owned).into_iter().collect::<Vec<_>>();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, "ovn id:0b1c");
        if expired {
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(2021, 1, 1);
        }
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

/// Files of one party, as Kube-OVN lays them out.
struct Files(tempfile::TempDir);

impl Files {
    fn new(ca: &Authority, pair: &(String, String)) -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        files.write(ca, pair);
        files
    }
    fn write(&self, ca: &Authority, (certificate, key): &(String, String)) {
        for (name, text) in [("cacert", &ca.certificate), ("cert", certificate), ("key", key)] {
            std::fs::write(self.path(name), text).unwrap();
        }
    }
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
    fn client(&self) -> TlsFiles {
        TlsFiles::new(self.path("cacert")).identity(self.path("cert"), self.path("key"))
    }
}

/// A server that speaks TLS on a port of the kernel's choice.
fn start(files: &Files) -> (Server, Endpoint) {
    let option = |option: &str, name: &str| format!("--{option}={}", files.path(name).display());
    let place = Place {
        arguments: vec![
            "--remote=pssl:0:127.0.0.1".into(),
            option("private-key", "key"),
            option("certificate", "cert"),
            option("ca-cert", "cacert"),
        ],
        ..Place::default()
    };
    let schema = Root::from_env().unwrap().northbound_schema().unwrap();
    let server = Server::start_at(&schema, place).unwrap();
    let endpoint = port_of(&server);
    (server, endpoint)
}

/// Where it listens now.
fn port_of(server: &Server) -> Endpoint {
    let log = server.log();
    // Of its last start: it goes on with the same log.
    let (_, port) = log.rsplit_once("listening on port ").unwrap_or_else(|| panic!("no port: {log}"));
    let port = port.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap();
    Endpoint::Ssl { host: "127.0.0.1".into(), port }
}

fn options(endpoint: &Endpoint, files: TlsFiles) -> Options {
    Options::new(vec![endpoint.clone()], "OVN_Northbound").table("Logical_Switch", ["name"]).tls(files)
}

fn switch(name: &str) -> Operation {
    Operation::insert("Logical_Switch").column("name", name).build()
}

/// Why a session does not connect.
async fn refusal(endpoint: &Endpoint, files: TlsFiles) -> String {
    let (session, _events) = Session::connect(options(endpoint, files));
    let begin = std::time::Instant::now();
    loop {
        assert!(!session.state().synced, "it connected");
        if let Some(error) = session.state().last_error {
            return error;
        }
        assert!(begin.elapsed() < support::PATIENCE, "neither error nor connection");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn connected(events: &mut EventStream) -> Endpoint {
    loop {
        if let Event::Connected { endpoint, .. } = next(events).await {
            return endpoint;
        }
    }
}

#[tokio::test]
async fn certificates_of_one_authority_trust_each_other_whatever_their_names() {
    let ca = Authority::new("ca");
    let files = Files::new(&ca, &ca.issue(false, None));
    let (server, endpoint) = start(&files);
    let (session, mut events) = Session::connect(options(&endpoint, files.client()));
    assert_eq!(connected(&mut events).await, endpoint);
    replaced(&mut events).await;
    session.transact(vec![switch("s")]).await.unwrap();
    // Much in both directions: more than a record, a buffer, a window.
    let many: Vec<_> = (0..20_000).map(|i| switch(&format!("{i:0>200}"))).collect();
    assert_eq!(session.transact(many).await.unwrap().len(), 20_000);
    let read = Operation::select("Logical_Switch").columns(["name"]).build();
    assert_eq!(session.transact(vec![read]).await.unwrap()[0].rows.as_ref().unwrap().len(), 20_001);
    // The same content without TLS.
    let plain = Options::new(vec![server.endpoint()], "OVN_Northbound").table("Logical_Switch", ["name"]);
    assert_eq!(support::dump(&plain).await.row_count(), 20_001);
}

#[tokio::test]
async fn what_cannot_be_trusted_is_refused_with_the_reason() {
    let (ca, other) = (Authority::new("ca"), Authority::new("other"));
    let good = ca.issue(false, None);
    let files = Files::new(&ca, &good);
    let (_server, endpoint) = start(&files);
    // Another authority than the server's.
    let wrong = Files::new(&other, &good);
    let text = refusal(&endpoint, wrong.client()).await;
    assert!(
        text.contains(&wrong.path("cacert").display().to_string()) && text.contains("not signed by"),
        "{text}"
    );
    // No certificate of our own.
    let text = refusal(&endpoint, TlsFiles::new(files.path("cacert"))).await;
    assert!(text.contains("refused our lack of a client certificate"), "{text}");
    // One that the server does not trust.
    let foreign = Files::new(&ca, &other.issue(false, None));
    let text = refusal(&endpoint, foreign.client()).await;
    assert!(text.contains("refused our client certificate"), "{text}");
    assert!(text.contains(&foreign.path("cert").display().to_string()), "{text}");
    // One that has expired.
    let stale = Files::new(&ca, &ca.issue(true, None));
    let text = refusal(&endpoint, stale.client()).await;
    assert!(text.contains("refused our client certificate") && text.contains("expired"), "{text}");
    // A name, asked for and not there.
    let text = refusal(&endpoint, files.client().server_name("ovn-nb.example")).await;
    assert!(text.contains("does not carry the name ovn-nb.example"), "{text}");
    // A file that is not there.
    let text = refusal(&endpoint, TlsFiles::new("/nonexistent/cacert")).await;
    assert!(text.contains("/nonexistent/cacert") && text.contains("mount it"), "{text}");
    // None given at all.
    let (session, _events) = Session::connect(Options { tls: None, ..options(&endpoint, files.client()) });
    let begin = std::time::Instant::now();
    while session.state().last_error.is_none() {
        assert!(begin.elapsed() < support::PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(session.state().last_error.unwrap().contains("Options::tls"));
}

#[tokio::test]
async fn an_expired_server_is_refused_and_a_named_one_accepted() {
    let ca = Authority::new("ca");
    let client = Files::new(&ca, &ca.issue(false, None));
    let (_server, endpoint) = start(&Files::new(&ca, &ca.issue(true, None)));
    let text = refusal(&endpoint, client.client()).await;
    assert!(text.contains("server's certificate") && text.contains("expired"), "{text}");
    let named = Files::new(&ca, &ca.issue(false, Some("ovn-nb.example")));
    let (_server, endpoint) = start(&named);
    let (_session, mut events) =
        Session::connect(options(&endpoint, client.client().server_name("ovn-nb.example")));
    replaced(&mut events).await;
}

#[tokio::test]
async fn a_plain_server_is_told_from_a_tls_one() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        use tokio::io::AsyncWriteExt;
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(br#"{"id":"echo","method":"echo","params":[]}"#).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    let ca = Authority::new("ca");
    let files = Files::new(&ca, &ca.issue(false, None));
    let text = refusal(&Endpoint::Ssl { host: "127.0.0.1".into(), port }, files.client()).await;
    assert!(text.contains("does not speak TLS"), "{text}");
}

/// The whole chain is renewed while client and server run.
#[tokio::test]
async fn certificates_are_rotated_without_a_restart() {
    let old = Authority::new("old");
    let server_files = Files::new(&old, &old.issue(false, None));
    let (mut server, endpoint) = start(&server_files);
    let client_files = Files::new(&old, &old.issue(false, None));
    let watched = client_files.client().reconnect_when_changed(Duration::from_millis(50));
    let (session, mut events) = Session::connect(options(&endpoint, watched));
    replaced(&mut events).await;
    session.transact(vec![switch("before")]).await.unwrap();
    // A new certificate of the same authority: the connection is made anew with it.
    client_files.write(&old, &old.issue(false, None));
    let reason = disconnected(&mut events).await;
    assert!(reason.contains("certificate files changed"), "{reason}");
    let (replica, changes) = replaced(&mut events).await;
    assert_eq!((replica.row_count(), changes.len()), (1, 0));
    // Half of a rotation changes nothing.
    let new = Authority::new("new");
    let pair = new.issue(false, None);
    std::fs::write(client_files.path("cert"), &pair.0).unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(session.state().synced);
    session.transact(vec![switch("meanwhile")]).await.unwrap();
    // Another authority, on both sides. The server is told by its own means.
    server_files.write(&new, &new.issue(false, None));
    client_files.write(&new, &pair);
    server.resume().unwrap();
    let endpoint = port_of(&server);
    session.set_endpoints(vec![endpoint.clone()]);
    loop {
        if connected(&mut events).await == endpoint {
            break;
        }
    }
    assert_eq!(replaced(&mut events).await.0.row_count(), 2);
    // Those who still have the old files are refused.
    let late = Files::new(&old, &old.issue(false, None));
    assert!(refusal(&endpoint, late.client()).await.contains("not signed by"));
    drop(late);
}
