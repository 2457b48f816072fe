//! Who notices that somebody changed what is ours.
//!
//! | what | noticed by |
//! |---|---|
//! | links, addresses, routes, rules | rtnetlink ([`Monitor`](crate::netlink::Monitor)) |
//! | chains and rules of the packet filter (`iptables-nft`, `nft`) | nfnetlink ([`Hints`](crate::netlink::Hints)) |
//! | the same of `iptables-legacy` | their content without counters, every [`LOOK`]; of tables above 1 MiB their length |
//! | sets | their elements by netlink, every [`LOOK`] |
//! | settings | rtnetlink's reports of link settings |
//! | queueing disciplines, of pods too | rtnetlink's reports of all namespaces behind our links |
//! | rows of the switch, ports of pods | its database ([`replug`](crate::plug::replug), [`portloop`](crate::portloop)) |
//! | the port `ovnext0` | its database, rtnetlink of both namespaces ([`exit`](crate::exit)) |
//! | socket and configuration | inotify ([`keep`](crate::keep)) |
//!
//! In: these. Out: [`Change`]s. The loops that hear of them look, and write only a difference. Everything is looked at
//! once a minute anyway.

use std::time::Duration;

use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use crate::firewall::{Backend, Fingerprint, Probe};
use crate::hostnet::HostNet;
use crate::netlink::Change;

/// How often sets and legacy tables are looked at. A look takes well below a millisecond.
pub const LOOK: Duration = Duration::from_secs(2);
/// A legacy table that changes at every look is somebody else's work: it is looked at this often then.
const LOOK_BUSY: Duration = Duration::from_secs(30);
/// Pause after a failure.
const RETRY: Duration = Duration::from_secs(10);

/// Hands on what the kernel reports; subscribes again when a socket dies.
pub async fn listen(host: HostNet, changes: broadcast::Sender<Change>) {
    loop {
        match host.hints().await {
            Ok(mut hints) => {
                let error = loop {
                    match hints.next().await {
                        // Nobody listens at shutdown.
                        Ok(change) => drop(changes.send(change)),
                        Err(error) => break error,
                    }
                };
                tracing::warn!(%error, "the kernel's reports ended; subscribing again");
                for missed in [Change::Filter, Change::Traffic, Change::Setting(crate::netlink::ALL_LINKS)] {
                    let _ = changes.send(missed);
                }
            }
            Err(error) => tracing::warn!(%error, "the kernel's reports can't be had; trying again"),
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Looks at what nobody reports, until cancelled.
pub async fn look(
    host: HostNet,
    backend: Backend,
    changes: broadcast::Sender<Change>,
    cancel: CancellationToken,
) {
    let looking = async {
        loop {
            let opened = host.namespace.run_async(move || Probe::open(backend == Backend::Legacy)).await;
            let error = match opened.and_then(|probe| probe) {
                Ok(mut probe) => keep_looking(&mut probe, &changes).await,
                Err(error) => error,
            };
            tracing::warn!(%error, "changes of sets by others are noticed late: the kernel can't be asked");
            tokio::time::sleep(RETRY).await;
        }
    };
    tokio::select! {
        () = cancel.cancelled() => {}
        () = looking => {}
    }
}

async fn keep_looking(probe: &mut Probe, changes: &broadcast::Sender<Change>) -> std::io::Error {
    let mut sets: Option<Fingerprint> = None;
    let mut tables = Pace::default();
    loop {
        match probe.sets() {
            Ok(now) => {
                if sets.as_ref().is_some_and(|before| *before != now) {
                    let _ = changes.send(Change::Sets);
                }
                sets = Some(now);
            }
            Err(error) => return error,
        }
        if tables.is_due() {
            match probe.tables() {
                Ok(now) => {
                    if tables.differs(now) {
                        let _ = changes.send(Change::Filter);
                    }
                }
                Err(error) => return error,
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// How often to look at what others change too: rarely while they keep changing it.
#[derive(Debug, Default)]
struct Pace {
    before: Option<Vec<u64>>,
    /// Looks to leave out, and how many were left out last time.
    left: u32,
    pause: u32,
}

impl Pace {
    fn is_due(&mut self) -> bool {
        let due = self.left == 0;
        self.left = self.left.saturating_sub(1);
        due
    }

    fn differs(&mut self, now: Vec<u64>) -> bool {
        let differs = self.before.as_ref().is_some_and(|before| *before != now);
        self.before = Some(now);
        let most = u32::try_from(LOOK_BUSY.as_secs() / LOOK.as_secs()).unwrap_or(1);
        // The first change after a silence is followed up at once.
        self.pause = if differs { (self.pause * 2 + 1).min(most) } else { 0 };
        self.left = self.pause - u32::from(self.pause > 0);
        differs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_all_the_time_is_looked_at_rarely() {
        let mut pace = Pace::default();
        let mut looks = 0;
        for second in 0..1000u32 {
            if pace.is_due() {
                looks += 1;
                pace.differs(vec![u64::from(second)]);
            }
        }
        assert!((60..90).contains(&looks), "{looks}");
        // A silence later, the next change is seen at the next look.
        for _ in 0..20 {
            if pace.is_due() {
                pace.differs(vec![]);
            }
        }
        assert!(pace.is_due());
        assert!(pace.differs(vec![1]));
    }
}
