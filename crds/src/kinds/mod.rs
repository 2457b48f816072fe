//! The kinds of `kubeovn.io/v1` as Rust types.
//!
//! JSON names are exactly the original API's, odd spellings included. Types say
//! what a field can hold; what it means, its defaults and its validation are the
//! business of the unit that acts on the kind.

mod common;
mod ip;
mod subnet;
mod vpc;

pub use common::*;
pub use ip::*;
pub use subnet::*;
pub use vpc::*;
