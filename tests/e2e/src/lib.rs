//! End-to-end tests of Weir: a real cluster, made by the lab, looked at from
//! outside.
//!
//! ```text
//! lab (running cluster) ─▶ cluster: kubectl, nodes, databases
//!                              ├─▶ audit      who wrote what to the API server
//!                              ├─▶ proxy      who wrote what to the northbound database
//!                              ├─▶ inventory  everything that exists, to compare before and after
//!                              ├─▶ settings   other arguments of controller and agents for a while
//!                              ├─▶ document   the commands of a page of `docs/`, carried out
//!                              └─▶ network, flow, frames  subnets, pods that talk, what they lose, what they forge├── network, flow, frames  subnets, pods that talk, what they lose, what they forge
//!                              └─▶ network, flow, frames  subnets, pods that talk, what they lose, what they forge├── drops      what switches and kernel say to have dropped
//!                              └─▶ network, flow, frames  subnets, pods that talk, what they lose, what they forge├── loss       nodes that die and come back
//!                              └─▶ network, flow, frames  subnets, pods that talk, what they lose, what they forge└── machines   KubeVirt's kinds, and what its own controllers would do
//! ```
//!
//! The tests themselves are in `tests/`. They share one cluster (its name is in
//! `WEIR_E2E_LAB`, `make e2e` sets it) and run one after another, since they
//! stop and break parts of it.

pub mod audit;
pub mod cluster;
pub mod document;
pub mod drops;
pub mod flow;
pub mod frames;
pub mod inventory;
pub mod loss;
pub mod machines;
pub mod network;
pub mod proxy;
pub mod settings;
pub mod workload;
