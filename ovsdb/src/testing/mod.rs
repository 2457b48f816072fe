//! Help for the tests of crates that use OVSDB.
//!
//! - [`Database`]: an in-memory database with real constraint checking, cheap to
//!   clone, without any I/O: for simulators and golden tests.
//! - [`SchemaBuilder`] and [`northbound`]: schemas for it.
//! - [`MemoryServer`]: serves such a database over the real protocol, with faults on
//!   demand: for tests of whatever has an OVSDB client in it.
//! - [`real`]: starts a real ovsdb-server on a temporary socket, or a cluster.

mod builder;
mod clause;
mod commit;
mod database;
mod evaluate;
mod northbound;
pub mod real;
mod server;

pub use builder::{
    ColumnBuilder, SchemaBuilder, TableBuilder, boolean, integer, real_number, reference, string, uuid, weak,
};
pub use database::Database;
pub use northbound::northbound;
pub use server::{Fault, MemoryServer, MemoryServerBuilder, Model, Pace, Traffic};
