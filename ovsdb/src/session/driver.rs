//! Moves bytes and time between a server and the [protocol](super::protocol):
//! connects, reads, writes, waits, rotates endpoints, backs off.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use bytes::Buf;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::protocol::{Content, Failure, Protocol};
use super::queue::Producer;
use super::{Event, Options, Request, Requester, SessionState};
use crate::endpoint::{Endpoint, Stream};
use crate::error::{TransactError, TransactErrorKind};
use crate::framer::Framer;

/// Longest message accepted: a dump of a very big database.
const MAX_MESSAGE: usize = 2 << 30;
/// While so many bytes wait to be sent no further request is taken.
const MAX_OUT: usize = 16 << 20;
/// First pause after all endpoints failed.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
/// A connection that was in sync for less counts as failed.
const SHORT_LIVED: Duration = Duration::from_secs(1);
/// Far enough away.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// The connection task of a session.
pub(super) struct Driver {
    options: Options,
    requests: mpsc::UnboundedReceiver<Request>,
    events: Producer,
    state: watch::Sender<SessionState>,
    content: Content,
    /// Calls that wait for a synced connection, with their deadline.
    parked: VecDeque<(Instant, Request)>,
}

/// How an attempt ended.
enum End {
    /// Every handle of the session was dropped.
    SessionDropped,
    /// The connection failed; how long it had been in sync.
    Failed { reason: Failure, synced_for: Duration },
}

impl Driver {
    pub(super) fn new(
        options: Options,
        requests: mpsc::UnboundedReceiver<Request>,
        events: Producer,
        state: watch::Sender<SessionState>,
    ) -> Self {
        Self { options, requests, events, state, content: Content::default(), parked: VecDeque::new() }
    }

    /// Runs until every handle of the session is dropped.
    pub(super) async fn run(mut self) {
        let endpoints = self.options.endpoints.clone();
        let count = u32::try_from(endpoints.len()).unwrap_or(u32::MAX).max(1);
        let mut failures = 0u32;
        for endpoint in endpoints.iter().cycle() {
            let reason = match self.attempt(endpoint).await {
                End::SessionDropped => break,
                End::Failed { reason, synced_for } => {
                    failures = if synced_for < SHORT_LIVED { failures.saturating_add(1) } else { 0 };
                    reason
                }
            };
            if failures <= 1 {
                tracing::warn!(%endpoint, reason, "database connection");
            } else {
                tracing::debug!(%endpoint, reason, failures, "database connection");
            }
            self.state.send_modify(|s| {
                s.endpoint = None;
                s.synced = false;
                s.last_error = Some(format!("{endpoint}: {reason}"));
            });
            let pause = pause(failures, count, self.options.max_backoff);
            if self.unsynced(sleep(pause)).await.is_none() {
                break;
            }
        }
        if endpoints.is_empty() {
            self.state.send_modify(|s| s.last_error = Some("no endpoint given".into()));
            self.unsynced(std::future::pending::<()>()).await;
        }
        self.events.close();
    }

    /// One connection from beginning to end.
    async fn attempt(&mut self, endpoint: &Endpoint) -> End {
        let failed = |reason: String| End::Failed { reason, synced_for: Duration::ZERO };
        let connecting = timeout(self.options.connect_timeout, endpoint.connect(self.options.probe_interval));
        let stream = match self.unsynced(connecting).await {
            None => return End::SessionDropped,
            Some(Err(_)) => return failed("connecting timed out".into()),
            Some(Ok(Err(error))) => return failed(format!("connecting failed: {error}")),
            Some(Ok(Ok(stream))) => stream,
        };
        self.talk(endpoint, stream).await
    }

    async fn talk(&mut self, endpoint: &Endpoint, stream: Box<dyn Stream>) -> End {
        let Self { options, requests, events, state, content, parked } = self;
        let mut protocol = Protocol::new(options, endpoint.clone(), content, events, Instant::now());
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut framer = Framer::new(MAX_MESSAGE);
        let mut shown_resyncs = protocol.resyncs();
        let mut was_synced = false;
        let ended: Result<(), Failure> = loop {
            let timer = protocol.next_timer();
            let parked_until = parked.front().map(|(deadline, _)| *deadline);
            let wake =
                timer.into_iter().chain(parked_until).min().unwrap_or_else(|| Instant::now() + FOREVER);
            let room = protocol.out.len() < MAX_OUT;
            let step = tokio::select! {
                read = reader.read_buf(framer.buffer()) => match read {
                    Ok(0) => Err("the server closed the connection".into()),
                    Ok(_) => {
                        protocol.activity(Instant::now());
                        take_messages(&mut framer, &mut protocol)
                    }
                    Err(error) => Err(format!("reading failed: {error}")),
                },
                written = writer.write_buf(&mut protocol.out), if protocol.out.has_remaining() => match written {
                    Ok(0) => Err("the server closed the connection".into()),
                    Ok(_) => Ok(()),
                    Err(error) => Err(format!("writing failed: {error}")),
                },
                request = requests.recv(), if room => match request {
                    None => break Ok(()),
                    Some(request) if protocol.is_synced() => {
                        protocol.transact(Instant::now(), request);
                        Ok(())
                    }
                    Some(request) => {
                        park(parked, events, options.request_timeout, request);
                        Ok(())
                    }
                },
                () = sleep_until(wake) => {
                    expire(parked, Instant::now());
                    protocol.on_time(Instant::now())
                }
            };
            if let Err(reason) = step {
                break Err(reason);
            }
            let synced = protocol.is_synced();
            if synced {
                for (_, request) in parked.drain(..) {
                    protocol.transact(Instant::now(), request);
                }
            }
            if synced != was_synced || protocol.resyncs() != shown_resyncs {
                shown_resyncs = protocol.resyncs();
                let first = synced && state.borrow().endpoint.is_none();
                let overflows = events.overflows();
                state.send_modify(|s| {
                    s.synced = synced;
                    s.resyncs = shown_resyncs + overflows;
                    if synced {
                        s.endpoint = Some(endpoint.clone());
                        s.connections += u64::from(first);
                    }
                });
                was_synced = synced;
            }
        };
        let synced_for = protocol.synced_at.map_or(Duration::ZERO, |at| at.elapsed());
        match ended {
            Ok(()) => {
                protocol.close("the session ended");
                End::SessionDropped
            }
            Err(reason) => {
                protocol.close(&reason);
                End::Failed { reason, synced_for }
            }
        }
    }

    /// Does something while there is no connection, answering requests meanwhile.
    /// `None` once every handle of the session is dropped.
    async fn unsynced<F: Future>(&mut self, work: F) -> Option<F::Output> {
        let mut work = pin!(work);
        loop {
            let parked_until = self.parked.front().map(|(deadline, _)| *deadline);
            tokio::select! {
                output = &mut work => return Some(output),
                request = self.requests.recv() => {
                    park(&mut self.parked, &self.events, self.options.request_timeout, request?);
                }
                () = sleep_until(parked_until.unwrap_or_else(|| Instant::now() + FOREVER)) => {
                    expire(&mut self.parked, Instant::now());
                }
            }
        }
    }
}

fn take_messages(framer: &mut Framer, protocol: &mut Protocol<'_>) -> Result<(), Failure> {
    while let Some(message) = framer.next_message().map_err(|e| e.to_string())? {
        protocol.message(Instant::now(), &message)?;
    }
    Ok(())
}

/// A request while there is no synced connection: calls wait for one, submits
/// get their answer at once.
fn park(parked: &mut VecDeque<(Instant, Request)>, events: &Producer, bound: Duration, request: Request) {
    match request.requester {
        Requester::Call(_) => parked.push_back((Instant::now() + bound, request)),
        Requester::Tag(tag) => events.push(Event::Reply { tag, result: Err(not_connected()) }),
    }
}

fn expire(parked: &mut VecDeque<(Instant, Request)>, now: Instant) {
    while parked.front().is_some_and(|(deadline, _)| *deadline <= now) {
        if let Some((_, Request { requester: Requester::Call(sender), .. })) = parked.pop_front() {
            drop(sender.send(Err(not_connected())));
        }
    }
}

fn not_connected() -> TransactError {
    TransactError::new(TransactErrorKind::Disconnected, "not connected to the database")
}

/// How long to wait before the next attempt: hardly at all within a round over
/// the endpoints, doubling between rounds, always with jitter so that many clients
/// do not come back at the same instant.
fn pause(failures: u32, endpoints: u32, max: Duration) -> Duration {
    let jitter: f64 = rand::random();
    if failures == 0 || !failures.is_multiple_of(endpoints) {
        return Duration::from_millis(25).mul_f64(jitter);
    }
    let doublings = (failures / endpoints - 1).min(16);
    let bound = FIRST_BACKOFF.saturating_mul(2u32.pow(doublings)).min(max);
    bound.mul_f64(0.5 + jitter / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_by_round_and_are_bounded() {
        let max = Duration::from_secs(2);
        for failures in [0, 1, 2, 4, 5] {
            assert!(pause(failures, 3, max) <= Duration::from_millis(25));
        }
        for (failures, bound) in [(3, 100), (6, 200), (9, 400), (300, 2000), (u32::MAX / 3 * 3, 2000)] {
            let pause = pause(failures, 3, max);
            assert!(pause <= Duration::from_millis(bound) && pause >= Duration::from_millis(bound / 2));
        }
    }
}
