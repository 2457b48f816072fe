//! The certificate and the terms of TLS.

use std::io;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{default_provider, sign};
use rustls::pki_types::PrivateKeyDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, SupportedCipherSuite, SupportedProtocolVersion, version};

const DAY: Duration = Duration::from_secs(86_400);
/// How long a certificate is good.
const VALID: Duration = Duration::from_secs(365 * 86_400);
/// It is made anew so long before its end.
const RENEW: Duration = Duration::from_secs(30 * 86_400);

/// What flags ask for, in Go's names; empty is the default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terms<'a> {
    /// `--tls-min-version`: `TLS10` to `TLS13`.
    pub min_version: &'a str,
    /// `--tls-max-version`.
    pub max_version: &'a str,
    /// `--tls-cipher-suites`: they restrict TLS 1.2.
    pub cipher_suites: &'a [String],
}

/// What the flags ask for, with a certificate for `name` that renews itself.
///
/// # Errors
/// Flags that name no version or suite, or leave none that is served; the text says what there is.
pub fn server_config(terms: Terms<'_>, name: &str) -> io::Result<Arc<ServerConfig>> {
    let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidInput, text);
    let versions = versions(terms.min_version, terms.max_version).map_err(invalid)?;
    let provider = provider(terms.cipher_suites).map_err(invalid)?;
    let resolver = Renewed::new(name, SystemTime::now())?;
    let config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&versions)
        .map_err(|error| invalid(format!("--tls-cipher-suites with --tls-max-version: {error}")))?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(resolver));
    Ok(Arc::new(config))
}

/// Go's numbers of versions; older ones than 1.2 are no choice of ours.
fn number(text: &str, empty: u8) -> Result<u8, String> {
    match text {
        "" => Ok(empty),
        "TLS10" => Ok(0),
        "TLS11" => Ok(1),
        "TLS12" => Ok(2),
        "TLS13" => Ok(3),
        other => Err(format!("{other:?} is no version of TLS; write TLS10, TLS11, TLS12 or TLS13")),
    }
}

fn versions(min: &str, max: &str) -> Result<Vec<&'static SupportedProtocolVersion>, String> {
    let (min, max) = (number(min, 2)?, number(max, 3)?);
    let served = [(2, &version::TLS12), (3, &version::TLS13)];
    let chosen: Vec<_> =
        served.into_iter().filter(|(n, _)| (min..=max).contains(n)).map(|(_, version)| version).collect();
    if chosen.is_empty() {
        return Err("--tls-min-version and --tls-max-version leave none of TLS12 and TLS13".into());
    }
    Ok(chosen)
}

/// Go's list: it restricts TLS 1.2; those of TLS 1.3 are always there.
fn provider(names: &[String]) -> Result<CryptoProvider, String> {
    let mut provider = default_provider();
    let names: Vec<&str> = names.iter().map(|name| name.trim()).filter(|name| !name.is_empty()).collect();
    if names.is_empty() {
        return Ok(provider);
    }
    // Go calls the suites of 1.3 TLS_…, and these two by a shorter name too.
    let long = |suite: &SupportedCipherSuite| {
        suite.suite().as_str().unwrap_or_default().replacen("TLS13_", "TLS_", 1)
    };
    let is_called = |suite: &SupportedCipherSuite, name: &str| {
        let long = long(suite);
        let begin = long.strip_suffix("CHACHA20_POLY1305_SHA256");
        long == name || begin.is_some_and(|begin| format!("{begin}CHACHA20_POLY1305") == name)
    };
    for name in &names {
        if !provider.cipher_suites.iter().any(|suite| is_called(suite, name)) {
            let all: Vec<String> = provider.cipher_suites.iter().map(long).collect();
            return Err(format!("cipher suite {name:?} is not offered; there are {}", all.join(", ")));
        }
    }
    provider
        .cipher_suites
        .retain(|suite| suite.tls13().is_some() || names.iter().any(|name| is_called(suite, name)));
    Ok(provider)
}

/// A certificate signed by itself, made anew before it ends.
#[derive(Debug)]
struct Renewed {
    node: String,
    current: RwLock<(Arc<CertifiedKey>, SystemTime)>,
}

impl Renewed {
    fn new(node: &str, now: SystemTime) -> io::Result<Self> {
        Ok(Self { node: node.to_owned(), current: RwLock::new(make(node, now)?) })
    }

    /// The certificate at a time; made anew if it is about to end.
    fn at(&self, now: SystemTime) -> Arc<CertifiedKey> {
        {
            let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
            // A clock that was set back finds a certificate that is not good yet.
            let age = now.duration_since(current.1);
            if age.is_ok_and(|age| age < VALID - RENEW) {
                return current.0.clone();
            }
        }
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        match make(&self.node, now) {
            Ok(new) => *current = new,
            Err(error) => {
                tracing::warn!(error = %error, "the certificate of the metrics port can't be renewed")
            }
        }
        current.0.clone()
    }
}

fn make(node: &str, now: SystemTime) -> io::Result<(Arc<CertifiedKey>, SystemTime)> {
    let mut params = CertificateParams::new(vec![node.to_owned()]).map_err(io::Error::other)?;
    params.distinguished_name.push(DnType::CommonName, node);
    // Other clocks may be behind.
    params.not_before = (now - DAY).into();
    params.not_after = (now + VALID).into();
    let key = KeyPair::generate().map_err(io::Error::other)?;
    let certificate = params.self_signed(&key).map_err(io::Error::other)?;
    let private = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let signer = sign::any_supported_type(&private).map_err(io::Error::other)?;
    Ok((Arc::new(CertifiedKey::new(vec![certificate.der().clone()], signer)), now))
}

impl ResolvesServerCert for Renewed {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.at(SystemTime::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_gos() {
        let chosen =
            |min, max| versions(min, max).map(|found| found.iter().map(|v| v.version).collect::<Vec<_>>());
        let (v12, v13) = (rustls::ProtocolVersion::TLSv1_2, rustls::ProtocolVersion::TLSv1_3);
        assert_eq!(chosen("", "").unwrap(), [v12, v13]);
        assert_eq!(chosen("TLS10", "TLS12").unwrap(), [v12]);
        assert_eq!(chosen("TLS13", "").unwrap(), [v13]);
        for (min, max) in [("TLS13", "TLS12"), ("", "TLS11"), ("1.2", ""), ("", "SSL3")] {
            assert!(chosen(min, max).is_err(), "{min} {max}");
        }
    }

    #[test]
    fn suites_are_gos() {
        let names = |list: &[&str]| {
            let list: Vec<String> = list.iter().map(|name| (*name).to_owned()).collect();
            provider(&list).map(|provider| {
                let suites = provider.cipher_suites.iter().filter(|suite| suite.tls13().is_none());
                suites.map(|suite| suite.suite().as_str().unwrap().to_owned()).collect::<Vec<_>>()
            })
        };
        assert!(names(&[]).unwrap().len() > 2);
        let one = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256";
        assert_eq!(names(&[one]).unwrap(), [one]);
        assert_eq!(
            names(&["TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305"]).unwrap(),
            ["TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"]
        );
        assert!(names(&["TLS_AES_128_GCM_SHA256"]).unwrap().is_empty(), "one of 1.3 leaves none of 1.2");
        let error = names(&["TLS_RSA_WITH_RC4_128_SHA"]).unwrap_err();
        assert!(error.contains(one), "{error}");
    }

    #[test]
    fn a_certificate_is_made_anew_before_it_ends() {
        let begin = SystemTime::now();
        let renewed = Renewed::new("n1", begin).unwrap();
        let first = renewed.at(begin).cert[0].clone();
        assert_eq!(renewed.at(begin + VALID - RENEW - DAY).cert[0], first);
        let second = renewed.at(begin + VALID - RENEW + DAY).cert[0].clone();
        assert_ne!(second, first);
        assert_eq!(renewed.at(begin + VALID).cert[0], second);
        assert_ne!(renewed.at(begin).cert[0], second, "the clock was set back");
    }
}
