//! Weir's node agent: plugs pods into Open vSwitch and keeps the host's
//! network state as wanted.

pub mod flags;
pub mod kube;
pub mod netlink;
pub mod sys;
