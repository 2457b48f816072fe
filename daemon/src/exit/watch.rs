//! Whether the external network's gateways are still there.
//!
//! A router that is served by this very node reaches the node's port whatever happens to the wire, so BFD alone would hold
//! to a node that has lost it. In: the namespace and the gateways. Out: those that have fallen silent.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::wish::OVNEXT0;
use crate::netlink::Reachability;
use crate::sys::Namespace;

/// Pause between two questions.
const EVERY: Duration = Duration::from_secs(1);
/// How long a gateway may be silent. The kernel asks three times meanwhile.
const PATIENCE: Duration = Duration::from_millis(3500);

/// Asks as long as it lives.
#[derive(Debug)]
pub(super) struct Watch {
    namespace: Namespace,
    gateways: Vec<IpAddr>,
    silent: watch::Receiver<BTreeSet<IpAddr>>,
    task: JoinHandle<()>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Watch {
    /// Asks in a namespace, whose device is there.
    pub(super) fn start(namespace: &Namespace, gateways: &[IpAddr]) -> Self {
        let (told, silent) = watch::channel(BTreeSet::new());
        let task = tokio::spawn(ask(namespace.clone(), gateways.to_vec(), told));
        Self { namespace: namespace.clone(), gateways: gateways.to_vec(), silent, task }
    }

    /// It asks these there, and goes on doing so.
    pub(super) fn serves(&self, namespace: &Namespace, gateways: &[IpAddr]) -> bool {
        self.namespace == *namespace && self.gateways == gateways && !self.task.is_finished()
    }

    /// Gateways that do not answer.
    pub(super) fn silent(&mut self) -> BTreeSet<IpAddr> {
        self.silent.borrow_and_update().clone()
    }

    /// Waits until others are silent than at the last look.
    pub(super) async fn changed(&mut self) {
        if self.silent.changed().await.is_err() {
            // It has ended; the next pass starts another one.
            std::future::pending().await
        }
    }
}

async fn ask(namespace: Namespace, gateways: Vec<IpAddr>, told: watch::Sender<BTreeSet<IpAddr>>) {
    let mut reach = None;
    loop {
        tokio::time::sleep(EVERY).await;
        match silent(&mut reach, &namespace, &gateways).await {
            Ok(Some(silent)) => {
                told.send_if_modified(|old| std::mem::replace(old, silent.clone()) != silent);
            }
            // Without its device the port has other troubles, which a pass sees.
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(error, "the external network's gateways can't be asked");
                reach = None;
            }
        }
    }
}

/// Who does not answer; `None` without the device.
async fn silent(
    reach: &mut Option<Reachability>,
    namespace: &Namespace,
    gateways: &[IpAddr],
) -> Result<Option<BTreeSet<IpAddr>>, String> {
    let runtime = tokio::runtime::Handle::current();
    let reach = match reach {
        Some(open) => open,
        None => {
            let open = namespace.run_async(move || Reachability::open_on(&runtime)).await;
            reach.insert(open.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?)
        }
    };
    let Ok(Some(link)) = reach.netlink().link(OVNEXT0).await else { return Ok(None) };
    let found = reach.confirm_all(link.index, gateways, PATIENCE).await.map_err(|error| error.to_string())?;
    Ok(Some(gateways.iter().filter(|gateway| !found.contains_key(gateway)).copied().collect()))
}
