//! Bytes of the in-process server: listeners, one reader and one writer per
//! connection, and the clock of transactions that wait.

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::core::Frame;
use super::{Pace, Shared};
use crate::framer::Framer;

/// Longest request accepted.
const MAX_REQUEST: usize = 256 << 20;

pub(super) async fn accept_unix(shared: Arc<Shared>, member: usize, listener: UnixListener) {
    while let Ok((stream, _)) = listener.accept().await {
        serve(&shared, member, stream);
    }
}

pub(super) async fn accept_tcp(shared: Arc<Shared>, member: usize, listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        // Replies must not wait for the acknowledgement of earlier ones.
        let _ = stream.set_nodelay(true);
        serve(&shared, member, stream);
    }
}

fn serve(shared: &Arc<Shared>, member: usize, stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) {
    let (out, frames) = mpsc::unbounded_channel();
    let Some(number) = shared.with(|core| core.connect(member, out)) else { return };
    let (reader, writer) = tokio::io::split(stream);
    let pace = shared.pace.subscribe();
    let shared = shared.clone();
    tokio::spawn(async move {
        // Whichever ends first takes the other with it, and the stream is closed.
        tokio::select! {
            () = read(&shared, number, reader) => {}
            () = write(frames, writer, pace) => {}
        }
        shared.with(|core| core.disconnected(number));
    });
}

async fn read(shared: &Shared, number: u64, mut reader: impl AsyncRead + Unpin) {
    let mut framer = Framer::new(MAX_REQUEST);
    loop {
        loop {
            match framer.next_message() {
                Ok(Some(message)) => shared.with(|core| core.receive(number, &message, Instant::now())),
                Ok(None) => break,
                Err(_) => return,
            }
        }
        match reader.read_buf(framer.buffer()).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
}

async fn write(
    mut frames: mpsc::UnboundedReceiver<Frame>,
    mut writer: impl AsyncWrite + Unpin,
    pace: watch::Receiver<Option<Pace>>,
) {
    while let Some(Frame::Send(bytes)) = frames.recv().await {
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let now = *pace.borrow();
            let (piece, tail) = rest.split_at(now.map_or(rest.len(), |p| p.piece.clamp(1, rest.len())));
            if writer.write_all(piece).await.is_err() || writer.flush().await.is_err() {
                return;
            }
            rest = tail;
            if let Some(pace) = now {
                sleep(pace.pause).await;
            }
        }
    }
}

/// Fails transactions whose `wait` has waited long enough.
pub(super) async fn watch_deadlines(shared: Arc<Shared>) {
    loop {
        let deadline = shared.lock().next_deadline();
        match deadline {
            None => shared.deadline.notified().await,
            Some(deadline) => tokio::select! {
                () = shared.deadline.notified() => {}
                () = sleep_until(deadline) => shared.with(|core| core.expire(Instant::now())),
            },
        }
    }
}
