//! Talking to a lab's API server: quick reads over HTTPS, everything else by
//! the real kubectl.
//!
//! In: a lab, a path or kubectl arguments. Out: text or JSON. Reads go through
//! `curl`: a poll that starts in 10 ms leaves the machine's two cores to the
//! cluster, where kubectl needs 200 ms.

use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::run::{capture, capture_with_input, command};
use crate::state::Lab;

/// Body of a GET; an error for any other status than 2xx.
pub fn get_text(lab: &Lab, path: &str) -> Result<String> {
    let pki = lab.path("pki");
    let mut curl = command("curl", ["--silent", "--show-error", "--max-time", "10", "--noproxy", "*"]);
    curl.arg("--cacert").arg(pki.join("ca.crt"));
    curl.arg("--cert").arg(pki.join("admin.crt")).arg("--key").arg(pki.join("admin.key"));
    curl.arg("--globoff")
        .args(["--write-out", "\n%{http_code}"])
        .arg(format!("{}{path}", lab.plan.api_url()));
    let output = capture(&mut curl)?;
    let (body, status) = output.rsplit_once('\n').context("no status from curl")?;
    if !status.starts_with('2') {
        bail!("GET {path}: status {status}: {}", body.trim());
    }
    Ok(body.to_owned())
}

/// A GET of JSON.
pub fn get(lab: &Lab, path: &str) -> Result<Value> {
    serde_json::from_str(&get_text(lab, path)?).with_context(|| format!("GET {path}: not JSON"))
}

/// The items of a list; an absent kind (its CRD is not there yet) is an error.
pub fn list(lab: &Lab, path: &str) -> Result<Vec<Value>> {
    Ok(get(lab, path)?.get("items").and_then(Value::as_array).cloned().unwrap_or_default())
}

/// A kubectl command with the administrator's rights, to which the caller adds
/// arguments.
pub fn kubectl_command(lab: &Lab) -> Command {
    let mut kubectl = command(&lab.kube_program("kubectl").to_string_lossy(), [""; 0]);
    kubectl.env("KUBECONFIG", lab.kubeconfig());
    // Discovery is cached in the lab, so a new cluster at an old address does
    // not meet the old one's kinds.
    kubectl.env("KUBECACHEDIR", lab.path("run/kubectl-cache"));
    // Plugins (`kubectl ko`, see install) and the kubectl that they call.
    let mut folders = vec![lab.path("bin"), lab.kube.clone()];
    folders.extend(std::env::var_os("PATH").iter().flat_map(std::env::split_paths));
    if let Ok(path) = std::env::join_paths(folders) {
        kubectl.env("PATH", path);
    }
    kubectl
}

/// Runs kubectl and returns what it printed.
pub fn kubectl<'a>(lab: &Lab, args: impl IntoIterator<Item = &'a str>) -> Result<String> {
    capture(kubectl_command(lab).args(args))
}

/// Applies manifests (server side: no size limit by annotations, and fields of
/// other owners stay).
pub fn apply(lab: &Lab, manifests: &str) -> Result<()> {
    let mut kubectl = kubectl_command(lab);
    kubectl.args(["apply", "--server-side", "--force-conflicts", "--field-manager=lab", "-f", "-"]);
    capture_with_input(&mut kubectl, manifests.as_bytes()).map(drop)
}

/// Runs a command in a pod's first container and returns what it printed.
pub fn exec(lab: &Lab, namespace: &str, pod: &str, args: &[&str]) -> Result<String> {
    let mut kubectl = kubectl_command(lab);
    kubectl.args(["exec", "-n", namespace, pod, "--"]).args(args);
    capture(&mut kubectl)
}

/// A text at a JSON pointer, empty when absent.
pub fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The status (`True`, `False`, `Unknown`, or empty) of a condition.
pub fn condition<'a>(object: &'a Value, kind: &str) -> &'a str {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    let found = conditions.into_iter().flatten().find(|condition| text(condition, "/type") == kind);
    found.map_or("", |condition| text(condition, "/status"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_and_texts_may_be_absent() {
        let pod = serde_json::json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        assert_eq!(condition(&pod, "Ready"), "True");
        assert_eq!(condition(&pod, "Other"), "");
        assert_eq!(text(&pod, "/metadata/name"), "");
    }
}
