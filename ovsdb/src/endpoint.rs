//! Where a database server listens: OVS's notation for active connections.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use crate::tls::Connector;

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Endpoint {
    /// `unix:PATH`
    Unix(PathBuf),
    /// `tcp:HOST:PORT`, IPv6 addresses in brackets.
    Tcp {
        /// Address or name.
        host: String,
        /// Port.
        port: u16,
    },
    /// `ssl:HOST:PORT`: TLS over TCP, with the session's
    /// [`Options::tls`](crate::Options::tls).
    Ssl {
        /// Address or name.
        host: String,
        /// Port.
        port: u16,
    },
}

/// Text that is no endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// Not of a known form.
    #[error(
        "{0:?} is no endpoint: expected unix:PATH, tcp:HOST:PORT or ssl:HOST:PORT, IPv6 addresses in brackets"
    )]
    Syntax(String),
    /// A list without elements.
    #[error("no endpoint given")]
    Empty,
}

/// Port when none is given: OVSDB's (RFC 7047 §9).
const DEFAULT_PORT: u16 = 6640;

impl Endpoint {
    /// Parses one endpoint.
    pub fn parse(text: &str) -> Result<Self, EndpointError> {
        let text = text.trim();
        let syntax = || EndpointError::Syntax(text.to_owned());
        let (scheme, rest) = text.split_once(':').ok_or_else(syntax)?;
        if rest.is_empty() {
            return Err(syntax());
        }
        let host_and_port = || -> Option<(String, u16)> {
            let (host, port) = match rest.strip_prefix('[') {
                Some(v6) => {
                    let (host, port) = v6.split_once(']')?;
                    host.parse::<std::net::Ipv6Addr>().ok()?;
                    (host, port.strip_prefix(':').or(port.is_empty().then_some(""))?)
                }
                None => rest.split_once(':').unwrap_or((rest, "")),
            };
            let port = if port.is_empty() { DEFAULT_PORT } else { port.parse().ok()? };
            (!host.is_empty() && port != 0).then(|| (host.to_owned(), port))
        };
        match scheme {
            "unix" => Ok(Self::Unix(rest.into())),
            "tcp" => host_and_port().map(|(host, port)| Self::Tcp { host, port }).ok_or_else(syntax),
            "ssl" => host_and_port().map(|(host, port)| Self::Ssl { host, port }).ok_or_else(syntax),
            _ => Err(syntax()),
        }
    }

    /// Parses a list separated by commas.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, EndpointError> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let endpoints = parts.map(Self::parse).collect::<Result<Vec<_>, _>>()?;
        if endpoints.is_empty() { Err(EndpointError::Empty) } else { Ok(endpoints) }
    }

    /// Whether certificates are needed.
    pub fn needs_tls(&self) -> bool {
        matches!(self, Self::Ssl { .. })
    }

    /// Opens a connection. The kernel gives up a TCP connection whose peer has not
    /// acknowledged what was sent for `patience` (zero: the system's default, a
    /// quarter of an hour): so a network that drops packets silently is told
    /// from a server that is busy, whose kernel does acknowledge.
    pub(crate) async fn connect(
        &self,
        patience: Duration,
        tls: Option<&Connector>,
    ) -> std::io::Result<Box<dyn Stream>> {
        let (host, port) = match self {
            Self::Unix(path) => return Ok(Box::new(UnixStream::connect(path).await?)),
            Self::Tcp { host, port } | Self::Ssl { host, port } => (host.as_str(), *port),
        };
        let stream = TcpStream::connect((host, port)).await?;
        // Small requests must not wait for the acknowledgement of earlier ones.
        stream.set_nodelay(true)?;
        if !patience.is_zero() {
            SockRef::from(&stream).set_tcp_user_timeout(Some(patience))?;
        }
        match (self, tls) {
            (Self::Ssl { .. }, Some(tls)) => Ok(Box::new(tls.connect(host, stream).await?)),
            (Self::Ssl { .. }, None) => Err(std::io::Error::other(crate::tls::NOT_CONFIGURED)),
            _ => Ok(Box::new(stream)),
        }
    }
}

/// A byte stream to a server.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp { host, port } if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "tcp:{host}:{port}"),
            Self::Ssl { host, port } if host.contains(':') => write!(f, "ssl:[{host}]:{port}"),
            Self::Ssl { host, port } => write!(f, "ssl:{host}:{port}"),
        }
    }
}

impl std::str::FromStr for Endpoint {
    type Err = EndpointError;
    fn from_str(text: &str) -> Result<Self, EndpointError> {
        Self::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("unix:/var/run/ovn/ovnnb_db.sock", "unix:/var/run/ovn/ovnnb_db.sock")]
    #[case("tcp:10.0.0.1:6641", "tcp:10.0.0.1:6641")]
    #[case("tcp:[fd00::1]:6641", "tcp:[fd00::1]:6641")]
    #[case("tcp:[fd00::1]", "tcp:[fd00::1]:6640")]
    #[case(" tcp:ovn-nb:6641 ", "tcp:ovn-nb:6641")]
    #[case("tcp:h", "tcp:h:6640")]
    #[case("ssl:10.0.0.1:6641", "ssl:10.0.0.1:6641")]
    #[case("ssl:[fd00::1]:6641", "ssl:[fd00::1]:6641")]
    fn parses_and_prints(#[case] text: &str, #[case] printed: &str) {
        assert_eq!(Endpoint::parse(text).unwrap().to_string(), printed);
    }

    #[rstest]
    #[case("tcp:")]
    #[case("tcp:h:0")]
    #[case("ssl:h:70000")]
    #[case("tcp:h:70000")]
    #[case("tcp:[fd00::1:6641")]
    #[case("tcp:[nonsense]:1")]
    #[case("udp:h:1")]
    #[case("nothing")]
    #[case("unix:")]
    fn refuses(#[case] text: &str) {
        assert_eq!(Endpoint::parse(text), Err(EndpointError::Syntax(text.into())));
    }

    #[test]
    fn lists() {
        let list = Endpoint::parse_list("tcp:a:1, tcp:[::1]:2,").unwrap();
        assert_eq!(list.iter().map(ToString::to_string).collect::<Vec<_>>(), ["tcp:a:1", "tcp:[::1]:2"]);
        assert_eq!(Endpoint::parse_list(" , "), Err(EndpointError::Empty));
        let needs: Vec<bool> =
            Endpoint::parse_list("tcp:a:1,ssl:b:2").unwrap().iter().map(Endpoint::needs_tls).collect();
        assert_eq!(needs, [false, true]);
    }
}
