//! The host's network: one handle with everything that is bound to its
//! namespace.

use std::sync::Arc;

use crate::netlink::{Error, Hints, Monitor, Netlink, Reachability, Result, Veth};
use crate::sys::{EthtoolSocket, Namespace};

/// The namespace that OVS runs in, the host's. Cheap to clone.
#[derive(Clone, Debug)]
pub struct HostNet {
    /// The namespace itself.
    pub namespace: Namespace,
    /// Links, addresses, routes.
    pub netlink: Netlink,
    /// Offloads.
    pub ethtool: Arc<EthtoolSocket>,
}

impl HostNet {
    /// Opens everything in `namespace`.
    ///
    /// # Errors
    /// When it can't be entered or a socket not be opened.
    pub async fn open(namespace: Namespace) -> Result<Self> {
        let runtime = tokio::runtime::Handle::current();
        let (netlink, ethtool) = namespace
            .run_async(move || (Netlink::open_on(&runtime), EthtoolSocket::open()))
            .await
            .map_err(|source| Error::io("enter the host's namespace", source))?;
        let ethtool = ethtool.map_err(|source| Error::io("open an ethtool socket", source))?;
        Ok(Self { namespace, netlink: netlink?, ethtool: Arc::new(ethtool) })
    }

    /// Opens everything in the process's own namespace.
    ///
    /// # Errors
    /// As [`HostNet::open`].
    pub async fn own() -> Result<Self> {
        let namespace =
            Namespace::current().map_err(|source| Error::io("open the host's namespace", source))?;
        Self::open(namespace).await
    }

    /// Makes a pair whose near end is a port of the switch, up and with all that
    /// a port needs, before the switch hears of it: each change of a port makes
    /// ovs-vswitchd ask the kernel about all its ports and read all routes
    /// again. On a node with a hundred ports one costs 10 ms (docs/performance.md).
    ///
    /// So TX checksums are off from the start where the datapath needs it, and
    /// the end is promiscuous, as ovs-vswitchd would make it.
    ///
    /// # Errors
    /// `EEXIST` when either name is taken.
    pub async fn add_port_veth(&self, veth: &Veth<'_>, tx_checksum_off: bool) -> Result<()> {
        self.netlink.add_veth_down(veth).await?;
        if tx_checksum_off {
            self.ethtool
                .tx_checksum_off(veth.name)
                .map_err(|source| Error::io(format!("checksum offload of {}", veth.name), source))?;
        }
        self.netlink.set_up_new_port(veth.name).await
    }

    /// A prober for neighbours.
    ///
    /// # Errors
    /// As [`HostNet::open`].
    pub async fn reachability(&self) -> Result<Reachability> {
        let runtime = tokio::runtime::Handle::current();
        self.namespace
            .run_async(move || Reachability::open_on(&runtime))
            .await
            .map_err(|source| Error::io("enter the host's namespace", source))?
    }

    /// Reports of the packet filter, of settings and of queueing disciplines.
    ///
    /// # Errors
    /// As [`HostNet::open`].
    pub async fn hints(&self) -> Result<Hints> {
        let runtime = tokio::runtime::Handle::current();
        self.namespace
            .run_async(move || Hints::open_on(&runtime))
            .await
            .and_then(|opened| opened)
            .map_err(|source| Error::io("listen to the kernel's reports", source))
    }

    /// A monitor of changes.
    ///
    /// # Errors
    /// As [`HostNet::open`].
    pub async fn monitor(&self) -> Result<Monitor> {
        let runtime = tokio::runtime::Handle::current();
        self.namespace
            .run_async(move || Monitor::open_on(&runtime))
            .await
            .map_err(|source| Error::io("enter the host's namespace", source))?
    }
}
