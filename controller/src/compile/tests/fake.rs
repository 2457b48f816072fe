//! A view without an engine: what a small cluster projects to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::facts::RowKey;
use crate::io::Config;
use crate::objects::StringMap;
use crate::view::{
    EipView, Interfaces, IpPoolView, KeptView, Lease, LeaseState, MachineView, NodeGate, NodeView, Overlay,
    PodView, PoolUsage, ProviderView, Selecting, Standing, SubnetView, UnitKey, Usage, View, VipView,
    VlanView, VpcView,
};

/// Which families the cluster has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Families {
    V4,
    V6,
    Dual,
}

impl Families {
    /// `v4`, `v6`, or both joined by a comma.
    pub(crate) fn pick(self, v4: &str, v6: &str) -> String {
        match self {
            Self::V4 => v4.into(),
            Self::V6 => v6.into(),
            Self::Dual => format!("{v4},{v6}"),
        }
    }
    pub(crate) fn v4<T: std::str::FromStr<Err: std::fmt::Debug>>(self, text: &str) -> Option<T> {
        (self != Self::V6).then(|| text.parse().unwrap())
    }
    pub(crate) fn v6<T: std::str::FromStr<Err: std::fmt::Debug>>(self, text: &str) -> Option<T> {
        (self != Self::V4).then(|| text.parse().unwrap())
    }
}

/// Flags as upstream's defaults (contract §8.1).
pub(crate) fn config(families: Families) -> Config {
    Config {
        cluster_router: "ovn-cluster".into(),
        node_switch: "join".into(),
        node_switch_cidr: families.pick("100.64.0.0/16", "fd00:100:64::/112").into(),
        node_switch_gateway: "".into(),
        default_ls: "ovn-default".into(),
        default_cidr: families.pick("10.16.0.0/16", "fd00:10:16::/112").into(),
        default_gateway: "".into(),
        default_exclude_ips: "".into(),
        default_gateway_check: true,
        external_gateway_switch: "external".into(),
        external_gateway_net: "external".into(),
        external_gateway_vlan: 0,
        bfd_min_tx: 100,
        bfd_min_rx: 100,
        bfd_detect_mult: 3,
        service_cluster_ip_range: families.pick("10.96.0.0/12", "fd00:10:96::/112").into(),
        network_type: "geneve".into(),
        pod_nic_type: "veth-pair".into(),
        enable_lb: true,
        enable_ecmp: false,
        port_security: false,
        keep_vm_ip: true,
        live_migration: true,
        ls_dnat_mod_dl_dst: true,
        ls_ct_skip_dst_lport_ips: true,
        node_local_dns_ip: "".into(),
        skip_conntrack_dst_cidrs: "".into(),
        northd_backoff_ms: 150,
        seed: 1,
        version: "v0.1.0".into(),
    }
}

/// What a Kube-OVN database of `claims::legacy` was made for.
pub(crate) fn default_vpc_spec() -> serde_json::Value {
    serde_json::json!({
        "staticRoutes": [{ "cidr": "10.0.0.0/8", "nextHopIP": "100.64.0.1" }],
        "policyRoutes": [{
            "priority": 100, "match": "ip4.src == 10.16.0.0/24", "action": "reroute", "nextHopIP": "172.16.0.1",
        }],
    })
}

/// The projections of a cluster.
pub(crate) struct Cluster {
    pub(crate) config: Config,
    pub(crate) pods: BTreeMap<(Arc<str>, Arc<str>), Arc<PodView>>,
    pub(crate) nodes: BTreeMap<Arc<str>, Arc<NodeView>>,
    pub(crate) subnets: BTreeMap<Arc<str>, Arc<SubnetView>>,
    pub(crate) vpcs: BTreeMap<Arc<str>, Arc<VpcView>>,
    pub(crate) namespaces: BTreeMap<Arc<str>, Arc<str>>,
    pub(crate) bindings: BTreeMap<Arc<str>, Arc<Vec<Arc<str>>>>,
    pub(crate) leases: BTreeMap<Arc<str>, LeaseState>,
    pub(crate) usage: BTreeMap<Arc<str>, Arc<Usage>>,
    pub(crate) interfaces: Option<Arc<Interfaces>>,
    pub(crate) machines: BTreeMap<Arc<str>, Arc<MachineView>>,
    pub(crate) pools: BTreeMap<Arc<str>, Arc<IpPoolView>>,
    pub(crate) vips: BTreeMap<Arc<str>, Arc<VipView>>,
    pub(crate) eips: BTreeMap<Arc<str>, Arc<EipView>>,
    pub(crate) peers: Arc<Vec<Arc<Lease>>>,
    pub(crate) vlans: BTreeMap<Arc<str>, Arc<VlanView>>,
    pub(crate) standing: Standing,
    pub(crate) kept: BTreeMap<Arc<str>, Arc<KeptView>>,
    pub(crate) orphans: BTreeMap<Arc<str>, Arc<str>>,
    pub(crate) others: BTreeMap<&'static str, Arc<str>>,
    pub(crate) active: Option<Arc<str>>,
    pub(crate) queriers: bool,
}

impl Cluster {
    /// Contract §10: node `n-1`, pod `a-0` in namespace `web`.
    pub(crate) fn worked_example(families: Families) -> Self {
        let mut cluster = Self {
            config: config(families),
            pods: BTreeMap::new(),
            nodes: BTreeMap::new(),
            subnets: BTreeMap::new(),
            vpcs: BTreeMap::new(),
            namespaces: [("web".into(), "ns-uid".into())].into(),
            bindings: [("web".into(), Arc::new(vec!["ovn-default".into()]))].into(),
            leases: BTreeMap::new(),
            usage: BTreeMap::new(),
            interfaces: None,
            machines: BTreeMap::new(),
            pools: BTreeMap::new(),
            vips: BTreeMap::new(),
            eips: BTreeMap::new(),
            peers: Arc::default(),
            vlans: BTreeMap::new(),
            standing: Standing::Unknown,
            kept: BTreeMap::new(),
            orphans: BTreeMap::new(),
            others: [("vlans", "vlan-uid".into()), ("bgp-confs", "bgp-uid".into())].into(),
            active: None,
            queriers: false,
        };
        let vpc = VpcView { uid: "vpc-uid".into(), ..VpcView::default() };
        cluster.vpcs.insert("ovn-cluster".into(), Arc::new(vpc));
        let join = families.pick("100.64.0.1", "fd00:100:64::1");
        let default = families.pick("10.16.0.1", "fd00:10:16::1");
        let (join_cidr, default_cidr) =
            (cluster.config.node_switch_cidr.to_string(), cluster.config.default_cidr.to_string());
        cluster.add_subnet("join", &join_cidr, &join, "ovn-cluster", true);
        cluster.add_subnet("ovn-default", &default_cidr, &default, "ovn-cluster", true);
        let node = NodeView {
            uid: "node-uid".into(),
            ipv4: families.v4("192.0.2.11"),
            ipv6: families.v6("2001:db8::11"),
            chassis: Some("chassis-1".into()),
            ready: true,
            silent: false,
            namesake: None,
        };
        cluster.nodes.insert("n-1".into(), Arc::new(node));
        cluster.hold("node-n-1", "join", families.v4("100.64.0.2"), families.v6("fd00:100:64::2"), 1);
        let pod = PodView {
            uid: "pod-uid".into(),
            node: "n-1".into(),
            wants_network: true,
            terminating: false,
            requests: StringMap::new(),
            owner: None,
            kept: StringMap::new(),
            networks: false,
        };
        cluster.pods.insert(("web".into(), "a-0".into()), Arc::new(pod));
        cluster.hold("a-0.web", "ovn-default", families.v4("10.16.0.5"), families.v6("fd00:10:16::5"), 5);
        for subnet in ["join", "ovn-default"] {
            let mut usage = Usage::default();
            if families != Families::V6 {
                (usage.v4_available, usage.v4_using) = (65532, 1);
                usage.v4_using_range = "x".into();
            }
            if families != Families::V4 {
                (usage.v6_available, usage.v6_using) = ((1 << 64) - 4, 1);
            }
            cluster.usage.insert(subnet.into(), Arc::new(usage));
        }
        cluster
    }

    /// Another subnet of the default VPC with a pod, routes of the default VPC's spec,
    /// a custom VPC with a subnet.
    pub(crate) fn add_more(&mut self) {
        self.add_subnet("sub1", "10.17.0.0/16", "10.17.0.1", "ovn-cluster", false);
        let view = self.subnet_mut("sub1");
        let spec = crds::SubnetSpec { private: true, enable_dhcp: true, ..(*view.spec).clone() };
        view.spec = Arc::new(spec);
        let vpc = VpcView { uid: "vpc-1-uid".into(), ..VpcView::default() };
        self.vpcs.insert("vpc-1".into(), Arc::new(vpc));
        self.add_subnet("sub2", "10.18.0.0/16", "10.18.0.1", "vpc-1", false);
        let pod = self.pods.values().next().expect("a pod").clone();
        self.pods.insert(("web".into(), "b-0".into()), pod);
        self.hold("b-0.web", "sub1", Some([10, 17, 0, 8].into()), None, 8);
        self.spec_of("ovn-cluster", default_vpc_spec());
    }

    /// Gives a VPC this spec.
    pub(crate) fn spec_of(&mut self, vpc: &str, spec: serde_json::Value) {
        let view = Arc::make_mut(self.vpcs.get_mut(vpc).expect("vpc"));
        view.spec = Arc::new(serde_json::from_value(spec).expect("a spec"));
    }

    fn add_subnet(&mut self, name: &str, cidr: &str, gateway: &str, vpc: &str, ours: bool) {
        let join = name == "join";
        let spec = crds::SubnetSpec {
            vpc: vpc.into(),
            default: ours && !join,
            protocol: crds::net::parse_dual_cidrs(cidr).unwrap().protocol().into(),
            cidr_block: cidr.into(),
            gateway: gateway.into(),
            exclude_ips: gateway.split(',').map(Into::into).collect(),
            provider: "ovn".into(),
            gateway_type: "distributed".into(),
            nat_outgoing: !join,
            enable_lb: (!join).then_some(true),
            ..Default::default()
        };
        let view = SubnetView {
            uid: format!("{name}-uid").into(),
            spec: Arc::new(spec),
            deleting: false,
            supported: true,
            external: false,
            invalid: None,
            problem: None,
            stays: false,
        };
        self.subnets.insert(name.into(), Arc::new(view));
    }

    pub(crate) fn hold(
        &mut self,
        port: &str,
        subnet: &str,
        v4: Option<std::net::Ipv4Addr>,
        v6: Option<std::net::Ipv6Addr>,
        mac: u8,
    ) {
        let lease = Lease {
            port: port.into(),
            subnet: subnet.into(),
            v4,
            v6,
            mac: format!("02:00:00:00:00:{mac:02x}").into(),
            owner: "uid".into(),
        };
        self.leases.insert(port.into(), LeaseState::Held(Arc::new(lease)));
    }

    /// Every unit of the cluster.
    pub(crate) fn units(&self) -> Vec<UnitKey> {
        let mut units = vec![UnitKey::Globals];
        units.extend(self.vpcs.keys().cloned().map(UnitKey::Vpc));
        units.extend(self.subnets.keys().cloned().map(UnitKey::Subnet));
        units.extend(self.nodes.keys().cloned().map(UnitKey::Node));
        units.extend(self.namespaces.keys().cloned().map(UnitKey::Namespace));
        units.extend(self.pods.keys().cloned().map(|(namespace, name)| UnitKey::Pod(namespace, name)));
        units
    }

    pub(crate) fn pod_mut(&mut self, namespace: &str, name: &str) -> &mut PodView {
        Arc::make_mut(self.pods.get_mut(&(namespace.into(), name.into())).expect("pod"))
    }
    pub(crate) fn node_mut(&mut self, name: &str) -> &mut NodeView {
        Arc::make_mut(self.nodes.get_mut(name).expect("node"))
    }
    pub(crate) fn subnet_mut(&mut self, name: &str) -> &mut SubnetView {
        Arc::make_mut(self.subnets.get_mut(name).expect("subnet"))
    }
}

impl View for Cluster {
    fn config(&self) -> &Config {
        &self.config
    }
    fn pod(&self, namespace: &str, name: &str) -> Option<Arc<PodView>> {
        self.pods.get(&(namespace.into(), name.into())).cloned()
    }
    fn node(&self, name: &str) -> Option<Arc<NodeView>> {
        self.nodes.get(name).cloned()
    }
    fn subnet(&self, name: &str) -> Option<Arc<SubnetView>> {
        self.subnets.get(name).cloned()
    }
    fn vpc(&self, name: &str) -> Option<Arc<VpcView>> {
        self.vpcs.get(name).cloned()
    }
    fn vpc_subnets(&self, vpc: &str) -> Arc<BTreeSet<Arc<str>>> {
        let subnets = self.subnets.iter().filter(|(_, view)| *view.spec.vpc == *vpc);
        Arc::new(subnets.map(|(name, _)| name.clone()).collect())
    }
    fn overlays(&self) -> Arc<Vec<Overlay>> {
        let served = self.subnets.iter().filter(|(_, view)| {
            view.supported && view.invalid.is_none() && *view.spec.vpc == *self.config.cluster_router
        });
        let overlays = served.map(|(name, view)| Overlay {
            name: name.clone(),
            nets: crds::net::parse_dual_cidrs(&view.spec.cidr_block).unwrap(),
            distributed: view.spec.gateway_type != "centralized" && *name != self.config.node_switch,
        });
        Arc::new(overlays.collect())
    }
    fn node_gate(&self) -> Arc<NodeGate> {
        let private = self.overlays();
        let private: Vec<_> = private.iter().filter(|o| self.subnets[&o.name].spec.private).collect();
        let v4 = self.nodes.values().filter_map(|node| node.ipv4).collect();
        let v6 = self.nodes.values().filter_map(|node| node.ipv6).collect();
        Arc::new(NodeGate {
            v4: private.iter().any(|o| o.nets.v4.is_some()).then_some(v4),
            v6: private.iter().any(|o| o.nets.v6.is_some()).then_some(v6),
        })
    }
    fn selected_nodes(&self, _: &Selecting) -> Arc<Vec<Arc<str>>> {
        Arc::new(self.nodes.keys().cloned().collect())
    }
    fn active_gateway(&self, _: &str) -> Option<Arc<str>> {
        self.active.clone()
    }
    fn had_querier(&self, _: &str) -> bool {
        self.queriers
    }
    fn row_uuid(&self, row: &RowKey) -> Option<Arc<str>> {
        Some(format!("uuid of {row}").into())
    }
    fn vip_ports(&self, _: &str) -> Arc<BTreeSet<Arc<str>>> {
        Arc::new(["a-0.web".into()].into())
    }
    fn namespace(&self, name: &str) -> Option<Arc<str>> {
        self.namespaces.get(name).cloned()
    }
    fn lease(&self, port: &str) -> LeaseState {
        self.leases.get(port).cloned().unwrap_or(LeaseState::None)
    }
    fn usage(&self, subnet: &str) -> Arc<Usage> {
        self.usage.get(subnet).cloned().unwrap_or_default()
    }
    fn node_names(&self) -> Arc<BTreeSet<Arc<str>>> {
        Arc::new(self.nodes.keys().cloned().collect())
    }
    fn namespace_subnets(&self, namespace: &str) -> Arc<Vec<Arc<str>>> {
        self.bindings.get(namespace).cloned().unwrap_or_default()
    }
    fn orphan_ip(&self, name: &str) -> Option<Arc<str>> {
        self.orphans.get(name).cloned()
    }
    fn other(&self, plural: &'static str, _: &str, name: &str) -> Option<Arc<str>> {
        self.others.get(plural).filter(|_| name != "gone").cloned()
    }
    fn machine(&self, _: &str, name: &str) -> Option<Arc<MachineView>> {
        self.machines.get(name).cloned()
    }
    fn interfaces(&self, _: &str, _: &str) -> Option<Arc<Interfaces>> {
        self.interfaces.clone()
    }
    fn ippool(&self, name: &str) -> Option<Arc<IpPoolView>> {
        self.pools.get(name).cloned()
    }
    fn pool_usage(&self, _: &str) -> Arc<PoolUsage> {
        Arc::default()
    }
    fn namespace_pools(&self, _: &str) -> Arc<Vec<Arc<str>>> {
        Arc::default()
    }
    fn vip(&self, name: &str) -> Option<Arc<VipView>> {
        self.vips.get(name).cloned()
    }
    fn provider_network(&self, _: &str) -> Option<Arc<ProviderView>> {
        None
    }
    fn ovn_eip(&self, name: &str) -> Option<Arc<EipView>> {
        self.eips.get(name).cloned()
    }
    fn peers(&self, _: &str) -> Arc<Vec<Arc<Lease>>> {
        self.peers.clone()
    }
    fn vlan(&self, name: &str) -> Option<Arc<VlanView>> {
        self.vlans.get(name).cloned()
    }
    fn standing(&self, _: &str, _: &str) -> Standing {
        self.standing.clone()
    }
    fn kept(&self, port: &str) -> Option<Arc<KeptView>> {
        self.kept.get(port).cloned()
    }
    fn has_column(&self, _: &str, _: &str) -> bool {
        true
    }
}
