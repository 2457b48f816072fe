use std::path::Path;

use rcgen::{CertificateParams, KeyPair};

use super::*;

/// A self-signed certificate and its key.
fn pair() -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(Vec::new()).unwrap().self_signed(&key).unwrap();
    (certificate.pem(), key.serialize_pem())
}

fn write(directory: &Path, (certificate, key): &(String, String)) {
    std::fs::write(directory.join("cert"), certificate).unwrap();
    std::fs::write(directory.join("key"), key).unwrap();
}

fn credentials(directory: &Path) -> Credentials {
    std::fs::write(directory.join("ca"), pair().0).unwrap();
    write(directory, &pair());
    let files = TlsFiles::new(directory.join("ca")).identity(directory.join("cert"), directory.join("key"));
    Credentials::new(files.reconnect_when_changed(Duration::from_secs(5)))
}

#[test]
fn bad_files_are_named_with_a_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let mut credentials = credentials(directory.path());
    credentials.load().unwrap();
    let mut problem = |file: &str, content: Option<&str>| {
        let path = directory.path().join(file);
        let before = std::fs::read(&path).unwrap();
        match content {
            Some(content) => std::fs::write(&path, content).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
        let error = credentials.load().map(drop).unwrap_err().to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");
        std::fs::write(&path, before).unwrap();
        error
    };
    for file in ["ca", "cert", "key"] {
        assert!(problem(file, None).contains("mount it"));
        assert!(problem(file, Some("not PEM")).contains("PEM form"));
    }
    assert!(
        problem("ca", Some("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")).contains("PEM")
    );
    assert!(problem("key", Some(&pair().1)).contains("belong together"));
    let mut named =
        Credentials::new(TlsFiles { server_name: Some("a b".into()), ..credentials.files.clone() });
    assert_eq!(named.load().map(drop).unwrap_err(), TlsError::ServerName("a b".into()));
}

#[test]
fn only_whole_rotations_count_as_changes() {
    let directory = tempfile::tempdir().unwrap();
    let mut credentials = credentials(directory.path());
    credentials.load().unwrap();
    let begin = Instant::now();
    let after = |seconds| begin + Duration::from_secs(seconds);
    assert!(!credentials.changed(after(6)), "nothing changed");
    let new = pair();
    std::fs::write(directory.path().join("cert"), &new.0).unwrap();
    assert!(!credentials.changed(after(7)), "looked just now");
    assert!(!credentials.changed(after(12)), "half a rotation");
    write(directory.path(), &new);
    assert!(credentials.changed(after(18)));
    credentials.load().unwrap();
    assert!(!credentials.changed(after(60)));
}

#[test]
fn other_errors_stay_what_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let credentials = credentials(directory.path());
    let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
    assert_eq!(credentials.explain(&refused), refused.to_string());
    let plain = rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType);
    assert!(credentials.explain(&std::io::Error::other(plain)).contains("tcp:"));
}
