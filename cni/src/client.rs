//! One HTTP/1.1 exchange over the agent's unix socket, with a deadline for the whole of it.
//!
//! In: method, path, body. Out: status and body. Blocking and without a runtime: the process does nothing else.

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// More than any answer has, less than what could hurt.
const MAX_ANSWER: usize = 8 << 20;
const MAX_HEADERS: usize = 64;

/// What the agent answered.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Body, decoded.
    pub body: Vec<u8>,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum ClientError {
    /// Nobody listens.
    Unreachable(io::Error),
    /// Listening, but not done in time.
    Timeout(Duration),
    /// The connection broke, or what came is not HTTP.
    Broken(String),
}

impl std::fmt::Display for ClientError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreachable(error) => write!(f, "{error}"),
            Self::Timeout(after) => write!(f, "no answer within {} s", after.as_secs_f32()),
            Self::Broken(reason) => f.write_str(reason),
        }
    }
}

struct Deadline {
    at: Instant,
    length: Duration,
}

impl Deadline {
    fn remaining(&self) -> Result<Duration, ClientError> {
        let left = self.at.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ClientError::Timeout(self.length)) } else { Ok(left) }
    }

    fn fault(&self, error: &io::Error) -> ClientError {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ClientError::Timeout(self.length),
            _ => ClientError::Broken(error.to_string()),
        }
    }
}

/// Sends one request and reads its answer, all within `timeout`.
///
/// # Errors
/// See [`ClientError`].
pub fn exchange(
    path: &Path,
    method: &str,
    target: &str,
    body: &[u8],
    timeout: Duration,
) -> Result<Answer, ClientError> {
    let deadline = Deadline { at: Instant::now() + timeout, length: timeout };
    let mut stream = open(path, &deadline)?;
    let mut request = format!(
        "{method} {target} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    stream.set_write_timeout(Some(deadline.remaining()?)).map_err(|error| deadline.fault(&error))?;
    stream.write_all(&request).map_err(|error| deadline.fault(&error))?;

    let mut received = Vec::with_capacity(4096);
    let mut chunk = [0_u8; 4096];
    loop {
        stream.set_read_timeout(Some(deadline.remaining()?)).map_err(|error| deadline.fault(&error))?;
        let ended = match stream.read(&mut chunk) {
            Ok(0) => true,
            Ok(count) => {
                received.extend_from_slice(chunk.get(..count).unwrap_or_default());
                false
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => false,
            Err(error) => return Err(deadline.fault(&error)),
        };
        if let Some(answer) = parse(&received, ended)? {
            return Ok(answer);
        }
        if ended {
            return Err(ClientError::Broken("the connection ended in the middle of the answer".into()));
        }
        if received.len() > MAX_ANSWER {
            return Err(ClientError::Broken("the answer is too long".into()));
        }
    }
}

/// Connects without ever blocking in the kernel: with a full backlog (an agent that hangs) a blocking connect would
/// wait for ever.
fn open(path: &Path, deadline: &Deadline) -> Result<UnixStream, ClientError> {
    let unreachable = |errno: nix::Error| ClientError::Unreachable(io::Error::from(errno));
    let address = UnixAddr::new(path).map_err(unreachable)?;
    loop {
        let fd = socket(
            AddressFamily::Unix,
            SockType::Stream,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            None,
        )
        .map_err(unreachable)?;
        match connect(fd.as_raw_fd(), &address) {
            Ok(()) => {
                let stream = UnixStream::from(fd);
                stream.set_nonblocking(false).map_err(|error| deadline.fault(&error))?;
                return Ok(stream);
            }
            Err(nix::Error::EAGAIN | nix::Error::EINTR) => {
                std::thread::sleep(deadline.remaining()?.min(Duration::from_millis(10)));
            }
            Err(errno) => return Err(unreachable(errno)),
        }
    }
}

/// The answer in `received`, if it is all there. `ended`: nothing more will come.
fn parse(received: &[u8], ended: bool) -> Result<Option<Answer>, ClientError> {
    let broken = |error: httparse::Error| ClientError::Broken(format!("the answer is not HTTP: {error}"));
    let mut rest = received;
    loop {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        let httparse::Status::Complete(length) = response.parse(rest).map_err(broken)? else {
            return Ok(None);
        };
        let status = response.code.unwrap_or_default();
        let body = rest.get(length..).unwrap_or_default();
        if (100..200).contains(&status) {
            rest = body;
            continue;
        }
        let header = |name: &str| {
            let mut found = response.headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name));
            found.next().and_then(|header| std::str::from_utf8(header.value).ok()).map(str::trim)
        };
        if status == 204 || status == 304 {
            return Ok(Some(Answer { status, body: Vec::new() }));
        }
        if header("transfer-encoding").is_some_and(|value| value.to_ascii_lowercase().contains("chunked")) {
            return Ok(dechunk(body)?.map(|body| Answer { status, body }));
        }
        if let Some(length) = header("content-length") {
            let length: usize =
                length.parse().map_err(|_| ClientError::Broken("content length is no number".into()))?;
            if length > MAX_ANSWER {
                return Err(ClientError::Broken("the answer is too long".into()));
            }
            return Ok(body.get(..length).map(|body| Answer { status, body: body.to_vec() }));
        }
        return Ok(ended.then(|| Answer { status, body: body.to_vec() }));
    }
}

/// The content of a chunked body, `None` while its last chunk is missing.
fn dechunk(mut body: &[u8]) -> Result<Option<Vec<u8>>, ClientError> {
    let mut content = Vec::new();
    loop {
        let broken = || ClientError::Broken("the answer's chunks are malformed".into());
        let Ok(status) = httparse::parse_chunk_size(body) else { return Err(broken()) };
        let httparse::Status::Complete((start, size)) = status else { return Ok(None) };
        if size == 0 {
            return Ok(Some(content));
        }
        let size = usize::try_from(size).ok().filter(|size| *size <= MAX_ANSWER).ok_or_else(broken)?;
        let Some(chunk) = body.get(start..start + size) else { return Ok(None) };
        content.extend_from_slice(chunk);
        let Some(rest) = body.get(start + size + 2..) else { return Ok(None) };
        body = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;
    use std::os::unix::net::UnixListener;

    #[rstest]
    #[case("HTTP/1.1 204 No Content\r\n\r\n", 204, "")]
    #[case("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", 200, "{}")]
    #[case("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 500 X\r\nContent-Length: 1\r\n\r\nz", 500, "z")]
    #[case("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n", 200, "abc")]
    fn answers(#[case] text: &str, #[case] status: u16, #[case] body: &str) {
        let wanted = Answer { status, body: body.into() };
        assert_eq!(parse(text.as_bytes(), false).unwrap(), Some(wanted));
        // Whatever the packets' borders: before the last byte nothing is taken for the whole.
        for end in 0..text.trim_end_matches("\r\n").len() {
            assert_eq!(parse(&text.as_bytes()[..end], false).unwrap(), None, "{end}");
        }
    }

    #[test]
    fn without_length_the_end_of_the_connection_counts() {
        let text = b"HTTP/1.0 200 OK\r\n\r\nabc";
        assert_eq!(parse(text, false).unwrap(), None);
        assert_eq!(parse(text, true).unwrap(), Some(Answer { status: 200, body: b"abc".to_vec() }));
    }

    #[test]
    fn nobody_listens() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let result = exchange(&socket, "GET", "/", b"", Duration::from_secs(1));
        assert!(matches!(result, Err(ClientError::Unreachable(_))));
        drop(UnixListener::bind(&socket).unwrap());
        let result = exchange(&socket, "GET", "/", b"", Duration::from_secs(1));
        assert!(matches!(result, Err(ClientError::Unreachable(_))), "a stale socket file");
    }

    #[test]
    fn an_agent_that_hangs_costs_only_the_timeout() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        // Never accepted: the kernel completes the connection, nothing ever answers.
        let _listener = UnixListener::bind(&socket).unwrap();
        let result = exchange(&socket, "GET", "/", b"", Duration::from_millis(50));
        assert!(matches!(result, Err(ClientError::Timeout(_))));
    }

    #[test]
    fn a_full_backlog_costs_only_the_timeout() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let fd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        nix::sys::socket::bind(fd.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        nix::sys::socket::listen(&fd, nix::sys::socket::Backlog::new(1).unwrap()).unwrap();
        let deadline =
            Deadline { at: Instant::now() + Duration::from_secs(5), length: Duration::from_secs(5) };
        let _waiting = [open(&path, &deadline).unwrap(), open(&path, &deadline).unwrap()];
        let result = exchange(&path, "GET", "/", b"", Duration::from_millis(50));
        assert!(matches!(result, Err(ClientError::Timeout(_))), "{result:?}");
    }

    proptest! {
        #[test]
        fn garbage_is_refused_not_fatal(bytes in prop::collection::vec(any::<u8>(), 0..300), ended: bool) {
            let _ = parse(&bytes, ended);
            let mut answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
            answer.extend_from_slice(&bytes);
            let _ = parse(&answer, ended);
        }
    }
}
