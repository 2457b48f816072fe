//! A cluster as Kube-OVN 1.12–1.16 leaves it, written down from the contract: its
//! northbound rows (§4) and its API objects (§1, §2), one of each thing that this
//! version takes over. `claims::legacy` has the rows of everything else.
//!
//! Two nodes; subnets of both gateway types, one for attachments, one of a custom VPC
//! with a peering and a BFD port; pods, a StatefulSet of which one pod is away, a running
//! machine and a stopped one, attachments, an IPPool with its address set, Vips of all
//! types, a VPC with an external network whose nodes it watches by BFD. Depends on nothing of the crate, so that tests of the binary can use it too.
#![allow(dead_code)]

use std::collections::BTreeMap;

use ovsdb::{Operation, Uuid, Value};
use serde_json::{Value as Json, json};

/// Kind, namespace, name, content.
pub(crate) type Thing = (&'static str, &'static str, &'static str, Json);

/// A port with an address: name, pod id, switch, MAC, address.
type Port = (&'static str, &'static str, &'static str, u8, &'static str);

/// Ports of pods and of what is kept for them: name, id, switch, end of the MAC, address.
const PORTS: [Port; 9] = [
    ("a-0.web", "web/a-0", "ovn-default", 0x10, "10.16.0.10"),
    ("a-0.web.net.web.ovn", "web/a-0", "attached", 0x11, "10.40.0.10"),
    ("c-0.web", "web/c-0", "central", 0x12, "10.30.0.10"),
    ("d-0.blue", "blue/d-0", "blue-1", 0x13, "10.50.0.10"),
    ("db-0.web", "web/db-0", "ovn-default", 0x20, "10.16.0.20"),
    ("db-1.web", "web/db-1", "ovn-default", 0x21, "10.16.0.21"),
    ("vm-1.web", "web/vm-1", "ovn-default", 0x30, "10.16.0.30"),
    ("vm-1.web.net.web.ovn", "web/vm-1", "attached", 0x31, "10.40.0.30"),
    ("vm-2.web", "web/vm-2", "ovn-default", 0x32, "10.16.0.31"),
];

/// Subnets: name, block, gateway, VPC, provider.
const SUBNETS: [(&str, &str, &str, &str, &str); 6] = [
    ("join", "100.64.0.0/16", "100.64.0.1", "ovn-cluster", "ovn"),
    ("ovn-default", "10.16.0.0/16", "10.16.0.1", "ovn-cluster", "ovn"),
    ("central", "10.30.0.0/16", "10.30.0.1", "ovn-cluster", "ovn"),
    ("attached", "10.40.0.0/16", "10.40.0.1", "ovn-cluster", "net.web.ovn"),
    ("blue-1", "10.50.0.0/24", "10.50.0.1", "blue", "ovn"),
    ("out-1", "10.70.0.0/24", "10.70.0.1", "out", "ovn"),
];

/// OvnEips in the external subnet `wan`: name, type, end of the MAC, address.
const EIPS: [(&str, &str, u8, &str); 4] = [
    ("out-wan", "lrp", 0xc0, "172.18.0.10"),
    ("n-1", "lsp", 0xc1, "172.18.0.11"),
    ("n-2", "lsp", 0xc2, "172.18.0.12"),
    ("fip", "nat", 0xc3, "172.18.0.13"),
];

/// The IptablesEIP: its subnet, name, address. It is the first that a pod would be given.
pub(crate) const NAT_EIP: (&str, &str, &str) = ("ovn-vpc-external-network", "eip-1", "172.20.0.2");

/// Nodes: name, end of address, join address.
pub(crate) const NODES: [(&str, &str, &str); 2] =
    [("n-1", "192.0.2.11", "100.64.0.2"), ("n-2", "192.0.2.12", "100.64.0.3")];

/// Ports whose interfaces are on a node, and pods that run there.
pub(crate) const ON_NODE: [(&str, &[&str]); 2] = [
    (
        "n-1",
        &[
            "node-n-1",
            "a-0.web",
            "a-0.web.net.web.ovn",
            "d-0.blue",
            "db-0.web",
            "vm-1.web",
            "vm-1.web.net.web.ovn",
        ],
    ),
    ("n-2", &["node-n-2", "c-0.web"]),
];

fn mac(end: u8) -> String {
    format!("02:00:00:00:00:{end:02x}")
}

type Columns = Vec<(&'static str, Value)>;

/// Rows under construction, by table and name.
#[derive(Default)]
struct Rows {
    operations: Vec<Operation>,
    known: BTreeMap<(&'static str, String), Uuid>,
}

impl Rows {
    fn root(&mut self, table: &'static str, name: &str, mut columns: Columns) -> Uuid {
        let uuid = Uuid::new_v5(&Uuid::NAMESPACE_OID, format!("kube-ovn {table} {name}").as_bytes());
        let named = !matches!(
            table,
            "Logical_Router_Policy"
                | "Logical_Router_Static_Route"
                | "DHCP_Options"
                | "HA_Chassis"
                | "BFD"
                | "NB_Global"
        );
        if named {
            columns.push(("name", Value::string(name)));
        }
        self.operations.push(Operation::insert(table).uuid(uuid).columns(columns).build());
        self.known.insert((table, name.to_owned()), uuid);
        uuid
    }

    fn child(
        &mut self,
        table: &'static str,
        name: &str,
        (holder, of, column): (&'static str, &str, &'static str),
        columns: Columns,
    ) -> Uuid {
        let uuid = self.root(table, name, columns);
        let holder_uuid = self.uuid(holder, of);
        let mutation = Operation::mutate(holder).by_uuid(holder_uuid);
        self.operations.push(mutation.insert_set(column, Value::uuids([uuid])).build());
        uuid
    }

    fn uuid(&self, table: &'static str, name: &str) -> Uuid {
        let known = self.known.get(&(table, name.to_owned()));
        *known.unwrap_or_else(|| panic!("no {table} {name}"))
    }

    fn group(&mut self, name: &str, marks: &[(&str, &str)], ports: &[&str]) {
        let ports: Vec<Uuid> = ports.iter().map(|port| self.uuid("Logical_Switch_Port", port)).collect();
        self.root("Port_Group", name, vec![ids(marks), ("ports", Value::uuids(ports))]);
    }
}

fn ids(marks: &[(&str, &str)]) -> (&'static str, Value) {
    ("external_ids", map(&[&[("vendor", "kube-ovn")], marks].concat()))
}

fn map(pairs: &[(&str, &str)]) -> Value {
    Value::string_map(pairs.iter().copied())
}

/// The whole database, for an empty one. `sources` adds the route of a custom VPC's subnet
/// to its own gateway, which Weir takes away (deviation D40).
pub(crate) fn rows(sources: bool) -> Vec<Operation> {
    let mut rows = Rows::default();
    let options =
        [("use_ct_inv_match", "false"), ("ls_dnat_mod_dl_dst", "true"), ("ls_ct_skip_dst_lport_ips", "true")];
    let version = map(&[("kube-ovn-version", "v1.14.0")]);
    rows.root("NB_Global", ".", vec![("options", map(&options)), ("external_ids", version)]);
    for router in ["ovn-cluster", "blue", "out"] {
        // All have a peer or an external network, so they learn from ARP requests.
        let options = [("mac_binding_age_threshold", "300"), ("dynamic_neigh_routers", "true")];
        rows.root("Logical_Router", router, vec![ids(&[]), ("options", map(&options))]);
    }
    switches(&mut rows);
    routers(&mut rows, sources);
    ports(&mut rows);
    external(&mut rows);
    vips(&mut rows);
    groups(&mut rows);
    policies(&mut rows);
    rows.operations
}

fn switches(rows: &mut Rows) {
    for (index, (name, block, gateway, router, _)) in SUBNETS.iter().enumerate() {
        rows.root("Logical_Switch", name, vec![ids(&[])]);
        let (port, router_port) = (format!("{name}-{router}"), format!("{router}-{name}"));
        let columns = vec![
            ("type", Value::string("router")),
            ("addresses", Value::strings(["router"])),
            ("options", map(&[("router-port", &router_port)])),
            ids(&[("ls", name)]),
        ];
        rows.child("Logical_Switch_Port", &port, ("Logical_Switch", name, "ports"), columns);
        let length = block.split_once('/').unwrap().1;
        let columns = vec![
            ("mac", Value::string(mac(0xa0 + u8::try_from(index).unwrap()))),
            ("networks", Value::strings([format!("{gateway}/{length}")])),
            ids(&[("lr", router)]),
        ];
        rows.child("Logical_Router_Port", &router_port, ("Logical_Router", router, "ports"), columns);
    }
    let balancer = vec![
        ("protocol", Value::optional(Some("tcp"))),
        ("vips", map(&[("10.96.0.20:80", "10.16.0.10:8080")])),
        ids(&[]),
    ];
    let balancer = rows.root("Load_Balancer", "cluster-tcp-loadbalancer", balancer);
    let switch = rows.uuid("Logical_Switch", "ovn-default");
    let attach = Operation::mutate("Logical_Switch").by_uuid(switch);
    rows.operations.push(attach.insert_set("load_balancer", Value::uuids([balancer])).build());
    let options = [
        ("lease_time", "3600"),
        ("router", "10.30.0.1"),
        ("server_id", "169.254.0.254"),
        ("server_mac", "02:00:00:00:00:dd"),
        ("mtu", "1400"),
    ];
    let columns = vec![
        ("cidr", Value::string("10.30.0.0/16")),
        ("options", map(&options)),
        ids(&[("ls", "central"), ("protocol", "IPv4")]),
    ];
    rows.root("DHCP_Options", "central", columns);
}

fn routers(rows: &mut Rows, sources: bool) {
    for (router, peer, network, end) in
        [("ovn-cluster", "blue", "169.254.0.1/30", 0xb0), ("blue", "ovn-cluster", "169.254.0.2/30", 0xb1)]
    {
        let columns = vec![
            ("mac", Value::string(mac(end))),
            ("networks", Value::strings([network])),
            ("peer", Value::optional(Some(format!("{peer}-{router}")))),
            ids(&[("lr", router)]),
        ];
        let name = format!("{router}-{peer}");
        rows.child("Logical_Router_Port", &name, ("Logical_Router", router, "ports"), columns);
    }
    let group = rows.root("HA_Chassis_Group", "bfd@blue", vec![ids(&[("lrp", "bfd@blue")])]);
    for (index, (node, ..)) in NODES.iter().enumerate() {
        let columns = vec![
            ("chassis_name", Value::string(format!("chassis-{node}"))),
            ("priority", Value::integer(100 - i64::try_from(index).unwrap())),
            ids(&[("group", "bfd@blue")]),
        ];
        rows.child("HA_Chassis", node, ("HA_Chassis_Group", "bfd@blue", "ha_chassis"), columns);
    }
    let columns = vec![
        ("mac", Value::string(mac(0xb2))),
        ("networks", Value::strings(["10.255.255.254/32"])),
        ("options", map(&[("bfd-only", "true")])),
        ("ha_chassis_group", Value::uuids([group])),
        ids(&[("lr", "blue")]),
    ];
    rows.child("Logical_Router_Port", "bfd@blue", ("Logical_Router", "blue", "ports"), columns);
    // A session of an egress gateway.
    let marks = [("vpc-egress-gateway", "blue/out"), ("af", "4")];
    let session = vec![
        ("logical_port", Value::string("bfd@blue")),
        ("dst_ip", Value::string("10.50.0.7")),
        ids(&marks),
    ];
    rows.root("BFD", "bfd@blue", session);
    let mut routes = vec![
        ("ovn-cluster", "dst-ip", "0.0.0.0/0", "100.64.0.1"),
        ("ovn-cluster", "dst-ip", "172.30.0.0/16", "169.254.0.2"),
        ("ovn-cluster", "src-ip", "10.16.0.10", "169.254.0.2"),
        ("blue", "dst-ip", "0.0.0.0/0", "169.254.0.1"),
    ];
    routes.extend(sources.then_some(("blue", "src-ip", "10.50.0.0/24", "10.50.0.1")));
    for (router, policy, prefix, nexthop) in routes {
        let columns = vec![
            ("policy", Value::optional(Some(policy))),
            ("ip_prefix", Value::string(prefix)),
            ("nexthop", Value::string(nexthop)),
            ids(&[]),
        ];
        let name = format!("{router} {policy} {prefix}");
        rows.child(
            "Logical_Router_Static_Route",
            &name,
            ("Logical_Router", router, "static_routes"),
            columns,
        );
    }
}

fn ports(rows: &mut Rows) {
    for (index, (node, _, join)) in NODES.iter().enumerate() {
        let address = format!("{} {join}", mac(1 + u8::try_from(index).unwrap()));
        let columns = vec![("addresses", Value::strings([address])), ids(&[("ls", "join")])];
        rows.child(
            "Logical_Switch_Port",
            &format!("node-{node}"),
            ("Logical_Switch", "join", "ports"),
            columns,
        );
    }
    for (name, pod, switch, end, ip) in PORTS {
        let mut columns = vec![
            ("addresses", Value::strings([format!("{} {ip}", mac(end))])),
            match switch {
                "blue-1" => {
                    ids(&[("ls", switch), ("pod", pod), ("associated_sg_default-securitygroup", "false")])
                }
                _ => ids(&[("ls", switch), ("pod", pod)]),
            },
        ];
        if switch == "central" {
            columns.push(("dhcpv4_options", Value::uuids([rows.uuid("DHCP_Options", "central")])));
        }
        rows.child("Logical_Switch_Port", name, ("Logical_Switch", switch, "ports"), columns);
    }
}

fn external(rows: &mut Rows) {
    rows.root("Logical_Switch", "wan", vec![ids(&[])]);
    let parent = ("Logical_Switch", "wan", "ports");
    let wire = vec![
        ("type", Value::string("localnet")),
        ("addresses", Value::strings(["unknown"])),
        ("options", map(&[("network_name", "net1")])),
        ("tag", Value::optional(Some(7i64))),
        ids(&[("ls", "wan"), ("ipv4_network", "172.18.0.0/24")]),
    ];
    rows.child("Logical_Switch_Port", "localnet.wan", parent, wire);
    let pair = vec![
        ("type", Value::string("router")),
        ("addresses", Value::strings(["router"])),
        ("options", map(&[("router-port", "out-wan")])),
        ids(&[("ls", "wan")]),
    ];
    rows.child("Logical_Switch_Port", "wan-out", parent, pair);
    for (name, kind, end, ip) in EIPS {
        match kind {
            "lsp" => {
                let columns = vec![
                    ("addresses", Value::strings([format!("{} {ip}", mac(end))])),
                    ids(&[("ls", "wan")]),
                ];
                rows.child("Logical_Switch_Port", name, parent, columns);
            }
            "lrp" => {
                let columns = vec![
                    ("mac", Value::string(mac(end))),
                    ("networks", Value::strings([format!("{ip}/24")])),
                    ids(&[("lr", "out")]),
                ];
                rows.child("Logical_Router_Port", name, ("Logical_Router", "out", "ports"), columns);
            }
            _ => {}
        }
    }
    for (index, (node, ..)) in NODES.iter().enumerate() {
        let chassis = format!("chassis-{node}");
        let columns = vec![
            ("chassis_name", Value::string(&*chassis)),
            ("priority", Value::integer(100 - i64::try_from(index).unwrap())),
        ];
        let name = format!("out-wan-{chassis}");
        rows.child("Gateway_Chassis", &name, ("Logical_Router_Port", "out-wan", "gateway_chassis"), columns);
    }
    for (name, _, _, ip) in EIPS.iter().filter(|eip| eip.1 == "lsp") {
        let columns = vec![
            ("logical_port", Value::string("out-wan")),
            ("dst_ip", Value::string(*ip)),
            ("min_tx", Value::optional(Some(100i64))),
            ("min_rx", Value::optional(Some(100i64))),
            ("detect_mult", Value::optional(Some(3i64))),
            ("external_ids", map(&[("gateway_chassis", "out-wan-chassis-n-1")])),
        ];
        let session = rows.root("BFD", &format!("out-wan {name}"), columns);
        let route = vec![
            ("policy", Value::optional(Some("src-ip"))),
            ("ip_prefix", Value::string("10.70.0.0/24")),
            ("nexthop", Value::string(*ip)),
            ("options", map(&[("ecmp_symmetric_reply", "true")])),
            ("bfd", Value::uuids([session])),
            ids(&[]),
        ];
        let parent = ("Logical_Router", "out", "static_routes");
        rows.child("Logical_Router_Static_Route", &format!("out {ip}"), parent, route);
    }
}

/// Vips: name, type, address, end of the MAC. That of a `switch_lb_vip` is its router's.
const VIPS: [(&str, &str, &str, u8); 3] = [
    ("vip-plain", "", "10.16.0.40", 0x40),
    ("vip-lb", "switch_lb_vip", "10.16.0.41", 0xa1),
    ("vip-host", "kube_host_vm_vip", "10.16.0.42", 0x42),
];

fn vips(rows: &mut Rows) {
    let parent = ("Logical_Switch", "ovn-default", "ports");
    for (name, kind, ip, end) in VIPS {
        if !kind.is_empty() {
            let id = format!("web/{name}");
            let mut columns = vec![
                ("addresses", Value::strings([format!("{} {ip}", mac(end))])),
                ids(&[("ls", "ovn-default"), ("pod", &id)]),
            ];
            if kind == "switch_lb_vip" {
                columns.push(("options", map(&[("arp_proxy", "true")])));
            }
            rows.child("Logical_Switch_Port", &format!("{name}.web"), parent, columns);
        }
        if kind != "kube_host_vm_vip" {
            let columns = vec![
                ("type", Value::string("virtual")),
                ("options", map(&[("virtual-ip", ip), ("virtual-parents", "a-0.web")])),
                ids(&[("ls", "ovn-default")]),
            ];
            rows.child("Logical_Switch_Port", name, parent, columns);
        }
    }
    let columns =
        vec![("addresses", Value::strings(["10.16.7.0/28", "10.16.9.1"])), ids(&[("ippool", "databases")])];
    rows.root("Address_Set", "databases", columns);
}

fn groups(rows: &mut Rows) {
    let here: [(&str, &[&str], &[&str]); 2] = [
        ("n-1", &["a-0.web", "db-0.web", "vm-1.web"], &["a-0.web.net.web.ovn", "vm-1.web.net.web.ovn"]),
        ("n-2", &[], &[]),
    ];
    for (node, default, attached) in here {
        let dotted = node.replace('-', ".");
        for (subnet, ports) in [("ovn-default", default), ("attached", attached)] {
            let np = format!("{subnet}/{node}");
            let name = format!("{}.{dotted}", subnet.replace('-', "."));
            rows.group(&name, &[("subnet", subnet), ("node", node), ("np", &np)], ports);
        }
        let mut all = [default, attached].concat();
        if node == "n-2" {
            all.push("c-0.web");
        }
        rows.group(&format!("node.{dotted}"), &[("node", node), ("np", &format!("node/{node}"))], &all);
    }
}

fn policies(rows: &mut Rows) {
    let mut policy =
        |router: &str, priority: i64, matching: &str, hops: &[&str], action: &str, marks: &[(&str, &str)]| {
            let columns = vec![
                ("priority", Value::integer(priority)),
                ("match", Value::string(matching)),
                ("action", Value::string(action)),
                ("nexthops", Value::strings(hops.iter().copied())),
                ids(marks),
            ];
            let name = format!("{router} {priority} {matching}");
            rows.child("Logical_Router_Policy", &name, ("Logical_Router", router, "policies"), columns);
        };
    for (subnet, block, _, router, _) in SUBNETS {
        policy(router, 31000, &format!("ip4.dst == {block}"), &[], "allow", &[("subnet", subnet)]);
    }
    for (node, ip, join) in NODES {
        let marks = [("node", node), ("address-family", "4")];
        policy("ovn-cluster", 30000, &format!("ip4.dst == {ip}"), &[join], "reroute", &marks);
        for subnet in ["ovn-default", "attached"] {
            let group = format!("{}.{}", subnet.replace('-', "."), node.replace('-', "."));
            let marks = [("subnet", subnet), ("node", node)];
            policy("ovn-cluster", 29000, &format!("ip4.src == ${group}_ip4"), &[join], "reroute", &marks);
        }
    }
    let (hops, marks) = (NODES.map(|(.., join)| join), NODES.map(|(node, _, join)| (node, join)));
    let marks = [&[("subnet", "central")], &marks[..]].concat();
    policy("ovn-cluster", 29000, "ip4.src == 10.30.0.0/16", &hops, "reroute", &marks);
    policy("ovn-cluster", 100, "ip4.src == 10.16.0.0/24", &["169.254.0.2"], "reroute", &[]);
    policy("blue", 200, "ip4.dst == 10.96.0.0/12", &[], "drop", &[]);
}

/// All API objects.
pub(crate) fn objects() -> Vec<Thing> {
    let mut all: Vec<Thing> = Vec::new();
    clusterwide(&mut all);
    workloads(&mut all);
    pods(&mut all);
    records(&mut all);
    all
}

fn finalizers() -> Json {
    json!(["kubeovn.io/kube-ovn-controller"])
}

fn ready() -> Json {
    json!([{ "type": "Ready", "status": "True" }, { "type": "Validated", "status": "True" }])
}

fn clusterwide(all: &mut Vec<Thing>) {
    for (name, subnet, block, gateway) in
        [("web", "ovn-default", "10.16.0.0/16", "10.16.0.1"), ("blue", "blue-1", "10.50.0.0/24", "10.50.0.1")]
    {
        let mut annotations = json!({
            "ovn.kubernetes.io/logical_switch": subnet,
            "ovn.kubernetes.io/cidr": block,
            "ovn.kubernetes.io/exclude_ips": gateway,
        });
        if name == "web" {
            annotations["ovn.kubernetes.io/logical_switch"] = "ovn-default".into();
        }
        all.push(("Namespace", "", name, json!({ "metadata": { "annotations": annotations } })));
    }
    for (index, (name, ip, join)) in NODES.iter().enumerate() {
        let body = json!({
            "metadata": { "uid": format!("uid-of-{name}"), "labels": {
                "ovn.kubernetes.io/external-gw": "true", "ovn.kubernetes.io/node-ext-gw": "true",
            }, "annotations": {
                "ovn.kubernetes.io/chassis": format!("chassis-{name}"),
                "ovn.kubernetes.io/allocated": "true",
                "ovn.kubernetes.io/ip_address": join,
                "ovn.kubernetes.io/mac_address": mac(1 + u8::try_from(index).unwrap()),
                "ovn.kubernetes.io/cidr": "100.64.0.0/16",
                "ovn.kubernetes.io/gateway": "100.64.0.1",
                "ovn.kubernetes.io/logical_switch": "join",
                "ovn.kubernetes.io/port_name": format!("node-{name}"),
            } },
            "status": {
                "addresses": [{ "type": "InternalIP", "address": ip }],
                "conditions": [{ "type": "Ready", "status": "True" }],
            },
        });
        all.push(("Node", "", name, body));
    }
    let cluster = json!({
        "staticRoutes": [
            { "policy": "policyDst", "cidr": "172.30.0.0/16", "nextHopIP": "169.254.0.2" },
            { "policy": "policySrc", "cidr": "10.16.0.10", "nextHopIP": "169.254.0.2" },
        ],
        "policyRoutes": [{ "priority": 100, "match": "ip4.src == 10.16.0.0/24", "action": "reroute",
            "nextHopIP": "169.254.0.2" }],
        "vpcPeerings": [{ "remoteVpc": "blue", "localConnectIP": "169.254.0.1/30" }],
    });
    let blue = json!({
        "namespaces": ["blue"],
        "staticRoutes": [{ "policy": "policyDst", "cidr": "0.0.0.0/0", "nextHopIP": "169.254.0.1" }],
        "policyRoutes": [{ "priority": 200, "match": "ip4.dst == 10.96.0.0/12", "action": "drop" }],
        "vpcPeerings": [{ "remoteVpc": "ovn-cluster", "localConnectIP": "169.254.0.2/30" }],
        "bfdPort": { "enabled": true, "ip": "10.255.255.254" },
    });
    // As Kube-OVN itself has put them there.
    let watched = EIPS.iter().filter(|eip| eip.1 == "lsp").map(|(.., ip)| {
        json!({ "policy": "policySrc", "cidr": "10.70.0.0/24", "nextHopIP": ip,
            "ecmpMode": "ecmp_symmetric_reply", "bfdId": "11111111-2222-3333-4444-555555555555" })
    });
    let out = json!({ "extraExternalSubnets": ["wan"], "enableBfd": true,
        "staticRoutes": watched.collect::<Vec<_>>() });
    externals(all);
    for (name, spec) in [("ovn-cluster", cluster), ("blue", blue), ("out", out)] {
        let body = json!({ "metadata": { "finalizers": finalizers() }, "spec": spec });
        all.push(("Vpc", "", name, body));
    }
    for (name, block, gateway, vpc, provider) in SUBNETS {
        let mut spec = json!({
            "vpc": vpc, "default": name == "ovn-default", "provider": provider, "protocol": "IPv4",
            "cidrBlock": block, "gateway": gateway, "excludeIps": [gateway], "gatewayType": "distributed",
            "gatewayNode": "", "natOutgoing": name == "ovn-default", "private": false,
        });
        if name == "central" {
            spec["gatewayType"] = "centralized".into();
            spec["gatewayNode"] = "n-1,n-2".into();
            spec["enableEcmp"] = true.into();
            spec["enableDHCP"] = true.into();
        }
        if name == "blue-1" {
            spec["namespaces"] = json!(["blue"]);
        }
        if name == "out-1" {
            spec["enableEcmp"] = true.into();
        }
        let body = json!({ "metadata": { "finalizers": finalizers() }, "spec": spec,
            "status": { "conditions": ready() } });
        all.push(("Subnet", "", name, body));
    }
    let pool = json!({ "metadata": { "finalizers": finalizers() }, "spec": {
        "subnet": "ovn-default", "ips": ["10.16.7.0/28", "10.16.9.1"], "enableAddressSet": true,
    } });
    all.push(("IPPool", "", "databases", pool));
    for (name, kind, ip, end) in VIPS {
        let body = json!({
            "metadata": { "finalizers": finalizers(), "labels": {
                "ovn.kubernetes.io/subnet": "ovn-default", "ovn.kubernetes.io/ip_reserved": "" } },
            "spec": { "namespace": "web", "subnet": "ovn-default", "type": kind, "v4ip": ip,
                "selector": ["app:a"] },
            "status": { "type": kind, "v4ip": ip, "v6ip": "", "mac": mac(end), "selector": ["app:a"] },
        });
        all.push(("Vip", "", name, body));
    }
}

fn externals(all: &mut Vec<Thing>) {
    let spec = json!({ "defaultInterface": "eth1" });
    all.push((
        "ProviderNetwork",
        "",
        "net1",
        json!({ "spec": spec, "status": { "ready": true, "vlans": ["v-7"] } }),
    ));
    let status = json!({ "subnets": ["wan"], "conflict": false });
    all.push(("Vlan", "", "v-7", json!({ "spec": { "id": 7, "provider": "net1" }, "status": status })));
    let spec = json!({
        "vpc": "ovn-cluster", "default": false, "provider": "ovn", "protocol": "IPv4", "cidrBlock": "172.18.0.0/24",
        "gateway": "172.18.0.1", "excludeIps": ["172.18.0.1"], "gatewayType": "distributed", "vlan": "v-7",
    });
    let body = json!({ "metadata": { "finalizers": finalizers() }, "spec": spec, "status": { "conditions": ready() } });
    all.push(("Subnet", "", "wan", body));
    for (name, kind, end, ip) in EIPS {
        let body = json!({
            "metadata": { "finalizers": finalizers(), "labels": {
                "ovn.kubernetes.io/subnet": "wan", "ovn.kubernetes.io/ovn_eip_type": kind,
                "ovn.kubernetes.io/eip_v4_ip": ip, "ovn.kubernetes.io/eip_v6_ip": "",
            } },
            "spec": { "externalSubnet": "wan", "type": kind, "v4Ip": ip, "macAddress": mac(end) },
            "status": { "type": kind, "nat": "", "ready": true, "v4Ip": ip, "v6Ip": "", "macAddress": mac(end) },
        });
        all.push(("OvnEip", "", name, body));
    }
    // A NAT gateway's network and address; its gateway is not acted on.
    let spec = json!({ "provider": "macvlan.web", "protocol": "IPv4", "cidrBlock": "172.20.0.0/24",
        "gateway": "172.20.0.1", "excludeIps": ["172.20.0.1"] });
    let body = json!({ "metadata": { "finalizers": finalizers() }, "spec": spec, "status": { "conditions": ready() } });
    all.push(("Subnet", "", NAT_EIP.0, body));
    let config =
        json!({ "type": "macvlan", "ipam": { "type": "kube-ovn", "provider": "macvlan.web" } }).to_string();
    all.push(("NetworkAttachmentDefinition", "web", "macvlan", json!({ "spec": { "config": config } })));
    let body = json!({
        "metadata": { "finalizers": finalizers(), "labels": {
            "ovn.kubernetes.io/subnet": NAT_EIP.0, "ovn.kubernetes.io/eip_v4_ip": NAT_EIP.2,
            "ovn.kubernetes.io/vpc-nat-gw-name": "gw",
        } },
        "spec": { "v4ip": NAT_EIP.2, "macAddress": mac(0xd0), "natGwDp": "gw", "externalSubnet": NAT_EIP.0 },
        "status": { "ready": true, "ip": NAT_EIP.2 },
    });
    all.push(("IptablesEIP", "", NAT_EIP.1, body));
}

fn workloads(all: &mut Vec<Thing>) {
    let config = json!({ "cniVersion": "0.3.0", "type": "kube-ovn", "provider": "net.web.ovn" }).to_string();
    all.push(("NetworkAttachmentDefinition", "web", "net", json!({ "spec": { "config": config } })));
    let set = json!({ "metadata": { "uid": "uid-of-db" }, "spec": { "replicas": 2, "template": {} } });
    all.push(("StatefulSet", "web", "db", set));
    let networks =
        json!([{ "name": "default", "pod": {} }, { "name": "net", "multus": { "networkName": "web/net" } }]);
    for (name, networks) in [("vm-1", networks), ("vm-2", json!([{ "name": "default", "pod": {} }]))] {
        let spec = json!({ "template": { "spec": { "networks": networks } } });
        all.push((
            "VirtualMachine",
            "web",
            name,
            json!({ "metadata": { "uid": format!("uid-of-{name}") }, "spec": spec }),
        ));
    }
    let owner = json!([{ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "vm-1", "uid": "uid-of-vm-1" }]);
    let instance = json!({ "metadata": { "uid": "uid-of-vmi-1", "ownerReferences": owner }, "spec": {},
        "status": { "nodeName": "n-1" } });
    all.push(("VirtualMachineInstance", "web", "vm-1", instance));
}

/// What the controller has written about a port, for one provider.
fn told(annotations: &mut Json, provider: &str, port: &Port) {
    let (_, _, switch, end, ip) = *port;
    let (_, block, gateway, vpc, _) = SUBNETS.into_iter().find(|(name, ..)| *name == switch).unwrap();
    for (key, value) in [
        ("allocated", "true"),
        ("routed", "true"),
        ("ip_address", ip),
        ("mac_address", &mac(end)),
        ("cidr", block),
        ("gateway", gateway),
        ("logical_switch", switch),
        ("logical_router", vpc),
        ("pod_nic_type", "veth-pair"),
    ] {
        annotations[format!("{provider}.kubernetes.io/{key}")] = value.into();
    }
}

fn pods(all: &mut Vec<Thing>) {
    let running: [(&str, &str, &str, &str); 5] = [
        ("web", "a-0", "a-0.web", "n-1"),
        ("web", "c-0", "c-0.web", "n-2"),
        ("blue", "d-0", "d-0.blue", "n-1"),
        ("web", "db-0", "db-0.web", "n-1"),
        ("web", "virt-launcher-vm-1-x", "vm-1.web", "n-1"),
    ];
    for (namespace, name, port, node) in running {
        let mut annotations = json!({});
        for known in &PORTS {
            match known.0.strip_prefix(port) {
                Some("") => told(&mut annotations, "ovn", known),
                Some(".net.web.ovn") => {
                    annotations["k8s.v1.cni.cncf.io/networks"] = "web/net".into();
                    told(&mut annotations, "net.web.ovn", known);
                }
                _ => {}
            }
        }
        let owner = match name {
            "db-0" => {
                json!([{ "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "uid-of-db" }])
            }
            "virt-launcher-vm-1-x" => {
                for provider in ["ovn", "net.web.ovn"] {
                    annotations[format!("{provider}.kubernetes.io/virtualmachine")] = "vm-1".into();
                }
                json!([{ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "vm-1", "uid": "uid-of-vmi-1" }])
            }
            _ => json!([]),
        };
        if name == "a-0" {
            annotations["ovn.kubernetes.io/aaps"] = "vip-plain,vip-lb".into();
        }
        let body = json!({
            "metadata": { "annotations": annotations, "labels": { "app": "a" }, "ownerReferences": owner },
            "spec": { "nodeName": node, "restartPolicy": "Always" },
            "status": { "phase": "Running" },
        });
        all.push(("Pod", namespace, name, body));
    }
}

/// IP objects.
fn records(all: &mut Vec<Thing>) {
    for (index, (node, _, join)) in NODES.iter().enumerate() {
        let names = ["node-n-1", "node-n-2"];
        let mut body = record("join", node, "", node, (1 + u8::try_from(index).unwrap(), join), "");
        body["metadata"]["ownerReferences"] =
            json!([{ "apiVersion": "v1", "kind": "Node", "name": node, "uid": format!("uid-of-{node}") }]);
        all.push(("IP", "", names[index], body));
    }
    for (name, id, switch, end, ip) in PORTS {
        let (namespace, pod) = id.split_once('/').unwrap();
        let kind = match pod {
            "db-0" | "db-1" => "StatefulSet",
            "vm-1" | "vm-2" => "VirtualMachine",
            _ => "",
        };
        let node = if pod == "c-0" { "n-2" } else { "n-1" };
        all.push(("IP", "", name, record(switch, pod, namespace, node, (end, ip), kind)));
    }
}

fn record(subnet: &str, pod: &str, namespace: &str, node: &str, (end, ip): (u8, &str), kind: &str) -> Json {
    json!({
        "metadata": { "finalizers": finalizers(), "labels": {
            "ovn.kubernetes.io/subnet": subnet,
            "ovn.kubernetes.io/node-name": node,
            "ovn.kubernetes.io/ip_reserved": "false",
            subnet: "",
        } },
        "spec": {
            "podName": pod, "namespace": namespace, "subnet": subnet, "nodeName": node, "ipAddress": ip,
            "v4IpAddress": ip, "v6IpAddress": "", "macAddress": mac(end), "podType": kind,
            "attachSubnets": [], "attachIps": [], "attachMacs": [], "containerID": "",
        },
    })
}
