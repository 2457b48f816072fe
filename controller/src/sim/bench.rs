//! Controllers, database and API server on one bench, and the scheduler that lets
//! them make steps in an order drawn from a seed.

mod cluster;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ovsdb::testing::{Database, northbound};
use ovsdb::{Operation, Replica, RowChange, TransactError, TransactErrorKind};

use super::api::{Change, EPOCH_S, decode};
use super::{Api, Rng};
use crate::core::Core;
use crate::facts::{EventFact, Kind, ObjectRef};
use crate::io::{Input, KubeWrite, Output};
use crate::world::NEEDED;
pub(crate) use cluster::{config, pod};

/// One controller process.
pub(crate) struct Process {
    pub(crate) core: Core,
    /// Suspended (SIGSTOP): nothing is delivered to it, nothing it asked for is done.
    pub(crate) paused: bool,
    cursors: BTreeMap<Kind, usize>,
    connected: bool,
    seen: Option<Replica>,
    /// What the database session will deliver, in order.
    session: VecDeque<Input>,
    requests: VecDeque<(u64, Vec<Operation>)>,
    writes: Vec<(u64, KubeWrite)>,
    answers: Vec<Input>,
    wake: Option<u64>,
    /// A list that is asked for.
    refresh: Option<(Kind, u64)>,
    /// Kinds whose watch lags: it delivers nothing.
    pub(crate) lagging: BTreeSet<Kind>,
    pub(crate) fenced: bool,
    pub(crate) transactions: Vec<Vec<Operation>>,
    pub(crate) events: Vec<EventFact>,
}

/// How much goes wrong, in percent of steps.
#[derive(Clone, Copy, Default)]
pub(crate) struct Faults {
    /// A request is lost with its connection, before or after it was carried out.
    pub(crate) lost: usize,
    /// A watch starts over with a list.
    pub(crate) relist: usize,
    /// A Kubernetes write fails.
    pub(crate) write: usize,
}

/// The bench.
pub(crate) struct Bench {
    pub(crate) api: Api,
    pub(crate) db: Database,
    pub(crate) processes: Vec<Process>,
    pub(crate) rng: Rng,
    pub(crate) now_ms: u64,
    pub(crate) faults: Faults,
    /// After so many inputs everything that is kept step by step is compared with
    /// the same made anew.
    pub(crate) verify_every: u64,
    inputs: u64,
    epochs: u64,
}

#[derive(Clone, Copy)]
enum Step {
    Watch(usize, Kind),
    Refresh(usize),
    Session(usize),
    Request(usize),
    Write(usize, usize),
    Answer(usize, usize),
}

impl Bench {
    /// An empty cluster and no controller.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            api: Api::new(),
            db: Database::new(northbound()),
            processes: Vec::new(),
            rng: Rng::new(seed),
            now_ms: 0,
            faults: Faults::default(),
            verify_every: 23,
            inputs: 0,
            epochs: 0,
        }
    }

    /// Starts a controller process.
    pub(crate) fn start(&mut self) -> usize {
        self.start_with(Core::new(config(), crate::compile::compile))
    }

    pub(crate) fn start_with(&mut self, core: Core) -> usize {
        let mut process = Process {
            core,
            paused: false,
            cursors: BTreeMap::new(),
            connected: false,
            seen: None,
            session: VecDeque::new(),
            requests: VecDeque::new(),
            writes: Vec::new(),
            answers: Vec::new(),
            wake: None,
            refresh: None,
            lagging: BTreeSet::new(),
            fenced: false,
            transactions: Vec::new(),
            events: Vec::new(),
        };
        connect(&mut process, &self.db);
        self.processes.push(process);
        self.processes.len() - 1
    }

    /// The process is the leader from now on.
    pub(crate) fn elect(&mut self, process: usize) {
        // Who leads again has noticed that it did not.
        self.input(process, Input::Deposed);
        self.epochs += 1;
        let epoch: Arc<str> = format!("epoch-{}", self.epochs).into();
        self.input(process, Input::Elected { epoch });
    }

    pub(crate) fn core(&self) -> &Core {
        &self.processes.last().unwrap().core
    }

    pub(crate) fn unix_s(&self) -> i64 {
        EPOCH_S + i64::try_from(self.now_ms / 1000).unwrap()
    }

    pub(crate) fn input(&mut self, process: usize, input: Input) {
        let (now_ms, unix_s) = (self.now_ms, self.unix_s());
        self.api.now_s = unix_s;
        if matches!(input, Input::Deposed) {
            // The writer drops what it has; some of it was on the wire already.
            for (_, write) in std::mem::take(&mut self.processes[process].writes) {
                if self.rng.chance(50) {
                    let _ = self.api.write(&write);
                }
            }
            self.processes[process].answers.clear();
        }
        self.inputs += 1;
        let verify = self.inputs.is_multiple_of(self.verify_every);
        let process = &mut self.processes[process];
        process.wake = None;
        let said = verify.then(|| format!("{input:?}"));
        for output in process.core.handle(now_ms, unix_s, input) {
            match output {
                Output::Transact { tag, operations } => process.requests.push_back((tag, operations)),
                Output::Kube { id, write } => process.writes.push((id, write)),
                Output::Event(event) => {
                    // A table test over everything that any simulation ever says.
                    let listed = [crate::events::CONTRACT_REASONS, crate::events::OWN_REASONS].concat();
                    assert!(listed.contains(&&*event.reason), "{} is in no list of reasons", event.reason);
                    process.events.push(event);
                }
                Output::WakeAt(at) => process.wake = Some(at),
                Output::Refresh(kind, number) => process.refresh = Some((kind, number)),
                Output::Fenced => process.fenced = true,
            }
        }
        if let Some(said) = said {
            let found = process.core.verify();
            assert_eq!(found.first, Vec::<String>::new(), "after {said}");
        }
        // One write per object in flight, a bounded number in all.
        let objects: BTreeSet<_> = process.writes.iter().map(|(_, write)| target(write)).collect();
        assert_eq!(objects.len(), process.writes.len());
        assert!(process.writes.len() + process.answers.len() <= 64);
    }

    /// Everybody else's transaction.
    pub(crate) fn transact(&mut self, operations: &[Operation]) {
        let changes = self.db.must(operations);
        self.broadcast(&changes);
    }

    fn broadcast(&mut self, changes: &[RowChange]) {
        if changes.is_empty() {
            return;
        }
        let replica = self.db.replica();
        for process in self.processes.iter_mut().filter(|p| p.connected) {
            process.seen = Some(replica.clone());
            let changes = changes.to_vec();
            process.session.push_back(Input::NbChanged { replica: replica.clone(), changes });
        }
    }

    /// The connection of a process breaks and is made again.
    pub(crate) fn disconnect(&mut self, index: usize) {
        let process = &mut self.processes[index];
        for (tag, _) in std::mem::take(&mut process.requests) {
            let error = TransactError::new(TransactErrorKind::Disconnected, "connection reset");
            process.session.push_back(Input::NbReply { tag, result: Err(error) });
        }
        process.session.push_back(Input::NbLost);
        connect(process, &self.db);
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (index, process) in self.processes.iter().enumerate().filter(|(_, p)| !p.paused) {
            for kind in NEEDED.into_iter().filter(|kind| !process.lagging.contains(kind)) {
                let log = self.api.log.get(&kind).map_or(0, Vec::len);
                if process.cursors.get(&kind).is_none_or(|at| *at < log) {
                    steps.push(Step::Watch(index, kind));
                }
            }
            if process.refresh.is_some() {
                steps.push(Step::Refresh(index));
            }
            if !process.session.is_empty() {
                steps.push(Step::Session(index));
            }
            if !process.requests.is_empty() {
                steps.push(Step::Request(index));
            }
            steps.extend((0..process.writes.len()).map(|at| Step::Write(index, at)));
            steps.extend((0..process.answers.len()).map(|at| Step::Answer(index, at)));
        }
        steps
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Watch(index, kind) => self.watch(index, kind),
            Step::Refresh(index) => self.refresh(index),
            Step::Session(index) => {
                let input = self.processes[index].session.pop_front().unwrap();
                self.input(index, input);
            }
            Step::Request(index) => self.request(index),
            Step::Write(index, at) => {
                let (id, write) = self.processes[index].writes.remove(at);
                let result = if self.rng.chance(self.faults.write) {
                    // Half of them were carried out all the same.
                    if self.rng.chance(50) {
                        let _ = self.api.write(&write);
                    }
                    Err(crate::io::KubeError::Retry("timeout".into()))
                } else {
                    self.api.write(&write)
                };
                self.processes[index].answers.push(Input::KubeReply { id, result });
            }
            Step::Answer(index, at) => {
                let input = self.processes[index].answers.remove(at);
                self.input(index, input);
            }
        }
    }

    /// A watch delivers its next event, or lists.
    pub(crate) fn watch(&mut self, index: usize, kind: Kind) {
        let relist = self.rng.chance(self.faults.relist);
        let log = self.api.log.get(&kind).map_or(&[][..], Vec::as_slice);
        let process = &mut self.processes[index];
        let input = match process.cursors.get(&kind).copied() {
            Some(at) if !relist => {
                process.cursors.insert(kind, at + 1);
                match &log[at] {
                    Change::Applied(text) => Input::Applied(decode(kind, text)),
                    Change::Deleted(object) => Input::Deleted(object.clone()),
                }
            }
            _ => {
                process.cursors.insert(kind, log.len());
                Input::Listed(kind, self.api.list(kind))
            }
        };
        self.input(index, input);
    }

    /// All that a process asks to write goes on the wire, and arrives when its caller says.
    pub(crate) fn take_writes(&mut self, index: usize) -> Vec<KubeWrite> {
        std::mem::take(&mut self.processes[index].writes).into_iter().map(|(_, write)| write).collect()
    }

    fn refresh(&mut self, index: usize) {
        let Some((kind, number)) = self.processes[index].refresh.take() else { return };
        self.processes[index].cursors.remove(&kind);
        self.watch(index, kind);
        self.input(index, Input::Fresh(kind, number));
    }

    fn request(&mut self, index: usize) {
        let (tag, operations) = self.processes[index].requests.pop_front().unwrap();
        if self.rng.chance(self.faults.lost) {
            if self.rng.chance(50) {
                self.processes[index].transactions.push(operations.clone());
                let (_, changes) = self.db.execute(&operations);
                // Its own session breaks before the update comes through.
                self.processes[index].connected = false;
                self.broadcast(&changes);
            }
            let error = TransactError::new(TransactErrorKind::Disconnected, "connection reset");
            self.processes[index].session.push_back(Input::NbReply { tag, result: Err(error) });
            return self.disconnect(index);
        }
        self.processes[index].transactions.push(operations.clone());
        let (result, changes) = self.db.execute(&operations);
        self.broadcast(&changes);
        self.processes[index].session.push_back(Input::NbReply { tag, result });
    }

    /// One step, drawn from the seed. `false` when there is nothing to do but wait.
    pub(crate) fn step(&mut self) -> bool {
        let steps = self.steps();
        if steps.is_empty() {
            return false;
        }
        let step = steps[self.rng.below(steps.len())];
        if self.rng.chance(10) {
            self.now_ms += 1 + self.rng.next() % 20;
        }
        self.take(step);
        true
    }

    /// Lets everything happen until nothing is left, time included.
    pub(crate) fn settle(&mut self) {
        for _ in 0..2_000_000 {
            if self.step() {
                continue;
            }
            let wake = self.processes.iter().filter(|p| !p.paused).filter_map(|p| p.wake).min();
            // What is tried again every quarter of an hour is tried for ever.
            let soon = wake.filter(|at| *at < self.now_ms + 15 * 60_000);
            let Some(at) = soon else { return self.verify() };
            self.now_ms = self.now_ms.max(at);
            for index in 0..self.processes.len() {
                let process = &self.processes[index];
                if !process.paused && process.wake.is_some_and(|wake| wake <= self.now_ms) {
                    self.input(index, Input::Tick);
                }
            }
        }
        panic!("does not settle: {}", self.core().status());
    }

    /// What is kept step by step equals what follows from nothing.
    pub(crate) fn verify(&self) {
        for process in self.processes.iter().filter(|process| !process.paused) {
            assert_eq!(process.core.verify().first, Vec::<String>::new());
        }
    }

    /// Lets time pass, with everything that happens meanwhile.
    pub(crate) fn pass(&mut self, ms: u64) {
        let end = self.now_ms + ms;
        self.settle();
        self.now_ms = self.now_ms.max(end);
        for index in 0..self.processes.len() {
            if !self.processes[index].paused {
                self.input(index, Input::Tick);
            }
        }
        self.settle();
    }

    /// Lets that much time pass, and no more than what is due by then happen.
    pub(crate) fn later(&mut self, ms: u64) {
        self.now_ms += ms;
        for index in 0..self.processes.len() {
            if !self.processes[index].paused {
                self.input(index, Input::Tick);
            }
        }
        while self.step() {}
    }

    /// Transactions of a process that are more than the epoch token.
    pub(crate) fn writes_of(&self, index: usize) -> usize {
        let fences = |ops: &Vec<Operation>| matches!(ops.first(), Some(Operation::Wait { .. }));
        let epoch = |ops: &Vec<Operation>| format!("{ops:?}").matches("weir-epoch").count() >= 2;
        self.processes[index].transactions.iter().filter(|ops| fences(ops) && !epoch(ops)).count()
    }
}

fn target(write: &KubeWrite) -> &ObjectRef {
    match write {
        KubeWrite::Create { object, .. }
        | KubeWrite::Patch { object, .. }
        | KubeWrite::Delete { object, .. } => object,
    }
}

fn connect(process: &mut Process, db: &Database) {
    let replica = db.replica();
    let empty = Database::new(northbound()).replica();
    let changes = replica.changes_since(process.seen.as_ref().unwrap_or(&empty));
    process.connected = true;
    process.seen = Some(replica.clone());
    process.session.push_back(Input::NbLoaded { replica, changes, schema: db.schema().clone() });
}
