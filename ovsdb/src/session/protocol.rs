//! The state machine of one connection, without I/O: bytes and time go in,
//! bytes and events come out.
//!
//! Steps: ask who the server is and for the schema ([`Phase::Greeting`]), load
//! what is wanted ([`Phase::Loading`]), follow it ([`Phase::Synced`]). An update
//! that does not fit leads back to loading, a changed schema to greeting; anything
//! else that is wrong ends the connection with a reason.

mod load;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::handshake::{self, ServerStatus};
use super::queue::Producer;
use super::wire::{self, Message, RpcError};
use super::{Event, Options, Request, Requester};
use crate::endpoint::Endpoint;
use crate::error::{OperationResult, TransactError, TransactErrorKind};
use crate::notation::Interner;
use crate::op::Operation;
use crate::replica::Replica;
use crate::schema::Schema;

/// Why a connection ends.
pub(super) type Failure = String;

/// What outlives a connection.
#[derive(Default)]
pub(super) struct Content {
    /// The last complete content.
    pub(super) replica: Option<Replica>,
    /// The transaction it is as of; zero if the server does not say.
    last_transaction: Option<String>,
    interner: Interner,
    /// Consecutive initial loads that timed out.
    load_timeouts: u32,
    /// Monitors made so far, for unique ids.
    monitors: u64,
    pub(super) resyncs: u64,
}

/// The id that stands for no transaction.
const NO_TRANSACTION: &str = "00000000-0000-0000-0000-000000000000";
/// An initial load may take at most so many doublings of the request timeout.
const MAX_LOAD_DOUBLINGS: u32 = 4;

/// A silent server is given up after this time however big its database is.
const MAX_PATIENCE: Duration = Duration::from_secs(60);
/// A connection may need to load afresh at most once in this time.
const RESYNC_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Greeting,
    Loading,
    Synced,
}

/// What a reply answers.
enum Pending {
    Ignored,
    Echo,
    ServerMonitor,
    GetSchema,
    Load { monitor: u64, since: bool },
    Transact { request: Request, selects: Vec<Option<Arc<str>>>, count: usize },
}

struct Waiting {
    what: Pending,
    method: &'static str,
    deadline: Option<Instant>,
}

/// One connection.
pub(super) struct Protocol<'a> {
    options: &'a Options,
    endpoint: Endpoint,
    content: &'a mut Content,
    events: &'a Producer,
    /// Bytes to send.
    pub(super) out: BytesMut,
    phase: Phase,
    next_id: u64,
    waiting: BTreeMap<u64, Waiting>,
    /// Transactions in `waiting`.
    in_flight: usize,
    /// No deadline in `waiting` is earlier.
    next_deadline: Option<Instant>,
    last_activity: Instant,
    /// An echo was sent since the last activity.
    probing: bool,
    status: Option<ServerStatus>,
    status_known: bool,
    schema: Option<Arc<Schema>>,
    /// The content being followed; not yet in `content` while loading.
    current: Option<Replica>,
    /// Replies that must come after the load under way.
    held: Vec<Event>,
    last_resync: Option<Instant>,
    load_began: Instant,
    /// Twice the time of the initial load.
    patience: Duration,
    /// Whether `Connected` was told.
    pub(super) announced: bool,
    /// Since when the connection is in sync, for back-off.
    pub(super) synced_at: Option<Instant>,
}

impl<'a> Protocol<'a> {
    pub(super) fn new(
        options: &'a Options,
        endpoint: Endpoint,
        content: &'a mut Content,
        events: &'a Producer,
        now: Instant,
    ) -> Self {
        let mut protocol = Self {
            options,
            endpoint,
            content,
            events,
            out: BytesMut::new(),
            phase: Phase::Greeting,
            next_id: 1,
            waiting: BTreeMap::new(),
            in_flight: 0,
            next_deadline: None,
            last_activity: now,
            probing: false,
            status: None,
            status_known: false,
            schema: None,
            current: None,
            held: Vec::new(),
            last_resync: None,
            load_began: now,
            patience: Duration::ZERO,
            announced: false,
            synced_at: None,
        };
        protocol.call(now, Pending::Ignored, "set_db_change_aware", json!([true]));
        protocol.call(now, Pending::ServerMonitor, "monitor_cond", handshake::monitor_params());
        protocol.call(now, Pending::GetSchema, "get_schema", json!([options.database]));
        protocol
    }

    /// Whether transactions may be submitted.
    pub(super) fn is_synced(&self) -> bool {
        self.phase == Phase::Synced
    }

    /// Resyncs of this session so far.
    pub(super) fn resyncs(&self) -> u64 {
        self.content.resyncs
    }

    fn register(&mut self, what: Pending, method: &'static str, deadline: Option<Instant>) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.next_deadline = self.next_deadline.into_iter().chain(deadline).min();
        self.waiting.insert(id, Waiting { what, method, deadline });
        id
    }

    fn call(&mut self, now: Instant, what: Pending, method: &'static str, params: serde_json::Value) {
        let id = self.register(what, method, Some(now + self.options.request_timeout));
        wire::write_request(&mut self.out, id, method, params);
    }

    /// Sends a transaction. Only when synced.
    pub(super) fn transact(&mut self, now: Instant, mut request: Request) {
        let operations = std::mem::take(&mut request.operations);
        let longest_wait = operations.iter().map(wait_of).max().unwrap_or_default();
        let selects = if operations.iter().any(|o| matches!(o, Operation::Select { .. })) {
            operations.iter().map(|o| o.table().cloned()).collect()
        } else {
            Vec::new()
        };
        let id = self.next_id;
        wire::write_transact(&mut self.out, id, &self.options.database, &operations);
        let count = operations.len();
        self.in_flight += 1;
        let deadline = now + self.options.request_timeout.max(self.patience) + longest_wait;
        self.register(Pending::Transact { request, selects, count }, "transact", Some(deadline));
    }

    /// Bytes came in.
    pub(super) fn activity(&mut self, now: Instant) {
        self.last_activity = now;
        self.probing = false;
    }

    /// When [`Self::on_time`] wants to be called.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        self.next_deadline.into_iter().chain(self.next_probe()).min()
    }

    /// Half an interval of silence leads to an echo, a whole one to the end, or twice
    /// what the initial load took if that is longer: a server of a very big database
    /// has pauses too (it compacts its log, it drops another client). Not
    /// while the server works for us: it does one thing at a time, and a load or a
    /// transaction in a big database may take it longer. Those have their own bound
    /// (and a dead network is noticed all the same, see [`Endpoint`]'s `connect`).
    fn next_probe(&self) -> Option<Instant> {
        let interval = self.options.probe_interval;
        let busy = self.phase == Phase::Loading || self.in_flight > 0;
        match (self.probing, busy) {
            _ if interval.is_zero() => None,
            (true, true) => None,
            (true, false) => Some(self.last_activity + interval.max(self.patience)),
            (false, _) => Some(self.last_activity + interval / 2),
        }
    }

    /// Time has come.
    pub(super) fn on_time(&mut self, now: Instant) -> Result<(), Failure> {
        if self.next_deadline.is_some_and(|d| d <= now) {
            let late = self.waiting.values().find(|w| w.deadline.is_some_and(|d| d <= now));
            if let Some(late) = late {
                if matches!(late.what, Pending::Load { .. }) {
                    self.content.load_timeouts = (self.content.load_timeouts + 1).min(MAX_LOAD_DOUBLINGS);
                }
                return Err(format!("no reply to {} in time", late.method));
            }
            self.next_deadline = self.waiting.values().filter_map(|w| w.deadline).min();
        }
        if self.next_probe().is_some_and(|p| p <= now) {
            if self.probing {
                return Err(format!("no sign of life for {:?}", self.options.probe_interval));
            }
            self.probing = true;
            let id = self.register(Pending::Echo, "echo", None);
            wire::write_request(&mut self.out, id, "echo", json!([]));
        }
        Ok(())
    }

    /// A message came in.
    pub(super) fn message(&mut self, now: Instant, text: &[u8]) -> Result<(), Failure> {
        match wire::parse(text)? {
            Message::Request { id, method, params } => {
                // Servers send no other request.
                if method == "echo" {
                    wire::write_echo_reply(&mut self.out, id, params);
                }
                Ok(())
            }
            Message::Notification { method, params } => self.notification(now, &method, params),
            Message::Reply { id, result } => {
                let Some(waiting) = self.waiting.remove(&id) else {
                    return Err(format!("reply to the unknown request {id}"));
                };
                self.reply(now, waiting.what, result)
            }
        }
    }

    fn reply(
        &mut self,
        now: Instant,
        what: Pending,
        result: Result<Option<&RawValue>, RpcError>,
    ) -> Result<(), Failure> {
        match what {
            Pending::Ignored | Pending::Echo => Ok(()),
            Pending::Transact { request, selects, count } => {
                self.in_flight -= 1;
                let result = match result {
                    Ok(result) => wire::parse_results(result, count, &selects, self.schema.as_deref()),
                    Err(error) => Err(TransactError::from_wire(error.name(), None, error.details())),
                };
                self.answer(request.requester, result);
                Ok(())
            }
            Pending::ServerMonitor => {
                self.status_known = true;
                // Servers before 2.9 have no `_Server`: then any that answers will do.
                if let Ok(Some(initial)) = result {
                    let mut status = ServerStatus::default();
                    status.update(initial.get())?;
                    self.status = Some(status);
                }
                self.greeted(now)
            }
            Pending::GetSchema => {
                let schema = match result {
                    Ok(Some(json)) => Schema::parse_str(json.get()).map_err(|e| e.to_string())?,
                    Ok(None) => return Err("no schema in the reply to get_schema".into()),
                    Err(error) => return Err(format!("get_schema: {} {}", error.name(), error.details())),
                };
                self.schema = Some(Arc::new(schema));
                self.greeted(now)
            }
            Pending::Load { monitor, .. } if monitor != self.content.monitors => Ok(()),
            Pending::Load { since, .. } => match result {
                Ok(Some(json)) => self.loaded(now, since, json.get()),
                Ok(None) => Err("no content in the reply to monitor".into()),
                Err(error) if since && error.name() == "unknown method" => {
                    self.load(now, false);
                    Ok(())
                }
                Err(error) => Err(format!("monitor: {} {}", error.name(), error.details())),
            },
        }
    }

    fn answer(&mut self, requester: Requester, result: Result<Vec<OperationResult>, TransactError>) {
        match requester {
            // Whoever asked may have gone away.
            Requester::Call(sender) => drop(sender.send(result)),
            Requester::Tag(tag) => {
                let event = Event::Reply { tag, result };
                if self.phase == Phase::Synced {
                    self.events.push(event);
                } else {
                    self.held.push(event);
                }
            }
        }
    }

    /// The connection is gone: whatever is in flight has an unknown outcome.
    pub(super) fn close(mut self, reason: &str) {
        for event in std::mem::take(&mut self.held) {
            self.events.push(event);
        }
        self.phase = Phase::Synced;
        for (_, waiting) in std::mem::take(&mut self.waiting) {
            if let Pending::Transact { request, .. } = waiting.what {
                let error = TransactError::new(TransactErrorKind::Disconnected, reason);
                self.answer(request.requester, Err(error));
            }
        }
        if self.announced {
            self.events.push(Event::Disconnected { reason: reason.to_owned() });
        }
    }
}

/// How long an operation may block by itself.
fn wait_of(operation: &Operation) -> Duration {
    match operation {
        Operation::Wait { timeout, .. } => timeout.map_or(Duration::from_secs(3600), Duration::from_millis),
        _ => Duration::ZERO,
    }
}
