//! Runs `ipset` and the iptables family, with input, a deadline and the output of failures.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// The lock of iptables may be held by kube-proxy for seconds on a large cluster; far beyond that something hangs.
const DEADLINE: Duration = Duration::from_secs(60);

/// A program that could not be run or said no.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It is not installed or not executable.
    #[error("{program} can't be started: {reason}; it belongs into the agent's image")]
    Start {
        /// The program.
        program: String,
        /// The system's words.
        reason: String,
    },
    /// It ended with a failure.
    #[error("{program}: {message}")]
    Failed {
        /// The program with its arguments.
        program: String,
        /// What it wrote to standard error.
        message: String,
    },
    /// It did not end in time.
    #[error("{program} did not end within {} s", DEADLINE.as_secs())]
    Hangs {
        /// The program with its arguments.
        program: String,
    },
}

/// Result of running a program.
pub type Result<T> = std::result::Result<T, Error>;

/// Where programs run: on the host, or behind a prefix such as `ip netns exec NAME`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tools {
    prefix: Vec<String>,
}

impl Tools {
    /// Programs found by `PATH`, in the agent's own namespace.
    pub fn system() -> Self {
        Self::default()
    }

    /// The same, each started by the words of `prefix`.
    pub fn behind<S: Into<String>>(prefix: impl IntoIterator<Item = S>) -> Self {
        Self { prefix: prefix.into_iter().map(Into::into).collect() }
    }

    /// Runs a program and returns its standard output.
    ///
    /// # Errors
    /// See [`Error`]. A program that hangs is killed.
    pub async fn run(&self, program: &str, arguments: &[&str], input: Option<&str>) -> Result<String> {
        let result = self.run_uncounted(program, arguments, input).await;
        super::counts::ran(program, input, &result);
        result
    }

    async fn run_uncounted(&self, program: &str, arguments: &[&str], input: Option<&str>) -> Result<String> {
        let words: Vec<&str> = self
            .prefix
            .iter()
            .map(String::as_str)
            .chain([program])
            .chain(arguments.iter().copied())
            .collect();
        let shown = words.join(" ");
        let start =
            |error: std::io::Error| Error::Start { program: shown.clone(), reason: error.to_string() };
        let Some((first, rest)) = words.split_first() else {
            return Err(start(std::io::Error::other("no program")));
        };
        let mut child = Command::new(first)
            .args(rest)
            .env("LC_ALL", "C")
            .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(start)?;
        let stdin = child.stdin.take();
        let work = async {
            // Written while output is read: neither side can fill a pipe and wait for the other.
            let feed = async {
                if let (Some(mut stdin), Some(input)) = (stdin, input) {
                    // A program that stops reading says why on standard error.
                    let _ = stdin.write_all(input.as_bytes()).await;
                }
            };
            tokio::join!(feed, child.wait_with_output()).1
        };
        let output = tokio::time::timeout(DEADLINE, work)
            .await
            .map_err(|_| Error::Hangs { program: shown.clone() })?
            .map_err(start)?;
        if !output.status.success() {
            let mut message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            if message.is_empty() {
                message = output.status.to_string();
            }
            return Err(Error::Failed { program: shown, message });
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn input_output_and_failures() {
        let tools = Tools::behind(["env", "-i"]);
        let large = "x".repeat(1 << 20);
        assert_eq!(tools.run("cat", &[], Some(&large)).await.unwrap(), large);
        let error = Tools::system().run("sh", &["-c", "echo no >&2; exit 3"], None).await.unwrap_err();
        assert_eq!(
            error,
            Error::Failed { program: "sh -c echo no >&2; exit 3".into(), message: "no".into() }
        );
        let missing = Tools::system().run("no-such-program-here", &[], None).await;
        assert!(matches!(missing, Err(Error::Start { .. })));
    }
}
