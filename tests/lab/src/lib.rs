//! Real Kubernetes clusters on one machine, with Weir as their network.
//!
//! No container engine and no virtual machine: etcd and the Kubernetes programs
//! are built from Go modules, a *node* is a set of namespaces with a containerd
//! and a kubelet of its own, veth pairs and bridges are the wires. Several labs
//! run side by side. The binary `lab` is the command line over this library;
//! tests use the library itself.
//!
//! ```text
//! packages ─▶ programs, debian ─▶ images      what a lab is made of (cache)
//! plan ─▶ state ─▶ netns, cgroup, process     what the kernel holds of it
//!           │
//!           └─▶ control, node(+node_init), outside ─▶ life      the cluster
//!                                                      │
//!                                     install ─▶ checks, collect
//! ```
//!
//! The library starts programs and reads files; it keeps nothing in memory
//! between calls, so every command works on what an earlier one left.

pub mod api;
pub mod cache;
pub mod cgroup;
pub mod checks;
pub mod collect;
pub mod control;
pub mod debian;
pub mod demo;
pub mod images;
pub mod install;
pub mod life;
pub mod machine;
pub mod netns;
pub mod node;
pub mod node_init;
pub mod oci;
pub mod outside;
pub mod packages;
pub mod pki;
pub mod plan;
pub mod process;
pub mod programs;
pub mod progress;
pub mod run;
pub mod seed;
pub mod state;
pub mod swap;

use std::path::Path;

/// The `tests/lab` folder of this source tree (Go modules, manifests).
pub fn source_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The root of this source tree.
pub fn workspace_folder() -> &'static Path {
    let lab = source_folder();
    lab.ancestors().nth(2).unwrap_or(lab)
}
