//! Other settings for a while: arguments of Weir's own workloads, given back
//! when dropped.

use anyhow::{Context, Result};
use lab::{api, install};
use serde_json::{Value, json};

use crate::cluster::{Cluster, SYSTEM};

/// A workload whose arguments a test has changed.
pub struct Changed<'a> {
    cluster: &'a Cluster,
    kind: &'static str,
    name: &'static str,
    before: Vec<String>,
}

impl<'a> Changed<'a> {
    /// Changes the arguments of the controller (a deployment) or the agents (a
    /// daemonset) and waits until they run with them.
    pub fn arguments(
        cluster: &'a Cluster,
        (kind, name): (&'static str, &'static str),
        change: impl FnOnce(&mut Vec<String>),
    ) -> Result<Self> {
        let path = format!("/apis/apps/v1/namespaces/{SYSTEM}/{kind}s/{name}");
        let object = api::get(&cluster.lab, &path)?;
        let list = object.pointer("/spec/template/spec/containers/0/args").and_then(Value::as_array);
        let list = list.with_context(|| format!("{kind} {name} has no arguments"))?;
        let before: Vec<String> = list.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        let mut wanted = before.clone();
        change(&mut wanted);
        // From here on everything is given back, whatever happens.
        let changed = Self { cluster, kind, name, before };
        changed.set(&wanted)?;
        Ok(changed)
    }

    fn set(&self, arguments: &[String]) -> Result<()> {
        let patch = json!([{
            "op": "replace", "path": "/spec/template/spec/containers/0/args", "value": arguments,
        }]);
        let workload = format!("{}/{}", self.kind, self.name);
        self.cluster.kubectl(&["-n", SYSTEM, "patch", &workload, "--type=json", "-p", &patch.to_string()])?;
        install::wait_rollout(&self.cluster.lab, self.kind, self.name)
    }
}

impl Drop for Changed<'_> {
    fn drop(&mut self) {
        let before = std::mem::take(&mut self.before);
        if let Err(error) = self.set(&before) {
            eprintln!("could not give {}/{} its arguments back: {error:#}", self.kind, self.name);
        }
    }
}

/// Replaces the argument `--name=…`, or appends it.
pub fn set_argument(arguments: &mut Vec<String>, name: &str, value: &str) {
    let prefix = format!("--{name}=");
    arguments.retain(|argument| !argument.starts_with(&prefix));
    arguments.push(format!("{prefix}{value}"));
}

/// A number that a variable gives, or its default: how long or how many.
///
/// Errors: the variable is set to something else than a number.
pub fn number(variable: &str, default: usize) -> Result<usize> {
    match std::env::var(variable) {
        Ok(text) => text.parse().with_context(|| format!("{variable}={text} is no number")),
        Err(_) => Ok(default),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_is_there_once() {
        let mut arguments = vec!["--a=1".to_owned(), "--b=2".to_owned()];
        set_argument(&mut arguments, "a", "3");
        assert_eq!(arguments, ["--b=2", "--a=3"]);
    }
}
