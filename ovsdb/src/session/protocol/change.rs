//! Changes of what is followed, on a live connection.
//!
//! A change of rows only is a `monitor_cond_change`: the server sends the difference as
//! an update, then answers. Other columns or tables need another monitor: it is loaded
//! beside the old one, which goes on until the new one is complete; the difference is
//! told at once, and the old one cancelled. Neither disturbs transactions in flight.

use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::{ChangeWaiter, Failure, MonitorKind, Pending, Phase, Protocol, Switch};
use crate::error::CallError;
use crate::replica::Replica;
use crate::session::Event;
use crate::session::command::ChangeRequest;
use crate::session::wanted::Wanted;
use crate::session::wire::RpcError;

impl Protocol<'_> {
    /// What is followed is to change.
    pub(in crate::session) fn change(&mut self, now: Instant, request: ChangeRequest) {
        self.content.changes.push_back(request);
        self.begin_changes(now);
    }

    /// Begins the next change, if none is under way.
    pub(super) fn begin_changes(&mut self, now: Instant) {
        while self.phase == Phase::Synced && self.switch.is_none() && !self.changing_conditions {
            let Some(request) = self.content.changes.pop_front() else { return };
            self.begin_change(now, request);
        }
    }

    fn begin_change(&mut self, now: Instant, request: ChangeRequest) {
        let (Some(schema), Some(current)) = (self.schema.clone(), self.current.clone()) else {
            self.content.changing.push(request.respond);
            return;
        };
        if let Some(problem) = request.change.unfit(&schema) {
            // Whoever asked may have gone away.
            let _ = request.respond.send(Err(CallError::Unfit(problem)));
            return;
        }
        let wanted = self.content.wanted.changed(request.change);
        let empty = self.options.replica(schema, &wanted.tables);
        if empty.same_layout(&current) {
            let changes = self.content.wanted.condition_changes(&wanted, &current);
            if changes.is_empty() || self.kind == MonitorKind::Plain {
                // Servers without conditions send every row anyway.
                self.content.wanted = wanted.clone();
                self.content.loaded = Some(wanted);
                let _ = request.respond.send(Ok(self.changed()));
                return;
            }
            self.content.wanted = wanted.clone();
            self.changing_conditions = true;
            let id = self.monitor_id(self.monitor);
            let pending = Pending::Conditions { waiter: request.respond, wanted };
            self.call(now, pending, "monitor_cond_change", json!([id, id, changes]));
            return;
        }
        let monitor = self.next_monitor();
        let asked = self.monitor(now, monitor, &wanted, &empty, None);
        self.switch = Some(Switch { monitor, empty, wanted, waiter: request.respond });
        if !asked {
            // Nothing is followed any more.
            self.finish_switch(now, None);
        }
    }

    /// `monitor_cond_change` was answered; its update came before.
    pub(super) fn conditions_changed(
        &mut self,
        now: Instant,
        waiter: ChangeWaiter,
        wanted: Wanted,
        result: Result<Option<&RawValue>, RpcError>,
    ) {
        self.changing_conditions = false;
        if self.phase != Phase::Synced {
            // Whatever the old monitor said: the load under way shows it.
            self.content.changing.push(waiter);
            return;
        }
        let answer = match result {
            Ok(_) => {
                self.content.loaded = Some(wanted);
                Ok(self.changed())
            }
            Err(error) => {
                // The monitor goes on as it was.
                if let Some(loaded) = &self.content.loaded {
                    self.content.wanted = loaded.clone();
                }
                let (error, details) = (error.name().into(), error.details());
                Err(CallError::Refused { method: "monitor_cond_change", error, details })
            }
        };
        let _ = waiter.send(answer);
        self.begin_changes(now);
    }

    /// The new monitor's content came.
    pub(super) fn switched(
        &mut self,
        now: Instant,
        kind: MonitorKind,
        loaded: &(bool, String, &RawValue),
    ) -> Result<(), Failure> {
        let Some(switch) = &self.switch else { return Ok(()) };
        let mut replica = switch.empty.clone();
        self.fill(&mut replica, kind, loaded.2)?;
        self.finish_switch(now, Some((replica, loaded.1.clone())));
        Ok(())
    }

    fn finish_switch(&mut self, now: Instant, loaded: Option<(Replica, String)>) {
        let Some(switch) = self.switch.take() else { return };
        let (replica, last) = match loaded {
            Some((replica, last)) => (replica, Some(last)),
            None => (switch.empty, None),
        };
        let followed_before =
            self.current.as_ref().is_some_and(|r| r.tables().any(|t| !t.layout().columns().is_empty()));
        let old = self.monitor;
        self.set_monitor(switch.monitor);
        if followed_before {
            self.cancel_monitor(now, old);
        }
        let changes = self.current.as_ref().map(|before| replica.changes_since(before));
        self.content.wanted = switch.wanted.clone();
        self.content.loaded = Some(switch.wanted);
        self.content.last_transaction = last;
        self.content.replica = Some(replica.clone());
        self.current = Some(replica.clone());
        self.events.push(Event::Replaced { replica, changes: changes.unwrap_or_default() });
        let _ = switch.waiter.send(Ok(self.changed()));
        self.begin_changes(now);
    }

    /// The connection has to load anew: with what was being changed to.
    pub(super) fn abandon_switch(&mut self) {
        if let Some(switch) = self.switch.take() {
            self.content.wanted = switch.wanted;
            self.content.changing.push(switch.waiter);
        }
    }
}
