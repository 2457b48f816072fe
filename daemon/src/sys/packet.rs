//! Raw Ethernet frames out of one device, and ARP into one.

use std::io;
use std::os::fd::AsRawFd;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

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

/// A socket that sends frames out of one device and receives the ARP messages
/// that come in by it. Never blocks.
#[derive(Debug)]
pub struct ArpSocket {
    socket: Socket,
    sender: PacketSocket,
    index: u32,
}

impl AsRawFd for ArpSocket {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.socket.as_raw_fd()
    }
}

impl ArpSocket {
    /// Opens a socket for device `index` of the calling thread's namespace.
    ///
    /// # Errors
    /// As the `socket` and `bind` system calls (needs CAP_NET_RAW).
    pub fn open(index: u32) -> io::Result<Self> {
        // Protocol 0: nothing arrives before the device is chosen.
        let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(0)))?;
        socket.set_nonblocking(true)?;
        // SAFETY: `sockaddr_ll` is plain old data; all-zero is a valid value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ARP as u16).to_be();
        address.sll_ifindex = i32::try_from(index).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        // SAFETY: the address outlives the call, and its length is given.
        let bound = unsafe {
            libc::bind(
                socket.as_raw_fd(),
                std::ptr::from_ref(&address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        if bound < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { socket, sender: PacketSocket::open()?, index })
    }

    /// Lets the current tokio runtime say when a message is there.
    ///
    /// # Errors
    /// When the runtime can't watch the socket.
    pub fn watched(self) -> io::Result<AsyncFd<Self>> {
        // SAFETY: the descriptor is the socket's own, open as long as the value
        // lives, and always the same.
        unsafe { AsyncFd::register_with_interest(self, Interest::READABLE) }.map_err(io::Error::from)
    }

    /// Sends one complete Ethernet frame.
    ///
    /// # Errors
    /// As [`PacketSocket::send`].
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        self.sender.send(self.index, frame)
    }

    /// The next frame.
    ///
    /// # Errors
    /// `WouldBlock` when there is none.
    pub fn receive(&self) -> io::Result<Vec<u8>> {
        let mut frame = vec![0; 128];
        let length = io::Read::read(&mut &self.socket, &mut frame)?;
        frame.truncate(length);
        Ok(frame)
    }
}
