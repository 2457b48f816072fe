//! Checks of a running cluster, and the table that shows their results.
//!
//! In: a lab. Out: for each check whether it holds, what was seen, how long it
//! took. [`probe`] has the single questions (ping, fetch, ...), [`show`] the
//! list that `lab show` asks; tests use both.

pub mod probe;
pub mod show;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

/// A question to the cluster. The answer's text is what the table shows.
pub struct Check<'a> {
    /// What should hold, in words.
    pub name: String,
    /// How long it may take to become true.
    pub within: Duration,
    /// Asks once.
    pub ask: Box<dyn Fn() -> Result<String> + Send + Sync + 'a>,
}

impl<'a> Check<'a> {
    /// A check that should hold at once. It is asked again for some seconds,
    /// so that one lost packet on an overloaded machine is a remark in the
    /// table and not a failure.
    pub fn new(name: impl Into<String>, ask: impl Fn() -> Result<String> + Send + Sync + 'a) -> Self {
        Self { name: name.into(), within: Duration::from_secs(5), ask: Box::new(ask) }
    }

    /// The same with another patience.
    pub fn within(mut self, limit: Duration) -> Self {
        self.within = limit;
        self
    }
}

/// What a check found.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The check's name.
    pub name: String,
    /// Whether it holds.
    pub good: bool,
    /// What was seen, or the last error.
    pub seen: String,
    /// How long it took.
    pub took: Duration,
}

/// How many checks are asked at once: most of their time is waiting.
const AT_ONCE: usize = 8;

/// Asks all checks, some at a time, and returns their outcomes in order.
pub fn ask_all(checks: &[Check<'_>]) -> Vec<Outcome> {
    let next = AtomicUsize::new(0);
    let outcomes: Mutex<Vec<(usize, Outcome)>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let (index, Some(check)) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    (index, checks.get(index))
                } {
                    let outcome = ask(check);
                    outcomes.lock().unwrap_or_else(|poison| poison.into_inner()).push((index, outcome));
                }
            });
        }
    });
    let mut outcomes = outcomes.into_inner().unwrap_or_else(|poison| poison.into_inner());
    outcomes.sort_by_key(|(index, _)| *index);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

/// Asks one check until it holds or its time is up.
pub fn ask(check: &Check<'_>) -> Outcome {
    let begun = Instant::now();
    let mut asked = 0;
    loop {
        asked += 1;
        let outcome = |good, seen| Outcome { name: check.name.clone(), good, seen, took: begun.elapsed() };
        match (check.ask)() {
            Ok(seen) if asked == 1 => return outcome(true, seen),
            Ok(seen) => return outcome(true, format!("{seen} (asked {asked} times)")),
            Err(error) if begun.elapsed() >= check.within => return outcome(false, format!("{error:#}")),
            Err(_) => std::thread::sleep(Duration::from_millis(250)),
        }
    }
}

/// The outcomes as a table for a person.
pub fn table(outcomes: &[Outcome]) -> String {
    let width = outcomes.iter().map(|outcome| outcome.name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for outcome in outcomes {
        let mark = if outcome.good { "ok  " } else { "FAIL" };
        let seen = outcome.seen.trim().replace('\n', " | ");
        let seconds = outcome.took.as_secs_f64();
        text.push_str(&format!("{mark}  {:<width$}  {seconds:5.1} s  {seen}\n", outcome.name));
    }
    let good = outcomes.iter().filter(|outcome| outcome.good).count();
    text.push_str(&format!("{good} of {} hold\n", outcomes.len()));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;

    #[test]
    fn outcomes_keep_the_order_and_tell_of_repeated_asking() {
        let count = AtomicUsize::new(0);
        let checks = [
            Check::new("slow", || match count.fetch_add(1, Ordering::Relaxed) {
                0 => bail!("not yet"),
                _ => Ok("now".into()),
            })
            .within(Duration::from_secs(30)),
            Check::new("never", || bail!("no")).within(Duration::ZERO),
        ];
        let outcomes = ask_all(&checks);
        assert_eq!(outcomes[0].seen, "now (asked 2 times)");
        assert!(!outcomes[1].good);
        let table = table(&outcomes);
        assert!(table.contains("FAIL  never") && table.ends_with("1 of 2 hold\n"), "{table}");
    }
}
