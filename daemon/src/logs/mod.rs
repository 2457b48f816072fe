//! Logs of the agent: to standard error, with a level that can be changed while it runs.
//!
//! In: flags, the environment, later a filter by diagnostics (method `log`). Out: lines on standard error, counted by
//! level. `WEIR_LOG` filters, `WEIR_LOG_FORMAT=json` makes objects of the lines, klog's `-v` of 4 and more shows debug
//! messages.

mod file;

use std::sync::{Mutex, OnceLock, PoisonError};

use tracing_subscriber::EnvFilter;

pub use file::LogFile;

use crate::flags::Flags;

/// Puts a filter into force.
type Set = Box<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>;

struct Switch {
    set: Set,
    /// What the flags and the environment say.
    default: String,
    current: Mutex<String>,
}

/// One process has one subscriber.
static SWITCH: OnceLock<Switch> = OnceLock::new();

/// The filter that the flags and the environment ask for.
fn default_filter(flags: &Flags) -> String {
    let from_environment = std::env::var("WEIR_LOG").or_else(|_| std::env::var("RUST_LOG"));
    if let Some(text) = from_environment.ok().filter(|text| EnvFilter::try_new(text).is_ok()) {
        return text;
    }
    match flags.klog.verbosity {
        0..=3 => "info",
        4..=5 => "info,daemon=debug,ovsdb=debug",
        _ => "info,daemon=trace,ovsdb=trace",
    }
    .to_owned()
}

/// Starts to log. Called once, by the executable.
pub fn start(flags: &Flags) {
    let file = LogFile::of(flags);
    let problem = file.as_ref().err().map(ToString::to_string);
    // Without its file the log is not to be lost.
    let stderr = flags.klog.to_stderr() || !matches!(file, Ok(Some(_)));
    crate::metrics::write_logs_to(file.ok().flatten(), stderr);
    install(flags);
    if let Some(error) = problem {
        tracing::warn!(error, "the log file can't be written; logs go to standard error");
    }
}

fn install(flags: &Flags) {
    let default = default_filter(flags);
    let filter = EnvFilter::try_new(&default).unwrap_or_else(|_| EnvFilter::new("info"));
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(crate::metrics::CountingWriter)
        .with_ansi(false);
    let set: Set = if std::env::var("WEIR_LOG_FORMAT").as_deref() == Ok("json") {
        let logs = logs.json().flatten_event(true).with_filter_reloading();
        let handle = logs.reload_handle();
        logs.init();
        Box::new(move |filter| handle.reload(filter).map_err(|error| error.to_string()))
    } else {
        let logs = logs.with_filter_reloading();
        let handle = logs.reload_handle();
        logs.init();
        Box::new(move |filter| handle.reload(filter).map_err(|error| error.to_string()))
    };
    // A second start would have failed in `init`.
    let _ = SWITCH.set(Switch { set, current: Mutex::new(default.clone()), default });
}

/// The filter in force; empty if the process does not log by [`start`].
pub fn filter() -> String {
    let current =
        SWITCH.get().map(|switch| switch.current.lock().unwrap_or_else(PoisonError::into_inner).clone());
    current.unwrap_or_default()
}

/// Puts another filter into force (`debug`, `info,daemon::plug=trace`, …); an empty one is that of the start. Returns
/// the filter that is in force now.
///
/// # Errors
/// When the text is no filter; the old one stays.
pub fn set_filter(text: &str) -> Result<String, String> {
    let Some(switch) = SWITCH.get() else { return Err("this process has no log of its own".into()) };
    let text = if text.is_empty() { switch.default.as_str() } else { text };
    let filter = EnvFilter::try_new(text)
        .map_err(|error| format!("{text:?} is no filter ({error}); write for instance info,daemon=debug"))?;
    (switch.set)(filter)?;
    text.clone_into(&mut switch.current.lock().unwrap_or_else(PoisonError::into_inner));
    tracing::info!(filter = text, "the log's filter was changed");
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn verbosity_becomes_a_filter() {
        // WEIR_LOG is for people; tests run without it.
        if std::env::var_os("WEIR_LOG").or_else(|| std::env::var_os("RUST_LOG")).is_none() {
            assert_eq!(default_filter(&Flags::parse_from(["x"])), "info");
            assert_eq!(default_filter(&Flags::parse_from(["x", "-v", "4"])), "info,daemon=debug,ovsdb=debug");
        }
        assert!(set_filter("debug").is_err(), "tests don't start logs");
    }
}
