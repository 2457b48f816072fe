use super::*;
use ovsdb::testing::{Database, SchemaBuilder, boolean, integer, reference, string, weak};

/// The tables and columns of the switch's schema that plans touch.
pub(crate) fn database() -> Database {
    let schema = SchemaBuilder::new("Open_vSwitch", "8.8.0")
        .table("Open_vSwitch", |t| {
            t.root()
                .set("bridges", reference("Bridge"))
                .map("external_ids", string(), string())
                .scalar("next_cfg", integer())
        })
        .table("Bridge", |t| {
            t.unique(["name"])
                .scalar("name", string())
                .scalar("datapath_type", string())
                .set("ports", reference("Port"))
                .set("mirrors", reference("Mirror"))
                .map("other_config", string(), string())
                .map("external_ids", string(), string())
        })
        .table("Port", |t| {
            t.unique(["name"])
                .scalar("name", string())
                .set("interfaces", reference("Interface"))
                .map("external_ids", string(), string())
                .optional("tag", integer())
                .set("trunks", integer())
                .optional("qos", reference("QoS"))
        })
        .table("Interface", |t| {
            t.unique(["name"])
                .scalar("name", string())
                .scalar("type", string())
                .map("external_ids", string(), string())
                .optional("mac", string())
                .optional("mtu_request", integer())
                .optional("ofport", integer())
                .optional("error", string())
                .scalar("ingress_policing_rate", integer())
                .scalar("ingress_policing_burst", integer())
        })
        .table("Mirror", |t| {
            t.scalar("name", string())
                .scalar("select_all", boolean())
                .optional("output_port", weak("Port"))
                .set("select_dst_port", weak("Port"))
        })
        .table("QoS", |t| {
            t.root()
                .scalar("type", string())
                .map("queues", integer(), reference("Queue"))
                .map("other_config", string(), string())
                .map("external_ids", string(), string())
        })
        .table("Queue", |t| {
            t.root().map("other_config", string(), string()).map("external_ids", string(), string())
        })
        .build();
    let mut database = Database::new(schema);
    database.must(&[Operation::insert("Open_vSwitch").build()]);
    let bridge = BridgeSpec { name: "br-int".into(), ..BridgeSpec::default() };
    carry_out(&mut database, |view| ensure_bridge(view, &bridge));
    database
}

/// Plans, commits, and checks that planning again finds nothing to do.
pub(in crate::ovs) fn carry_out(
    database: &mut Database,
    wish: impl Fn(&View) -> Result<Vec<Operation>, PlanError>,
) {
    let operations = wish(&View::new(database.replica())).unwrap();
    database.must(&operations);
    assert_eq!(wish(&View::new(database.replica())).unwrap().len(), 0, "the plan is not idempotent");
}

pub(in crate::ovs) fn pod_port(name: &str, iface_id: &str) -> PortSpec {
    PortSpec {
        bridge: "br-int".into(),
        name: name.into(),
        external_ids: BTreeMap::from([
            ("iface-id".to_owned(), iface_id.to_owned()),
            ("vendor".to_owned(), "kube-ovn".to_owned()),
        ]),
        ..PortSpec::default()
    }
}

pub(in crate::ovs) fn view(database: &Database) -> View {
    View::new(database.replica())
}

#[test]
fn a_port_is_made_changed_and_removed() {
    let mut database = database();
    let mut spec = pod_port("a_h", "a.web");
    carry_out(&mut database, |view| ensure_port(view, &spec));
    assert_eq!(view(&database).port_names("br-int"), ["a_h".to_owned(), "br-int".to_owned()].into());
    let uuid = view(&database).interface("a_h").unwrap().uuid();

    spec.external_ids.insert("ip".into(), "10.16.0.5".into());
    spec.qos = Some(PortQos { policing_rate: 3000, policing_burst: 2400, discipline: None });
    spec.mtu_request = Some(1400);
    carry_out(&mut database, |view| ensure_port(view, &spec));
    spec.absent_external_ids = vec!["ip".into()];
    spec.external_ids.remove("ip");
    carry_out(&mut database, |view| ensure_port(view, &spec));
    let interface = view(&database).interface("a_h").unwrap();
    assert_eq!((interface.uuid(), interface.external_id("ip")), (uuid, None));

    carry_out(&mut database, |view| Ok(remove_port(view, "a_h")));
    assert!(view(&database).interface("a_h").is_none());
}

#[test]
fn only_the_newest_sandbox_owns_the_logical_port() {
    let mut database = database();
    carry_out(&mut database, |view| ensure_port(view, &pod_port("old_h", "a.web")));
    carry_out(&mut database, |view| ensure_port(view, &pod_port("other_h", "b.web")));
    carry_out(&mut database, |view| ensure_port(view, &pod_port("new_h", "a.web")));
    let id = |name: &str| view(&database).interface(name).unwrap().external_id("iface-id").map(str::to_owned);
    assert_eq!(id("old_h"), None);
    assert_eq!(id("new_h").as_deref(), Some("a.web"));
    assert_eq!(id("other_h").as_deref(), Some("b.web"));
}

#[test]
fn what_a_port_builds_on_must_be_there() {
    let mut database = database();
    let mut spec = pod_port("a_h", "a.web");
    spec.bridge = "br-none".into();
    assert_eq!(ensure_port(&view(&database), &spec), Err(PlanError::NoBridge("br-none".into())));
    let other = BridgeSpec { name: "br-other".into(), ..BridgeSpec::default() };
    carry_out(&mut database, |view| ensure_bridge(view, &other));
    carry_out(&mut database, |view| ensure_port(view, &pod_port("a_h", "a.web")));
    spec.bridge = "br-other".into();
    assert!(
        matches!(ensure_port(&view(&database), &spec), Err(PlanError::OnOtherBridge(_, on)) if on == "br-int")
    );
    assert_eq!(ensure_port(&View::default(), &spec), Err(PlanError::NoBridge("br-other".into())));
    assert_eq!(ensure_bridge(&View::default(), &other), Err(PlanError::NoRoot));
}

#[test]
fn a_bridge_is_made_changed_and_removed() {
    let mut database = database();
    let mut spec = BridgeSpec {
        name: "br-phy".into(),
        datapath_type: "netdev".into(),
        hwaddr: Some("02:00:00:00:00:01".into()),
        external_ids: BTreeMap::from([("weir-nic".to_owned(), "eth1".to_owned())]),
        ..BridgeSpec::default()
    };
    carry_out(&mut database, |view| ensure_bridge(view, &spec));
    spec.hwaddr = Some("02:00:00:00:00:02".into());
    carry_out(&mut database, |view| ensure_bridge(view, &spec));
    let row = view(&database).bridge("br-phy").cloned().unwrap();
    assert_eq!(row.map_get("other_config", "hwaddr"), Some("02:00:00:00:00:02"));
    assert!(view(&database).interface("br-phy").is_some());
    carry_out(&mut database, |view| remove_bridge(view, "br-phy"));
    assert!(view(&database).bridge("br-phy").is_none() && view(&database).interface("br-phy").is_none());
}

#[test]
fn the_switchs_own_keys_are_left_alone() {
    let mut database = database();
    let ids = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect::<BTreeMap<_, _>>()
    };
    carry_out(&mut database, |view| {
        set_root_external_ids(view, &ids(&[("system-id", "x"), ("ovn-encap-ip", "1")]))
    });
    carry_out(&mut database, |view| set_root_external_ids(view, &ids(&[("ovn-encap-ip", "2")])));
    assert_eq!(view(&database).root_external_id("system-id"), Some("x"));
    assert_eq!(view(&database).root_external_id("ovn-encap-ip"), Some("2"));
}
