//! Loading: from the greeting to the synced state.

use serde_json::value::RawValue;
use tokio::time::Instant;

use super::{Failure, MAX_PATIENCE, MonitorKind, NO_TRANSACTION, Pending, Phase, Protocol};
use crate::error::CallError;
use crate::replica::{Replica, RowChange};
use crate::session::Event;
use crate::session::command::Changed;
use crate::session::wanted::Wanted;
use crate::session::wire::{self, RpcError};

/// What an initial load brought: whether it continues from the transaction asked for,
/// the transaction it is as of, and the rows.
type Loaded<'a> = (bool, String, &'a RawValue);

impl Protocol<'_> {
    /// Goes on when both server status and schema are known.
    pub(super) fn greeted(&mut self, now: Instant) -> Result<(), Failure> {
        self.check_status()?;
        let (Phase::Greeting, true, Some(schema)) = (self.phase, self.status_known, self.schema.clone())
        else {
            return Ok(());
        };
        while let Some(request) = self.content.changes.pop_front() {
            if let Some(problem) = request.change.unfit(&schema) {
                // Whoever asked may have gone away.
                let _ = request.respond.send(Err(CallError::Unfit(problem)));
                continue;
            }
            self.content.wanted = self.content.wanted.changed(request.change);
            self.content.changing.push(request.respond);
        }
        for problem in self.content.wanted.unfit(&schema) {
            tracing::warn!(endpoint = %self.endpoint, problem, "a filter is ignored: all rows are followed");
        }
        let empty = self.options.replica(schema.clone(), &self.content.wanted.tables);
        self.events.push(Event::Connected {
            endpoint: self.endpoint.clone(),
            schema: schema.clone(),
            missing: self.content.wanted.missing(&schema),
        });
        self.announced = true;
        if let Some(before) = self.content.schema.replace(schema.clone())
            && *before != *schema
        {
            self.events.push(Event::SchemaChanged {
                present: self.content.wanted.gained(&before, &schema),
                absent: self.content.wanted.gained(&schema, &before),
                schema: schema.clone(),
            });
        }
        let locks = self.content.locks.connect();
        self.send_lock_calls(now, locks);
        // Differences only make sense to what has the same columns and rows.
        let same = self.content.replica.as_ref().is_some_and(|r| r.same_layout(&empty));
        if !same || self.content.loaded.as_ref() != Some(&self.content.wanted) {
            self.content.last_transaction = None;
        }
        self.load(now, empty);
        Ok(())
    }

    pub(super) fn check_status(&self) -> Result<(), Failure> {
        match &self.status {
            Some(status) => status.accept(&self.options.database, self.options.leader_only),
            None => Ok(()),
        }
    }

    /// Asks for the content.
    pub(super) fn load(&mut self, now: Instant, empty: Replica) {
        self.phase = Phase::Loading;
        self.load_began = now;
        let monitor = self.next_monitor();
        self.set_monitor(monitor);
        let wanted = self.content.wanted.clone();
        let since = self.content.last_transaction.clone();
        let asked = self.monitor(now, self.monitor, &wanted, &empty, since);
        self.current = Some(empty);
        if !asked {
            self.synced(now, Vec::new());
        }
    }

    /// The monitor to follow from now on.
    pub(super) fn set_monitor(&mut self, monitor: u64) {
        self.monitor = monitor;
        self.monitor_text = self.monitor_id(monitor).to_string();
    }

    pub(super) fn next_monitor(&mut self) -> u64 {
        self.content.monitors += 1;
        self.content.monitors
    }

    /// Sends a monitor request for what a replica holds; `false` if that is nothing.
    pub(super) fn monitor(
        &mut self,
        now: Instant,
        monitor: u64,
        wanted: &Wanted,
        replica: &Replica,
        since: Option<String>,
    ) -> bool {
        let kind = self.kind;
        let tables = wanted.requests(replica, kind != MonitorKind::Plain);
        if tables.is_empty() {
            return false;
        }
        let mut params = serde_json::json!([self.options.database, self.monitor_id(monitor), tables]);
        if let (MonitorKind::Since, Some(params)) = (kind, params.as_array_mut()) {
            params.push(since.unwrap_or_else(|| NO_TRANSACTION.into()).into());
        }
        let bound = self.options.request_timeout * 2u32.pow(self.content.load_timeouts);
        let id = self.register(Pending::Load { monitor, kind }, kind.method(), Some(now + bound));
        wire::write_request(&mut self.out, id, kind.method(), params);
        true
    }

    pub(super) fn monitor_id(&self, monitor: u64) -> serde_json::Value {
        serde_json::json!([self.options.client_name, monitor])
    }

    /// A monitor request was answered.
    pub(super) fn load_answered(
        &mut self,
        now: Instant,
        monitor: u64,
        kind: MonitorKind,
        result: Result<Option<&RawValue>, RpcError>,
    ) -> Result<(), Failure> {
        let switching = self.switch.as_ref().is_some_and(|s| s.monitor == monitor);
        // A resync or a change of schema gave it up.
        if !switching && (monitor != self.monitor || self.phase != Phase::Loading) {
            return Ok(());
        }
        let json = match (result, kind.older()) {
            (Ok(Some(json)), _) => json.get(),
            (Ok(None), _) => return Err("no content in the reply to monitor".into()),
            (Err(error), Some(older)) if error.name() == "unknown method" => {
                self.kind = older;
                return self.ask_again(now, switching);
            }
            (Err(error), _) => return Err(format!("monitor: {} {}", error.name(), error.details())),
        };
        let bad = |e: serde_json::Error| format!("initial content: {e}");
        let loaded: Loaded<'_> = match kind {
            MonitorKind::Since => serde_json::from_str(json).map_err(bad)?,
            _ => (false, NO_TRANSACTION.into(), serde_json::from_str(json).map_err(bad)?),
        };
        if switching { self.switched(now, kind, &loaded) } else { self.loaded(now, kind, loaded) }
    }

    /// The server knows no such monitor: ask for an older kind.
    fn ask_again(&mut self, now: Instant, switching: bool) -> Result<(), Failure> {
        if switching {
            if let Some(switch) = self.switch.take() {
                self.monitor(now, switch.monitor, &switch.wanted, &switch.empty, None);
                self.switch = Some(switch);
            }
            return Ok(());
        }
        let Some(empty) = self.current.take() else { return Err("content without a schema".into()) };
        self.load(now, empty);
        Ok(())
    }

    /// Fills a replica with an initial content.
    pub(super) fn fill(
        &mut self,
        replica: &mut Replica,
        kind: MonitorKind,
        rows: &RawValue,
    ) -> Result<Vec<RowChange>, Failure> {
        let interner = &mut self.content.interner;
        let applied = match kind {
            MonitorKind::Plain => replica.apply_plain_updates(rows.get(), interner),
            _ => replica.apply_updates(rows.get(), interner),
        };
        applied.map_err(|e| format!("initial content: {e}"))
    }

    fn loaded(&mut self, now: Instant, kind: MonitorKind, loaded: Loaded<'_>) -> Result<(), Failure> {
        let (found, last, rows) = loaded;
        let Some(mut replica) = self.current.take() else { return Err("content without a schema".into()) };
        // Kept until the new content is complete, so that the next attempt has
        // something to compare with if this one fails.
        let before = self.content.replica.clone();
        if let (true, Some(before)) = (found, &before) {
            replica = before.with_schema(replica.schema().clone());
        }
        let mut changes = self.fill(&mut replica, kind, rows)?;
        if let (false, Some(before)) = (found, before) {
            changes = replica.changes_since(&before);
        }
        self.content.last_transaction = Some(last);
        self.content.load_timeouts = 0;
        if found {
            self.content.resumes += 1;
        } else {
            self.content.loads += 1;
        }
        self.patience = ((now - self.load_began) * 2).min(MAX_PATIENCE);
        self.current = Some(replica);
        self.synced(now, changes);
        Ok(())
    }

    fn synced(&mut self, now: Instant, changes: Vec<RowChange>) {
        self.phase = Phase::Synced;
        self.synced_at.get_or_insert(now);
        self.content.loaded = Some(self.content.wanted.clone());
        if let Some(replica) = &self.current {
            self.content.replica = Some(replica.clone());
            self.events.push(Event::Replaced { replica: replica.clone(), changes });
        }
        for (event, slot) in self.held.drain(..) {
            self.events.push_reply(event, slot);
        }
        let changed = self.changed();
        for waiter in self.content.changing.drain(..) {
            // Whoever asked may have gone away.
            let _ = waiter.send(Ok(changed.clone()));
        }
        self.begin_changes(now);
    }

    /// What to tell those who changed what is followed, now that it is.
    pub(super) fn changed(&self) -> Changed {
        let missing = self.schema.as_ref().map(|schema| self.content.wanted.missing(schema));
        Changed { position: self.events.newest(), missing: missing.unwrap_or_default() }
    }
}
