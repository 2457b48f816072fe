//! The node's gateway state: ipsets, rules of the packet filter, routes to pods.
//!
//! ```text
//! watched objects ─▶ Inputs ─▶ HostState (wanted) ─┐
//! host: ipset save, iptables-save, route dump ─────┴▶ HostChanges ─▶ ipset restore, iptables-restore, netlink
//! ```
//!
//! Level-triggered: every pass reads the host, compares, and writes only a difference, in batches; so the same pass
//! serves a change of an object and the slow verification that puts back what somebody deleted. The order matters:
//! sets that rules are going to use come first, sets that rules have used go last.

mod driver;
mod facts;
mod inputs;
mod routes;
mod rules;
mod sets;
mod state;

pub use driver::{Gateway, Report};
pub use facts::Objects;
pub use inputs::{Config, Inputs, JoinInput, NatPolicy, SubnetInput};
pub use routes::{HostRoute, RouteChanges};
pub use state::{FamilyRules, HostChanges, HostState, Observed};
