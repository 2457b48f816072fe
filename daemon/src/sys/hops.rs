//! Datagrams with the hop limit that they came with.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use socket2::{SockAddr, Socket};

/// A datagram: its length (what does not fit is cut off), who sent it, and its TTL or hop limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Bytes that were read.
    pub length: usize,
    /// The sender.
    pub from: Option<SocketAddr>,
    /// TTL or hop limit, if the socket tells it ([`tell_hops`]).
    pub hops: Option<u32>,
}

/// Lets a UDP socket tell the TTL (`v4`) or hop limit of what it receives.
///
/// # Errors
/// As `setsockopt`.
pub fn tell_hops(socket: &Socket, v4: bool) -> io::Result<()> {
    use nix::sys::socket::{setsockopt, sockopt};
    let set = if v4 {
        setsockopt(socket, sockopt::Ipv4RecvTtl, &true)
    } else {
        setsockopt(socket, sockopt::Ipv6RecvHopLimit, &true)
    };
    Ok(set?)
}

/// Reads one datagram; never blocks.
///
/// # Errors
/// `WouldBlock` when there is none, else as `recvmsg`.
pub fn receive_with_hops(socket: &impl AsRawFd, buffer: &mut [u8]) -> io::Result<Datagram> {
    let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // Aligned as control messages have to be; room for a few of them.
    let mut control = [0u64; 16];
    // SAFETY: `msghdr` is plain old data; all-zero is a valid value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let mut read = |storage: *mut libc::c_void, length: *mut libc::socklen_t| {
        message.msg_name = storage;
        // SAFETY: the caller gives a valid pointer to the length of its storage.
        message.msg_namelen = unsafe { *length };
        // SAFETY: every buffer that the message names outlives the call, with the lengths given.
        let read = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        // SAFETY: as above.
        unsafe { *length = message.msg_namelen };
        usize::try_from(read).map_err(|_| io::Error::last_os_error())
    };
    // SAFETY: `read` fills the storage with an address and sets its length, or fails.
    let (length, from) = unsafe { SockAddr::try_init(|storage, length| read(storage.cast(), length)) }?;
    let mut hops = None;
    // SAFETY: the kernel wrote `msg_controllen` bytes of well-formed control messages.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !next.is_null() {
        // SAFETY: not null, so within the control buffer.
        let header = unsafe { *next };
        let tells = matches!(
            (header.cmsg_level, header.cmsg_type),
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT)
        );
        if tells {
            // SAFETY: these two carry an int, maybe unaligned.
            let value = unsafe { libc::CMSG_DATA(next).cast::<libc::c_int>().read_unaligned() };
            hops = u32::try_from(value).ok();
        }
        // SAFETY: as the first.
        next = unsafe { libc::CMSG_NXTHDR(&raw const message, next) };
    }
    Ok(Datagram { length, from: from.as_socket(), hops })
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::{Domain, Type};

    #[test]
    fn datagrams_come_with_their_hop_limit_and_sender() {
        for (domain, any, v4) in [(Domain::IPV4, "127.0.0.1:0", true), (Domain::IPV6, "[::1]:0", false)] {
            let open = || -> io::Result<Socket> {
                let socket = Socket::new(domain, Type::DGRAM, None)?;
                socket.bind(&any.parse::<SocketAddr>().unwrap().into())?;
                Ok(socket)
            };
            // A machine without IPv6 has nothing to show.
            let Ok(listener) = open() else { continue };
            let sender = open().unwrap();
            tell_hops(&listener, v4).unwrap();
            let mut buffer = [0; 4];
            let empty = receive_with_hops(&listener, &mut buffer).unwrap_err();
            assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
            if v4 {
                sender.set_ttl_v4(255).unwrap();
            } else {
                sender.set_unicast_hops_v6(7).unwrap();
            }
            sender.send_to(b"longer", &listener.local_addr().unwrap()).unwrap();
            let got = receive_with_hops(&listener, &mut buffer).unwrap();
            let from = sender.local_addr().unwrap().as_socket();
            assert_eq!(got, Datagram { length: 4, from, hops: Some(if v4 { 255 } else { 7 }) });
            assert_eq!(&buffer, b"long");
        }
    }
}
