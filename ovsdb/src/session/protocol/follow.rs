//! Following: updates, and what to do when one does not fit.

use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::{Failure, Pending, Phase, Protocol, RESYNC_INTERVAL};
use crate::replica::Replica;
use crate::session::{Event, handshake};

impl Protocol<'_> {
    pub(super) fn notification(
        &mut self,
        now: Instant,
        method: &str,
        params: Option<&RawValue>,
    ) -> Result<(), Failure> {
        let text = params.map_or("[]", RawValue::get);
        let unreadable = |e: serde_json::Error| format!("{method}: {e}");
        match method {
            "update3" => {
                let (id, last, updates): (&RawValue, String, &RawValue) =
                    serde_json::from_str(text).map_err(unreadable)?;
                self.update(now, id, Some(last), updates.get(), Replica::apply_updates)
            }
            "update2" => {
                let (id, updates): (&RawValue, &RawValue) = serde_json::from_str(text).map_err(unreadable)?;
                if !is_id(id, &handshake::MONITOR_ID.into()) {
                    return self.update(now, id, None, updates.get(), Replica::apply_updates);
                }
                if let Some(status) = &mut self.status {
                    status.update(updates.get())?;
                }
                if self.status_known { self.check_status() } else { Ok(()) }
            }
            "update" => {
                let (id, updates): (&RawValue, &RawValue) = serde_json::from_str(text).map_err(unreadable)?;
                self.update(now, id, None, updates.get(), Replica::apply_plain_updates)
            }
            // The database's schema was converted, or the server is about to exit: begin
            // anew with the schema that it has. The last transaction is not forgotten:
            // another member knows it still, and after a conversion no server does.
            "monitor_canceled" => {
                let (id,): (serde_json::Value,) = serde_json::from_str(text).map_err(unreadable)?;
                if id == self.monitor_id(self.monitor) && self.phase != Phase::Greeting {
                    self.events.push(Event::Resync { reason: "the server ended the monitor".into() });
                    self.abandon_switch();
                    self.phase = Phase::Greeting;
                    self.schema = None;
                    let monitor = self.next_monitor();
                    self.set_monitor(monitor);
                    self.call(now, Pending::GetSchema, "get_schema", json!([self.options.database]));
                }
                Ok(())
            }
            "locked" | "stolen" => self.lock_notified(method, text),
            // Nothing else was asked for.
            _ => Ok(()),
        }
    }

    fn update<E: std::fmt::Display>(
        &mut self,
        now: Instant,
        id: &RawValue,
        last: Option<String>,
        updates: &str,
        apply: impl FnOnce(
            &mut Replica,
            &str,
            &mut crate::notation::Interner,
        ) -> Result<Vec<crate::replica::RowChange>, E>,
    ) -> Result<(), Failure> {
        // Updates of a monitor that was given up still come for a while.
        if self.phase != Phase::Synced || !self.follows(id) {
            return Ok(());
        }
        let Some(mut replica) = self.current.take() else { return Ok(()) };
        match apply(&mut replica, updates, &mut self.content.interner) {
            Ok(changes) => {
                self.content.last_transaction = last;
                self.content.replica = Some(replica.clone());
                self.current = Some(replica.clone());
                if !changes.is_empty() {
                    self.events.push(Event::Updated { replica, changes });
                }
                Ok(())
            }
            Err(error) => self.resync(now, format!("an update does not fit: {error}")),
        }
    }

    /// Whether an update is of the monitor that is followed. As a rule the server repeats
    /// the text of the id, which costs nothing to compare.
    fn follows(&self, id: &RawValue) -> bool {
        id.get() == self.monitor_text || is_id(id, &self.monitor_id(self.monitor))
    }

    /// Loads afresh on the same connection. A second time soon after is a matter
    /// for the back-off between connections.
    fn resync(&mut self, now: Instant, reason: String) -> Result<(), Failure> {
        tracing::warn!(endpoint = %self.endpoint, reason, "loading the database afresh");
        self.content.resyncs += 1;
        self.content.last_transaction = None;
        self.events.push(Event::Resync { reason: reason.clone() });
        if self.last_resync.replace(now).is_some_and(|last| now - last < RESYNC_INTERVAL) {
            self.synced_at = None;
            return Err(reason);
        }
        self.cancel_monitor(now, self.monitor);
        self.abandon_switch();
        let Some(schema) = self.schema.clone() else { return Err(reason) };
        let empty = self.options.replica(schema, &self.content.wanted.tables);
        self.load(now, empty);
        Ok(())
    }

    pub(super) fn cancel_monitor(&mut self, now: Instant, monitor: u64) {
        self.call(now, Pending::Ignored, "monitor_cancel", json!([self.monitor_id(monitor)]));
    }
}

/// Whether a monitor's id is this one, however it is written.
fn is_id(text: &RawValue, id: &serde_json::Value) -> bool {
    serde_json::from_str::<serde_json::Value>(text.get()).is_ok_and(|read| read == *id)
}
