//! Steps of a connection: writing, reading, showing its state.

use std::time::Duration;

use bytes::Buf;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::endpoint::Endpoint;
use crate::framer::Framer;
use crate::session::SessionState;
use crate::session::protocol::{Failure, Protocol};

/// How long to listen for the reason of a connection that can't be written any more.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Writes what the stream takes, or makes it hand on what it holds back; whether it may
/// hold something back. Safe to cancel.
pub(super) async fn write_some(
    writer: &mut (impl AsyncWriteExt + Unpin),
    out: &mut impl Buf,
) -> std::io::Result<bool> {
    if !out.has_remaining() {
        writer.flush().await?;
        return Ok(false);
    }
    if writer.write_buf(out).await? == 0 {
        return Err(std::io::ErrorKind::WriteZero.into());
    }
    Ok(true)
}

/// The error that a connection which can't be written any more ends with.
pub(super) async fn last_words(reader: &mut (impl AsyncReadExt + Unpin)) -> Option<std::io::Error> {
    let mut rest = [0; 1024];
    let read = async {
        loop {
            match reader.read(&mut rest).await {
                Ok(0) => return None,
                Ok(_) => {}
                Err(error) => return Some(error),
            }
        }
    };
    timeout(LAST_WORDS, read).await.ok().flatten()
}

/// Serves the messages that have come in whole.
pub(super) fn take_messages(framer: &mut Framer, protocol: &mut Protocol<'_>) -> Result<(), Failure> {
    while let Some(message) = framer.next_message().map_err(|e| e.to_string())? {
        protocol.message(Instant::now(), &message)?;
    }
    Ok(())
}

/// What the session's state says of this connection.
#[derive(Default)]
pub(super) struct Shown {
    synced: bool,
    resyncs: Option<u64>,
    locks: u64,
}

impl Shown {
    pub(super) fn update(
        &mut self,
        protocol: &Protocol<'_>,
        endpoint: &Endpoint,
        state: &watch::Sender<SessionState>,
    ) {
        let (synced, resyncs, locks) =
            (protocol.is_synced(), Some(protocol.resyncs()), protocol.locks().version());
        if synced == self.synced && resyncs == self.resyncs && locks == self.locks {
            return;
        }
        *self = Self { synced, resyncs, locks };
        let first = synced && state.borrow().endpoint.is_none();
        state.send_modify(|s| {
            s.synced = synced;
            s.resyncs = protocol.resyncs();
            s.locks = protocol.locks().held();
            (s.loads, s.resumes) = protocol.loads();
            if synced {
                s.endpoint = Some(endpoint.clone());
                s.connections += u64::from(first);
            }
        });
    }
}
