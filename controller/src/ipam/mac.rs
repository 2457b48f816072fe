//! MAC addresses: parsing, printing, drawing.

use sha2::{Digest, Sha256};

/// The six bytes of a MAC address.
pub type Mac = [u8; 6];

/// Parses `aa:bb:cc:dd:ee:ff` (any case, `-` accepted as separator).
pub fn parse(text: &str) -> Option<Mac> {
    let mut mac = Mac::default();
    let mut parts = text.split([':', '-']);
    for byte in &mut mac {
        let part = parts.next()?;
        if part.len() != 2 || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

/// Lower case, separated by colons: the form OVN and the annotations use.
pub fn format(mac: Mac) -> String {
    let [a, b, c, d, e, f] = mac;
    format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
}

/// Only a unicast address can be a port's own (group bit clear, not all zero).
pub fn is_usable(mac: Mac) -> bool {
    mac[0] & 1 == 0 && mac != [0; 6]
}

/// Draws a locally administered unicast MAC.
///
/// It is a function of the seed and of what it is for, not of the order of the
/// draws: two orders of the same events give the same addresses, and a port
/// compiled twice before its row exists gets one MAC. `attempt` counts draws
/// that were refused because the address is taken.
pub fn draw(seed: u64, what: &[&str], attempt: u32) -> Mac {
    let mut hash = Sha256::new();
    hash.update(seed.to_be_bytes());
    hash.update(attempt.to_be_bytes());
    for part in what {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    let digest = hash.finalize();
    let mut mac = Mac::default();
    mac.copy_from_slice(&digest[..6]);
    mac[0] = (mac[0] | 0x02) & !0x01;
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_and_print() {
        assert_eq!(parse("0A:1b:2c:3d:4e:5F").map(format).as_deref(), Some("0a:1b:2c:3d:4e:5f"));
        assert_eq!(parse("0a-1b-2c-3d-4e-5f").map(format).as_deref(), Some("0a:1b:2c:3d:4e:5f"));
        for bad in
            ["", "0a:1b:2c:3d:4e", "0a:1b:2c:3d:4e:5f:60", "0a:1b:2c:3d:4e:5", "+a:1b:2c:3d:4e:5f", "x"]
        {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn drawn_ones_are_local_unicast_and_stable() {
        for n in 0..200u32 {
            let mac = draw(7, &["ovn-default", &n.to_string()], 0);
            assert_eq!(mac[0] & 3, 2);
            assert!(is_usable(mac));
            assert_eq!(mac, draw(7, &["ovn-default", &n.to_string()], 0));
            assert_ne!(mac, draw(7, &["ovn-default", &n.to_string()], 1));
            assert_ne!(mac, draw(8, &["ovn-default", &n.to_string()], 0));
        }
        assert_ne!(draw(1, &["ab", "c"], 0), draw(1, &["a", "bc"], 0), "parts must not run together");
    }
}
