//! Loading and following: from the greeting to the synced state and back.

use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::{Failure, MAX_PATIENCE, NO_TRANSACTION, Pending, Phase, Protocol, RESYNC_INTERVAL};
use crate::replica::{Replica, RowChange};
use crate::schema::Schema;
use crate::session::{Event, Options, handshake, wire};

impl Protocol<'_> {
    /// Goes on when both server status and schema are known.
    pub(super) fn greeted(&mut self, now: Instant) -> Result<(), Failure> {
        self.check_status()?;
        let (Phase::Greeting, true, Some(schema)) = (self.phase, self.status_known, self.schema.clone())
        else {
            return Ok(());
        };
        let empty = Replica::new(schema.clone(), &self.options.tables, &self.options.indexes);
        self.events.push(Event::Connected {
            endpoint: self.endpoint.clone(),
            schema: schema.clone(),
            missing: missing(self.options, &schema),
        });
        self.announced = true;
        // Differences only make sense to what has the same columns.
        if !self.content.replica.as_ref().is_some_and(|r| r.same_layout(&empty)) {
            self.content.last_transaction = None;
        }
        self.current = Some(empty);
        self.load(now, true);
        Ok(())
    }

    fn check_status(&self) -> Result<(), Failure> {
        match &self.status {
            Some(status) => status.accept(&self.options.database, self.options.leader_only),
            None => Ok(()),
        }
    }

    /// Asks for the content: with the newest kind of monitor, or an older one.
    pub(super) fn load(&mut self, now: Instant, since: bool) {
        self.phase = Phase::Loading;
        self.load_began = now;
        self.content.monitors += 1;
        let monitor = self.content.monitors;
        let Some(current) = &self.current else { return };
        let mut tables = serde_json::Map::new();
        for table in current.tables().filter(|t| !t.layout().columns().is_empty()) {
            let columns: Vec<&str> = table.layout().columns().iter().map(|(name, _)| &**name).collect();
            tables.insert(table.name().to_string(), json!([{"columns": columns}]));
        }
        if tables.is_empty() {
            self.synced(now, Vec::new());
            return;
        }
        let mut params = json!([self.options.database, self.monitor_id(), tables]);
        let method = if since { "monitor_cond_since" } else { "monitor_cond" };
        if since && let Some(params) = params.as_array_mut() {
            params.push(self.content.last_transaction.as_deref().unwrap_or(NO_TRANSACTION).into());
        }
        let bound = self.options.request_timeout * 2u32.pow(self.content.load_timeouts);
        let id = self.register(Pending::Load { monitor, since }, method, Some(now + bound));
        wire::write_request(&mut self.out, id, method, params);
    }

    fn monitor_id(&self) -> serde_json::Value {
        json!([self.options.client_name, self.content.monitors])
    }

    /// The reply to the monitor request came.
    pub(super) fn loaded(&mut self, now: Instant, since: bool, json: &str) -> Result<(), Failure> {
        let bad = |e: &dyn std::fmt::Display| format!("initial content: {e}");
        let (found, last, updates): (bool, String, &RawValue) = if since {
            serde_json::from_str(json).map_err(|e| bad(&e))?
        } else {
            (false, NO_TRANSACTION.into(), serde_json::from_str(json).map_err(|e| bad(&e))?)
        };
        let Some(mut replica) = self.current.take() else { return Err("content without a schema".into()) };
        // Kept until the new content is complete, so that the next attempt has
        // something to compare with if this one fails.
        let before = self.content.replica.clone();
        if let (true, Some(before)) = (found, &before) {
            replica = before.with_schema(replica.schema().clone());
        }
        let applied = replica.apply_updates(updates.get(), &mut self.content.interner);
        let mut changes = applied.map_err(|e| bad(&e))?;
        if let (false, Some(before)) = (found, before) {
            changes = replica.changes_since(&before);
        }
        self.content.last_transaction = Some(last);
        self.content.load_timeouts = 0;
        self.patience = ((now - self.load_began) * 2).min(MAX_PATIENCE);
        self.current = Some(replica);
        self.synced(now, changes);
        Ok(())
    }

    fn synced(&mut self, now: Instant, changes: Vec<RowChange>) {
        self.phase = Phase::Synced;
        self.synced_at.get_or_insert(now);
        if let Some(replica) = &self.current {
            self.content.replica = Some(replica.clone());
            self.events.push(Event::Replaced { replica: replica.clone(), changes });
        }
        for event in self.held.drain(..) {
            self.events.push(event);
        }
    }

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
                let (id, last, updates): (serde_json::Value, String, &RawValue) =
                    serde_json::from_str(text).map_err(unreadable)?;
                self.update(now, &id, Some(last), updates.get())
            }
            "update2" => {
                let (id, updates): (serde_json::Value, &RawValue) =
                    serde_json::from_str(text).map_err(unreadable)?;
                if id != handshake::MONITOR_ID {
                    return self.update(now, &id, None, updates.get());
                }
                if let Some(status) = &mut self.status {
                    status.update(updates.get())?;
                }
                if self.status_known { self.check_status() } else { Ok(()) }
            }
            // The database's schema was converted: begin anew with the new one.
            "monitor_canceled" => {
                let (id,): (serde_json::Value,) = serde_json::from_str(text).map_err(unreadable)?;
                if id == self.monitor_id() && self.phase != Phase::Greeting {
                    self.events.push(Event::Resync { reason: "the database's schema changed".into() });
                    self.phase = Phase::Greeting;
                    self.schema = None;
                    self.content.last_transaction = None;
                    self.content.monitors += 1;
                    self.call(now, Pending::GetSchema, "get_schema", json!([self.options.database]));
                }
                Ok(())
            }
            // Lock notifications and whatever else: nothing was asked for.
            _ => Ok(()),
        }
    }

    fn update(
        &mut self,
        now: Instant,
        id: &serde_json::Value,
        last: Option<String>,
        updates: &str,
    ) -> Result<(), Failure> {
        // Updates of a monitor that a resync gave up still come for a while.
        if self.phase != Phase::Synced || *id != self.monitor_id() {
            return Ok(());
        }
        let Some(mut replica) = self.current.take() else { return Ok(()) };
        match replica.apply_updates(updates, &mut self.content.interner) {
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
        self.call(now, Pending::Ignored, "monitor_cancel", json!([self.monitor_id()]));
        if let Some(schema) = self.schema.clone() {
            self.current = Some(Replica::new(schema, &self.options.tables, &self.options.indexes));
        }
        self.load(now, true);
        Ok(())
    }
}

/// Wanted columns that a schema lacks.
fn missing(options: &Options, schema: &Schema) -> Vec<(String, String)> {
    let mut missing = Vec::new();
    for (table, columns) in &options.tables {
        if columns.is_empty() && !schema.tables.contains_key(table) {
            missing.push((table.clone(), String::new()));
        }
        for column in columns {
            if schema.column(table, column).is_none() {
                missing.push((table.clone(), column.clone()));
            }
        }
    }
    missing
}
