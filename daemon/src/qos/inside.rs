//! A pod's own end of its link, found from what ADD noted.

use std::path::Path;

use super::effect::{End, PodEnd};
use crate::hostnet::HostNet;
use crate::netlink::{Link, Netlink, Result};
use crate::ovs::Interface;
use crate::plug::IF_NAME;
use crate::sys::Namespace;

/// External id of an interface that names its pod's namespace; one that waits for its pod's ADD has none.
pub(super) const NAMESPACE: &str = "pod_netns";

/// A pod's end, with what keeps it open.
pub(super) struct Inside {
    netlink: Option<Netlink>,
    link: Option<Link>,
    /// The interface's name in the pod.
    pub(super) name: String,
}

impl Inside {
    /// By what ADD noted and what the host's end says of its peer; by its alias where the device itself is in the pod. A
    /// namespace that is gone has no end, and neither has another one that is found at its path now (`/proc/<pid>` of a
    /// process that ended): what is shaped there would be somebody else's, or the node's own.
    pub(super) async fn open(host: &HostNet, interface: &Interface, host_end: Option<&Link>) -> Result<Self> {
        let name = interface.external_id(IF_NAME).unwrap_or_default().to_owned();
        let mut inside = Self { netlink: None, link: None, name };
        let Some(path) = interface.external_id(NAMESPACE).filter(|path| !path.is_empty()) else {
            return Ok(inside);
        };
        let Ok(namespace) = Namespace::open(Path::new(path)) else { return Ok(inside) };
        if namespace == host.namespace {
            return Ok(inside);
        }
        let netlink = Netlink::in_namespace(&namespace).await?;
        inside.link = match host_end {
            Some(link) => host.netlink.other_end(link, &namespace, &netlink).await?,
            None if inside.name.is_empty() => None,
            None => {
                // The alias of an internal port's device is the port's name.
                let device = Some(interface.name());
                netlink.link(&inside.name).await?.filter(|link| link.alias.as_deref() == device)
            }
        };
        if let Some(link) = &inside.link {
            inside.name.clone_from(&link.name);
        }
        inside.netlink = Some(netlink);
        Ok(inside)
    }

    pub(super) fn end(&self) -> End<'_> {
        match (&self.netlink, &self.link) {
            (Some(netlink), Some(link)) => End::Pod(PodEnd { netlink, index: link.index, mtu: link.mtu }),
            _ => End::Lost,
        }
    }
}
