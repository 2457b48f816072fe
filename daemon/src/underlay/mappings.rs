//! `ovn-bridge-mappings` and `ovn-chassis-mac-mappings`: lists `name:value,…` that others write too. Pure.
//!
//! They are edited as sets of names: what is not ours stays byte for byte, in its place.

/// Key of `Open_vSwitch:external_ids`: which bridge a network is reached by.
pub const BRIDGES: &str = "ovn-bridge-mappings";
/// Key of `Open_vSwitch:external_ids`: which MAC a chassis uses on a network.
pub const MACS: &str = "ovn-chassis-mac-mappings";

fn entry<'a>(part: &'a str, name: &str) -> Option<&'a str> {
    let (key, value) = part.trim().split_once(':')?;
    (key == name).then_some(value)
}

/// The value of a name.
pub fn get<'a>(list: &'a str, name: &str) -> Option<&'a str> {
    list.split(',').find_map(|part| entry(part, name))
}

/// Names and values.
pub fn all(list: &str) -> Vec<(&str, &str)> {
    list.split(',').filter_map(|part| part.trim().split_once(':')).collect()
}

/// The list with `name:value`, once.
pub fn with(list: &str, name: &str, value: &str) -> String {
    let ours = format!("{name}:{value}");
    let mut placed = false;
    let mut parts: Vec<&str> = Vec::new();
    for part in list.split(',').filter(|_| !list.is_empty()) {
        if entry(part, name).is_none() {
            parts.push(part);
        } else if !std::mem::replace(&mut placed, true) {
            parts.push(if entry(part, name) == Some(value) { part } else { &ours });
        }
    }
    if !placed {
        parts.push(&ours);
    }
    parts.join(",")
}

/// The list without a name; `None` when nothing is left.
pub fn without(list: &str, name: &str) -> Option<String> {
    let parts: Vec<&str> = list.split(',').filter(|part| entry(part, name).is_none()).collect();
    let left = parts.join(",");
    (!left.is_empty()).then_some(left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn k_190_k_191_others_entries_stay_byte_for_byte() {
        let list = "physnet1:br-ex, a:br-a,external:br-external,junk";
        assert_eq!(with(list, "net1", "br-net1"), format!("{list},net1:br-net1"));
        assert_eq!(with(list, "external", "br-external"), list);
        assert_eq!(with(list, "external", "br-b"), "physnet1:br-ex, a:br-a,external:br-b,junk");
        assert_eq!(without(list, "unknown").as_deref(), Some(list));
        assert_eq!(without(list, "external").as_deref(), Some("physnet1:br-ex, a:br-a,junk"));
        assert_eq!(get(list, "a"), Some("br-a"));
        assert_eq!((get(list, "phys"), get("", "a")), (None, None));
        assert_eq!((with("", "a", "b").as_str(), without("a:b", "a")), ("a:b", None));
    }

    #[test]
    fn a_name_that_is_there_twice_is_there_once() {
        assert_eq!(with("a:x,b:y,a:z", "a", "q"), "a:q,b:y");
    }

    proptest! {
        /// Adding and taking away again is nothing; of other entries nothing is ever lost.
        #[test]
        fn k_190_a_list_is_edited_as_a_set(
            entries in proptest::collection::btree_map("[a-d]{1,2}", "br-[a-z]{1,3}", 0..5),
            value in "br-[0-9]{1,3}",
        ) {
            let list = entries.iter().map(|(k, v)| format!("{k}:{v}")).collect::<Vec<_>>().join(",");
            let added = with(&list, "ours", &value);
            prop_assert_eq!(get(&added, "ours"), Some(value.as_str()));
            prop_assert_eq!(with(&added, "ours", &value), added.clone());
            prop_assert_eq!(without(&added, "ours").unwrap_or_default(), list);
        }
    }
}
