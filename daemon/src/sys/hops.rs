//! Datagrams with the hop limit that they came with.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use nix::cmsg_space;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt};
use socket2::Socket;

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
    let mut vector = [IoSliceMut::new(buffer)];
    let mut control = cmsg_space!(libc::c_int, libc::c_int);
    let message = recvmsg::<SockaddrStorage>(
        socket.as_raw_fd(),
        &mut vector,
        Some(&mut control),
        MsgFlags::MSG_DONTWAIT,
    )?;
    let hops = message.cmsgs()?.find_map(|told| match told {
        ControlMessageOwned::Ipv4Ttl(hops) | ControlMessageOwned::Ipv6HopLimit(hops) => {
            u32::try_from(hops).ok()
        }
        _ => None,
    });
    let from = message.address.as_ref().and_then(|from| {
        let v4 = from.as_sockaddr_in().map(|from| SocketAddr::V4((*from).into()));
        v4.or_else(|| from.as_sockaddr_in6().map(|from| SocketAddr::V6((*from).into())))
    });
    Ok(Datagram { length: message.bytes, from, hops })
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
