//! Names of a pod's interfaces on the host (node contract §2.3).
//!
//! They are cut to what a Linux interface's name has room for, so two containers can come to one name. A name whose row
//! in the switch is another interface's is never taken ([`free`]); who looks for an interface's ports asks the rows'
//! marks first, see [`super::del::ports_of`].

use super::{CONTAINER_ID, IF_NAME};
use crate::ovs::{Interface, View};

/// How much of a container id and an interface's name fits between a name's
/// other parts: a Linux interface's name has at most 15 characters.
const ID_LENGTH: usize = 12;
/// With fewer digits of the id, containers of one node would come to equal names (four: one node of 110 pods in eleven).
const ENOUGH: usize = 5;

/// What names of host ends end in.
pub const HOST: &str = "_h";
/// What names of internal ports end in.
pub const INTERNAL: &str = "_c";

/// The host end of a pod's veth pair: for `eth0` the first 12 characters of
/// the container id and `_h`; for other interfaces the id is cut so that the
/// interface's name fits. KubeVirt's 14-character `pod…` names are cut first.
/// Where too little of the id would be left, a hash of both stands for them.
pub fn host_nic(container_id: &str, if_name: &str) -> String {
    usual(container_id, if_name, HOST)
}

/// The name of an internal port, and the alias of any device in a pod.
pub fn container_nic(container_id: &str, if_name: &str) -> String {
    usual(container_id, if_name, INTERNAL)
}

/// Whether a link of the host is a pod's end.
pub fn is_host_end(name: &str) -> bool {
    name.ends_with(HOST) || (name.starts_with("wp") && name.len() == 15)
}

/// The host end of a pair made ready for a pod before it has a container; kept
/// for life.
pub fn prepared_nic(pod_uid: &str, if_name: &str) -> String {
    let hash = fnv1a(format!("{pod_uid}/{if_name}").as_bytes());
    format!("wp{:013x}", hash & 0x000f_ffff_ffff_ffff)
}

/// Whether a row is marked as the port of this interface.
pub(super) fn is_marked(row: &Interface, container_id: &str, if_name: &str) -> bool {
    row.external_id(CONTAINER_ID) == Some(container_id) && row.external_id(IF_NAME) == Some(in_pod(if_name))
}

/// A call's name for an interface; `eth0` where it names none.
pub(super) fn in_pod(if_name: &str) -> &str {
    if if_name.is_empty() { "eth0" } else { if_name }
}

/// Whether a row is marked as the port of another interface, of this container or of another one.
pub(super) fn is_anothers(row: &Interface, container_id: &str, if_name: &str) -> bool {
    let differs = |key, own| row.external_id(key).is_some_and(|mark| mark != own);
    differs(CONTAINER_ID, container_id) || differs(IF_NAME, in_pod(if_name))
}

/// The name for an interface's port, with one of the two endings: the usual one, unless another interface has it.
pub(super) fn free(view: &View, container_id: &str, if_name: &str, suffix: &str) -> String {
    let usual = usual(container_id, if_name, suffix);
    match view.interface(&usual) {
        Some(row) if is_anothers(&row, container_id, if_name) => hashed(container_id, if_name, suffix),
        _ => usual,
    }
}

/// As Kube-OVN and older versions name a port of which we would have a hash.
pub(super) fn cut(container_id: &str, if_name: &str, suffix: &str) -> Option<String> {
    let short = short(if_name);
    let room = ID_LENGTH.saturating_sub(short.len());
    (in_pod(if_name) != "eth0" && (1..ENOUGH).contains(&room))
        .then(|| format!("{}_{short}{suffix}", prefix(container_id, room)))
}

/// All names that this module may have given an interface's devices, for who must not name them.
pub(super) fn all(container_id: &str, if_name: &str) -> Vec<String> {
    let with = |suffix| [usual(container_id, if_name, suffix), hashed(container_id, if_name, suffix)];
    let cut = [HOST, INTERNAL].into_iter().filter_map(|suffix| cut(container_id, if_name, suffix));
    with(HOST).into_iter().chain(with(INTERNAL)).chain(cut).collect()
}

fn usual(container_id: &str, if_name: &str, suffix: &str) -> String {
    if in_pod(if_name) == "eth0" {
        return format!("{}{suffix}", prefix(container_id, ID_LENGTH));
    }
    let short = short(if_name);
    let room = ID_LENGTH.saturating_sub(short.len());
    if room < ENOUGH {
        return hashed(container_id, short, suffix);
    }
    format!("{}_{short}{suffix}", prefix(container_id, room))
}

fn short(if_name: &str) -> &str {
    match if_name.len() {
        14 if if_name.starts_with("pod") => if_name.get(3..10).unwrap_or(if_name),
        _ => if_name,
    }
}

fn hashed(container_id: &str, if_name: &str, suffix: &str) -> String {
    let both = format!("{container_id}/{if_name}");
    format!("{:012x}{suffix}", fnv1a(both.as_bytes()) & 0xffff_ffff_ffff)
}

/// FNV-1a, 64 bits: the same in every version, which a name on disk and in the
/// database has to be.
pub(super) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn prefix(text: &str, length: usize) -> &str {
    text.get(..length.min(text.len())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn eth0_takes_twelve_characters_of_the_id() {
        assert_eq!(host_nic(ID, "eth0"), "0123456789ab_h");
        assert_eq!(container_nic(ID, "eth0"), "0123456789ab_c");
        assert_eq!(host_nic("short", "eth0"), "short_h");
    }

    #[test]
    fn other_names_are_part_of_the_name_and_fit() {
        assert_eq!(host_nic(ID, "net1"), "01234567_net1_h");
        assert_eq!(host_nic(ID, "podabcdefghijk"), "01234_abcdefg_h");
        assert_eq!(host_nic(ID, "seven-c"), "01234_seven-c_h");
        for if_name in ["n", "net1", "eth10", "elevenchars", "averylongname12"] {
            assert!(host_nic(ID, if_name).len() <= 15, "{if_name}");
        }
    }

    #[test]
    fn prepared_ports_have_their_own_names() {
        let names = ["uid-1", "uid-2"].map(|uid| prepared_nic(uid, "eth0"));
        assert_ne!(names[0], names[1]);
        assert!(names.iter().all(|name| is_host_end(name)), "{names:?}");
    }

    #[test]
    fn k_15a_two_containers_with_a_long_interface_name_get_two_names() {
        let long = ["eight-ch", "fronthaul10", "twelve-chars", "thirteen-char", "averylongname12"];
        for if_name in long {
            let names = [ID, "0123456789abcdef0123456789abcdee"].map(|id| host_nic(id, if_name));
            assert_ne!(names[0], names[1]);
            assert!(names.iter().all(|name| name.len() <= 15 && name.ends_with("_h")), "{names:?}");
            assert_ne!(host_nic(ID, if_name), container_nic(ID, if_name));
        }
        // What stays stays: names are in the database.
        assert_eq!(host_nic(ID, "twelve-chars"), hashed(ID, "twelve-chars", HOST));
        assert_eq!(cut(ID, "fronthaul10", HOST).as_deref(), Some("0_fronthaul10_h"));
        for if_name in ["eth0", "net1", "seven-c", "twelve-chars"] {
            assert_eq!(cut(ID, if_name, HOST), None, "{if_name}");
        }
    }
}
