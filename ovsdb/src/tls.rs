//! TLS to a server: certificates from files that may change, and OVS's idea of trust.
//!
//! `ovs-pki` makes certificates whose name is made up ("ovn id:…"), so OVS and OVN check
//! the chain to their CA and no name. So does this module, unless
//! [`TlsFiles::server_name`] asks for one. The CA is the one given, never the system's:
//! whoever has a certificate of it is one of ours.
//!
//! Flows in: paths. Flows out: connectors, made from what the files hold at the time of
//! each connection, and errors that name the file and the remedy.

mod verify;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, IpAddr, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::client::TlsStream;

/// What an attempt to use an `ssl:` endpoint without files ends with.
pub(crate) const NOT_CONFIGURED: &str =
    "the endpoint is ssl:, but no certificate files are given: set Options::tls";

/// Where the certificates are, in PEM form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The CA whose certificates are trusted.
    pub ca: PathBuf,
    /// Our own certificate (with intermediates, if any) and its key. Servers of OVN
    /// refuse clients without one.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name that the server's certificate has to carry; `None` for certificates of
    /// OVS, which carry none.
    pub server_name: Option<String>,
    /// How often to look whether the files changed, to connect anew with the new ones.
    /// `None` leaves connections alone; new connections use new files in any case.
    pub reconnect_when_changed: Option<Duration>,
}

impl TlsFiles {
    /// Files of a CA alone.
    pub fn new(ca: impl Into<PathBuf>) -> Self {
        Self { ca: ca.into(), identity: None, server_name: None, reconnect_when_changed: None }
    }
    /// With a certificate and key of our own.
    pub fn identity(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.identity = Some((certificate.into(), key.into()));
        self
    }
    /// With a name that the server's certificate has to carry.
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }
    /// Connects anew when the files change; looks so often.
    pub fn reconnect_when_changed(mut self, every: Duration) -> Self {
        self.reconnect_when_changed = Some(every);
        self
    }
}

/// Certificate files that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// A file that can't be read.
    #[error("{what} {}: {problem}; mount it, or give the right path", path.display())]
    Read {
        /// What it should be.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        problem: String,
    },
    /// A file without what it should hold.
    #[error("{what} {}: {problem}; write it in PEM form", path.display())]
    Content {
        /// What it should be.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A certificate and a key that do not belong together.
    #[error(
        "certificate {} and key {}: {problem}; write both anew from one issue",
        certificate.display(), key.display()
    )]
    Identity {
        /// The certificate.
        certificate: PathBuf,
        /// The key.
        key: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A name that is none.
    #[error("server name {0:?}: neither a DNS name nor an address")]
    ServerName(String),
}

/// The bytes of the files.
#[derive(Clone, PartialEq)]
struct Bytes {
    ca: Vec<u8>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// Files, and what was last made of them.
pub(crate) struct Credentials {
    files: TlsFiles,
    used: Option<(Bytes, Connector)>,
    /// What was last complained about, to do so once.
    complaint: Option<TlsError>,
    next_look: Option<Instant>,
}

/// Makes TLS connections.
#[derive(Clone)]
pub(crate) struct Connector {
    config: Arc<ClientConfig>,
    server_name: Option<ServerName<'static>>,
}

impl Connector {
    pub(crate) async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        // Not checked unless it was asked for; a name of Kubernetes may be none of DNS.
        let nobody = ServerName::IpAddress(IpAddr::from(std::net::IpAddr::from([0, 0, 0, 0])));
        let given = ServerName::try_from(host.to_owned()).unwrap_or(nobody);
        let name = self.server_name.clone().unwrap_or(given);
        tokio_rustls::TlsConnector::from(self.config.clone()).connect(name, stream).await
    }
}

fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|e| TlsError::Read { what, path: path.into(), problem: e.to_string() })
}

fn certificates(
    what: &'static str,
    path: &Path,
    bytes: &[u8],
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bad = |problem: String| TlsError::Content { what, path: path.into(), problem };
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
    match all {
        Ok(all) if all.is_empty() => Err(bad("it holds no certificate".into())),
        Ok(all) => Ok(all),
        Err(error) => Err(bad(error.to_string())),
    }
}

const CA: &str = "CA certificate";
const CERTIFICATE: &str = "client certificate";
const KEY: &str = "client key";

impl Credentials {
    pub(crate) fn new(files: TlsFiles) -> Self {
        Self { files, used: None, complaint: None, next_look: None }
    }

    fn read(&self) -> Result<Bytes, TlsError> {
        let identity = match &self.files.identity {
            Some((certificate, key)) => Some((read(CERTIFICATE, certificate)?, read(KEY, key)?)),
            None => None,
        };
        Ok(Bytes { ca: read(CA, &self.files.ca)?, identity })
    }

    /// A connector made of what the files hold now. They are small and local: reading
    /// them does not hold up the task.
    pub(crate) fn load(&mut self) -> Result<Connector, TlsError> {
        self.next_look = self.files.reconnect_when_changed.map(|every| Instant::now() + every);
        let bytes = self.read()?;
        if let Some((used, connector)) = &self.used
            && *used == bytes
        {
            return Ok(connector.clone());
        }
        let connector = self.make(&bytes)?;
        self.complaint = None;
        self.used = Some((bytes, connector.clone()));
        Ok(connector)
    }

    fn make(&self, bytes: &Bytes) -> Result<Connector, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(CA, &self.files.ca, &bytes.ca)? {
            roots.add(certificate).map_err(|e| TlsError::Content {
                what: CA,
                path: self.files.ca.clone(),
                problem: e.to_string(),
            })?;
        }
        let server_name = match &self.files.server_name {
            Some(name) => {
                Some(ServerName::try_from(name.clone()).map_err(|_| TlsError::ServerName(name.clone()))?)
            }
            None => None,
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = verify::Chain::new(roots, server_name.clone(), &provider);
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| TlsError::Content { what: CA, path: self.files.ca.clone(), problem: e.to_string() })?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let config = match (&self.files.identity, &bytes.identity) {
            (Some((certificate, key)), Some((certificate_bytes, key_bytes))) => {
                let chain = certificates(CERTIFICATE, certificate, certificate_bytes)?;
                let der = PrivateKeyDer::from_pem_slice(key_bytes).map_err(|e| TlsError::Content {
                    what: KEY,
                    path: key.clone(),
                    problem: format!("it holds no key: {e}"),
                })?;
                builder.with_client_auth_cert(chain, der).map_err(|e| TlsError::Identity {
                    certificate: certificate.clone(),
                    key: key.clone(),
                    problem: match e {
                        rustls::Error::InconsistentKeys(_) => "they do not belong together".into(),
                        other => other.to_string(),
                    },
                })?
            }
            _ => builder.with_no_client_auth(),
        };
        Ok(Connector { config: Arc::new(config), server_name })
    }

    /// When [`Self::changed`] wants to be called.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        self.next_look
    }

    /// Whether the files hold something else now that can be used. Half of a rotation
    /// (a new certificate with the old key) can't be, and is looked at again.
    pub(crate) fn changed(&mut self, now: Instant) -> bool {
        let Some(every) = self.files.reconnect_when_changed else { return false };
        if self.next_look.is_some_and(|at| at > now) {
            return false;
        }
        self.next_look = Some(now + every);
        let made = self.read().and_then(|bytes| match &self.used {
            Some((used, _)) if *used == bytes => Ok(false),
            _ => self.make(&bytes).map(|_| true),
        });
        match made {
            Ok(changed) => changed,
            Err(error) => {
                if self.complaint.as_ref() != Some(&error) {
                    tracing::warn!(%error, "changed certificate files: the connection goes on with the old ones");
                    self.complaint = Some(error);
                }
                false
            }
        }
    }

    /// An error of a TLS connection in words of the files.
    pub(crate) fn explain(&self, error: &std::io::Error) -> String {
        let inner = error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>());
        let Some(inner) = inner else { return error.to_string() };
        let ca = self.files.ca.display();
        let own = match &self.files.identity {
            Some((certificate, _)) => format!("client certificate {}", certificate.display()),
            None => "lack of a client certificate".into(),
        };
        let remedy = match inner {
            rustls::Error::InvalidCertificate(problem) => match problem {
                CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                    format!("the server's certificate is not signed by {ca}: give the CA that signed it")
                }
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                    "the server's certificate (or its CA) has expired: renew it on the server".into()
                }
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                    "the server's certificate is not valid yet: set the clocks".into()
                }
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                    let name = self.files.server_name.as_deref().unwrap_or_default();
                    format!(
                        "the server's certificate does not carry the name {name}: issue it for that name, or ask for none"
                    )
                }
                _ => "the server's certificate can't be used: issue it anew".into(),
            },
            rustls::Error::AlertReceived(AlertDescription::CertificateExpired) => {
                format!("the server refused our {own}: it has expired, renew it")
            }
            rustls::Error::AlertReceived(_) => {
                format!(
                    "the server refused our {own}: it has to be signed by the CA that the server was given"
                )
            }
            rustls::Error::InvalidMessage(_) => "the server does not speak TLS here: is it tcp:?".into(),
            _ => return inner.to_string(),
        };
        format!("{remedy} ({inner})")
    }
}

#[cfg(test)]
mod tests;
