//! The versions of the CNI specification, and what differs between them for us.

/// A version of the specification that we speak, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// 0.1.0: one address per family, no interfaces.
    V010,
    /// 0.2.0: the same with VERSION.
    V020,
    /// 0.3.0: interfaces, many addresses.
    V030,
    /// 0.3.1: chains.
    V031,
    /// 0.4.0: CHECK.
    V040,
    /// 1.0.0: addresses no longer say their family.
    V100,
    /// 1.1.0: GC and STATUS, the interface's MTU.
    V110,
}

/// What VERSION lists.
pub const SUPPORTED: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// The newest version we speak.
pub const CURRENT: &str = "1.1.0";

impl Version {
    /// Reads `cniVersion`; a configuration without it means 0.2.0, as that version's text has it. `None`: not supported.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "0.1.0" => Self::V010,
            "" | "0.2.0" => Self::V020,
            "0.3.0" => Self::V030,
            "0.3.1" => Self::V031,
            "0.4.0" => Self::V040,
            "1.0.0" => Self::V100,
            "1.1.0" => Self::V110,
            _ => return None,
        })
    }

    /// The version as `cniVersion` has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V010 => "0.1.0",
            Self::V020 => "0.2.0",
            Self::V030 => "0.3.0",
            Self::V031 => "0.3.1",
            Self::V040 => "0.4.0",
            Self::V100 => "1.0.0",
            Self::V110 => "1.1.0",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_in_order() {
        let parsed: Vec<_> = SUPPORTED.iter().map(|name| Version::parse(name).unwrap()).collect();
        assert!(parsed.is_sorted());
        assert!(parsed.iter().zip(SUPPORTED).all(|(version, name)| version.as_str() == name));
        assert_eq!(Version::parse(""), Some(Version::V020));
        assert_eq!(Version::parse("1.2.0"), None);
        assert_eq!(SUPPORTED.last(), Some(&CURRENT));
    }
}
