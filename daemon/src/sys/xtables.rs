//! The packet filter's tables as `iptables-legacy` sees them, without a process: it has no reports of changes.

use std::io;
use std::os::fd::AsRawFd;

use socket2::{Domain, Protocol, Socket, Type};

/// `IPT_SO_GET_INFO` and `IP6T_SO_GET_INFO`.
const GET_INFO: libc::c_int = 64;
/// Length of a table's name.
const NAME: usize = 32;
/// `struct ipt_getinfo`: the name, and thirteen numbers of which the last two are entries and bytes.
const LENGTH: usize = NAME + 13 * 4;
/// `IPT_SO_GET_ENTRIES` and `IP6T_SO_GET_ENTRIES`.
const GET_ENTRIES: libc::c_int = 65;
/// `struct ipt_get_entries` before its entries: the name, the number of bytes, padding.
const ENTRIES: usize = NAME + 8;
/// Length of `struct xt_counters`.
const COUNTERS: usize = 16;

/// Where things are in a rule.
#[derive(Clone, Copy)]
struct Entry {
    /// `next_offset`.
    next: usize,
    /// `counters`.
    counters: usize,
}

/// `struct ipt_entry`: 84 bytes of addresses and interfaces come first.
const ENTRY_V4: Entry = Entry { next: 90, counters: 96 };
/// `struct ip6t_entry`: 136 bytes.
const ENTRY_V6: Entry = Entry { next: 142, counters: 152 };

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
        self.ask(GET_INFO, table, None, LENGTH)
    }

    /// The rules of a table without their counters, `None` if there are more than `most` bytes of them. It costs time in
    /// proportion to them.
    ///
    /// # Errors
    /// As `getsockopt`; `EAGAIN` while somebody else changes the table.
    pub fn rules(&self, table: &str, most: u32) -> io::Result<Option<Vec<u8>>> {
        let info = self.info(table)?;
        let size = info.last_chunk().map_or(0, |size| u32::from_ne_bytes(*size));
        if size > most {
            return Ok(None);
        }
        let mut answer = self.ask(GET_ENTRIES, table, Some(size), ENTRIES + size as usize)?;
        let mut rules = answer.split_off(ENTRIES.min(answer.len()));
        forget_counters(&mut rules, if self.level == libc::IPPROTO_IPV6 { ENTRY_V6 } else { ENTRY_V4 });
        Ok(Some(rules))
    }

    /// A question in which the table's name, and `size` behind it, come first; the answer has `length` bytes at most.
    fn ask(&self, option: libc::c_int, table: &str, size: Option<u32>, length: usize) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0u8; length];
        let name = table.as_bytes().get(..table.len().min(NAME - 1)).unwrap_or_default();
        buffer.iter_mut().zip(name).for_each(|(to, from)| *to = *from);
        if let (Some(size), Some(place)) = (size, buffer.get_mut(NAME..NAME + 4)) {
            place.copy_from_slice(&size.to_ne_bytes());
        }
        let mut length = libc::socklen_t::try_from(buffer.len()).unwrap_or(libc::socklen_t::MAX);
        // SAFETY: buffer and length outlive the call; the kernel reads the name from the buffer and writes at most
        // `length` bytes, the buffer's own, into it.
        let result = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                self.level,
                option,
                buffer.as_mut_ptr().cast(),
                std::ptr::from_mut(&mut length),
            )
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(buffer) }
    }
}

/// Sets the counters of all rules to zero: packets are no change.
fn forget_counters(mut rules: &mut [u8], entry: Entry) {
    while let Some(next) = rules.get(entry.next..entry.next + 2).and_then(|next| next.first_chunk()) {
        let next = usize::from(u16::from_ne_bytes(*next));
        if let Some(counters) = rules.get_mut(entry.counters..entry.counters + COUNTERS) {
            counters.fill(0);
        }
        match rules.split_at_mut_checked(next) {
            Some((_, rest)) if next > 0 => rules = rest,
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_no_part_of_rules() {
        for entry in [ENTRY_V4, ENTRY_V6] {
            let length = entry.counters + COUNTERS + 8;
            let rule = |counter: u8, target: u8| {
                let mut rule = vec![7u8; length];
                rule[entry.next..entry.next + 2]
                    .copy_from_slice(&u16::try_from(length).unwrap().to_ne_bytes());
                rule[entry.counters..entry.counters + COUNTERS].fill(counter);
                rule[length - 1] = target;
                rule
            };
            let table = |counter, target| {
                let mut rules = [rule(counter, 1), rule(counter, target)].concat();
                forget_counters(&mut rules, entry);
                rules
            };
            assert_eq!(table(3, 2), table(9, 2));
            assert_ne!(table(3, 2), table(3, 4));
            // Nonsense ends the walk.
            for end in 0..length {
                forget_counters(&mut rule(1, 1)[..end].to_vec(), entry);
            }
            forget_counters(&mut vec![0; 2 * length], entry);
        }
    }
}
