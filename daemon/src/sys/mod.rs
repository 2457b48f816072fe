//! The only place in Weir where `unsafe` is allowed: system calls that no safe
//! wrapper offers.
//!
//! In: names and namespace handles. Out: plain results. What lives here:
//! network namespaces ([`Namespace`]; entered only on short-lived helper
//! threads, because a thread's namespace sticks to it), the ethtool ioctl
//! (checksum offload), raw Ethernet frames (address announcements), sysctl
//! files of another namespace, hop limits of datagrams (safe, beside the frames), counts of legacy packet-filter tables, and the
//! allocator's limits. Nothing here knows Kubernetes or OVS.
#![allow(unsafe_code)]

mod ethtool;
mod frame;
mod heap;
mod hops;
mod inotify;
mod netns;
mod packet;
mod sysctl;
mod xtables;

pub use ethtool::EthtoolSocket;
pub use frame::{ArpMessage, arp_probe, gratuitous_arp, unsolicited_neighbour_advertisement};
pub use heap::{bound_heap, trim_heap};
pub use hops::{Datagram, receive_with_hops, tell_hops};
pub use inotify::FolderWatch;
pub use netns::Namespace;
pub use packet::{ArpSocket, PacketSocket};
pub use sysctl::{SysctlOutcome, read_sysctl, write_sysctl};
pub use xtables::TablesSocket;
