//! Help for the tests of crates that use OVSDB.
//!
//! - [`Database`]: an in-memory database with real constraint checking, cheap to
//!   clone, without any I/O: for simulators and golden tests.
//! - [`SchemaBuilder`] and [`northbound`]: schemas for it.
//! - [`real`]: starts a real ovsdb-server on a temporary socket.

mod builder;
mod commit;
mod database;
mod evaluate;
mod northbound;
pub mod real;

pub use builder::{
    ColumnBuilder, SchemaBuilder, TableBuilder, boolean, integer, real_number, reference, string, weak,
};
pub use database::Database;
pub use northbound::northbound;
