//! What the runtime says through environment variables, checked.
//!
//! In: `CNI_*` variables. Out: [`Environment`], and per verb an error (code 4) that names what is missing.

use crate::error::{CniError, code};
use std::ffi::OsString;
use std::path::PathBuf;

/// A verb of the CNI specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Make an interface.
    Add,
    /// Remove it.
    Del,
    /// Say whether it is as ADD left it.
    Check,
    /// Remove what the runtime no longer knows.
    Gc,
    /// Say whether ADD would work.
    Status,
    /// List the supported versions.
    Version,
}

impl Verb {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "ADD" => Self::Add,
            "DEL" => Self::Del,
            "CHECK" => Self::Check,
            "GC" => Self::Gc,
            "STATUS" => Self::Status,
            "VERSION" => Self::Version,
            _ => return None,
        })
    }
}

/// The variables, as far as we use them. Empty means unset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// `CNI_COMMAND`.
    pub command: String,
    /// `CNI_CONTAINERID`.
    pub container_id: String,
    /// `CNI_NETNS`.
    pub netns: String,
    /// `CNI_IFNAME`.
    pub ifname: String,
    /// `CNI_ARGS`.
    pub args: String,
    /// `CNI_NETNS_OVERRIDE` is set to something true: the pod's namespace may be the plugin's own.
    pub netns_override: bool,
}

/// The Kubernetes part of `CNI_ARGS`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodArgs {
    /// `K8S_POD_NAME`.
    pub name: String,
    /// `K8S_POD_NAMESPACE`.
    pub namespace: String,
    /// `K8S_POD_UID`.
    pub uid: String,
}

impl Environment {
    /// Picks our variables from the process's. Bytes that are no UTF-8 are replaced, and then fail the checks.
    pub fn from_vars(vars: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let mut environment = Self::default();
        for (key, value) in vars {
            let value = value.to_string_lossy().into_owned();
            match key.to_str() {
                Some("CNI_COMMAND") => environment.command = value,
                Some("CNI_CONTAINERID") => environment.container_id = value,
                Some("CNI_NETNS") => environment.netns = value,
                Some("CNI_IFNAME") => environment.ifname = value,
                Some("CNI_ARGS") => environment.args = value,
                Some("CNI_NETNS_OVERRIDE") => {
                    environment.netns_override =
                        matches!(value.to_ascii_lowercase().as_str(), "1" | "t" | "true");
                }
                _ => {}
            }
        }
        environment
    }

    /// The verb, once everything that it needs is there.
    ///
    /// # Errors
    /// Code 4: an unknown verb, or a variable that is missing or malformed. DEL does not need the namespace.
    pub fn verb(&self) -> Result<Verb, CniError> {
        let verb = Verb::parse(&self.command).ok_or_else(|| {
            invalid(format!("unknown CNI_COMMAND: {:?}", self.command))
                .remedy("the runtime has to call ADD, DEL, CHECK, GC, STATUS or VERSION")
        })?;
        let mut missing = Vec::new();
        if matches!(verb, Verb::Add | Verb::Del | Verb::Check) {
            for (name, value) in [("CNI_CONTAINERID", &self.container_id), ("CNI_IFNAME", &self.ifname)] {
                if value.is_empty() {
                    missing.push(name);
                }
            }
            if self.netns.is_empty() && verb != Verb::Del {
                missing.push("CNI_NETNS");
            }
        }
        if !missing.is_empty() {
            let names = missing.join(", ");
            return Err(invalid(format!("required env variables [{names}] missing")));
        }
        if matches!(verb, Verb::Add | Verb::Del | Verb::Check) {
            check_container_id(&self.container_id)?;
            check_ifname(&self.ifname)?;
        }
        Ok(verb)
    }

    /// The pod named by `CNI_ARGS`: split at `;`, unknown keys ignored, the first of equal keys with a value counts.
    pub fn pod(&self) -> PodArgs {
        let value = |key: &str| {
            self.args
                .split(';')
                .filter_map(|arg| arg.strip_prefix(key)?.strip_prefix('='))
                .find(|value| !value.is_empty())
                .unwrap_or_default()
                .to_owned()
        };
        PodArgs {
            name: value("K8S_POD_NAME"),
            namespace: value("K8S_POD_NAMESPACE"),
            uid: value("K8S_POD_UID"),
        }
    }

    /// Path of the pod's namespace.
    pub fn netns_path(&self) -> PathBuf {
        PathBuf::from(&self.netns)
    }
}

fn invalid(msg: String) -> CniError {
    CniError::new(code::INVALID_ENVIRONMENT, msg)
}

/// The specification's pattern: a letter or digit, then letters, digits, `_`, `.`, `-`.
fn check_container_id(id: &str) -> Result<(), CniError> {
    let valid = id.starts_with(|c: char| c.is_ascii_alphanumeric())
        && id.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'));
    if valid {
        return Ok(());
    }
    Err(invalid("invalid characters in CNI_CONTAINERID".into())
        .details(format!("invalid container ID {id:?}")))
}

/// What the kernel takes as an interface's name.
fn check_ifname(name: &str) -> Result<(), CniError> {
    let fault = if name.len() > 15 {
        "interface name is too long (15 characters at most)"
    } else if name == "." || name == ".." {
        "interface name is . or .."
    } else if name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control()) {
        "interface name contains / or : or whitespace"
    } else {
        return Ok(());
    };
    Err(invalid(format!("invalid CNI_IFNAME: {fault}")).details(format!("{name:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        Environment::from_vars(pairs.iter().map(|(k, v)| (OsString::from(k), OsString::from(v))))
    }

    const FULL: [(&str, &str); 4] =
        [("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", "c1"), ("CNI_NETNS", "/n"), ("CNI_IFNAME", "eth0")];

    #[test]
    fn del_needs_no_namespace() {
        let mut env = environment(&FULL);
        env.netns.clear();
        assert_eq!(env.verb().unwrap_err().msg, "required env variables [CNI_NETNS] missing");
        env.command = "DEL".into();
        assert_eq!(env.verb().unwrap(), Verb::Del);
    }

    #[test]
    fn names_everything_that_is_missing() {
        let error = environment(&[("CNI_COMMAND", "CHECK")]).verb().unwrap_err();
        assert_eq!(error.code, 4);
        assert_eq!(error.msg, "required env variables [CNI_CONTAINERID, CNI_IFNAME, CNI_NETNS] missing");
        assert_eq!(environment(&[("CNI_COMMAND", "STATUS")]).verb().unwrap(), Verb::Status);
        assert_eq!(environment(&[("CNI_COMMAND", "add")]).verb().unwrap_err().code, 4);
    }

    #[rstest]
    #[case("CNI_CONTAINERID", "-x")]
    #[case("CNI_CONTAINERID", "a/b")]
    #[case("CNI_IFNAME", "sixteen-letters-")]
    #[case("CNI_IFNAME", "..")]
    #[case("CNI_IFNAME", "a b")]
    fn refuses_names_that_could_be_paths(#[case] key: &str, #[case] value: &str) {
        let mut pairs = FULL.to_vec();
        pairs.push((key, value));
        assert_eq!(environment(&pairs).verb().unwrap_err().code, 4);
    }

    #[test]
    fn pod_arguments() {
        let env = environment(&[(
            "CNI_ARGS",
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=a=b;K8S_POD_UID=u;K8S_POD_INFRA_CONTAINER_ID=x",
        )]);
        assert_eq!(env.pod(), PodArgs { name: "a=b".into(), namespace: "ns".into(), uid: "u".into() });
        assert_eq!(environment(&[("CNI_ARGS", "K8S_POD_NAME=;x")]).pod(), PodArgs::default());
    }
}
