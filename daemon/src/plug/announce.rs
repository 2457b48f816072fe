//! Telling neighbours where a new pod's addresses are, once the calls let them
//! hear it.
//!
//! The switch floods an announcement to every port of the subnet and keeps a
//! flow for it with as many outputs for ten seconds. Whatever changes a flow of
//! OVN's, as every ADD does, makes ovs-vswitchd work out each of those again: on
//! a node with 110 pods that was most of the processor time of an ADD. Nobody
//! waits for an announcement: the new pod finds everyone, and only who knew the
//! address's former owner has something to learn.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::Plugger;
use super::container::Announcement;

/// The calls are over when none has run for so long.
const LULL: Duration = Duration::from_millis(50);
/// No announcement comes later.
const LATEST: Duration = Duration::from_secs(3);

impl Plugger {
    /// Sends it in the next lull of the calls, within three seconds.
    pub(super) fn announce(&self, announcement: Announcement) {
        let running = self.running.clone();
        tokio::spawn(async move {
            let latest = Instant::now() + LATEST;
            let mut quiet = 0;
            while quiet < 2 && Instant::now() < latest {
                tokio::time::sleep(LULL / 2).await;
                quiet = if running.load(Ordering::Relaxed) == 0 { quiet + 1 } else { 0 };
            }
            announcement.send();
        });
    }
}
