//! Which of the two iptables kinds a host uses. Rules of ours in the other one would be seen by nobody who looks, and
//! could act twice.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Family, Result, Tools};

/// The two implementations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// `iptables-nft`: the kernel's nf_tables behind the old commands.
    Nft,
    /// `iptables-legacy`.
    Legacy,
}

impl Backend {
    /// Its name in program names.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nft => "nft",
            Self::Legacy => "legacy",
        }
    }

    /// The other one.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Nft => Self::Legacy,
            Self::Legacy => Self::Nft,
        }
    }

    /// `iptables-nft-save` and its like; `verb` is `save` or `restore`.
    pub fn program(self, family: Family, verb: &str) -> String {
        let prefix = match family {
            Family::V4 => "iptables",
            Family::V6 => "ip6tables",
        };
        format!("{prefix}-{}-{verb}", self.as_str())
    }

    /// `iptables-nft` and its like: the program for single questions.
    pub fn command(self, family: Family) -> String {
        let prefix = match family {
            Family::V4 => "iptables",
            Family::V6 => "ip6tables",
        };
        format!("{prefix}-{}", self.as_str())
    }

    /// Decides as Kubernetes' own images do: kubelet's hint chains say which kind it uses; without them the kind with
    /// more rules wins; on a tie the newer one.
    ///
    /// # Errors
    /// When `iptables-nft-save` can't be run. A host without legacy tables (or programs) is an nft host.
    pub async fn detect(tools: &Tools, families: &[Family], legacy_in_use: bool) -> Result<Self> {
        let mut counts = [0_usize; 2];
        for (backend, count) in [(Self::Nft, 0), (Self::Legacy, 1)] {
            if backend == Self::Legacy && !legacy_in_use {
                break;
            }
            for family in families {
                let saved = match tools.run(&backend.program(*family, "save"), &[], None).await {
                    Ok(saved) => saved,
                    // A kernel without IPv6 need not stop anybody.
                    Err(_) if backend == Self::Legacy || *family == Family::V6 => continue,
                    Err(error) => return Err(error),
                };
                if has_hint(&saved) {
                    return Ok(backend);
                }
                if let Some(count) = counts.get_mut(count) {
                    *count += saved.lines().filter(|line| line.starts_with("-A ")).count();
                }
            }
        }
        let [nft, legacy] = counts;
        Ok(if legacy > nft { Self::Legacy } else { Self::Nft })
    }
}

/// Chains that kubelet keeps for exactly this question.
fn has_hint(saved: &str) -> bool {
    saved
        .lines()
        .any(|line| line.starts_with(":KUBE-IPTABLES-HINT ") || line.starts_with(":KUBE-KUBELET-CANARY "))
}

/// Whether any legacy table is loaded, asked without loading one: merely listing a table with the legacy program would.
pub fn legacy_tables_in_use(proc_net: &Path) -> bool {
    ["ip_tables_names", "ip6_tables_names"]
        .iter()
        .any(|name| std::fs::read_to_string(proc_net.join(name)).is_ok_and(|names| !names.trim().is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_and_names() {
        assert!(has_hint("*mangle\n:KUBE-IPTABLES-HINT - [0:0]\n"));
        assert!(!has_hint("*mangle\n-A X -j KUBE-IPTABLES-HINT\n"));
        assert_eq!(Backend::Nft.program(Family::V6, "restore"), "ip6tables-nft-restore");
        assert_eq!(Backend::Legacy.other(), Backend::Nft);
        let dir = tempfile::tempdir().unwrap();
        assert!(!legacy_tables_in_use(dir.path()));
        std::fs::write(dir.path().join("ip_tables_names"), "nat\n").unwrap();
        assert!(legacy_tables_in_use(dir.path()));
    }
}
