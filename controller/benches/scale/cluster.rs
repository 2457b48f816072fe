//! A cluster's objects as Kubernetes would show them, for both benches.

use serde_json::{Value, json};

/// How big it is.
#[derive(Clone, Copy)]
pub struct Size {
    pub pods: usize,
    pub nodes: usize,
    pub subnets: usize,
    /// Subnets are distributed: each has a port group and a policy on every node.
    pub distributed: bool,
}

fn number(name: &str, usual: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

impl Size {
    /// `WEIR_BENCH_PODS`, `_NODES`, `_SUBNETS` and `_DISTRIBUTED`, or the scale of issue 5.
    pub fn from_env() -> Self {
        let pods = number("WEIR_BENCH_PODS", 150_000);
        Self {
            pods,
            nodes: number("WEIR_BENCH_NODES", (pods / 75).max(10)),
            subnets: number("WEIR_BENCH_SUBNETS", 100),
            distributed: number("WEIR_BENCH_DISTRIBUTED", 0) > 0,
        }
    }
}

pub fn namespace(index: usize) -> String {
    format!("ns-{index}")
}

pub fn node_name(index: usize) -> String {
    format!("node-{index}")
}

pub fn node(index: usize) -> Value {
    let address = format!("172.{}.{}.{}", 20 + index / 65_025, index / 255 % 255, index % 255);
    json!({
        "metadata": {"name": node_name(index), "annotations": {"ovn.kubernetes.io/chassis": format!("chassis-{index}")}},
        "status": {"addresses": [{"type": "InternalIP", "address": address}],
                   "conditions": [{"type": "Ready", "status": "True"}]},
    })
}

/// A subnet of its own for one namespace, room for 8,190 pods. Usually centralized: a
/// distributed one has a port group and a policy on every node, 100 times 2,000 of each.
pub fn subnet(index: usize, distributed: bool) -> Value {
    let block = format!("10.{}.{}.0/19", 32 + index / 8, index % 8 * 32);
    if distributed {
        return json!({
            "apiVersion": "kubeovn.io/v1", "kind": "Subnet", "metadata": {"name": format!("subnet-{index}")},
            "spec": {"vpc": "ovn-cluster", "protocol": "IPv4", "cidrBlock": block, "namespaces": [namespace(index)],
                "gatewayType": "distributed"},
        });
    }
    json!({
        "apiVersion": "kubeovn.io/v1", "kind": "Subnet", "metadata": {"name": format!("subnet-{index}")},
        "spec": {"vpc": "ovn-cluster", "protocol": "IPv4", "cidrBlock": block, "namespaces": [namespace(index)],
            "gatewayType": "centralized", "gatewayNode": node_name(0)},
    })
}

/// The subnet whose gateway changes, and its new gateway.
pub const CHANGED: (&str, &str) = ("subnet-0", "10.32.31.254");

pub fn pod_name(index: usize) -> String {
    format!("web-6d4cf56db6-{index}")
}

/// A pod with as much text as one of a Deployment has in a real cluster (6 KB).
pub fn pod(index: usize, node: usize) -> Value {
    let fields = |manager: &str| {
        json!({"manager": manager, "operation": "Update", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z",
            "fieldsType": "FieldsV1", "fieldsV1": {
                "f:metadata": {"f:labels": {".": {}, "f:app": {}, "f:pod-template-hash": {}}, "f:generateName": {}},
                "f:spec": {"f:containers": {"k:{\"name\":\"web\"}": {".": {}, "f:image": {}, "f:imagePullPolicy": {},
                    "f:name": {}, "f:ports": {".": {}, "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {},
                    "f:containerPort": {}, "f:protocol": {}}}, "f:resources": {}, "f:terminationMessagePath": {},
                    "f:terminationMessagePolicy": {}}}, "f:dnsPolicy": {}, "f:restartPolicy": {}, "f:schedulerName": {},
                    "f:securityContext": {}, "f:terminationGracePeriodSeconds": {}}}})
    };
    let env: Vec<Value> = (0..12)
        .map(|n| json!({"name": format!("SETTING_NUMBER_{n}"), "value": "some value of a setting"}))
        .collect();
    json!({
        "metadata": {
            "name": pod_name(index), "generateName": "web-6d4cf56db6-",
            "labels": {"app": "web", "pod-template-hash": "6d4cf56db6", "tier": "front"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-6d4cf56db6",
                "uid": "2c2d1f4e-6f8f-4d53-9a52-5b2f7f0a7a11", "controller": true, "blockOwnerDeletion": true}],
            "managedFields": [fields("kube-controller-manager"), fields("kubelet")],
        },
        "spec": {
            "nodeName": node_name(node), "restartPolicy": "Always", "dnsPolicy": "ClusterFirst",
            "containers": [{"name": "web", "image": "registry.example/web:1.27.3", "env": env,
                "ports": [{"containerPort": 80, "protocol": "TCP"}],
                "resources": {"limits": {"cpu": "500m", "memory": "256Mi"}, "requests": {"cpu": "100m", "memory": "128Mi"}},
                "volumeMounts": [{"name": "kube-api-access", "readOnly": true,
                    "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}]}],
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
            "volumes": [{"name": "kube-api-access", "projected": {"defaultMode": 420, "sources": [
                {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}]}}],
        },
        "status": {"phase": "Pending", "qosClass": "Burstable", "conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
    })
}
