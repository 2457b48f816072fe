//! Log lines, counted by level under Kube-OVN's names
//! (`klog_lines_total`, `klog_bytes_total`).

use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use tracing_subscriber::fmt::MakeWriter;

use crate::logs::LogFile;

/// klog has three levels; debug and trace lines count as the last.
const LEVELS: [&str; 3] = ["ERROR", "WARNING", "INFO"];
static LINES: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
static BYTES: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

struct Target {
    file: Option<Mutex<Kept>>,
    stderr: bool,
}

struct Kept {
    file: LogFile,
    /// It can't be written, which was told.
    broken: bool,
}

impl Target {
    fn new(file: Option<LogFile>, stderr: bool) -> Self {
        Self { file: file.map(|file| Mutex::new(Kept { file, broken: false })), stderr }
    }

    /// Hands on a line; `always`: to standard error too, as klog does with errors.
    fn write(&self, line: &[u8], always: bool, stderr: &mut impl Write) {
        let mut seen = self.stderr || always;
        if let Some(kept) = &self.file {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            let written = kept.file.write(line);
            if let Err(error) = &written {
                // A full disk must not stop the agent, nor lose what it has to say.
                seen = true;
                if !kept.broken {
                    let path = kept.file.path().display();
                    let _ = writeln!(stderr, "log file {path}: {error}; lines come here meanwhile");
                }
            }
            kept.broken = written.is_err();
        }
        if seen {
            // Whoever closed our standard error must not stop the agent.
            let _ = stderr.write_all(line);
        }
    }
}

/// One process has one log; until it is set, it is standard error.
static TARGET: OnceLock<Target> = OnceLock::new();

/// Lines go to a file from now on, and to standard error if they shall; errors always do.
pub fn write_logs_to(file: Option<LogFile>, stderr: bool) {
    // A second call would be a second log.
    let _ = TARGET.set(Target::new(file, stderr));
}

/// Hands out writers that count.
#[derive(Clone, Copy, Debug, Default)]
pub struct CountingWriter;

/// A writer for one line of one level.
#[derive(Debug)]
pub struct LineWriter(usize);

impl<'a> MakeWriter<'a> for CountingWriter {
    type Writer = LineWriter;

    fn make_writer(&'a self) -> LineWriter {
        LineWriter(2)
    }

    fn make_writer_for(&'a self, meta: &tracing::Metadata<'_>) -> LineWriter {
        LineWriter(match *meta.level() {
            tracing::Level::ERROR => 0,
            tracing::Level::WARN => 1,
            _ => 2,
        })
    }
}

impl Write for LineWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        LINES[self.0].fetch_add(1, Ordering::Relaxed);
        BYTES[self.0].fetch_add(line.len() as u64, Ordering::Relaxed);
        let mut stderr = io::stderr().lock();
        match TARGET.get() {
            Some(target) => target.write(line, self.0 == 0, &mut stderr),
            None => drop(stderr.write_all(line)),
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Exports the counters.
#[derive(Debug)]
pub(super) struct Lines;

impl Collector for Lines {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, counters) in
            [("klog_lines", "Log lines by level", &LINES), ("klog_bytes", "Log bytes by level", &BYTES)]
        {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (level, counter) in LEVELS.iter().zip(counters) {
                let labels = [("level", *level)];
                ConstCounter::new(counter.load(Ordering::Relaxed)).encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_the_file_does_not_take_go_to_standard_error_with_a_word_about_it() {
        let folder = tempfile::tempdir().unwrap();
        let logs = folder.path().join("logs");
        std::fs::create_dir(&logs).unwrap();
        let target = Target::new(Some(LogFile::small(&logs.join("x.log"), 4)), false);
        let mut seen = Vec::new();
        target.write(b"full\n", false, &mut seen);
        assert!(seen.is_empty());
        std::fs::rename(&logs, folder.path().join("away")).unwrap();
        target.write(b"one\n", false, &mut seen);
        target.write(b"two\n", false, &mut seen);
        let text = String::from_utf8(std::mem::take(&mut seen)).unwrap();
        assert!(text.ends_with("meanwhile\none\ntwo\n") && text.matches("log file").count() == 1, "{text}");
        std::fs::create_dir(&logs).unwrap();
        target.write(b"back\n", false, &mut seen);
        assert!(seen.is_empty());
        assert_eq!(std::fs::read(logs.join("x.log")).unwrap(), b"back\n");
        target.write(b"bad\n", true, &mut seen);
        assert_eq!(seen, b"bad\n", "errors are always seen");
    }
}
