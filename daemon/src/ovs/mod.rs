//! The local Open vSwitch by its database: one session, typed views, pure
//! transactions.
//!
//! In: the session's events, and wishes ([`PortSpec`], [`BridgeSpec`]). Out:
//! [`View`]s behind a watch channel, which requests wait on (`ovn-installed`
//! is an event here, never a poll), and the operations that make a wish true
//! ([`plan`]). No process is started.

pub mod mirror;
pub mod plan;
pub mod qos;
mod root;
mod view;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ovsdb::{
    Endpoint, Event, Operation, OperationResult, Options, Session, TransactError, TransactErrorKind,
};
use tokio::sync::{oneshot, watch};

use crate::metrics::Metrics;

#[cfg(test)]
pub(crate) use plan::tests::database as test_database;
pub use plan::{BridgeSpec, PlanError, PortSpec};
pub use qos::{Discipline, PortQos};
pub use view::{Installed, Interface, View};

/// The integration bridge.
pub const BR_INT: &str = "br-int";

/// How long a change waits for the database to come (back): longer than a
/// restart of OVS, shorter than a runtime's patience.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why the switch could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum OvsError {
    /// The transaction failed.
    #[error("the OVS database refused: {0}")]
    Transact(#[from] ovsdb::TransactError),
    /// What the wish builds on is not there.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// There was no connection for too long.
    #[error("no connection to the local OVS database for {PATIENCE:?}")]
    NotConnected,
    /// A row that the transaction changed was gone when it ran, or what it must not overwrite had changed.
    #[error("the OVS database changed meanwhile")]
    Raced,
}

/// What a transaction came to.
type Outcome = Result<Vec<OperationResult>, TransactError>;

/// Transactions whose replies are on their way. Replies are taken from the
/// session's ordered stream, after the updates that they caused: when a commit
/// returns, the view shows it.
#[derive(Default)]
struct Pending {
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Outcome>>>,
}

impl Pending {
    fn enter(&self) -> (u64, oneshot::Receiver<Outcome>) {
        let tag = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(tag, sender);
        (tag, receiver)
    }

    fn settle(&self, tag: u64, outcome: Outcome) {
        let sender = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&tag);
        if let Some(sender) = sender {
            // The call may have been given up.
            let _ = sender.send(outcome);
        }
    }
}

/// The session with the local OVS database. Cheap to clone.
#[derive(Clone)]
pub struct Ovs {
    session: Session,
    views: watch::Receiver<View>,
    pending: Arc<Pending>,
    metrics: Option<Arc<Metrics>>,
}

impl Ovs {
    /// Starts the session. Connecting, and connecting again, goes on behind it.
    pub fn connect(endpoints: Vec<Endpoint>) -> Self {
        let mut options = Options::new(endpoints, "Open_vSwitch")
            .table(
                "Open_vSwitch",
                ["external_ids", "other_config", "bridges", "ovs_version", "next_cfg", "cur_cfg"],
            )
            .table(
                "Bridge",
                ["name", "ports", "datapath_type", "external_ids", "other_config", "fail_mode", "mirrors"],
            )
            .table("Mirror", ["name", "output_port", "select_all", "select_dst_port"])
            .table("Port", ["name", "interfaces", "external_ids", "qos", "tag", "trunks"])
            .table(
                "Interface",
                [
                    "name",
                    "type",
                    "options",
                    "external_ids",
                    "mac",
                    "mac_in_use",
                    "mtu",
                    "mtu_request",
                    "ofport",
                    "link_state",
                    "error",
                    "ingress_policing_rate",
                    "ingress_policing_burst",
                ],
            )
            .table("QoS", ["type", "queues", "other_config", "external_ids"])
            .table("Queue", ["other_config", "external_ids"]);
        options.client_name = "weir-daemon".into();
        options.max_backoff = Duration::from_millis(500);
        let (session, mut events) = Session::connect(options);
        let (sender, views) = watch::channel(View::default());
        let pending = Arc::<Pending>::default();
        let replies = pending.clone();
        tokio::spawn(async move {
            while let Some(event) = events.next().await {
                match event {
                    Event::Replaced { replica, .. } | Event::Updated { replica, .. } => {
                        sender.send_modify(|view| *view = View::new(replica));
                    }
                    Event::Connected { missing, endpoint, .. } => {
                        if !missing.is_empty() {
                            tracing::warn!(?missing, "the OVS database lacks columns");
                        }
                        tracing::info!(?endpoint, "connected to the OVS database");
                    }
                    Event::Disconnected { reason } => {
                        tracing::warn!(reason, "the OVS database is gone; connecting again");
                        sender.send_modify(View::disconnected);
                    }
                    Event::Resync { reason } => tracing::warn!(reason, "the OVS database is read again"),
                    Event::Reply { tag, result } => replies.settle(tag, result),
                    Event::SchemaChanged { schema, present, absent } => {
                        tracing::warn!(schema = %schema.version, ?present, ?absent, "the OVS database's schema changed");
                    }
                    // None is asked for.
                    Event::Lock { .. } => {}
                }
            }
            // Nobody will answer any more.
            replies.waiting.lock().unwrap_or_else(PoisonError::into_inner).clear();
        });
        Self { session, views, pending, metrics: None }
    }

    /// Measures transactions.
    #[must_use]
    pub fn measured(mut self, metrics: Arc<Metrics>) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// The current view.
    pub fn view(&self) -> View {
        self.views.borrow().clone()
    }

    /// A receiver that wakes on every change.
    pub fn subscribe(&self) -> watch::Receiver<View> {
        self.views.clone()
    }

    /// State of the session, for diagnostics.
    pub fn session_state(&self) -> ovsdb::SessionState {
        self.session.state()
    }

    /// Waits until the database has been loaded and is being followed.
    pub async fn connected(&self) {
        let mut views = self.views.clone();
        // The sender lives as long as the session; its end ends the process.
        let _ = views.wait_for(View::is_connected).await;
    }

    /// Runs a transaction; nothing is sent when there is nothing to do. On
    /// return the view shows what was committed. Every
    /// operation that changes an existing row must have found it, since a
    /// mutation of a missing row succeeds silently.
    ///
    /// # Errors
    /// [`OvsError::Raced`] when a row was missing, or an operation that waits
    /// for what it knows did not find it so: look again, then decide.
    pub async fn commit(&self, operations: Vec<Operation>) -> Result<(), OvsError> {
        if operations.is_empty() {
            return Ok(());
        }
        let changes: Vec<bool> = operations
            .iter()
            .map(|operation| matches!(operation, Operation::Mutate { .. } | Operation::Update { .. }))
            .collect();
        let started = Instant::now();
        let (tag, reply) = self.pending.enter();
        self.session.submit(tag, operations);
        let ended = |_| TransactError::new(TransactErrorKind::Disconnected, "the session ended");
        let outcome = reply.await.map_err(ended).and_then(|outcome| outcome);
        if let Some(metrics) = &self.metrics {
            metrics.ovs_request(outcome.is_ok(), started.elapsed());
        }
        let results: Vec<OperationResult> = match outcome {
            // What a plan builds on had changed already (`plan::edit_root_external_ids`).
            Err(error) if error.kind == TransactErrorKind::WaitTimedOut => return Err(OvsError::Raced),
            outcome => outcome?,
        };
        let raced = changes.iter().zip(&results).any(|(changes, result)| *changes && result.count == Some(0));
        crate::steps::done("commit").await;
        if raced { Err(OvsError::Raced) } else { Ok(()) }
    }

    /// Waits until ovs-vswitchd has acted on everything that asked for it ([`plan::ask_for_applying`]); `false` if it
    /// takes too long.
    pub async fn applied(&self) -> bool {
        let (asked, _) = self.view().configurations();
        let mut views = self.views.clone();
        let wait = views.wait_for(|view| view.configurations().1 >= asked);
        tokio::time::timeout(PATIENCE, wait).await.is_ok_and(|view| view.is_ok())
    }

    /// Takes a port out of the switch and waits until ovs-vswitchd has let go of its device; `false` if it takes too
    /// long. A port that comes back under the same name at once would be taken for the same, and its new device not be
    /// opened.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn forget_port(&self, port: &str) -> Result<bool, OvsError> {
        self.apply(|view| Ok(plan::forget_port(view, port))).await?;
        Ok(self.applied().await)
    }

    /// Makes a wish true: plans against the current view and commits; plans
    /// again when the database had changed meanwhile.
    ///
    /// # Errors
    /// When the plan is impossible, or the database refuses.
    pub async fn apply(
        &self,
        wish: impl Fn(&View) -> Result<Vec<Operation>, PlanError>,
    ) -> Result<(), OvsError> {
        let connected = tokio::time::timeout(PATIENCE, self.connected()).await;
        connected.map_err(|_| OvsError::NotConnected)?;
        let mut attempts = 0;
        loop {
            let operations = wish(&self.view())?;
            match self.commit(operations).await {
                Err(OvsError::Raced) if attempts < 3 => attempts += 1,
                result => return result,
            }
            // The update that explains the race may still be on its way.
            let mut views = self.views.clone();
            let _ = tokio::time::timeout(Duration::from_millis(100), views.changed()).await;
        }
    }
}
