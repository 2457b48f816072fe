//! One call of a CNI executable, as a runtime makes it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// An executable with its configuration.
#[derive(Clone, Debug)]
pub struct Plugin {
    executable: PathBuf,
    path: String,
    configuration: Vec<u8>,
    /// Variables that every call gets besides the specification's.
    pub environment: Vec<(String, String)>,
}

/// One attachment of one pod.
#[derive(Clone, Debug)]
pub struct Attachment {
    /// `CNI_CONTAINERID`.
    pub container: String,
    /// `CNI_NETNS`.
    pub namespace: String,
    /// `CNI_IFNAME`.
    pub interface: String,
    /// Namespace and name of the pod.
    pub pod: (String, String),
}

/// What a call came to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// From exec to exit.
    pub took: Duration,
    /// What it printed.
    pub result: Value,
    /// Why it failed.
    pub failure: Option<String>,
}

impl Outcome {
    pub(crate) fn failed(why: impl Into<String>) -> Self {
        Self { took: Duration::ZERO, result: Value::Null, failure: Some(why.into()) }
    }
}

impl Plugin {
    /// An executable and the file with its configuration: a list, of which the
    /// first plugin is taken as a runtime would pass it, or a single one.
    ///
    /// # Errors
    /// When the file can't be read or is no configuration.
    pub fn from_file(executable: &Path, file: &Path) -> Result<Self> {
        let text = std::fs::read(file).with_context(|| format!("read {}", file.display()))?;
        let value: Value =
            serde_json::from_slice(&text).with_context(|| format!("{} is no JSON", file.display()))?;
        Self::new(executable, &value)
    }

    /// As [`Plugin::from_file`], from a value.
    ///
    /// # Errors
    /// When it is no configuration.
    pub fn new(executable: &Path, configuration: &Value) -> Result<Self> {
        let mut plugin = match configuration.get("plugins") {
            None => configuration.clone(),
            Some(plugins) => plugins.get(0).cloned().context("the list has no plugin")?,
        };
        let Some(object) = plugin.as_object_mut() else { bail!("the configuration is no object") };
        for key in ["name", "cniVersion"] {
            if let Some(value) = configuration.get(key) {
                object.insert(key.to_owned(), value.clone());
            }
        }
        let folder = executable.parent().unwrap_or(Path::new("/"));
        Ok(Self {
            executable: executable.to_owned(),
            path: folder.display().to_string(),
            configuration: serde_json::to_vec(&plugin)?,
            environment: Vec::new(),
        })
    }

    /// Makes one call and waits for its end.
    pub fn call(&self, verb: &str, attachment: &Attachment) -> Outcome {
        self.try_call(verb, attachment).unwrap_or_else(|error| Outcome::failed(format!("{error:#}")))
    }

    fn try_call(&self, verb: &str, attachment: &Attachment) -> Result<Outcome> {
        let (namespace, name) = &attachment.pod;
        let mut command = Command::new(&self.executable);
        command
            .env_clear()
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", &attachment.container)
            .env("CNI_NETNS", &attachment.namespace)
            .env("CNI_IFNAME", &attachment.interface)
            .env("CNI_PATH", &self.path)
            .env("CNI_ARGS", format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name}"))
            .envs(self.environment.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let begin = Instant::now();
        let mut child = command.spawn().with_context(|| format!("start {}", self.executable.display()))?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(&self.configuration).context("write the configuration")?;
        }
        let output = child.wait_with_output().context("wait for the plugin")?;
        let took = begin.elapsed();
        let result: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let failure = (!output.status.success()).then(|| {
            format!(
                "{verb} of {namespace}/{name}: {} {}",
                output.status,
                String::from_utf8_lossy(&output.stdout).trim()
            )
        });
        Ok(Outcome { took, result, failure })
    }
}

impl Attachment {
    /// `eth0` of a pod in a sandbox.
    pub fn eth0(container: String, namespace: String, pod: (String, String)) -> Self {
        Self { container, namespace, interface: "eth0".into(), pod }
    }
}

impl Plugin {
    /// A configuration for Weir's and Kube-OVN's executables.
    pub fn kube_ovn(socket: &Path) -> Value {
        json!({"cniVersion": "1.0.0", "name": "kube-ovn", "type": "kube-ovn", "server_socket": socket})
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_lists_first_plugin_is_called_with_the_lists_name_and_version() {
        let list =
            json!({"cniVersion": "0.3.1", "name": "n", "plugins": [{"type": "a", "x": 1}, {"type": "b"}]});
        let plugin = Plugin::new(Path::new("/opt/cni/bin/a"), &list).unwrap();
        let passed: Value = serde_json::from_slice(&plugin.configuration).unwrap();
        assert_eq!(passed, json!({"cniVersion": "0.3.1", "name": "n", "type": "a", "x": 1}));
        assert!(Plugin::new(Path::new("/a"), &json!({"plugins": []})).is_err());
        assert!(Plugin::new(Path::new("/a"), &json!([])).is_err());
    }

    #[test]
    fn a_plugin_that_fails_or_is_missing_is_a_failure_with_words() {
        let attachment = Attachment::eth0("c".into(), "/n".into(), ("ns".into(), "p".into()));
        let absent = Plugin::new(Path::new("/nonexistent/plugin"), &json!({"name": "n"})).unwrap();
        assert!(absent.call("ADD", &attachment).failure.unwrap().contains("/nonexistent/plugin"));
        let wrong = Plugin::new(Path::new("/bin/false"), &json!({"name": "n"})).unwrap();
        assert!(wrong.call("ADD", &attachment).failure.is_some());
    }
}
