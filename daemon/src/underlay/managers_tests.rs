use std::sync::{Arc, Mutex};

use super::*;
use tokio::net::UnixStream;
use zbus::zvariant::ObjectPath;

/// What a fake device says.
#[derive(Clone, Copy)]
struct Fake {
    kind: u32,
    managed: bool,
    dns: bool,
    parent: bool,
}

const ETHERNET: u32 = 1;
const NIC: Fake = Fake { kind: ETHERNET, managed: true, dns: false, parent: false };

type Devices = Arc<Mutex<Vec<Fake>>>;

fn path(number: usize) -> OwnedObjectPath {
    ObjectPath::try_from(format!("/org/freedesktop/NetworkManager/Devices/{number}")).unwrap().into()
}

struct Bus {
    runs: bool,
}

#[zbus::interface(name = "org.freedesktop.DBus")]
impl Bus {
    fn name_has_owner(&self, name: &str) -> bool {
        self.runs && name == SERVICE
    }
}

struct Manager {
    version: &'static str,
    devices: Devices,
}

#[zbus::interface(name = "org.freedesktop.NetworkManager")]
impl Manager {
    fn get_device_by_ip_iface(&self, name: &str) -> zbus::fdo::Result<OwnedObjectPath> {
        match name {
            "eth1" => Ok(path(0)),
            other => Err(zbus::fdo::Error::Failed(format!("no device {other}"))),
        }
    }
    #[zbus(property)]
    fn version(&self) -> &str {
        self.version
    }
    #[zbus(property)]
    fn devices(&self) -> Vec<OwnedObjectPath> {
        (0..self.devices.lock().unwrap().len()).map(path).collect()
    }
}

struct Device {
    number: usize,
    devices: Devices,
}

#[zbus::interface(name = "org.freedesktop.NetworkManager.Device")]
impl Device {
    #[zbus(property)]
    fn managed(&self) -> bool {
        self.devices.lock().unwrap()[self.number].managed
    }
    #[zbus(property)]
    fn set_managed(&mut self, managed: bool) {
        self.devices.lock().unwrap()[self.number].managed = managed;
    }
    #[zbus(property)]
    fn device_type(&self) -> u32 {
        self.devices.lock().unwrap()[self.number].kind
    }
    #[zbus(property)]
    fn ip4_config(&self) -> OwnedObjectPath {
        ObjectPath::try_from("/org/freedesktop/NetworkManager/IP4Config/1").unwrap().into()
    }
}

struct Vlan {
    number: usize,
    devices: Devices,
}

#[zbus::interface(name = "org.freedesktop.NetworkManager.Device.Vlan")]
impl Vlan {
    #[zbus(property)]
    fn parent(&self) -> OwnedObjectPath {
        path(if self.devices.lock().unwrap()[self.number].parent { 0 } else { 9 })
    }
}

struct Config {
    devices: Devices,
}

#[zbus::interface(name = "org.freedesktop.NetworkManager.IP4Config")]
impl Config {
    #[zbus(property)]
    fn nameservers(&self) -> Vec<u32> {
        if self.devices.lock().unwrap()[0].dns { vec![1] } else { Vec::new() }
    }
}

/// NetworkManager at the other end of a socket; the end that serves lives as long as the value.
async fn network_manager(
    version: &'static str,
    runs: bool,
    fakes: &[Fake],
) -> (Managers, Devices, Connection) {
    let devices: Devices = Arc::new(Mutex::new(fakes.to_vec()));
    let (ours, theirs) = UnixStream::pair().unwrap();
    let guid = zbus::Guid::generate();
    let mut server = zbus::connection::Builder::unix_stream(theirs)
        .server(guid)
        .unwrap()
        .p2p()
        .serve_at("/org/freedesktop/DBus", Bus { runs })
        .unwrap()
        .serve_at(ROOT, Manager { version, devices: devices.clone() })
        .unwrap()
        .serve_at("/org/freedesktop/NetworkManager/IP4Config/1", Config { devices: devices.clone() })
        .unwrap();
    for number in 0..fakes.len() {
        server = server
            .serve_at(path(number), Device { number, devices: devices.clone() })
            .unwrap()
            .serve_at(path(number), Vlan { number, devices: devices.clone() })
            .unwrap();
    }
    let client = zbus::connection::Builder::unix_stream(ours).p2p();
    let (server, client) = tokio::join!(server.build(), client.build());
    (Managers::on(client.unwrap()), devices, server.unwrap())
}

#[tokio::test]
async fn a_managed_nic_is_released_and_handed_back() {
    let (managers, devices, _server) = network_manager("1.42.4", true, &[NIC]).await;
    assert!(managers.manages("eth1").await);
    managers.release("eth1").await.unwrap();
    assert!(!devices.lock().unwrap()[0].managed);
    assert!(!managers.manages("eth1").await, "once is enough");
    managers.hand_back("eth1").await.unwrap();
    assert!(devices.lock().unwrap()[0].managed);
}

#[tokio::test]
async fn u46_what_would_go_down_stays_managed() {
    let managed_vlan = Fake { kind: TYPE_VLAN, parent: true, ..NIC };
    for (what, version, devices, released) in [
        ("a team", "1.42.4", vec![Fake { kind: TYPE_TEAM, ..NIC }], false),
        ("a VLAN on it", "1.42.4", vec![NIC, managed_vlan], false),
        ("an unmanaged VLAN on it", "1.42.4", vec![NIC, Fake { managed: false, ..managed_vlan }], true),
        ("a VLAN elsewhere", "1.42.4", vec![NIC, Fake { parent: false, ..managed_vlan }], true),
        ("an old version", "1.4.2", vec![NIC], false),
        ("1.18 with DNS", "1.18.8", vec![Fake { dns: true, ..NIC }], false),
        ("1.18 without DNS", "1.18.8", vec![NIC], true),
        ("1.20 with DNS", "1.20.0", vec![Fake { dns: true, ..NIC }], true),
    ] {
        let (managers, _devices, _server) = network_manager(version, true, &devices).await;
        assert_eq!(managers.manages("eth1").await, released, "{what}");
    }
}

#[tokio::test]
async fn without_network_manager_nothing_is_asked_of_it() {
    let (managers, devices, _server) = network_manager("1.42.4", false, &[NIC]).await;
    assert!(!managers.manages("eth1").await);
    managers.release("eth1").await.unwrap();
    assert!(devices.lock().unwrap()[0].managed);
    let (managers, _devices, _server) = network_manager("1.42.4", true, &[NIC]).await;
    assert!(!managers.manages("eth7").await, "a device that it does not know");
    assert!(!Managers::none().manages("eth1").await);
}
