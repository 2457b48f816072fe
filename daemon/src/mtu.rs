//! Tells when the MTU of pods changes (`pain.md` U43): running pods keep what
//! they were made with, so somebody has to know.
//!
//! In: where the node stands, the MTU of `ovn0` from before the start. Out: an
//! event on the Node.

use tokio::sync::watch;

use crate::kube::{EventType, ObjectRef, Recorder};
use crate::netlink::Netlink;
use crate::node::{NodeStatus, OVN0};

/// What to say when the MTU of pods, in bytes, is another one than `before`.
fn news(before: Option<u32>, now: u32, tunnel: &str) -> Option<String> {
    let before = before.filter(|before| *before != now)?;
    Some(format!(
        "pods have an MTU of {now} from now on, as {tunnel} leaves it, and had {before}: \
         running pods keep theirs until they are made anew"
    ))
}

/// The MTU that the node's own port had before the agent looks at anything:
/// what pods had so far.
pub async fn before(host: &Netlink) -> Option<u32> {
    host.link(OVN0).await.ok().flatten().map(|link| link.mtu)
}

/// Records event `PodMtuChanged` on the node at every change, until the
/// status is no longer kept.
pub async fn tell(
    mut status: watch::Receiver<NodeStatus>,
    mut known: Option<u32>,
    recorder: Recorder,
    node: String,
) {
    loop {
        let (mtu, tunnel) = {
            let now = status.borrow_and_update();
            (now.mtu, now.tunnel_interface.clone().unwrap_or_default())
        };
        if let Some(mtu) = mtu {
            if let Some(text) = news(known, mtu, &tunnel) {
                tracing::info!(mtu, before = known, "the MTU of pods changed");
                recorder.record(ObjectRef::node(&node, &node), EventType::Normal, "PodMtuChanged", text);
            }
            known = Some(mtu);
        }
        if status.changed().await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u_43_a_changed_mtu_is_told_once_and_names_what_stays() {
        assert_eq!(news(None, 1400, "eth1"), None, "the first start");
        assert_eq!(news(Some(1400), 1400, "eth1"), None);
        let text = news(Some(1400), 8900, "br-phy").unwrap();
        for word in ["8900", "1400", "br-phy", "running pods keep"] {
            assert!(text.contains(word), "{text}");
        }
    }
}
