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
    /// As the file system.
    pub fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let length = line.len() as u64;
        if self.most > 0 && self.written > 0 && self.written + length > self.most {
            let mut old = self.path.clone().into_os_string();
            old.push(".1");
            fs::rename(&self.path, old)?;
            *self = Self::open(&self.path, self.mode, self.most)?;
        }
        self.file.write_all(line)?;
        self.written += length;
        Ok(())
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
}
