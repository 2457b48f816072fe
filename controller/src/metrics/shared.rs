//! State shared between the loop around the core and those who look at it: probes,
//! metrics, diagnostics, the southbound session.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::chassis::{NodeChassis, Nodes};
use crate::core::Counters;
use crate::facts::Kind;
use crate::io::Input;
use crate::objects::{Ip, Node, Object, Subnet};

/// What the loop around the core publishes after every batch.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The core's numbers.
    pub counters: Counters,
    /// Every watch and the database are loaded, as the core sees it.
    pub ready: bool,
    /// The core writes.
    pub leading: bool,
    /// We hold the Lease.
    pub elected: bool,
    /// Transactions in flight.
    pub transactions_in_flight: usize,
    /// Kubernetes writes in flight or queued.
    pub writes_in_flight: usize,
    /// How long the input handled last had waited.
    pub lag: Duration,
    /// When the loop published this.
    pub at: Option<Instant>,
}

/// State shared between the loop and those who look at it.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    snapshot: Arc<Mutex<Snapshot>>,
    pub(super) subnets: Arc<Mutex<BTreeMap<Arc<str>, Arc<Subnet>>>>,
    pub(super) ips: Arc<Mutex<BTreeMap<Arc<str>, Arc<Ip>>>>,
    database: Arc<Mutex<Database>>,
    holder: Arc<Mutex<String>>,
    southbound: Arc<Mutex<Southbound>>,
    nodes: Arc<watch::Sender<Option<Arc<Nodes>>>>,
}

/// The southbound session as diagnostics see it.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Southbound {
    /// Connected and loaded.
    pub synced: bool,
    /// The server in use.
    pub endpoint: Option<String>,
    /// Why the last connection ended.
    pub last_error: Option<String>,
    /// Chassis in the database.
    pub chassis: usize,
    /// Chassis deleted since the start.
    pub removed: u64,
    /// Chassis that several nodes have announced.
    pub conflicts: Vec<String>,
}

/// The database session as diagnostics see it.
#[derive(Clone, Debug, Default)]
pub struct Database {
    /// Connected and loaded.
    pub synced: bool,
    /// The server in use.
    pub endpoint: Option<String>,
    /// Why the last connection ended.
    pub last_error: Option<String>,
    /// Connections so far.
    pub connections: u64,
    /// Losses of sync so far.
    pub resyncs: u64,
    /// Columns the server lacks.
    pub missing: Vec<String>,
}

impl Shared {
    /// The latest snapshot.
    pub fn snapshot(&self) -> Snapshot {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Publishes a snapshot.
    pub fn publish(&self, snapshot: Snapshot) {
        *self.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = snapshot;
    }

    /// The database session.
    pub fn database(&self) -> Database {
        self.database.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes what is known of the database session.
    pub fn set_database(&self, change: impl FnOnce(&mut Database)) {
        change(&mut self.database.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Who holds the Lease, as seen last; empty when nobody does.
    pub fn holder(&self) -> String {
        self.holder.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes who holds the Lease.
    pub fn set_holder(&self, holder: &str) {
        holder.clone_into(&mut self.holder.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The southbound session.
    pub fn southbound(&self) -> Southbound {
        self.southbound.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes what is known of the southbound session.
    pub fn set_southbound(&self, change: impl FnOnce(&mut Southbound)) {
        change(&mut self.southbound.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Looks at the subnets.
    pub fn with_subnets<T>(&self, look: impl FnOnce(&BTreeMap<Arc<str>, Arc<Subnet>>) -> T) -> T {
        look(&self.subnets.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Nodes and their chassis, `None` until they are listed.
    pub fn nodes(&self) -> watch::Receiver<Option<Arc<Nodes>>> {
        self.nodes.subscribe()
    }

    /// Follows nodes for their chassis. Whoever waits is told of differences only.
    fn observe_nodes(&self, input: &Input) {
        let of = |node: &Node| NodeChassis {
            uid: node.meta.uid.clone(),
            chassis: node.meta.annotations.get(crds::keys::CHASSIS).filter(|c| !c.is_empty()).cloned(),
            join: node.meta.annotations.get(crds::keys::IP_ADDRESS).cloned().unwrap_or_default(),
        };
        let change = |change: &dyn Fn(&mut Nodes)| {
            self.nodes.send_if_modified(|nodes| {
                let Some(old) = nodes else { return false };
                let mut new = (**old).clone();
                change(&mut new);
                let differs = new != **old;
                if differs {
                    *nodes = Some(Arc::new(new));
                }
                differs
            });
        };
        match input {
            Input::Applied(Object::Node(node)) => {
                let known = self.nodes.borrow().as_ref().and_then(|all| all.get(&node.meta.name).cloned());
                if known != Some(of(node)) {
                    change(&|all| drop(all.insert(node.meta.name.clone(), of(node))));
                }
            }
            Input::Deleted(object) if object.kind == Kind::Node => {
                change(&|all| drop(all.remove(&object.name)));
            }
            Input::Listed(Kind::Node, objects) => {
                let all = objects.iter().filter_map(|object| match object {
                    Object::Node(node) => Some((node.meta.name.clone(), of(node))),
                    _ => None,
                });
                self.nodes.send_replace(Some(Arc::new(all.collect())));
            }
            _ => {}
        }
    }

    /// Follows IP objects for the addresses of pods.
    fn observe_ips(&self, input: &Input) {
        let ips = || self.ips.lock().unwrap_or_else(PoisonError::into_inner);
        match input {
            Input::Applied(Object::Ip(ip)) => drop(ips().insert(ip.meta.name.clone(), ip.clone())),
            Input::Deleted(object) if object.kind == Kind::Ip => drop(ips().remove(&object.name)),
            Input::Listed(Kind::Ip, objects) => {
                let all = objects.iter().filter_map(|object| match object {
                    Object::Ip(ip) => Some((ip.meta.name.clone(), ip.clone())),
                    _ => None,
                });
                *ips() = all.collect();
            }
            _ => {}
        }
    }

    /// Follows subnets for their address counts, and nodes for their chassis.
    pub fn observe(&self, input: &Input) {
        self.observe_nodes(input);
        self.observe_ips(input);
        let mut subnets = self.subnets.lock().unwrap_or_else(PoisonError::into_inner);
        match input {
            Input::Applied(Object::Subnet(subnet)) => {
                subnets.insert(subnet.meta.name.clone(), subnet.clone());
            }
            Input::Deleted(object) if object.kind == Kind::Subnet => {
                subnets.remove(&object.name);
            }
            Input::Listed(Kind::Subnet, objects) => {
                *subnets = objects
                    .iter()
                    .filter_map(|object| match object {
                        Object::Subnet(subnet) => Some((subnet.meta.name.clone(), subnet.clone())),
                        _ => None,
                    })
                    .collect();
            }
            _ => {}
        }
    }
}
