//! The methods of the protocol (RFC 7047 §4.1 and ovsdb-server(7)).

use serde_json::{Value as Json, json};
use tokio::time::{Duration, Instant};
use uuid::Uuid;

use super::core::{Answer, Blocked, Core, SERVER};
use super::members::{is_id, syntax};
use super::monitor::{Monitor, Notation};
use super::parse::{Reader, Step, Symbols, error_json};
use super::schema;
use crate::error::{OperationResult, TransactError, TransactErrorKind};
use crate::op::Operation;
use crate::schema::Schema;
use crate::testing::evaluate::other;

type Handled = Result<Json, TransactError>;

/// How an attempt to run a transaction ended.
enum Ran {
    Done(Json),
    /// Not before something changes, or this instant.
    Blocked(Option<Instant>),
}

impl Core {
    pub(super) fn handle(
        &mut self,
        number: u64,
        method: &str,
        id: &Json,
        params: &Json,
        now: Instant,
    ) -> Answer {
        let Some(connection) = self.connections.get(&number) else { return Answer::None };
        let member = connection.member;
        let handled = match method {
            "echo" => Ok(params.clone()),
            "list_dbs" => {
                let names = self.databases.keys().map(String::as_str).chain([SERVER]);
                Ok(json!(names.collect::<Vec<_>>()))
            }
            "get_schema" => self.get_schema(member, params),
            "get_server_id" => Ok(json!(self.members.get(member).map(|m| m.sid.to_string()))),
            "set_db_change_aware" => self.set_aware(number, params),
            "transact" => return self.transact(number, id, params, now),
            "cancel" => return self.cancel(number, params),
            "monitor" => self.monitor(number, Notation::Update, params),
            "monitor_cond" => self.monitor(number, Notation::Update2, params),
            "monitor_cond_since" => self.monitor(number, Notation::Update3, params),
            "monitor_cond_change" => self.monitor_cond_change(number, params),
            "monitor_cancel" if params.as_array().is_none_or(|p| p.len() != 1) => {
                return Answer::Error(json!("invalid parameters"));
            }
            "monitor_cancel" => match self.monitor_cancel(number, params) {
                true => Ok(json!({})),
                false => return Answer::Error(json!("unknown monitor")),
            },
            "lock" => self.lock(number, member, params, false),
            "steal" => self.lock(number, member, params, true),
            "unlock" => self.unlock(number, member, params),
            "convert" => self.convert_request(member, params),
            _ => return Answer::Error(json!("unknown method")),
        };
        match handled {
            Ok(result) => Answer::Result(result),
            Err(error) => Answer::Error(error_json(&error)),
        }
    }

    /// The database that parameters begin with.
    fn named<'a>(&mut self, member: usize, params: &'a Json) -> Result<&'a str, TransactError> {
        let name = params.get(0).and_then(Json::as_str);
        let name = name.ok_or_else(|| syntax("request params must begin with <db-name>"))?;
        match self.hosted(member, name) {
            Some(_) => Ok(name),
            None => Err(other("unknown database", format!("request specifies unknown database {name}"))),
        }
    }

    fn get_schema(&mut self, member: usize, params: &Json) -> Handled {
        let name = self.named(member, params)?;
        let hosted = self.hosted(member, name);
        Ok(hosted.map_or(Json::Null, |h| schema::to_json(h.database.schema())))
    }

    fn set_aware(&mut self, number: u64, params: &Json) -> Handled {
        let aware = params.get(0).and_then(Json::as_bool);
        let aware = aware.ok_or_else(|| syntax("set_db_change_aware: true or false parameter expected"))?;
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.aware = aware;
        }
        Ok(json!({}))
    }

    fn transact(&mut self, number: u64, id: &Json, params: &Json, now: Instant) -> Answer {
        match self.run(number, params, now, now) {
            Err(error) => Answer::Error(error_json(&error)),
            Ok(Ran::Done(result)) => Answer::Result(result),
            Ok(Ran::Blocked(until)) => {
                let (id, params) = (id.clone(), params.clone());
                self.blocked.push(Blocked { connection: number, id, params, began: now, until });
                Answer::None
            }
        }
    }

    /// Tries the transactions that wait, until none can go on.
    pub(super) fn retry(&mut self, now: Instant) {
        let mut progress = true;
        while progress {
            progress = false;
            for mut blocked in std::mem::take(&mut self.blocked) {
                let answer = match self.run(blocked.connection, &blocked.params, blocked.began, now) {
                    Ok(Ran::Blocked(until)) => {
                        blocked.until = until;
                        self.blocked.push(blocked);
                        continue;
                    }
                    Ok(Ran::Done(result)) => Answer::Result(result),
                    Err(error) => Answer::Error(error_json(&error)),
                };
                self.reply(blocked.connection, &blocked.id, answer);
                progress = true;
            }
        }
    }

    fn run(
        &mut self,
        number: u64,
        params: &Json,
        began: Instant,
        now: Instant,
    ) -> Result<Ran, TransactError> {
        let member = self.connections.get(&number).map_or(0, |c| c.member);
        let name = self.named(member, params)?.to_owned();
        // A member that lost its cluster cannot say what became of a transaction.
        if name != SERVER && self.members.get(member).is_some_and(|m| !m.connected) {
            return Ok(Ran::Blocked(None));
        }
        let steps = params.as_array().map(Vec::as_slice).unwrap_or_default();
        let steps = steps.get(1..).unwrap_or_default();
        let Some(hosted) = self.hosted(member, &name) else { return Ok(Ran::Done(json!([]))) };
        let mut transaction = hosted.database.begin();
        let mut symbols = Symbols::default();
        let mut results = Vec::with_capacity(steps.len());
        for json in steps {
            let is_free = |table: &str, uuid| transaction.is_free(table, uuid);
            let mut reader =
                Reader { symbols: &mut symbols, replica: transaction.replica(), is_free: &is_free };
            let result = match reader.step(json) {
                Ok(Step::Commit) => Ok(json!({})),
                Ok(Step::Abort) => Err(other("aborted", "aborted by request")),
                Ok(Step::Run(Operation::Assert(lock))) => match self.owns(member, &lock, number) {
                    true => Ok(json!({})),
                    false => Err(TransactError::new(
                        TransactErrorKind::NotOwner,
                        format!("Asserted lock {lock} not held."),
                    )),
                },
                Ok(Step::Run(operation)) if name == SERVER && writes(&operation) => {
                    Err(other("not allowed", "the database is read only"))
                }
                Ok(Step::Run(operation)) => {
                    let result = transaction.operation(&operation).map(|r| result_json(&operation, r));
                    match (&result, &operation) {
                        (Err(error), Operation::Wait { timeout, .. })
                            if error.kind == TransactErrorKind::WaitTimedOut =>
                        {
                            let until = timeout.map(|t| began + Duration::from_millis(t));
                            if until.is_none_or(|until| until > now) {
                                return Ok(Ran::Blocked(until));
                            }
                        }
                        _ => {}
                    }
                    result
                }
                Err(error) => Err(error),
            };
            match result {
                Ok(result) => results.push(result),
                Err(error) => {
                    results.push(error_json(&error));
                    results.resize(steps.len(), Json::Null);
                    return Ok(Ran::Done(Json::Array(results)));
                }
            }
        }
        if name == SERVER {
            return Ok(Ran::Done(Json::Array(results)));
        }
        let finished = self.hosted(member, &name).map(|hosted| hosted.database.finish(transaction));
        match finished {
            Some(Ok(changes)) => self.committed(&name, &changes),
            Some(Err(error)) => results.push(error_json(&error)),
            None => {}
        }
        Ok(Ran::Done(Json::Array(results)))
    }

    fn cancel(&mut self, number: u64, params: &Json) -> Answer {
        let wanted = params.get(0).cloned().unwrap_or_default();
        let at = self.blocked.iter().position(|b| b.connection == number && b.id == wanted);
        if let Some(at) = at {
            // RFC 7047 §4.1.4 promises a reply with the error "canceled". ovsdb-server (3.5)
            // drops the transaction and answers nothing, and so do we.
            self.blocked.remove(at);
        }
        Answer::None
    }

    fn monitor(&mut self, number: u64, notation: Notation, params: &Json) -> Handled {
        let member = self.connections.get(&number).map_or(0, |c| c.member);
        let name = self.named(member, params)?;
        let id = params.get(1).cloned().unwrap_or_default();
        let last = match (notation, params.get(3).and_then(Json::as_str)) {
            (Notation::Update3, Some(text)) => {
                Some(Uuid::try_parse(text).map_err(|_| syntax("invalid parameters"))?)
            }
            (Notation::Update3, None) => return Err(syntax("invalid parameters")),
            _ => None,
        };
        let requests = params.get(2).unwrap_or(&Json::Null);
        if self.connections.get(&number).is_some_and(|c| c.monitors.iter().any(|m| m.id == id)) {
            return Err(syntax("duplicate monitor ID"));
        }
        let Some(hosted) = self.hosted(member, name) else { return Ok(Json::Null) };
        let replica = hosted.database.replica();
        let monitor = Monitor::new(id, name, notation, requests, &replica)?;
        let since = last.and_then(|last| hosted.since(last));
        let content = match &since {
            Some(changes) => monitor.changes(changes).unwrap_or_else(|| json!({})),
            None => monitor.initial(&replica),
        };
        let result = match notation {
            Notation::Update3 => json!([since.is_some(), hosted.last.to_string(), content]),
            _ => content,
        };
        match since {
            Some(_) => self.traffic.resumes += 1,
            None if name != SERVER => self.traffic.loads += 1,
            None => {}
        }
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.monitors.push(monitor);
        }
        Ok(result)
    }

    fn monitor_cond_change(&mut self, number: u64, params: &Json) -> Handled {
        let [old, new, requests] = params.as_array().map(Vec::as_slice).unwrap_or_default() else {
            return Err(syntax("invalid parameters"));
        };
        let unknown = || syntax("unknown monitor session");
        let connection = self.connections.get(&number).ok_or_else(unknown)?;
        let found = connection.monitors.iter().find(|m| m.id == *old && m.notation != Notation::Update);
        let (member, name) = (connection.member, found.ok_or_else(unknown)?.database.clone());
        if new != old && connection.monitors.iter().any(|m| m.id == *new) {
            return Err(syntax("duplicate monitor ID"));
        }
        let hosted = self.hosted(member, &name).ok_or_else(unknown)?;
        let (replica, last) = (hosted.database.replica(), hosted.last.to_string());
        let connection = self.connections.get_mut(&number).ok_or_else(unknown)?;
        let at = connection.monitors.iter().position(|m| m.id == *old).ok_or_else(unknown)?;
        let monitor = connection.monitors.get_mut(at).ok_or_else(unknown)?;
        let update = monitor.change_conditions(requests, &replica)?;
        // What comes into sight by it is told under the new id, before the reply.
        monitor.id = new.clone();
        let update = update.map(|update| monitor.notification(&last, &update));
        if let Some(update) = update {
            connection.send(&update);
        }
        Ok(json!({}))
    }

    fn monitor_cancel(&mut self, number: u64, params: &Json) -> bool {
        let id = params.get(0).cloned().unwrap_or_default();
        let Some(connection) = self.connections.get_mut(&number) else { return false };
        let before = connection.monitors.len();
        connection.monitors.retain(|m| m.id != id);
        connection.monitors.len() < before
    }

    fn lock_name(params: &Json, what: &str) -> Result<String, TransactError> {
        let name = params.get(0).and_then(Json::as_str).filter(|name| is_id(name));
        name.map(str::to_owned).ok_or_else(|| syntax(format!("{what} request params must be <id>")))
    }

    fn lock(&mut self, number: u64, member: usize, params: &Json, steal: bool) -> Handled {
        let name = Self::lock_name(params, if steal { "steal" } else { "lock" })?;
        let Some(held) = self.members.get_mut(member) else { return Ok(Json::Null) };
        let lock = held.locks.entry(name.clone()).or_default();
        if lock.queue.iter().any(|(n, _)| *n == number) || lock.robbed.contains(&number) {
            return Err(syntax("must issue \"unlock\" before new \"lock\""));
        }
        let owner = lock.queue.front().copied().filter(|_| steal);
        if let Some((robbed, true)) = owner {
            // Who stole it loses it for good; who asked for it waits behind the thief.
            lock.queue.pop_front();
            lock.robbed.insert(robbed);
        }
        match steal {
            true => lock.queue.push_front((number, true)),
            false => lock.queue.push_back((number, false)),
        }
        let mine = lock.queue.len() == 1 || steal;
        if let Some((robbed, _)) = owner {
            self.notify(robbed, "stolen", &name);
        }
        Ok(json!({"locked": mine}))
    }

    fn unlock(&mut self, number: u64, member: usize, params: &Json) -> Handled {
        let name = Self::lock_name(params, "unlock")?;
        match self.release(member, &name, number) {
            true => Ok(json!({})),
            false => Err(syntax("unlock: \"unlock\" without \"lock\" or \"steal\"")),
        }
    }

    fn owns(&self, member: usize, lock: &str, number: u64) -> bool {
        let queue = self.members.get(member).and_then(|m| m.locks.get(lock));
        queue.and_then(|l| l.queue.front()).is_some_and(|(n, _)| *n == number)
    }

    /// Gives a lock, or the wait for it, up; whether there was one.
    pub(super) fn release(&mut self, member: usize, name: &str, number: u64) -> bool {
        let Some(lock) = self.members.get_mut(member).and_then(|m| m.locks.get_mut(name)) else {
            return false;
        };
        if lock.robbed.remove(&number) {
            return true;
        }
        let Some(at) = lock.queue.iter().position(|(n, _)| *n == number) else { return false };
        lock.queue.remove(at);
        // The owner is told even if it was the owner before (measured, 3.5).
        if let Some((next, _)) = lock.queue.front().copied() {
            self.notify(next, "locked", name);
        }
        true
    }

    fn notify(&self, number: u64, method: &str, lock: &str) {
        if let Some(connection) = self.connections.get(&number) {
            connection.send(&json!({"id": null, "method": method, "params": [lock]}));
        }
    }

    fn convert_request(&mut self, member: usize, params: &Json) -> Handled {
        let name = self.named(member, params)?.to_owned();
        let json = params.get(1).unwrap_or(&Json::Null);
        let schema = Schema::parse(json).map_err(|e| syntax(e.to_string()))?;
        self.convert(&name, schema)?;
        Ok(json!({}))
    }

    /// Converts a database: its monitors end, clients that do not expect that are
    /// disconnected, transactions that wait are tried against the new schema.
    pub(super) fn convert(&mut self, name: &str, schema: Schema) -> Result<(), TransactError> {
        let unknown = || other("unknown database", format!("no database {name}"));
        let hosted = self.databases.get_mut(name).ok_or_else(unknown)?;
        if schema.name != name {
            let details = format!("new schema name ({}) does not match database name ({name})", schema.name);
            return Err(other("invalid parameters", details));
        }
        hosted.database = hosted.database.converted(schema)?;
        hosted.forget();
        for connection in self.connections.values_mut() {
            let (ended, kept) =
                std::mem::take(&mut connection.monitors).into_iter().partition(|m| m.database == name);
            connection.monitors = kept;
            let ended: Vec<Monitor> = ended;
            for monitor in &ended {
                connection.send(&json!({"id": null, "method": "monitor_canceled", "params": [monitor.id]}));
            }
            if !connection.aware {
                connection.close();
            }
        }
        self.tell_all();
        Ok(())
    }
}

fn writes(operation: &Operation) -> bool {
    use Operation::{Delete, Insert, Mutate, Update};
    matches!(operation, Insert { .. } | Update { .. } | Mutate { .. } | Delete { .. })
}

fn result_json(operation: &Operation, result: OperationResult) -> Json {
    match operation {
        Operation::Insert { .. } => {
            let uuid = result.uuid.unwrap_or_default().to_string();
            json!({"uuid": ["uuid", uuid]})
        }
        Operation::Select { .. } => json!({"rows": result.rows.unwrap_or_default()}),
        Operation::Update { .. } | Operation::Mutate { .. } | Operation::Delete { .. } => {
            json!({"count": result.count.unwrap_or_default()})
        }
        Operation::Wait { .. }
        | Operation::Comment(_)
        | Operation::Assert(_)
        | Operation::Commit { .. }
        | Operation::Abort => json!({}),
    }
}
