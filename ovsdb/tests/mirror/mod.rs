//! A session under load and under faults, with everything checked that a consumer
//! may rely on.
//!
//! Every transaction of the load carries a ledger: it adds one to a counter in
//! one table and a row with its number to another. So each replica that is ever shown
//! tells by itself whether it is whole (both agree), whether anything was applied twice
//! (the counter would be ahead) and whether an acknowledged write is missing.

#![allow(dead_code, unreachable_pub, unreachable_patterns)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ovsdb::testing::real::{Cluster, Server};
use ovsdb::{
    Event, EventStream, Mutator, Operation, Options, Replica, Schema, Session, TransactError,
    TransactErrorKind, Value,
};

use crate::support::{Generator, Model};

/// Longest that anything may take to come right again.
pub const PATIENCE: Duration = Duration::from_secs(60);

const DATABASE: &str = "OVN_Northbound";
/// Tables that the ledger has for itself, and those whose rows would make the server
/// open connections.
const RESERVED: [&str; 4] = ["NB_Global", "Address_Set", "Connection", "SSL"];

/// What happened, for the log of the test.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub transactions: u64,
    pub committed: u64,
    pub refused: u64,
    pub unknown: u64,
    /// Unknown outcomes that turned out to be committed.
    pub unknown_committed: u64,
    /// Of those: not yet in the content that followed the loss of the connection.
    pub came_late: u64,
    pub dumps: u64,
    pub replicas: u64,
    pub stale: u64,
}

/// Makes the load.
pub struct Load {
    generator: Generator,
    next: u64,
}

impl Load {
    pub fn new(mut schema: Schema, seed: u64) -> Self {
        schema.tables.retain(|name, _| !RESERVED.contains(&name.as_str()));
        Self { generator: Generator::new(schema, seed), next: 1 }
    }

    /// A random transaction with the ledger's part, and its number. One in four has the
    /// ledger's part only, so that some surely commit.
    pub fn transaction(&mut self) -> (u64, Vec<Operation>) {
        let number = self.next;
        self.next += 1;
        let mut operations = if number.is_multiple_of(4) { Vec::new() } else { self.generator.transaction() };
        operations.push(Operation::mutate("NB_Global").mutation("nb_cfg", Mutator::Add, 1i64).build());
        operations.push(Operation::insert("Address_Set").column("name", name(number)).build());
        (number, operations)
    }
}

fn name(number: u64) -> String {
    format!("t{number}")
}

fn has(replica: &Replica, number: u64) -> bool {
    let sets = replica.table("Address_Set").unwrap();
    sets.find_one("name", &Value::string(name(number))).is_some()
}

/// Follows every column of every table of a schema.
pub fn options(endpoints: Vec<ovsdb::Endpoint>, schema: &Schema) -> Options {
    let mut options = Options::new(endpoints, DATABASE);
    for table in schema.tables.keys() {
        options = options.table(table, []);
    }
    options.probe_interval = Duration::from_secs(1);
    options.connect_timeout = Duration::from_secs(1);
    options.request_timeout = Duration::from_secs(3);
    options.max_backoff = Duration::from_millis(200);
    options
}

/// A session with its consumer, who checks.
pub struct Mirror {
    pub session: Session,
    events: EventStream,
    model: Model,
    pub replica: Option<Replica>,
    pub counts: Counts,
    /// Acknowledged: must be in every replica from then on.
    acknowledged: BTreeSet<u64>,
    /// Answered with `Disconnected`; whether a content has come since.
    unknown: BTreeMap<u64, bool>,
    in_flight: BTreeSet<u64>,
    /// A session that is not leader-only may see an older state for a while.
    may_lag: bool,
    pub events_seen: BTreeMap<&'static str, u64>,
}

impl Mirror {
    pub fn connect(options: Options) -> Self {
        let may_lag = !options.leader_only;
        let (session, events) = Session::connect(options);
        Self {
            session,
            events,
            model: Model::default(),
            replica: None,
            counts: Counts::default(),
            acknowledged: BTreeSet::new(),
            unknown: BTreeMap::new(),
            in_flight: BTreeSet::new(),
            may_lag,
            events_seen: BTreeMap::new(),
        }
    }

    /// Makes the counter of the ledger.
    pub async fn begin(&mut self) {
        let global = Operation::insert("NB_Global").column("name", "ledger").build();
        self.session.transact(vec![global]).await.unwrap();
        self.until("the ledger", |m| m.counter() == Some(0)).await;
    }

    fn counter(&self) -> Option<i64> {
        counter(self.replica.as_ref()?)
    }

    pub fn submit(&mut self, (number, operations): (u64, Vec<Operation>)) {
        self.counts.transactions += 1;
        self.in_flight.insert(number);
        self.session.submit(number, operations);
    }

    /// Takes events until the condition holds.
    pub async fn until(&mut self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let begin = Instant::now();
        while !holds(self) {
            let state = self.session.state();
            assert!(begin.elapsed() < PATIENCE, "waited in vain for {what}: {state:?}");
            // The session's state may change without an event, or right after it.
            let soon = Duration::from_millis(20);
            if let Ok(event) = tokio::time::timeout(soon, self.events.next()).await {
                self.take(event.expect("the session ended"));
            }
        }
    }

    /// Takes the events that are there.
    pub fn drain(&mut self) {
        while let Some(event) = self.events.try_next() {
            self.take(event);
        }
    }

    /// Waits until every transaction has an answer.
    pub async fn answers(&mut self) {
        self.until("answers", |m| m.in_flight.is_empty()).await;
    }

    fn take(&mut self, event: Event) {
        let kind = match &event {
            Event::Replaced { .. } => "replaced",
            Event::Updated { .. } => "updated",
            Event::Reply { .. } => "replies",
            Event::Connected { .. } => "connected",
            Event::Disconnected { .. } => "disconnected",
            Event::Resync { .. } => "resync",
            _ => "other",
        };
        *self.events_seen.entry(kind).or_default() += 1;
        match event {
            Event::Replaced { replica, changes } => {
                self.model.apply(&changes);
                self.model.assert_matches(&replica);
                self.check(&replica);
                for (number, told) in std::mem::take(&mut self.unknown) {
                    if has(&replica, number) {
                        self.counts.unknown_committed += 1;
                        self.counts.came_late += u64::from(told);
                        self.acknowledged.insert(number);
                    } else {
                        self.unknown.insert(number, true);
                    }
                }
                // By name: the counter alone might hide one lost behind one late.
                let lost: Vec<u64> =
                    self.acknowledged.iter().copied().filter(|&n| !has(&replica, n)).collect();
                self.lost(&lost, "a load");
                self.replica = Some(replica);
            }
            Event::Updated { replica, changes } => {
                self.model.apply(&changes);
                self.check(&replica);
                for change in changes.iter().filter(|c| &*c.table == "Address_Set") {
                    let row = change.new.as_ref().expect("nobody deletes from the ledger");
                    let number = row.str("name").unwrap()[1..].parse().unwrap();
                    if let Some(told) = self.unknown.remove(&number) {
                        self.counts.unknown_committed += 1;
                        self.counts.came_late += u64::from(told);
                        self.acknowledged.insert(number);
                    }
                }
                self.replica = Some(replica);
            }
            Event::Reply { tag, result } => self.reply(tag, result.map(drop)),
            Event::Connected { .. } | Event::Disconnected { .. } | Event::Resync { .. } => {}
            _ => {}
        }
    }

    fn reply(&mut self, number: u64, result: Result<(), TransactError>) {
        assert!(self.in_flight.remove(&number), "answer to {number}, which waits for none");
        match result {
            Ok(()) => {
                // Its own update came before: the ledger has it already.
                let replica = self.replica.as_ref().expect("a reply before any content");
                assert!(self.may_lag || has(replica, number), "{number} acknowledged but not visible");
                self.counts.committed += 1;
                self.acknowledged.insert(number);
            }
            Err(error) if error.kind == TransactErrorKind::Disconnected || may_have_happened(&error) => {
                self.counts.unknown += 1;
                // Its update may have come without its answer.
                match self.replica.as_ref().is_some_and(|r| has(r, number)) {
                    true => {
                        self.counts.unknown_committed += 1;
                        self.acknowledged.insert(number);
                    }
                    false => {
                        self.unknown.insert(number, false);
                    }
                }
            }
            Err(error) => {
                let refused = matches!(
                    error.kind,
                    TransactErrorKind::Constraint
                        | TransactErrorKind::Referential
                        | TransactErrorKind::DuplicateUuid
                        | TransactErrorKind::DuplicateUuidName
                        | TransactErrorKind::Domain
                        | TransactErrorKind::Range
                        | TransactErrorKind::Syntax
                        | TransactErrorKind::WaitTimedOut
                        | TransactErrorKind::Other(_)
                );
                assert!(refused, "{number}: {error}");
                self.counts.refused += 1;
            }
        }
    }

    /// What holds in every replica that is ever shown.
    fn check(&mut self, replica: &Replica) {
        self.counts.replicas += 1;
        let rows = replica.table("Address_Set").unwrap().len();
        let counter = counter(replica).unwrap_or(0);
        assert_eq!(i64::try_from(rows).unwrap(), counter, "a partial replica, or something applied twice");
        if rows < self.acknowledged.len() {
            self.lost(&[], "an update");
        }
    }

    fn lost(&mut self, numbers: &[u64], how: &str) {
        if numbers.is_empty() && how != "an update" {
            return;
        }
        assert!(self.may_lag, "acknowledged writes are missing after {how}: {numbers:?}");
        self.counts.stale += 1;
    }

    /// Waits until the replica equals what a server has, and all that was
    /// acknowledged is there.
    pub async fn settle(&mut self, mut dump: impl FnMut() -> Option<Replica>) {
        let begin = Instant::now();
        loop {
            self.drain();
            let real = tokio::task::block_in_place(&mut dump);
            self.counts.dumps += 1;
            self.drain();
            if let (Some(real), Some(replica)) = (&real, &self.replica)
                && followed_differences(replica, real) == 0
                && self.session.state().synced
            {
                let missing: Vec<_> = self.acknowledged.iter().filter(|&&n| !has(replica, n)).collect();
                assert!(missing.is_empty(), "acknowledged writes are lost: {missing:?}");
                return;
            }
            if begin.elapsed() > PATIENCE {
                let differences = real.zip(self.replica.clone()).map(|(a, b)| b.changes_since(&a));
                let state = self.session.state();
                panic!("replica and server stay different: {state:?}\n{differences:#?}");
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// One transaction, then a comparison with what the server has: equal at once,
    /// since nobody else writes.
    pub async fn step(&mut self, load: &mut Load, dump: impl FnOnce() -> Option<Replica>) {
        let connections = self.session.state().connections;
        self.submit(load.transaction());
        self.answers().await;
        let real = tokio::task::block_in_place(dump);
        self.counts.dumps += 1;
        let state = self.session.state();
        let same_connection = state.synced && state.connections == connections;
        if let (Some(real), true, true) = (real, same_connection, self.unknown.is_empty()) {
            let differences = self.replica.as_ref().unwrap().changes_since(&real);
            assert!(differences.is_empty(), "{differences:#?}");
        }
    }

    pub fn summary(&self, what: &str) {
        let state = self.session.state();
        println!(
            "{what}: {:?}; reconnects {}, resumes {}, full loads {}, resyncs {}; events {:?}",
            self.counts,
            state.connections.saturating_sub(1),
            state.resumes,
            state.loads,
            state.resyncs,
            self.events_seen,
        );
    }
}

/// Rows that differ in the tables that the replica has.
fn followed_differences(replica: &Replica, real: &Replica) -> usize {
    replica.changes_since(real).iter().filter(|c| replica.table(&c.table).is_some()).count()
}

/// Errors by which a member says that it does not know, no longer leads, or is about
/// to exit (it may have handed the transaction to the others before).
fn may_have_happened(error: &TransactError) -> bool {
    error.retryable() || error.kind == TransactErrorKind::Canceled
}

fn counter(replica: &Replica) -> Option<i64> {
    replica.table("NB_Global")?.rows().next()?.i64("nb_cfg")
}

/// What the leader has.
pub fn leader_dump(cluster: &mut Cluster) -> Option<Replica> {
    let leader = cluster.leader()?;
    cluster.dump(leader).ok()
}

/// What a standalone server has.
pub fn server_dump(server: &Server) -> Option<Replica> {
    server.dump(DATABASE).ok()
}
