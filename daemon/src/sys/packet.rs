//! Raw Ethernet frames out of one device.

use std::io;
use std::os::fd::AsRawFd;

use socket2::{Domain, Protocol, Socket, Type};

/// A socket that sends frames out of the devices of the namespace it was
/// opened in. It receives nothing.
#[derive(Debug)]
pub struct PacketSocket(Socket);

impl PacketSocket {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// As the `socket` system call (needs CAP_NET_RAW).
    pub fn open() -> io::Result<Self> {
        // Protocol 0: nothing is queued on the socket.
        Ok(Self(Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(0)))?))
    }

    /// Sends one complete Ethernet frame out of device `index`.
    ///
    /// # Errors
    /// As `sendto`; `EINVAL` for a frame without a whole header.
    pub fn send(&self, index: u32, frame: &[u8]) -> io::Result<()> {
        let (Some(destination), Some(&[high, low])) = (frame.get(..6), frame.get(12..14)) else {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        };
        // SAFETY: `sockaddr_ll` is plain old data; all-zero is a valid value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = u16::from_be_bytes([high, low]).to_be();
        address.sll_ifindex = i32::try_from(index).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        address.sll_halen = 6;
        address.sll_addr[..6].copy_from_slice(destination);
        // SAFETY: frame and address outlive the call, and their lengths are given.
        let sent = unsafe {
            libc::sendto(
                self.0.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                libc::MSG_DONTWAIT,
                std::ptr::from_ref(&address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}
