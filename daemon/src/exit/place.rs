//! Where the namespace has its name, and how it outlives the agent.
//!
//! A name is a mount. One made in the container of the agent would end with it, so it is made where the node's first
//! process sees it, if that one has the same folder.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};

use crate::sys::Namespace;

/// The node's first process, for an agent that shares its process namespace.
const FIRST: &str = "/proc/1";

/// A folder of named namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// As those see it in whose mount namespace names are made.
    folder: PathBuf,
    /// As we see that.
    seen: PathBuf,
    /// That mount namespace, if it is another one than ours.
    mounts: Option<PathBuf>,
}

fn same(a: &Path, b: &Path) -> bool {
    let id = |path: &Path| std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    id(a).is_some() && id(a) == id(b)
}

impl Place {
    /// The folder, in the node's mount namespace if that is to be had.
    pub fn of(folder: &Path) -> Self {
        let first = Path::new(FIRST);
        let inside = folder.strip_prefix("/").unwrap_or(folder);
        let seen = first.join("root").join(inside);
        let elsewhere = !same(&first.join("ns/mnt"), Path::new("/proc/self/ns/mnt"));
        if elsewhere && same(&seen, folder) {
            return Self { folder: folder.to_owned(), seen, mounts: Some(first.join("ns/mnt")) };
        }
        Self { folder: folder.to_owned(), seen: folder.to_owned(), mounts: None }
    }

    /// The namespace of that name, if there is one.
    pub fn open(&self, name: &str) -> Option<Namespace> {
        Namespace::open(&self.seen.join(name)).ok()
    }

    /// The namespace of that name, made if there is none.
    ///
    /// # Errors
    /// When it can't be made: no privilege, a folder that can't be written.
    pub fn make(&self, name: &str) -> io::Result<Namespace> {
        if let Some(namespace) = self.open(name) {
            return Ok(namespace);
        }
        std::fs::create_dir_all(&self.seen)?;
        File::options().create(true).append(true).open(self.seen.join(name))?;
        let target = self.folder.join(name);
        self.in_mounts(move || {
            unshare(CloneFlags::CLONE_NEWNET)?;
            mount(Some("/proc/thread-self/ns/net"), &target, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
            Ok(())
        })?;
        Namespace::open(&self.seen.join(name))
    }

    /// Takes the name away; the namespace ends with what else holds it.
    ///
    /// # Errors
    /// When the mount or the file can't be removed.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        let file = self.seen.join(name);
        if !file.exists() {
            return Ok(());
        }
        if self.open(name).is_some() {
            let target = self.folder.join(name);
            self.in_mounts(move || Ok(umount2(&target, MntFlags::MNT_DETACH)?))?;
        }
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Runs something on a thread of its own, in the mount namespace where names are made.
    fn in_mounts(&self, work: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
        let mounts = self.mounts.as_ref().map(File::open).transpose()?;
        let thread = std::thread::Builder::new().name("netns".into()).spawn(move || {
            if let Some(mounts) = mounts {
                // A thread that shares its root with others can't go elsewhere.
                unshare(CloneFlags::CLONE_FS)?;
                setns(mounts, CloneFlags::CLONE_NEWNS)?;
            }
            work()
        })?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_namespace_outlives_its_handles_and_goes_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::of(folder.path());
        assert_eq!(place.open("x"), None);
        let first = place.make("x").unwrap();
        assert_eq!(place.make("x").unwrap(), first, "made once");
        drop(first);
        let again = Place::of(folder.path()).open("x").unwrap();
        assert_ne!(again, Namespace::current().unwrap());
        place.remove("x").unwrap();
        place.remove("x").unwrap();
        assert!(!folder.path().join("x").exists());
        // A file that stayed behind is no namespace, and in nobody's way.
        std::fs::write(folder.path().join("y"), "").unwrap();
        assert_eq!(place.open("y"), None);
        place.make("y").unwrap();
        place.remove("y").unwrap();
    }
}
