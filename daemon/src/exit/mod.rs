//! The node's port in an external network, through which VPCs leave (node contract §4.8).
//!
//! ```text
//! OvnEips (this node's, routers'), Subnets ─▶ wish (what the port has to be like)
//! OVS, kernel ────────────────────────────▶ run (level-triggered: namespace, port, addresses, routes, label, status)
//! routers ◀── BFD ──▶ responder ─▶ session (RFC 5880, passive) ─▶ packet
//! ```
//!
//! The port `ovnext0` lives in a namespace of its own, `ovnext`, which forwards: routers of VPCs send what leaves to its
//! address, and it goes on to the external network's gateway. Routers watch it by BFD, and send to other nodes when it is
//! silent. The agent answers them, so while it restarts this node gets no new traffic of VPCs, from the detection time on;
//! the port and what passes it stay. While the network's gateway does not answer the node (`watch`), the agent answers no
//! router either.

pub mod packet;
mod place;
pub mod responder;
mod run;
pub mod session;
mod watch;
mod wish;

pub use place::Place;
pub use responder::Responder;
pub use run::Exit;
pub use wish::{OVNEXT, OVNEXT0, Wish};
