//! Sysctl files. `/proc/sys/net` shows the namespace of the thread that opens
//! the file, so calls for another namespace go through [`super::Namespace::run`].

use std::io;
use std::path::PathBuf;

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SysctlOutcome {
    /// The file already held the value.
    Unchanged,
    /// The value was written.
    Written,
    /// The file is missing, read-only or not permitted: as upstream, not an
    /// error, since a kernel without IPv6 or an unprivileged agent is legal.
    Skipped,
}

/// Writes `value` to `/proc/sys/<path>` unless it is there already.
///
/// # Errors
/// Any failure but a missing file or a denied write.
pub fn write_sysctl(path: &str, value: &str) -> io::Result<SysctlOutcome> {
    let file: PathBuf = ["/proc/sys", path].iter().collect();
    match std::fs::read_to_string(&file) {
        Ok(current) if current.trim() == value => return Ok(SysctlOutcome::Unchanged),
        Ok(_) => {}
        Err(error) if skippable(&error) => return Ok(SysctlOutcome::Skipped),
        Err(error) => return Err(error),
    }
    match std::fs::write(&file, value) {
        Ok(()) => Ok(SysctlOutcome::Written),
        Err(error) if skippable(&error) => Ok(SysctlOutcome::Skipped),
        Err(error) => Err(error),
    }
}

/// The value of `/proc/sys/<path>`, if it can be read.
pub fn read_sysctl(path: &str) -> Option<String> {
    let file: PathBuf = ["/proc/sys", path].iter().collect();
    std::fs::read_to_string(file).ok().map(|value| value.trim().to_owned())
}

fn skippable(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_skipped() {
        assert_eq!(write_sysctl("net/no/such/key", "1").unwrap(), SysctlOutcome::Skipped);
    }
}
