//! Names of a pod's interfaces on the host (node contract §2.3).

/// Longest name of a Linux interface.
const IFNAME_MAX: usize = 15;

/// The host end of a pod's veth pair: for `eth0` the first 12 characters of
/// the container id and `_h`; for other interfaces the id is cut so that the
/// interface's name fits. KubeVirt's 14-character `pod…` names are cut first.
pub fn host_nic(container_id: &str, if_name: &str) -> String {
    name(container_id, if_name, "_h")
}

/// The name under which the other end is created before it moves.
pub fn container_nic(container_id: &str, if_name: &str) -> String {
    name(container_id, if_name, "_c")
}

fn name(container_id: &str, if_name: &str, suffix: &str) -> String {
    if if_name == "eth0" || if_name.is_empty() {
        return format!("{}{suffix}", prefix(container_id, 12));
    }
    let if_name = match if_name.len() {
        14 if if_name.starts_with("pod") => if_name.get(3..10).unwrap_or(if_name),
        _ => if_name,
    };
    let room = IFNAME_MAX.saturating_sub(suffix.len() + 1 + if_name.len());
    let id = prefix(container_id, room.min(12usize.saturating_sub(if_name.len())));
    let mut name = format!("{id}_{if_name}{suffix}");
    name.truncate(IFNAME_MAX);
    name
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
        for if_name in ["n", "net1", "eth10", "averylongname12"] {
            assert!(host_nic(ID, if_name).len() <= IFNAME_MAX, "{if_name}");
        }
    }
}
