//! The traffic mirror (node contract §2.9): port `mirror0`, mirror `m0`, and which pods are in it.
//!
//! In: flags, pods as watched, the switch's rows. Out: rows, the port's link set up. Level-triggered, so membership is
//! the same after any restart; nothing is written when it is so already.

use std::collections::BTreeSet;

use crate::attachments::{pod_of, provider_of};
use crate::flags::Flags;
use crate::ovs::mirror::{self, Selection};
use crate::ovs::{BR_INT, Interface, OvsError, PlanError, PortSpec, plan};
use crate::plug::Plugger;

/// Annotation that asks for it, by its last part.
const KEY: &str = "mirror";

/// One pass.
///
/// # Errors
/// When the switch can't be changed. A bridge that is not there yet is no error: ovn-controller makes it in its time.
pub async fn pass(plugger: &Plugger, flags: &Flags) -> Result<(), OvsError> {
    match try_pass(plugger, flags).await {
        Err(OvsError::Plan(PlanError::NoBridge(_))) => Ok(()),
        result => result,
    }
}

async fn try_pass(plugger: &Plugger, flags: &Flags) -> Result<(), OvsError> {
    let view = plugger.ovs.view();
    if !view.is_connected() || view.bridge(BR_INT).is_none() {
        return Ok(());
    }
    let output = &flags.mirror_iface;
    let spec = PortSpec {
        bridge: BR_INT.to_owned(),
        name: output.clone(),
        kind: "internal".to_owned(),
        ..PortSpec::default()
    };
    plugger.ovs.apply(|view| plan::ensure_port(view, &spec)).await?;
    let pods = plugger.cluster.pods.get();
    // Without a complete list of pods nobody is to lose a membership.
    if !flags.enable_mirror && !pods.synced {
        return Ok(());
    }
    plugger
        .ovs
        .apply(|view| {
            let (mut members, mut managed) = (BTreeSet::new(), BTreeSet::new());
            for interface in view.interfaces().filter(Interface::is_pod_port) {
                let wanted = pod_of(&interface, &pods).and_then(|pod| {
                    let provider = provider_of(&interface, &pod)?;
                    Some(pod.annotation(&provider, KEY) == Some("true"))
                });
                // A pod that is not known is not judged.
                let Some(wanted) = wanted else { continue };
                managed.insert(interface.name().to_owned());
                if wanted {
                    members.insert(interface.name().to_owned());
                }
            }
            let selection = if flags.enable_mirror {
                Selection::All
            } else {
                Selection::Towards { members: &members, managed: &managed }
            };
            mirror::ensure(view, BR_INT, output, &selection)
        })
        .await?;
    set_up(plugger, output).await;
    Ok(())
}

/// The port's link has to be up, or what is mirrored is thrown away.
async fn set_up(plugger: &Plugger, output: &str) {
    let host = &plugger.host.netlink;
    let done = match host.link(output).await {
        Ok(Some(link)) if !link.up => host.set_up(link.index).await,
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    };
    if let Err(error) = done {
        tracing::warn!(link = output, error = %error, "the mirror's port can't be set up");
    }
}
