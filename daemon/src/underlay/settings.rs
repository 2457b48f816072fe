//! Settings of a NIC that change while it is in a bridge of the userspace datapath.
//!
//! There the kernel goes on hearing what the NIC receives, and would take every packet for the node a second time (a UDP
//! service would get each datagram twice). The strict reverse-path filter stops IPv4, since all routes lead to the
//! bridge; IPv6 is switched off on the NIC. With the kernel's datapath the switch takes the packets itself, and nothing
//! is changed. Checksum offload has to be off where packets pass a packet socket ([`crate::sys::EthtoolSocket`]).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::hostnet::HostNet;
use crate::sys::{read_sysctl, write_sysctl};

/// Of a NIC: `<family>/<name>` and the value in the bridge.
const WANTED: [(&str, &str, &str); 2] = [("ipv4", "rp_filter", "1"), ("ipv6", "disable_ipv6", "1")];

fn path(family: &str, device: &str, name: &str) -> String {
    format!("net/{family}/conf/{device}/{name}")
}

/// What the NIC had.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Kernel settings, `<family>/<name>`.
    #[serde(default)]
    pub sysctls: BTreeMap<String, String>,
    /// The NIC computed checksums.
    #[serde(default)]
    pub tx_checksum: bool,
    /// NetworkManager managed it.
    #[serde(default)]
    pub managed: bool,
}

impl Settings {
    /// Of a NIC as it is.
    pub(super) async fn of(host: &HostNet, device: &str) -> Self {
        let name = device.to_owned();
        let read = move || {
            let values = WANTED.iter().filter_map(|(family, key, _)| {
                Some((format!("{family}/{key}"), read_sysctl(&path(family, &name, key))?))
            });
            values.collect::<BTreeMap<String, String>>()
        };
        // Without them nothing would be given back, and nothing is changed either.
        let sysctls = host.namespace.run_async(read).await.unwrap_or_default();
        Self { sysctls, tx_checksum: host.ethtool.tx_checksum(device).unwrap_or(false), managed: false }
    }

    async fn set(host: &HostNet, device: &str, values: Vec<(String, String)>) -> std::io::Result<()> {
        let name = device.to_owned();
        let write = move || {
            for (key, value) in values {
                if let Some((family, key)) = key.split_once('/') {
                    write_sysctl(&path(family, &name, key), &value)?;
                }
            }
            Ok(())
        };
        host.namespace.run_async(write).await.and_then(|result| result)
    }

    /// Makes a NIC as it has to be in the bridge. IPv6 stays on where the NIC has none, so that it can be configured.
    pub(super) async fn silence(&self, host: &HostNet, device: &str, ipv6: bool) -> std::io::Result<()> {
        let known = |family: &str, key: &str| self.sysctls.contains_key(&format!("{family}/{key}"));
        let values =
            WANTED.iter().filter(|(family, key, _)| known(family, key) && (ipv6 || *family == "ipv4"));
        let values = values.map(|(family, key, value)| (format!("{family}/{key}"), (*value).to_owned()));
        Self::set(host, device, values.collect()).await
    }

    /// Whether IPv6 is on although it is to be off: somebody is about to give the NIC addresses.
    pub(super) async fn is_ipv6_on(&self, host: &HostNet, device: &str) -> bool {
        let file = path("ipv6", device, "disable_ipv6");
        let now = host.namespace.run_async(move || read_sysctl(&file)).await;
        self.sysctls.contains_key("ipv6/disable_ipv6") && now.is_ok_and(|now| now.as_deref() == Some("0"))
    }

    /// Gives a NIC back what it had; one that is to carry IPv6 addresses can.
    pub(super) async fn restore(&self, host: &HostNet, device: &str, ipv6: bool) -> std::io::Result<()> {
        let mut values: BTreeMap<String, String> = self.sysctls.clone();
        if ipv6 {
            values.insert("ipv6/disable_ipv6".to_owned(), "0".to_owned());
        }
        Self::set(host, device, values.into_iter().collect()).await
    }

    /// Gives a NIC its checksum offload back, once no packet socket is on it.
    pub(super) fn restore_offload(&self, host: &HostNet, device: &str) -> std::io::Result<()> {
        if self.tx_checksum && !host.ethtool.tx_checksum(device)? {
            host.ethtool.set_tx_checksum(device, true)?;
        }
        Ok(())
    }
}
