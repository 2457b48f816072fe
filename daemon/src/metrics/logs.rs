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
    file: Option<Mutex<LogFile>>,
    stderr: bool,
}

/// One process has one log; until it is set, it is standard error.
static TARGET: OnceLock<Target> = OnceLock::new();

/// Lines go to a file from now on, and to standard error if they shall; errors always do.
pub fn write_logs_to(file: Option<LogFile>, stderr: bool) {
    // A second call would be a second log.
    let _ = TARGET.set(Target { file: file.map(Mutex::new), stderr });
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
        let target = TARGET.get();
        if let Some(file) = target.and_then(|target| target.file.as_ref()) {
            // A full disk must not stop the agent either.
            let _ = file.lock().unwrap_or_else(PoisonError::into_inner).write(line);
        }
        // As klog: errors are always seen.
        if self.0 == 0 || target.is_none_or(|target| target.stderr) {
            // Whoever closed our standard error must not stop the agent.
            let _ = io::stderr().lock().write_all(line);
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
