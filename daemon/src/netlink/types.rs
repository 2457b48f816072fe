//! Small value types that several requests share.

use std::fmt;
use std::str::FromStr;

/// A MAC address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

/// The text is no MAC address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a MAC address")]
pub struct ParseMacError(String);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Mac {
    type Err = ParseMacError;

    fn from_str(text: &str) -> Result<Self, ParseMacError> {
        let error = || ParseMacError(text.to_owned());
        let mut mac = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut mac {
            let part = parts.next().ok_or_else(error)?;
            if part.len() != 2 || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(error());
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| error())?;
        }
        if parts.next().is_some() { Err(error()) } else { Ok(Self(mac)) }
    }
}

impl Mac {
    /// The link-local address of RFC 4291 appendix A (modified EUI-64).
    pub fn link_local(self) -> std::net::Ipv6Addr {
        let [a, b, c, d, e, f] = self.0;
        std::net::Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn macs_round_trip_and_junk_is_refused() {
        let mac: Mac = "0a:58:0A:10:00:05".parse().unwrap();
        assert_eq!(mac.to_string(), "0a:58:0a:10:00:05");
        for junk in ["", "0a:58:0a:10:00", "0a:58:0a:10:00:05:06", "0a-58-0a-10-00-05", "+a:58:0a:10:00:05"] {
            assert!(junk.parse::<Mac>().is_err(), "{junk}");
        }
    }

    #[test]
    fn the_link_local_address_flips_the_universal_bit() {
        let mac: Mac = "02:00:00:00:00:01".parse().unwrap();
        assert_eq!(mac.link_local().to_string(), "fe80::ff:fe00:1");
    }
}
