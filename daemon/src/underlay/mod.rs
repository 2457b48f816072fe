//! The node's share of underlay networks (node contract §3.5, §3.6, §4.6, §4.7).
//!
//! ```text
//! ProviderNetworks, Vlans, this node ─▶ member (who, which NIC) ─▶ network (bridge, NIC moved in), home (and out)
//! NIC, bridge: addresses, routes ─────▶ journal (what moves) ────▶ mappings, labels, events
//! Subnets (u2o) ──────────────────────▶ fdb (static MAC entries)
//! ConfigMap, labels of this node ─────▶ gateway (external gateway's bridge, interconnection)
//! the tunnel NIC of the userspace datapath ─▶ tunnel (for the node's loop: the same steps, another key)
//! ```
//!
//! A NIC that becomes a port of a bridge may be the node's only one, with its address and default route. Hence:
//!
//! 1. what the NIC carries is written into the switch's database (key `weir-nic-<network>`) before anything moves, and
//!    stays there until the NIC has all of it back;
//! 2. the bridge has every address before the NIC loses it, and routes are appended behind the old ones before those go;
//! 3. every pass looks at what is there and goes on from that, so a death of the agent after any step, a restart of the
//!    switch (which makes the bridge's interface anew, without addresses) and a reboot (which gives the NIC its
//!    addresses back) all end in the same state.
//!
//! Nothing here ends the process or keeps pods of other networks waiting: what is missing is a label that is not there,
//! an event, an annotation; and the pass is repeated when a link, an address or an object changes.

pub mod fdb;
pub mod gateway;
mod home;
pub mod journal;
mod labels;
pub mod managers;
pub mod mappings;
pub mod member;
mod mover;
mod network;
mod old_record;
mod run;
mod settings;
mod tunnel;
pub mod vlans;

pub(crate) use network::is_provider_bridge;
pub use run::Underlay;
pub use tunnel::tunnel_is_recorded;

use crate::node::NotYet;

/// The name of the step in reasons.
const STEP: &str = "underlay";

fn not_yet(reason: impl Into<String>, remedy: impl Into<String>) -> NotYet {
    NotYet::new(STEP, reason, remedy)
}

fn ovs_failed(error: &crate::ovs::OvsError) -> NotYet {
    not_yet(error.to_string(), "look at ovs-vswitchd's and ovsdb-server's logs")
}

fn host_failed(error: &crate::netlink::Error) -> NotYet {
    not_yet(error.to_string(), "the agent needs CAP_NET_ADMIN in the host's namespace")
}
