//! The loop around the core: one task owns it, everything else talks to that task.
//!
//! Flows in: watches, the database, leadership, answers of the API server, time,
//! questions of diagnostics. Flows out: what the core asks for, to the database
//! session, the [`Writer`] and the [`Recorder`].
//!
//! Inputs that are ready are handled one after the other before the loop waits
//! again (a *batch*), but each is handled when it comes: gathering is the core's
//! business, which holds back while a transaction is in flight. The order of each
//! source is kept; between sources there is none, except that leadership comes first.

pub mod changes;
pub mod process;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use ovsdb::{EventStream, Session};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::core::Core;
use crate::events::Recorder;
use crate::facts::ObjectRef;
use crate::io::{Input, KubeError, Output};
use crate::kube_io::Writer;
use crate::lease::{Authority, Change};
use crate::metrics::{Metrics, Shared, Snapshot};
use crate::nb_io::Translator;
use crate::watch::{Delivery, Refresher, plural};
use changes::Changes;

/// A batch ends after this time, so that diagnostics and the heartbeat are served
/// under any load.
const BATCH: Duration = Duration::from_millis(50);
/// Longest time between two heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Shortest time between two snapshots for metrics and probes: counting is not free.
const PUBLISH: Duration = Duration::from_millis(200);
/// How long work in flight may take once the process was told to stop.
const DRAIN: Duration = Duration::from_secs(3);

/// A question of diagnostics.
#[derive(Debug)]
pub enum Query {
    /// The core's state.
    Status(oneshot::Sender<Value>),
    /// The core's numbers.
    Counters(oneshot::Sender<Value>),
    /// What would change in the database.
    Plan(oneshot::Sender<Value>),
    /// Whether what is kept step by step equals what follows from nothing.
    Verify(oneshot::Sender<Value>),
    /// The facts of an object.
    Explain(ObjectRef, oneshot::Sender<Value>),
}

/// Why the loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Told to stop; work in flight is finished.
    Stopped,
    /// Leadership is lost, with the reason.
    Deposed(&'static str),
    /// The database refused our epoch token: another leader writes.
    Fenced,
    /// A source of inputs ended, which it never does by itself.
    Broken(&'static str),
}

/// Where inputs come from.
pub struct Sources {
    /// Watches.
    pub watches: mpsc::Receiver<Delivery>,
    /// The database.
    pub database: EventStream,
    /// Leadership.
    pub leadership: mpsc::Receiver<Change>,
    /// Answers to Kubernetes writes.
    pub replies: mpsc::UnboundedReceiver<(u64, Result<(), KubeError>)>,
    /// Gateway nodes that give no answer.
    pub silent: mpsc::Receiver<crate::gateways::Silent>,
    /// Diagnostics.
    pub queries: mpsc::Receiver<Query>,
}

/// Where outputs go.
pub struct Sinks {
    /// The database.
    pub session: Session,
    /// Kubernetes writes.
    pub writer: Writer,
    /// Kubernetes events.
    pub recorder: Recorder,
    /// The permission to write.
    pub authority: Authority,
    /// Lists anew.
    pub refresher: Refresher,
}

/// The task that owns the core.
pub struct Engine {
    core: Core,
    sinks: Sinks,
    translator: Translator,
    shared: Shared,
    metrics: Arc<Metrics>,
    changes: Changes,
    start: Instant,
    wake_at: Option<u64>,
    transactions: HashMap<u64, Instant>,
    writes: BTreeSet<u64>,
    elected: bool,
    lag: Duration,
    exit: Option<Exit>,
    published: Option<Instant>,
    /// Something was handled since.
    unpublished: bool,
}

impl Engine {
    /// An engine around a core.
    pub fn new(core: Core, sinks: Sinks, shared: Shared, metrics: Arc<Metrics>, changes: Changes) -> Self {
        Self {
            core,
            sinks,
            translator: Translator::default(),
            shared,
            metrics,
            changes,
            start: Instant::now(),
            wake_at: None,
            transactions: HashMap::new(),
            writes: BTreeSet::new(),
            elected: false,
            lag: Duration::ZERO,
            exit: None,
            published: None,
            unpublished: false,
        }
    }

    /// Runs until leadership is lost, the fence refuses us, or `stop`. Nothing is
    /// written any more when it returns.
    pub async fn run(mut self, mut sources: Sources, stop: CancellationToken) -> Exit {
        let exit = loop {
            if let Some(exit) = self.exit {
                break exit;
            }
            if self.publish_in().is_zero() {
                self.publish();
            }
            if let Some(exit) = self.step(&mut sources, &stop).await {
                break exit;
            }
        };
        if exit == Exit::Stopped {
            self.drain(&mut sources).await;
        }
        // The core learns of it, and what it still asks for is dropped.
        self.sinks.authority.revoke();
        let now = self.now_ms();
        drop(self.core.handle(now, unix_s(), Input::Deposed));
        self.elected = false;
        self.publish();
        if exit == Exit::Stopped {
            self.sinks.writer.finish(Duration::from_millis(500)).await;
        } else {
            self.sinks.writer.abort();
        }
        exit
    }

    /// Waits for one input and handles it with all that are ready by then.
    async fn step(&mut self, sources: &mut Sources, stop: &CancellationToken) -> Option<Exit> {
        let timer = match self.wake_at {
            Some(at) => Duration::from_millis(at.saturating_sub(self.now_ms())),
            None => HEARTBEAT,
        };
        let timer = timer.min(if self.unpublished { self.publish_in() } else { HEARTBEAT });
        tokio::select! {
            biased;
            () = stop.cancelled() => return Some(Exit::Stopped),
            change = sources.leadership.recv() => match change {
                Some(change) => self.leadership(change),
                None => return Some(Exit::Broken("the election ended")),
            },
            event = sources.database.next() => match event {
                Some(event) => self.database(event),
                None => return Some(Exit::Broken("the database session ended")),
            },
            Some((id, result)) = sources.replies.recv() => self.reply(id, result),
            Some(silent) = sources.silent.recv() => self.handle(Input::Silent(silent)),
            Some(query) = sources.queries.recv() => self.query(query),
            delivery = sources.watches.recv() => match delivery {
                Some(delivery) => self.watched(delivery),
                None => return Some(Exit::Broken("the watches ended")),
            },
            () = tokio::time::sleep(timer) => {}
        }
        let began = Instant::now();
        while self.exit.is_none() && began.elapsed() < BATCH && self.take_ready(sources) {}
        self.tick();
        self.metrics.handled(began.elapsed());
        None
    }

    /// Time until the next snapshot may be published.
    fn publish_in(&self) -> Duration {
        self.published.map_or(Duration::ZERO, |at| PUBLISH.saturating_sub(at.elapsed()))
    }

    /// Handles what is ready, one of each source at most; `false` when nothing was.
    fn take_ready(&mut self, sources: &mut Sources) -> bool {
        let mut any = false;
        if let Ok(change) = sources.leadership.try_recv() {
            self.leadership(change);
            any = true;
        }
        if let Some(Some(event)) = futures::FutureExt::now_or_never(sources.database.next()) {
            self.database(event);
            any = true;
        }
        if let Ok((id, result)) = sources.replies.try_recv() {
            self.reply(id, result);
            any = true;
        }
        if let Ok(delivery) = sources.watches.try_recv() {
            self.watched(delivery);
            any = true;
        }
        any
    }

    /// Told to stop: nothing new is taken from watches, answers still are, until
    /// nothing is in flight.
    async fn drain(&mut self, sources: &mut Sources) {
        info!(
            transactions = self.transactions.len(),
            writes = self.writes.len(),
            "stopping, finishing what is in flight"
        );
        let deadline = Instant::now() + DRAIN;
        while (!self.transactions.is_empty() || !self.writes.is_empty()) && self.exit.is_none() {
            tokio::select! {
                () = tokio::time::sleep_until(deadline) => break,
                Some(change) = sources.leadership.recv() => self.leadership(change),
                event = sources.database.next() => match event {
                    Some(event) => self.database(event),
                    None => break,
                },
                Some((id, result)) = sources.replies.recv() => self.reply(id, result),
            }
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn watched(&mut self, delivery: Delivery) {
        self.lag = delivery.at.elapsed();
        self.shared.observe(&delivery.input);
        self.handle(delivery.input);
    }

    fn database(&mut self, event: ovsdb::Event) {
        if let Some(input) = self.translator.input(event, &self.shared) {
            if let Input::NbReply { tag, result } = &input
                && let Some(sent) = self.transactions.remove(tag)
            {
                let outcome = match result {
                    Ok(_) => "ok".to_owned(),
                    Err(error) => outcome_label(error),
                };
                self.metrics.transaction(sent.elapsed(), &outcome);
            }
            self.handle(input);
        }
    }

    fn leadership(&mut self, change: Change) {
        match change {
            Change::Elected(epoch) => {
                self.elected = true;
                self.handle(Input::Elected { epoch });
                self.publish();
            }
            Change::Deposed(reason) => {
                self.elected = false;
                self.exit = Some(Exit::Deposed(reason));
            }
        }
    }

    fn reply(&mut self, id: u64, result: Result<(), KubeError>) {
        self.writes.remove(&id);
        self.handle(Input::KubeReply { id, result });
    }

    fn query(&mut self, query: Query) {
        match query {
            Query::Status(answer) => {
                let checksums: Vec<Value> = self
                    .core
                    .checksums()
                    .into_iter()
                    .map(|(kind, (objects, checksum))| {
                        json!({ "kind": plural(kind), "objects": objects, "checksum": format!("{checksum:016x}") })
                    })
                    .collect();
                let mut status = self.core.status();
                if let Value::Object(fields) = &mut status {
                    fields.insert("checksums".to_owned(), checksums.into());
                    fields.insert("ready".to_owned(), self.core.ready().into());
                    fields.insert("writing".to_owned(), self.core.leading().into());
                }
                let _ = answer.send(status);
            }
            Query::Counters(answer) => {
                let _ = answer.send(serde_json::to_value(self.core.counters()).unwrap_or_default());
            }
            Query::Plan(answer) => {
                let _ = answer.send(self.core.plan().into());
            }
            Query::Verify(answer) => {
                let began = Instant::now();
                let found = self.core.verify();
                if found.total > 0 {
                    error!(differences = found.total, first = ?found.first.first(), "verification failed");
                }
                let _ = answer.send(json!({
                    "verified": self.core.ready(),
                    "units": self.core.counters().units,
                    "seconds": began.elapsed().as_secs_f64(),
                    "differences": found.total,
                    "first": found.first,
                }));
            }
            Query::Explain(object, answer) => {
                let _ = answer.send(self.core.explain(&object));
            }
        }
    }

    /// The time the core asked for has come.
    fn tick(&mut self) {
        if self.wake_at.is_some_and(|at| at <= self.now_ms()) {
            self.wake_at = None;
            self.handle(Input::Tick);
        }
    }

    fn handle(&mut self, input: Input) {
        self.unpublished = true;
        let unix_ms = jiff::Timestamp::now().as_millisecond();
        self.changes.input(unix_ms, &input);
        let outputs = self.core.handle(self.now_ms(), unix_s(), input);
        for output in outputs {
            self.changes.output(unix_ms, &output);
            self.execute(output);
        }
    }

    fn execute(&mut self, output: Output) {
        match output {
            Output::Transact { tag, operations } => {
                if self.sinks.authority.valid() {
                    self.transactions.insert(tag, Instant::now());
                    self.sinks.session.submit(tag, operations);
                } else {
                    // A paused process that wakes up must not even try. The core waits for an answer that will not
                    // come, also where permission is given again in a moment: another process begins anew.
                    self.exit = Some(Exit::Deposed("the permission to write ran out"));
                }
            }
            Output::Kube { id, write } => {
                self.writes.insert(id);
                self.sinks.writer.submit(id, write);
            }
            Output::Event(fact) => self.sinks.recorder.record(fact),
            Output::WakeAt(at) => self.wake_at = Some(self.wake_at.map_or(at, |old| old.min(at))),
            Output::Refresh(kind, number) => self.sinks.refresher.ask(kind, number),
            Output::Fenced => {
                error!("the database refused our epoch token: another leader writes");
                self.sinks.authority.revoke();
                self.exit = Some(Exit::Fenced);
            }
        }
    }

    fn publish(&mut self) {
        self.published = Some(Instant::now());
        self.unpublished = false;
        self.shared.publish(Snapshot {
            counters: self.core.counters(),
            ready: self.core.ready(),
            leading: self.core.leading(),
            elected: self.elected,
            transactions_in_flight: self.transactions.len(),
            writes_in_flight: self.writes.len(),
            lag: self.lag,
            at: Some(Instant::now()),
        });
    }
}

fn unix_s() -> i64 {
    jiff::Timestamp::now().as_second()
}

/// The kind of a transaction's failure as a label.
fn outcome_label(error: &ovsdb::TransactError) -> String {
    let text = format!("{:?}", error.kind);
    text.split(['(', ' ', '{']).next().unwrap_or("error").to_ascii_lowercase()
}
