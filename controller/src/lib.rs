//! Weir's cluster controller.
//!
//! kube watches → world → compile → desired → commit → publish → kube patches,
//! each stage a module that knows only the ones before it (docs/architecture.md).

pub mod claims;
pub mod compile;
pub mod core;
pub mod facts;
pub mod io;
pub mod ipam;
pub mod objects;
pub mod view;
