//! The little that the executable itself does inside the pod's namespace, before the agent configures it: IPv6 on,
//! router advertisements off (node contract §1.3). An agent of Kube-OVN relies on its executable having done that.

use crate::error::{CniError, code};
use nix::sched::{CloneFlags, setns};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// For interfaces that exist and for those that come.
const SYSCTLS: [(&str, &str); 4] = [
    ("/proc/sys/net/ipv6/conf/all/disable_ipv6", "0"),
    ("/proc/sys/net/ipv6/conf/default/disable_ipv6", "0"),
    ("/proc/sys/net/ipv6/conf/all/accept_ra", "0"),
    ("/proc/sys/net/ipv6/conf/default/accept_ra", "0"),
];

/// Enters the pod's namespace and sets its switches. The process stays there: a socket file is found from everywhere.
///
/// # Errors
/// Code 4: no such namespace. Code 8: it is our own (the host's), unless `allow_own`; then nothing is set.
/// Code 999: a switch can't be set for a reason other than missing or forbidden.
pub fn prepare(path: &Path, allow_own: bool) -> Result<(), CniError> {
    let unusable = |error: io::Error| {
        CniError::new(code::INVALID_ENVIRONMENT, "CNI_NETNS is no network namespace")
            .details(format!("{}: {error}", path.display()))
            .remedy("the sandbox is probably gone; the runtime makes a new one")
    };
    let theirs = fs::metadata(path).map_err(unusable)?;
    let own = fs::metadata("/proc/self/ns/net").map_err(unusable)?;
    if (theirs.dev(), theirs.ino()) == (own.dev(), own.ino()) {
        if allow_own {
            return Ok(());
        }
        return Err(CniError::new(
            code::INVALID_NETNS,
            "plugin's netns and netns from CNI_NETNS should not be the same",
        )
        .details(path.display().to_string()));
    }
    let file = File::open(path).map_err(unusable)?;
    setns(&file, CloneFlags::CLONE_NEWNET).map_err(|errno| unusable(errno.into()))?;
    SYSCTLS.iter().try_for_each(|(path, value)| set(Path::new(path), value))
}

/// Writes a switch that differs. A kernel without IPv6 has none, a locked-down container may not write: both pass.
fn set(path: &Path, value: &str) -> Result<(), CniError> {
    let result = match fs::read_to_string(path) {
        Ok(now) if now.trim() == value => Ok(()),
        Ok(_) => fs::write(path, value),
        Err(error) => Err(error),
    };
    match result {
        Err(error)
            if !matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
            ) =>
        {
            Err(CniError::new(code::INTERNAL, format!("failed to set {}: {error}", path.display())))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_namespace_and_none() {
        let own = Path::new("/proc/self/ns/net");
        assert_eq!(prepare(own, false).unwrap_err().code, 8);
        prepare(own, true).unwrap();
        assert_eq!(prepare(Path::new("/nonexistent/ns"), false).unwrap_err().code, 4);
    }

    #[test]
    fn switches_that_are_missing_pass() {
        let dir = tempfile::tempdir().unwrap();
        set(&dir.path().join("missing"), "0").unwrap();
        let file = dir.path().join("present");
        fs::write(&file, "1\n").unwrap();
        set(&file, "0").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "0");
        assert_eq!(set(dir.path(), "0").unwrap_err().code, 999);
    }
}
