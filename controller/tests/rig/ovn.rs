//! A real ovn-northd between a northbound and a southbound database, and packets
//! traced through what it makes.

use std::process::{Child, Stdio};

use ovsdb::testing::real::{Root, Server};
use serde_json::Value;

/// A northbound and a southbound database with northd between them.
pub struct Ovn<'a> {
    root: Root,
    northbound: &'a Server,
    southbound: Server,
    northd: Child,
}

impl Drop for Ovn<'_> {
    fn drop(&mut self) {
        let _ = self.northd.kill();
        let _ = self.northd.wait();
    }
}

impl<'a> Ovn<'a> {
    pub fn start(northbound: &'a Server) -> Self {
        let root = Root::from_env().unwrap();
        let southbound = Server::start(&root.file("usr/share/ovn/ovn-sb.ovsschema").unwrap()).unwrap();
        let directory = southbound.directory();
        let mut command = root.command("usr/bin/ovn-northd", directory).unwrap();
        let log = std::fs::File::create(directory.join("northd.log")).unwrap();
        let northd = command
            .arg(format!("--ovnnb-db=unix:{}", northbound.socket().display()))
            .arg(format!("--ovnsb-db=unix:{}", southbound.socket().display()))
            .arg(format!("--unixctl={}", directory.join("northd.ctl").display()))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { root, northbound, southbound, northd }
    }

    /// Waits until northd has compiled what is in the database now.
    pub fn sync(&self) {
        let database = format!("--db=unix:{}", self.northbound.socket().display());
        let arguments = [&*database, "--timeout=30", "--wait=sb", "sync"];
        self.root.run("usr/bin/ovn-nbctl", self.southbound.directory(), &arguments).unwrap();
    }

    /// Waits until a logical port is bound: before that its chassis may be unknown, and
    /// then nothing waits for it.
    pub fn wait_up(&self, port: &str) {
        let database = format!("--db=unix:{}", self.northbound.socket().display());
        let arguments = [&*database, "--timeout=60", "wait-until", "Logical_Switch_Port", port, "up=true"];
        self.root.run("usr/bin/ovn-nbctl", self.southbound.directory(), &arguments).unwrap();
    }

    /// Waits until every chassis has installed what is in the database now.
    pub fn sync_nodes(&self) -> Result<(), String> {
        let database = format!("--db=unix:{}", self.northbound.socket().display());
        let arguments = [&*database, "--timeout=60", "--wait=hv", "sync"];
        let result = self.root.run("usr/bin/ovn-nbctl", self.southbound.directory(), &arguments);
        result.map(drop).map_err(|error| {
            let log = self.southbound.directory().join("northd.log");
            format!("{error}\nnorthd:\n{}", std::fs::read_to_string(log).unwrap_or_default())
        })
    }

    /// Where ovn-controllers connect to.
    pub fn southbound(&self) -> String {
        format!("unix:{}", self.southbound.socket().display())
    }

    /// Where a packet comes out.
    pub fn trace(&self, switch: &str, packet: &str) -> String {
        let database = format!("--db=unix:{}", self.southbound.socket().display());
        let arguments = [&*database, "--minimal", "--ct=new", switch, packet];
        self.root.run("usr/bin/ovn-trace", self.southbound.directory(), &arguments).unwrap()
    }

    /// What northd tells hosts about multicast: columns of every `IP_Multicast` row.
    pub fn multicast(&self) -> String {
        let database = format!("--db=unix:{}", self.southbound.socket().display());
        let columns = "--columns=enabled,querier,eth_src,ip4_src,ip6_src";
        let arguments = [&*database, "--bare", columns, "list", "IP_Multicast"];
        self.root.run("usr/bin/ovn-sbctl", self.southbound.directory(), &arguments).unwrap()
    }

    /// Lets every BFD session be so, as ovn-controllers would tell.
    pub fn sessions(&self, status: &str) {
        let database = format!("--db=unix:{}", self.southbound.socket().display());
        let list = ["--bare", "--columns=_uuid", "list", "BFD"];
        let arguments: Vec<&str> = [&*database].into_iter().chain(list).collect();
        let rows = self.root.run("usr/bin/ovn-sbctl", self.southbound.directory(), &arguments).unwrap();
        let status = format!("status={status}");
        for row in rows.split_whitespace() {
            let arguments = [&*database, "set", "BFD", row, &status];
            self.root.run("usr/bin/ovn-sbctl", self.southbound.directory(), &arguments).unwrap();
        }
    }

    /// Priorities of all gateways of router ports, the highest first.
    pub fn priorities(&self) -> Vec<i64> {
        let database = format!("--db=unix:{}", self.northbound.socket().display());
        let arguments = [&*database, "--bare", "--columns=priority", "list", "Gateway_Chassis"];
        let text = self.root.run("usr/bin/ovn-nbctl", self.southbound.directory(), &arguments).unwrap();
        let mut all: Vec<i64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        all
    }

    /// The MAC of a router port.
    pub fn router_mac(&self, port: &str) -> String {
        let database = format!("--db=unix:{}", self.northbound.socket().display());
        let arguments = [&*database, "--bare", "get", "Logical_Router_Port", port, "mac"];
        let mac = self.root.run("usr/bin/ovn-nbctl", self.southbound.directory(), &arguments).unwrap();
        mac.trim().trim_matches('"').to_owned()
    }
}

/// One side of a connection.
pub struct End {
    pub port: String,
    pub mac: String,
    pub ips: Vec<String>,
}

pub fn end(port: &str, annotations: &Value) -> End {
    let text = |key: &str| annotations[format!("ovn.kubernetes.io/{key}")].as_str().unwrap().to_owned();
    End {
        port: port.into(),
        mac: text("mac_address"),
        ips: text("ip_address").split(',').map(str::to_owned).collect(),
    }
}

pub fn packet(from: &End, to_mac: &str, to: &str) -> String {
    let v6 = to.contains(':');
    let source = from.ips.iter().find(|ip| ip.contains(':') == v6).unwrap();
    let field = if v6 { "ip6" } else { "ip4" };
    format!(
        "inport == \"{}\" && eth.src == {} && eth.dst == {to_mac} && {field}.src == {source} && {field}.dst == {to} \
         && ip.ttl == 64 && tcp && tcp.dst == 80",
        from.port, from.mac
    )
}
