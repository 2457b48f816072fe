//! Weir's cluster controller.
//!
//! kube watches → world → compile → desired → commit → publish → kube patches,
//! each stage a module that knows only the ones before it (docs/architecture.md).

pub mod chassis;
pub mod claims;
pub mod commit;
pub mod compile;
pub mod core;
pub mod desired;
pub mod diagnostics;
pub mod engine;
pub mod events;
pub mod facts;
pub mod flags;
pub mod gateways;
#[cfg(test)]
mod golden;
pub mod health;
pub mod io;
pub mod ipam;
pub mod kube_io;
pub mod lease;
pub mod logs;
pub mod metrics;
pub mod nb_io;
pub mod objects;
pub mod publish;
pub mod run;
#[cfg(test)]
mod sim;
pub mod strings;
pub mod verify;
pub mod view;
pub mod watch;
mod wishes;
pub mod world;
