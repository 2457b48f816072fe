//! What becomes of limits in the kernel, and the shaper at the pod's end.
//!
//! The switch polices what a pod sends with a filter on the host's end of the link. That has no effect where the kernel
//! lacks the filter, and none with the userspace datapath, which takes packets before any filter sees them. Then a token
//! bucket on the pod's own end holds the same rate: it delays instead of dropping, and the pod's owner can't change it
//! without the right to administer the pod's network. The node's own port has no such end: what it receives is led
//! through an `ifb` with the bucket.

use std::fmt;

use serde::Serialize;

use crate::netlink::{Link, Netem, Netlink, Result, Tbf};
use crate::ovs::{Discipline, PortQos};

/// Major number of our discipline's handle: another one at the same place is somebody else's.
const MAJOR: u16 = 0x5745;
/// The link that what the node's own port receives is led through where nothing polices it.
pub(crate) const NODE_SHAPER: &str = "ovn0_ifb";
/// Its alias, by which it is known as ours.
pub(crate) const NODE_SHAPER_ALIAS: &str = "weir: limits what ovn0 receives";
/// How long a packet may wait in the pod's shaper, as a share of a second.
const QUEUE_SHARE: u64 = 20;
/// Packets that may wait in a `netem` of ovs-vswitchd's where nothing is said of that.
const NETEM_LIMIT: u64 = 1000;
/// Room for the Ethernet header and a tag.
const HEADER: u32 = 18;

/// How one direction of a port is limited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hold {
    /// Nothing is asked for.
    Unlimited,
    /// By the switch's policing: a filter on the host's end.
    Police,
    /// By a token bucket at the pod's own end.
    PodShaper,
    /// By a token bucket on a link that what the node receives is led through.
    NodeShaper,
    /// By the switch's shaping: `htb` on the host's end.
    Htb,
    /// Delays and losses: `netem` on the host's end.
    Netem,
    /// Asked for and not in effect, for this reason.
    Missing(String),
}

impl Hold {
    /// All words for metrics.
    pub const WORDS: [&'static str; 7] =
        ["unlimited", "police", "pod-shaper", "node-shaper", "htb", "netem", "missing"];

    /// A word for metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Unlimited => "unlimited",
            Self::Police => "police",
            Self::PodShaper => "pod-shaper",
            Self::NodeShaper => "node-shaper",
            Self::Htb => "htb",
            Self::Netem => "netem",
            Self::Missing(_) => "missing",
        }
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(reason) => write!(f, "not in effect: {reason}"),
            other => f.write_str(other.as_str()),
        }
    }
}

/// How both directions of a port are limited, as the pod sees them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Effect {
    /// What the pod sends.
    pub egress: Hold,
    /// What it receives.
    pub ingress: Hold,
}

impl Effect {
    /// The same as the other side of the link sees it.
    #[must_use]
    pub fn crossed(self) -> Self {
        Self { egress: self.ingress, ingress: self.egress }
    }

    /// The wish without what the switch should hold and does not (any more). If ovs-vswitchd is told that first, and the
    /// whole wish afterwards, it sets the rest up anew. The wish itself where nothing is lost, or where that did not
    /// help before: the same was missing.
    #[must_use]
    pub fn without_lost(&self, before: Option<&Self>, wanted: &PortQos) -> PortQos {
        let mut kept = wanted.clone();
        if before.is_some_and(|before| before.egress == Hold::Police)
            && !matches!(self.egress, Hold::Police | Hold::Unlimited)
        {
            (kept.policing_rate, kept.policing_burst) = (0, 0);
        }
        if matches!(self.ingress, Hold::Missing(_))
            && before.is_none_or(|before| before.ingress != self.ingress)
        {
            kept.discipline = None;
        }
        kept
    }

    /// Reasons of what is not in effect.
    pub fn missing(&self) -> impl Iterator<Item = (&'static str, &str)> {
        [("egress", &self.egress), ("ingress", &self.ingress)].into_iter().filter_map(|(direction, hold)| {
            match hold {
                Hold::Missing(reason) => Some((direction, reason.as_str())),
                _ => None,
            }
        })
    }
}

/// A pod's own end of its link.
#[derive(Clone, Copy, Debug)]
pub struct PodEnd<'a> {
    /// A socket inside the pod's namespace.
    pub netlink: &'a Netlink,
    /// The interface there.
    pub index: u32,
    /// Its MTU in bytes.
    pub mtu: u32,
}

/// What is at the other side of a port.
#[derive(Clone, Copy, Debug)]
pub enum End<'a> {
    /// A pod's own end, which can be shaped.
    Pod(PodEnd<'a>),
    /// A pod's end that can't be reached: its namespace is gone, or is somebody else's by now.
    Lost,
    /// The node itself: its own port.
    Node,
}

/// Shaper of the pod's end for a policing rate.
fn shaper(wanted: &PortQos, mtu: u32) -> Tbf {
    let rate = u64::from(wanted.policing_rate) * 125;
    // A burst below a packet would let none pass; below a tick of the kernel's clock it would not reach the rate.
    let least = u64::from(2 * (mtu + HEADER)).max(rate / 250);
    let burst = (u64::from(wanted.policing_burst) * 125).max(least);
    let limit = (rate / QUEUE_SHARE).max(u64::from(16 * (mtu + HEADER))) + burst;
    let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    Tbf { rate, burst: narrow(burst), limit: narrow(limit) }
}

/// Looks at what holds the limits of a port whose rows are applied, and puts the shaper into the pod, changes it or takes
/// it away. `host_end` is the switch's device, `None` where it is not in the host's namespace. Idempotent.
///
/// # Errors
/// When the kernel can't be asked. What it refuses is in the answer.
pub async fn settle(
    host: &Netlink,
    host_end: Option<&Link>,
    end: End<'_>,
    userspace: bool,
    wanted: &PortQos,
) -> Result<Effect> {
    Ok(Effect {
        egress: egress(host, host_end, end, userspace, wanted).await?,
        ingress: ingress(host, host_end, wanted).await?,
    })
}

async fn egress(
    host: &Netlink,
    host_end: Option<&Link>,
    end: End<'_>,
    userspace: bool,
    wanted: &PortQos,
) -> Result<Hold> {
    let limited = wanted.policing_rate > 0;
    // What the userspace datapath reads from a veth no filter has seen; what it hands to a tap passes the stack.
    let filters_count = !userspace || matches!(end, End::Node);
    let policed = match host_end {
        Some(link) if limited && filters_count => {
            let rate = u64::from(wanted.policing_rate) * 125;
            host.policing_rates(link.index).await?.into_iter().any(|shown| is_near(shown, rate))
        }
        _ => false,
    };
    let end = match (end, limited, policed) {
        (End::Pod(end), ..) => end,
        (End::Node, ..) => return node_egress(host, host_end, wanted, limited, policed).await,
        (_, false, _) => return Ok(Hold::Unlimited),
        (_, true, true) => return Ok(Hold::Police),
        (End::Lost, ..) => {
            return Ok(Hold::Missing(
                "the switch's policing has no effect here, and the pod's own end can't be reached; delete the pod"
                    .to_owned(),
            ));
        }
    };
    let root = end.netlink.qdiscs(end.index).await?.into_iter().find(|qdisc| qdisc.root);
    let ours = root.as_ref().filter(|qdisc| qdisc.major == MAJOR);
    if !limited || policed {
        if ours.is_some() {
            end.netlink.delete_root_qdisc(end.index, MAJOR).await?;
        }
        return Ok(if policed { Hold::Police } else { Hold::Unlimited });
    }
    if let Some(foreign) = root.as_ref().filter(|qdisc| qdisc.major != 0 && qdisc.major != MAJOR) {
        return Ok(Hold::Missing(format!(
            "the pod has a queueing discipline of its own ({} {:x}:) at the place of ours; remove it",
            foreign.kind, foreign.major
        )));
    }
    let shaper = shaper(wanted, end.mtu);
    if ours.and_then(|qdisc| qdisc.tbf).is_some_and(|shown| shaper.is_shown_as(&shown)) {
        return Ok(Hold::PodShaper);
    }
    match end.netlink.set_tbf(end.index, MAJOR, &shaper).await {
        Ok(()) => Ok(Hold::PodShaper),
        Err(error) => Ok(Hold::Missing(format!(
            "the switch's policing has no effect here, and the pod's end can't be shaped: {error}; load module sch_tbf"
        ))),
    }
}

/// What the node's own port receives comes out of the switch, where no discipline waits: without policing it is led
/// through a link of ours that has one.
async fn node_egress(
    host: &Netlink,
    port: Option<&Link>,
    wanted: &PortQos,
    limited: bool,
    policed: bool,
) -> Result<Hold> {
    let there = host.link(NODE_SHAPER).await?;
    let ours = there.as_ref().filter(|link| link.alias.as_deref() == Some(NODE_SHAPER_ALIAS));
    if !limited || policed {
        if let Some(port) = port.filter(|_| ours.is_some()) {
            host.end_lead(port.index).await?;
        }
        if ours.is_some() {
            host.delete_link(NODE_SHAPER).await?;
        }
        return Ok(if policed { Hold::Police } else { Hold::Unlimited });
    }
    let Some(port) = port else {
        return Ok(Hold::Missing("the node's own port has no device; is ovs-vswitchd running?".to_owned()));
    };
    if there.is_some() && ours.is_none() {
        return Ok(Hold::Missing(format!("link {NODE_SHAPER} is somebody else's; rename it")));
    }
    match lead(host, port, ours, wanted).await {
        Ok(()) => Ok(Hold::NodeShaper),
        Err(error) => Ok(Hold::Missing(format!(
            "this kernel has no policing filter (cls_basic or cls_matchall, act_police), and the other way fails: \
             {error}; load these modules, or ifb, sch_ingress, cls_u32, act_mirred and sch_tbf, or limit the pods instead"
        ))),
    }
}

/// Nothing is led before the bucket stands, and nothing is touched that is as it should be.
async fn lead(host: &Netlink, port: &Link, ours: Option<&Link>, wanted: &PortQos) -> Result<()> {
    let shaping = match ours {
        Some(link) => link.clone(),
        None => {
            host.add_ifb(NODE_SHAPER, NODE_SHAPER_ALIAS).await?;
            host.require_link(NODE_SHAPER).await?
        }
    };
    if !shaping.up {
        host.set_up(shaping.index).await?;
    }
    let bucket = shaper(wanted, port.mtu);
    let shown =
        host.qdiscs(shaping.index).await?.into_iter().find(|qdisc| qdisc.root && qdisc.major == MAJOR);
    if !shown.and_then(|qdisc| qdisc.tbf).is_some_and(|shown| bucket.is_shown_as(&shown)) {
        host.set_tbf(shaping.index, MAJOR, &bucket).await?;
    }
    if host.ingress_led_to(port.index).await? != Some(shaping.index) {
        host.lead_ingress(port.index, shaping.index).await?;
    }
    Ok(())
}

async fn ingress(host: &Netlink, host_end: Option<&Link>, wanted: &PortQos) -> Result<Hold> {
    let Some(discipline) = wanted.discipline else { return Ok(Hold::Unlimited) };
    let Some(link) = host_end else {
        return Ok(Hold::Missing(
            "the switch's device is inside the pod, where nothing shapes what comes in; use a veth \
             (pod_nic_type veth-pair)"
                .to_owned(),
        ));
    };
    match discipline {
        Discipline::Htb { max_rate, .. } => {
            let wanted = max_rate / 8;
            Ok(match host.htb_ceiling(link.index, 1).await? {
                Some(ceiling) if is_near(ceiling, wanted) => Hold::Htb,
                Some(ceiling) => {
                    Hold::Missing(format!("the kernel shapes to {} bit/s instead", ceiling.saturating_mul(8)))
                }
                None => Hold::Missing(
                    "ovs-vswitchd has not set up htb; look at its log, load module sch_htb".to_owned(),
                ),
            })
        }
        Discipline::Netem { .. } => {
            let qdiscs = host.qdiscs(link.index).await?;
            let shown = qdiscs.iter().find(|qdisc| qdisc.root && qdisc.kind == "netem");
            Ok(match shown.map(|qdisc| qdisc.netem) {
                Some(Some(shown)) => netem(&discipline, &shown),
                Some(None) => Hold::Missing("what the kernel tells of its netem can't be read".to_owned()),
                None => Hold::Missing("this kernel has no netem; load module sch_netem".to_owned()),
            })
        }
    }
}

/// Whether a rate is the wanted one: the switch rounds to its own units.
fn is_near(shown: u64, wanted: u64) -> bool {
    shown.abs_diff(wanted) <= wanted / 50 + 1
}

/// Whether the kernel's delays and losses are the wanted ones: ovs-vswitchd keeps an older one that it finds, and
/// cannot carry all values.
fn netem(wanted: &Discipline, shown: &Netem) -> Hold {
    let &Discipline::Netem { latency, jitter, limit, loss } = wanted else { return Hold::Netem };
    // The kernel rounds to ticks of 64 ns.
    let near = |wanted: u64, shown: u64| wanted.saturating_mul(1000).abs_diff(shown) <= 1000;
    let share = (f64::from(u32::MAX) * loss / 100.0) as u32;
    let limit = if limit == 0 { NETEM_LIMIT } else { limit };
    let (in_time, lost) =
        (near(latency, shown.latency) && near(jitter, shown.jitter), share.abs_diff(shown.loss) <= 1);
    if in_time && lost && limit == u64::from(shown.limit) {
        return Hold::Netem;
    }
    let hint = if lost || loss.fract() == 0.0 { "" } else { "OVS takes whole percents of loss; " };
    Hold::Missing(format!(
        "{hint}the kernel delays by {} ms (jitter {} ms), loses {:.2} percent and lets {} packets wait instead",
        shown.latency as f64 / 1e6,
        shown.jitter as f64 / 1e6,
        f64::from(shown.loss) * 100.0 / f64::from(u32::MAX),
        shown.limit,
    ))
}

#[cfg(test)]
#[path = "effect_tests.rs"]
mod tests;
