//! Weir's node agent: plugs pods into Open vSwitch and keeps the host's
//! network state as wanted. The binary is `kube-ovn-daemon`.
//!
//! ```text
//!                 ┌─────────────── run ───────────────┐
//! API server ─▶ kube (watches, snapshots) ─┐          │
//! OVS database ◀─▶ ovs (views, plans) ─────┼─▶ plug ◀─┼─ server ◀─ CNI executable
//! kernel ◀─▶ netlink, sys (hostnet) ───────┼─▶ node   │  (chassis, tunnel NIC, ovn0, condition)
//!                                          ├─▶ hostloop ─▶ gateway, firewall; lost interfaces
//!                                          ├─▶ underlay (provider networks, external gateway)
//!                                          └─▶ portloop ─▶ qos, mirror
//!                          heal notices what others change: the loops look again
//!                          readiness, health, metrics, diagnostics look at all of them
//!                          preflight looks at the node once, at the start or for --check
//! ```
//!
//! Everything waits on watch channels: for the controller's annotations, for
//! `ovn-installed`, for links. Deciding is pure ([`plug::wanted`],
//! [`ovs::plan`], [`node::tunnel`], [`node::phy`], [`gateway`]); doing is small and
//! idempotent, so that any of it can be repeated after a crash. No process is
//! started on the path of a pod. `unsafe` lives in [`sys`] alone.

pub mod attachments;
pub mod changes;
pub mod cleanup;
pub mod conncheck;
pub mod daemons;
pub mod diagnostics;
pub mod exit;
pub mod firewall;
pub mod flags;
pub mod frame;
pub mod gateway;
pub mod heal;
pub mod health;
pub mod hostloop;
pub mod hostnet;
pub mod install;
pub mod keep;
pub mod kube;
pub mod logs;
pub mod metrics;
pub mod mirror;
pub mod mtu;
pub mod netlink;
pub mod node;
pub mod openflow;
pub mod ovs;
pub mod parts;
pub mod plug;
pub mod portloop;
pub mod preflight;
pub mod qos;
pub mod readiness;
pub mod run;
pub mod server;
pub mod shortcut;
pub mod socket;
pub mod steps;
pub mod supervise;
pub mod sys;
pub mod told;
pub mod trim;
pub mod underlay;
