//! An OVSDB client with a live replica, and the control-socket protocol of OVS and
//! OVN daemons. It knows nothing of OVN's or OVS's tables, nor of Kubernetes.
//!
//! Start with the [`guide`]: connect, watch a table, commit, survive a change of leader,
//! each as an example that the tests run.
//!
//! # What there is
//!
//! **Connect.** A [`Session`] is a connection to one database that heals itself:
//! it tries its endpoints in turn, follows the leader of a cluster if asked to,
//! notices dead connections, and catches up after a gap. [`Options`] say what to
//! follow. Columns that the server lacks are reported, not fatal.
//!
//! **Follow.** The [`EventStream`] tells in one order what happened. Contents come as
//! a [`Replica`], a value: cloning takes a snapshot, and keeping snapshots makes
//! nothing slower. Each comes with the [`RowChange`]s that led to it. Rows are found
//! by indexes of one column or several, the schema's own and declared ones.
//!
//! **Commit.** [`Operation`]s, collected in a [`TransactionBuilder`], make a transaction;
//! [`op::check`] finds what a schema forbids before it is sent. [`Session::transact`] waits
//! for the outcome; [`Session::submit`] pipelines, and its [`Event::Reply`] arrives after
//! the changes that it caused. [`TransactError`] names what went wrong, and
//! [`TransactError::retry`] what to do. An outcome that nobody knows is called
//! `Disconnected`: re-read, then decide.
//!
//! **Choose rows.** A [`Filter`] follows part of a table; [`Session::change`] changes
//! filters, columns and tables of a live session without disturbing anything else.
//!
//! **Wait.** [`Session::commit`] tells the [`Position`] of its changes in the event stream;
//! [`Session::wait_visible`] waits until the stream's consumer has dealt with them.
//!
//! **Trust.** `ssl:` endpoints need [`TlsFiles`]: the chain is verified, names as OVS does.
//! Files are read anew for every connection.
//!
//! **Type.** [`table!`] declares structs for the columns that a caller uses,
//! [`enumeration!`] string enumerations that keep what they do not know.
//!
//! **Test.** [`testing::Database`] is an in-memory database that agrees with a real
//! server on results and contents, for simulators; [`testing::real`] starts real ones.
//!
//! **Ask daemons.** [`unixctl`] does what `ovs-appctl` does, without a process, and
//! parses the answers.
//!
//! # Modules
//!
//! Bytes come in through [`framer`], messages through [`session`]; [`delta`] turns
//! updates into changes of a [`replica`], whose [`value`]s are read by [`notation`]
//! as the [`schema`] says. The other way, [`op`] and [`notation`] write. Nothing else
//! knows the protocol.
//!
//! # Cost
//!
//! A port of OVN takes about 1.1 KB (`examples/memory.rs`). An update of one row takes about ten
//! microseconds with 3,000 or 30,000 ports and however many snapshots are held
//! (`examples/measure.rs`): tables are persistent hash tries, and big sets and maps
//! are lists of chunks, of which a change copies one.
//!
//! # Facts about servers
//!
//! - A transaction's own update comes before its reply.
//! - Standalone databases know no transaction ids: after a reconnect everything is
//!   loaded again (and told as one difference). Clustered ones resume.
//! - A weak reference to a row that does not exist vanishes, and the transaction
//!   succeeds. References of a row to its own UUID are not counted.
//! - A default value that violates a constraint fails the insert: rows of tables with
//!   mandatory enumerations must name them.
//! - `insert` into a map leaves keys alone that exist: delete them first.
//! - A transaction can't delete a row and insert one with its UUID; two can.
//! - A lock belongs to one server: clients of two members of a cluster hold "the same"
//!   lock at once. A guard of a cluster's content is a row: write a token into it, and
//!   begin every transaction with a `wait` of no time for that token. It fails at once,
//!   with the whole transaction, for a writer that stalled and was replaced, through
//!   changes of the leader too (`tests/facts.rs`).
//! - The clauses of a monitor's condition are alternatives, those of a `where` are not.
//! - A cancelled transaction of a cluster may have been handed to the others before.
//!   The cancelled request itself gets no reply (ovsdb-server 3.5), against RFC 7047.
//! - In a cluster, a transaction whose outcome is unknown may still be committed after the
//!   content of the next connection was loaded without it (once in 1,737 such outcomes of
//!   200 leader changes): a server that stood still reads the request when it goes
//!   on, and hands it to the new leader. What is repeated must not be able to
//!   happen twice: rows with UUIDs chosen by us, an index, a `wait`.
//! - A server that exits in order cancels all monitors first, as for a new schema.
//! - A leader whose disk is full answers "I/O error" until another is elected, which takes
//!   an election timeout; a follower's full disk is not noticed by clients.
//! - `select` shows rows that look the same in the columns asked for once.
//! - The owner of a lock is told `locked` again whenever anybody behind it goes away. Who is
//!   robbed of a lock waits for it, unless it had stolen it too.
//! - ovsdb-server 3.5.0 is ended by two requests: `*= 0` on a column that holds a negative
//!   integer (SIGFPE), and `monitor` with fewer than three parameters. This crate
//!   sends the first only if told to, the second never.

#![deny(missing_docs)]

pub mod collections;
pub mod delta;
pub mod endpoint;
pub mod error;
pub mod framer;
pub mod guide;
pub mod notation;
pub mod op;
pub mod replica;
pub mod schema;
pub mod session;
mod sorted;
pub mod testing;
pub mod tls;
pub mod typed;
pub mod unixctl;
pub mod value;

pub use endpoint::{Endpoint, EndpointError};
pub use error::{CallError, OperationResult, Retry, TransactError, TransactErrorKind};
pub use op::{Condition, Function, Mutation, Mutator, Operation, RowValues, TransactionBuilder};
pub use replica::{Replica, Row, RowChange, Table};
pub use schema::{BaseType, ColumnSchema, ColumnType, Schema, TableSchema};
pub use session::{
    Change, Changed, Committed, Event, EventStream, Filter, FilterError, LockNameError, LockState, Options,
    Position, Session, SessionState, StreamEnded, Transaction,
};
pub use tls::TlsFiles;
pub use uuid::Uuid;
pub use value::{Atom, AtomMap, AtomSet, OrderedReal, Value};
