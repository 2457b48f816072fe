//! Single questions to the network, asked from where it matters: inside a pod,
//! on a node, on the outside host.
//!
//! In: a [`Source`] and a target. Out: what came back, or why nothing did. All
//! commands end by themselves within seconds.

use std::net::IpAddr;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::cache::hex;
use crate::plan::{HOST_NODES, Net, socket};
use crate::run::{capture, command};
use crate::state::{Lab, Node};
use crate::{api, node, outside};

/// Where a question is asked from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The first container of a pod: namespace and name.
    Pod(String, String),
    /// A node, as its host processes see the network.
    Node(String),
    /// The host outside of the cluster.
    Outside,
    /// The control plane's host.
    Control,
}

impl Source {
    /// Runs a shell script there and returns what it printed.
    pub fn shell(&self, lab: &Lab, script: &str) -> Result<String> {
        let netns = |what: &str| {
            let mut inside = command("ip", ["netns", "exec", &lab.plan.netns(what), "sh", "-c"]);
            capture(inside.arg(script))
        };
        match self {
            Self::Pod(namespace, pod) => api::exec(lab, namespace, pod, &["sh", "-c", script]),
            Self::Node(name) => node::exec(lab, &lab.node(name)?, ["sh", "-c", script]),
            Self::Outside => netns("out"),
            Self::Control => netns("cp"),
        }
    }

    /// A command that prints a URL's body. busybox' `wget` (the only one in
    /// pods) crashes with a time limit of its own.
    fn fetch_command(&self, url: &str) -> String {
        match self {
            Self::Pod(..) => format!("timeout 5 wget -q -O - '{url}'"),
            _ => format!("curl --silent --show-error --fail --globoff --noproxy '*' --max-time 5 '{url}'"),
        }
    }
}

/// A URL on an address.
pub fn url(address: IpAddr, port: u16, path: &str) -> String {
    format!("http://{}{path}", socket(address, port))
}

/// Sends two echo requests; both must be answered.
pub fn ping(lab: &Lab, from: &Source, to: IpAddr) -> Result<String> {
    let program = if to.is_ipv4() { "ping" } else { "ping -6" };
    let output = from.shell(lab, &format!("{program} -c 2 -i 0.2 -W 2 {to} 2>&1 || true"))?;
    let summary = output.lines().find(|line| line.contains("packet loss")).unwrap_or(output.trim());
    ensure!(summary.contains(" 0% packet loss"), "{to}: {summary}");
    let times = output.lines().rev().find(|line| line.contains("min/avg/max")).unwrap_or_default();
    Ok(times.rsplit(" = ").next().unwrap_or_default().to_owned())
}

/// Fetches a URL's body as text.
pub fn fetch(lab: &Lab, from: &Source, url: &str) -> Result<String> {
    from.shell(lab, &from.fetch_command(url)).with_context(|| format!("fetch {url}"))
}

/// Fetches `/blob` (larger than any MTU) from a web pod and holds its hash
/// against the one that the pod itself computed.
pub fn fetch_blob(lab: &Lab, from: &Source, address: IpAddr, port: u16) -> Result<String> {
    fetch_blob_at(lab, from, &socket(address, port))
}

/// [`fetch_blob`] from a host by name or address, with its port.
pub fn fetch_blob_at(lab: &Lab, from: &Source, host: &str) -> Result<String> {
    let blob = from.fetch_command(&format!("http://{host}/blob"));
    let sum = from.fetch_command(&format!("http://{host}/sum"));
    let output = from.shell(lab, &format!("{blob} | sha256sum && {sum}"))?;
    let sums: Vec<_> = output.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let [got, wanted] = sums.as_slice() else { bail!("http://{host}/: no two hashes in {output:?}") };
    ensure!(got == wanted, "http://{host}/blob: hash {got} and not {wanted}");
    Ok("64 KiB, hash right".to_owned())
}

/// Fetches and sends 64 KiB from and to the outside host, and says which
/// address it saw.
pub fn outside(lab: &Lab, from: &Source, to: IpAddr) -> Result<IpAddr> {
    const SIZE: usize = 64 << 10;
    let base = url(to, outside::PORT, "");
    let whoami = from.fetch_command(&format!("{base}/"));
    let blob = from.fetch_command(&format!("{base}/blob?{SIZE}"));
    let send = match from {
        Source::Pod(..) => format!("timeout 5 wget -q -O - --post-file=/tmp/blob.$$ '{base}/'"),
        _ => format!(
            "curl --silent --show-error --fail --globoff --noproxy '*' --max-time 5 --data-binary @/tmp/blob.$$ '{base}/'"
        ),
    };
    let script = format!(
        "{whoami} && {blob} >/tmp/blob.$$ && sha256sum </tmp/blob.$$ && {send}; status=$?; rm -f /tmp/blob.$$; exit $status"
    );
    let output = from.shell(lab, &script)?;
    let hash = hex(&Sha256::digest(outside::blob(SIZE)));
    let lines: Vec<_> = output.lines().collect();
    let [seen, received, sent] = lines.as_slice() else { bail!("{to}: unexpected answer {output:?}") };
    ensure!(received.starts_with(&hash), "{to}: received other bytes than were sent");
    ensure!(*sent == format!("{SIZE} {hash}"), "{to}: it received other bytes than were sent: {sent}");
    seen.parse().with_context(|| format!("{to}: saw {seen:?}"))
}

/// Those of `ports` to which a TCP connection can be made. A refusal and
/// silence both mean no; all are tried at once.
pub fn open_ports(lab: &Lab, from: &Source, to: IpAddr, ports: &[u16]) -> Result<Vec<u16>> {
    let attempt = match from {
        Source::Pod(..) => format!("nc -w 2 {to} $port -e true"),
        _ => format!("timeout 2 bash -c \"exec 3<>/dev/tcp/{to}/$port\""),
    };
    let ports: Vec<_> = ports.iter().map(ToString::to_string).collect();
    let ports = ports.join(" ");
    let script =
        format!("for port in {ports}; do ({attempt} 2>/dev/null && echo $port) & done; wait; echo end");
    let output = from.shell(lab, &script)?;
    ensure!(output.ends_with("end\n"), "unexpected answer {output:?}");
    let open = output.lines().filter(|line| *line != "end");
    let mut open: Vec<u16> = open.map(str::parse).collect::<Result<_, _>>()?;
    open.sort_unstable();
    Ok(open)
}

/// A pod as the API shows it.
#[derive(Clone, Debug)]
pub struct PodView {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// The node it is bound to.
    pub node: String,
    /// Its addresses, as the kubelet reports them.
    pub addresses: Vec<IpAddr>,
    /// Whether it is Ready.
    pub ready: bool,
}

impl PodView {
    /// This pod as a place to ask from.
    pub fn source(&self) -> Source {
        Source::Pod(self.namespace.clone(), self.name.clone())
    }

    /// Its address of a family.
    pub fn address(&self, v4: bool) -> Result<IpAddr> {
        let found = self.addresses.iter().find(|address| address.is_ipv4() == v4);
        found
            .copied()
            .with_context(|| format!("pod {} has no IPv{} address", self.name, if v4 { 4 } else { 6 }))
    }
}

/// The pods of a namespace with a label `app`, by name, without those that are
/// being deleted.
pub fn pods(lab: &Lab, namespace: &str, app: &str) -> Result<Vec<PodView>> {
    let path = format!("/api/v1/namespaces/{namespace}/pods?labelSelector=app%3D{app}");
    let mut pods: Vec<_> = api::list(lab, &path)?
        .iter()
        .filter(|pod| pod.pointer("/metadata/deletionTimestamp").is_none())
        .map(pod_view)
        .collect();
    pods.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(pods)
}

/// Reads what checks need of a pod.
pub fn pod_view(pod: &Value) -> PodView {
    let addresses = pod.pointer("/status/podIPs").and_then(Value::as_array);
    PodView {
        namespace: api::text(pod, "/metadata/namespace").to_owned(),
        name: api::text(pod, "/metadata/name").to_owned(),
        node: api::text(pod, "/spec/nodeName").to_owned(),
        addresses: addresses
            .into_iter()
            .flatten()
            .filter_map(|entry| api::text(entry, "/ip").parse().ok())
            .collect(),
        ready: api::condition(pod, "Ready") == "True",
    }
}

/// A node's management address of a family.
pub fn node_address(lab: &Lab, node: &Node, v4: bool) -> IpAddr {
    let host = HOST_NODES + node.number;
    if v4 { lab.plan.v4(Net::Management, host).into() } else { lab.plan.v6(Net::Management, host).into() }
}

/// Runs a command in the pod of one of our workloads: the one with label `app`
/// on a node (any node if none is named).
pub fn in_workload(lab: &Lab, app: &str, on: Option<&str>, args: &[&str]) -> Result<String> {
    let pods = pods(lab, "kube-system", app)?;
    let pod = pods.iter().find(|pod| on.is_none_or(|node| pod.node == node));
    let pod = pod.with_context(|| format!("no pod of {app} on {}", on.unwrap_or("any node")))?;
    api::exec(lab, "kube-system", &pod.name, args)
}

/// Names of rows of the northbound database: `find TABLE CONDITION`.
pub fn northbound(lab: &Lab, table: &str, condition: &str) -> Result<Vec<String>> {
    let args = ["ovn-nbctl", "--bare", "--columns=name", "find", table, condition];
    Ok(lines(&in_workload(lab, "ovn-central", None, &args)?))
}

/// Names of a node's OVS interfaces that carry a logical port.
pub fn ovs_interfaces(lab: &Lab, node: &str, logical_port: &str) -> Result<Vec<String>> {
    let condition = format!("external_ids:iface-id=\"{logical_port}\"");
    let args = ["ovs-vsctl", "--bare", "--columns=name", "find", "Interface", &condition];
    Ok(lines(&in_workload(lab, "ovs", Some(node), &args)?))
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect()
}
