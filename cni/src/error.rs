//! The error that the executable prints for the runtime: a code of the CNI specification, a message, and details that
//! say what a person can do.

use serde::Serialize;
use std::fmt;

/// Error codes of the CNI specification, as far as we answer them.
pub mod code {
    /// The configuration's version is not supported, or has no such verb.
    pub const INCOMPATIBLE_VERSION: u32 = 1;
    /// A variable in the environment is missing or unusable.
    pub const INVALID_ENVIRONMENT: u32 = 4;
    /// Reading or writing failed.
    pub const IO_FAILURE: u32 = 5;
    /// The configuration or an answer is no JSON of the right shape.
    pub const DECODING_FAILURE: u32 = 6;
    /// The configuration lacks something or contradicts itself.
    pub const INVALID_CONFIG: u32 = 7;
    /// The pod's namespace is the one that the plugin itself runs in.
    pub const INVALID_NETNS: u32 = 8;
    /// Passing trouble: the runtime shall try again.
    pub const TRY_AGAIN: u32 = 11;
    /// STATUS: ADD can't be served now.
    pub const NOT_AVAILABLE: u32 = 50;
    /// STATUS: ADD can't be served now, and pods that exist may have limited connectivity.
    pub const LIMITED: u32 = 51;
    /// Anything else (first code free for plugins is 100; the reference library uses this one).
    pub const INTERNAL: u32 = 999;
}

/// A failure as the runtime gets it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CniError {
    /// One of [`code`], or what the agent chose.
    pub code: u32,
    /// One short sentence.
    pub msg: String,
    /// The circumstances and, after them, the remedy.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub details: String,
}

impl CniError {
    /// An error without details.
    pub fn new(code: u32, msg: impl Into<String>) -> Self {
        Self { code, msg: msg.into(), details: String::new() }
    }

    /// The same with details.
    #[must_use]
    pub fn details(mut self, details: impl Into<String>) -> Self {
        self.details = details.into();
        self
    }

    /// The same with what to do appended to the details.
    #[must_use]
    pub fn remedy(mut self, remedy: &str) -> Self {
        if !remedy.is_empty() {
            if !self.details.is_empty() {
                self.details.push_str("; ");
            }
            self.details.push_str("remedy: ");
            self.details.push_str(remedy);
        }
        self
    }

    /// The JSON object for standard output.
    pub fn to_json(&self, cni_version: &str) -> String {
        #[derive(Serialize)]
        struct Printed<'a> {
            #[serde(rename = "cniVersion")]
            cni_version: &'a str,
            #[serde(flatten)]
            error: &'a CniError,
        }
        // Strings and numbers only: this can't fail.
        serde_json::to_string(&Printed { cni_version, error: self }).unwrap_or_default()
    }
}

impl fmt::Display for CniError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (code {})", self.msg, self.code)?;
        if !self.details.is_empty() {
            write!(f, ": {}", self.details)?;
        }
        Ok(())
    }
}

impl std::error::Error for CniError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_the_specs_object() {
        let error = CniError::new(code::TRY_AGAIN, "RPC failed").details("no answer").remedy("wait");
        assert_eq!(
            error.to_json("0.3.1"),
            r#"{"cniVersion":"0.3.1","code":11,"msg":"RPC failed","details":"no answer; remedy: wait"}"#
        );
        assert_eq!(CniError::new(7, "m").to_json("1.0.0"), r#"{"cniVersion":"1.0.0","code":7,"msg":"m"}"#);
    }
}
