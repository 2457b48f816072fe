//! What the kernel says of things that have no place in [`Monitor`](super::Monitor)'s library: the packet filter,
//! settings of links, queueing disciplines.
//!
//! In: multicast groups of three sockets. Out: [`Change`]s that only say where to look. Only the beginnings of messages
//! are read, with the numbers of `linux/netfilter/nfnetlink.h`, `nf_tables.h`, `rtnetlink.h` and `netconf.h`.
//!
//! `iptables-legacy` and `ipset` report nothing; [`crate::heal`] looks at those.

use std::io;

use rtnetlink::sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE};
use rtnetlink::sys::{AsyncSocket, AsyncSocketExt, TokioSocket};

use super::monitor::Change;
use super::wire::{Message, attributes, messages};

/// `NFNLGRP_NFTABLES`.
const NFTABLES: u32 = 7;
/// `RTNLGRP_TC`.
const TC: u32 = 4;
/// `RTNLGRP_IPV4_NETCONF` and `RTNLGRP_IPV6_NETCONF`.
const NETCONF: [u32; 2] = [24, 25];
/// `NFNL_SUBSYS_NFTABLES`, the high byte of its messages' types.
const SUBSYSTEM: u16 = 10;
const RTM_NEWNETCONF: u16 = 80;
/// `RTM_NEWQDISC` to `RTM_DELTFILTER`.
const TRAFFIC: std::ops::RangeInclusive<u16> = 36..=45;
/// Length of `struct nfgenmsg` and of `struct netconfmsg` with its padding.
const GENERIC: usize = 4;
/// `NETCONFA_IFINDEX`.
const NETCONFA_IFINDEX: u16 = 1;
/// Large rule sets of others are reported rule by rule.
const BUFFER: usize = 1 << 20;
/// More than the kernel puts into one report.
const CHUNK: usize = 1 << 14;

/// The sockets of one namespace.
pub struct Hints {
    filter: TokioSocket,
    settings: TokioSocket,
    traffic: TokioSocket,
    waiting: Vec<Change>,
    buffers: [Vec<u8>; 3],
}

/// What a message means.
type Read = fn(&Message<'_>) -> Option<Change>;

impl Hints {
    /// Subscribes in the calling thread's namespace. Queueing disciplines are heard of from the namespaces behind this
    /// one's links too: those of pods.
    ///
    /// # Errors
    /// When a socket can't be opened.
    pub fn open_on(runtime: &tokio::runtime::Handle) -> io::Result<Self> {
        let _guard = runtime.enter();
        let open = |protocol, groups: &[u32]| {
            let mut socket = TokioSocket::new(protocol)?;
            socket.socket_mut().bind_auto()?;
            for group in groups {
                socket.socket_ref().add_membership(*group)?;
            }
            // What does not fit is told as a loss; a smaller buffer is no reason to do without.
            let _ =
                socket.socket_ref().set_rx_buf_sz(libc::c_int::try_from(BUFFER).unwrap_or(libc::c_int::MAX));
            Ok::<_, io::Error>(socket)
        };
        let traffic = open(NETLINK_ROUTE, &[TC])?;
        // Without the right to it, only the host's own are heard of.
        if let Err(error) = traffic.socket_ref().set_listen_all_namespaces(true) {
            tracing::debug!(%error, "changes of pods' queueing disciplines are not heard of");
        }
        Ok(Self {
            filter: open(NETLINK_NETFILTER, &[NFTABLES])?,
            settings: open(NETLINK_ROUTE, &NETCONF)?,
            traffic,
            waiting: Vec::new(),
            buffers: std::array::from_fn(|_| Vec::with_capacity(CHUNK)),
        })
    }

    /// The next change.
    ///
    /// # Errors
    /// When a socket died.
    pub async fn next(&mut self) -> io::Result<Change> {
        loop {
            if let Some(change) = self.waiting.pop() {
                return Ok(change);
            }
            let [of_filter, of_settings, of_traffic] = &mut self.buffers;
            [&mut *of_filter, &mut *of_settings, &mut *of_traffic].into_iter().for_each(Vec::clear);
            let (read, at, of, lost) = tokio::select! {
                read = self.filter.recv(of_filter) => (read, 0, filter as Read, Change::Filter),
                read = self.settings.recv(of_settings) => (read, 1, setting as Read, Change::Setting(ALL_LINKS)),
                read = self.traffic.recv(of_traffic) => (read, 2, traffic as Read, Change::Traffic),
            };
            match read {
                Ok(()) => {
                    for message in self.buffers.get(at).into_iter().flat_map(|buffer| messages(buffer)) {
                        let Some(change) = of(&message) else { continue };
                        if !self.waiting.contains(&change) {
                            self.waiting.push(change);
                        }
                    }
                }
                // The kernel had more to say than the buffer holds.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => return Ok(lost),
                Err(error) => return Err(error),
            }
        }
    }
}

/// What the kernel calls the settings for all links together.
pub const ALL_LINKS: i32 = -1;

/// A change of the packet filter that may concern our chains: they themselves, the built-in chains that lead to them, or
/// their tables. Others' chains change all the time.
fn filter(message: &Message<'_>) -> Option<Change> {
    if message.kind >> 8 != SUBSYSTEM {
        return None;
    }
    // Attributes of the table's and of the chain's name.
    let (table, chain) = match message.kind & 0xff {
        // A table comes or goes.
        0 | 2 => (1, None),
        // A chain.
        3 | 5 => (1, Some(3)),
        // A rule.
        6 | 8 => (1, Some(2)),
        _ => return None,
    };
    let body = message.body.get(GENERIC..)?;
    let text = |wanted: u16| {
        let (_, value) = attributes(body).find(|(kind, _)| *kind == wanted)?;
        std::str::from_utf8(value.strip_suffix(&[0]).unwrap_or(value)).ok()
    };
    if !matches!(text(table)?, "filter" | "nat" | "mangle") {
        return None;
    }
    let ours = match chain {
        None => true,
        Some(chain) => crate::firewall::is_kept(text(chain)?),
    };
    ours.then_some(Change::Filter)
}

fn setting(message: &Message<'_>) -> Option<Change> {
    if message.kind != RTM_NEWNETCONF {
        return None;
    }
    let (_, value) = attributes(message.body.get(GENERIC..)?).find(|(kind, _)| *kind == NETCONFA_IFINDEX)?;
    Some(Change::Setting(i32::from_ne_bytes(value.get(..4)?.try_into().ok()?)))
}

fn traffic(message: &Message<'_>) -> Option<Change> {
    TRAFFIC.contains(&message.kind).then_some(Change::Traffic)
}

#[cfg(test)]
mod tests {
    use super::super::wire::{put_attribute, put_message};
    use super::*;

    fn told(kind: u16, attributes: &[(u16, &str)]) -> Option<Change> {
        let mut body = vec![2, 0, 0, 0];
        for (kind, text) in attributes {
            put_attribute(&mut body, *kind, format!("{text}\0").as_bytes());
        }
        let mut bytes = Vec::new();
        put_message(&mut bytes, (SUBSYSTEM << 8) | kind, 0, &body);
        messages(&bytes).find_map(|message| filter(&message))
    }

    #[test]
    fn only_our_chains_and_what_leads_to_them_concern_us() {
        for chain in ["OVN-POSTROUTING", "PREROUTING", "FORWARD"] {
            assert_eq!(told(8, &[(1, "nat"), (2, chain)]), Some(Change::Filter), "{chain}");
            assert_eq!(told(5, &[(1, "nat"), (3, chain)]), Some(Change::Filter), "{chain}");
        }
        assert_eq!(told(2, &[(1, "mangle")]), Some(Change::Filter), "the whole table");
        assert_eq!(told(6, &[(1, "nat"), (2, "KUBE-SERVICES")]), None);
        assert_eq!(told(6, &[(1, "kube-proxy"), (2, "FORWARD")]), None);
        assert_eq!(told(15, &[(1, "nat")]), None, "a new generation says nothing by itself");
        assert_eq!(told(6, &[]), None);
    }

    #[test]
    fn messages_cut_anywhere_are_no_panic() {
        let mut bytes = Vec::new();
        let mut body = vec![2, 0, 0, 0];
        put_attribute(&mut body, NETCONFA_IFINDEX, &7i32.to_ne_bytes());
        put_message(&mut bytes, RTM_NEWNETCONF, 0, &body);
        let found: Vec<_> = messages(&bytes).filter_map(|message| setting(&message)).collect();
        assert_eq!(found, [Change::Setting(7)]);
        for length in 0..bytes.len() {
            for message in messages(&bytes[..length]) {
                let _ = (filter(&message), setting(&message), traffic(&message));
            }
        }
    }
}
