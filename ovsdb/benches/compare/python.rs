//! The Python binding (`ovs.db.idl`), in a process that `idl.py` describes. Without a
//! Python that has the package, its column stays empty.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::ours;
use super::setup::Filled;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/compare/idl.py");

fn command(filled: &Filled, words: &[&str]) -> Option<Command> {
    let python = std::env::var("WEIR_BENCH_PYTHON").unwrap_or_else(|_| "python3".into());
    let has = Command::new(&python).args(["-c", "import ovs.db.idl"]).stderr(Stdio::null()).status();
    if !has.is_ok_and(|status| status.success()) {
        return None;
    }
    let mut command = Command::new(python);
    command.arg(SCRIPT).arg(filled.server.socket()).args(words).stdout(Stdio::piped());
    Some(command)
}

/// Numbers that the script prints.
fn numbers(filled: &Filled, words: &[&str]) -> Vec<f64> {
    let Some(mut command) = command(filled, words) else { return Vec::new() };
    let output = command.output().unwrap();
    assert!(output.status.success(), "{words:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().map(|word| word.parse().unwrap()).collect()
}

pub fn load(filled: &Filled) -> (Duration, usize) {
    match numbers(filled, &["load"]).as_slice() {
        [time, kib] => (Duration::from_secs_f64(*time), *kib as usize),
        _ => (Duration::ZERO, 0),
    }
}

pub fn single(filled: &Filled, rounds: usize) -> Vec<Duration> {
    let mut times: Vec<Duration> =
        numbers(filled, &["single", &rounds.to_string()]).into_iter().map(Duration::from_secs_f64).collect();
    times.sort();
    if times.is_empty() { vec![Duration::ZERO] } else { times }
}

pub fn batches(filled: &Filled, total: usize, batch: usize) -> Duration {
    let numbers = numbers(filled, &["batches", &total.to_string(), &batch.to_string()]);
    numbers.first().map_or(Duration::ZERO, |&time| Duration::from_secs_f64(time))
}

pub fn resume(filled: &Filled, rounds: usize) -> Duration {
    let numbers = numbers(filled, &["resume", &rounds.to_string()]);
    numbers.first().map_or(Duration::ZERO, |&time| Duration::from_secs_f64(time))
}

/// Changes a second, summed over so many followers in one Python process.
pub async fn churn(filled: &Filled, monitors: usize, changes: usize) -> f64 {
    let mark = 200 + monitors as i64;
    let words = ["churn", &monitors.to_string(), &mark.to_string()];
    let Some(mut command) = command(filled, &words) else { return 0.0 };
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let begin = std::time::Instant::now();
    ours::write(filled, changes, mark).await;
    assert_eq!(lines.next().unwrap().unwrap(), "done");
    let time = begin.elapsed();
    assert!(child.wait().unwrap().success());
    (monitors * changes) as f64 / time.as_secs_f64()
}
