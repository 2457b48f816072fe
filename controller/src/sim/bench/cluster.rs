//! What simulated clusters are made of: flags, namespaces, nodes, pods.

use serde_json::json;

use super::Bench;
use crate::facts::{Kind, ObjectRef};
use crate::io::Config;

pub(crate) fn config() -> Config {
    Config {
        cluster_router: "ovn-cluster".into(),
        node_switch: "join".into(),
        node_switch_cidr: "100.64.0.0/16".into(),
        node_switch_gateway: "".into(),
        default_ls: "ovn-default".into(),
        default_cidr: "10.16.0.0/16".into(),
        default_gateway: "".into(),
        default_exclude_ips: "".into(),
        default_gateway_check: true,
        external_gateway_switch: "external".into(),
        service_cluster_ip_range: "10.96.0.0/12".into(),
        network_type: "geneve".into(),
        pod_nic_type: "veth-pair".into(),
        enable_lb: true,
        enable_ecmp: false,
        port_security: false,
        keep_vm_ip: true,
        live_migration: true,
        ls_dnat_mod_dl_dst: true,
        ls_ct_skip_dst_lport_ips: true,
        node_local_dns_ip: "".into(),
        skip_conntrack_dst_cidrs: "".into(),
        northd_backoff_ms: 150,
        seed: 1,
        version: "v0.0.0".into(),
    }
}

pub(crate) fn pod(namespace: &str, name: &str) -> ObjectRef {
    ObjectRef::namespaced(Kind::Pod, namespace, name)
}

impl Bench {
    /// Two nodes, a namespace, a leading controller, all settled.
    pub(crate) fn cluster(seed: u64) -> Self {
        let mut bench = Self::new(seed);
        bench.add_namespace("web");
        bench.add_node("n-1", "192.0.2.11");
        bench.add_node("n-2", "192.0.2.12");
        let leader = bench.start();
        bench.elect(leader);
        bench.settle();
        bench
    }

    pub(crate) fn add_namespace(&mut self, name: &str) {
        self.api.create(&ObjectRef::cluster(Kind::Namespace, name), json!({})).unwrap();
    }

    pub(crate) fn add_node(&mut self, name: &str, ip: &str) {
        self.add_node_with(name, ip, json!({}));
    }

    pub(crate) fn add_node_with(&mut self, name: &str, ip: &str, annotations: serde_json::Value) {
        let mut annotations = annotations;
        annotations["ovn.kubernetes.io/chassis"] = format!("chassis-{name}").into();
        let body = json!({
            "metadata": { "annotations": annotations },
            "status": {
                "addresses": [{ "type": "InternalIP", "address": ip }],
                "conditions": [{ "type": "Ready", "status": "True" }],
            },
        });
        self.api.create(&ObjectRef::cluster(Kind::Node, name), body).unwrap();
    }

    pub(crate) fn add_pod(&mut self, name: &str, node: &str) {
        self.add_pod_with(name, node, json!({}));
    }

    pub(crate) fn add_pod_with(&mut self, name: &str, node: &str, annotations: serde_json::Value) {
        let body = json!({
            "metadata": { "annotations": annotations },
            "spec": { "nodeName": node, "restartPolicy": "Always" },
            "status": { "phase": "Pending" },
        });
        self.api.create(&pod("web", name), body).unwrap();
    }
}
