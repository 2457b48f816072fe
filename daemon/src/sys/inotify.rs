//! The kernel's word on changes in a folder.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::Path;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::unix::AsyncFd;

/// What tokio wants of a descriptor.
struct Descriptor(Inotify);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// Watches one folder for names that come, go or are written, and for its own end.
pub struct FolderWatch(AsyncFd<Descriptor>);

impl FolderWatch {
    /// Starts to watch. Needs a tokio runtime.
    ///
    /// # Errors
    /// When the folder is not there, or no inotify instance is left (`fs.inotify.max_user_instances`).
    pub fn new(folder: &Path) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let what = AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF;
        inotify.add_watch(folder, what)?;
        // SAFETY: the descriptor is owned by the value that is handed over, open, and never exchanged.
        Ok(Self(unsafe { AsyncFd::register(Descriptor(inotify)) }.map_err(io::Error::from)?))
    }

    /// Waits for something to happen.
    ///
    /// # Errors
    /// When the runtime ends.
    pub async fn changed(&self) -> io::Result<()> {
        self.0.readable().await?.retain_ready();
        Ok(())
    }

    /// Forgets what happened so far; the caller looks at the folder itself.
    pub fn drain(&self) {
        while self.0.get_ref().0.read_events().is_ok_and(|events| !events.is_empty()) {}
        // Nothing is left to read: the next wait is for something new.
        if let Some(Ok(mut ready)) = futures::FutureExt::now_or_never(self.0.readable()) {
            ready.clear_ready();
        }
    }
}
