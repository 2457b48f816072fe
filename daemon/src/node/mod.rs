//! Initialisation and upkeep of the node, as one level-triggered loop (node
//! contract §3).
//!
//! In: the Node object, views of the local OVS database, changes of links and
//! addresses. Out: the chassis annotation, the encapsulation settings, the
//! tunnel NIC on its bridge (userspace datapath), `ovn0`, the condition
//! `NetworkUnavailable`, and [`NodeNetwork`](crate::plug::NodeNetwork) for
//! ADDs. Nothing here ends the process: what is missing is a reason with a
//! remedy in [`NodeStatus`], and the loop goes on when something changes.

mod bridge;
mod join;
mod ovn0;
mod steps;
pub mod tunnel;

use std::collections::BTreeMap;

use crate::ovs::Ovs;

pub use ovn0::Join;
pub use steps::{Initialiser, Inputs};

/// A step that can't be done yet.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct NotYet {
    /// The step.
    pub step: &'static str,
    /// What is missing.
    pub reason: String,
    /// What a person can do about it.
    pub remedy: String,
}

impl NotYet {
    /// A reason and its remedy.
    pub fn new(step: &'static str, reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { step, reason: reason.into(), remedy: remedy.into() }
    }
}

/// Waits until ovs-vswitchd has acted on what the database says, of `interface` among other things. It gives an
/// interface of its own its MAC by setting it down and up again, a moment after the kernel shows it: what the host puts on
/// it in between is lost, or refused.
///
/// # Errors
/// When it takes too long.
pub async fn acted(ovs: &Ovs, step: &'static str, interface: &str) -> Result<(), NotYet> {
    if ovs.applied().await {
        return Ok(());
    }
    let reason = format!("ovs-vswitchd has not acted on what the database says of interface {interface}");
    Err(NotYet::new(step, reason, "is ovs-vswitchd running, and does `ovs-appctl version` answer?"))
}

impl std::fmt::Display for NotYet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.step, self.reason)?;
        if self.remedy.is_empty() { Ok(()) } else { write!(f, " ({})", self.remedy) }
    }
}

/// Where the node stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct NodeStatus {
    /// Every step is done.
    pub ready: bool,
    /// Steps that are not, by name.
    pub missing: BTreeMap<&'static str, NotYet>,
    /// The tunnel interface in use.
    pub tunnel_interface: Option<String>,
    /// Its address.
    pub encap_ip: Option<String>,
    /// MTU of pods.
    pub mtu: Option<u32>,
    /// Pods are switched in userspace.
    pub userspace: bool,
    /// The join gateways answer; unknown until they were asked.
    pub gateway_reachable: Option<bool>,
}

/// The node's join interface.
pub const OVN0: &str = "ovn0";
