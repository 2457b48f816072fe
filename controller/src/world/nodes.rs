//! Nodes: their projections, and the indexes of names and addresses that subnets are
//! judged by.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::{ReadKey, Stored, World, project, providers};
use crate::objects::Node;

impl World {
    pub(super) fn set_node(&mut self, node: Arc<Node>) {
        let name = node.meta.name.clone();
        let view = project::node(&node, self.silent.contains(&name), self.namesakes.get(&name).cloned());
        let old = self.nodes.get(&name).map(|s| s.view.clone());
        let same = old.as_ref().is_some_and(|old| **old == view);
        let view = match old {
            Some(old) if same => old,
            _ => Arc::new(view),
        };
        let (labels, asks) = (node.meta.labels.clone(), providers::asks(&node.meta));
        let before = self.nodes.insert(name.clone(), Stored { object: node, view });
        let asked = before.as_ref().map(|before| providers::asks(&before.object.meta)).unwrap_or_default();
        self.providers.stale |= asked != asks;
        self.labels_stale |= before.is_none_or(|before| before.object.meta.labels != labels);
        if !same {
            self.changed.insert(ReadKey::Node(name.clone()));
            self.nodes_stale = true;
            self.want_node(&name);
        }
    }

    pub(super) fn remove_node(&mut self, name: &Arc<str>) {
        self.nodes.remove(name);
        self.labels_stale = true;
        self.changed.insert(ReadKey::Node(name.clone()));
        self.nodes_stale = true;
        self.want_node(name);
    }

    /// Once for a whole list: each time it takes as long as there are nodes.
    pub(super) fn index_nodes(&mut self) {
        if !std::mem::take(&mut self.nodes_stale) {
            return;
        }
        if self.node_names.len() != self.nodes.len()
            || self.nodes.keys().any(|n| !self.node_names.contains(n))
        {
            self.node_names = Arc::new(self.nodes.keys().cloned().collect());
            self.changed.insert(ReadKey::NodeNames);
            // Names of port groups are made of both.
            self.subnets_stale = true;
            self.find_namesakes();
        }
        let mut by_ip = BTreeMap::new();
        for (name, stored) in self.nodes.iter().rev() {
            let (v4, v6) = (stored.view.ipv4.map(IpAddr::V4), stored.view.ipv6.map(IpAddr::V6));
            by_ip.extend(v4.into_iter().chain(v6).map(|ip| (ip, name.clone())));
        }
        if by_ip != self.nodes_by_ip {
            self.node_ips = Arc::new(by_ip.keys().copied().collect());
            self.nodes_by_ip = by_ip;
            self.subnets_stale = true;
        }
    }

    /// Of two nodes with one name for port groups (contract, notation) the first by name has them.
    fn find_namesakes(&mut self) {
        let mut first: BTreeMap<String, Arc<str>> = BTreeMap::new();
        let mut found = BTreeMap::new();
        for name in self.nodes.keys() {
            let other = first.entry(crds::names::dot_form(name)).or_insert_with(|| name.clone());
            if other != name {
                found.insert(name.clone(), other.clone());
            }
        }
        let before = std::mem::replace(&mut self.namesakes, found);
        let names: BTreeSet<Arc<str>> = before.keys().chain(self.namesakes.keys()).cloned().collect();
        for name in names {
            if before.get(&name) == self.namesakes.get(&name) {
                continue;
            }
            if let Some(node) = self.nodes.get(&name).map(|stored| stored.object.clone()) {
                self.set_node(node);
            }
        }
    }
}
