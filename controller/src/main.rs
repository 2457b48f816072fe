//! The binary `kube-ovn-controller`: reads flags and environment, starts logging,
//! and hands over to [`controller::run::process`].

use std::process::ExitCode;

use controller::flags::Flags;
use controller::flags::settings::Settings;
use controller::logs;

/// A pod passes as many small pieces of memory through the process as its objects have
/// strings. With the C library's allocator a third of the processor's time goes there
/// (`docs/performance.md`).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Where the machine gives huge pages to everybody: what stays after a burst lies between what
    // went, and a page is given back whole or not at all (`docs/performance.md`).
    let _ = nix::sys::prctl::set_thp_disable(true);
    let flags = match Flags::parse_from(std::env::args_os()) {
        Ok(flags) => flags,
        // Prints help and version to standard output, errors to standard error.
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS };
        }
    };
    match start(&flags) {
        Ok(code) => code,
        Err(problem) => {
            tracing::error!(problem, "can't start");
            eprintln!("kube-ovn-controller: {problem}");
            ExitCode::from(2)
        }
    }
}

fn start(flags: &Flags) -> Result<ExitCode, String> {
    let env = |name: &str| std::env::var(name).ok();
    let set = |name: &str| env(name).filter(|value| !value.is_empty());
    let format = match set("WEIR_LOG_FORMAT").unwrap_or_else(|| flags.text("log-format").to_owned()).as_str()
    {
        "text" => logs::Format::Text,
        "json" => logs::Format::Json,
        other => return Err(format!("--log-format: `{other}` is unknown; use text or json")),
    };
    logs::start(format, set("WEIR_LOG").as_deref(), flags.number("v"))?;
    for warning in flags.warnings() {
        tracing::warn!("{warning}");
    }
    if !flags.tolerated().is_empty() {
        tracing::info!(flags = ?flags.tolerated(), "log flags are tolerated, logs go to standard error: see kubectl logs");
    }
    let settings = Settings::new(flags, env).map_err(|error| error.to_string())?;
    // The one crypto provider; an error only says that one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // At least two: the renewal of the Lease must never wait behind something else.
    let threads = std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 4);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .map_err(|error| format!("runtime: {error}"))?;
    let code = runtime.block_on(controller::run::process::run(settings, controller::compile::compile))?;
    // Whatever still sleeps somewhere must not hold the exit up.
    runtime.shutdown_timeout(std::time::Duration::from_millis(200));
    Ok(code)
}
