//! Which server to accept: what its `_Server` database says about ours.
//!
//! A server can be alive and yet the wrong one: not the leader, cut off from its
//! cluster, or without the database. It tells by its `_Server.Database` table,
//! which is monitored as long as the connection lasts. (Its column `index` is not:
//! it changes with every commit.)

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::json;

/// Parameters of the monitor of `_Server`.
pub(super) fn monitor_params() -> serde_json::Value {
    json!(["_Server", MONITOR_ID, {"Database": [{"columns": ["name", "model", "connected", "leader"]}]}])
}

/// Id of that monitor.
pub(super) const MONITOR_ID: &str = "weir-server";

/// `_Server.Database`, by row.
#[derive(Default)]
pub(super) struct ServerStatus {
    databases: BTreeMap<String, DatabaseRow>,
}

#[derive(Clone, Default)]
struct DatabaseRow {
    name: String,
    clustered: bool,
    connected: bool,
    leader: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Columns {
    name: Option<String>,
    model: Option<String>,
    connected: Option<bool>,
    leader: Option<bool>,
}

#[derive(Deserialize)]
struct Updates {
    #[serde(rename = "Database", default)]
    /// Kind of update (`initial`, …) and columns, by row.
    database: BTreeMap<String, BTreeMap<String, Option<Columns>>>,
}

impl ServerStatus {
    /// Takes in an update of the monitor.
    pub(super) fn update(&mut self, json: &str) -> Result<(), String> {
        let updates: Updates = serde_json::from_str(json).map_err(|e| format!("_Server: {e}"))?;
        for (uuid, update) in updates.database {
            for (kind, columns) in update {
                let columns = columns.unwrap_or_default();
                // Columns with their default value are left out.
                let base = if kind == "modify" { self.databases.remove(&uuid) } else { None };
                if kind == "delete" {
                    self.databases.remove(&uuid);
                } else {
                    self.databases.insert(uuid.clone(), base.unwrap_or_default().with(columns));
                }
            }
        }
        Ok(())
    }

    /// Whether the server may be used for a database; if not, why.
    pub(super) fn accept(&self, database: &str, leader_only: bool) -> Result<(), String> {
        let row = self.databases.values().find(|row| row.name == database);
        match row {
            None => Err(format!("the server has no database {database}")),
            Some(row) if row.clustered && !row.connected => {
                Err("the server is disconnected from its cluster".into())
            }
            Some(row) if leader_only && row.clustered && !row.leader => {
                Err("the server is not the leader of its cluster".into())
            }
            Some(_) => Ok(()),
        }
    }
}

impl DatabaseRow {
    fn with(mut self, columns: Columns) -> Self {
        if let Some(name) = columns.name {
            self.name = name;
        }
        if let Some(model) = columns.model {
            self.clustered = model == "clustered";
        }
        if let Some(connected) = columns.connected {
            self.connected = connected;
        }
        if let Some(leader) = columns.leader {
            self.leader = leader;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_leadership() {
        let mut status = ServerStatus::default();
        assert!(status.accept("D", false).is_err());
        status
            .update(r#"{"Database":{"a":{"initial":{"name":"D","model":"clustered","connected":true}},"b":{"initial":{"name":"_Server","model":"standalone","connected":true,"leader":true}}}}"#)
            .unwrap();
        assert!(status.accept("D", false).is_ok());
        assert!(status.accept("D", true).unwrap_err().contains("leader"));
        status.update(r#"{"Database":{"a":{"modify":{"leader":true}}}}"#).unwrap();
        assert!(status.accept("D", true).is_ok());
        status.update(r#"{"Database":{"a":{"modify":{"connected":false}}}}"#).unwrap();
        assert!(status.accept("D", false).unwrap_err().contains("cluster"));
        status.update(r#"{"Database":{"a":{"delete":null}}}"#).unwrap();
        assert!(status.accept("D", false).unwrap_err().contains("no database"));
        // A standalone server leads whatever it says.
        status.update(r#"{"Database":{"c":{"insert":{"name":"D","model":"standalone"}}}}"#).unwrap();
        assert!(status.accept("D", true).is_ok());
    }
}
