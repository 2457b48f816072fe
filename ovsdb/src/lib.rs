//! An OVSDB client with a live replica, and the control-socket protocol of OVS
//! and OVN daemons.

pub mod collections;
pub mod delta;
pub mod endpoint;
pub mod error;
pub mod framer;
pub mod notation;
pub mod op;
pub mod replica;
pub mod schema;
pub mod session;
mod sorted;
pub mod testing;
pub mod typed;
pub mod unixctl;
pub mod value;

pub use endpoint::{Endpoint, EndpointError};
pub use error::{OperationResult, TransactError, TransactErrorKind};
pub use op::{Condition, Function, Mutation, Mutator, Operation, RowValues};
pub use replica::{Replica, Row, RowChange, Table};
pub use schema::{BaseType, ColumnSchema, ColumnType, Schema, TableSchema};
pub use session::{Event, EventStream, Options, Session, SessionState};
pub use uuid::Uuid;
pub use value::{Atom, AtomMap, AtomSet, OrderedReal, Value};
