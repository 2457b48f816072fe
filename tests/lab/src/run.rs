//! Running other programs: one place that turns "exit status 1" into an error
//! that names the command and what it said.
//!
//! In: a [`Command`]. Out: its standard output, or an error with its last words.

use std::ffi::OsStr;
use std::io::Write;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

/// How much of a failed program's output goes into the error.
const LAST_WORDS: usize = 3000;

/// A command with its arguments: `command("ip", ["link", "show"])`.
pub fn command<S: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(program);
    command.args(args);
    command
}

/// The command line as a person would type it (for messages).
pub fn text(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|word| word.to_string_lossy().into_owned()));
    words.join(" ")
}

/// Runs to the end with no standard input and returns everything, whatever the
/// exit status was.
pub fn output(command: &mut Command) -> Result<Output> {
    command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {}", text(command)))
}

/// Runs to the end; standard output, or an error when the status is not 0.
pub fn capture(command: &mut Command) -> Result<String> {
    let output = output(command)?;
    finish(command, output)
}

/// Like [`capture`], with `input` on the program's standard input.
pub fn capture_with_input(command: &mut Command, input: &[u8]) -> Result<String> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {}", text(command)))?;
    let mut stdin = child.stdin.take().context("no pipe to the program")?;
    let output = std::thread::scope(|scope| {
        // Written beside the reading: either side may fill its pipe. A program
        // that ends without reading all of it says why by its status.
        scope.spawn(move || {
            let _ = stdin.write_all(input);
        });
        child.wait_with_output()
    });
    let output = output.with_context(|| format!("cannot run {}", text(command)))?;
    finish(command, output)
}

/// Runs to the end for its effect only.
pub fn check(command: &mut Command) -> Result<()> {
    capture(command).map(drop)
}

/// `check` of a program with arguments.
pub fn run<S: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = S>) -> Result<()> {
    check(&mut command(program, args))
}

/// Whether a program with arguments ends with status 0 (its output is dropped).
pub fn succeeds<S: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = S>) -> bool {
    output(&mut command(program, args)).is_ok_and(|output| output.status.success())
}

/// The path of a program found in `PATH`.
pub fn find_program(name: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    // Root's usual PATH may lack the sbin folders (su without a dash).
    let extra = ["/usr/sbin", "/sbin"].map(std::path::PathBuf::from);
    std::env::split_paths(&path).chain(extra).map(|folder| folder.join(name)).find(|file| file.is_file())
}

fn finish(command: &Command, output: Output) -> Result<String> {
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let skip = said.chars().count().saturating_sub(LAST_WORDS);
    let tail: String = said.chars().skip(skip).collect();
    bail!("{} ended with {}: {}", text(command), output.status, tail.trim());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_command_and_its_last_words() {
        let error = run("sh", ["-c", "echo because >&2; exit 3"]).unwrap_err().to_string();
        assert!(error.starts_with("sh -c ") && error.contains("3") && error.ends_with("because"), "{error}");
        assert!(run("no-such-program-anywhere", [""; 0]).is_err());
    }

    #[test]
    fn input_larger_than_a_pipe_passes_through() {
        let input = vec![b'x'; 300_000];
        let output = capture_with_input(&mut command("cat", [""; 0]), &input).unwrap();
        assert_eq!(output.len(), input.len());
    }
}
