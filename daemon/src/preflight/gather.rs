//! Finds out what there is. Nothing here changes anything, and what can't be found out is left absent.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use super::{Facts, Switch};
use crate::hostnet::HostNet;
use crate::ovs::{Ovs, View};

/// How long the switch and ovn-controller may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
const MODULES: [&str; 9] = [
    "openvswitch",
    "geneve",
    "vxlan",
    "sch_htb",
    "sch_netem",
    "sch_tbf",
    "ip_set_hash_net",
    "xt_set",
    "nf_conntrack",
];
const PROGRAMS: [&str; 3] = ["ipset", "iptables-nft-restore", "ip6tables-nft-restore"];
const SYSCTLS: [&str; 3] =
    ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv6/conf/all/disable_ipv6"];
/// Columns that nothing works without.
const COLUMNS: [(&str, &str); 6] = [
    ("Open_vSwitch", "external_ids"),
    ("Bridge", "datapath_type"),
    ("Port", "qos"),
    ("Interface", "external_ids"),
    ("Interface", "ingress_policing_rate"),
    ("Interface", "mtu_request"),
];

/// Looks at everything. `tunnel` (link and address) and `wants_ipv6` are what the caller knows of the node; `client` gives
/// the API server's clock, `configurations` is the runtime's folder.
pub async fn gather(
    configurations: &Path,
    ovs: &Ovs,
    host: &HostNet,
    client: Option<&kube::Client>,
    tunnel: Option<(String, IpAddr)>,
    wants_ipv6: bool,
) -> Facts {
    let connected = tokio::time::timeout(PATIENCE, ovs.connected()).await.is_ok();
    let view = ovs.view();
    let tunnel = match tunnel {
        Some((link, address)) => {
            let found = host.netlink.link(&link).await.ok().flatten();
            found.map(|found| (link, found.mtu, address))
        }
        None => None,
    };
    let sysctls = host.namespace.run_async(read_sysctls).await.unwrap_or_default();
    Facts {
        configurations: read_configurations(configurations),
        switch: (connected && view.is_connected()).then(|| describe(&view)),
        ovn_controller: ovn_version().await,
        modules: modules(Path::new("/")),
        ipv6: Path::new("/proc/net/if_inet6").exists(),
        sysctls,
        missing_programs: missing_programs(),
        tunnel,
        clock_ahead: match client {
            Some(client) => clock_ahead(client).await,
            None => None,
        },
        wants_ipv6,
        // The watches know.
        forbidden: Vec::new(),
    }
}

/// Names that a runtime reads, in its order: libcni takes `.conf`, `.conflist` and `.json`.
pub(super) fn read_configurations(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| {
            let extension = Path::new(name).extension().and_then(|extension| extension.to_str());
            matches!(extension, Some("conf" | "conflist" | "json"))
        })
        .collect();
    names.sort();
    names
}

fn describe(view: &View) -> Switch {
    let version = view.root().and_then(|root| root.get("ovs_version")?.single()?.as_str().map(str::to_owned));
    let lacks = COLUMNS.iter().filter(|(table, column)| !view.has_column(table, column));
    Switch {
        version,
        lacks: lacks.map(|(table, column)| format!("{table}.{column}")).collect(),
        userspace: view.is_userspace(),
        encap_types: view.root_external_id("ovn-encap-type").map(str::to_owned),
    }
}

async fn ovn_version() -> Option<String> {
    let socket = ovsdb::unixctl::socket_of(&crate::daemons::ovn_folder(), "ovn-controller").ok()?;
    let text = ovsdb::unixctl::call(&socket, "version", &[], PATIENCE).await.ok()?;
    text.lines().next().and_then(|line| line.split_whitespace().nth(1)).map(str::to_owned)
}

fn read_sysctls() -> BTreeMap<String, String> {
    let read = |path: &str| std::fs::read_to_string(format!("/proc/sys/{path}")).ok();
    SYSCTLS.iter().filter_map(|path| Some(((*path).to_owned(), read(path)?.trim().to_owned()))).collect()
}

/// Modules that are known to be there or not to be. A kernel whose list of modules can't be read says nothing, unless it
/// has the module at work.
pub(super) fn modules(root: &Path) -> BTreeMap<String, bool> {
    let release = std::fs::read_to_string(root.join("proc/sys/kernel/osrelease")).unwrap_or_default();
    let folder = root.join("lib/modules").join(release.trim());
    let lists: Vec<String> = ["modules.builtin", "modules.dep"]
        .iter()
        .filter_map(|name| std::fs::read_to_string(folder.join(name)).ok())
        .collect();
    MODULES
        .iter()
        .filter_map(|module| {
            let at_work = root.join("sys/module").join(module).exists();
            let listed = lists.iter().any(|list| {
                list.lines().any(|line| {
                    let path = line.split(':').next().unwrap_or_default();
                    let file = path.rsplit('/').next().unwrap_or_default();
                    file.split('.').next().is_some_and(|name| name.replace('-', "_") == *module)
                })
            });
            let known = at_work || listed || !lists.is_empty();
            known.then(|| ((*module).to_owned(), at_work || listed))
        })
        .collect()
}

fn missing_programs() -> Vec<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<_> = std::env::split_paths(&path).collect();
    let there = |program: &&&str| folders.iter().any(|folder| folder.join(program).is_file());
    PROGRAMS.iter().filter(|program| !there(program)).map(|program| (*program).to_owned()).collect()
}

/// By the `Date` of an answer, which counts whole seconds.
async fn clock_ahead(client: &kube::Client) -> Option<i64> {
    let request = hyper::Request::get("/version").body(kube::client::Body::empty()).ok()?;
    let answer = tokio::time::timeout(PATIENCE, client.send(request)).await.ok()?.ok()?;
    let date = answer.headers().get(hyper::header::DATE)?.to_str().ok()?;
    let theirs = jiff::fmt::rfc2822::parse(date).ok()?.timestamp();
    Some(jiff::Timestamp::now().as_second() - theirs.as_second())
}

/// Every module that is looked for, there or not.
#[cfg(test)]
pub(super) fn modules_for_tests(there: bool) -> BTreeMap<String, bool> {
    MODULES.iter().map(|module| ((*module).to_owned(), there)).collect()
}
