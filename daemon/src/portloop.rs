//! The loop that keeps settings of ports which live with their pods: limits and mirror.
//!
//! In: changes of pods, of this node, of the switch, and of the mirror's link. Out: passes of [`Keeper`] and of
//! [`mirror::pass`]. Both are level-triggered: an event only says when to look, a slow pass looks at the kernel anyway.

use std::sync::Arc;

use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Duration, Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::flags::Flags;
use crate::mirror;
use crate::netlink::Change;
use crate::plug::Plugger;
use crate::qos::{Keeper, NODE_SHAPER};

/// Events of one cause come in bunches.
const GATHER: Duration = Duration::from_millis(50);
/// While CNI calls run, passes are that far apart: they would take the
/// processor from the calls.
const BUSY: Duration = Duration::from_secs(1);
/// Pause after a pass that could not do everything.
const RETRY: Duration = Duration::from_secs(2);
/// The kernel is looked at this often even if nothing happened.
const VERIFY: Duration = Duration::from_secs(60);

/// Disciplines that others change all the time are looked at this often.
const TOUCHED: Duration = Duration::from_secs(2);

/// Runs until cancelled.
pub async fn keep_ports(
    plugger: Arc<Plugger>,
    flags: Arc<Flags>,
    mut changes: broadcast::Receiver<Change>,
    cancel: CancellationToken,
) {
    let mut keeper = Keeper::new(plugger.clone());
    let (mut pods, mut nodes) = (plugger.cluster.pods.subscribe(), plugger.cluster.nodes.subscribe());
    let (mut views, mut network) = (plugger.ovs.subscribe(), plugger.network.clone());
    let (mut verified, mut told) = (None, None::<String>);
    // Somebody changed a queueing discipline.
    let mut touched = false;
    loop {
        pods.mark_unchanged();
        nodes.mark_unchanged();
        views.mark_unchanged();
        network.mark_unchanged();
        let verify =
            std::mem::take(&mut touched) || verified.is_none_or(|at: Instant| at.elapsed() >= VERIFY);
        let passed = keeper.pass(verify).await;
        let mirrored = mirror::pass(&plugger, &flags).await.map_err(|error| error.to_string()).err();
        if let Some(problem) = mirrored.as_ref().filter(|problem| told.as_ref() != Some(problem)) {
            tracing::warn!(problem, "the mirror can't be set up; trying again");
        }
        told = mirrored;
        let again = told.is_some() || passed.again;
        if verify && !again {
            verified = Some(Instant::now());
        }
        let mut next = match verified {
            Some(at) if !again => at + VERIFY,
            _ => Instant::now() + RETRY,
        };
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                () = sleep_until(next) => break,
                changed = pods.changed() => { if changed.is_err() { return } break }
                changed = nodes.changed() => { if changed.is_err() { return } break }
                changed = views.changed() => { if changed.is_err() { return } break }
                changed = network.changed() => { if changed.is_err() { return } break }
                change = changes.recv() => match change {
                    Ok(Change::LinkChanged(link)) if link.name == flags.mirror_iface => break,
                    // Without it the node's own port would receive nothing.
                    Ok(Change::LinkGone(link)) if link.name == NODE_SHAPER => {
                        touched = true;
                        break;
                    }
                    Ok(Change::LinkChanged(link)) if link.name == NODE_SHAPER && !link.up => {
                        touched = true;
                        break;
                    }
                    Ok(Change::Lost) | Err(RecvError::Lagged(_)) => {
                        touched = true;
                        break;
                    }
                    Ok(Change::Traffic) => {
                        touched = true;
                        // Our own changes are reported too, and others' may come all the time.
                        next = next.min(verified.map_or_else(Instant::now, |at| at + TOUCHED));
                    }
                    Ok(_) => {}
                    Err(RecvError::Closed) => return,
                },
            }
        }
        let first = Instant::now();
        sleep(GATHER).await;
        // A call settles its own port, and a pass looks at all of them.
        while plugger.idle() < GATHER && first.elapsed() < BUSY {
            sleep(GATHER).await;
        }
    }
}
