//! A node as OVN sees it: a real ovs-vswitchd with dummy interfaces and a real
//! ovn-controller, and the flows that it installs.

use std::process::{Child, Stdio};

use ovsdb::testing::real::{Root, Server};

use super::ovn::Ovn;

/// Ends with the value.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub struct Chassis {
    // Ended in this order.
    _controller: Process,
    _switch: Process,
    database: Server,
    root: Root,
}

impl Chassis {
    /// A chassis `chassis-<node>` on which these logical ports have interfaces. Needs no
    /// rights: devices and datapath are dummies.
    pub fn start(ovn: &Ovn<'_>, node: &str, ip: &str, ports: &[&str]) -> Self {
        let root = Root::from_env().unwrap();
        let database = Server::vswitch().unwrap();
        let directory = database.directory().to_owned();
        let remote = format!("unix:{}", database.socket().display());
        let start = |program: &str, name: &str, arguments: &[&str]| {
            let log = std::fs::File::create(directory.join(format!("{name}.log"))).unwrap();
            let mut command = root.command(program, &directory).unwrap();
            command.arg(&remote).args(arguments);
            command.arg(format!("--unixctl={}", directory.join(format!("{name}.ctl")).display()));
            Process(command.stdout(Stdio::null()).stderr(log).spawn().unwrap())
        };
        let mut wanted = vec![
            format!("--db={remote}"),
            "--no-wait".into(),
            "init".into(),
            "--".into(),
            "set".into(),
            "Open_vSwitch".into(),
            ".".into(),
            format!("external_ids:system-id=chassis-{node}"),
            format!("external_ids:hostname={node}"),
            format!("external_ids:ovn-remote={}", ovn.southbound()),
            "external_ids:ovn-encap-type=geneve".into(),
            format!("external_ids:ovn-encap-ip={ip}"),
            "--".into(),
            "add-br".into(),
            "br-int".into(),
            "--".into(),
            "set".into(),
            "bridge".into(),
            "br-int".into(),
            "datapath_type=dummy".into(),
            "fail-mode=secure".into(),
        ];
        for (index, port) in ports.iter().enumerate() {
            let device = format!("p{index}");
            wanted.extend(
                ["--", "add-port", "br-int", &device, "--", "set", "interface", &device].map(Into::into),
            );
            wanted.extend(["type=dummy".to_owned(), format!("external_ids:iface-id={port}")]);
        }
        let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
        root.run("usr/bin/ovs-vsctl", &directory, &wanted).unwrap();
        let switch = start(
            "usr/lib/openvswitch-switch/ovs-vswitchd",
            "vswitchd",
            &["--enable-dummy=override", "--disable-system", "--no-chdir"],
        );
        let controller = start("usr/bin/ovn-controller", "ovn-controller", &[]);
        Self { _controller: controller, _switch: switch, database, root }
    }

    /// Flows and groups of br-int, sorted, without cookies and counters.
    pub fn flows(&self) -> Vec<String> {
        let directory = self.database.directory();
        let management = format!("unix:{}", directory.join("br-int.mgmt").display());
        let dump = |what: &str| {
            let arguments = ["-OOpenFlow15", "--no-stats", "--no-names", what, &management];
            self.root.run("usr/bin/ovs-ofctl", directory, &arguments).unwrap()
        };
        let (flows, groups) = (dump("dump-flows"), dump("dump-groups"));
        let without_cookie = |line: &str| {
            let parts = line.trim().split(", ").filter(|part| !part.starts_with("cookie="));
            parts.collect::<Vec<_>>().join(", ")
        };
        let mut lines: Vec<String> = flows.lines().chain(groups.lines()).map(without_cookie).collect();
        lines.retain(|line| !line.starts_with("OFPST_") && !line.is_empty());
        lines.sort();
        lines
    }

    /// The end of its logs, for a test that fails.
    pub fn logs(&self) -> String {
        let read = |name: &str| {
            let text = std::fs::read_to_string(self.database.directory().join(name)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(30)..].join("\n")
        };
        format!("vswitchd:\n{}\novn-controller:\n{}", read("vswitchd.log"), read("ovn-controller.log"))
    }
}
