//! Files that other programs read at any time: whole or not there.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// What became of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was there with this content and mode.
    Unchanged,
    /// Only its mode was set.
    ModeSet,
    /// It was created or replaced.
    Written,
}

/// A moment at which a crash may happen; tests let it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Swept,
    Created,
    PartWritten,
    ModeSet,
    Synced,
    Renamed,
    FolderSynced,
}

/// A part of the content between two moments of [`Step::PartWritten`].
const PART: usize = 64 << 10;

/// Marks our temporary files. Container runtimes read no file with such an ending.
const MARK: &str = ".weir-tmp-";

/// Makes `target` hold exactly `content` with permission bits `mode`: written beside it, forced to disk, renamed over
/// it. Leftovers of earlier crashes are removed.
///
/// # Errors
/// Any failure of the file system; the old file is then still there.
pub fn replace(target: &Path, content: &[u8], mode: u32) -> io::Result<Outcome> {
    let mut no_crash = |_| Ok(());
    if holds(target, content)? {
        if fs::metadata(target)?.permissions().mode() & 0o7777 == mode {
            return Ok(Outcome::Unchanged);
        }
        fs::set_permissions(target, Permissions::from_mode(mode))?;
        return Ok(Outcome::ModeSet);
    }
    let temporary = temporary(target)?;
    write(target, &temporary, content, mode, &mut no_crash).inspect_err(|_| {
        // The error that matters is the first one.
        let _ = fs::remove_file(&temporary);
    })?;
    Ok(Outcome::Written)
}

/// Whether the file is there with this content, read without loading more than needed.
fn holds(target: &Path, content: &[u8]) -> io::Result<bool> {
    let mut file = match File::open(target) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let length = file.metadata()?;
    if !length.is_file() {
        return Err(io::Error::other(format!("{} is not a file", target.display())));
    }
    if usize::try_from(length.len()).ok() != Some(content.len()) {
        return Ok(false);
    }
    let mut present = Vec::with_capacity(content.len());
    file.read_to_end(&mut present)?;
    Ok(present == content)
}

fn name_of(target: &Path) -> io::Result<String> {
    target.file_name().and_then(|name| name.to_str()).map(str::to_owned).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("{} names no file", target.display()))
    })
}

fn folder_of(target: &Path) -> &Path {
    match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn temporary(target: &Path) -> io::Result<PathBuf> {
    let unique: u64 = rand::random();
    Ok(folder_of(target).join(format!(".{}{MARK}{unique:016x}", name_of(target)?)))
}

fn write(
    target: &Path,
    temporary: &Path,
    content: &[u8],
    mode: u32,
    at: &mut dyn FnMut(Step) -> io::Result<()>,
) -> io::Result<()> {
    let folder = folder_of(target);
    sweep(folder, &name_of(target)?)?;
    at(Step::Swept)?;
    // Readable by root alone until it is whole.
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(temporary)?;
    at(Step::Created)?;
    for part in content.chunks(PART) {
        file.write_all(part)?;
        at(Step::PartWritten)?;
    }
    file.set_permissions(Permissions::from_mode(mode))?;
    at(Step::ModeSet)?;
    // Before the rename: else a power cut could leave the new name with no content.
    file.sync_all()?;
    at(Step::Synced)?;
    drop(file);
    fs::rename(temporary, target)?;
    at(Step::Renamed)?;
    File::open(folder)?.sync_all()?;
    at(Step::FolderSynced)
}

/// Removes temporary files that a crash left beside `name`.
fn sweep(folder: &Path, name: &str) -> io::Result<()> {
    let prefix = format!(".{name}{MARK}");
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix)) {
            match fs::remove_file(entry.path()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn writes_what_differs_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("f");
        assert_eq!(replace(&target, b"one", 0o600).unwrap(), Outcome::Written);
        assert_eq!(mode(&target), 0o600);
        let before = fs::metadata(&target).unwrap().modified().unwrap();
        assert_eq!(replace(&target, b"one", 0o600).unwrap(), Outcome::Unchanged);
        assert_eq!(replace(&target, b"one", 0o755).unwrap(), Outcome::ModeSet);
        assert_eq!(fs::metadata(&target).unwrap().modified().unwrap(), before);
        assert_eq!(replace(&target, b"two", 0o755).unwrap(), Outcome::Written);
        assert_eq!(fs::read(&target).unwrap(), b"two");
        assert!(replace(dir.path(), b"x", 0o600).is_err(), "a folder is no file");
    }

    #[test]
    fn u_21_a_crash_anywhere_leaves_the_old_file_or_the_new() {
        let (old, new) = (vec![b'o'; 3 * PART], vec![b'n'; 3 * PART + 7]);
        for old in [None, Some(&old)] {
            let mut moment = 0;
            loop {
                let dir = tempfile::tempdir().unwrap();
                let target = dir.path().join("01-kube-ovn.conflist");
                if let Some(old) = old {
                    replace(&target, old, 0o644).unwrap();
                }
                let mut seen = 0;
                let mut last = None;
                let crashed = write(&target, &temporary(&target).unwrap(), &new, 0o600, &mut |step| {
                    seen += 1;
                    last = Some(step);
                    if seen > moment { Err(io::Error::other("crash")) } else { Ok(()) }
                });
                if crashed.is_ok() {
                    assert!(moment > 8, "every moment was reached");
                    break;
                }
                let present = fs::read(&target).ok();
                let renamed = matches!(last, Some(Step::Renamed | Step::FolderSynced));
                if renamed {
                    assert_eq!(present.as_ref(), Some(&new), "{last:?}");
                    assert_eq!(mode(&target), 0o600);
                } else {
                    assert_eq!(present.as_ref(), old, "{last:?}");
                }
                // Whoever reads the folder as container runtimes do sees at most the one file.
                let visible = fs::read_dir(dir.path())
                    .unwrap()
                    .filter(|entry| {
                        let path = entry.as_ref().unwrap().path();
                        path.extension().is_some_and(|e| e == "conflist" || e == "conf" || e == "json")
                    })
                    .count();
                assert_eq!(visible, usize::from(present.is_some()));
                // The next start puts it right and clears up.
                replace(&target, &new, 0o600).unwrap();
                assert_eq!(fs::read(&target).unwrap(), new);
                if !renamed {
                    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "{last:?}");
                }
                moment += 1;
            }
        }
    }

    #[test]
    fn leftovers_of_other_files_are_not_ours_to_sweep() {
        let dir = tempfile::tempdir().unwrap();
        let (ours, others) = (dir.path().join(".f.weir-tmp-00"), dir.path().join(".g.weir-tmp-00"));
        fs::write(&ours, "x").unwrap();
        fs::write(&others, "x").unwrap();
        replace(&dir.path().join("f"), b"1", 0o600).unwrap();
        assert!(!ours.exists() && others.exists());
    }
}
