//! The CNI executable `kube-ovn` as a library, and the types it shares with the node agent ([`api`]).

pub mod api;
