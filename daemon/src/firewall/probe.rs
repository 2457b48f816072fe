//! A cheap look at the parts of the packet filter whose changes nobody reports: the content of our sets, and of the
//! tables of `iptables-legacy`. No process, no write.
//!
//! In: sockets of one namespace. Out: [`Fingerprint`]s, which are equal as long as nothing was changed. The order of a
//! set's elements and the references to it are no part of it.

use std::collections::BTreeMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Seek};

use rtnetlink::sys::Socket;
use rtnetlink::sys::protocols::NETLINK_NETFILTER;

use super::ipset::is_ours;
use crate::netlink::wire::{DONE, ERROR, attributes, messages, put_attribute, put_message};
use crate::sys::TablesSocket;

/// `NFNL_SUBSYS_IPSET << 8 | IPSET_CMD_LIST`.
const LIST: u16 = (6 << 8) | 7;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const DUMP: u16 = 0x301;
const PROTOCOL: u8 = 6;
/// `IPSET_ATTR_*`.
const ATTR_PROTOCOL: u16 = 1;
const ATTR_SETNAME: u16 = 2;
const ATTR_TYPENAME: u16 = 3;
const ATTR_FAMILY: u16 = 5;
const ATTR_FLAGS: u16 = 6;
const ATTR_ADT: u16 = 8;
/// `IPSET_FLAG_LIST_SETNAME`.
const NAMES_ONLY: u32 = 1 << 1;
/// `NLA_F_NET_BYTEORDER`.
const NETWORK_ORDER: u16 = 0x4000;
const CHUNK: usize = 1 << 16;
/// What of the filter is ours.
const TABLES: [&str; 3] = ["filter", "mangle", "nat"];

/// Of longer tables (in bytes; about 5,000 rules) only the length is looked at: reading them every other second would cost
/// more than it is worth.
const MOST_RULES: u32 = 1 << 20;

/// Hash of each set's type and elements, by name.
pub type Fingerprint = BTreeMap<String, u64>;

/// The sockets of one namespace.
#[derive(Debug)]
pub struct Probe {
    sets: Socket,
    /// For each family: the kernel's list of legacy tables that are in use, and the socket to ask of them.
    tables: Vec<(File, TablesSocket)>,
}

impl Probe {
    /// Opens everything in the calling thread's namespace; the tables of `iptables-legacy` only if they are asked for.
    ///
    /// # Errors
    /// When a socket can't be opened.
    pub fn open(legacy: bool) -> io::Result<Self> {
        let mut sets = Socket::new(NETLINK_NETFILTER)?;
        sets.bind_auto()?;
        sets.set_non_blocking(true)?;
        let mut tables = Vec::new();
        for (ipv6, names) in [(false, "ip_tables_names"), (true, "ip6_tables_names")] {
            if !legacy {
                break;
            }
            // A kernel without a family has no list of its tables.
            match File::open(format!("/proc/thread-self/net/{names}")) {
                Ok(file) => tables.push((file, TablesSocket::open(ipv6)?)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self { sets, tables })
    }

    /// Our sets as they are now.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn sets(&self) -> io::Result<Fingerprint> {
        let mut names = Vec::new();
        self.dump(None, |body| {
            let name = attributes(body).find(|(kind, _)| *kind == ATTR_SETNAME).map(|(_, name)| name);
            let name = name.and_then(|name| std::str::from_utf8(name.strip_suffix(&[0])?).ok());
            names.extend(name.filter(|name| is_ours(name)).map(str::to_owned));
        })?;
        let mut fingerprint = Fingerprint::new();
        for name in names {
            let mut sum = 0u64;
            self.dump(Some(&name), |body| {
                for (kind, value) in attributes(body) {
                    match kind {
                        ATTR_TYPENAME | ATTR_FAMILY => sum = sum.wrapping_add(hash(kind, value)),
                        // The elements come in the order of the kernel's hash table, in as many messages as they need.
                        ATTR_ADT => {
                            for (kind, element) in attributes(value) {
                                sum = sum.wrapping_add(hash(kind, element));
                            }
                        }
                        _ => {}
                    }
                }
            })?;
            fingerprint.insert(name, sum);
        }
        Ok(fingerprint)
    }

    /// What there is in the legacy tables that are in use: a rule that is added, taken away or exchanged shows.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn tables(&mut self) -> io::Result<Vec<u64>> {
        let mut found = Vec::new();
        for (names, socket) in &mut self.tables {
            names.rewind()?;
            let mut text = String::new();
            names.read_to_string(&mut text)?;
            for table in TABLES.iter().filter(|table| text.lines().any(|line| line.trim() == **table)) {
                let mut hasher = DefaultHasher::new();
                socket.info(table)?.hash(&mut hasher);
                match socket.rules(table, MOST_RULES) {
                    Ok(rules) => rules.hash(&mut hasher),
                    // Somebody changes it right now: the next look sees what it has become.
                    Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
                    Err(error) => return Err(error),
                }
                found.push(hasher.finish());
            }
        }
        Ok(found)
    }

    /// One dump; `each` gets the attributes of each message. A set that is gone has none.
    fn dump(&self, name: Option<&str>, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        let mut body = vec![2, 0, 0, 0];
        put_attribute(&mut body, ATTR_PROTOCOL, &[PROTOCOL]);
        match name {
            Some(name) => put_attribute(&mut body, ATTR_SETNAME, format!("{name}\0").as_bytes()),
            None => put_attribute(&mut body, ATTR_FLAGS | NETWORK_ORDER, &NAMES_ONLY.to_be_bytes()),
        }
        let mut request = Vec::new();
        put_message(&mut request, LIST, DUMP, &body);
        let mut buffer = Vec::with_capacity(CHUNK);
        // What an earlier dump that failed may have left.
        while self.sets.recv(&mut buffer, 0).is_ok() {
            buffer.clear();
        }
        self.sets.send(&request, 0)?;
        loop {
            buffer.clear();
            // The kernel answers before the call that asks returns: there is nothing to wait for.
            self.sets.recv(&mut buffer, 0)?;
            for message in messages(&buffer) {
                match message.kind {
                    DONE => return Ok(()),
                    ERROR => {
                        return match message.errno() {
                            None | Some(0 | libc::ENOENT) => Ok(()),
                            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
                        };
                    }
                    LIST => each(message.body.get(4..).unwrap_or_default()),
                    _ => {}
                }
            }
        }
    }
}

fn hash(kind: u16, value: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (kind, value).hash(&mut hasher);
    hasher.finish()
}
