//! Handles on network namespaces and code run inside them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use nix::sched::{CloneFlags, setns, unshare};

/// An open network namespace. Cheap to clone; keeps the namespace alive while
/// it is held, so hold it only as long as a request lasts.
#[derive(Clone, Debug)]
pub struct Namespace {
    file: Arc<File>,
    /// Device and inode: what tells two namespaces apart.
    id: (u64, u64),
}

impl PartialEq for Namespace {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Namespace {}

impl Namespace {
    /// Opens the namespace behind `path` (`/run/netns/x`, `/proc/N/ns/net`).
    ///
    /// # Errors
    /// `NotFound` when the path is gone; `InvalidInput` when the file is no
    /// network namespace (an unmounted leftover of one is an empty file).
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        // NS_GET_NSTYPE tells namespaces from plain files. SAFETY: the
        // descriptor is open, the request takes no pointer.
        let kind = unsafe { libc::ioctl(file.as_raw_fd(), libc::NS_GET_NSTYPE as _) };
        if kind != libc::CLONE_NEWNET {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{} is not a network namespace", path.display()),
            ));
        }
        let meta = file.metadata()?;
        Ok(Self { id: (meta.dev(), meta.ino()), file: Arc::new(file) })
    }

    /// A new namespace without a name: it ends with the last handle and the
    /// last socket in it.
    ///
    /// # Errors
    /// When it can't be made (missing privilege, no thread).
    pub fn fresh() -> io::Result<Self> {
        let made = std::thread::Builder::new().name("netns".into()).spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            Self::current()
        })?;
        made.join().unwrap_or_else(|_| Err(io::Error::other("the thread in the namespace panicked")))
    }

    /// The namespace of the calling thread.
    ///
    /// # Errors
    /// When `/proc` is not there.
    pub fn current() -> io::Result<Self> {
        Self::open(Path::new("/proc/thread-self/ns/net"))
    }

    /// The raw descriptor, for netlink attributes that name a namespace.
    pub fn raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// The descriptor.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Runs `work` on a fresh thread inside the namespace and waits for it.
    /// Sockets that `work` opens belong to the namespace for good and may be
    /// used anywhere afterwards. For short, non-blocking work.
    ///
    /// # Errors
    /// When the namespace can't be entered (missing privilege), or when `work`
    /// panicked.
    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
        let handle = self.spawn(work)?;
        handle.join().unwrap_or_else(|_| Err(io::Error::other("the thread in the namespace panicked")))
    }

    /// As [`Namespace::run`], without blocking the calling task.
    ///
    /// # Errors
    /// As [`Namespace::run`].
    pub async fn run_async<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        let (tx, rx) = tokio::sync::oneshot::channel();
        let namespace = self.clone();
        std::thread::Builder::new().name("netns".into()).spawn(move || {
            let result = namespace.enter().map(|()| work());
            drop(namespace);
            // The receiver is gone when the request was cancelled: nothing to tell.
            let _ = tx.send(result);
        })?;
        rx.await.unwrap_or_else(|_| Err(io::Error::other("the thread in the namespace panicked")))
    }

    fn spawn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<std::thread::JoinHandle<io::Result<T>>> {
        let namespace = self.clone();
        std::thread::Builder::new().name("netns".into()).spawn(move || namespace.enter().map(|()| work()))
    }

    fn enter(&self) -> io::Result<()> {
        setns(self.as_fd(), CloneFlags::CLONE_NEWNET).map_err(io::Error::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_file_is_no_namespace() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = Namespace::open(file.path()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert_eq!(
            Namespace::open(Path::new("/nonexistent/netns")).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }

    #[test]
    fn the_current_namespace_equals_itself() {
        assert_eq!(Namespace::current().unwrap(), Namespace::current().unwrap());
    }
}
