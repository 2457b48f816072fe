//! The northbound database as a full-featured Kube-OVN leaves it: the worked
//! example of contract §10 plus one row of every class of §4 and §5, and rows
//! that somebody added by hand to our routers and switches.
//!
//! For tests of claims and of adoption: after the controller has taken over, all
//! [`Class::Foreign`] rows must be byte-identical, [`Class::Ours`] rows must not
//! have been touched, and [`Class::Leftover`] rows must be gone.

mod features;

use ovsdb::testing::{Database, northbound};
use ovsdb::{Operation, Replica, Uuid, Value};

/// What becomes of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Of a class of this version, and wanted by the worked example.
    Ours,
    /// Of a class of this version, and wanted by nothing.
    Leftover,
    /// Claimed by its row, kept because of an object that this version does not serve:
    /// an IP object of a virtual machine, an underlay subnet.
    Machine,
    /// Everything else.
    Foreign,
}

/// A row and where it hangs.
#[derive(Clone, Debug)]
pub(crate) struct LegacyRow {
    pub(crate) class: Class,
    pub(crate) table: &'static str,
    pub(crate) uuid: Uuid,
    /// The row's name in this file, for messages.
    pub(crate) what: String,
}

/// The database and what each of its rows is.
pub(crate) struct Legacy {
    pub(crate) database: Database,
    pub(crate) rows: Vec<LegacyRow>,
    operations: Vec<Operation>,
}

use Class::{Foreign, Leftover, Machine, Ours};

const LR: &str = "Logical_Router";
const LRP: &str = "Logical_Router_Port";
const LS: &str = "Logical_Switch";
const LSP: &str = "Logical_Switch_Port";
const PG: &str = "Port_Group";
const ROUTE: &str = "Logical_Router_Static_Route";
const POLICY: &str = "Logical_Router_Policy";

type Columns = Vec<(&'static str, Value)>;
type Ids<'a> = &'a [(&'static str, &'static str)];

fn text(value: &str) -> Value {
    Value::string(value)
}

fn set(values: &[&'static str]) -> Value {
    Value::strings(values.iter().copied())
}

fn map(pairs: Ids<'_>) -> Value {
    Value::string_map(pairs.iter().copied())
}

/// `external_ids` with the vendor mark.
fn ids(pairs: Ids<'_>) -> (&'static str, Value) {
    let all = pairs.iter().copied().chain([("vendor", "kube-ovn")]);
    ("external_ids", Value::string_map(all))
}

impl Legacy {
    /// The whole database.
    pub(crate) fn new() -> Self {
        let database = Database::new(northbound());
        let mut legacy = Self { database, rows: Vec::new(), operations: Vec::new() };
        legacy.routers();
        legacy.switches();
        legacy.groups();
        legacy.routes();
        legacy.policies();
        legacy.features();
        let operations = std::mem::take(&mut legacy.operations);
        legacy.database.must(&operations);
        legacy
    }

    /// The content.
    pub(crate) fn replica(&self) -> Replica {
        self.database.replica()
    }

    /// A root row.
    fn root(&mut self, class: Class, table: &'static str, what: &str, columns: Columns) -> Uuid {
        let uuid = Uuid::new_v5(&Uuid::NAMESPACE_OID, format!("{table} {what}").as_bytes());
        self.operations.push(Operation::insert(table).uuid(uuid).columns(columns).build());
        self.rows.push(LegacyRow { class, table, uuid, what: what.into() });
        uuid
    }

    /// A row that a column of another holds.
    fn child(
        &mut self,
        class: Class,
        table: &'static str,
        what: &str,
        (parent_table, parent, column): (&'static str, &str, &'static str),
        columns: Columns,
    ) -> Uuid {
        let uuid = self.root(class, table, &format!("{parent} {what}"), columns);
        let parent = self.uuid(parent_table, parent);
        let mutation =
            Operation::mutate(parent_table).by_uuid(parent).insert_set(column, Value::uuids([uuid]));
        self.operations.push(mutation.build());
        uuid
    }

    /// A row by table and name in this file.
    pub(crate) fn uuid(&self, table: &str, what: &str) -> Uuid {
        let row = self.rows.iter().find(|row| row.table == table && row.what == what);
        row.map(|row| row.uuid).unwrap_or_else(|| panic!("no {table} {what}"))
    }

    fn routers(&mut self) {
        let options = [
            ("mac_binding_age_threshold", "300"),
            ("dynamic_neigh_routers", "true"),
            ("always_learn_from_arp_request", "false"),
        ];
        for (class, name) in [(Ours, "ovn-cluster"), (Ours, "vpc-1")] {
            self.root(class, LR, name, vec![("name", text(name)), ids(&[]), ("options", map(&options))]);
        }
        self.root(Foreign, LR, "by-hand", vec![("name", text("by-hand"))]);
        let chassis = self.root(
            Leftover,
            "HA_Chassis_Group",
            "bfd@ovn-cluster",
            vec![("name", text("bfd@ovn-cluster")), ids(&[("lrp", "bfd@ovn-cluster")])],
        );
        let mut port =
            |class, router: &'static str, name: &'static str, network: &'static str, more: Columns| {
                let mut columns = vec![
                    ("name", text(name)),
                    ("mac", text("0a:00:00:00:00:01")),
                    ("networks", set(&[network])),
                    ids(&[("lr", router)]),
                ];
                columns.extend(more);
                self.child(class, LRP, name, (LR, router, "ports"), columns);
            };
        port(Ours, "ovn-cluster", "ovn-cluster-join", "100.64.0.1/16", vec![]);
        port(Ours, "ovn-cluster", "ovn-cluster-ovn-default", "10.16.0.1/16", vec![]);
        port(Ours, "ovn-cluster", "ovn-cluster-sub1", "10.17.0.1/16", vec![]);
        port(Foreign, "ovn-cluster", "ovn-cluster-external", "172.16.0.254/24", vec![]);
        let peer = vec![("peer", Value::optional(Some("vpc-1-ovn-cluster")))];
        port(Leftover, "ovn-cluster", "ovn-cluster-vpc-1", "169.254.0.1/30", peer);
        let bfd = vec![
            ("options", map(&[("bfd-only", "true")])),
            ("ha_chassis_group", Value::optional(Some(chassis))),
        ];
        port(Leftover, "ovn-cluster", "bfd@ovn-cluster", "10.255.255.255/32", bfd);
        port(Ours, "vpc-1", "vpc-1-sub2", "10.18.0.1/16", vec![]);
        let by_hand = |name: &'static str| vec![("name", text(name)), ("mac", text("0a:00:00:00:00:02"))];
        self.child(Foreign, LRP, "az1-ts1", (LR, "ovn-cluster", "ports"), by_hand("az1-ts1"));
        self.child(Foreign, LRP, "by-hand-lrp", (LR, "ovn-cluster", "ports"), by_hand("by-hand-lrp"));
        let gateway = vec![
            ("name", text("ovn-cluster-external-chassis-1")),
            ("chassis_name", text("chassis-1")),
            ("priority", Value::integer(100)),
        ];
        let parent = (LRP, "ovn-cluster ovn-cluster-external", "gateway_chassis");
        self.child(Foreign, "Gateway_Chassis", "external", parent, gateway);
    }

    fn switches(&mut self) {
        for (class, name) in [
            (Ours, "join"),
            (Ours, "ovn-default"),
            (Ours, "sub1"),
            (Ours, "sub2"),
            (Leftover, "gone"),
            (Foreign, "external"),
        ] {
            self.root(class, LS, name, vec![("name", text(name)), ids(&[])]);
        }
        let snoop = ("other_config", map(&[("mcast_snoop", "true"), ("mcast_querier", "true")]));
        self.root(Machine, LS, "underlay1", vec![("name", text("underlay1")), ids(&[]), snoop]);
        for name in ["ts1", "by-hand"] {
            self.root(Foreign, LS, name, vec![("name", text(name))]);
        }
        self.router_ports();
        self.pod_ports();
        self.other_ports();
    }

    fn port(
        &mut self,
        class: Class,
        switch: &'static str,
        name: &'static str,
        kind: &str,
        addresses: &[&'static str],
        marks: Ids<'_>,
    ) -> Uuid {
        let marks: Vec<_> = marks.iter().copied().chain([("ls", switch)]).collect();
        let columns =
            vec![("name", text(name)), ("type", text(kind)), ("addresses", set(addresses)), ids(&marks)];
        self.child(class, LSP, name, (LS, switch, "ports"), columns)
    }

    fn router_ports(&mut self) {
        for (class, switch, name, peer) in [
            (Ours, "join", "join-ovn-cluster", "ovn-cluster-join"),
            (Ours, "ovn-default", "ovn-default-ovn-cluster", "ovn-cluster-ovn-default"),
            (Ours, "sub1", "sub1-ovn-cluster", "ovn-cluster-sub1"),
            (Ours, "sub2", "sub2-vpc-1", "vpc-1-sub2"),
            (Foreign, "external", "external-ovn-cluster", "ovn-cluster-external"),
            (Foreign, "ovn-default", "ovn-default-by-hand", "by-hand-lrp"),
        ] {
            let uuid = self.port(class, switch, name, "router", &["router"], &[]);
            let options = Value::string_map([("router-port", peer)]);
            self.operations.push(Operation::update(LSP).by_uuid(uuid).column("options", options).build());
        }
    }

    fn pod_ports(&mut self) {
        self.port(Ours, "join", "node-n-1", "", &["02:00:00:00:00:01 100.64.0.2"], &[]);
        self.port(Leftover, "join", "node-gone", "", &["02:00:00:00:00:03 100.64.0.3"], &[]);
        let address = &["02:00:00:00:00:05 10.16.0.5"];
        self.port(Ours, "ovn-default", "a-0.web", "", address, &[("pod", "web/a-0")]);
        let gone = &["02:00:00:00:00:06 10.16.0.6"];
        self.port(Leftover, "ovn-default", "gone.web", "", gone, &[("pod", "web/gone")]);
        let machine = &["02:00:00:00:00:07 10.16.0.7"];
        self.port(Machine, "ovn-default", "vm-1.web", "", machine, &[("pod", "web/vm-1")]);
        self.port(Ours, "sub1", "b-0.web", "", &["02:00:00:00:00:08 10.17.0.8"], &[("pod", "web/b-0")]);
        self.port(Leftover, "sub2", "c-0.web", "", &["02:00:00:00:00:09 10.18.0.9"], &[("pod", "web/c-0")]);
        // Attachments, on our switch and on another.
        for (switch, name, pod) in [
            ("ovn-default", "a-0.web.net.web.ovn", "web/a-0"),
            ("ovn-default", "a-0.web.net.web.ovn.net1", "web/a-0"),
            ("ovn-default", "vm-1.web.net.web.ovn", "web/vm-1"),
            ("sub1", "a-0.web.other.web.ovn", "web/a-0"),
        ] {
            self.port(Foreign, switch, name, "", &["02:00:00:00:00:08 10.16.0.8"], &[("pod", pod)]);
        }
    }

    fn other_ports(&mut self) {
        let address = &["02:00:00:00:00:09 10.16.0.9"];
        self.port(Foreign, "ovn-default", "localnet.ovn-default", "localnet", &["unknown"], &[]);
        self.port(Foreign, "underlay1", "localnet.underlay1", "localnet", &["unknown"], &[]);
        self.port(Leftover, "ovn-default", "ovn-default-vip-10.16.0.200", "virtual", &[], &[]);
        let querier = "mcast-querier.ovn-default";
        self.port(
            Leftover,
            "ovn-default",
            querier,
            "",
            &["02:00:00:00:00:0a 10.16.0.10"],
            &[("pod", "default/mcast-querier.ovn-default")],
        );
        // Vips: plain (virtual), switch_lb_vip, kube_host_vm_vip; and an OvnEip of type lsp.
        self.port(Foreign, "ovn-default", "vip-1", "virtual", &[], &[]);
        self.port(Foreign, "ovn-default", "slr-vip", "", address, &[]);
        self.port(Foreign, "ovn-default", "node-like-vip", "", address, &[]);
        self.port(Foreign, "external", "node-n-1-eip", "", address, &[]);
        self.port(Foreign, "join", "vip-on-join", "", address, &[]);
        let by_hand = |name: &'static str| vec![("name", text(name)), ("addresses", set(&["unknown"]))];
        self.child(Foreign, LSP, "by-hand", (LS, "ovn-default", "ports"), by_hand("by-hand.web"));
        self.child(Foreign, LSP, "node-by-hand", (LS, "join", "ports"), by_hand("node-by-hand"));
        self.child(Foreign, LSP, "ts1-az1", (LS, "ts1", "ports"), by_hand("ts1-az1"));
    }

    fn groups(&mut self) {
        let port = self.uuid(LSP, "ovn-default a-0.web");
        let machine = self.uuid(LSP, "ovn-default vm-1.web");
        let other = self.uuid(LSP, "sub1 b-0.web");
        let mut group = |class, name: &'static str, marks: Ids<'_>, ports: &[Uuid]| {
            let columns =
                vec![("name", text(name)), ids(marks), ("ports", Value::uuids(ports.iter().copied()))];
            self.root(class, PG, name, columns);
        };
        let subnet = |node, np| [("subnet", "ovn-default"), ("node", node), ("np", np)];
        group(Ours, "ovn.default.n.1", &subnet("n-1", "ovn-default/n-1"), &[port, machine]);
        group(Ours, "node.n.1", &[("node", "n-1"), ("np", "node/n-1")], &[port, machine, other]);
        group(Leftover, "ovn.default.gone", &subnet("gone", "ovn-default/gone"), &[]);
        group(Leftover, "node.gone", &[("node", "gone"), ("np", "node/gone")], &[]);
        let marks = [("subnet", "sub1"), ("node", "n-1"), ("np", "sub1/n-1")];
        group(Ours, "sub1.n.1", &marks, &[other]);
        group(Foreign, "underlay1.n.1", &[("lr", "ovn-cluster"), ("ls", "underlay1"), ("u2o", "true")], &[]);
        group(Foreign, "p.1.web", &[("np", "web/p-1")], &[port]);
        // A policy of a namespace called `node`.
        group(Foreign, "n.1.node", &[("np", "node/n-1")], &[]);
        group(Foreign, "anp.1", &[("anp", "anp-1")], &[]);
        group(Foreign, "cnp.1", &[("cnp", "cnp-1")], &[]);
        group(Foreign, "ovn.sg.sg1", &[("type", "security_group"), ("sg", "sg1")], &[port]);
        let deny = "ovn.sg.kubeovn_deny_all";
        group(Foreign, deny, &[("type", "security_group"), ("sg", "kubeovn_deny_all")], &[port]);
        group(Foreign, "VEG.0123456789ab", &[("vpc-egress-gateway", "web/veg-1"), ("af", "4")], &[]);
        self.root(Foreign, PG, "by_hand", vec![("name", text("by_hand"))]);
        for (group, what) in [("node.n.1", "node allow"), ("p.1.web", "policy drop")] {
            let columns = vec![
                ("action", text("allow-related")),
                ("direction", text("to-lport")),
                ("priority", Value::integer(3000)),
                ("match", text("ip4.src == 192.0.2.11 && ip4.dst == $node.n.1_ip4")),
                ("tier", Value::integer(2)),
                ids(&[("parent", group)]),
            ];
            self.child(Foreign, "ACL", what, (PG, group, "acls"), columns);
        }
    }
}
