//! The tables of `OVN_Northbound` 7.11 that a controller's tests meet.
//!
//! Written down from the facts of that schema (an integration test compares every
//! column here with a real server's); sampling, mirrors and template variables
//! are left out.

use super::builder::{ColumnBuilder, SchemaBuilder, TableBuilder, boolean, integer, reference, string, weak};
use crate::schema::Schema;

const U32: i64 = u32::MAX as i64;

fn priority() -> ColumnBuilder {
    integer().range(0, 32767)
}

fn direction() -> ColumnBuilder {
    string().one_of(["from-lport", "to-lport"])
}

/// An `OVN_Northbound` schema for [`super::Database`].
pub fn northbound() -> Schema {
    let schema = SchemaBuilder::new("OVN_Northbound", "7.11.0");
    let schema = switching(schema);
    let schema = routing(schema);
    let schema = filtering(schema);
    let schema = balancing(schema);
    global(schema).build()
}

fn switching(schema: SchemaBuilder) -> SchemaBuilder {
    schema
        .table("Logical_Switch", |t| {
            t.root()
                .scalar("name", string())
                .set("ports", reference("Logical_Switch_Port"))
                .set("acls", reference("ACL"))
                .set("qos_rules", reference("QoS"))
                .set("load_balancer", weak("Load_Balancer"))
                .set("load_balancer_group", reference("Load_Balancer_Group"))
                .set("dns_records", weak("DNS"))
                .optional("copp", weak("Copp"))
                .set("forwarding_groups", reference("Forwarding_Group"))
                .strings("other_config")
                .strings("external_ids")
        })
        .table("Logical_Switch_Port", |t| {
            t.unique(["name"])
                .scalar("name", string())
                .scalar("type", string())
                .strings("options")
                .optional("parent_name", string())
                .optional("tag_request", integer().range(0, 4095))
                .optional("tag", integer().range(1, 4095))
                .optional("peer", string())
                .set("addresses", string())
                .optional("dynamic_addresses", string())
                .set("port_security", string())
                .optional("up", boolean())
                .optional("enabled", boolean())
                .optional("dhcpv4_options", weak("DHCP_Options"))
                .optional("dhcpv6_options", weak("DHCP_Options"))
                .optional("ha_chassis_group", reference("HA_Chassis_Group"))
                .strings("external_ids")
        })
        .table("Forwarding_Group", |t| {
            t.scalar("name", string())
                .scalar("vip", string())
                .scalar("vmac", string())
                .scalar("liveness", boolean())
                .bounded("child_port", string(), 1, usize::MAX)
                .strings("external_ids")
        })
        .table("DHCP_Options", |t| {
            t.root().scalar("cidr", string()).strings("options").strings("external_ids")
        })
        .table("DNS", |t| t.root().strings("records").strings("options").strings("external_ids"))
        .table("QoS", |t| {
            t.scalar("priority", priority())
                .scalar("direction", direction())
                .scalar("match", string())
                .map("action", string().one_of(["dscp", "mark"]), integer().range(0, U32))
                .map("bandwidth", string().one_of(["rate", "burst"]), integer().range(1, U32))
                .strings("external_ids")
        })
}

fn routing(schema: SchemaBuilder) -> SchemaBuilder {
    schema
        .table("Logical_Router", |t| {
            t.root()
                .scalar("name", string())
                .set("ports", reference("Logical_Router_Port"))
                .set("static_routes", reference("Logical_Router_Static_Route"))
                .set("policies", reference("Logical_Router_Policy"))
                .optional("enabled", boolean())
                .set("nat", reference("NAT"))
                .set("load_balancer", weak("Load_Balancer"))
                .set("load_balancer_group", reference("Load_Balancer_Group"))
                .optional("copp", weak("Copp"))
                .strings("options")
                .strings("external_ids")
        })
        .table("Logical_Router_Port", |t| {
            t.unique(["name"])
                .scalar("name", string())
                .set("gateway_chassis", reference("Gateway_Chassis"))
                .optional("ha_chassis_group", reference("HA_Chassis_Group"))
                .strings("options")
                .set("networks", string())
                .scalar("mac", string())
                .optional("peer", string())
                .optional("enabled", boolean())
                .strings("ipv6_ra_configs")
                .set("ipv6_prefix", string())
                .strings("external_ids")
                .strings("status")
        })
        .table("Logical_Router_Static_Route", |t| {
            t.scalar("route_table", string())
                .scalar("ip_prefix", string())
                .optional("policy", string().one_of(["src-ip", "dst-ip"]))
                .scalar("nexthop", string())
                .optional("output_port", string())
                .optional("bfd", weak("BFD"))
                .set(
                    "selection_fields",
                    string().one_of([
                        "eth_src", "eth_dst", "ip_proto", "ip_src", "ip_dst", "ipv6_src", "ipv6_dst",
                        "tp_src", "tp_dst",
                    ]),
                )
                .strings("options")
                .strings("external_ids")
        })
        .table("Logical_Router_Policy", |t| {
            t.scalar("priority", priority())
                .scalar("match", string())
                .scalar("action", string().one_of(["allow", "drop", "reroute", "jump"]))
                .optional("nexthop", string())
                .set("nexthops", string())
                .set("bfd_sessions", weak("BFD"))
                .optional("chain", string())
                .optional("jump_chain", string())
                .strings("options")
                .strings("external_ids")
        })
        .table("NAT", |t| {
            t.scalar("type", string().one_of(["dnat", "snat", "dnat_and_snat"]))
                .scalar("external_ip", string())
                .optional("external_mac", string())
                .scalar("external_port_range", string())
                .scalar("logical_ip", string())
                .optional("logical_port", string())
                .optional("allowed_ext_ips", reference("Address_Set"))
                .optional("exempted_ext_ips", reference("Address_Set"))
                .optional("gateway_port", weak("Logical_Router_Port"))
                .scalar("match", string())
                .scalar("priority", priority())
                .strings("options")
                .strings("external_ids")
        })
        .table("BFD", |t| {
            t.root()
                .unique(["logical_port", "dst_ip"])
                .scalar("logical_port", string())
                .scalar("dst_ip", string())
                .optional("min_tx", integer().at_least(1))
                .optional("min_rx", integer())
                .optional("detect_mult", integer().at_least(1))
                .strings("options")
                .strings("external_ids")
                .optional("status", string().one_of(["down", "init", "up", "admin_down"]))
        })
        .table("Gateway_Chassis", |t| {
            t.unique(["name"])
                .scalar("name", string())
                .scalar("chassis_name", string())
                .scalar("priority", priority())
                .strings("options")
                .strings("external_ids")
        })
        .table("HA_Chassis", |t| {
            t.scalar("chassis_name", string()).scalar("priority", priority()).strings("external_ids")
        })
        .table("HA_Chassis_Group", |t| {
            t.root()
                .unique(["name"])
                .scalar("name", string())
                .set("ha_chassis", reference("HA_Chassis"))
                .strings("external_ids")
        })
        .table("Static_MAC_Binding", |t| {
            t.root()
                .unique(["logical_port", "ip"])
                .scalar("logical_port", string())
                .scalar("ip", string())
                .scalar("mac", string())
                .scalar("override_dynamic_mac", boolean())
        })
}

fn filtering(schema: SchemaBuilder) -> SchemaBuilder {
    schema
        .table("Port_Group", |t| {
            t.root()
                .unique(["name"])
                .scalar("name", string())
                .set("ports", weak("Logical_Switch_Port"))
                .set("acls", reference("ACL"))
                .strings("external_ids")
        })
        .table("Address_Set", |t| {
            t.root()
                .unique(["name"])
                .scalar("name", string())
                .set("addresses", string())
                .strings("external_ids")
        })
        .table("ACL", |t| {
            t.optional("name", string().length(0, 63))
                .scalar("priority", priority())
                .scalar("direction", direction())
                .scalar("match", string())
                .scalar(
                    "action",
                    string().one_of(["allow", "allow-related", "allow-stateless", "drop", "reject", "pass"]),
                )
                .scalar("log", boolean())
                .optional("severity", string().one_of(["alert", "warning", "notice", "info", "debug"]))
                .optional("meter", string())
                .scalar("label", integer().range(0, U32))
                .scalar("tier", integer().range(0, 3))
                .strings("options")
                .strings("external_ids")
        })
        .table("Meter", |t| {
            t.root()
                .unique(["name"])
                .scalar("name", string())
                .scalar("unit", string().one_of(["kbps", "pktps"]))
                .bounded("bands", reference("Meter_Band"), 1, usize::MAX)
                .optional("fair", boolean())
                .strings("external_ids")
        })
        .table("Meter_Band", |t| {
            t.scalar("action", string().one_of(["drop"]))
                .scalar("rate", integer().range(1, U32))
                .scalar("burst_size", integer().range(0, U32))
                .strings("external_ids")
        })
        .table("Copp", |t| {
            t.root().unique(["name"]).scalar("name", string()).strings("meters").strings("external_ids")
        })
}

fn balancing(schema: SchemaBuilder) -> SchemaBuilder {
    schema
        .table("Load_Balancer", |t| {
            t.root()
                .scalar("name", string())
                .strings("vips")
                .optional("protocol", string().one_of(["tcp", "udp", "sctp"]))
                .set("health_check", reference("Load_Balancer_Health_Check"))
                .strings("ip_port_mappings")
                .set(
                    "selection_fields",
                    string().one_of([
                        "eth_src", "eth_dst", "ip_src", "ip_dst", "ipv6_src", "ipv6_dst", "tp_src", "tp_dst",
                    ]),
                )
                .strings("options")
                .strings("external_ids")
        })
        .table("Load_Balancer_Group", |t| {
            t.root().unique(["name"]).scalar("name", string()).set("load_balancer", weak("Load_Balancer"))
        })
        .table("Load_Balancer_Health_Check", |t| {
            t.scalar("vip", string()).strings("options").strings("external_ids")
        })
}

fn global(schema: SchemaBuilder) -> SchemaBuilder {
    let counters = |t: TableBuilder| {
        ["nb_cfg", "nb_cfg_timestamp", "sb_cfg", "sb_cfg_timestamp", "hv_cfg", "hv_cfg_timestamp"]
            .into_iter()
            .fold(t, |t, name| t.scalar(name, integer()))
    };
    schema
        .table("NB_Global", |t| {
            counters(t.root().max_rows(1))
                .scalar("name", string())
                .scalar("ipsec", boolean())
                .set("connections", reference("Connection"))
                .optional("ssl", reference("SSL"))
                .strings("options")
                .strings("external_ids")
        })
        .table("Connection", |t| {
            t.unique(["target"])
                .scalar("target", string())
                .optional("max_backoff", integer().at_least(1000))
                .optional("inactivity_probe", integer())
                .scalar("is_connected", boolean())
                .strings("status")
                .strings("other_config")
                .strings("external_ids")
        })
        .table("SSL", |t| {
            let t = t.max_rows(1).scalar("bootstrap_ca_cert", boolean()).strings("external_ids");
            ["private_key", "certificate", "ca_cert", "ssl_protocols", "ssl_ciphers", "ssl_ciphersuites"]
                .into_iter()
                .fold(t, |t, name| t.scalar(name, string()))
        })
}
