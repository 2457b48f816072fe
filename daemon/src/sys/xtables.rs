//! Counts of the packet filter's tables as `iptables-legacy` sees them, without a process: it has no reports of changes.

use std::io;
use std::os::fd::AsRawFd;

use socket2::{Domain, Protocol, Socket, Type};

/// `IPT_SO_GET_INFO` and `IP6T_SO_GET_INFO`.
const GET_INFO: libc::c_int = 64;
/// Length of a table's name.
const NAME: usize = 32;
/// `struct ipt_getinfo`: the name, and thirteen numbers of which the last two are entries and bytes.
const LENGTH: usize = NAME + 13 * 4;

/// A socket for questions to one family's tables in the namespace it was opened in.
#[derive(Debug)]
pub struct TablesSocket {
    socket: Socket,
    level: libc::c_int,
}

impl TablesSocket {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// As the `socket` system call (needs CAP_NET_RAW).
    pub fn open(ipv6: bool) -> io::Result<Self> {
        let (domain, level) =
            if ipv6 { (Domain::IPV6, libc::IPPROTO_IPV6) } else { (Domain::IPV4, libc::IPPROTO_IP) };
        let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW)))?;
        Ok(Self { socket, level })
    }

    /// What the kernel says of a table: hooks, number of entries, bytes. Asking for a table that is not loaded loads it:
    /// ask only for those that `/proc/net/ip_tables_names` lists.
    ///
    /// # Errors
    /// As `getsockopt` (needs CAP_NET_ADMIN).
    pub fn info(&self, table: &str) -> io::Result<Vec<u8>> {
        let mut info = [0u8; LENGTH];
        let name = table.as_bytes().get(..table.len().min(NAME - 1)).unwrap_or_default();
        info.iter_mut().zip(name).for_each(|(to, from)| *to = *from);
        let mut length = LENGTH as libc::socklen_t;
        // SAFETY: buffer and length outlive the call; the kernel reads the name from the buffer and writes at most
        // `length` bytes into it.
        let result = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                self.level,
                GET_INFO,
                info.as_mut_ptr().cast(),
                std::ptr::from_mut(&mut length),
            )
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(info.to_vec()) }
    }
}
