//! One blocking call of JSON-RPC over a unix socket: the control sockets and the
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

/// Calls a method and returns its result. Notifications that come in between are
/// passed over.
pub(super) fn call(
    socket: &Path,
    method: &str,
    params: &Json,
    patience: Duration,
) -> Result<Json, RealError> {
    let what = || format!("{method} on {}", socket.display());
    let mut stream = UnixStream::connect(socket).map_err(io(what()))?;
    let request = json!({"id": 0, "method": method, "params": params}).to_string();
    stream.set_write_timeout(Some(patience)).map_err(io(what()))?;
    stream.write_all(request.as_bytes()).map_err(io(what()))?;
    let begin = Instant::now();
    let mut framer = Framer::new(MAX_REPLY);
    let mut chunk = vec![0; 64 << 10];
    loop {
        while let Some(message) =
            framer.next_message().map_err(|e| RealError::Failed(format!("{}: {e}", what())))?
        {
            let mut reply: Json = serde_json::from_slice(&message)
                .map_err(|e| RealError::Failed(format!("{}: {e}", what())))?;
            if reply.get("method").is_some() {
                continue;
            }
            return match reply.get("error") {
                None | Some(Json::Null) => Ok(reply["result"].take()),
                Some(error) => Err(RealError::Refused { what: what(), error: error.to_string() }),
            };
        }
        let left = patience.saturating_sub(begin.elapsed());
        if left.is_zero() {
            return Err(RealError::Failed(format!("{}: no reply within {patience:?}", what())));
        }
        stream.set_read_timeout(Some(left)).map_err(io(what()))?;
        match stream.read(&mut chunk) {
            Ok(0) => return Err(RealError::Failed(format!("{}: hung up before the reply", what()))),
            Ok(count) => framer.push(&chunk[..count]),
            Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
            Err(e) => return Err(io(what())(e)),
        }
    }
}
