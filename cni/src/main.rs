//! The CNI executable, installed as `kube-ovn`: see the library.

use cni::environment::Environment;
use std::io::{Read, Write};
use std::process::ExitCode;

/// No configuration comes near this.
const MAX_STDIN: u64 = 16 << 20;

fn main() -> ExitCode {
    let environment = Environment::from_vars(std::env::vars_os());
    let mut stdin = Vec::new();
    if !environment.command.is_empty() {
        // An unreadable or truncated configuration is then reported as such by its parser.
        let _ = std::io::stdin().lock().take(MAX_STDIN).read_to_end(&mut stdin);
    }
    let outcome = cni::plugin::run(&environment, &stdin);
    let _ = std::io::stderr().lock().write_all(outcome.stderr.as_bytes());
    let mut stdout = std::io::stdout().lock();
    // A runtime that can't be told the result must not believe in success.
    if stdout.write_all(outcome.stdout.as_bytes()).and_then(|()| stdout.flush()).is_err() {
        return ExitCode::FAILURE;
    }
    ExitCode::from(outcome.status)
}
