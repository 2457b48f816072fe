//! What the rendered manifests hold.

use std::collections::BTreeSet;

use clap::Parser;
use rstest::rstest;
use serde_json::Value;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    options: Options,
}

fn options(arguments: &[&str]) -> Options {
    let base = ["manifests", "--ovn-db-ips", "192.0.2.1"];
    let line = Line::try_parse_from(base.iter().chain(arguments)).map_err(|error| error.to_string()).unwrap();
    line.options
}

fn documents(arguments: &[&str]) -> Vec<Value> {
    documents_of(&options(arguments))
}

fn documents_of(options: &Options) -> Vec<Value> {
    use serde_yaml_ng::Deserializer;
    let text = render(options).unwrap();
    Deserializer::from_str(&text)
        .map(|document| serde::Deserialize::deserialize(document).unwrap())
        .filter(|document: &Value| !document.is_null())
        .collect()
}

fn find<'a>(documents: &'a [Value], kind: &str, name: &str) -> &'a Value {
    documents
        .iter()
        .find(|d| d["kind"] == kind && d["metadata"]["name"] == name)
        .unwrap_or_else(|| panic!("no {kind} {name}"))
}

fn container<'a>(documents: &'a [Value], kind: &str, name: &str) -> &'a Value {
    &find(documents, kind, name)["spec"]["template"]["spec"]["containers"][0]
}

fn env<'a>(container: &'a Value, name: &str) -> Option<&'a str> {
    let entries = container["env"].as_array().unwrap();
    entries.iter().find(|entry| entry["name"] == name).and_then(|entry| entry["value"].as_str())
}

fn args(container: &Value) -> Vec<&str> {
    container["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap()).collect()
}

#[test]
fn everything_is_there_once() {
    let documents = documents(&[]);
    let names: Vec<_> = documents
        .iter()
        .map(|d| {
            assert!(d["apiVersion"].is_string());
            format!("{} {}", d["kind"].as_str().unwrap(), d["metadata"]["name"].as_str().unwrap())
        })
        .collect();
    let distinct: BTreeSet<_> = names.iter().collect();
    assert_eq!(distinct.len(), names.len());
    assert_eq!(names.iter().filter(|name| name.starts_with("CustomResourceDefinition ")).count(), 25);
    for name in [
        "ServiceAccount ovn",
        "ServiceAccount ovn-ovs",
        "ServiceAccount kube-ovn-cni",
        "ServiceAccount kube-ovn-app",
        "Service ovn-nb",
        "Service ovn-sb",
        "Service ovn-northd",
        "Deployment ovn-central",
        "DaemonSet ovs-ovn",
        "Deployment kube-ovn-controller",
        "DaemonSet kube-ovn-cni",
    ] {
        assert!(names.iter().any(|found| found == name), "{name} is missing");
    }
    // Definitions come first: what follows may need them.
    let last_definition = names.iter().rposition(|name| name.starts_with("CustomResource")).unwrap();
    assert_eq!(last_definition, 24);
}

#[test]
fn nothing_is_left_to_fill_in() {
    let text = render(&options(&[])).unwrap();
    assert!(!text.contains("${"));
}

#[test]
fn workloads_hold_together() {
    let documents = documents(&[]);
    for (kind, name) in [
        ("Deployment", "ovn-central"),
        ("DaemonSet", "ovs-ovn"),
        ("Deployment", "kube-ovn-controller"),
        ("DaemonSet", "kube-ovn-cni"),
    ] {
        let workload = find(&documents, kind, name);
        let labels = &workload["spec"]["template"]["metadata"]["labels"];
        for (label, value) in workload["spec"]["selector"]["matchLabels"].as_object().unwrap() {
            assert_eq!(&labels[label], value);
        }
        let pod = &workload["spec"]["template"]["spec"];
        assert_eq!(pod["hostNetwork"], true);
        find(&documents, "ServiceAccount", pod["serviceAccountName"].as_str().unwrap());
        let volumes: BTreeSet<_> =
            pod["volumes"].as_array().unwrap().iter().map(|v| v["name"].as_str().unwrap()).collect();
        let mut mounted = BTreeSet::new();
        let init = pod["initContainers"].as_array().into_iter().flatten();
        for container in pod["containers"].as_array().unwrap().iter().chain(init) {
            assert_eq!(container["imagePullPolicy"], "IfNotPresent");
            assert_eq!(container["image"], "docker.io/weir/weir:v0.1.0");
            mounted.extend(
                container["volumeMounts"].as_array().unwrap().iter().map(|m| m["name"].as_str().unwrap()),
            );
        }
        assert_eq!(mounted, volumes, "{name}");
        assert!(pod["containers"][0]["livenessProbe"].is_object());
        assert!(pod["containers"][0]["readinessProbe"].is_object());
    }
    // Services of the databases select the one member.
    let labels = &find(&documents, "Deployment", "ovn-central")["spec"]["template"]["metadata"]["labels"];
    for service in ["ovn-nb", "ovn-sb", "ovn-northd"] {
        for (label, value) in find(&documents, "Service", service)["spec"]["selector"].as_object().unwrap() {
            assert_eq!(&labels[label], value, "{service}");
        }
    }
}

#[test]
fn options_arrive() {
    let documents = documents(&[
        "--datapath=netdev",
        "--iface=eth1",
        "--mtu=1400",
        "--pod-cidr=10.16.0.0/16,fd00:10:16::/112",
        "--join-cidr=100.64.0.0/16,fd00:100:64::/112",
        "--svc-cidr=10.96.0.0/12,fd00:10:96::/112",
        "--api-server=[2001:db8::1]:6443",
        "--controller-arg=--enable-lb=false",
        "--controller-arg=-v=5",
        "--daemon-arg=--host-tunnel-src",
        "--replicas=2",
        "--image=example/weir:dev",
        "--log-level=info,controller::watch=debug",
    ]);
    let controller = container(&documents, "Deployment", "kube-ovn-controller");
    assert_eq!(controller["image"], "example/weir:dev");
    assert_eq!(env(controller, "KUBERNETES_SERVICE_HOST"), Some("2001:db8::1"));
    assert_eq!(env(controller, "KUBERNETES_SERVICE_PORT"), Some("6443"));
    assert_eq!(env(controller, "OVN_NB_ADDR"), Some("tcp:192.0.2.1:6641"));
    assert_eq!(env(controller, "WEIR_LOG"), Some("info,controller::watch=debug"));
    let arguments = args(controller);
    assert!(arguments.contains(&"--default-cidr=10.16.0.0/16,fd00:10:16::/112"));
    assert!(arguments.ends_with(&["--enable-lb=false", "-v=5"]));
    assert!(!arguments.iter().any(|arg| arg.starts_with("--default-gateway")));
    let agent = container(&documents, "DaemonSet", "kube-ovn-cni");
    let arguments = args(agent);
    for argument in ["--iface=eth1", "--dpdk-tunnel-iface=br-phy", "--mtu=1400", "--host-tunnel-src"] {
        assert!(arguments.contains(&argument), "{argument}");
    }
    let switch = container(&documents, "DaemonSet", "ovs-ovn");
    assert_eq!(env(switch, "OVS_DATAPATH_TYPE"), Some("netdev"));
    assert_eq!(env(switch, "OVN_SB_ADDR"), Some("tcp:192.0.2.1:6642"));
    assert_eq!(find(&documents, "Deployment", "kube-ovn-controller")["spec"]["replicas"], 2);
}

#[test]
fn without_options_the_api_server_is_in_cluster() {
    let documents = documents(&[]);
    for (kind, name) in [("Deployment", "kube-ovn-controller"), ("DaemonSet", "kube-ovn-cni")] {
        let container = container(&documents, kind, name);
        let names: Vec<_> = container["env"].as_array().unwrap().iter().map(|e| &e["name"]).collect();
        assert!(!names.iter().any(|name| *name == "KUBERNETES_SERVICE_HOST"));
        assert!(!args(container).iter().any(|arg| arg.starts_with("--iface=")));
    }
}

#[test]
fn ipv6_members_are_bracketed() {
    let mut options = options(&[]);
    options.ovn_db_ips = "2001:db8::1".into();
    let documents = documents_of(&options);
    let switch = container(&documents, "DaemonSet", "ovs-ovn");
    assert_eq!(env(switch, "OVN_SB_ADDR"), Some("tcp:[2001:db8::1]:6642"));
}

#[test]
fn parts_can_be_had_alone() {
    let mut options = options(&["--part=crds"]);
    options.ovn_db_ips.clear();
    assert!(documents_of(&options).iter().all(|d| d["kind"] == "CustomResourceDefinition"));
    let documents = documents(&["--part=ovn"]);
    assert!(documents.iter().any(|d| d["metadata"]["name"] == "ovs-ovn"));
    assert!(!documents.iter().any(|d| d["metadata"]["name"] == "kube-ovn-cni"));
}

#[rstest]
#[case(&["--ovn-db-ips="], "--ovn-db-ips")]
#[case(&["--ovn-db-ips=192.0.2.1,192.0.2.2"], "several members")]
#[case(&["--pod-cidr=10.96.0.0/16"], "overlap")]
#[case(&["--pod-cidr=10.16.0.0"], "--pod-cidr")]
#[case(&["--pod-gateway=10.17.0.1"], "is not in")]
#[case(&["--pod-cidr=fd00::/112"], "same families")]
#[case(&["--api-server=2001:db8::1:6443"], "HOST:PORT")]
#[case(&["--api-server=localhost"], "HOST:PORT")]
#[case(&["--mtu=100"], "MTU")]
#[case(&["--cni-bin-dir=opt"], "absolute")]
fn mistakes_are_named(#[case] arguments: &[&str], #[case] says: &str) {
    let line = ["manifests", "--ovn-db-ips=192.0.2.1"];
    // The last of two wins, as if the user had written only that one.
    let mut options = Line::try_parse_from(line).map_err(|e| e.to_string()).unwrap().options;
    match arguments[0].split_once('=').unwrap() {
        ("--ovn-db-ips", ips) => options.ovn_db_ips = ips.into(),
        _ => options = self::options(arguments),
    }
    let error = format!("{:#}", render(&options).unwrap_err());
    assert!(error.contains(says), "{error}");
}

/// What the programs ask of the API server: (service account, group, resource, verbs).
/// Kept beside their code by hand; a verb they use and this table lacks shows in the
/// lab, where RBAC is on.
const NEEDS: &[(&str, &str, &str, &[&str])] = &[
    ("ovn", "", "pods", &["list", "watch", "patch"]),
    ("ovn", "", "nodes", &["list", "watch", "patch"]),
    ("ovn", "", "namespaces", &["list", "watch", "patch"]),
    ("ovn", "apps", "statefulsets", &["list", "watch"]),
    ("ovn", "apps", "deployments", &["list", "watch"]),
    ("ovn", "k8s.cni.cncf.io", "network-attachment-definitions", &["list", "watch"]),
    ("ovn", "kubevirt.io", "virtualmachines", &["list", "watch"]),
    ("ovn", "kubevirt.io", "virtualmachineinstances", &["list", "watch"]),
    ("ovn", "kubevirt.io", "virtualmachineinstancemigrations", &["list", "watch"]),
    ("ovn", "kubeovn.io", "subnets", &["list", "watch", "create", "patch", "delete"]),
    ("ovn", "kubeovn.io", "subnets/status", &["patch"]),
    ("ovn", "kubeovn.io", "vpcs", &["list", "watch", "create", "patch", "delete"]),
    ("ovn", "kubeovn.io", "vpcs/status", &["patch"]),
    ("ovn", "kubeovn.io", "ips", &["list", "watch", "create", "patch", "delete"]),
    ("ovn", "kubeovn.io", "ovn-eips", &["list", "watch", "create", "patch", "delete"]),
    ("ovn", "kubeovn.io", "ovn-eips/status", &["patch"]),
    ("ovn", "kubeovn.io", "provider-networks", &["list", "watch", "patch"]),
    ("ovn", "kubeovn.io", "vlans", &["list", "watch", "patch"]),
    ("ovn", "", "events", &["create", "patch"]),
    ("ovn", "coordination.k8s.io", "leases", &["get", "create", "update", "patch"]),
    ("kube-ovn-cni", "", "pods", &["get", "list", "watch", "patch"]),
    ("kube-ovn-cni", "", "nodes", &["get", "list", "watch", "patch"]),
    ("kube-ovn-cni", "", "nodes/status", &["patch"]),
    ("kube-ovn-cni", "", "services", &["list", "watch"]),
    ("kube-ovn-cni", "", "configmaps", &["get", "list", "watch"]),
    ("kube-ovn-cni", "", "events", &["create", "patch"]),
    ("kube-ovn-cni", "kubeovn.io", "subnets", &["list", "watch"]),
    ("kube-ovn-cni", "kubeovn.io", "provider-networks", &["list", "watch"]),
    ("kube-ovn-cni", "kubeovn.io", "vlans", &["list", "watch"]),
    ("kube-ovn-cni", "kubeovn.io", "ips", &["get", "patch", "update"]),
    ("kube-ovn-cni", "kubeovn.io", "ovn-eips", &["list", "watch"]),
    ("kube-ovn-cni", "kubeovn.io", "ovn-eips/status", &["patch"]),
];

fn matches(rule: &Value, key: &str, wanted: &str) -> bool {
    rule[key].as_array().into_iter().flatten().filter_map(Value::as_str).any(|allowed| {
        allowed == "*"
            || allowed == wanted
            || allowed
                .strip_prefix("*/")
                .is_some_and(|sub| wanted.split_once('/').is_some_and(|(_, s)| s == sub))
    })
}

/// Rules that bindings give to a service account.
fn rules_of(documents: &[Value], account: &str) -> Vec<Value> {
    documents
        .iter()
        .filter(|d| matches!(d["kind"].as_str(), Some("ClusterRoleBinding" | "RoleBinding")))
        .filter(|d| d["subjects"].as_array().into_iter().flatten().any(|s| s["name"] == account))
        .flat_map(|d| {
            let role = &d["roleRef"];
            find(documents, role["kind"].as_str().unwrap(), role["name"].as_str().unwrap())["rules"]
                .as_array()
                .unwrap()
                .clone()
        })
        .collect()
}

#[test]
fn roles_cover_what_is_used() {
    let documents = documents(&["--part=kube-ovn"]);
    let mut needs: Vec<(&str, &str, String, &str)> = Vec::new();
    for (account, group, resource, verbs) in NEEDS {
        needs.extend(verbs.iter().map(|verb| (*account, *group, (*resource).to_owned(), *verb)));
    }
    // Every kind is watched, and gets a condition where it can hold one.
    for info in crds::KINDS {
        needs.extend(["list", "watch"].map(|verb| ("ovn", "kubeovn.io", info.plural.to_owned(), verb)));
        if info.has_conditions {
            let sub = if info.has_status_subresource { "/status" } else { "" };
            needs.push(("ovn", "kubeovn.io", format!("{}{sub}", info.plural), "patch"));
        }
    }
    for (account, group, resource, verb) in needs {
        let allowed = rules_of(&documents, account).iter().any(|rule| {
            matches(rule, "apiGroups", group)
                && matches(rule, "resources", &resource)
                && matches(rule, "verbs", verb)
        });
        assert!(allowed, "{account} may not {verb} {group}/{resource}");
    }
}

/// Nobody gets all verbs, secrets, or the right to change pods' nodes by accident.
#[test]
fn roles_are_narrow() {
    let documents = documents(&["--part=kube-ovn"]);
    for account in ["ovn", "kube-ovn-cni"] {
        for rule in rules_of(&documents, account) {
            let all = |key: &str| rule[key].as_array().unwrap().iter().any(|value| value == "*");
            assert!(!all("verbs") && !all("apiGroups"), "{rule}");
            assert!(
                !matches(&rule, "resources", "secrets") || rule["apiGroups"][0] == "kubeovn.io",
                "{rule}"
            );
            if matches(&rule, "apiGroups", "") {
                for verb in ["delete", "create", "update"] {
                    assert!(!matches(&rule, "resources", "pods") || !matches(&rule, "verbs", verb), "{rule}");
                }
            }
        }
    }
    assert!(rules_of(&documents, "kube-ovn-app").is_empty());
}
