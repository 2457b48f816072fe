//! The cache: programs and images that take minutes to make, shared by every
//! clone on the machine.
//!
//! In: a kind, a key (a hash of everything the content depends on) and a
//! function that makes it. Out: a path that is complete or absent, never half
//! made: content is made under another name and renamed; a lock file per kind
//! lets the second of two runs wait instead of building again.
//!
//! Layout below the root (`$WEIR_CACHE`, else `$XDG_CACHE_HOME/weir`, else
//! `~/.cache/weir`): `KIND/KEY` (file or folder), `locks/KIND`, `tmp/`,
//! `buildah/` (image store of the image builds).

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};
use nix::fcntl::{Flock, FlockArg};
use sha2::{Digest, Sha256};

use crate::progress::say;

/// The cache folder of this user.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

/// Holds a kind's lock until dropped.
pub struct CacheLock {
    _file: Flock<File>,
}

impl Cache {
    /// Finds the cache folder and makes it if it is missing.
    pub fn open() -> Result<Self> {
        let variable =
            |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let root = variable("WEIR_CACHE")
            .or_else(|| variable("XDG_CACHE_HOME").map(|folder| folder.join("weir")))
            .or_else(|| variable("HOME").map(|folder| folder.join(".cache/weir")))
            .context("no cache folder: none of WEIR_CACHE, XDG_CACHE_HOME and HOME is set")?;
        Self::at(root)
    }

    /// A cache in a given folder.
    pub fn at(root: PathBuf) -> Result<Self> {
        for folder in ["locks", "tmp"] {
            let path = root.join(folder);
            fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        }
        Ok(Self { root: root.canonicalize()? })
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where the content of a key is, or would be.
    pub fn path(&self, kind: &str, key: &str) -> PathBuf {
        self.root.join(kind).join(key)
    }

    /// Waits for and takes the lock of a kind.
    pub fn lock(&self, kind: &str) -> Result<CacheLock> {
        let path = self.root.join("locks").join(kind);
        let open = || File::options().create(true).append(true).open(&path);
        let file = open().with_context(|| format!("cannot open {}", path.display()))?;
        let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => file,
            Err((file, _)) => {
                say(format!("waiting for another run that makes {kind} ..."));
                Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error)?
            }
        };
        Ok(CacheLock { _file: file })
    }

    /// The content of `key`, made by `make` (which gets the path to make) when
    /// it is missing.
    pub fn get(&self, kind: &str, key: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        let path = self.path(kind, key);
        if !path.exists() {
            let _lock = self.lock(kind)?;
            if !path.exists() {
                let draft = self.root.join("tmp").join(format!("{kind}-{key}"));
                // Left by a run that was killed; the lock says it is nobody's.
                remove(&draft)?;
                make(&draft)?;
                fs::create_dir_all(self.root.join(kind))?;
                fs::rename(&draft, &path).with_context(|| format!("cannot move to {}", path.display()))?;
            }
        }
        // The time of the last use: what is pruned is what nobody uses. A copied
        // folder has its original's time, and a read-only cache is fine.
        let _ = File::open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        Ok(path)
    }

    /// Removes all but the `keep` last used entries of a kind; for kinds whose entries are large and made often.
    pub fn prune(&self, kind: &str, keep: usize) -> Result<()> {
        let _lock = self.lock(kind)?;
        let Ok(folder) = fs::read_dir(self.root.join(kind)) else { return Ok(()) };
        let mut entries: Vec<(SystemTime, PathBuf)> = folder
            .filter_map(|entry| {
                let entry = entry.ok()?;
                Some((entry.metadata().ok()?.modified().ok()?, entry.path()))
            })
            .collect();
        entries.sort_by_key(|(modified, _)| std::cmp::Reverse(*modified));
        for (_, path) in entries.into_iter().skip(keep) {
            remove(&path)?;
        }
        Ok(())
    }
}

/// Removes a file or a folder with everything in it; absent is fine.
pub fn remove(path: &Path) -> Result<()> {
    let result = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(_) => Ok(()),
    };
    result.with_context(|| format!("cannot remove {}", path.display()))
}

/// A hash over named inputs, for cache keys: the same inputs in the same order
/// give the same key, on every machine.
#[derive(Default)]
pub struct Key(Sha256);

impl Key {
    /// Adds a named piece of text.
    pub fn text(mut self, name: &str, value: &str) -> Self {
        self.piece(name, value.as_bytes());
        self
    }

    /// Adds a file's content under a name (not its path: clones differ in it).
    pub fn file(mut self, name: &str, path: &Path) -> Result<Self> {
        let mut file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let mut inner = Sha256::new();
        let mut buffer = vec![0; 1 << 20];
        loop {
            let count = file.read(&mut buffer)?;
            if count == 0 {
                break;
            }
            inner.update(buffer.get(..count).unwrap_or_default());
        }
        self.piece(name, &inner.finalize());
        Ok(self)
    }

    /// Adds every file below a folder, in the order of their names.
    pub fn folder(mut self, name: &str, path: &Path) -> Result<Self> {
        let mut names: Vec<_> = fs::read_dir(path)
            .with_context(|| format!("cannot list {}", path.display()))?
            .collect::<std::io::Result<Vec<_>>>()?;
        names.sort_by_key(|entry| entry.file_name());
        for entry in names {
            let inner = format!("{name}/{}", entry.file_name().to_string_lossy());
            if entry.file_type()?.is_dir() {
                self = self.folder(&inner, &entry.path())?;
            } else {
                self = self.file(&inner, &entry.path())?;
            }
        }
        Ok(self)
    }

    /// The key: 16 hex digits.
    pub fn finish(self) -> String {
        hex(&self.0.finalize()).chars().take(16).collect()
    }

    fn piece(&mut self, name: &str, value: &[u8]) {
        for part in [name.as_bytes(), value] {
            // Lengths first, so that no two lists of pieces run together alike.
            self.0.update((part.len() as u64).to_be_bytes());
            self.0.update(part);
        }
    }
}

/// Bytes as lower-case hex digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;

    #[test]
    fn content_is_made_once_and_never_half() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("cache")).unwrap();
        let failed = cache.get("kind", "k", |path| {
            fs::write(path, "half").unwrap();
            bail!("interrupted")
        });
        assert!(failed.is_err());
        assert!(!cache.path("kind", "k").exists());
        let path = cache.get("kind", "k", |path| Ok(fs::write(path, "whole")?)).unwrap();
        let again = cache.get("kind", "k", |_| bail!("made twice")).unwrap();
        assert_eq!(path, again);
        assert_eq!(fs::read_to_string(path).unwrap(), "whole");
    }

    #[test]
    fn keys_depend_on_names_contents_and_their_borders() {
        let key = |pieces: &[(&str, &str)]| {
            pieces.iter().fold(Key::default(), |key, (name, value)| key.text(name, value)).finish()
        };
        assert_eq!(key(&[("a", "b")]), key(&[("a", "b")]));
        assert_ne!(key(&[("a", "bc")]), key(&[("ab", "c")]));
        assert_ne!(key(&[("a", ""), ("b", "")]), key(&[("a", "b")]));
        assert_eq!(key(&[]).len(), 16);
    }

    #[test]
    fn pruning_keeps_the_newest() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().to_owned()).unwrap();
        for (age, key) in ["new", "middle", "old"].iter().enumerate() {
            let path = cache.get("kind", key, |path| Ok(fs::write(path, "")?)).unwrap();
            let time = SystemTime::now() - std::time::Duration::from_secs(100 * age as u64);
            File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
        }
        cache.prune("kind", 2).unwrap();
        assert!(cache.path("kind", "middle").exists());
        assert!(!cache.path("kind", "old").exists());
    }
}
