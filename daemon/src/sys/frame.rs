//! The two frames that announce an address to its neighbours. Pure.

use std::net::{Ipv4Addr, Ipv6Addr};

const BROADCAST: [u8; 6] = [0xff; 6];

/// A gratuitous ARP request (RFC 5227 §1.2): neighbours that cached the
/// address's former owner learn the new MAC.
pub fn gratuitous_arp(mac: [u8; 6], address: Ipv4Addr) -> Vec<u8> {
    let mut frame = Vec::with_capacity(42);
    frame.extend(BROADCAST);
    frame.extend(mac);
    frame.extend([0x08, 0x06]); // EtherType ARP
    frame.extend([0, 1, 8, 0, 6, 4, 0, 1]); // Ethernet, IPv4, sizes, request
    frame.extend(mac);
    frame.extend(address.octets());
    frame.extend([0; 6]);
    frame.extend(address.octets());
    frame
}

/// A question whether anybody has `address`, from nobody (RFC 5227 §2.1.1).
pub fn arp_probe(mac: [u8; 6], address: Ipv4Addr) -> Vec<u8> {
    let mut frame = gratuitous_arp(mac, address);
    // The sender's address.
    frame.splice(28..32, [0; 4]);
    frame
}

/// What an ARP message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArpMessage {
    /// MAC of the sender.
    pub sender_mac: [u8; 6],
    /// Address of the sender; unspecified in a probe.
    pub sender_ip: Ipv4Addr,
    /// Address that it is about.
    pub target_ip: Ipv4Addr,
}

impl ArpMessage {
    /// Reads an Ethernet frame; `None` if it is no ARP for IPv4.
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let body = frame.get(12..)?.strip_prefix(&[0x08, 0x06, 0, 1, 8, 0, 6, 4])?;
        let four = |at: usize| Some(Ipv4Addr::from(<[u8; 4]>::try_from(body.get(at..at + 4)?).ok()?));
        Some(Self { sender_mac: body.get(2..8)?.try_into().ok()?, sender_ip: four(8)?, target_ip: four(18)? })
    }
}

/// An unsolicited neighbour advertisement to all nodes with the override flag
/// (RFC 4861 §7.2.6).
pub fn unsolicited_neighbour_advertisement(mac: [u8; 6], address: Ipv6Addr) -> Vec<u8> {
    let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let mut message = vec![136, 0, 0, 0, 0x20, 0, 0, 0];
    message.extend(address.octets());
    message.extend([2, 1]); // option: target link-layer address, 8 bytes
    message.extend(mac);
    let sum = icmpv6_checksum(address, all_nodes, &message).to_be_bytes();
    message[2..4].copy_from_slice(&sum);

    let mut frame = Vec::with_capacity(14 + 40 + message.len());
    frame.extend([0x33, 0x33, 0, 0, 0, 1]);
    frame.extend(mac);
    frame.extend([0x86, 0xdd]); // EtherType IPv6
    frame.extend([0x60, 0, 0, 0]);
    frame.extend((message.len() as u16).to_be_bytes());
    frame.extend([58, 255]); // ICMPv6, hop limit 255
    frame.extend(address.octets());
    frame.extend(all_nodes.octets());
    frame.extend(message);
    frame
}

/// RFC 4443 §2.3: over the pseudo header and the message with a zero checksum.
fn icmpv6_checksum(source: Ipv6Addr, destination: Ipv6Addr, message: &[u8]) -> u16 {
    let mut bytes = Vec::with_capacity(40 + message.len());
    bytes.extend(source.octets());
    bytes.extend(destination.octets());
    bytes.extend((message.len() as u32).to_be_bytes());
    bytes.extend([0, 0, 0, 58]);
    bytes.extend(message);
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arp_is_42_bytes_and_names_the_address_twice() {
        let frame = gratuitous_arp([2, 0, 0, 0, 0, 9], Ipv4Addr::new(10, 16, 0, 5));
        assert_eq!(frame.len(), 42);
        assert_eq!(&frame[28..32], &[10, 16, 0, 5]);
        assert_eq!(&frame[38..42], &[10, 16, 0, 5]);
    }

    #[test]
    fn arp_is_read_as_it_was_written() {
        let (mac, address) = ([2, 0, 0, 0, 0, 9], Ipv4Addr::new(10, 16, 0, 5));
        let probe = ArpMessage::parse(&arp_probe(mac, address)).unwrap();
        assert_eq!(
            probe,
            ArpMessage { sender_mac: mac, sender_ip: Ipv4Addr::UNSPECIFIED, target_ip: address }
        );
        let announced = ArpMessage::parse(&gratuitous_arp(mac, address)).unwrap();
        assert_eq!(announced.sender_ip, address);
        let frame = gratuitous_arp(mac, address);
        for length in 0..frame.len() {
            assert_eq!(ArpMessage::parse(&frame[..length]), None, "{length}");
        }
    }

    #[test]
    fn the_advertisement_carries_a_valid_checksum() {
        let address: Ipv6Addr = "fd00::5".parse().unwrap();
        let frame = unsolicited_neighbour_advertisement([2, 0, 0, 0, 0, 9], address);
        assert_eq!(frame.len(), 14 + 40 + 32);
        // A message with its checksum in place sums to zero.
        let all_nodes: Ipv6Addr = "ff02::1".parse().unwrap();
        assert_eq!(icmpv6_checksum(address, all_nodes, &frame[54..]), 0);
    }
}
