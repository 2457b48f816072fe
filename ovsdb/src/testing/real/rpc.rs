//! Blocking calls of JSON-RPC over a unix socket: the control sockets and the
//! database sockets of real servers, without the client under test.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

use super::{RealError, io};
use crate::framer::Framer;

/// Longest reply accepted.
const MAX_REPLY: usize = 1 << 30;

/// A connection that makes one call after the other.
pub(super) struct Connection<'a> {
    socket: &'a Path,
    stream: UnixStream,
    framer: Framer,
}

impl<'a> Connection<'a> {
    pub(super) fn open(socket: &'a Path) -> Result<Self, RealError> {
        let stream = UnixStream::connect(socket).map_err(io(socket.display()))?;
        Ok(Self { socket, stream, framer: Framer::new(MAX_REPLY) })
    }

    /// Calls a method and returns its result. Notifications that come in between are
    /// passed over.
    pub(super) fn call(
        &mut self,
        method: &str,
        params: &Json,
        patience: Duration,
    ) -> Result<Json, RealError> {
        let what = format!("{method} on {}", self.socket.display());
        let failed = |problem: String| RealError::Failed(format!("{what}: {problem}"));
        let request = json!({"id": 0, "method": method, "params": params}).to_string();
        self.stream.set_write_timeout(Some(patience)).map_err(io(&what))?;
        self.stream.write_all(request.as_bytes()).map_err(io(&what))?;
        let begin = Instant::now();
        let mut chunk = vec![0; 64 << 10];
        loop {
            while let Some(message) = self.framer.next_message().map_err(|e| failed(e.to_string()))? {
                let mut reply: Json = serde_json::from_slice(&message).map_err(|e| failed(e.to_string()))?;
                if reply.get("method").is_some() {
                    continue;
                }
                return match reply.get("error") {
                    None | Some(Json::Null) => Ok(reply["result"].take()),
                    Some(error) => Err(RealError::Refused { error: error.to_string(), what }),
                };
            }
            let left = patience.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Err(failed(format!("no reply within {patience:?}")));
            }
            self.stream.set_read_timeout(Some(left)).map_err(io(&what))?;
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(failed("hung up before the reply".into())),
                Ok(count) => self.framer.push(&chunk[..count]),
                Err(e)
                    if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
                Err(e) => return Err(io(&what)(e)),
            }
        }
    }
}

/// One call on a connection of its own.
pub(super) fn call(
    socket: &Path,
    method: &str,
    params: &Json,
    patience: Duration,
) -> Result<Json, RealError> {
    Connection::open(socket)?.call(method, params, patience)
}
