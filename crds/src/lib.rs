//! The vocabulary that all of Weir shares with Kubernetes: the 25 kinds of
//! `kubeovn.io/v1`, annotation and label keys, OVN names, and address arithmetic.
//!
//! No I/O and no policy here. Flow: the API server's JSON comes in through the
//! types of [`kinds`]; `names`, `keys` and `net` turn it into the strings that the
//! northbound database and pod annotations carry. [`schema`] holds the custom
//! resource definitions as data and prints them as YAML (`crds-gen`).
//!
//! Sections named in comments ("contract §…") are those of the behavioural
//! specification that Weir is built to.

#[macro_use]
mod object;
pub mod keys;
pub mod kinds;
pub mod names;
pub mod net;
pub mod schema;
pub mod yaml;

pub use kinds::*;
pub use object::{Kind, KindInfo, Scope};

/// API group of all kinds.
pub const GROUP: &str = "kubeovn.io";

/// The only served and stored version.
pub const VERSION: &str = "v1";

/// `apiVersion` of all kinds.
pub const API_VERSION: &str = "kubeovn.io/v1";
