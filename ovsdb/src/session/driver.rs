//! Moves bytes and time between a server and the [protocol](super::protocol):
//! connects, reads, writes, waits, rotates endpoints, backs off.

mod stream;

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use bytes::Buf;
use tokio::io::AsyncReadExt;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use self::stream::{Shown, last_words, take_messages, write_some};
use super::backoff::Backoff;
use super::command::Command;
use super::parked::Parked;
use super::protocol::{Content, Failure, Protocol};
use super::queue::Producer;
use super::{Event, Options, SessionState};
use crate::endpoint::{Endpoint, Stream};
use crate::framer::Framer;
use crate::tls::{self, Credentials};

/// Longest message accepted: a dump of a very big database.
const MAX_MESSAGE: usize = 2 << 30;
/// While so many bytes wait to be sent no further request is taken.
const MAX_OUT: usize = 16 << 20;
/// A connection that was in sync for less counts as failed.
const SHORT_LIVED: Duration = Duration::from_secs(1);
/// Far enough away.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// The connection task of a session.
pub(super) struct Driver {
    options: Options,
    /// Servers in use; `options` has those of the beginning.
    endpoints: Vec<Endpoint>,
    commands: mpsc::UnboundedReceiver<Command>,
    events: Producer,
    state: watch::Sender<SessionState>,
    content: Content,
    parked: Parked,
    credentials: Option<Credentials>,
}

/// How an attempt ended.
enum End {
    /// Every handle of the session was dropped.
    SessionDropped,
    /// The connection failed; how long it had been in sync.
    Failed { reason: Failure, synced_for: Duration },
    /// We ended it ourselves, to begin anew at once.
    Left { reason: Failure },
}

/// What came of work done while there is no connection.
enum Meanwhile<T> {
    Done(T),
    /// The list of endpoints changed, or a new connection was asked for.
    Changed,
    SessionDropped,
}

impl Driver {
    pub(super) fn new(
        options: Options,
        commands: mpsc::UnboundedReceiver<Command>,
        events: Producer,
        state: watch::Sender<SessionState>,
    ) -> Self {
        let content = Content::new(&options);
        let credentials = options.tls.clone().map(Credentials::new);
        let endpoints = distinct(options.endpoints.clone());
        Self { options, endpoints, commands, events, state, content, parked: Parked::default(), credentials }
    }

    /// Runs until every handle of the session is dropped.
    pub(super) async fn run(mut self) {
        let mut backoff = Backoff::new(self.options.jitter_seed, self.options.max_backoff);
        let (mut last, mut next_again): (Option<Endpoint>, Option<Endpoint>) = (None, None);
        loop {
            let again = next_again.take().filter(|endpoint| self.endpoints.contains(endpoint));
            let Some(endpoint) = again.or_else(|| self.after(last.as_ref())) else {
                self.state.send_modify(|s| s.last_error = Some("no endpoint given".into()));
                match self.unsynced(std::future::pending::<()>()).await {
                    Meanwhile::SessionDropped => break,
                    Meanwhile::Changed | Meanwhile::Done(()) => continue,
                }
            };
            let (reason, failures) = match self.attempt(&endpoint).await {
                End::SessionDropped => break,
                End::Failed { reason, synced_for } => {
                    if synced_for >= SHORT_LIVED {
                        backoff.reset();
                        (reason, 0)
                    } else {
                        (reason, backoff.failed())
                    }
                }
                End::Left { reason } => {
                    backoff.reset();
                    next_again = Some(endpoint.clone());
                    (reason, 0)
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
                s.locks.clear();
                s.last_error = Some(format!("{endpoint}: {reason}"));
            });
            last = Some(endpoint);
            let pause = backoff.pause(self.endpoints.len());
            if matches!(self.unsynced(sleep(pause)).await, Meanwhile::SessionDropped) {
                break;
            }
        }
        self.events.close();
    }

    /// The endpoint whose turn comes after another's.
    fn after(&self, last: Option<&Endpoint>) -> Option<Endpoint> {
        let at = last.and_then(|last| self.endpoints.iter().position(|e| e == last));
        let next = at.and_then(|at| self.endpoints.get(at + 1));
        next.or_else(|| self.endpoints.first()).cloned()
    }

    /// One connection from beginning to end.
    async fn attempt(&mut self, endpoint: &Endpoint) -> End {
        let failed = |reason: String| End::Failed { reason, synced_for: Duration::ZERO };
        let tls = match (endpoint.needs_tls(), &mut self.credentials) {
            (false, _) => None,
            (true, None) => return failed(tls::NOT_CONFIGURED.into()),
            (true, Some(credentials)) => match credentials.load() {
                Ok(tls) => Some(tls),
                Err(error) => return failed(error.to_string()),
            },
        };
        let connecting = timeout(
            self.options.connect_timeout,
            endpoint.connect(self.options.probe_interval, tls.as_ref()),
        );
        // The future borrows nothing of `self`: requests are answered meanwhile.
        let stream = match self.unsynced(connecting).await {
            Meanwhile::SessionDropped => return End::SessionDropped,
            Meanwhile::Changed => return End::Left { reason: "the endpoints changed".into() },
            Meanwhile::Done(Err(_)) => return failed("connecting timed out".into()),
            Meanwhile::Done(Ok(Err(error))) => {
                return failed(format!("connecting failed: {}", self.explain(&error)));
            }
            Meanwhile::Done(Ok(Ok(stream))) => stream,
        };
        self.talk(endpoint, stream).await
    }

    fn explain(&self, error: &std::io::Error) -> String {
        match &self.credentials {
            Some(credentials) => credentials.explain(error),
            None => error.to_string(),
        }
    }

    async fn talk(&mut self, endpoint: &Endpoint, stream: Box<dyn Stream>) -> End {
        let Self { options, endpoints, commands, events, state, content, parked, credentials } = self;
        let mut protocol = Protocol::new(options, endpoint.clone(), content, events, Instant::now());
        for call in parked.take_calls() {
            protocol.ask(Instant::now(), call);
        }
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut framer = Framer::new(MAX_MESSAGE);
        let mut shown = Shown::default();
        // Whether TLS may hold back part of what was written.
        let mut unwritten = false;
        let mut credentials = if endpoint.needs_tls() { credentials.as_mut() } else { None };
        let explain = |credentials: &Option<&mut Credentials>, error: &std::io::Error| match credentials {
            Some(credentials) => credentials.explain(error),
            None => error.to_string(),
        };
        let ended: Result<(), Ending> = loop {
            let look = credentials.as_ref().and_then(|c| c.next_look());
            let timers = [protocol.next_timer(), parked.next_deadline(), look];
            let wake = timers.into_iter().flatten().min().unwrap_or_else(|| Instant::now() + FOREVER);
            let room = protocol.out.len() < MAX_OUT;
            let step = tokio::select! {
                read = reader.read_buf(framer.buffer()) => match read {
                    Ok(0) => Err("the server closed the connection".to_owned().into()),
                    Ok(_) => {
                        protocol.activity(Instant::now());
                        take_messages(&mut framer, &mut protocol).map_err(Ending::Failed)
                    }
                    Err(error) => Err(format!("reading failed: {}", explain(&credentials, &error)).into()),
                },
                written = write_some(&mut writer, &mut protocol.out), if unwritten || protocol.out.has_remaining() => {
                    match written {
                        Ok(more) => {
                            unwritten = more && endpoint.needs_tls();
                            Ok(())
                        }
                        Err(error) => {
                            // A server that refuses us says so before it hangs up.
                            let said = last_words(&mut reader).await.unwrap_or(error);
                            Err(format!("writing failed: {}", explain(&credentials, &said)).into())
                        }
                    }
                }
                command = commands.recv(), if room => match command {
                    None => break Ok(()),
                    Some(command) => serve(command, &mut protocol, parked, options, endpoint, endpoints),
                },
                () = sleep_until(wake) => {
                    let now = Instant::now();
                    parked.expire(now);
                    if credentials.as_mut().is_some_and(|c| c.changed(now)) {
                        Err(Ending::Left("the certificate files changed".into()))
                    } else {
                        protocol.on_time(now).map_err(Ending::Failed)
                    }
                }
            };
            if let Err(ending) = step {
                break Err(ending);
            }
            if protocol.is_synced() && parked.has_transactions() {
                for (_, request) in parked.take_transactions() {
                    protocol.transact(Instant::now(), request);
                }
            }
            shown.update(&protocol, endpoint, state);
        };
        let synced_for = protocol.synced_at.map_or(Duration::ZERO, |at| at.elapsed());
        let end = match ended {
            Ok(()) => End::SessionDropped,
            Err(Ending::Failed(reason)) => End::Failed { reason, synced_for },
            Err(Ending::Left(reason)) => End::Left { reason },
        };
        let reason = match &end {
            End::SessionDropped => "the session ended",
            End::Failed { reason, .. } | End::Left { reason } => reason,
        };
        for call in protocol.close(reason) {
            parked.call(call);
        }
        end
    }

    /// Does something while there is no connection, serving commands meanwhile.
    async fn unsynced<F: Future>(&mut self, work: F) -> Meanwhile<F::Output> {
        let mut work = pin!(work);
        loop {
            let parked_until = self.parked.next_deadline();
            tokio::select! {
                output = &mut work => return Meanwhile::Done(output),
                command = self.commands.recv() => match command {
                    None => return Meanwhile::SessionDropped,
                    Some(command) => if self.offline(command) {
                        return Meanwhile::Changed;
                    },
                },
                () = sleep_until(parked_until.unwrap_or_else(|| Instant::now() + FOREVER)) => {
                    self.parked.expire(Instant::now());
                }
            }
        }
    }

    /// A command without a connection; whether to try another endpoint at once.
    fn offline(&mut self, command: Command) -> bool {
        match command {
            Command::Transact(request) => {
                self.parked.transaction(&self.events, self.options.request_timeout, request);
            }
            Command::Cancel(target) => self.parked.cancel(target),
            Command::Call(call) => self.parked.call(call),
            Command::Change(request) => self.content.changes.push_back(request),
            // Not connected: there is nothing to send, only to remember.
            Command::Lock { name, steal } => drop(self.content.locks.want(name, steal)),
            Command::Unlock(name) => {
                if self.content.locks.give_back(&name).1 {
                    self.events.push(Event::Lock { name, state: super::LockState::Released });
                }
            }
            Command::Endpoints(endpoints) => {
                self.endpoints = distinct(endpoints);
                return true;
            }
            Command::Reconnect(_) => return true,
        }
        false
    }
}

/// Why a connection ends while the session goes on.
enum Ending {
    Failed(Failure),
    Left(Failure),
}

impl From<Failure> for Ending {
    fn from(reason: Failure) -> Self {
        Self::Failed(reason)
    }
}

/// A command while there is a connection.
fn serve(
    command: Command,
    protocol: &mut Protocol<'_>,
    parked: &mut Parked,
    options: &Options,
    endpoint: &Endpoint,
    endpoints: &mut Vec<Endpoint>,
) -> Result<(), Ending> {
    let now = Instant::now();
    match command {
        Command::Transact(request) if protocol.is_synced() => protocol.transact(now, request),
        Command::Transact(request) => {
            parked.transaction(protocol.events(), options.request_timeout, request);
        }
        Command::Cancel(target) => {
            parked.cancel(target);
            protocol.cancel(target);
        }
        Command::Call(call) => protocol.ask(now, call),
        Command::Change(request) => protocol.change(now, request),
        Command::Lock { name, steal } => protocol.lock(now, name, steal),
        Command::Unlock(name) => protocol.unlock(now, name),
        Command::Endpoints(new) => {
            *endpoints = distinct(new);
            if !endpoints.contains(endpoint) {
                return Err(Ending::Left("the endpoint was removed from the list".into()));
            }
        }
        Command::Reconnect(reason) => return Err(Ending::Left(reason)),
    }
    Ok(())
}

/// Endpoints without repetitions, in order.
fn distinct(endpoints: Vec<Endpoint>) -> Vec<Endpoint> {
    let mut seen = std::collections::BTreeSet::new();
    endpoints.into_iter().filter(|endpoint| seen.insert(endpoint.clone())).collect()
}
