//! Taking over from a full-featured Kube-OVN: what it left of our classes is ours
//! without a write, everything else stays byte for byte.

use std::collections::BTreeSet;

use ovsdb::{Row, Value as Column};
use serde_json::{Value, json};

use super::{cluster, kube_ovn, lead, pod, restart};
use crate::claims::legacy::{Class, Legacy};
use crate::compile::tests::fake::Families;
use crate::facts::{Kind, ObjectRef};
use crate::sim::{Api, Bench};

/// The objects of the worked example as Kube-OVN writes them, and some of other
/// features.
fn objects(api: &mut Api) {
    let created = |api: &mut Api, object, body: Value| api.create(&object, body).unwrap();
    let finalizers = json!(["kubeovn.io/kube-ovn-controller"]);
    let namespace = json!({
        "ovn.kubernetes.io/logical_switch": "ovn-default",
        "ovn.kubernetes.io/cidr": "10.16.0.0/16",
        "ovn.kubernetes.io/exclude_ips": "10.16.0.1",
    });
    created(api, cluster(Kind::Namespace, "web"), json!({ "metadata": { "annotations": namespace } }));
    let node = json!({
        "metadata": { "annotations": {
            "ovn.kubernetes.io/chassis": "chassis-1",
            "ovn.kubernetes.io/allocated": "true",
            "ovn.kubernetes.io/ip_address": "100.64.0.2",
            "ovn.kubernetes.io/mac_address": "02:00:00:00:00:01",
            "ovn.kubernetes.io/cidr": "100.64.0.0/16",
            "ovn.kubernetes.io/gateway": "100.64.0.1",
            "ovn.kubernetes.io/logical_switch": "join",
            "ovn.kubernetes.io/port_name": "node-n-1",
        } },
        "status": {
            "addresses": [{ "type": "InternalIP", "address": "192.0.2.11" }],
            "conditions": [{ "type": "Ready", "status": "True" }],
        },
    });
    created(api, cluster(Kind::Node, "n-1"), node);
    let spec = crate::compile::tests::fake::default_vpc_spec();
    let vpc = json!({ "metadata": { "finalizers": finalizers }, "spec": spec });
    created(api, cluster(Kind::Vpc, "ovn-cluster"), vpc);
    created(
        api,
        cluster(Kind::Vpc, "vpc-1"),
        json!({ "metadata": { "finalizers": finalizers }, "spec": {} }),
    );
    let underlay = json!({
        "vpc": "ovn-cluster", "provider": "ovn", "protocol": "IPv4", "cidrBlock": "10.19.0.0/16", "vlan": "vlan1",
        "gateway": "10.19.0.1", "excludeIps": ["10.19.0.1"],
    });
    created(
        api,
        cluster(Kind::Subnet, "underlay1"),
        json!({ "metadata": { "finalizers": finalizers }, "spec": underlay }),
    );
    for (name, cidr, gateway, vpc) in [
        ("join", "100.64.0.0/16", "100.64.0.1", "ovn-cluster"),
        ("ovn-default", "10.16.0.0/16", "10.16.0.1", "ovn-cluster"),
        ("sub1", "10.17.0.0/16", "10.17.0.1", "ovn-cluster"),
        ("sub2", "10.18.0.0/16", "10.18.0.1", "vpc-1"),
    ] {
        let spec = json!({
            "vpc": vpc,
            "default": name == "ovn-default",
            "provider": "ovn",
            "protocol": "IPv4",
            "cidrBlock": cidr,
            "gateway": gateway,
            "excludeIps": [gateway],
            "gatewayType": "distributed",
            "gatewayNode": "",
            "natOutgoing": name != "join",
            "private": name == "sub1",
            "enableDHCP": name == "sub1",
        });
        created(
            api,
            cluster(Kind::Subnet, name),
            json!({ "metadata": { "finalizers": finalizers }, "spec": spec }),
        );
    }
    for (name, subnet, ip, mac) in [
        ("a-0", "ovn-default", "10.16.0.5", "02:00:00:00:00:05"),
        ("b-0", "sub1", "10.17.0.8", "02:00:00:00:00:08"),
        ("virt-launcher-vm-1-x", "ovn-default", "10.16.0.7", "02:00:00:00:00:07"),
    ] {
        let mut body = json!({
            "metadata": { "annotations": {
                "ovn.kubernetes.io/allocated": "true",
                "ovn.kubernetes.io/routed": "true",
                "ovn.kubernetes.io/ip_address": ip,
                "ovn.kubernetes.io/mac_address": mac,
                "ovn.kubernetes.io/cidr": if subnet == "sub1" { "10.17.0.0/16" } else { "10.16.0.0/16" },
                "ovn.kubernetes.io/gateway": if subnet == "sub1" { "10.17.0.1" } else { "10.16.0.1" },
                "ovn.kubernetes.io/logical_switch": subnet,
                "ovn.kubernetes.io/logical_router": "ovn-cluster",
                "ovn.kubernetes.io/pod_nic_type": "veth-pair",
                // Features of the pod that its port group and NAT rows stand for.
                "ovn.kubernetes.io/security_groups": "sg1",
                "ovn.kubernetes.io/eip": "172.16.0.5",
            } },
            "spec": { "nodeName": "n-1", "restartPolicy": "Always" },
            "status": { "phase": "Running" },
        });
        if name.starts_with("virt") {
            body["metadata"]["ownerReferences"] = json!([{
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "vm-1", "uid": "vmi",
            }]);
        }
        created(api, pod(name), body);
    }
    for (name, namespace, owner, subnet, ip, mac, kind) in [
        ("node-n-1", "", "n-1", "join", "100.64.0.2", "02:00:00:00:00:01", ""),
        ("a-0.web", "web", "a-0", "ovn-default", "10.16.0.5", "02:00:00:00:00:05", ""),
        ("b-0.web", "web", "b-0", "sub1", "10.17.0.8", "02:00:00:00:00:08", ""),
        ("gone.web", "web", "gone", "ovn-default", "10.16.0.6", "02:00:00:00:00:06", ""),
        ("vm-1.web", "web", "vm-1", "ovn-default", "10.16.0.7", "02:00:00:00:00:07", "VirtualMachine"),
        ("a-0.web.net.web.ovn", "web", "a-0", "ovn-default", "10.16.0.8", "02:00:00:00:00:08", ""),
    ] {
        let mut metadata = json!({
            "finalizers": finalizers,
            "labels": {
                "ovn.kubernetes.io/subnet": subnet,
                "ovn.kubernetes.io/node-name": "n-1",
                "ovn.kubernetes.io/ip_reserved": "false",
                subnet: "",
            },
        });
        if namespace.is_empty() {
            let node = api.get(&cluster(Kind::Node, owner)).unwrap()["metadata"]["uid"].clone();
            metadata["ownerReferences"] =
                json!([{ "apiVersion": "v1", "kind": "Node", "name": owner, "uid": node }]);
        }
        let spec = json!({
            "podName": owner, "namespace": namespace, "subnet": subnet, "nodeName": "n-1",
            "ipAddress": ip, "v4IpAddress": ip, "v6IpAddress": "", "macAddress": mac, "podType": kind,
            "attachSubnets": [], "attachIps": [], "attachMacs": [], "containerID": "",
        });
        created(api, cluster(Kind::Ip, name), json!({ "metadata": metadata, "spec": spec }));
    }
}

/// Columns that hold references to the given rows, without these.
fn without(row: &Row, gone: &BTreeSet<ovsdb::Uuid>) -> Vec<(String, Column)> {
    let strip = |value: &Column| match value.as_set() {
        Some(_) if value.set_uuids().any(|uuid| gone.contains(&uuid)) => {
            Column::uuids(value.set_uuids().filter(|uuid| !gone.contains(uuid)))
        }
        _ => value.clone(),
    };
    row.columns().map(|(name, value)| (name.to_string(), strip(value))).collect()
}

/// What a private subnet has beside what Kube-OVN made (D56), as table and name or match.
const BESIDE: [(&str, &str); 3] = [
    ("ACL", "ip4.src == $weir_nodes_v4"),
    ("ACL", "outport == \"sub1-ovn-cluster\""),
    ("Address_Set", "weir_nodes_v4"),
];

/// The rows that Kube-OVN did not make.
fn made(legacy: &Legacy, after: &ovsdb::Replica) -> Vec<std::sync::Arc<Row>> {
    let known = |row: &&std::sync::Arc<Row>| legacy.rows.iter().any(|old| old.uuid == row.uuid);
    after
        .tables()
        .flat_map(|table| table.rows().filter(|row| !known(row)).cloned().collect::<Vec<_>>())
        .collect()
}

fn check(bench: &Bench, legacy: &Legacy) {
    let (before, after) = (legacy.replica(), bench.db.replica());
    let mut made = made(legacy, &after);
    let leftovers = legacy.rows.iter().filter(|row| row.class == Class::Leftover).map(|row| row.uuid);
    // Nothing refers to rows that are gone, and what refers to new ones is expected.
    let gone: BTreeSet<_> = leftovers.chain(made.iter().map(|row| row.uuid)).collect();
    for row in &legacy.rows {
        let old = before.row(row.table, &row.uuid).expect("was there");
        let new = after.row(row.table, &row.uuid);
        match row.class {
            Class::Leftover => assert!(new.is_none(), "{row:?} is still there"),
            // The epoch token.
            _ if row.table == "NB_Global" => {}
            _ => {
                let new = new.unwrap_or_else(|| panic!("{row:?} is gone"));
                assert_eq!(without(old, &gone), without(new, &gone), "{row:?}");
            }
        }
    }
    let named = |row: &Row| row.str("match").or(row.str("name")).unwrap_or_default().to_owned();
    made.sort_by_key(|row| (row.table().to_string(), named(row)));
    let made: Vec<_> = made.iter().map(|row| (row.table().to_string(), named(row))).collect();
    let beside: Vec<_> = BESIDE.map(|(table, name)| (table.to_owned(), name.to_owned())).into();
    assert_eq!(made, beside, "made without need");
}

#[test]
fn everything_outside_our_classes_stays_and_ours_is_not_touched() {
    let legacy = Legacy::new();
    let mut bench = Bench::new(5);
    bench.db = legacy.database.clone();
    objects(&mut bench.api);
    bench.api.writes.clear();
    let process = lead(&mut bench, Families::V4);
    assert!(bench.core().quiet(), "{}", bench.core().status());
    check(&bench, &legacy);
    // Kubernetes: the orphaned IP object goes; subnets and VPCs get their words;
    // pods, nodes, namespaces and the IP objects of the living get nothing.
    let about = |words: &[&str]| {
        let writes = bench.api.writes.iter();
        writes.filter(|w| words.iter().any(|word| w.contains(word))).cloned().collect::<Vec<_>>()
    };
    assert_eq!(about(&[" Pod ", " Node ", " Namespace ", "create "]), Vec::<String>::new());
    let ips = about(&[" IP "]);
    assert!(ips.iter().all(|write| write.contains("gone.web")), "{ips:#?}");
    assert!(bench.api.get(&cluster(Kind::Ip, "gone.web")).is_none());
    assert_eq!(bench.api.names(Kind::Ip).len(), 5);
    for (object, kind) in [("sub1", Kind::Subnet), ("sub2", Kind::Subnet), ("vpc-1", Kind::Vpc)] {
        let (status, ..) = super::condition(&bench, &cluster(kind, object), "Ready").expect(object);
        assert_eq!(status, "True", "{object}");
    }
    let (status, reason, _) =
        super::condition(&bench, &cluster(Kind::Subnet, "underlay1"), "Ready").expect("underlay1");
    assert_eq!((&*status, &*reason), ("False", "NotYetSupported"));
    // A transaction for the token, those that delete leftovers, and what is expected beside.
    let operations: Vec<_> = bench.processes[process].transactions.iter().flatten().collect();
    let foreign = |operation: &&&ovsdb::Operation| matches!(operation, ovsdb::Operation::Insert { table, .. } if !BESIDE.iter().any(|(t, _)| *t == &**table));
    assert_eq!(operations.iter().find(foreign), None);

    // And once more: silence.
    bench.api.writes.clear();
    let second = restart(&mut bench, Families::V4);
    bench.pass(60_000);
    check(&bench, &legacy);
    assert_eq!(bench.processes[second].transactions.len(), 1);
    assert_eq!(bench.api.writes, Vec::<String>::new());
}

#[test]
fn an_owned_row_that_differs_is_repaired_and_nothing_else() {
    let legacy = Legacy::new();
    let mut bench = Bench::new(6);
    bench.db = legacy.database.clone();
    objects(&mut bench.api);
    let port = legacy.uuid("Logical_Switch_Port", "ovn-default a-0.web");
    let by_hand = Column::strings(["02:00:00:00:00:05 10.16.77.77"]);
    bench.transact(&[ovsdb::Operation::update("Logical_Switch_Port")
        .by_uuid(port)
        .column("addresses", by_hand)
        .build()]);
    lead(&mut bench, Families::V4);
    check(&bench, &legacy);
}

pub(super) fn kind_of(name: &str) -> Kind {
    match name {
        "Namespace" => Kind::Namespace,
        "Node" => Kind::Node,
        "Pod" => Kind::Pod,
        "StatefulSet" => Kind::StatefulSet,
        "NetworkAttachmentDefinition" => Kind::Nad,
        "VirtualMachine" => Kind::VirtualMachine,
        "VirtualMachineInstance" => Kind::VirtualMachineInstance,
        "Vpc" => Kind::Vpc,
        "Subnet" => Kind::Subnet,
        "IP" => Kind::Ip,
        "IPPool" => Kind::IpPool,
        "Vip" => Kind::Vip,
        "OvnEip" => Kind::OvnEip,
        "IptablesEIP" => Kind::Other(crate::objects::IPTABLES_EIPS),
        "Vlan" => Kind::Vlan,
        "ProviderNetwork" => Kind::ProviderNetwork,
        other => panic!("no kind {other}"),
    }
}

/// What differs between two rows: `<table>.<column>`, of maps each key.
fn differences(before: &Row, after: &Row, found: &mut BTreeSet<String>) {
    let table = before.table();
    for (column, old) in before.columns() {
        let new = after.get(column).unwrap();
        if old == new {
            continue;
        }
        if old.as_map().is_none() {
            found.insert(format!("{table}.{column}: {old:?} is now {new:?}"));
            continue;
        }
        let pairs = |value: &Column| -> BTreeSet<(String, String)> {
            value.map_strings().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
        };
        let keys =
            pairs(old).symmetric_difference(&pairs(new)).map(|(key, _)| key.clone()).collect::<Vec<_>>();
        found.extend(keys.into_iter().map(|key| format!("{table}.{column}:{key}")));
    }
}

/// The take-over of everything that this version acts on: pools, Vips, peerings, routes,
/// BFD ports, shared gateways, external networks, sets, machines, attachments.
#[test]
fn what_kube_ovn_left_is_taken_over_as_it_is() {
    let mut bench = Bench::new(7);
    for (kind, namespace, name, body) in kube_ovn::objects() {
        let object = ObjectRef::namespaced(kind_of(kind), namespace, name);
        bench.api.create(&object, body).unwrap();
    }
    bench.db.must(&kube_ovn::rows(true));
    let before = bench.db.replica();
    bench.api.writes.clear();
    lead(&mut bench, Families::V4);
    assert!(bench.core().quiet(), "{}", bench.core().status());
    let after = bench.db.replica();
    let (mut found, mut gone) = (BTreeSet::new(), Vec::new());
    for table in before.tables() {
        for row in table.rows() {
            match after.row(table.name(), &row.uuid) {
                Some(now) => differences(row, now, &mut found),
                None => gone.push(row.clone()),
            }
        }
    }
    // Deviation D40, and nothing else.
    let prefixes: Vec<_> = gone.iter().map(|row| (&**row.table(), row.str("ip_prefix"))).collect();
    assert_eq!(prefixes, [("Logical_Router_Static_Route", Some("10.50.0.0/24"))]);
    found.retain(|difference| !difference.starts_with("Logical_Router.static_routes"));
    let listed = [
        "Logical_Router_Static_Route.external_ids:weir-route",
        "Logical_Switch_Port.external_ids:provider",
        "Logical_Switch_Port.external_ids:vip",
        "NB_Global.external_ids:kube-ovn-version",
        "NB_Global.external_ids:weir-epoch",
        "NB_Global.options:northd-backoff-interval-ms",
    ];
    assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), listed);
    for table in after.tables() {
        let new: Vec<_> = table.rows().filter(|row| before.row(table.name(), &row.uuid).is_none()).collect();
        assert!(new.is_empty(), "made without need: {new:?}");
    }
    // Pods, nodes, namespaces, records: nobody writes to them.
    let quiet = ["patch Pod ", "patch Node ", "patch Namespace ", "patch IP ", "create ", "delete "];
    let writes = bench.api.writes.iter().filter(|write| quiet.iter().any(|word| write.starts_with(word)));
    assert_eq!(writes.collect::<Vec<_>>(), Vec::<&String>::new());
    for object in bench.api.names(Kind::Subnet).into_iter().chain(bench.api.names(Kind::Vpc)) {
        let (status, _, message) = super::condition(&bench, &object, "Ready").expect("a condition");
        assert_eq!(status, "True", "{object}: {message}");
    }
    // And once more: silence.
    bench.api.writes.clear();
    let second = restart(&mut bench, Families::V4);
    bench.pass(60_000);
    assert_eq!(bench.processes[second].transactions.len(), 1);
    assert_eq!(bench.api.writes, Vec::<String>::new());
    // The next pod in the network of a NAT gateway does not get that one's address.
    let (wan, eip, ip) = kube_ovn::NAT_EIP;
    let using =
        |bench: &Bench| bench.api.get(&cluster(Kind::Subnet, wan)).unwrap()["status"]["v4usingIPs"].clone();
    assert_eq!(using(&bench), json!(1), "{eip}");
    bench.add_pod_with("m-0", "n-1", json!({ "k8s.v1.cni.cncf.io/networks": "macvlan" }));
    bench.settle();
    let given = bench.api.annotation(&pod("m-0"), "macvlan.web.kubernetes.io/ip_address");
    assert!(given.is_some_and(|given| given != ip), "{given:?}");
}

/// Without the route to the physical gateway the router drops what pods of such a subnet send outside, before it asks
/// the policy that would lead it there (contract §5.6); where the spec leads, Kube-OVN's own route goes (D40).
#[test]
fn a_route_that_alone_leads_out_of_a_custom_vpc_stays() {
    use super::networks::{add, subnet, two_nodes, vpc};
    let mut bench = two_nodes();
    let way = json!([{ "policy": "policyDst", "cidr": "0.0.0.0/0", "nextHopIP": "10.60.0.254" }]);
    add(&mut bench, &vpc("blue"), json!({ "staticRoutes": way.clone() }));
    add(&mut bench, &vpc("green"), json!({}));
    let under =
        json!({ "vpc": "blue", "cidrBlock": "10.50.0.0/24", "vlan": "v", "u2oInterconnection": true });
    add(&mut bench, &subnet("under"), under);
    add(&mut bench, &subnet("over"), json!({ "vpc": "blue", "cidrBlock": "10.60.0.0/24" }));
    add(&mut bench, &subnet("alone"), json!({ "vpc": "green", "cidrBlock": "10.70.0.0/24" }));
    let route = |number: u128, router: &str, prefix: &str, gateway: &str| {
        let uuid = ovsdb::Uuid::from_u128(number);
        let insert = ovsdb::Operation::insert("Logical_Router_Static_Route")
            .uuid(uuid)
            .column("ip_prefix", prefix)
            .column("nexthop", gateway)
            .column("policy", "src-ip")
            .column("external_ids", ovsdb::Value::string_map([("vendor", "kube-ovn")]))
            .build();
        let put = ovsdb::Operation::mutate("Logical_Router").by("name", router);
        let put = put.insert_set("static_routes", Column::uuids([uuid])).build();
        [insert, put]
    };
    let operations = [
        route(1, "blue", "10.50.0.0/24", "10.50.0.1"),
        route(2, "blue", "10.60.0.0/24", "10.60.0.1"),
        route(3, "green", "10.70.0.0/24", "10.70.0.1"),
    ];
    bench.transact(&operations.concat());
    bench.settle();
    let there = |bench: &Bench| -> Vec<String> {
        let replica = bench.db.replica();
        let rows = replica.table("Logical_Router_Static_Route").unwrap().rows();
        let ours = rows.filter(|row| row.str("policy") == Some("src-ip"));
        ours.filter_map(|row| row.str("ip_prefix").map(str::to_owned))
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    };
    assert_eq!(there(&bench), ["10.50.0.0/24", "10.70.0.0/24"]);
    restart(&mut bench, Families::V4);
    assert_eq!(there(&bench), ["10.50.0.0/24", "10.70.0.0/24"]);
    // Another way leads out now.
    bench.api.edit(&vpc("green"), json!({ "spec": { "staticRoutes": way } }));
    bench.settle();
    assert_eq!(there(&bench), ["10.50.0.0/24"]);
}
