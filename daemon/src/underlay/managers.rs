//! NetworkManager must leave a NIC alone that is in a bridge of ours: it would take the addresses off it again, or set
//! it down (node contract §3.6).
//!
//! In: the system bus (`DBUS_SYSTEM_BUS_ADDRESS`, the host's in the pod). Out: the property `Managed` of one device.
//! Without a bus, or without NetworkManager on it, nothing is done; nobody is started. Addresses that it configures
//! later come as events of the kernel, whoever configures them, so its signals are not needed.

use std::time::Duration;

use zbus::Connection;
use zbus::zvariant::OwnedObjectPath;

use super::not_yet;
use crate::node::NotYet;

/// Its name on the bus.
const SERVICE: &str = "org.freedesktop.NetworkManager";
const ROOT: &str = "/org/freedesktop/NetworkManager";
const DEVICE: &str = "org.freedesktop.NetworkManager.Device";
const VLAN: &str = "org.freedesktop.NetworkManager.Device.Vlan";
const IP4: &str = "org.freedesktop.NetworkManager.IP4Config";
/// Kinds of devices (`NMDeviceType`).
const TYPE_VLAN: u32 = 11;
const TYPE_TEAM: u32 = 15;
/// How long the bus may take to answer.
const PATIENCE: Duration = Duration::from_millis(200);
/// How long a change may take.
const CHANGE: Duration = Duration::from_secs(5);

/// Those who configure NICs.
#[derive(Clone, Debug, Default)]
pub struct Managers {
    /// A bus to use instead of the system's (tests).
    bus: Option<Connection>,
    /// There is none.
    off: bool,
}

fn failed(error: &zbus::Error) -> NotYet {
    not_yet(
        format!("NetworkManager: {error}"),
        "let it leave the interface alone (unmanaged-devices in NetworkManager.conf)",
    )
}

/// Versions that can't give up a device, or would take its DNS servers out of resolv.conf with it.
fn version_allows(version: &str, has_dns: bool) -> bool {
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().unwrap_or_default());
    match (numbers.next(), numbers.next()) {
        (Some(1), Some(18)) => !has_dns,
        (Some(1), Some(minor)) => minor >= 6,
        (Some(major), _) => major > 1,
        (None, _) => false,
    }
}

impl Managers {
    /// Nobody configures NICs.
    pub fn none() -> Self {
        Self { bus: None, off: true }
    }

    /// By a bus that is connected already.
    pub fn on(bus: Connection) -> Self {
        Self { bus: Some(bus), off: false }
    }

    /// The bus, if NetworkManager is on it.
    async fn bus(&self) -> Option<Connection> {
        if self.off {
            return None;
        }
        let look = async {
            let bus = match &self.bus {
                Some(bus) => bus.clone(),
                None => Connection::system().await.ok()?,
            };
            let message = bus.call_method(
                Some("org.freedesktop.DBus"),
                "/org/freedesktop/DBus",
                Some("org.freedesktop.DBus"),
                "NameHasOwner",
                &SERVICE,
            );
            let runs: bool = message.await.ok()?.body().deserialize().ok()?;
            runs.then_some(bus)
        };
        tokio::time::timeout(PATIENCE, look).await.ok().flatten()
    }

    /// Whether NetworkManager manages a NIC and has to stop it. Errors count as no: then there is nothing to stop.
    pub(super) async fn manages(&self, nic: &str) -> bool {
        let Some(bus) = self.bus().await else { return false };
        let look = must_let_go(&bus, nic);
        match tokio::time::timeout(CHANGE, look).await {
            Ok(Ok(Ok(()))) => true,
            Ok(Ok(Err(why))) => {
                tracing::debug!(nic, why, "NetworkManager keeps the interface");
                false
            }
            Ok(Err(error)) => {
                tracing::debug!(nic, %error, "NetworkManager does not know the interface");
                false
            }
            Err(_) => {
                tracing::warn!(nic, "NetworkManager does not answer");
                false
            }
        }
    }

    /// Makes NetworkManager leave a NIC alone.
    pub(super) async fn release(&self, nic: &str) -> Result<(), NotYet> {
        self.set(nic, false).await
    }

    /// Lets NetworkManager manage a NIC again.
    pub(super) async fn hand_back(&self, nic: &str) -> Result<(), NotYet> {
        self.set(nic, true).await
    }

    async fn set(&self, nic: &str, managed: bool) -> Result<(), NotYet> {
        let Some(bus) = self.bus().await else { return Ok(()) };
        let change = async {
            let device = zbus::Proxy::new(&bus, SERVICE, device(&bus, nic).await?, DEVICE).await?;
            device.set_property("Managed", managed).await?;
            Ok::<(), zbus::Error>(())
        };
        tracing::info!(nic, managed, "tells NetworkManager");
        match tokio::time::timeout(CHANGE, change).await {
            Ok(result) => result.map_err(|error| failed(&error))?,
            Err(_) => return Err(not_yet("NetworkManager does not answer", "look at its log")),
        }
        crate::steps::done("tell NetworkManager").await;
        Ok(())
    }
}

async fn device(bus: &Connection, nic: &str) -> zbus::Result<OwnedObjectPath> {
    zbus::Proxy::new(bus, SERVICE, ROOT, SERVICE).await?.call("GetDeviceByIpIface", &(nic,)).await
}

/// Ok when a NIC is managed and may be released; else why not.
async fn must_let_go(bus: &Connection, nic: &str) -> zbus::Result<Result<(), &'static str>> {
    let manager = zbus::Proxy::new(bus, SERVICE, ROOT, SERVICE).await?;
    let path = device(bus, nic).await?;
    let device = zbus::Proxy::new(bus, SERVICE, path.clone(), DEVICE).await?;
    if !device.get_property::<bool>("Managed").await? {
        return Ok(Err("it is unmanaged already"));
    }
    if device.get_property::<u32>("DeviceType").await? == TYPE_TEAM {
        return Ok(Err("a team without its manager goes down"));
    }
    let version: String = manager.get_property("Version").await?;
    let config: OwnedObjectPath = device.get_property("Ip4Config").await?;
    let has_dns = match config.as_str() {
        "/" => false,
        _ => {
            let config = zbus::Proxy::new(bus, SERVICE, config, IP4).await?;
            !config.get_property::<Vec<u32>>("Nameservers").await.unwrap_or_default().is_empty()
        }
    };
    if !version_allows(&version, has_dns) {
        return Ok(Err("this version can't let go of it without harm"));
    }
    let devices: Vec<OwnedObjectPath> = manager.get_property("Devices").await?;
    for child in devices {
        let device = zbus::Proxy::new(bus, SERVICE, child.clone(), DEVICE).await?;
        if device.get_property::<u32>("DeviceType").await? != TYPE_VLAN {
            continue;
        }
        let vlan = zbus::Proxy::new(bus, SERVICE, child, VLAN).await?;
        let parent: OwnedObjectPath = vlan.get_property("Parent").await?;
        if parent == path && device.get_property::<bool>("Managed").await? {
            return Ok(Err("a VLAN on it is managed and would go down with it"));
        }
    }
    Ok(Ok(()))
}

#[cfg(test)]
#[path = "managers_tests.rs"]
mod tests;
