//! Why a netlink request failed.

use std::io;

/// Result of a netlink request.
pub type Result<T> = std::result::Result<T, Error>;

/// A failed request: what was tried, and the kernel's answer.
#[derive(Debug, thiserror::Error)]
#[error("{operation}: {source}")]
pub struct Error {
    operation: String,
    source: io::Error,
}

impl Error {
    /// An error of a system call.
    pub fn io(operation: impl Into<String>, source: io::Error) -> Self {
        Self { operation: operation.into(), source }
    }

    /// An error of the netlink library.
    pub(super) fn netlink(operation: impl Into<String>, error: rtnetlink::Error) -> Self {
        let source = match error {
            rtnetlink::Error::NetlinkError(message) => message.to_io(),
            other => io::Error::other(other.to_string()),
        };
        Self { operation: operation.into(), source }
    }

    /// The kernel's error number, if it was the kernel that refused.
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }

    /// The object is not there (`ENOENT`, `ENODEV`, `ESRCH`, `EADDRNOTAVAIL`,
    /// `ENXIO`): a deletion treats it as success.
    pub fn is_missing(&self) -> bool {
        matches!(
            self.errno(),
            Some(libc::ENOENT | libc::ENODEV | libc::ESRCH | libc::EADDRNOTAVAIL | libc::ENXIO)
        )
    }

    /// The object is there already.
    pub fn is_existing(&self) -> bool {
        self.errno() == Some(libc::EEXIST)
    }
}
