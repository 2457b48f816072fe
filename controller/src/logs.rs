//! Structured logs on standard error, as text or JSON, counted per level under the
//! names that Kube-OVN uses (`klog_lines_total`, `klog_bytes_total`).
//!
//! Flows in: `tracing` events. Flows out: lines, and [`encode`] for `/metrics`.

use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use tracing::Level;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// klog has three levels; debug and trace lines count as INFO there too.
const LEVELS: [&str; 3] = ["ERROR", "WARNING", "INFO"];
static LINES: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
static BYTES: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// How to log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One readable line per event.
    Text,
    /// One JSON object per event.
    Json,
}

/// Starts logging. `filter` is a filter text (env `WEIR_LOG`), else `verbosity`
/// is klog's `-v`.
///
/// # Errors
/// A filter that can't be read, or logging that was started before.
pub fn start(format: Format, filter: Option<&str>, verbosity: u64) -> Result<(), String> {
    let filter = match filter {
        Some(text) => EnvFilter::try_new(text).map_err(|error| {
            format!(
                "WEIR_LOG: `{text}` is no filter ({error}); give for instance info,controller::watch=debug"
            )
        })?,
        None => EnvFilter::new(match verbosity {
            0..=3 => "info",
            4..=5 => "info,controller=debug,ovsdb=debug",
            _ => "info,controller=trace,ovsdb=trace",
        }),
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(Counting).with_ansi(false);
    let result = match format {
        Format::Text => builder.try_init(),
        Format::Json => builder.json().flatten_event(true).with_current_span(false).try_init(),
    };
    result.map_err(|error| error.to_string())
}

/// Hands out writers to standard error that count.
struct Counting;

struct Writer {
    level: usize,
}

impl<'a> MakeWriter<'a> for Counting {
    type Writer = Writer;

    fn make_writer(&'a self) -> Writer {
        Writer { level: 2 }
    }

    fn make_writer_for(&'a self, meta: &tracing::Metadata<'_>) -> Writer {
        let level = match *meta.level() {
            Level::ERROR => 0,
            Level::WARN => 1,
            _ => 2,
        };
        Writer { level }
    }
}

impl Write for Writer {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let (Some(lines), Some(bytes)) = (LINES.get(self.level), BYTES.get(self.level)) {
            lines.fetch_add(1, Ordering::Relaxed);
            bytes.fetch_add(u64::try_from(line.len()).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
        // Whoever closed our standard error must not stop the controller.
        let _ = io::stderr().lock().write_all(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = io::stderr().flush();
        Ok(())
    }
}

/// Writes the counters.
///
/// # Errors
/// The encoder's.
pub fn encode(encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
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
