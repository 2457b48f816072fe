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

mod counters;
mod driver;
mod facts;
mod inputs;
pub mod policy;
mod routes;
mod rules;
mod sets;
mod state;

pub use counters::{Counted, Counters};
pub use driver::{Gateway, Report};
pub use facts::Objects;
pub(crate) use facts::{selects, stays};
pub(crate) use inputs::prefixes;
pub use inputs::{Clamp, Config, Inputs, JoinInput, NatPolicy, SubnetInput, UnderlayInput};
pub use routes::{HostRoute, RouteChanges};
pub use state::{FamilyRules, HostChanges, HostState, Observed};
