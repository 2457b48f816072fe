//! Requests: transactions and their cancellation, calls, locks.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::{Pending, Phase, Protocol, Waiting};
use crate::error::{CallError, OperationResult, TransactError};
use crate::op::Operation;
use crate::session::Event;
use crate::session::command::{Call, Committed, Request, Requester, Target};
use crate::session::locks::{LockCall, LockState};
use crate::session::wire::{self, RpcError};

impl Protocol<'_> {
    pub(super) fn register(&mut self, what: Pending, method: &'static str, deadline: Option<Instant>) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.next_deadline = self.next_deadline.into_iter().chain(deadline).min();
        self.waiting.insert(id, Waiting { what, method, deadline });
        id
    }

    pub(super) fn call(
        &mut self,
        now: Instant,
        what: Pending,
        method: &'static str,
        params: serde_json::Value,
    ) {
        let id = self.register(what, method, Some(now + self.options.request_timeout));
        wire::write_request(&mut self.out, id, method, params);
    }

    /// Sends a transaction. Only when synced.
    pub(in crate::session) fn transact(&mut self, now: Instant, mut request: Request) {
        let operations = std::mem::take(&mut request.operations);
        let longest_wait = operations.iter().map(wait_of).max().unwrap_or_default();
        let selects = if operations.iter().any(|o| matches!(o, Operation::Select { .. })) {
            operations.iter().map(|o| o.table().cloned()).collect()
        } else {
            Vec::new()
        };
        let id = self.next_id;
        let before = self.out.len();
        wire::write_transact(&mut self.out, id, &self.options.database, &operations);
        let bytes = (self.out.len() - before) as u64;
        self.bytes_in_flight += bytes;
        let count = operations.len();
        let deadline = now + self.options.request_timeout.max(self.patience) + longest_wait;
        self.register(Pending::Transact { request, selects, count, bytes }, "transact", Some(deadline));
    }

    /// Asks the server to give up a transaction (RFC 7047 §4.1.4). Its outcome comes
    /// as that of the transaction, which may have been faster.
    pub(in crate::session) fn cancel(&mut self, target: Target) {
        let meant = |w: &Waiting| matches!(&w.what, Pending::Transact { request, .. } if request.is(target));
        let ids: Vec<u64> = self.waiting.iter().filter(|(_, w)| meant(w)).map(|(id, _)| *id).collect();
        for id in ids {
            wire::write_notification(&mut self.out, "cancel", json!([id]));
        }
    }

    pub(super) fn answer(&mut self, request: Request, result: Result<Vec<OperationResult>, TransactError>) {
        match request.requester {
            Requester::Call(sender) => {
                let position = self.events.newest();
                // Whoever asked may have gone away.
                drop(sender.send(result.map(|results| Committed { results, position })));
            }
            Requester::Tag(tag) => {
                let event = Event::Reply { tag, result };
                if self.phase == Phase::Synced {
                    self.events.push_reply(event, request.slot);
                } else {
                    self.held.push((event, request.slot));
                }
            }
        }
    }

    /// Sends a call that only reads.
    pub(in crate::session) fn ask(&mut self, now: Instant, call: Call) {
        let (method, params) = (call.method, call.params.clone());
        self.call(now, Pending::Call(call), method, params);
    }

    pub(super) fn called(&mut self, call: Call, result: Result<Option<&RawValue>, RpcError>) {
        let method = call.method;
        let answer = match result {
            Ok(Some(json)) => Ok(json.to_owned()),
            Ok(None) => Err(CallError::Unreadable { method, problem: "no result".into() }),
            Err(error) => {
                Err(CallError::Refused { method, error: error.name().into(), details: error.details() })
            }
        };
        // Whoever asked may have gone away.
        let _ = call.respond.send(answer);
    }

    /// A lock is wanted.
    pub(in crate::session) fn lock(&mut self, now: Instant, name: Arc<str>, steal: bool) {
        let calls = self.content.locks.want(name, steal);
        self.send_lock_calls(now, calls);
    }

    /// A lock is no longer wanted.
    pub(in crate::session) fn unlock(&mut self, now: Instant, name: Arc<str>) {
        let (call, was_wanted) = self.content.locks.give_back(&name);
        self.send_lock_calls(now, call.into_iter().collect());
        if was_wanted {
            self.events.push(Event::Lock { name, state: LockState::Released });
        }
    }

    pub(super) fn send_lock_calls(&mut self, now: Instant, calls: Vec<LockCall>) {
        for call in calls {
            let (method, name) = match call {
                LockCall::Lock(name) => ("lock", name),
                LockCall::Steal(name) => ("steal", name),
                LockCall::Unlock(name) => {
                    self.call(now, Pending::Unlock(name.clone()), "unlock", json!([name]));
                    continue;
                }
            };
            self.call(now, Pending::Lock(name.clone()), method, json!([name]));
        }
    }

    pub(super) fn lock_answered(&mut self, name: &Arc<str>, result: Result<Option<&RawValue>, RpcError>) {
        #[derive(serde::Deserialize)]
        struct Answer {
            locked: bool,
        }
        let locked = match result {
            Ok(json) => serde_json::from_str::<Answer>(json.map_or("null", RawValue::get))
                .map(|answer| answer.locked)
                .map_err(|e| format!("unreadable answer: {e}")),
            Err(error) => Err(format!("{} {}", error.name(), error.details())),
        };
        if let Some(state) = self.content.locks.answered(name, locked) {
            self.events.push(Event::Lock { name: name.clone(), state });
        }
    }

    /// `locked` or `stolen` came.
    pub(super) fn lock_notified(&mut self, method: &str, params: &str) -> Result<(), String> {
        let (name,): (String,) = serde_json::from_str(params).map_err(|e| format!("{method}: {e}"))?;
        if let Some((name, state)) = self.content.locks.notified(&name, method == "locked") {
            self.events.push(Event::Lock { name, state });
        }
        Ok(())
    }

    pub(super) fn locks_lost(&mut self) {
        for name in self.content.locks.disconnect() {
            self.events.push(Event::Lock { name, state: LockState::Lost });
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
