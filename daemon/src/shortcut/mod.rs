//! Services that are reached at addresses of a physical network (node contract §4.9).
//!
//! MetalLB or another controller gives a Service of type LoadBalancer an address of an underlay Subnet with
//! `enableExternalLBAddress`, and announces it. What comes in by the NIC for that address and a port of the Service is
//! not for the node: a flow in the provider bridge hands it to OVN, where the Service's load balancer is, with the MAC of
//! a router port as its destination.
//!
//! ```text
//! Services, Subnets, Vlans ─┐
//! bridges and their ports ──┴─▶ wish (which flows) ─▶ run (what differs, as one bundle) ─▶ openflow
//! ```
//!
//! The flows are known by their cookies. Everything else in the bridges is others'. A flow that somebody deletes, a
//! bridge that starts empty after a restart of the switch, a patch port that comes late are events.

mod run;
pub mod wish;

pub use run::Shortcut;
