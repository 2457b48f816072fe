//! The log file of klog's flags (`--log_file` with `--logtostderr=false`, node contract §5.1), for those who collect
//! `/var/log/kube-ovn`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::flags::Flags;

/// klog's bound of a file, in megabytes.
const DEFAULT_SIZE: u64 = 1800;

/// A file that starts anew when it is full; what was in it is kept once, as `<name>.1`.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    mode: u32,
    /// Bytes; 0 is no bound.
    most: u64,
    file: File,
    written: u64,
}

impl LogFile {
    /// What the flags ask for, if they do.
    ///
    /// # Errors
    /// When the file can't be opened, or a flag is no number.
    pub fn of(flags: &Flags) -> io::Result<Option<Self>> {
        let klog = &flags.klog;
        let Some(path) = klog.log_file.as_deref().filter(|path| !path.is_empty() && !klog.only_stderr())
        else {
            return Ok(None);
        };
        let invalid = |flag: &str, text: &str| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("--{flag}: {text:?} is no number"))
        };
        let mode = u32::from_str_radix(&flags.log_perm, 8)
            .ok()
            .filter(|mode| *mode <= 0o777)
            .ok_or_else(|| invalid("log-perm", &flags.log_perm))?;
        let megabytes = match klog.log_file_max_size.as_deref() {
            None => DEFAULT_SIZE,
            Some(text) => text.parse().map_err(|_| invalid("log_file_max_size", text))?,
        };
        Self::open(Path::new(path), mode, megabytes.saturating_mul(1 << 20)).map(Some)
    }

    fn open(path: &Path, mode: u32, most: u64) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).mode(mode).open(path)?;
        // An older file, and the process's umask.
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        let written = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), mode, most, file, written })
    }

    /// Writes one line.
    ///
    /// # Errors
    /// As the file system: the line may not be where people look for it. When a full file can't be followed by a new one
    /// (no descriptors, no space, no folder), the line is in the old one, and the next line tries again.
    pub fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let length = line.len() as u64;
        let full = self.most > 0 && self.written > 0 && self.written + length > self.most;
        let turned = if full { self.turn_over() } else { Ok(()) };
        self.file.write_all(line)?;
        self.written += length;
        turned
    }

    fn turn_over(&mut self) -> io::Result<()> {
        let mut old = self.path.clone().into_os_string();
        old.push(".1");
        match fs::rename(&self.path, old) {
            // An attempt before this one came that far.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        *self = Self::open(&self.path, self.mode, self.most)?;
        Ok(())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// One that is full after `most` bytes.
    #[cfg(test)]
    pub(crate) fn small(path: &Path, most: u64) -> Self {
        Self::open(path, 0o600, most).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn the_file_has_the_flags_name_mode_and_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kube-ovn-cni.log");
        let with = |arguments: &[&str]| {
            let file = format!("--log_file={}", path.display());
            LogFile::of(&Flags::parse_from(["x", &file].iter().chain(arguments).copied()))
        };
        assert!(with(&[]).unwrap().is_none(), "klog writes to standard error alone by default");
        let mut file = with(&["--logtostderr=false", "--log-perm=600"]).unwrap().unwrap();
        file.write(b"one\n").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(&path), 0o600);
        let mut file = with(&["--logtostderr=false", "--log_file_max_size=1"]).unwrap().unwrap();
        assert_eq!(mode(&path), 0o640, "the default, on an older file too");
        let line = [b'x'; 1 << 19];
        for _ in 0..3 {
            file.write(&line).unwrap();
        }
        let old = folder.path().join("kube-ovn-cni.log.1");
        assert!(fs::read(&old).unwrap().starts_with(b"one\nxxx"), "a restart goes on in the same file");
        assert_eq!(fs::metadata(&old).unwrap().len(), 4 + (1 << 19));
        assert_eq!((fs::metadata(&path).unwrap().len(), mode(&path)), (1 << 20, 0o640));
        for bad in ["--log-perm=9", "--log-perm=7777", "--log_file_max_size=x"] {
            assert!(with(&["--logtostderr=false", bad]).is_err(), "{bad}");
        }
    }

    #[test]
    fn no_line_is_lost_while_a_full_file_can_not_be_followed_by_another() {
        let folder = tempfile::tempdir().unwrap();
        let [logs, away] = ["logs", "away"].map(|name| folder.path().join(name));
        fs::create_dir(&logs).unwrap();
        let (path, old) = (logs.join("x.log"), logs.join("x.log.1"));
        let mut file = LogFile::small(&path, 8);
        file.write(b"1234567\n").unwrap();
        // It can't be renamed.
        fs::create_dir(&old).unwrap();
        assert!(file.write(b"a\n").is_err());
        assert_eq!(fs::read(&path).unwrap(), b"1234567\na\n");
        fs::remove_dir(&old).unwrap();
        file.write(b"abcdefg\n").unwrap();
        assert_eq!(
            (fs::read(&old).unwrap(), fs::read(&path).unwrap()),
            (b"1234567\na\n".to_vec(), b"abcdefg\n".to_vec())
        );
        // It can't be made anew: as after a rename without a descriptor left.
        fs::rename(&logs, &away).unwrap();
        for _ in 0..2 {
            assert!(file.write(b"b\n").is_err());
        }
        assert_eq!(fs::read(away.join("x.log")).unwrap(), b"abcdefg\nb\nb\n");
        fs::create_dir(&logs).unwrap();
        file.write(b"c\n").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"c\n");
    }
}
