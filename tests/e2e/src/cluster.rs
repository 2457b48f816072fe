//! The cluster under test: its API, its nodes, its databases.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lab::checks::probe;
use lab::progress::{Look, wait_for};
use lab::state::{Lab, Node};
use lab::{api, node};
use ovsdb::{Endpoint, Event, Operation, OperationResult, Options, Replica, Session};
use serde_json::Value;

/// The namespace of Weir's own pods.
pub const SYSTEM: &str = "kube-system";

/// How long anything in a healthy cluster may take. Generous: the machine is
/// shared, and a limit that is reached is a failure, not a measurement.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A running lab, seen by the tests.
pub struct Cluster {
    /// The lab.
    pub lab: Lab,
    runtime: tokio::runtime::Runtime,
}

impl Cluster {
    /// The cluster named by `WEIR_E2E_LAB`.
    pub fn open() -> Result<Self> {
        let name = std::env::var("WEIR_E2E_LAB").context(
            "WEIR_E2E_LAB is not set: run `make e2e`, which makes the cluster that these tests need",
        )?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        Ok(Self { lab: Lab::existing(&name)?, runtime })
    }

    /// The nodes, first the one that runs the databases.
    pub fn nodes(&self) -> Result<Vec<Node>> {
        let nodes = self.lab.nodes()?;
        if nodes.len() < 2 {
            bail!("the lab has {} nodes, these tests need two", nodes.len());
        }
        Ok(nodes)
    }

    /// The node that runs the databases.
    pub fn master(&self) -> Result<Node> {
        Ok(self.nodes()?[0].clone())
    }

    /// kubectl; returns what it printed.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        api::kubectl(&self.lab, arguments.iter().copied())
    }

    /// Runs a command in a node, through a shell.
    pub fn sh(&self, on: &Node, script: &str) -> Result<String> {
        node::exec(&self.lab, on, ["sh", "-c", script])
    }

    /// Runs a program of the switch's pod on a node.
    pub fn in_switch(&self, on: &Node, args: &[&str]) -> Result<String> {
        probe::in_workload(&self.lab, "ovs", Some(&on.name), args)
    }

    /// Runs a program where the databases are.
    pub fn in_central(&self, args: &[&str]) -> Result<String> {
        probe::in_workload(&self.lab, "ovn-central", None, args)
    }

    /// Waits until every node has carried out what is in the northbound database.
    pub fn settle_flows(&self) -> Result<()> {
        self.in_central(&["ovn-nbctl", "--wait=hv", "--timeout=120", "sync"]).map(drop)
    }

    /// The number, inside the node, of the one process of that name; `None` while there is none.
    pub fn process(&self, on: &Node, name: &str) -> Result<Option<u32>> {
        let text = self.sh(on, &format!("pidof -s {name} || true"))?;
        Ok(text.trim().parse().ok())
    }

    /// How often containers of Weir's pods have been started again, by pod.
    pub fn restarts(&self) -> Result<BTreeMap<String, u64>> {
        let pods = api::list(&self.lab, &format!("/api/v1/namespaces/{SYSTEM}/pods"))?;
        let count = |pod: &Value| {
            let statuses = pod.pointer("/status/containerStatuses").and_then(Value::as_array);
            statuses.into_iter().flatten().filter_map(|status| status["restartCount"].as_u64()).sum()
        };
        Ok(pods.iter().map(|pod| (api::text(pod, "/metadata/name").to_owned(), count(pod))).collect())
    }

    /// The pods of Weir with that `app` label that are not being deleted.
    pub fn system_pods(&self, app: &str) -> Result<Vec<Value>> {
        let pods =
            api::list(&self.lab, &format!("/api/v1/namespaces/{SYSTEM}/pods?labelSelector=app%3D{app}"))?;
        Ok(pods.into_iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).collect())
    }

    /// Waits until exactly `count` pods of that `app` run and are ready, and none
    /// other is left.
    pub fn wait_system(&self, app: &str, count: usize) -> Result<Vec<Value>> {
        wait_for(&format!("{count} ready pods of {app}"), PATIENCE, || {
            let all =
                api::list(&self.lab, &format!("/api/v1/namespaces/{SYSTEM}/pods?labelSelector=app%3D{app}"))?;
            let ready = all
                .iter()
                .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null())
                .filter(|pod| api::condition(pod, "Ready") == "True")
                .count();
            if ready == count && all.len() == count {
                return Ok(Look::Ready(all));
            }
            Ok(Look::NotYet(format!("{} pods, {ready} of them ready", all.len())))
        })
    }

    /// Sets the number of controllers and waits until it is so.
    pub fn scale_controller(&self, replicas: usize) -> Result<()> {
        let replicas_argument = format!("--replicas={replicas}");
        self.kubectl(&["-n", SYSTEM, "scale", "deployment/kube-ovn-controller", &replicas_argument])?;
        self.wait_system("kube-ovn-controller", replicas).map(drop)
    }

    /// A session with the northbound database and its content.
    pub fn northbound(&self) -> Result<Database<'_>> {
        Database::open(self, &self.master()?, "/run/ovn/ovnnb_db.sock", "OVN_Northbound", NORTHBOUND)
    }

    /// The same for the southbound database.
    pub fn southbound(&self) -> Result<Database<'_>> {
        Database::open(self, &self.master()?, "/run/ovn/ovnsb_db.sock", "OVN_Southbound", SOUTHBOUND)
    }

    /// The same for a node's switch database.
    pub fn open_vswitch(&self, on: &Node) -> Result<Database<'_>> {
        Database::open(self, on, "/run/openvswitch/db.sock", "Open_vSwitch", SWITCH)
    }
}

const NORTHBOUND: &[&str] = &[
    "NB_Global",
    "Logical_Switch",
    "Logical_Switch_Port",
    "Port_Group",
    "Logical_Router",
    "Logical_Router_Port",
    "Logical_Router_Static_Route",
    "Logical_Router_Policy",
    "ACL",
    "Address_Set",
    "DHCP_Options",
    "Load_Balancer",
    "NAT",
];
const SOUTHBOUND: &[&str] = &["Port_Binding", "Chassis", "MAC_Binding", "FDB"];
const SWITCH: &[&str] = &["Bridge", "Port", "Interface", "QoS", "Queue"];

/// A session with one database.
pub struct Database<'a> {
    cluster: &'a Cluster,
    session: Session,
    /// Content when the session was opened.
    pub replica: Replica,
}

impl<'a> Database<'a> {
    fn open(cluster: &'a Cluster, on: &Node, socket: &str, name: &str, tables: &[&str]) -> Result<Self> {
        let path = node::path_in(&cluster.lab, on, socket)?;
        let endpoints = Endpoint::parse_list(&format!("unix:{}", path.display()))?;
        let mut options = Options::new(endpoints, name);
        for table in tables {
            options = options.table(table, []);
        }
        let (session, replica) = cluster.runtime.block_on(async {
            let (session, mut events) = Session::connect(options);
            let load = async {
                while let Some(event) = events.next().await {
                    if let Event::Replaced { replica, .. } = event {
                        // The stream is drained for as long as the session lives.
                        tokio::spawn(async move { while events.next().await.is_some() {} });
                        return Some(replica);
                    }
                }
                None
            };
            let replica = tokio::time::timeout(Duration::from_secs(20), load).await;
            anyhow::Ok((session, replica.ok().flatten()))
        })?;
        let replica = replica.with_context(|| format!("{name} did not load from {}", path.display()))?;
        Ok(Self { cluster, session, replica })
    }

    /// Runs a transaction.
    pub fn transact(&self, operations: Vec<Operation>) -> Result<Vec<OperationResult>> {
        let answer = self.cluster.runtime.block_on(self.session.transact(operations));
        answer.map_err(|error| anyhow::anyhow!("{error}"))
    }

    /// All rows of a table by a text column.
    pub fn by_name(&self, table: &str, column: &str) -> BTreeMap<String, std::sync::Arc<ovsdb::Row>> {
        let rows = self.replica.table(table).into_iter().flat_map(|table| table.rows());
        rows.filter_map(|row| Some((row.str(column)?.to_owned(), row.clone()))).collect()
    }
}
