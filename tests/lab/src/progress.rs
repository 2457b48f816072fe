//! What a person at the terminal sees of long work, and bounded waiting.
//!
//! In: names of steps, states of what is waited for. Out: lines on standard
//! error, each with the time since the program began; errors that say what was
//! waited for and what its last state was. Standard output stays free for
//! results (`lab kubectl`, `lab ovs-root`, tables).

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

static BEGIN: OnceLock<Instant> = OnceLock::new();

/// Starts the clock that progress lines count from; later calls change nothing.
pub fn begin() -> Instant {
    *BEGIN.get_or_init(Instant::now)
}

/// Prints one progress line.
pub fn say(text: impl AsRef<str>) {
    let since = begin().elapsed().as_secs_f64();
    // A closed terminal must not end the work.
    let _ = writeln!(std::io::stderr().lock(), "[{since:6.1}s] {}", text.as_ref());
}

/// Runs `work`, saying when it begins and how long it took.
pub fn step<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    say(format!("{name} ..."));
    quiet_step(name, work)
}

/// Like [`step`], but says only the end: for steps that usually take no time.
pub fn quiet_step<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let begun = Instant::now();
    let result = work().with_context(|| format!("step failed: {name}"));
    let outcome = if result.is_ok() { "done" } else { "FAILED" };
    say(format!("{name}: {outcome} ({:.1} s)", begun.elapsed().as_secs_f64()));
    result
}

/// Says every `interval` that something still runs, until dropped: for child
/// programs that print nothing themselves (a Go build takes minutes).
pub struct Heartbeat {
    stop: Arc<AtomicBool>,
}

impl Heartbeat {
    /// `describe` makes the line; it is called on a thread of its own.
    pub fn start(interval: Duration, describe: impl Fn(Duration) -> String + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        thread::spawn(move || {
            let begun = Instant::now();
            let mut next = interval;
            while !seen.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(100));
                if begun.elapsed() >= next && !seen.load(Ordering::Relaxed) {
                    say(describe(begun.elapsed()));
                    next += interval;
                }
            }
        });
        Self { stop }
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// What one look at a condition found.
pub enum Look<T> {
    /// The condition holds.
    Ready(T),
    /// It does not hold yet; the text says how things stand.
    NotYet(String),
}

/// How often conditions are looked at.
const POLL: Duration = Duration::from_millis(150);
/// How often a person is told what is still being waited for.
const REMIND: Duration = Duration::from_secs(5);

/// Looks at a condition until it holds or `limit` has passed.
///
/// An error of `look` counts as "not yet" (servers that are starting refuse
/// connections); it is in the message if time runs out.
pub fn wait_for<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Result<Look<T>>) -> Result<T> {
    let begun = Instant::now();
    let mut reminded = begun;
    loop {
        let state = match look() {
            Ok(Look::Ready(value)) => return Ok(value),
            Ok(Look::NotYet(state)) => state,
            Err(error) => format!("{error:#}"),
        };
        if begun.elapsed() >= limit {
            bail!("waited {:.0} s for {what}; last seen: {state}", limit.as_secs_f64());
        }
        if reminded.elapsed() >= REMIND {
            reminded = Instant::now();
            let short: String = state.replace('\n', " ").chars().take(200).collect();
            say(format!("  waiting for {what}: {short}"));
        }
        thread::sleep(POLL);
    }
}

/// Runs independent pieces of work at once, one thread each, and returns their
/// results in order; the first error wins.
pub fn at_once<T: Send>(work: Vec<Box<dyn FnOnce() -> Result<T> + Send + '_>>) -> Result<Vec<T>> {
    thread::scope(|scope| {
        let handles: Vec<_> = work.into_iter().map(|piece| scope.spawn(piece)).collect();
        // Every thread is joined before the first error is reported: nothing
        // may still be building a lab that its caller is about to take down.
        let results: Vec<Result<T>> = handles
            .into_iter()
            .map(|handle| handle.join().unwrap_or_else(|_| bail!("a worker thread panicked")))
            .collect();
        results.into_iter().collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends_with_the_value_or_says_the_last_state() {
        let mut looks = 0;
        let value = wait_for("three looks", Duration::from_secs(20), || {
            looks += 1;
            Ok(if looks == 3 { Look::Ready(looks) } else { Look::NotYet("soon".into()) })
        });
        assert_eq!(value.unwrap(), 3);
        let error = wait_for::<()>("never", Duration::ZERO, || bail!("refused")).unwrap_err();
        assert_eq!(error.to_string(), "waited 0 s for never; last seen: refused");
    }

    #[test]
    fn work_at_once_keeps_order_and_reports_errors() {
        let ok = at_once(vec![Box::new(|| Ok(1)), Box::new(|| Ok(2))]).unwrap();
        assert_eq!(ok, [1, 2]);
        assert!(at_once::<()>(vec![Box::new(|| Ok(())), Box::new(|| bail!("no"))]).is_err());
    }
}
