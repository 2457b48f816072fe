//! Inputs and outputs of the pipeline core.
//!
//! The core is sans-I/O: `core.handle(now, Input) -> Vec<Output>`. The same code
//! runs under tokio in production (`run/`) and under the deterministic simulator
//! in tests (`sim/`).

use std::sync::Arc;

use ovsdb::{Operation, OperationResult, Replica, RowChange, Schema, TransactError};
use serde::Serialize;

use crate::facts::{EventFact, Kind, ObjectRef};
use crate::objects::Object;

/// What flags and environment decide (contract §8.1), after validation.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Config {
    /// `--cluster-router`.
    pub cluster_router: Arc<str>,
    /// `--node-switch` and its CIDR (dual string) and gateway (dual, maybe empty).
    pub node_switch: Arc<str>,
    pub node_switch_cidr: Arc<str>,
    pub node_switch_gateway: Arc<str>,
    /// `--default-ls`, CIDR, gateway, excludes.
    pub default_ls: Arc<str>,
    pub default_cidr: Arc<str>,
    pub default_gateway: Arc<str>,
    pub default_exclude_ips: Arc<str>,
    /// `--default-gateway-check`.
    pub default_gateway_check: bool,
    /// `--external-gateway-switch`: the external network of `enableExternal`.
    pub external_gateway_switch: Arc<str>,
    /// `--external-gateway-net` and `--external-gateway-vlanid`: the physical network of
    /// that switch where its Subnet names no Vlan.
    pub external_gateway_net: Arc<str>,
    pub external_gateway_vlan: u16,
    /// `--bfd-min-tx`, `--bfd-min-rx`, in milliseconds, and `--detect-mult`.
    pub bfd_min_tx: u32,
    pub bfd_min_rx: u32,
    pub bfd_detect_mult: u32,
    /// `--service-cluster-ip-range` (dual string).
    pub service_cluster_ip_range: Arc<str>,
    /// `--network-type`.
    pub network_type: Arc<str>,
    /// `--pod-nic-type`.
    pub pod_nic_type: Arc<str>,
    /// `--enable-lb`.
    pub enable_lb: bool,
    /// `--enable-ecmp`.
    pub enable_ecmp: bool,
    /// `--keep-vm-ip`: ports of virtual machines have the machine's name, and stay with it.
    pub keep_vm_ip: bool,
    /// `--enable-live-migration-optimize`.
    pub live_migration: bool,
    /// `--enable-port-security`: ports of pods accept only their own addresses, unless
    /// the pod opts out.
    pub port_security: bool,
    /// `--ls-dnat-mod-dl-dst`, `--ls-ct-skip-dst-lport-ips`.
    pub ls_dnat_mod_dl_dst: bool,
    pub ls_ct_skip_dst_lport_ips: bool,
    /// `--node-local-dns-ip`, comma list, may be empty.
    pub node_local_dns_ip: Arc<str>,
    /// `--skip-conntrack-dst-cidrs`.
    pub skip_conntrack_dst_cidrs: Arc<str>,
    /// `NB_Global options:northd-backoff-interval-ms`.
    pub northd_backoff_ms: u32,
    /// Seed of names and MACs that are drawn (random in production, fixed in tests).
    pub seed: u64,
    /// This controller's version, for `NB_Global external_ids:kube-ovn-version`.
    pub version: Arc<str>,
}

/// What happens to the controller.
#[derive(Clone, Debug)]
pub enum Input {
    /// A watch delivered an object (added or changed).
    Applied(Object),
    /// A watch delivered a deletion.
    Deleted(ObjectRef),
    /// A watch (re)listed: exactly these objects exist; all others of the kind are gone.
    Listed(Kind, Vec<Object>),
    /// The database session is connected and loaded (first time or after a resync).
    NbLoaded {
        /// Replica after the load.
        replica: Replica,
        /// What differs from the replica before (everything, the first time).
        changes: Vec<RowChange>,
        /// The server's schema.
        schema: Arc<Schema>,
    },
    /// The database changed.
    NbChanged {
        /// Replica after the change.
        replica: Replica,
        /// The change.
        changes: Vec<RowChange>,
    },
    /// The session is lost: transactions in flight have an unknown outcome.
    NbLost,
    /// A transaction was answered. Its own updates came before.
    NbReply {
        /// The tag given in [`Output::Transact`].
        tag: u64,
        /// The answer.
        result: Result<Vec<OperationResult>, TransactError>,
    },
    /// We are the leader; writing is allowed. The epoch token was written to
    /// `NB_Global.external_ids:weir-epoch` by us (through [`Output::Transact`]).
    Elected {
        /// Our token, unique per leadership.
        epoch: Arc<str>,
    },
    /// What was so when [`Output::Refresh`] was given with that number has been delivered.
    Fresh(Kind, u64),
    /// Leadership is lost or given up: nothing may be written any more.
    Deposed,
    /// A Kubernetes write was answered.
    KubeReply {
        /// The id given in [`Output::Kube`].
        id: u64,
        /// Outcome.
        result: Result<(), KubeError>,
    },
    /// The gateway nodes that give no answer now, all of them ([`crate::gateways`]).
    Silent(crate::gateways::Silent),
    /// Time passed (the deadline asked for by [`Output::WakeAt`]).
    Tick,
}

/// Why a Kubernetes write failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubeError {
    /// The object is gone, or another one has its name (UID precondition).
    Gone,
    /// It exists already (create).
    Exists,
    /// Anything that may pass: conflict, throttling, network, timeout.
    Retry(String),
    /// The API server refuses this content.
    Invalid(String),
}

/// A write to Kubernetes.
#[derive(Clone, Debug, PartialEq)]
pub enum KubeWrite {
    /// Merge patch of metadata/spec (`status` = false) or of the status subresource.
    Patch {
        /// The object.
        object: ObjectRef,
        /// UID that must match (`metadata.uid` is put into the patch).
        uid: Arc<str>,
        /// Patch the status subresource.
        status: bool,
        /// The merge patch without `metadata.uid`.
        patch: serde_json::Value,
    },
    /// Create an object (cluster-scoped kubeovn.io kinds).
    Create {
        /// The object.
        object: ObjectRef,
        /// Its content.
        body: serde_json::Value,
    },
    /// Delete with a UID precondition.
    Delete {
        /// The object.
        object: ObjectRef,
        /// UID that must match.
        uid: Arc<str>,
    },
}

/// What the core asks for.
#[derive(Clone, Debug)]
pub enum Output {
    /// Send a transaction to the northbound database. The first operation is the
    /// epoch fence.
    Transact {
        /// Comes back in [`Input::NbReply`].
        tag: u64,
        /// The operations.
        operations: Vec<Operation>,
    },
    /// Send a write to Kubernetes. A bounded number is in flight.
    Kube {
        /// Comes back in [`Input::KubeReply`].
        id: u64,
        /// The write.
        write: KubeWrite,
    },
    /// Record an event (best effort, never answered).
    Event(EventFact),
    /// Call again with [`Input::Tick`] at this time (milliseconds since the start).
    WakeAt(u64),
    /// List a kind anew, and say so by [`Input::Fresh`] behind the list. The number is
    /// higher each time.
    Refresh(Kind, u64),
    /// The fence refused us: stop writing, look at the Lease, exit.
    Fenced,
}
