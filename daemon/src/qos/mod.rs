//! Limits of pods' and nodes' traffic (node contract §2.8): from annotations to rows of the switch, and, where the
//! switch's rows have no effect on this kernel, to a shaper at the pod's own end.
//!
//! ```text
//! annotations ─▶ limits ─▶ ovs::qos (rows, always) ─▶ ovs-vswitchd ─▶ kernel
//!                   │                                                   │ read back by netlink
//!                   └──────────────────▶ effect (tbf in the pod) ◀──────┘
//! ```
//!
//! A limit counts as set only when the kernel shows it: [`Effect`] says by which mechanism each direction is held, or
//! why it is not. No process is started.

mod book;
mod effect;
mod inside;
mod keeper;
pub mod limits;

pub use book::{Book, Entry};
pub use effect::{Effect, End, Hold, PodEnd, settle};
pub(crate) use effect::{NODE_SHAPER, NODE_SHAPER_ALIAS};
pub use keeper::Keeper;
