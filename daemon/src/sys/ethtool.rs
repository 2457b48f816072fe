//! TX checksum offload off, by the ethtool ioctl (`ethtool -K IF tx off`).
//!
//! The userspace datapath of OVS reads packets from a tap or packet socket.
//! With offload on, the kernel leaves their checksums to hardware that is not
//! there: TCP then dies silently while ping works.

use std::io;
use std::os::fd::AsRawFd;

use socket2::{Domain, Socket, Type};

/// Turns TX checksum offload on or off (`ETHTOOL_STXCSUM`).
const ETHTOOL_STXCSUM: u32 = 0x17;
/// Reads it (`ETHTOOL_GTXCSUM`).
const ETHTOOL_GTXCSUM: u32 = 0x16;

#[repr(C)]
struct EthtoolValue {
    cmd: u32,
    data: u32,
}

/// A socket that reaches the devices of the namespace it was opened in.
#[derive(Debug)]
pub struct EthtoolSocket(Socket);

impl EthtoolSocket {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// As the `socket` system call.
    pub fn open() -> io::Result<Self> {
        Ok(Self(Socket::new(Domain::UNIX, Type::DGRAM, None)?))
    }

    /// Turns TX checksum offload off on `device`. A device without the feature
    /// (`EOPNOTSUPP`) is already as wanted.
    ///
    /// # Errors
    /// `NotFound`/`ENODEV` when there is no such device; permission errors.
    pub fn tx_checksum_off(&self, device: &str) -> io::Result<()> {
        self.set_tx_checksum(device, false)
    }

    /// Turns TX checksum offload on or off.
    ///
    /// # Errors
    /// As [`EthtoolSocket::tx_checksum_off`].
    pub fn set_tx_checksum(&self, device: &str, on: bool) -> io::Result<()> {
        match self.value(device, ETHTOOL_STXCSUM, u32::from(on)) {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
            result => result.map(|_| ()),
        }
    }

    /// Whether TX checksum offload is on.
    ///
    /// # Errors
    /// As [`EthtoolSocket::tx_checksum_off`].
    pub fn tx_checksum(&self, device: &str) -> io::Result<bool> {
        match self.value(device, ETHTOOL_GTXCSUM, 0) {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(false),
            result => result.map(|data| data != 0),
        }
    }

    fn value(&self, device: &str, cmd: u32, data: u32) -> io::Result<u32> {
        if device.len() >= libc::IFNAMSIZ {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "device name too long"));
        }
        let mut value = EthtoolValue { cmd, data };
        // SAFETY: `ifreq` is plain old data; all-zero is a valid value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = std::ptr::from_mut(&mut value).cast();
        // SAFETY: the request and the value it points to outlive the call; the
        // kernel reads and writes exactly one `ethtool_value` for these commands.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SIOCETHTOOL as _, &mut request) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(value.data)
    }
}
