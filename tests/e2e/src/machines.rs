//! Virtual machines without KubeVirt: its kinds, and of what its controllers do the
//! part that a network sees (the instance, the pod that runs it, who owns whom).
//!
//! In: a running cluster. Out: objects as KubeVirt v1 makes them; a guest is a pod
//! with a shell.

use anyhow::Result;
use lab::api;
use lab::progress::{Look, wait_for};
use serde_json::{Value, json};

use crate::cluster::{Cluster, PATIENCE};
use crate::network::shell_pod;
use crate::workload::Namespace;

/// KubeVirt's group; its objects are of version v1.
pub const GROUP: &str = "kubevirt.io";

/// KubeVirt's kinds, as far as networks need them; gone when dropped.
pub struct KubeVirt<'a>(&'a Cluster);

/// Kind, plural and short names as KubeVirt registers them.
const KINDS: [(&str, &str, &[&str]); 3] = [
    ("VirtualMachine", "virtualmachines", &["vm", "vms"]),
    ("VirtualMachineInstance", "virtualmachineinstances", &["vmi", "vmis"]),
    ("VirtualMachineInstanceMigration", "virtualmachineinstancemigrations", &["vmim", "vmims"]),
];

fn definition(kind: &str, plural: &str, short: &[&str]) -> Value {
    // KubeVirt's own schemas leave most of the spec open too.
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{GROUP}")},
        "spec": {
            "group": GROUP, "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase(), "shortNames": short},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {
                    "type": "object", "required": ["spec"], "properties": {"spec": open, "status": open},
                }},
            }],
        },
    })
}

impl<'a> KubeVirt<'a> {
    /// Installs the kinds, and waits until the API server serves them.
    pub fn install(cluster: &'a Cluster) -> Result<Self> {
        let items: Vec<_> =
            KINDS.iter().map(|(kind, plural, short)| definition(kind, plural, short)).collect();
        let kubevirt = Self(cluster);
        api::apply(&cluster.lab, &json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string())?;
        for (_, plural, _) in KINDS {
            wait_for(&format!("{plural} to be served"), PATIENCE, || {
                api::list(&cluster.lab, &format!("/apis/{GROUP}/v1/{plural}"))?;
                Ok(Look::Ready(()))
            })?;
        }
        Ok(kubevirt)
    }
}

impl Drop for KubeVirt<'_> {
    fn drop(&mut self) {
        let mut args = vec!["delete", "customresourcedefinitions", "--ignore-not-found", "--timeout=60s"];
        let names: Vec<String> = KINDS.iter().map(|(_, plural, _)| format!("{plural}.{GROUP}")).collect();
        args.extend(names.iter().map(String::as_str));
        if let Err(error) = self.0.kubectl(&args) {
            eprintln!("KubeVirt's kinds are left: {error:#}");
        }
    }
}

/// A VirtualMachine of a namespace.
pub struct Machine<'n> {
    cluster: &'n Cluster,
    namespace: &'n Namespace<'n>,
    /// Its name.
    pub name: String,
}

impl<'n> Machine<'n> {
    /// Creates the VirtualMachine; nothing runs yet.
    pub fn create(cluster: &'n Cluster, namespace: &'n Namespace<'n>, name: &str) -> Result<Self> {
        namespace.apply(&[json!({
            "apiVersion": format!("{GROUP}/v1"), "kind": "VirtualMachine",
            "metadata": {"name": name, "namespace": namespace.name},
            "spec": {"runStrategy": "Always", "template": {"spec": Self::spec()}},
        })])?;
        Ok(Self { cluster, namespace, name: name.to_owned() })
    }

    fn spec() -> Value {
        json!({
            "domain": {"devices": {"interfaces": [{"name": "default", "bridge": {}}]}},
            "networks": [{"name": "default", "pod": {}}],
        })
    }

    fn path(&self, plural: &str) -> String {
        format!("/apis/{GROUP}/v1/namespaces/{}/{plural}/{}", self.namespace.name, self.name)
    }

    fn owner(&self, kind: &str, plural: &str) -> Result<Value> {
        let object = api::get(&self.cluster.lab, &self.path(plural))?;
        Ok(json!([{
            "apiVersion": format!("{GROUP}/v1"), "kind": kind, "name": self.name,
            "uid": object["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true,
        }]))
    }

    /// Starts it: an instance of the machine.
    pub fn start(&self) -> Result<()> {
        let owner = self.owner("VirtualMachine", "virtualmachines")?;
        self.namespace.apply(&[json!({
            "apiVersion": format!("{GROUP}/v1"), "kind": "VirtualMachineInstance",
            "metadata": {"name": self.name, "namespace": self.namespace.name, "ownerReferences": owner},
            "spec": Self::spec(),
        })])
    }

    /// The pod that runs the instance on a node, as `virt-controller` would make it, and the node into the status.
    pub fn launch(&self, pod: &str, node: &str, annotations: &Value) -> Result<()> {
        let mut launcher = shell_pod(self.namespace, pod, node, annotations);
        launcher["metadata"]["ownerReferences"] =
            self.owner("VirtualMachineInstance", "virtualmachineinstances")?;
        launcher["metadata"]["labels"] =
            json!({"kubevirt.io": "virt-launcher", "vm.kubevirt.io/name": self.name});
        launcher["spec"]["restartPolicy"] = json!("Never");
        self.namespace.apply(&[launcher])?;
        let status = json!({"status": {"phase": "Running", "nodeName": node}}).to_string();
        let (namespace, patch) = (self.namespace.name.as_str(), "--subresource=status");
        let target = ["-n", namespace, "patch", "vmi", &self.name, patch, "--type=merge", "-p", &status];
        self.cluster.kubectl(&target).map(drop)
    }

    /// Deletes the pod that runs it at once.
    pub fn end(&self, pod: &str) -> Result<()> {
        self.delete("pod", pod)
    }

    /// Stops it: its instance goes, and by the garbage collector the instance's pods.
    pub fn stop(&self) -> Result<()> {
        self.delete("vmi", &self.name)
    }

    /// Deletes the machine, and by the garbage collector what it owns.
    pub fn delete_machine(&self) -> Result<()> {
        self.delete("vm", &self.name)
    }

    fn delete(&self, kind: &str, name: &str) -> Result<()> {
        let namespace = self.namespace.name.as_str();
        let args =
            ["-n", namespace, "delete", kind, name, "--grace-period=0", "--force", "--ignore-not-found"];
        self.cluster.kubectl(&args).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_those_of_kubevirt() {
        let (kind, plural, short) = KINDS[2];
        let definition = definition(kind, plural, short);
        assert_eq!(definition["metadata"]["name"], "virtualmachineinstancemigrations.kubevirt.io");
        assert_eq!(definition["spec"]["names"]["singular"], "virtualmachineinstancemigration");
        assert_eq!(definition["spec"]["versions"][0]["name"], "v1");
    }
}
