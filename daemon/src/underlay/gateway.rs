//! This node as a gateway: the external gateway's bridge (node contract §4.6) and the interconnection (§4.7).
//!
//! In: labels of the node, the ConfigMap `ovn-external-gw-config`. Out: bridge `br-<switch>` with the NIC, its mapping,
//! `ovn-is-interconn`. A bridge is only taken away if it carries our mark, never one that others made; a NIC that sits in
//! a provider network's bridge stays there, and the mapping leads to that bridge.

use std::collections::BTreeMap;

use super::journal::Journal;
use super::mappings::{self, BRIDGES};
use super::network::is_provider_bridge;
use super::not_yet;
use super::run::Underlay;
use crate::kube::{EventType, ObjectRef};
use crate::node::NotYet;
use crate::ovs::{BridgeSpec, PlanError, PortSpec, View, plan};

/// External id of a bridge that was made for the external gateway.
const MARK: &str = "weir-external-gateway";
/// Key of `Open_vSwitch:external_ids`.
const INTERCONNECTION: &str = "ovn-is-interconn";

fn is_true(labels: &BTreeMap<String, String>, key: &str) -> bool {
    labels.get(key).is_some_and(|value| value == "true")
}

fn is_marked(view: &View, bridge: &str) -> bool {
    view.bridge(bridge).is_some_and(|row| row.map_get("external_ids", MARK).is_some())
}

/// Kube-OVN marks the external gateway's bridge by nothing: its name and its mapping say whose it is.
fn is_unmarked_but_ours(view: &View, switch: &str, bridge: &str) -> bool {
    let mapped = mappings::get(view.root_external_id(BRIDGES).unwrap_or_default(), switch) == Some(bridge);
    mapped
        && view
            .bridge(bridge)
            .is_some_and(|row| row.get("external_ids").is_none_or(|ids| ids.map_strings().next().is_none()))
}

/// Whether a provider network of that name is on this node: the mapping is its own.
fn is_network(view: &View, name: &str) -> bool {
    view.root_external_id(&Journal::key(name)).is_some()
}

impl Underlay {
    /// Both; whether they could be done.
    pub(super) async fn gateways(&mut self, labels: &BTreeMap<String, String>) -> bool {
        let done = match self.interconnection(is_true(labels, crds::keys::IC_GW_LABEL)).await {
            Ok(()) => self.external_gateway(is_true(labels, crds::keys::EXTERNAL_GW_LABEL)).await,
            Err(reason) => Err(reason),
        };
        let said = done.as_ref().err().map(ToString::to_string);
        if said != self.gateway_told
            && let Some(message) = &said
        {
            tracing::warn!(message, "this node can't be a gateway");
            let node = ObjectRef::node(&self.parts.node, &self.parts.node);
            self.parts.recorder.record(node, EventType::Warning, "ExternalGatewayFailed", message.clone());
        }
        self.gateway_told = said;
        done.is_ok()
    }

    /// Nothing is written when it is so already.
    async fn interconnection(&self, on: bool) -> Result<(), NotYet> {
        let ids = BTreeMap::from([(INTERCONNECTION.to_owned(), on.to_string())]);
        self.change(|view| plan::set_root_external_ids(view, &ids)).await
    }

    async fn external_gateway(&self, on: bool) -> Result<(), NotYet> {
        let switch = self.flags.external_gateway_switch.as_str();
        let own = crds::names::provider_bridge(switch);
        if !on {
            return self.leave_gateway(switch, &own).await;
        }
        let config = self.parts.cluster.external_gateway.get();
        if !config.synced {
            return Ok(());
        }
        let nic = config.objects.values().next().map(|config| config.nic.clone()).unwrap_or_default();
        if nic.is_empty() {
            return Err(not_yet(
                "the node is labelled as external gateway, but no NIC is named",
                "set key external-gw-nic of ConfigMap ovn-external-gw-config",
            ));
        }
        let view = self.parts.ovs.view();
        let holder =
            view.port(&nic).and_then(|port| view.bridge_of_port(&port.uuid)?.str("name").map(str::to_owned));
        let bridge = match holder {
            Some(holder) if is_provider_bridge(&view, &holder) => holder,
            Some(holder) if holder != own => {
                return Err(not_yet(
                    format!("interface {nic} is a port of bridge {holder}, which is somebody else's"),
                    "name another interface in ConfigMap ovn-external-gw-config, or take it out of that bridge",
                ));
            }
            holder => {
                self.own_bridge(&own, &nic, holder.is_some()).await?;
                own.clone()
            }
        };
        if bridge != own {
            self.drop_bridge(&own).await?;
        }
        let edit = |now: &dyn Fn(&str) -> Option<String>| {
            let list = now(BRIDGES).unwrap_or_default();
            vec![(BRIDGES.to_owned(), Some(mappings::with(&list, switch, &bridge)))]
        };
        self.change(|view| plan::edit_root_external_ids(view, edit)).await
    }

    /// The bridge with the NIC, whose addresses do not move.
    async fn own_bridge(&self, bridge: &str, nic: &str, attached: bool) -> Result<(), NotYet> {
        let view = self.parts.ovs.view();
        if is_provider_bridge(&view, bridge) || is_network(&view, &self.flags.external_gateway_switch) {
            return Err(not_yet(
                format!("bridge {bridge} belongs to the provider network of that name"),
                "rename the provider network, or let --external-gateway-switch name another switch",
            ));
        }
        let switch = self.flags.external_gateway_switch.as_str();
        let ours = is_marked(&view, bridge) || is_unmarked_but_ours(&view, switch, bridge);
        if view.bridge(bridge).is_some() && !ours {
            return Err(not_yet(
                format!("bridge {bridge} was made by somebody else"),
                "rename that bridge, or let --external-gateway-switch name another switch",
            ));
        }
        let Some(link) = self.link(nic).await? else {
            return Err(not_yet(
                format!("this node has no interface {nic}"),
                "correct key external-gw-nic of ConfigMap ovn-external-gw-config",
            ));
        };
        if !attached && !self.load(link.index).await?.addresses.is_empty() {
            return Err(not_yet(
                format!("interface {nic} has addresses, which would be lost"),
                "use an interface without addresses, or make a ProviderNetwork of it, which keeps them",
            ));
        }
        if !link.up {
            self.parts.host.netlink.set_up(link.index).await.map_err(|error| super::host_failed(&error))?;
        }
        let userspace = view.is_userspace();
        if userspace {
            let off = self.parts.host.ethtool.tx_checksum_off(nic);
            off.map_err(|error| not_yet(format!("checksum offload of {nic}: {error}"), ""))?;
        }
        let spec = BridgeSpec {
            name: bridge.to_owned(),
            datapath_type: if userspace { "netdev" } else { "" }.to_owned(),
            external_ids: BTreeMap::from([
                ("vendor".to_owned(), crds::keys::VENDOR.to_owned()),
                (MARK.to_owned(), "true".to_owned()),
            ]),
            ..BridgeSpec::default()
        };
        let port = PortSpec { bridge: bridge.to_owned(), name: nic.to_owned(), ..PortSpec::default() };
        self.change(|view| plan::ensure_bridge(view, &spec)).await?;
        // The NIC of before.
        let others: Vec<String> = self.parts.ovs.view().port_names(bridge).into_iter().collect();
        for other in others {
            let kind = self.parts.ovs.view().interface(&other).map(|port| port.kind().to_owned());
            if other != nic && kind.as_deref() == Some("") {
                self.change(|view| Ok(plan::remove_port(view, &other))).await?;
            }
        }
        self.change(|view| plan::ensure_port(view, &port)).await
    }

    /// The external gateway leaves this node: our bridge and our mapping.
    pub(super) async fn leave_gateway(&self, switch: &str, own: &str) -> Result<(), NotYet> {
        let view = self.parts.ovs.view();
        let list = view.root_external_id(BRIDGES).unwrap_or_default();
        let mapped = mappings::get(list, switch).map(str::to_owned);
        // A provider network may have the switch's name.
        let ours = mapped.as_deref().filter(|_| !is_network(&view, switch)).is_some_and(|bridge| {
            is_marked(&view, bridge)
                || is_unmarked_but_ours(&view, switch, bridge)
                || (is_provider_bridge(&view, bridge) && bridge != own)
                || view.bridge(bridge).is_none()
        });
        let drop = is_marked(&view, own) || is_unmarked_but_ours(&view, switch, own);
        self.change(|view| -> Result<_, PlanError> {
            let edit = |now: &dyn Fn(&str) -> Option<String>| {
                let list = now(BRIDGES).unwrap_or_default();
                vec![(BRIDGES.to_owned(), mappings::without(&list, switch))]
            };
            let mut operations = Vec::new();
            if ours {
                operations.extend(plan::edit_root_external_ids(view, edit)?);
            }
            if drop {
                operations.extend(plan::remove_bridge(view, own)?);
            }
            Ok(operations)
        })
        .await
    }

    async fn drop_bridge(&self, bridge: &str) -> Result<(), NotYet> {
        if !is_marked(&self.parts.ovs.view(), bridge) {
            return Ok(());
        }
        self.change(|view| plan::remove_bridge(view, bridge)).await
    }
}
