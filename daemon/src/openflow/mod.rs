//! The part of OpenFlow 1.4 that the agent speaks with the bridges of the local switch (Open Networking Foundation,
//! OpenFlow Switch Specification 1.4.0).
//!
//! In: flows with certain cookies. Out: the ones that are there, a difference carried out as one atomic bundle, and
//! news of changes. Everything else in the bridge's tables is others' and never read or written: the switch is asked
//! for cookies, and what goes is named one by one.
//!
//! ```text
//! flow (typed flows, their bytes) ─▶ wire (messages) ─▶ session (a bridge's management socket)
//! ```

pub mod flow;
mod session;
mod wire;

pub use flow::{Flow, Protocol, Seen};
pub use session::Session;

/// What went wrong between us and a bridge.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket.
    #[error("bridge {bridge}: {source}")]
    Socket {
        /// The bridge.
        bridge: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// The switch speaks other versions only.
    #[error(
        "bridge {bridge} speaks no OpenFlow 1.4; add OpenFlow14 to its column `protocols`, or clear the column"
    )]
    Version {
        /// The bridge.
        bridge: String,
    },
    /// The switch refuses (specification, §7.4.4).
    #[error("bridge {bridge} refuses: OpenFlow error type {kind} code {code}")]
    Refused {
        /// The bridge.
        bridge: String,
        /// Type of the error.
        kind: u16,
        /// Its code.
        code: u16,
    },
    /// No answer in time.
    #[error("bridge {bridge} does not answer; is ovs-vswitchd busy?")]
    Silent {
        /// The bridge.
        bridge: String,
    },
    /// Not understood.
    #[error("bridge {bridge}: {what} is not understood")]
    Malformed {
        /// The bridge.
        bridge: String,
        /// What it was.
        what: &'static str,
    },
}
