//! The CNI executable `kube-ovn` as a library, and the types it shares with the node agent ([`api`]).
//!
//! ```text
//! environment ─▶ environment ─┐
//! stdin ───────▶ conf ────────┼─▶ plugin ─▶ client ═ unix socket ═ agent
//!                             │      │
//! stdout ◀────── result/error ◀──────┘
//! ```
//!
//! The container runtime starts the executable for every pod, so it is small: no async runtime, no argument parser, no
//! threads; linked statically it starts in well under a millisecond and runs on any distribution.

pub mod api;
pub mod client;
pub mod conf;
pub mod environment;
pub mod error;
pub mod netns;
pub mod plugin;
pub mod result;
pub mod version;
