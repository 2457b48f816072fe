//! Log lines on standard error, counted by level under Kube-OVN's names
//! (`klog_lines_total`, `klog_bytes_total`).

use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use tracing_subscriber::fmt::MakeWriter;

/// klog has three levels; debug and trace lines count as the last.
const LEVELS: [&str; 3] = ["ERROR", "WARNING", "INFO"];
static LINES: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
static BYTES: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// Hands out writers to standard error that count.
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
        // Whoever closed our standard error must not stop the agent.
        let _ = io::stderr().lock().write_all(line);
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
