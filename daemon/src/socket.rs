//! Unix sockets that are never half there.

use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

/// A bound socket file; removed on drop if it is still ours.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = std::fs::symlink_metadata(&self.path).is_ok_and(|meta| meta.ino() == self.inode);
        if ours {
            // Gone meanwhile is as good.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Binds `path` for root only. The socket is bound under another name,
/// restricted, then renamed into place: a predecessor's file is replaced in
/// one step, and no client ever meets a socket that is not listening.
///
/// # Errors
/// When the folder can't be made or written, or the path is too long (107
/// bytes with the suffix).
pub fn bind(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}", std::process::id()));
    let temporary = PathBuf::from(temporary);
    match std::fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&temporary)?;
    let placed = (|| {
        std::fs::set_permissions(&temporary, std::fs::Permissions::from_mode(0o600))?;
        let inode = std::fs::symlink_metadata(&temporary)?.ino();
        std::fs::rename(&temporary, path)?;
        Ok(SocketFile { path: path.to_owned(), inode })
    })();
    match placed {
        Ok(file) => Ok((listener, file)),
        Err(error) => {
            let _ = std::fs::remove_file(&temporary);
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stale_file_is_replaced_and_a_successors_file_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sub/s.sock");
        let (first, first_file) = bind(&path).unwrap();
        drop(first);
        let (_second, _second_file) = bind(&path).unwrap();
        drop(first_file);
        assert!(tokio::net::UnixStream::connect(&path).await.is_ok());
        drop(_second_file);
        assert!(!path.exists());
    }
}
