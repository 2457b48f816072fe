//! What a session is told when it starts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::filter::Filter;
use crate::endpoint::Endpoint;
use crate::replica::Replica;
use crate::schema::Schema;
use crate::tls::TlsFiles;

/// How to connect and what to follow.
#[derive(Clone, Debug)]
pub struct Options {
    /// Servers, tried in turn.
    pub endpoints: Vec<Endpoint>,
    /// Database, for instance `OVN_Northbound`.
    pub database: String,
    /// Wanted columns by table; an empty list wants all. Those the server lacks are
    /// dropped and reported in [`Event::Connected`](super::Event::Connected). Without any table nothing is
    /// monitored and the session only transacts.
    pub tables: BTreeMap<String, Vec<String>>,
    /// Which rows of a table are followed; all, for a table without a filter. One that
    /// the server's schema does not allow is ignored, with a warning in the log.
    pub filters: BTreeMap<String, Filter>,
    /// Indexes (table, columns) beside the schema's own.
    pub indexes: Vec<(String, Vec<String>)>,
    /// Use only the leader of a clustered database: for writers.
    pub leader_only: bool,
    /// A connection without a sign of life for this long is given up; half of it passes
    /// before the server is probed. It is allowed more while the server may be busy:
    /// twice the time of the initial load, and a second for each 512 KiB of
    /// transactions in flight; during a load `request_timeout` decides. A TCP peer
    /// whose kernel does not acknowledge is given up within this interval anyway.
    /// Zero switches probing off.
    pub probe_interval: Duration,
    /// Bound of one attempt to connect.
    pub connect_timeout: Duration,
    /// Bound of every request. The initial load may take a multiple of it when
    /// it timed out before, so that a big database on a slow machine gets loaded.
    pub request_timeout: Duration,
    /// Keeps the indexes that the schema declares, beside those of `indexes`. Who finds rows
    /// by other means saves their memory: about 120 bytes a row and index.
    pub schema_indexes: bool,
    /// Longest pause between rounds over all endpoints.
    pub max_backoff: Duration,
    /// Row changes that may wait for a slow consumer before they collapse.
    pub max_queued_changes: usize,
    /// Names this client in logs and as monitor id.
    pub client_name: String,
    /// Certificates for `ssl:` endpoints.
    pub tls: Option<TlsFiles>,
    /// Makes the jitter of pauses repeatable, for tests.
    pub jitter_seed: Option<u64>,
}

impl Options {
    /// Options with the defaults: any server, probes within 5 s, connects within
    /// 3 s, requests within 10 s.
    pub fn new(endpoints: Vec<Endpoint>, database: impl Into<String>) -> Self {
        Self {
            endpoints,
            database: database.into(),
            tables: BTreeMap::new(),
            filters: BTreeMap::new(),
            indexes: Vec::new(),
            schema_indexes: true,
            leader_only: false,
            probe_interval: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(3),
            request_timeout: Duration::from_secs(10),
            max_backoff: Duration::from_secs(2),
            max_queued_changes: 100_000,
            client_name: "weir".into(),
            tls: None,
            jitter_seed: None,
        }
    }
    /// Adds a table and its wanted columns (none: all).
    pub fn table<'a>(mut self, table: &str, columns: impl IntoIterator<Item = &'a str>) -> Self {
        self.tables.entry(table.into()).or_default().extend(columns.into_iter().map(str::to_owned));
        self
    }
    /// Follows only the rows of a table that a filter lets through.
    pub fn filter(mut self, table: &str, filter: Filter) -> Self {
        self.filters.insert(table.into(), filter);
        self
    }
    /// Uses these files for `ssl:` endpoints.
    pub fn tls(mut self, files: TlsFiles) -> Self {
        self.tls = Some(files);
        self
    }
    /// Declares an index on a column.
    pub fn index(self, table: &str, column: &str) -> Self {
        self.index_on(table, [column])
    }
    /// Declares an index on several columns together, for
    /// [`Table::find_by_all`](crate::Table::find_by_all).
    pub fn index_on<'a>(mut self, table: &str, columns: impl IntoIterator<Item = &'a str>) -> Self {
        self.indexes.push((table.into(), columns.into_iter().map(str::to_owned).collect()));
        self
    }

    /// An empty replica of these tables, with the indexes asked for.
    pub(super) fn replica(&self, schema: Arc<Schema>, tables: &BTreeMap<String, Vec<String>>) -> Replica {
        Replica::with_indexes(schema, tables, &self.indexes, self.schema_indexes)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new(Vec::new(), "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::northbound;

    #[test]
    fn indexes_of_the_schema_may_be_left_out() {
        const PORTS: &str = "Logical_Switch_Port";
        let options = Options::default().table(PORTS, ["name", "type"]).index(PORTS, "type");
        let indexes = |options: &Options| {
            let replica = options.replica(Arc::new(northbound()), &options.tables);
            let layout = replica.table(PORTS).unwrap().layout().clone();
            layout.indexes().map(|columns| columns.join(",")).collect::<Vec<_>>()
        };
        assert_eq!(indexes(&options), ["name", "type"]);
        assert_eq!(indexes(&Options { schema_indexes: false, ..options }), ["type"]);
    }
}
