//! What waits for a connection: transactions and calls, each with a deadline.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::Event;
use super::command::{Call, Request, Requester, Target, cancelled_unsent, not_connected};
use super::queue::Producer;
use crate::error::CallError;

/// Requests without a connection to serve them.
#[derive(Default)]
pub(super) struct Parked {
    /// With the end of their patience, the earliest first.
    transactions: VecDeque<(Instant, Request)>,
    calls: VecDeque<Call>,
}

impl Parked {
    /// A transaction while there is no synced connection: calls wait for one, submits
    /// are answered at once, since their sender learns of connections by events.
    pub(super) fn transaction(&mut self, events: &Producer, patience: Duration, request: Request) {
        match request.requester {
            Requester::Call(_) => self.transactions.push_back((Instant::now() + patience, request)),
            Requester::Tag(tag) => {
                events.push_reply(Event::Reply { tag, result: Err(not_connected()) }, request.slot);
            }
        }
    }

    /// A call that waits for the next connection.
    pub(super) fn call(&mut self, call: Call) {
        self.calls.push_back(call);
    }

    /// Cancels what has not been sent.
    pub(super) fn cancel(&mut self, target: Target) {
        if let Some(at) = self.transactions.iter().position(|(_, request)| request.is(target)) {
            answer(self.transactions.remove(at), cancelled_unsent());
        }
    }

    /// When the next patience ends.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let transaction = self.transactions.front().map(|(deadline, _)| *deadline);
        transaction.into_iter().chain(self.calls.iter().map(|c| c.deadline)).min()
    }

    /// Gives up what waited too long.
    pub(super) fn expire(&mut self, now: Instant) {
        while self.transactions.front().is_some_and(|(deadline, _)| *deadline <= now) {
            answer(self.transactions.pop_front(), not_connected());
        }
        let (due, rest): (Vec<Call>, Vec<Call>) = self.calls.drain(..).partition(|c| c.deadline <= now);
        self.calls.extend(rest);
        for call in due {
            let error = CallError::TimedOut { method: call.method };
            // Whoever asked may have gone away.
            let _ = call.respond.send(Err(error));
        }
    }

    /// Everything that a connection may now serve.
    pub(super) fn take_transactions(&mut self) -> VecDeque<(Instant, Request)> {
        std::mem::take(&mut self.transactions)
    }

    /// Calls that a connection may now serve.
    pub(super) fn take_calls(&mut self) -> VecDeque<Call> {
        std::mem::take(&mut self.calls)
    }

    /// Whether transactions wait.
    pub(super) fn has_transactions(&self) -> bool {
        !self.transactions.is_empty()
    }
}

fn answer(parked: Option<(Instant, Request)>, error: crate::error::TransactError) {
    if let Some((_, Request { requester: Requester::Call(sender), .. })) = parked {
        drop(sender.send(Err(error)));
    }
}
