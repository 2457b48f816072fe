//! A guide: connect, watch a table, commit, survive a change of leader.
//!
//! Every example here runs in the crate's tests, against real servers that
//! [`testing::real`](crate::testing::real) starts.
//!
//! # Connect
//!
//! A [`Session`] is a connection to one database. [`Session::connect`] never fails and
//! needs no server to be there: it goes on trying. What it found comes as events.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = ovsdb::testing::real::Server::northbound()?;
//! # let address = server.endpoint().to_string();
//! use ovsdb::{Endpoint, Event, Options, Session};
//!
//! // Several servers of a cluster are separated by commas: "tcp:10.0.0.1:6641,tcp:…".
//! let options = Options::new(Endpoint::parse_list(&address)?, "OVN_Northbound")
//!     .table("Logical_Switch", ["name", "ports", "of_tomorrow"]);
//! let (session, mut events) = Session::connect(options);
//!
//! // First it tells which server it found, and what that lacks of what we want.
//! let Some(Event::Connected { schema, missing, .. }) = events.next().await else { panic!() };
//! assert_eq!(schema.name, "OVN_Northbound");
//! assert_eq!(missing, [("Logical_Switch".to_owned(), "of_tomorrow".to_owned())]);
//! // Then it has the content.
//! let Some(Event::Replaced { replica, .. }) = events.next().await else { panic!() };
//! assert!(replica.table("Logical_Switch").unwrap().is_empty());
//! assert!(session.state().synced);
//! # Ok(())
//! # }
//! ```
//!
//! The session lives as long as its handle (or a clone of it). The [`EventStream`] may
//! be dropped by whoever only writes.
//!
//! # Watch a table
//!
//! Content comes as a [`Replica`], a value that never changes under the reader's feet:
//! [`Event::Replaced`] after each load, [`Event::Updated`] for each update. Both carry the
//! [`RowChange`]s since the content before, old row and new row, so that a consumer can
//! do work in proportion to what changed. [`table!`](crate::table!) gives rows a type.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = ovsdb::testing::real::Server::northbound()?;
//! # let endpoint = server.endpoint();
//! use ovsdb::typed::TableRow;
//! use ovsdb::{Event, Operation, Options, Session, Value};
//!
//! ovsdb::table! {
//!     /// What we need to know of a set of addresses.
//!     #[derive(Debug)]
//!     struct AddressSet in "Address_Set" {
//!         name: String,
//!         addresses: std::collections::BTreeSet<String>,
//!     }
//! }
//!
//! let options = Options::new(vec![endpoint], "OVN_Northbound")
//!     .table(AddressSet::TABLE, AddressSet::COLUMNS.iter().copied())
//!     .index("Address_Set", "addresses");
//! let (session, mut events) = Session::connect(options);
//! // Somebody, here ourselves, writes.
//! let set = Operation::insert("Address_Set")
//!     .column("name", "web")
//!     .column("addresses", Value::strings(["10.0.0.1", "10.0.0.2"]));
//! session.transact(vec![set.into()]).await?;
//!
//! while let Some(event) = events.next().await {
//!     let (replica, changes) = match event {
//!         Event::Replaced { replica, changes, .. } | Event::Updated { replica, changes, .. } => (replica, changes),
//!         _ => continue,
//!     };
//!     for change in &changes {
//!         match (&change.old, &change.new) {
//!             (None, Some(row)) => println!("new: {:?}", AddressSet::from_row(row)?),
//!             (Some(_), Some(row)) => println!("changed: {:?}", AddressSet::from_row(row)?),
//!             (Some(row), _) => println!("gone: {}", row.uuid),
//!             (None, None) => {}
//!         }
//!     }
//!     // Rows are found by any column; quickly by those that have an index.
//!     let wanted = Value::strings(["10.0.0.1", "10.0.0.2"]);
//!     let table = replica.table(AddressSet::TABLE).unwrap();
//!     if let Some(row) = table.find_one("addresses", &wanted) {
//!         assert_eq!(AddressSet::from_row(row)?.name, "web");
//!         break;
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Commit
//!
//! [`Operation`]s are built one by one or in a [`TransactionBuilder`], which also takes
//! typed rows and can be checked before anything is sent. [`Session::transact`] waits
//! for the outcome; [`Session::submit`] does not, its outcome is an [`Event::Reply`].
//! What a transaction changed comes before its reply, in the same order of events.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = ovsdb::testing::real::Server::northbound()?;
//! # let options = ovsdb::Options::new(vec![server.endpoint()], "OVN_Northbound");
//! use ovsdb::{Event, Operation, Retry, Session, TransactErrorKind, TransactionBuilder, Value};
//!
//! let (session, mut events) = Session::connect(options);
//! let Some(Event::Connected { schema, .. }) = events.next().await else { panic!() };
//!
//! let mut transaction = TransactionBuilder::new();
//! let port = transaction.insert(Operation::insert("Logical_Switch_Port").column("name", "p"));
//! let ports = Value::uuids([port]);
//! let switch = transaction.insert(Operation::insert("Logical_Switch").column("name", "s").column("ports", ports));
//! transaction.comment("a switch and its port, or neither");
//! transaction.check(&schema)?;
//! session.transact(transaction.build()).await?;
//!
//! // One more port: the set of ports is changed by one element, not written again.
//! let mut transaction = TransactionBuilder::new();
//! let second = transaction.insert(Operation::insert("Logical_Switch_Port").column("name", "q"));
//! let add = Operation::mutate("Logical_Switch").by_uuid(switch).insert_set("ports", Value::uuids([second]));
//! transaction.push(add);
//! session.transact(transaction.build()).await?;
//!
//! // A mistake has a name, a place, and says whether trying again makes sense.
//! let mistake = Operation::insert("ACL").column("direction", "sideways").build();
//! let error = ovsdb::op::check(&[mistake.clone()], &schema).unwrap_err();
//! assert!(error.to_string().starts_with("operation 0: ACL.direction: \"sideways\" is not one of"), "{error}");
//! let error = session.transact(vec![mistake]).await.unwrap_err();
//! assert_eq!((&error.kind, error.op_index), (&TransactErrorKind::Constraint, Some(0)));
//! assert_eq!(error.retry(), Retry::Never);
//! # Ok(())
//! # }
//! ```
//!
//! # Survive a change of leader
//!
//! With [`Options::leader_only`] a session uses the leader of a cluster, as writers
//! should, and moves on with it. A transaction in flight at that moment has an unknown
//! outcome, and says so: kind [`Disconnected`](crate::TransactErrorKind::Disconnected),
//! [`Retry::Reread`](crate::Retry::Reread). What follows is an [`Event::Replaced`] whose
//! content shows what became of it; nothing is loaded again that was known before.
//!
//! ```
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let mut cluster = ovsdb::testing::real::Cluster::northbound(3)?;
//! # let endpoints = cluster.endpoints();
//! use ovsdb::{Event, Operation, Options, Retry, Session};
//!
//! let options = Options::new(endpoints, "OVN_Northbound").table("Address_Set", ["name"]);
//! let (session, mut events) = Session::connect(Options { leader_only: true, ..options });
//! assert!(session.synced().await);
//! # cluster.transfer_leadership()?;
//!
//! // Meanwhile the leader changes. The name is unique, so inserting it twice is harmless.
//! let insert = || vec![Operation::insert("Address_Set").column("name", "once").build()];
//! let mut outcome = session.transact(insert()).await;
//! while outcome.as_ref().is_err_and(|error| error.retry() == Retry::Reread) {
//!     // Look at the content: is it there?
//!     assert!(session.synced().await);
//!     outcome = session.transact(insert()).await;
//! }
//! // It was committed now, or by the attempt before.
//! assert!(outcome.is_ok() || outcome.is_err_and(|error| error.retry() == Retry::Recompute));
//!
//! while let Some(event) = events.next().await {
//!     if let Event::Replaced { replica, .. } | Event::Updated { replica, .. } = event
//!         && replica.table("Address_Set").unwrap().find_one("name", &"once".into()).is_some()
//!     {
//!         break;
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Ask daemons
//!
//! Control sockets speak the same language; [`unixctl::Daemon`](crate::unixctl::Daemon)
//! knows the usual commands.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = ovsdb::testing::real::Server::clustered_northbound()?;
//! # let socket = server.control_socket();
//! use ovsdb::unixctl::{Daemon, Role};
//!
//! let daemon = Daemon::at(socket);
//! assert!(daemon.version().await?.starts_with("ovsdb-server"));
//! let cluster = daemon.cluster_status("OVN_Northbound").await?;
//! assert_eq!((cluster.role, cluster.servers.len()), (Role::Leader, 1));
//! # Ok(())
//! # }
//! ```

#[cfg(doc)]
use crate::{Event, EventStream, Operation, Options, Replica, RowChange, Session, TransactionBuilder};
