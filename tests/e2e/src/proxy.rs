//! The counting proxy between the controller and the northbound database.

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use lab::progress::{Look, wait_for};
use lab::{netns, plan};
use serde_json::Value;

use crate::cluster::{Cluster, SYSTEM};

const PORT: u16 = 16641;
const UPSTREAM: u16 = 6641;

/// A running proxy; the controller goes through it until it is dropped.
pub struct Proxy<'a> {
    cluster: &'a Cluster,
    child: Child,
    log: PathBuf,
}

impl<'a> Proxy<'a> {
    /// Starts the proxy on the databases' node and sends the controller through
    /// it (which starts a new controller).
    pub fn start(cluster: &'a Cluster) -> Result<Self> {
        let master = cluster.master()?;
        let address = cluster.lab.plan.primary(plan::Net::Management, master.host());
        let log = cluster.lab.path("run/transactions");
        let _ = fs::remove_file(&log);
        let program = std::env::current_exe()?
            .ancestors()
            .map(|folder| folder.join("nb-proxy"))
            .find(|path| path.is_file())
            .context("no nb-proxy beside this test: `make e2e` builds it")?;
        let child = lab::run::command(
            "nsenter",
            [format!("--net={}", netns::path(&cluster.lab.plan.netns(&master.name)).display())],
        )
        .arg(program)
        .args([plan::socket(address, PORT), plan::socket(address, UPSTREAM)])
        .arg(&log)
        .stdout(Stdio::null())
        .spawn()?;
        let proxy = Self { cluster, child, log };
        wait_for("the proxy", Duration::from_secs(10), || {
            Ok(if proxy.log.is_file() { Look::Ready(()) } else { Look::NotYet("not listening".into()) })
        })?;
        send_controller_to(cluster, address, PORT)?;
        Ok(proxy)
    }

    /// Transactions so far: arrival (ms since 1970) and parameters.
    pub fn transactions(&self) -> Result<Vec<(u64, Value)>> {
        let text = fs::read_to_string(&self.log)?;
        let lines = text.lines().filter_map(|line| {
            let (time, parameters) = line.split_once(' ')?;
            Some((time.parse().ok()?, serde_json::from_str(parameters).ok()?))
        });
        Ok(lines.collect())
    }

    /// Operations of a transaction that may change something.
    pub fn changes(parameters: &Value) -> Vec<&Value> {
        let operations = parameters.as_array().into_iter().flatten().skip(1);
        operations
            .filter(|operation| {
                matches!(operation["op"].as_str(), Some("insert" | "update" | "mutate" | "delete"))
            })
            .collect()
    }

    /// Whether a transaction does nothing but write the epoch token of a new leader.
    pub fn is_epoch_token(parameters: &Value) -> bool {
        let changes = Self::changes(parameters);
        !changes.is_empty()
            && changes.iter().all(|operation| operation["table"] == "NB_Global")
            && parameters.to_string().contains("weir-epoch")
    }
}

/// Tells the controller where its northbound database is; a new one starts.
fn send_controller_to(cluster: &Cluster, address: IpAddr, port: u16) -> Result<()> {
    let variable = format!("OVN_NB_ADDR=tcp:{}", plan::socket(address, port));
    cluster.kubectl(&["-n", SYSTEM, "set", "env", "deployment/kube-ovn-controller", &variable]).map(drop)
}

impl Drop for Proxy<'_> {
    fn drop(&mut self) {
        // The controller goes straight to the database again.
        let restore = self.cluster.master().and_then(|master| {
            let address = self.cluster.lab.plan.primary(plan::Net::Management, master.host());
            send_controller_to(self.cluster, address, UPSTREAM)?;
            self.cluster.wait_system("kube-ovn-controller", 1)
        });
        if let Err(error) = restore {
            eprintln!("proxy: the controller could not be sent back to the database: {error:#}");
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Proxy;

    #[test]
    fn only_a_written_token_is_a_token() {
        let fence = json!({"op": "wait", "table": "NB_Global", "where": [["external_ids", "includes",
            ["map", [["weir-epoch", "t"]]]]]});
        let token = json!({"op": "mutate", "table": "NB_Global", "mutations": [["external_ids", "insert",
            ["map", [["weir-epoch", "t"]]]]]});
        let port = json!({"op": "insert", "table": "Logical_Switch_Port", "row": {}});
        assert!(Proxy::is_epoch_token(&json!(["OVN_Northbound", token])));
        assert!(!Proxy::is_epoch_token(&json!(["OVN_Northbound", fence])), "nothing is written");
        assert!(!Proxy::is_epoch_token(&json!(["OVN_Northbound", fence, port])));
    }
}
