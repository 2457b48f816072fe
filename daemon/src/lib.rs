//! Weir's node agent: plugs pods into Open vSwitch and keeps the host's
//! network state as wanted.

pub mod changes;
pub mod diagnostics;
pub mod firewall;
pub mod flags;
pub mod gateway;
pub mod health;
pub mod hostloop;
pub mod hostnet;
pub mod install;
pub mod kube;
pub mod metrics;
pub mod netlink;
pub mod node;
pub mod ovs;
pub mod plug;
pub mod readiness;
pub mod run;
pub mod server;
pub mod socket;
pub mod sys;
