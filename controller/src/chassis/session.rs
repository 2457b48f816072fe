//! The southbound session: keeps [`super::plan`] true while we lead.
//!
//! Flows in: the session's events, nodes, the permission to write. Flows out: one
//! transaction at a time, a word on what was deleted, the state for diagnostics. A
//! southbound database that is away holds nothing up: pods need the northbound one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ovsdb::{Endpoint, Event, Options, Replica, Session};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{Nodes, PRIVATE, Patience, Plan, Removal, TABLE, plan};
use crate::events::Recorder;
use crate::facts::{EventFact, Gate, Kind, ObjectRef};
use crate::flags::settings::Settings;
use crate::lease::Authority;
use crate::metrics::{Metrics, Shared};

/// Database name.
const DATABASE: &str = "OVN_Southbound";
/// Changes gather for this long: nodes come in crowds, and northd computes
/// everything anew after each tag.
const GATHER: Duration = Duration::from_millis(200);
/// Pause between looks at whether we lead, while something is to be done.
const LOOK: Duration = Duration::from_secs(1);

/// Session options from the settings; `None` when no southbound database is named.
///
/// # Errors
/// Endpoints that can't be used, with the remedy.
pub fn options(settings: &Settings) -> Result<Option<Options>, String> {
    let Some(endpoints) = &settings.sb_endpoints else { return Ok(None) };
    let endpoints = Endpoint::parse_list(endpoints).map_err(|error| {
        format!("--ovn-sb-addr: {error}; give tcp:HOST:PORT, ssl:HOST:PORT or unix:PATH, several separated by commas")
    })?;
    let mut options = Options::new(endpoints, DATABASE)
        .table(TABLE, ["name", "hostname", "external_ids", "other_config"])
        .table(PRIVATE, ["name"]);
    options.leader_only = true;
    options.connect_timeout = settings.nb_connect_timeout;
    options.request_timeout = settings.nb_request_timeout;
    options.probe_interval = settings.nb_probe_interval;
    options.tls = settings.sb_tls.clone();
    options.client_name = format!("weir-controller {}", settings.pod_name);
    Ok(Some(options))
}

/// What the session works with.
pub struct Parts {
    /// Nodes, `None` until they are listed.
    pub nodes: watch::Receiver<Option<Arc<Nodes>>>,
    /// The permission to write.
    pub authority: Authority,
    /// For events about nodes.
    pub recorder: Recorder,
    /// For the number of deleted chassis.
    pub metrics: Arc<Metrics>,
    /// For diagnostics.
    pub shared: Shared,
}

struct Keeper {
    parts: Parts,
    replica: Option<Replica>,
    patience: Patience,
    in_flight: Option<Plan>,
    told: BTreeSet<(Arc<str>, Arc<str>, Arc<str>)>,
    tag: u64,
    start: Instant,
}

/// Runs until `stop`.
pub async fn run(options: Options, parts: Parts, stop: CancellationToken) {
    let (session, mut events) = Session::connect(options);
    let mut keeper = Keeper {
        parts,
        replica: None,
        patience: Patience::default(),
        in_flight: None,
        told: BTreeSet::new(),
        tag: 0,
        start: Instant::now(),
    };
    let mut look_at: Option<Instant> = None;
    loop {
        let look = look_at.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600));
        tokio::select! {
            () = stop.cancelled() => return,
            event = events.next() => {
                let Some(event) = event else { return };
                if keeper.event(event) {
                    look_at.get_or_insert(Instant::now() + GATHER);
                }
            }
            changed = keeper.parts.nodes.changed() => {
                if changed.is_err() {
                    return;
                }
                look_at.get_or_insert(Instant::now() + GATHER);
            }
            () = tokio::time::sleep_until(look) => look_at = keeper.look(&session),
        }
    }
}

impl Keeper {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Takes an event; `true` when there may be something to do now.
    fn event(&mut self, event: Event) -> bool {
        match event {
            Event::Connected { endpoint, .. } => {
                info!(%endpoint, "southbound database connected");
                self.parts.shared.set_southbound(|state| state.endpoint = Some(endpoint.to_string()));
                false
            }
            Event::Replaced { replica, .. } => {
                self.parts.shared.set_southbound(|state| (state.synced, state.last_error) = (true, None));
                self.in_flight = None;
                self.replica = Some(replica);
                true
            }
            Event::Updated { replica, .. } => {
                self.replica = Some(replica);
                true
            }
            Event::Reply { result, .. } => {
                if let Some(done) = self.in_flight.take() {
                    match result {
                        Ok(_) => self.tell(&done.removals),
                        Err(error) => warn!(%error, "chassis could not be changed, trying again"),
                    }
                }
                true
            }
            Event::Disconnected { reason } => {
                warn!(reason, "southbound database connection lost");
                self.parts
                    .shared
                    .set_southbound(|state| (state.synced, state.last_error) = (false, Some(reason)));
                (self.in_flight, self.replica) = (None, None);
                false
            }
            Event::SchemaChanged { .. } | Event::Lock { .. } => false,
            Event::Resync { reason } => {
                warn!(reason, "southbound database out of sync, loading again");
                self.replica = None;
                false
            }
        }
    }

    /// Compares, and writes if we lead. Returns when to look again.
    fn look(&mut self, session: &Session) -> Option<Instant> {
        if self.in_flight.is_some() {
            return None;
        }
        let replica = self.replica.as_ref()?;
        let nodes = self.parts.nodes.borrow_and_update().clone()?;
        let mut plan = plan(&nodes, replica);
        let now = self.now_ms();
        let later = self.patience.filter(now, &mut plan);
        let conflicts = plan.conflicts.iter().map(|c| format!("{} of {} and {}", c.0, c.1, c.2)).collect();
        self.parts.shared.set_southbound(|state| {
            state.chassis = replica.table(TABLE).map_or(0, ovsdb::Table::len);
            state.conflicts = conflicts;
        });
        if !self.parts.authority.valid() {
            return (!plan.is_empty() || !plan.conflicts.is_empty()).then(|| Instant::now() + LOOK);
        }
        self.tell_conflicts(&nodes, &plan);
        if plan.is_empty() {
            return later.map(|at| self.start + Duration::from_millis(at));
        }
        debug!(tags = plan.tags.len(), removals = plan.removals.len(), "changing chassis");
        self.patience.removed(now, &plan.removals);
        self.tag += 1;
        session.submit(self.tag, plan.operations());
        self.in_flight = Some(plan);
        None
    }

    fn tell(&self, removals: &[Removal]) {
        for removal in removals {
            let Removal { chassis, node, successor } = removal;
            self.parts.metrics.chassis_removed();
            self.parts.shared.set_southbound(|state| state.removed += 1);
            match successor {
                None => info!(chassis, node = &**node, "chassis of a node that is gone deleted"),
                Some(own) => {
                    warn!(chassis, node = &**node, own = &**own, "duplicate chassis deleted");
                    let message = format!(
                        "chassis {chassis} was deleted: node {node} has chassis {own} now. If it comes back, an \
                         ovn-controller with the old system-id still runs somewhere; stop it"
                    );
                    self.event_of(node, "DuplicateChassis", message);
                }
            }
        }
    }

    fn tell_conflicts(&mut self, nodes: &Nodes, plan: &Plan) {
        for conflict in plan.conflicts.difference(&self.told) {
            let (chassis, owner, loser) = conflict;
            warn!(chassis = &**chassis, node = &**owner, other = &**loser, "two nodes with one chassis");
            let message = format!(
                "chassis {chassis} is announced by node {owner} too, so no traffic reaches one of the two; give \
                 this node a system-id of its own (/etc/openvswitch/system-id.conf) and restart its ovn-controller"
            );
            if nodes.contains_key(loser) {
                self.event_of(loser, "ChassisConflict", message);
            }
        }
        self.told.clone_from(&plan.conflicts);
    }

    fn event_of(&self, node: &Arc<str>, reason: &str, message: String) {
        let nodes = self.parts.nodes.borrow();
        let uid = nodes.as_ref().and_then(|nodes| Some(nodes.get(node)?.uid.clone()));
        self.parts.recorder.record(EventFact {
            object: ObjectRef::cluster(Kind::Node, node.clone()),
            uid,
            warning: true,
            reason: reason.into(),
            message: message.into(),
            gate: Gate::Now,
        });
    }
}
