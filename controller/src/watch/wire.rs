//! Lists and events as the API server writes them; the objects inside stay raw text.
//!
//! Flows in: JSON of a page or an event line. Flows out: its parts, borrowed.

use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
pub(super) struct Page<'a> {
    pub(super) metadata: PageMeta,
    #[serde(borrow)]
    pub(super) items: Option<Vec<&'a RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PageMeta {
    pub(super) resource_version: String,
    pub(super) r#continue: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct Line<'a> {
    pub(super) r#type: &'a str,
    #[serde(borrow)]
    pub(super) object: &'a RawValue,
}

#[derive(Deserialize)]
pub(super) struct VersionOnly {
    pub(super) metadata: PageMeta,
}

/// Answer of discovery for one group and version.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Discovery {
    pub(super) resources: Vec<Discovered>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Discovered {
    pub(super) name: String,
}

/// Percent-encodes a query value (continue tokens are base64).
pub(super) fn escape(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_a_query() {
        assert_eq!(escape("aZ09-_.~"), "aZ09-_.~");
        assert_eq!(escape("a+b/c="), "a%2Bb%2Fc%3D");
    }

    #[test]
    fn a_list_without_items_is_empty() {
        let page: Page<'_> =
            serde_json::from_str(r#"{"metadata":{"resourceVersion":"7"},"items":null}"#).unwrap();
        assert!(page.items.is_none() && page.metadata.r#continue.is_none());
        assert_eq!(page.metadata.resource_version, "7");
    }
}
