//! The real OVN on a [`Machine`]: databases, northd, ovn-controller, and the
//! little that a controller would write for one node.

use std::process::Stdio;

use daemon::kube::PodFacts;
use daemon::ovs::plan;
use ovsdb::testing::real::{Root, Server};
use ovsdb::{Operation, Options, Session, Uuid, Value};

use super::Process;
use super::agent::Machine;

pub struct Ovn {
    northbound: Session,
    switch: Uuid,
    // Ended in this order.
    pub controller: Option<Process>,
    _northd: Process,
    _databases: [Server; 2],
}

fn map<const N: usize>(pairs: [(&str, &str); N]) -> Value {
    Value::string_map(pairs)
}

/// A switch with a port to the router, and the router's port.
fn switch(name: &str, networks: [&str; 2], mac: &str, ports: &[Uuid]) -> (Vec<Operation>, Uuid, Uuid) {
    let [switch, port, router_port] = [Uuid::new_v4(), Uuid::new_v4(), Uuid::new_v4()];
    let router_port_name = format!("ovn-cluster-{name}");
    let all: Vec<Uuid> = ports.iter().copied().chain([port]).collect();
    let operations = vec![
        Operation::insert("Logical_Router_Port")
            .uuid(router_port)
            .column("name", router_port_name.as_str())
            .column("mac", mac)
            .column("networks", Value::strings(networks))
            .build(),
        Operation::insert("Logical_Switch_Port")
            .uuid(port)
            .column("name", format!("{name}-ovn-cluster").as_str())
            .column("type", "router")
            .column("addresses", Value::strings(["router"]))
            .column("options", map([("router-port", router_port_name.as_str())]))
            .build(),
        Operation::insert("Logical_Switch")
            .uuid(switch)
            .column("name", name)
            .column("ports", Value::uuids(all))
            .build(),
    ];
    (operations, switch, router_port)
}

/// Starts ovn-controller in the machine's namespace, with its pid file and control socket where the agent looks.
pub fn start_controller(machine: &Machine) -> Process {
    let root = Root::from_env().unwrap();
    // It looks for br-int's management socket where ovs-vswitchd runs.
    let directory = machine.server.directory().to_owned();
    let run = machine.file("ovn-run");
    std::fs::create_dir_all(&run).unwrap();
    let mut controller = root.command("usr/bin/ovn-controller", &directory).unwrap();
    controller
        .arg(format!("unix:{}", machine.server.socket().display()))
        .arg(format!("--pidfile={}", run.join("ovn-controller.pid").display()))
        .arg("--overwrite-pidfile")
        .env("OVN_RUNDIR", &run)
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(directory.join("ovn-controller.log")).unwrap());
    Process(machine.namespace.run(move || controller.spawn()).unwrap().unwrap())
}

impl Ovn {
    /// Starts everything; ovn-controller in the machine's namespace.
    pub async fn start(machine: &Machine) -> Self {
        let root = Root::from_env().unwrap();
        let north = Server::northbound().unwrap();
        let south = Server::start(&root.file("usr/share/ovn/ovn-sb.ovsschema").unwrap()).unwrap();
        let unix = |server: &Server| format!("unix:{}", server.socket().display());
        let mut northd = root.command("usr/bin/ovn-northd", north.directory()).unwrap();
        northd
            .arg(format!("--ovnnb-db={}", unix(&north)))
            .arg(format!("--ovnsb-db={}", unix(&south)))
            .arg(format!("--unixctl={}", north.directory().join("northd.ctl").display()))
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(north.directory().join("northd.log")).unwrap());
        let northd = Process(northd.spawn().unwrap());

        let remote = unix(&south);
        let ids = [("ovn-remote", remote.as_str()), ("ovn-encap-type", "geneve")];
        let ids = ids.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        machine.ovs.apply(|view| plan::set_root_external_ids(view, &ids)).await.unwrap();
        let controller = start_controller(machine);

        let mut options = Options::new(vec![north.endpoint()], "OVN_Northbound");
        options = options.table("Logical_Switch", ["name"]);
        let (northbound, mut events) = Session::connect(options);
        tokio::spawn(async move { while events.next().await.is_some() {} });
        assert!(northbound.synced().await);

        let node = Uuid::new_v4();
        let mut operations = vec![
            Operation::insert("Logical_Switch_Port")
                .uuid(node)
                .column("name", "node-n1")
                .column("addresses", Value::strings(["0a:58:64:40:00:02 100.64.0.2 fd00:100::2"]))
                .build(),
        ];
        let (join, _, join_port) =
            switch("join", ["100.64.0.1/16", "fd00:100::1/112"], "0a:58:64:40:00:01", &[node]);
        let (pods, pod_switch, pod_port) =
            switch("ovn-default", ["10.16.0.1/16", "fd00::1/112"], "0a:58:0a:10:00:01", &[]);
        operations.extend(join);
        operations.extend(pods);
        operations.push(
            Operation::insert("Logical_Router")
                .column("name", "ovn-cluster")
                .column("ports", Value::uuids([join_port, pod_port]))
                .column(
                    "options",
                    map([
                        ("mac_binding_age_threshold", "300"),
                        ("dynamic_neigh_routers", "true"),
                        ("always_learn_from_arp_request", "false"),
                    ]),
                )
                .build(),
        );
        northbound.transact(operations).await.unwrap();
        Self {
            northbound,
            switch: pod_switch,
            controller: Some(controller),
            _northd: northd,
            _databases: [north, south],
        }
    }

    /// Any other rows.
    pub async fn transact(&self, operations: Vec<Operation>) {
        self.northbound.transact(operations).await.unwrap();
    }

    /// What `ovn-nbctl` says.
    pub fn nbctl(&self, arguments: &[&str]) -> String {
        let [north, _] = &self._databases;
        let database = format!("--db=unix:{}", north.socket().display());
        let arguments: Vec<&str> =
            [database.as_str(), "--timeout=30"].iter().copied().chain(arguments.iter().copied()).collect();
        Root::from_env().unwrap().run("usr/bin/ovn-nbctl", north.directory(), &arguments).unwrap()
    }

    /// The logical port of a pod, with port security as the controller sets it.
    pub async fn add_pod(&self, pod: &PodFacts) -> Uuid {
        let get = |key| pod.annotation("ovn", key).unwrap().replace(',', " ");
        let address = format!("{} {}", get("mac_address"), get("ip_address"));
        let port = Uuid::new_v4();
        let operations = vec![
            Operation::insert("Logical_Switch_Port")
                .uuid(port)
                .column("name", format!("{}.{}", pod.name, pod.namespace).as_str())
                .column("addresses", Value::strings([address.as_str()]))
                .column("port_security", Value::strings([address.as_str()]))
                .build(),
            Operation::mutate("Logical_Switch")
                .by_uuid(self.switch)
                .insert_set("ports", Value::uuids([port]))
                .build(),
        ];
        self.northbound.transact(operations).await.unwrap();
        port
    }

    /// A policy for pods: both directions are allowed, through connection tracking.
    pub async fn add_policy(&self, ports: &[Uuid]) {
        let acl = |direction: &str, expression: &str| {
            let uuid = Uuid::new_v4();
            let insert = Operation::insert("ACL")
                .uuid(uuid)
                .column("direction", direction)
                .column("priority", 2001)
                .column("match", expression)
                .column("action", "allow-related")
                .build();
            (uuid, insert)
        };
        let (to, to_insert) = acl("to-lport", "outport == @policy && ip");
        let (from, from_insert) = acl("from-lport", "inport == @policy && ip");
        let group = Operation::insert("Port_Group")
            .column("name", "policy")
            .column("ports", Value::uuids(ports.iter().copied()))
            .column("acls", Value::uuids([to, from]))
            .build();
        self.northbound.transact(vec![to_insert, from_insert, group]).await.unwrap();
    }
}
