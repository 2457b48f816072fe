//! Echo requests without the `ping` program, which not every machine has.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
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

/// What became of a stream of echo requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stream {
    pub sent: usize,
    pub answered: usize,
    /// Answers that came a second time.
    pub repeated: usize,
    /// The most requests in a row without an answer.
    pub gap: usize,
}

impl Stream {
    pub fn lost(&self) -> usize {
        self.sent - self.answered
    }
}

/// A stream that runs, an echo request every millisecond.
pub struct Streaming(Arc<AtomicBool>, std::thread::JoinHandle<Stream>);

impl Streaming {
    /// Ends it, and waits for the last answers.
    pub fn end(self) -> Stream {
        self.0.store(true, Ordering::Relaxed);
        self.1.join().unwrap()
    }
}

/// Sends an echo request every millisecond until ended.
pub fn stream(from: &Namespace, to: &str) -> Streaming {
    let to: IpAddr = to.parse().unwrap();
    let identifier = IDENTIFIER.fetch_add(1, Ordering::Relaxed);
    let socket = from.run(move || socket(to)).unwrap();
    socket.set_nonblocking(true).unwrap();
    let end = Arc::new(AtomicBool::new(false));
    let ended = end.clone();
    let run = move || {
        let mut answers: Vec<usize> = Vec::new();
        let receive = |answers: &mut Vec<usize>| {
            let mut buffer = [0; 4096];
            while let Ok(length) = socket.recv(&mut buffer) {
                let head = if to.is_ipv6() { 0 } else { usize::from(buffer[0] & 15) * 4 };
                let message = &buffer[head..length];
                if message.len() >= 8
                    && message[0] == if to.is_ipv6() { 129 } else { 0 }
                    && message[4..6] == identifier.to_be_bytes()
                {
                    let number = usize::from(u16::from_be_bytes([message[6], message[7]]));
                    if let Some(count) = answers.get_mut(number) {
                        *count += 1;
                    }
                }
            }
        };
        let begin = Instant::now();
        while !ended.load(Ordering::Relaxed) && answers.len() < usize::from(u16::MAX) {
            let message = request(to.is_ipv6(), identifier, answers.len() as u16, 8 + PAYLOAD);
            answers.push(0);
            // A refusal is a loss too.
            let _ = socket.send(&message);
            receive(&mut answers);
            let next = begin + Duration::from_millis(answers.len() as u64);
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until && answers.last() == Some(&0) {
            receive(&mut answers);
            std::thread::sleep(Duration::from_millis(1));
        }
        let gap = answers.split(|count| *count > 0).map(<[usize]>::len).max().unwrap_or_default();
        Stream {
            sent: answers.len(),
            answered: answers.iter().filter(|count| **count > 0).count(),
            repeated: answers.iter().map(|count| count.saturating_sub(1)).sum(),
            gap,
        }
    };
    Streaming(end, std::thread::spawn(run))
}
