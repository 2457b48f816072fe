//! The northbound database session: its options, and its events as inputs.
//!
//! Flows in: [`ovsdb::Event`]s in arrival order. Flows out: at most one [`Input`] per
//! event, in the same order, which is what lets the core rely on "a reply comes
//! after the changes it caused".

use std::sync::Arc;

use ovsdb::{Endpoint, Event, Options, Schema};
use tracing::{info, warn};

use crate::facts::Table;
use crate::flags::settings::Settings;
use crate::io::Input;
use crate::metrics::Shared;

/// Database name.
pub const DATABASE: &str = "OVN_Northbound";

/// Columns that are followed. What changes often and decides nothing is left out:
/// `Logical_Switch_Port.up` is one update per pod, `NB_Global.nb_cfg` and its
/// relatives one per command of others.
fn columns(table: Table) -> &'static [&'static str] {
    match table {
        Table::NbGlobal => &["name", "options", "external_ids", "ipsec"],
        Table::LogicalRouter => {
            &["name", "ports", "static_routes", "policies", "enabled", "options", "external_ids"]
        }
        Table::LogicalRouterPort => &[
            "name",
            "mac",
            "networks",
            "peer",
            "enabled",
            "options",
            "ipv6_ra_configs",
            "ipv6_prefix",
            "gateway_chassis",
            "ha_chassis_group",
            "external_ids",
        ],
        Table::StaticRoute => &[
            "ip_prefix",
            "nexthop",
            "output_port",
            "policy",
            "route_table",
            "bfd",
            "options",
            "external_ids",
        ],
        Table::Policy => &["priority", "match", "action", "nexthop", "nexthops", "options", "external_ids"],
        Table::LogicalSwitch => &["name", "ports", "acls", "other_config", "external_ids"],
        Table::LogicalSwitchPort => &[
            "name",
            "type",
            "addresses",
            "port_security",
            "options",
            "tag",
            "parent_name",
            "enabled",
            "dhcpv4_options",
            "dhcpv6_options",
            "external_ids",
        ],
        Table::AddressSet => &["name", "addresses", "external_ids"],
        Table::PortGroup => &["name", "ports", "acls", "external_ids"],
        Table::Acl => &[
            "name",
            "direction",
            "priority",
            "match",
            "action",
            "tier",
            "log",
            "severity",
            "options",
            "external_ids",
        ],
        Table::DhcpOptions => &["cidr", "options", "external_ids"],
        Table::HaChassisGroup => &["name", "ha_chassis", "external_ids"],
        Table::HaChassis => &["chassis_name", "priority", "external_ids"],
        Table::GatewayChassis => &["name", "chassis_name", "priority", "external_ids"],
        Table::Bfd => {
            &["logical_port", "dst_ip", "min_tx", "min_rx", "detect_mult", "status", "external_ids"]
        }
    }
}

/// Session options from the settings.
///
/// # Errors
/// Endpoints that can't be used, with the remedy.
pub fn options(settings: &Settings) -> Result<Options, String> {
    let endpoints = Endpoint::parse_list(&settings.nb_endpoints).map_err(|error| {
        format!("--ovn-nb-addr: {error}; give tcp:HOST:PORT, ssl:HOST:PORT or unix:PATH, several separated by commas")
    })?;
    let mut options = Options::new(endpoints, DATABASE);
    for table in Table::ALL {
        options = options.table(table.name(), columns(table).iter().copied());
    }
    // Commit finds rows by their natural keys, of which only some are the schema's.
    options.schema_indexes = false;
    options.leader_only = true;
    options.connect_timeout = settings.nb_connect_timeout;
    options.request_timeout = settings.nb_request_timeout;
    options.probe_interval = settings.nb_probe_interval;
    options.tls = settings.nb_tls.clone();
    options.client_name = format!("weir-controller {}", settings.pod_name);
    Ok(options)
}

/// Turns events into inputs.
#[derive(Default)]
pub struct Translator {
    schema: Option<Arc<Schema>>,
}

impl Translator {
    /// The input that an event stands for, if any.
    pub fn input(&mut self, event: Event, shared: &Shared) -> Option<Input> {
        match event {
            Event::Connected { endpoint, schema, missing } => {
                info!(%endpoint, schema = %schema.version, "database connected");
                if !missing.is_empty() {
                    let missing: Vec<_> =
                        missing.iter().map(|(table, column)| format!("{table}.{column}")).collect();
                    warn!(
                        ?missing,
                        "the database's schema lacks columns; what needs them is off, upgrade ovn-central"
                    );
                }
                shared.set_database(|database| {
                    database.endpoint = Some(endpoint.to_string());
                    database.missing =
                        missing.iter().map(|(table, column)| format!("{table}.{column}")).collect();
                });
                self.schema = Some(schema);
                None
            }
            Event::SchemaChanged { schema, present, absent } => {
                warn!(schema = %schema.version, ?present, ?absent, "the database's schema is another");
                None
            }
            // The fence of leadership is a row, not a lock: locks are per server.
            Event::Lock { .. } => None,
            Event::Replaced { replica, changes } => {
                let schema = self.schema.clone()?;
                info!(rows = changes.len(), "database loaded");
                shared.set_database(|database| {
                    database.synced = true;
                    database.connections += 1;
                    database.last_error = None;
                });
                Some(Input::NbLoaded { replica, changes, schema })
            }
            Event::Updated { replica, changes } => Some(Input::NbChanged { replica, changes }),
            Event::Reply { tag, result } => Some(Input::NbReply { tag, result }),
            Event::Disconnected { reason } => {
                warn!(reason, "database connection lost");
                shared.set_database(|database| {
                    database.synced = false;
                    database.last_error = Some(reason);
                });
                Some(Input::NbLost)
            }
            Event::Resync { reason } => {
                warn!(reason, "database out of sync, loading again");
                shared.set_database(|database| {
                    database.resyncs += 1;
                    database.last_error = Some(reason);
                });
                None
            }
        }
    }
}
