//! The server without I/O: requests and time go in, frames come out.
//!
//! Everything happens under one lock and in one order, as in ovsdb-server's one
//! thread: a transaction's updates are queued for every connection before its reply.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Value as Json, json};
use tokio::sync::mpsc;
use tokio::time::Instant;
use uuid::Uuid;

use super::fault::{Fault, Script};
use super::hosted::{Entry, Hosted, catalogue};
use super::monitor::Monitor;
use super::{Model, Traffic, schema};
use crate::replica::RowChange;
use crate::testing::database::Database;

/// Name of the database in which a server tells about itself.
pub(super) const SERVER: &str = "_Server";

/// What the writer of a connection is to do.
#[derive(Debug)]
pub(super) enum Frame {
    Send(Vec<u8>),
    Close,
}

/// One member of the cluster; a standalone server is the only one.
pub(super) struct Member {
    pub(super) catalogue: Hosted,
    pub(super) sid: Uuid,
    pub(super) connected: bool,
    /// Connections to it fail.
    pub(super) down: bool,
    /// Locks are a member's own: the others know nothing of them.
    pub(super) locks: BTreeMap<String, Lock>,
}

/// One lock.
#[derive(Debug, Default)]
pub(super) struct Lock {
    /// Connections that hold it (the first) or wait for it, and whether they asked by
    /// `steal`.
    pub(super) queue: VecDeque<(u64, bool)>,
    /// Connections that stole it, were robbed themselves and have not unlocked it since.
    pub(super) robbed: BTreeSet<u64>,
}

/// One connection of a client.
pub(super) struct Connection {
    pub(super) member: usize,
    pub(super) aware: bool,
    pub(super) monitors: Vec<Monitor>,
    out: mpsc::UnboundedSender<Frame>,
    /// Nothing is sent any more.
    mute: bool,
    /// Updates are sent twice while a request with that fault is handled.
    twice: bool,
}

impl Connection {
    pub(super) fn send(&self, message: &Json) {
        self.raw(message.to_string().into_bytes());
    }
    fn raw(&self, bytes: Vec<u8>) {
        if !self.mute {
            // A writer that ended has no reader either.
            let _ = self.out.send(Frame::Send(bytes));
        }
    }
    pub(super) fn update(&self, message: &Json) {
        (0..1 + usize::from(self.twice)).for_each(|_| self.send(message));
    }
    pub(super) fn close(&self) {
        let _ = self.out.send(Frame::Close);
    }
}

/// A transaction that waits for something to come true.
pub(super) struct Blocked {
    pub(super) connection: u64,
    pub(super) id: Json,
    pub(super) params: Json,
    pub(super) began: Instant,
    /// When its `wait` fails.
    pub(super) until: Option<Instant>,
}

/// What comes of a request.
pub(super) enum Answer {
    Result(Json),
    Error(Json),
    /// Later, or never.
    None,
}

/// The whole server.
pub(super) struct Core {
    pub(super) model: Model,
    pub(super) leader: usize,
    pub(super) cid: Uuid,
    pub(super) members: Vec<Member>,
    pub(super) databases: BTreeMap<String, Hosted>,
    pub(super) connections: BTreeMap<u64, Connection>,
    pub(super) blocked: Vec<Blocked>,
    pub(super) script: Script,
    pub(super) traffic: Traffic,
    /// Requests are read and thrown away, as by a stopped process.
    pub(super) frozen: bool,
    next_connection: u64,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let databases: Vec<&String> = self.databases.keys().collect();
        f.debug_struct("Core")
            .field("databases", &databases)
            .field("traffic", &self.traffic)
            .finish_non_exhaustive()
    }
}

impl Core {
    pub(super) fn new(databases: Vec<Database>, model: Model, members: usize, history: usize) -> Self {
        let member = |_| Member {
            catalogue: Hosted::new(catalogue(), Model::Standalone, 0),
            sid: Uuid::new_v4(),
            connected: true,
            down: false,
            locks: BTreeMap::new(),
        };
        let hosted = databases.into_iter().map(|d| (d.schema().name.clone(), Hosted::new(d, model, history)));
        let mut core = Self {
            model,
            leader: 0,
            cid: Uuid::new_v4(),
            members: (0..members.max(1)).map(member).collect(),
            databases: hosted.collect(),
            connections: BTreeMap::new(),
            blocked: Vec::new(),
            script: Script::default(),
            traffic: Traffic::default(),
            frozen: false,
            next_connection: 0,
        };
        core.tell_all();
        core
    }

    /// A client connected to a member; its number, or nothing if the member is down.
    pub(super) fn connect(&mut self, member: usize, out: mpsc::UnboundedSender<Frame>) -> Option<u64> {
        self.traffic.attempts += 1;
        if self.members.get(member).is_none_or(|m| m.down) {
            return None;
        }
        self.traffic.connections += 1;
        self.next_connection += 1;
        let connection =
            Connection { member, aware: false, monitors: Vec::new(), out, mute: false, twice: false };
        self.connections.insert(self.next_connection, connection);
        Some(self.next_connection)
    }

    /// A connection is gone.
    pub(super) fn disconnected(&mut self, number: u64) {
        let Some(connection) = self.connections.remove(&number) else { return };
        self.blocked.retain(|b| b.connection != number);
        let names: Vec<String> = self
            .members
            .get(connection.member)
            .map(|m| m.locks.keys().cloned().collect())
            .unwrap_or_default();
        for name in names {
            self.release(connection.member, &name, number);
        }
    }

    /// Drops the connections to a member, or all.
    pub(super) fn disconnect(&mut self, member: Option<usize>) {
        let those: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, c)| member.is_none_or(|m| c.member == m))
            .map(|(number, c)| {
                c.close();
                *number
            })
            .collect();
        those.into_iter().for_each(|number| self.disconnected(number));
    }

    /// A message came in.
    pub(super) fn receive(&mut self, number: u64, text: &[u8], now: Instant) {
        let Ok(message) = serde_json::from_slice::<Json>(text) else { return self.hang_up(number) };
        // Anything without a method is the answer to a probe.
        let Some(method) = message.get("method").and_then(Json::as_str) else { return };
        let (id, params) = (message["id"].clone(), &message["params"]);
        *self.traffic.requests.entry(method.to_owned()).or_default() += 1;
        if self.frozen {
            return;
        }
        let fault = self.script.take(method);
        match &fault {
            Some(Fault::DropBefore) => return self.hang_up(number),
            Some(Fault::Ignore) => return,
            Some(Fault::Refuse(error)) => return self.reply(number, &id, Answer::Error(json!(error))),
            Some(Fault::DropAfter) => self.flags(number, |c| c.mute = true),
            Some(Fault::RepeatUpdate) => self.flags(number, |c| c.twice = true),
            _ => {}
        }
        let answer = self.handle(number, method, &id, params, now);
        self.flags(number, |c| c.twice = false);
        match fault {
            Some(Fault::DropAfter | Fault::DropBeforeReply) => self.hang_up(number),
            Some(Fault::NeverAnswer) => {}
            Some(Fault::Partial(length)) => {
                let mut bytes =
                    answer_json(&id, answer).map(|a| a.to_string().into_bytes()).unwrap_or_default();
                bytes.truncate(length);
                self.flags(number, |c| c.raw(bytes));
                self.hang_up(number);
            }
            Some(Fault::UnknownRow) => {
                self.reply(number, &id, answer);
                self.nonsense();
            }
            Some(Fault::MoveLeader) => {
                self.reply(number, &id, answer);
                self.lead((self.leader + 1) % self.members.len());
            }
            _ => self.reply(number, &id, answer),
        }
        self.retry(now);
    }

    fn flags(&mut self, number: u64, change: impl FnOnce(&mut Connection)) {
        if let Some(connection) = self.connections.get_mut(&number) {
            change(connection);
        }
    }

    pub(super) fn reply(&mut self, number: u64, id: &Json, answer: Answer) {
        // A request without an id is a notification.
        if let (Some(message), false) = (answer_json(id, answer), id.is_null()) {
            self.flags(number, |c| c.send(&message));
        }
    }

    fn hang_up(&mut self, number: u64) {
        self.flags(number, |c| c.close());
        self.disconnected(number);
    }

    /// The database of that name, as a connection to this member sees it.
    pub(super) fn hosted(&mut self, member: usize, name: &str) -> Option<&mut Hosted> {
        if name == SERVER {
            return self.members.get_mut(member).map(|m| &mut m.catalogue);
        }
        self.databases.get_mut(name)
    }

    /// A transaction was committed: everybody who follows it is told.
    pub(super) fn committed(&mut self, name: &str, changes: &[RowChange]) {
        if changes.is_empty() {
            return;
        }
        let Some(hosted) = self.databases.get_mut(name) else { return };
        hosted.committed(changes);
        let last = hosted.last.to_string();
        self.traffic.commits += 1;
        for connection in self.connections.values() {
            broadcast(connection, name, &last, changes);
        }
        if self.model == Model::Clustered {
            self.tell_all();
        }
    }

    /// Sends every monitor an update of a row that never was.
    pub(super) fn nonsense(&mut self) {
        for connection in self.connections.values() {
            for monitor in connection.monitors.iter().filter(|m| m.database != SERVER) {
                if let Some(update) = monitor.nonsense(Uuid::new_v4()) {
                    connection.send(&monitor.notification(&Uuid::new_v4().to_string(), &update));
                }
            }
        }
    }

    /// Makes a member the leader.
    pub(super) fn lead(&mut self, member: usize) {
        self.leader = member.min(self.members.len() - 1);
        self.tell_all();
    }

    /// Brings the catalogue of every member up to date.
    pub(super) fn tell_all(&mut self) {
        let standalone = self.model == Model::Standalone;
        for (index, member) in self.members.iter_mut().enumerate() {
            let mut entries: Vec<Entry<'_>> = self
                .databases
                .iter()
                .map(|(name, hosted)| Entry {
                    name,
                    model: self.model,
                    leader: standalone || (index == self.leader && member.connected),
                    connected: member.connected,
                    schema: schema::to_json(hosted.database.schema()).to_string(),
                    ids: (!standalone).then_some((self.cid, member.sid)),
                    index: hosted.index,
                })
                .collect();
            let own = schema::to_json(member.catalogue.database.schema()).to_string();
            entries.push(Entry {
                name: SERVER,
                model: Model::Standalone,
                leader: true,
                connected: true,
                schema: own,
                ids: None,
                index: 0,
            });
            for entry in entries {
                let operations = entry.write(&member.catalogue.database);
                let (_, changes) = member.catalogue.database.execute(&operations);
                let last = Uuid::nil().to_string();
                for connection in self.connections.values().filter(|c| c.member == index) {
                    broadcast(connection, SERVER, &last, &changes);
                }
            }
        }
    }

    /// When [`Self::expire`] has something to do.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.blocked.iter().filter_map(|b| b.until).min()
    }

    /// Time has come for transactions that wait.
    pub(super) fn expire(&mut self, now: Instant) {
        self.retry(now);
    }
}

fn broadcast(connection: &Connection, database: &str, last: &str, changes: &[RowChange]) {
    for monitor in connection.monitors.iter().filter(|m| m.database == database) {
        if let Some(update) = monitor.changes(changes) {
            connection.update(&monitor.notification(last, &update));
        }
    }
}

fn answer_json(id: &Json, answer: Answer) -> Option<Json> {
    Some(match answer {
        Answer::Result(result) => json!({"id": id, "result": result, "error": null}),
        Answer::Error(error) => json!({"id": id, "result": null, "error": error}),
        Answer::None => return None,
    })
}
