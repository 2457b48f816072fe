//! The pipeline as one deterministic value: inputs in, outputs out, time as an
//! argument (DESIGN: sans-I/O). `run/` drives it under tokio, `sim/` under a
//! simulator.

use std::collections::BTreeMap;

use crate::facts::{Kind, ObjectRef};
use crate::io::{Config, Input, Output};
use crate::view::Compile;

/// Numbers for metrics and diagnostics, all since the start of the process.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counters {
    /// Units compiled.
    pub compiled: u64,
}

/// The controller without its I/O.
pub struct Core {
    config: Config,
    compile: Compile,
}

impl Core {
    /// A core that knows nothing yet. `compile` is [`crate::compile::compile`] in
    /// production.
    pub fn new(config: Config, compile: Compile) -> Self {
        Self { config, compile }
    }

    /// Takes one input and says what to do. `now_ms` is a monotonic clock in
    /// milliseconds, `unix_s` the wall clock in seconds (grace periods, condition
    /// times).
    pub fn handle(&mut self, now_ms: u64, unix_s: i64, input: Input) -> Vec<Output> {
        let _ = (now_ms, unix_s, input, self.compile);
        Vec::new()
    }

    /// Every needed watch has listed and the database is loaded.
    pub fn ready(&self) -> bool {
        false
    }

    /// Our epoch token is in the database: we write.
    pub fn leading(&self) -> bool {
        false
    }

    /// Numbers for metrics.
    pub fn counters(&self) -> Counters {
        Counters::default()
    }

    /// Per kind: how many objects, and an order-independent checksum of their
    /// identities and resource versions.
    pub fn checksums(&self) -> BTreeMap<Kind, (usize, u64)> {
        BTreeMap::new()
    }

    /// The state of the pipeline for diagnostics.
    pub fn status(&self) -> serde_json::Value {
        serde_json::json!({ "cluster_router": self.config.cluster_router })
    }

    /// The facts about an object and the unit that made each.
    pub fn explain(&self, object: &ObjectRef) -> serde_json::Value {
        serde_json::json!({ "object": object.to_string() })
    }
}
