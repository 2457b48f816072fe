//! Echo requests without the `ping` program, which not every machine has.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use daemon::netlink::Mac;
use daemon::sys::{Namespace, PacketSocket};
use socket2::{Domain, Protocol, Socket, Type};

static IDENTIFIER: AtomicU16 = AtomicU16::new(1);
const PATIENCE: Duration = Duration::from_secs(1);
const PAYLOAD: usize = 56;

fn sum(parts: &[&[u8]]) -> u16 {
    let bytes: Vec<u8> = parts.concat();
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut total: u32 = words.sum();
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    !(total as u16)
}

/// An echo request of this length, header included.
fn request(ipv6: bool, identifier: u16, sequence: u16, length: usize) -> Vec<u8> {
    let mut message = vec![if ipv6 { 128 } else { 8 }, 0, 0, 0];
    message.extend(identifier.to_be_bytes());
    message.extend(sequence.to_be_bytes());
    message.resize(length, 0x5a);
    if !ipv6 {
        let checksum = sum(&[&message]).to_be_bytes();
        message[2..4].copy_from_slice(&checksum);
    }
    message
}

/// A raw socket that hears answers from `to`; opened in the calling thread's namespace.
fn socket(to: IpAddr) -> UdpSocket {
    let (domain, protocol) = match to {
        IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4),
        IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6),
    };
    let socket = Socket::new(domain, Type::RAW, Some(protocol)).unwrap();
    socket.connect(&SocketAddr::new(to, 0).into()).unwrap();
    socket.into()
}

/// Whether the answer comes before the patience ends.
fn answered(socket: &UdpSocket, ipv6: bool, identifier: u16, sequence: u16) -> bool {
    let begin = Instant::now();
    let mut buffer = [0; 4096];
    while let Some(left) = PATIENCE.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) {
        socket.set_read_timeout(Some(left)).unwrap();
        let Ok(length) = socket.recv(&mut buffer) else { return false };
        let message = if ipv6 { &buffer[..length] } else { &buffer[usize::from(buffer[0] & 15) * 4..length] };
        let wanted = [identifier.to_be_bytes(), sequence.to_be_bytes()].concat();
        if message.len() >= 8 && message[0] == if ipv6 { 129 } else { 0 } && message[4..8] == wanted {
            return true;
        }
    }
    false
}

/// Sends so many echo requests, one after another; how many were answered.
pub fn ping(from: &Namespace, to: &str, count: u16) -> usize {
    let to: IpAddr = to.parse().unwrap();
    let identifier = IDENTIFIER.fetch_add(1, Ordering::Relaxed);
    let run = move || {
        let socket = socket(to);
        let one = |sequence: &u16| {
            let message = request(to.is_ipv6(), identifier, *sequence, 8 + PAYLOAD);
            socket.send(&message).is_ok() && answered(&socket, to.is_ipv6(), identifier, *sequence)
        };
        (0..count).filter(one).count()
    };
    from.run(run).unwrap()
}

/// One end of a measured path.
#[derive(Clone, Copy, Debug)]
pub struct End {
    pub mac: Mac,
    pub ip: IpAddr,
}

/// Sends one echo request as a packet of exactly `size` bytes that may not be fragmented; whether it was answered.
///
/// # Errors
/// When the device refuses it.
pub fn ping_unfragmented(
    namespace: &Namespace,
    link: u32,
    from: End,
    to: End,
    size: usize,
) -> std::io::Result<bool> {
    let identifier = IDENTIFIER.fetch_add(1, Ordering::Relaxed);
    let mut frame = [to.mac.0, from.mac.0].concat();
    match (from.ip, to.ip) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            frame.extend([0x08, 0x00]);
            let mut header = vec![0x45, 0];
            header.extend(u16::try_from(size).unwrap().to_be_bytes());
            header.extend([0, 0, 0x40, 0, 64, 1, 0, 0]); // don't fragment, 64 hops, ICMP
            header.extend(source.octets());
            header.extend(target.octets());
            let checksum = sum(&[&header]).to_be_bytes();
            header[10..12].copy_from_slice(&checksum);
            frame.extend(header);
            frame.extend(request(false, identifier, 0, size - 20));
        }
        (IpAddr::V6(source), IpAddr::V6(target)) => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            let length = u16::try_from(size - 40).unwrap();
            frame.extend(length.to_be_bytes());
            frame.extend([58, 64]); // ICMPv6, 64 hops
            frame.extend(source.octets());
            frame.extend(target.octets());
            let mut message = request(true, identifier, 0, size - 40);
            let pseudo =
                [&source.octets()[..], &target.octets(), &u32::from(length).to_be_bytes(), &[0, 0, 0, 58]];
            let checksum = sum(&[&pseudo.concat(), &message]).to_be_bytes();
            message[2..4].copy_from_slice(&checksum);
            frame.extend(message);
        }
        _ => panic!("two families"),
    }
    let run = move || {
        let socket = socket(to.ip);
        PacketSocket::open()?.send(link, &frame)?;
        Ok(answered(&socket, to.ip.is_ipv6(), identifier, 0))
    };
    namespace.run(run).unwrap()
}
