//! The control plane: etcd, kube-apiserver, kube-controller-manager,
//! kube-scheduler, in a network namespace of their own.
//!
//! In: a lab. Out: four running processes, an administrator's kubeconfig, an
//! audit log of every write (`log/audit.json`, one JSON object a line).

use std::fs;
use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::pki::{Authority, Subject, certify, kubeconfig, service_account_keys};
use crate::plan::{API_PORT, HOST_CONTROL, Net, SERVICE_CIDR, SERVICE_KUBERNETES};
use crate::process::{Launch, Process};
use crate::progress::{Look, quiet_step, wait_for};
use crate::run::command;
use crate::state::Lab;
use crate::{api, cgroup};

/// The parts, in the order of their start.
pub const COMPONENTS: [&str; 4] = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];

/// Writes are recorded with who, what and when; reads are not recorded.
const AUDIT_POLICY: &str = r#"{
  "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
  "rules": [{"level": "None", "verbs": ["get", "list", "watch"]}, {"level": "Metadata"}]
}"#;

/// Makes certificates and kubeconfigs (once).
pub fn prepare(lab: &Lab) -> Result<()> {
    let pki = lab.path("pki");
    Authority::Cluster.make(&pki)?;
    Authority::FrontProxy.make(&pki)?;
    service_account_keys(&pki)?;
    let plan = &lab.plan;
    let mut addresses: Vec<IpAddr> = vec!["127.0.0.1".parse()?, "::1".parse()?];
    addresses.extend(plan.addresses(Net::Management, HOST_CONTROL));
    for address in plan.family.select(SERVICE_KUBERNETES.0, SERVICE_KUBERNETES.1) {
        addresses.push(address.parse()?);
    }
    let dns = [
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ];
    let server = Subject { name: "kube-apiserver", group: None, dns: &dns, addresses: &addresses };
    let masters = Some("system:masters");
    certify(&pki, Authority::Cluster, &pki, "apiserver", &server)?;
    let clients = [
        ("apiserver-kubelet-client", "kube-apiserver-kubelet-client", masters),
        ("admin", "admin", masters),
        ("kube-controller-manager", "system:kube-controller-manager", None),
        ("kube-scheduler", "system:kube-scheduler", None),
        ("kube-proxy", "system:kube-proxy", None),
    ];
    for (file, name, group) in clients {
        certify(&pki, Authority::Cluster, &pki, file, &Subject::client(name, group))?;
    }
    let front = Subject::client("front-proxy-client", None);
    certify(&pki, Authority::FrontProxy, &pki, "front-proxy-client", &front)?;
    for user in ["admin", "kube-controller-manager", "kube-scheduler", "kube-proxy"] {
        kubeconfig(&pki.join(format!("{user}.kubeconfig")), &plan.api_url(), "ca.crt", user)?;
    }
    fs::write(pki.join("audit-policy.json"), AUDIT_POLICY)?;
    Ok(())
}

/// Starts what does not run and waits until the API serves.
pub fn start(lab: &Lab) -> Result<()> {
    prepare(lab)?;
    for group in ["cp", "out", "run"] {
        cgroup::make(&lab.plan.cgroup(group))?;
    }
    quiet_step("control plane", || {
        start_component(lab, "etcd")?;
        start_component(lab, "kube-apiserver")?;
        wait_ready(lab)?;
        start_component(lab, "kube-controller-manager")?;
        start_component(lab, "kube-scheduler")?;
        Ok(())
    })
}

/// Waits until the API server says it is ready.
pub fn wait_ready(lab: &Lab) -> Result<()> {
    wait_for("the API server to be ready", Duration::from_secs(120), || {
        for component in ["etcd", "kube-apiserver"] {
            // A wrong flag should be reported now and not after two minutes.
            if !running(lab, component) {
                start_component(lab, component)?;
                let log = last_lines(lab, component);
                return Ok(Look::NotYet(format!("{component} had ended and was started again: {log}")));
            }
        }
        let answer = api::get_text(lab, "/readyz")?;
        Ok(if answer == "ok" { Look::Ready(()) } else { Look::NotYet(answer) })
    })
}

/// Whether a component runs.
pub fn running(lab: &Lab, component: &str) -> bool {
    record(lab, component).is_some()
}

/// The recorded, running process of a component.
pub fn record(lab: &Lab, component: &str) -> Option<Process> {
    Process::read(&lab.path(format!("run/{component}.json")))
}

fn last_lines(lab: &Lab, component: &str) -> String {
    let text = fs::read_to_string(lab.path(format!("log/{component}.log"))).unwrap_or_default();
    let lines: Vec<_> = text.lines().rev().take(3).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
}

/// Starts a component if it does not run.
pub fn start_component(lab: &Lab, component: &str) -> Result<()> {
    let mut start = command(&lab.kube_program(component).to_string_lossy(), arguments(lab, component)?);
    launch(lab, component, "cp", "cp", &mut start)
}

/// Ends a component (its data stays).
pub fn stop_component(lab: &Lab, component: &str) -> Result<()> {
    if !COMPONENTS.contains(&component) {
        bail!("no component {component}: they are {}", COMPONENTS.join(", "));
    }
    if let Some(process) = record(lab, component) {
        process.end(Duration::from_secs(10));
    }
    Ok(())
}

/// Starts a recorded process of the lab in one of its namespaces.
pub fn launch(lab: &Lab, name: &str, netns: &str, group: &str, start: &mut Command) -> Result<()> {
    let launch = Launch {
        lab: &lab.program(),
        cgroup: &lab.plan.cgroup(group),
        netns: Some(&lab.plan.netns(netns)),
        log: &lab.path(format!("log/{name}.log")),
        record: lab.path(format!("run/{name}.json")),
    };
    launch.start(start).map(drop).with_context(|| format!("cannot start {name}"))
}

/// Command-line arguments of a component.
fn arguments(lab: &Lab, component: &str) -> Result<Vec<String>> {
    let plan = &lab.plan;
    let pki = |file: &str| lab.path("pki").join(file).display().to_string();
    let services = plan.family.join(SERVICE_CIDR.0, SERVICE_CIDR.1);
    let any = if plan.family.v6() { "::" } else { "0.0.0.0" };
    let config = pki(&format!("{component}.kubeconfig"));
    Ok(match component {
        "etcd" => vec![
            "--name=lab".into(),
            format!("--data-dir={}", lab.path("etcd").display()),
            "--listen-client-urls=http://127.0.0.1:2379".into(),
            "--advertise-client-urls=http://127.0.0.1:2379".into(),
            "--listen-peer-urls=http://127.0.0.1:2380".into(),
            "--initial-advertise-peer-urls=http://127.0.0.1:2380".into(),
            "--initial-cluster=lab=http://127.0.0.1:2380".into(),
            // A lab's data need not survive a power failure of the machine.
            "--unsafe-no-fsync".into(),
            "--log-level=warn".into(),
        ],
        "kube-apiserver" => vec![
            "--etcd-servers=http://127.0.0.1:2379".into(),
            format!("--bind-address={any}"),
            format!("--advertise-address={}", plan.primary(Net::Management, HOST_CONTROL)),
            format!("--secure-port={API_PORT}"),
            format!("--tls-cert-file={}", pki("apiserver.crt")),
            format!("--tls-private-key-file={}", pki("apiserver.key")),
            format!("--client-ca-file={}", pki("ca.crt")),
            "--authorization-mode=Node,RBAC".into(),
            "--enable-admission-plugins=NodeRestriction".into(),
            "--allow-privileged=true".into(),
            format!("--service-cluster-ip-range={services}"),
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local".into(),
            format!("--service-account-key-file={}", pki("sa.pub")),
            format!("--service-account-signing-key-file={}", pki("sa.key")),
            format!("--kubelet-client-certificate={}", pki("apiserver-kubelet-client.crt")),
            format!("--kubelet-client-key={}", pki("apiserver-kubelet-client.key")),
            "--kubelet-preferred-address-types=InternalIP,Hostname".into(),
            "--endpoint-reconciler-type=lease".into(),
            // Webhooks and aggregated APIs are called by pod address: there is
            // no kube-proxy where the API server runs.
            "--enable-aggregator-routing=true".into(),
            format!("--requestheader-client-ca-file={}", pki("front-proxy-ca.crt")),
            "--requestheader-allowed-names=front-proxy-client".into(),
            "--requestheader-extra-headers-prefix=X-Remote-Extra-".into(),
            "--requestheader-group-headers=X-Remote-Group".into(),
            "--requestheader-username-headers=X-Remote-User".into(),
            format!("--proxy-client-cert-file={}", pki("front-proxy-client.crt")),
            format!("--proxy-client-key-file={}", pki("front-proxy-client.key")),
            format!("--audit-policy-file={}", pki("audit-policy.json")),
            format!("--audit-log-path={}", lab.path("log/audit.json").display()),
        ],
        "kube-controller-manager" => vec![
            format!("--kubeconfig={config}"),
            format!("--authentication-kubeconfig={config}"),
            format!("--authorization-kubeconfig={config}"),
            "--bind-address=127.0.0.1".into(),
            "--leader-elect=false".into(),
            "--use-service-account-credentials=true".into(),
            format!("--service-account-private-key-file={}", pki("sa.key")),
            format!("--root-ca-file={}", pki("ca.crt")),
            format!("--cluster-signing-cert-file={}", pki("ca.crt")),
            format!("--cluster-signing-key-file={}", pki("ca.key")),
            format!("--requestheader-client-ca-file={}", pki("front-proxy-ca.crt")),
            // Weir gives pods their addresses.
            "--allocate-node-cidrs=false".into(),
            format!("--service-cluster-ip-range={services}"),
            "--controllers=*,bootstrapsigner,tokencleaner".into(),
        ],
        "kube-scheduler" => vec![
            format!("--kubeconfig={config}"),
            format!("--authentication-kubeconfig={config}"),
            format!("--authorization-kubeconfig={config}"),
            "--bind-address=127.0.0.1".into(),
            "--leader-elect=false".into(),
        ],
        _ => bail!("no component {component}: they are {}", COMPONENTS.join(", ")),
    })
}
