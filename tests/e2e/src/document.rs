//! A page of `docs/` whose commands are carried out, so that page and product
//! can't drift apart.
//!
//! In: a page of Markdown. A block ` ```sh HOST ` is a step: `HOST` is a node's
//! name, or `admin` for the machine with kubectl. A block ` ```text ` right
//! after it is what the step prints: line by line, `...` stands for any text in
//! a line, and alone in a line for any number of lines. Other blocks are
//! pictures. Out: the first step that fails or prints something else.

use anyhow::{Context, Result, bail, ensure};
use lab::progress::say;
use lab::run::{capture, command};
use lab::{api, node};

use crate::cluster::Cluster;

/// A step of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Line of the page where it begins.
    pub line: usize,
    /// Where it is carried out.
    pub host: String,
    /// Commands for bash.
    pub script: String,
    /// What it prints, if the page says so.
    pub printed: Option<String>,
}

/// The steps of a page.
///
/// Errors: a block that does not end, a step without a host.
pub fn steps(page: &str) -> Result<Vec<Step>> {
    let mut steps: Vec<Step> = Vec::new();
    let mut lines = page.lines().enumerate();
    // Whether nothing but empty lines came since the last step.
    let mut fresh = false;
    while let Some((number, line)) = lines.next() {
        let Some(kind) = line.trim_end().strip_prefix("```") else {
            fresh &= line.trim().is_empty();
            continue;
        };
        let mut text = String::new();
        loop {
            let (_, line) =
                lines.next().with_context(|| format!("line {}: the block does not end", number + 1))?;
            if line.trim_end() == "```" {
                break;
            }
            text.push_str(line);
            text.push('\n');
        }
        match kind.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["sh", host] => {
                steps.push(Step { line: number + 1, host: (*host).into(), script: text, printed: None });
                fresh = true;
            }
            ["sh"] => bail!("line {}: the block does not say where: ```sh HOST", number + 1),
            ["text"] if fresh => {
                if let Some(step) = steps.last_mut() {
                    step.printed = Some(text);
                }
                fresh = false;
            }
            _ => fresh = false,
        }
    }
    Ok(steps)
}

/// Whether `printed` is what the page says.
pub fn agrees(page: &str, printed: &str) -> bool {
    fn line(pattern: &str, text: &str) -> bool {
        match pattern.split_once("...") {
            None => pattern == text,
            Some((head, tail)) => {
                let Some(rest) = text.strip_prefix(head) else { return false };
                (0..=rest.len()).filter_map(|at| rest.get(at..)).any(|rest| line(tail, rest))
            }
        }
    }
    fn all(patterns: &[&str], texts: &[&str]) -> bool {
        match (patterns, texts) {
            ([], []) => true,
            ([], _) => false,
            (["...", patterns @ ..], texts) => (0..=texts.len()).any(|at| all(patterns, &texts[at..])),
            ([pattern, patterns @ ..], [text, texts @ ..]) => {
                line(pattern, text.trim_end()) && all(patterns, texts)
            }
            (_, []) => false,
        }
    }
    let patterns: Vec<&str> = page.lines().map(str::trim_end).collect();
    let texts: Vec<&str> = printed.lines().collect();
    all(&patterns, &texts)
}

/// Carries out one step.
///
/// Errors: its script fails, or prints something else than the page says.
pub fn run(cluster: &Cluster, step: &Step) -> Result<()> {
    say(format!("line {}, on {}: {}", step.line, step.host, step.script.lines().next().unwrap_or_default()));
    let shell = ["bash", "-euo", "pipefail", "-c", &step.script];
    let mut process = if step.host == "admin" {
        let mut process = command(shell[0], &shell[1..]);
        // The administrator's own variables: kubectl's and its plugins' place, the kubeconfig.
        for (name, value) in api::kubectl_command(&cluster.lab).get_envs() {
            if let Some(value) = value {
                process.env(name, value);
            }
        }
        process
    } else {
        let mut process = node::command_in(&cluster.lab, &cluster.lab.node(&step.host)?)?;
        process.args(shell);
        process
    };
    let printed = capture(&mut process).with_context(|| format!("line {}", step.line))?;
    if let Some(page) = &step.printed {
        ensure!(agrees(page, &printed), "line {}: it printed\n{printed}and not\n{page}", step.line);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_read_and_outputs_compared() {
        let page = "# T\n\n```sh admin\nkubectl get x\n```\n\n```text\na ... c\n...\nend\n```\n\n```text\npicture\n```\n\n```sh n1\ntrue\n```\n";
        let steps = steps(page).unwrap();
        assert_eq!(steps.len(), 2);
        assert_eq!((steps[0].line, steps[0].host.as_str()), (3, "admin"));
        let printed = steps[0].printed.as_deref().unwrap();
        assert!(agrees(printed, "a b c\nx\ny\nend\n") && agrees(printed, "a  c\nend\n"));
        assert!(!agrees(printed, "a b c\nx\n") && !agrees(printed, "a b\nend\n"));
        assert!(!agrees(printed, "a b c\nend\nmore\n"));
        assert_eq!(steps[1].printed, None);
        assert!(super::steps("```sh\nx\n```\n").is_err() && super::steps("```sh n1\nx\n").is_err());
    }
}
