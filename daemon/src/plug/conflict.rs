//! Does somebody else own the pod's address already? Asked on underlay
//! subnets only: there addresses come from a physical network that others use
//! too; on an overlay OVN itself guarantees that there is no second owner.
//!
//! IPv4 by probes (RFC 5227 §2.1, with short intervals: a neighbour answers
//! within milliseconds or is not there); IPv6 by the kernel's own duplicate
//! address detection, whose verdict comes as an event.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use tokio::io::unix::AsyncFd;

use super::add::failed;
use super::container::Container;
use super::error::PlugError;
use crate::netlink::{Link, Mac, Monitor};
use crate::sys::{ArpMessage, ArpSocket, Namespace, arp_probe};

/// Probes per address, and the pause after each.
const PROBES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(150);

/// Probes for the IPv4 ones of the addresses; they must not be on the link yet.
///
/// # Errors
/// Somebody owns one of them; its MAC is in the message.
pub(crate) async fn probe(
    namespace: &Namespace,
    link: &Link,
    mac: Mac,
    addresses: &[IpAddr],
) -> Result<(), PlugError> {
    let v4 = addresses.iter().filter_map(|ip| match ip {
        IpAddr::V4(ip) => Some(*ip),
        IpAddr::V6(_) => None,
    });
    let addresses: &[Ipv4Addr] = &v4.collect::<Vec<_>>();
    if addresses.is_empty() {
        return Ok(());
    }
    let index = link.index;
    let socket = namespace
        .run_async(move || ArpSocket::open(index))
        .await
        .and_then(|socket| socket?.watched())
        .map_err(|error| failed(format!("listen for ARP in the pod: {error}")))?;
    for _ in 0..PROBES {
        for address in addresses {
            let frame = arp_probe(mac.0, *address);
            socket.get_ref().send(&frame).map_err(|error| failed(format!("send an ARP probe: {error}")))?;
        }
        match tokio::time::timeout(PAUSE, owner(&socket, mac, addresses)).await {
            Err(_) => {}
            Ok(Err(error)) => return Err(failed(format!("listen for ARP in the pod: {error}"))),
            Ok(Ok((address, owner))) => return Err(taken(address.into(), &format!(" with MAC {owner}"))),
        }
    }
    Ok(())
}

/// Waits for a message of somebody who has, or wants, one of the addresses.
async fn owner(
    socket: &AsyncFd<ArpSocket>,
    mac: Mac,
    addresses: &[Ipv4Addr],
) -> std::io::Result<(Ipv4Addr, Mac)> {
    loop {
        let mut guard = socket.readable().await?;
        let Ok(frame) = guard.try_io(|socket| socket.get_ref().receive()) else { continue };
        let Some(message) = ArpMessage::parse(&frame?) else { continue };
        if let Some(found) = conflict(&message, mac, addresses) {
            return Ok(found);
        }
    }
}

/// RFC 5227 §2.1.1: a sender that has the address, or another's probe for it.
fn conflict(message: &ArpMessage, own: Mac, addresses: &[Ipv4Addr]) -> Option<(Ipv4Addr, Mac)> {
    let sender = Mac(message.sender_mac);
    if sender == own {
        return None;
    }
    let probed = message.sender_ip.is_unspecified().then_some(message.target_ip);
    [Some(message.sender_ip), probed]
        .into_iter()
        .flatten()
        .find(|ip| addresses.contains(ip))
        .map(|ip| (ip, sender))
}

fn taken(address: IpAddr, by: &str) -> PlugError {
    failed(format!("IP address {address} has already been used by host{by}"))
        .remedy("exclude the address from the subnet (spec.excludeIps), or free it; then delete the pod")
}

/// Waits until the kernel has found the IPv6 addresses unique.
///
/// # Errors
/// Somebody else has one, or the kernel does not come to an end in time.
pub(super) async fn wait_preferred(
    namespace: &Namespace,
    container: &Container,
    link: &Link,
    addresses: &[IpAddr],
    patience: Duration,
) -> Result<(), PlugError> {
    if !addresses.iter().any(IpAddr::is_ipv6) {
        return Ok(());
    }
    let runtime = tokio::runtime::Handle::current();
    let mut changes =
        namespace.run_async(move || Monitor::open_on(&runtime)).await.map_err(failed)?.map_err(failed)?;
    let wait = async {
        loop {
            let present = container.netlink.addresses(Some(link.index)).await.map_err(failed)?;
            let ours = || present.iter().filter(|address| addresses.contains(&address.net.addr()));
            if let Some(duplicate) = ours().find(|address| address.duplicate) {
                return Err(taken(duplicate.net.addr(), " on the physical network"));
            }
            if !ours().any(|address| address.tentative) {
                return Ok(());
            }
            if changes.next().await.is_none() {
                return Err(failed("the kernel's reports about the pod's addresses ended"));
            }
        }
    };
    tokio::time::timeout(patience, wait).await.unwrap_or_else(|_| {
        Err(failed(format!("the kernel has not found the IPv6 addresses unique within {patience:?}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_others_with_our_address_are_a_conflict() {
        let own: Mac = "0a:00:00:00:00:01".parse().unwrap();
        let other: Mac = "0a:00:00:00:00:02".parse().unwrap();
        let address: Ipv4Addr = "10.0.0.5".parse().unwrap();
        let message = |mac: Mac, sender: &str, target: &str| ArpMessage {
            sender_mac: mac.0,
            sender_ip: sender.parse().unwrap(),
            target_ip: target.parse().unwrap(),
        };
        let addresses = [address];
        for (message, expected) in [
            (message(other, "10.0.0.5", "10.0.0.5"), Some((address, other))),
            (message(other, "0.0.0.0", "10.0.0.5"), Some((address, other))),
            // Somebody asks for us, or for another.
            (message(other, "10.0.0.9", "10.0.0.5"), None),
            (message(other, "0.0.0.0", "10.0.0.9"), None),
            (message(own, "0.0.0.0", "10.0.0.5"), None),
        ] {
            assert_eq!(conflict(&message, own, &addresses), expected, "{message:?}");
        }
    }
}
