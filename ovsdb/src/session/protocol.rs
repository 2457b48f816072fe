//! The state machine of one connection, without I/O: bytes and time go in,
//! bytes and events come out.
//!
//! Steps: ask who the server is and for the schema ([`Phase::Greeting`]), load
//! what is wanted ([`Phase::Loading`]), follow it ([`Phase::Synced`]). An update
//! that does not fit leads back to loading, a changed schema to greeting; anything
//! else that is wrong ends the connection with a reason.
//!
//! Here: what is held, and where a message goes. `requests` sends, `load` brings into
//! sync, `follow` keeps it, `change` changes what is followed, `time` notices silence.

mod change;
mod follow;
mod load;
mod requests;
mod time;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::command::{Call, ChangeRequest, Changed, Request, Slot};
use super::handshake::{self, ServerStatus};
use super::locks::Locks;
use super::queue::Producer;
use super::wanted::Wanted;
use super::wire::{self, Message, RpcError};
use super::{Event, Options};
use crate::endpoint::Endpoint;
use crate::error::{CallError, TransactError, TransactErrorKind};
use crate::notation::Interner;
use crate::replica::Replica;
use crate::schema::Schema;

/// Why a connection ends.
pub(super) type Failure = String;

/// Who waits for a change of what is followed.
type ChangeWaiter = oneshot::Sender<Result<Changed, CallError>>;

/// What outlives a connection.
#[derive(Default)]
pub(super) struct Content {
    /// The last complete content.
    pub(super) replica: Option<Replica>,
    /// The transaction it is as of; zero if the server does not say.
    last_transaction: Option<String>,
    /// What it holds.
    loaded: Option<Wanted>,
    /// What it is to hold.
    wanted: Wanted,
    /// Changes of that which have not begun.
    pub(super) changes: VecDeque<ChangeRequest>,
    /// Who waits for changes that the next load will show.
    changing: Vec<ChangeWaiter>,
    /// The last schema told.
    schema: Option<Arc<Schema>>,
    pub(super) locks: Locks,
    interner: Interner,
    /// Consecutive initial loads that timed out.
    load_timeouts: u32,
    /// Monitors made so far, for unique ids.
    monitors: u64,
    pub(super) resyncs: u64,
    /// Loads of the whole content.
    pub(super) loads: u64,
    /// Loads of only what came since the last transaction.
    pub(super) resumes: u64,
}

impl Content {
    pub(super) fn new(options: &Options) -> Self {
        Self { wanted: Wanted::of(options), ..Self::default() }
    }
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

/// Kinds of monitors, the newest first; older servers lack the newer ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MonitorKind {
    /// `monitor_cond_since`: conditions, resumes.
    Since,
    /// `monitor_cond`: conditions.
    Conditional,
    /// `monitor` of RFC 7047.
    Plain,
}

impl MonitorKind {
    fn method(self) -> &'static str {
        match self {
            Self::Since => "monitor_cond_since",
            Self::Conditional => "monitor_cond",
            Self::Plain => "monitor",
        }
    }
    fn older(self) -> Option<Self> {
        match self {
            Self::Since => Some(Self::Conditional),
            Self::Conditional => Some(Self::Plain),
            Self::Plain => None,
        }
    }
}

/// What a reply answers.
enum Pending {
    Ignored,
    Echo,
    ServerMonitor,
    GetSchema,
    Load { monitor: u64, kind: MonitorKind },
    Conditions { waiter: ChangeWaiter, wanted: Wanted },
    Transact { request: Request, selects: Vec<Option<Arc<str>>>, count: usize, bytes: u64 },
    Call(Call),
    Lock(Arc<str>),
    Unlock(Arc<str>),
}

struct Waiting {
    what: Pending,
    method: &'static str,
    deadline: Option<Instant>,
}

/// A monitor with other columns that is being loaded beside the one followed.
struct Switch {
    monitor: u64,
    /// The replica to fill.
    empty: Replica,
    wanted: Wanted,
    waiter: ChangeWaiter,
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
    /// Bytes of the transactions in `waiting`.
    bytes_in_flight: u64,
    /// No deadline in `waiting` is earlier.
    next_deadline: Option<Instant>,
    last_activity: Instant,
    /// An echo was sent since the last activity.
    probing: bool,
    status: Option<ServerStatus>,
    status_known: bool,
    schema: Option<Arc<Schema>>,
    /// The newest kind of monitor that the server has, as far as is known.
    kind: MonitorKind,
    /// The number of the monitor that is followed or being loaded.
    monitor: u64,
    /// Its id as it was sent.
    monitor_text: String,
    /// The content being followed; not yet in `content` while loading.
    current: Option<Replica>,
    /// A change of columns under way.
    switch: Option<Switch>,
    /// A change of conditions is under way.
    changing_conditions: bool,
    /// Replies that must come after the load under way.
    held: Vec<(Event, Slot)>,
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
            bytes_in_flight: 0,
            next_deadline: None,
            last_activity: now,
            probing: false,
            status: None,
            status_known: false,
            schema: None,
            kind: MonitorKind::Since,
            monitor: 0,
            monitor_text: String::new(),
            current: None,
            switch: None,
            changing_conditions: false,
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

    /// Full loads and resumes of this session so far.
    pub(super) fn loads(&self) -> (u64, u64) {
        (self.content.loads, self.content.resumes)
    }

    /// Where its events go.
    pub(super) fn events(&self) -> &'a Producer {
        self.events
    }

    /// The locks held.
    pub(super) fn locks(&self) -> &Locks {
        &self.content.locks
    }

    /// Bytes came in.
    pub(super) fn activity(&mut self, now: Instant) {
        self.last_activity = now;
        self.probing = false;
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
            Pending::Transact { request, selects, count, bytes } => {
                self.bytes_in_flight = self.bytes_in_flight.saturating_sub(bytes);
                let result = match result {
                    Ok(result) => wire::parse_results(result, count, &selects, self.schema.as_deref()),
                    Err(error) => Err(TransactError::from_wire(error.name(), None, error.details())),
                };
                self.answer(request, result);
                Ok(())
            }
            Pending::Call(call) => {
                self.called(call, result);
                Ok(())
            }
            Pending::Lock(name) => {
                self.lock_answered(&name, result);
                Ok(())
            }
            Pending::Unlock(name) => {
                self.content.locks.unlock_answered(&name);
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
            Pending::Conditions { waiter, wanted } => {
                self.conditions_changed(now, waiter, wanted, result);
                Ok(())
            }
            Pending::Load { monitor, kind } => self.load_answered(now, monitor, kind, result),
        }
    }

    /// The connection is gone: whatever is in flight has an unknown outcome. Calls
    /// that only read are given back, for the next connection.
    pub(super) fn close(mut self, reason: &str) -> Vec<Call> {
        for (event, slot) in std::mem::take(&mut self.held) {
            self.events.push_reply(event, slot);
        }
        self.phase = Phase::Synced;
        let mut calls = Vec::new();
        for (_, waiting) in std::mem::take(&mut self.waiting) {
            match waiting.what {
                Pending::Transact { request, .. } => {
                    let error = TransactError::new(TransactErrorKind::Disconnected, reason);
                    self.answer(request, Err(error));
                }
                Pending::Call(call) => calls.push(call),
                // The next load shows it.
                Pending::Conditions { waiter, .. } => self.content.changing.push(waiter),
                _ => {}
            }
        }
        self.abandon_switch();
        self.locks_lost();
        if self.announced {
            self.events.push(Event::Disconnected { reason: reason.to_owned() });
        }
        calls
    }
}
