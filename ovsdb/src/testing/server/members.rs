//! Objects of the wire, member by member.

use std::collections::BTreeSet;

use serde_json::{Map, Value as Json};

use crate::error::TransactError;
use crate::testing::evaluate::other;

type Result<T> = std::result::Result<T, TransactError>;

pub(super) fn syntax(details: impl Into<String>) -> TransactError {
    other("syntax error", details)
}

/// The members of an object, each to be taken once.
pub(super) struct Members<'a> {
    what: &'static str,
    object: &'a Map<String, Json>,
    taken: BTreeSet<&'static str>,
}

impl<'a> Members<'a> {
    pub(super) fn new(what: &'static str, json: &'a Json) -> Result<Self> {
        let object = json.as_object().ok_or_else(|| syntax(format!("{what}: object expected")))?;
        Ok(Self { what, object, taken: BTreeSet::new() })
    }
    /// A member that may be missing.
    pub(super) fn optional<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&'a Json) -> Option<T>,
    ) -> Result<Option<T>> {
        self.taken.insert(name);
        let Some(json) = self.object.get(name) else { return Ok(None) };
        let mismatch = || syntax(format!("{}: type mismatch for member {name}", self.what));
        read(json).map(Some).ok_or_else(mismatch)
    }
    /// A member that must be there.
    pub(super) fn required<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&'a Json) -> Option<T>,
    ) -> Result<T> {
        let what = self.what;
        let missing = || syntax(format!("{what}: required member {name} is missing"));
        self.optional(name, read)?.ok_or_else(missing)
    }
    /// No other member may be there.
    pub(super) fn end(self) -> Result<()> {
        match self.object.keys().find(|key| !self.taken.contains(key.as_str())) {
            None => Ok(()),
            Some(key) => Err(syntax(format!("{}: member {key} is not allowed here", self.what))),
        }
    }
}

/// Whether text is an `<id>` of RFC 7047 §3.1.
pub(super) fn is_id(text: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    text.bytes().all(word) && text.bytes().next().is_some_and(|b| !b.is_ascii_digit())
}

pub(super) fn id(json: &Json) -> Option<&str> {
    json.as_str().filter(|text| is_id(text))
}
