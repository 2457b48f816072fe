//! Who wrote what to the API server, from its audit log.

use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};

use anyhow::Result;
use lab::state::Lab;
use serde_json::Value;

/// A position in the audit log.
pub struct Mark(u64);

/// One write, as the audit log has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The user, for instance `system:serviceaccount:kube-system:ovn`.
    pub user: String,
    /// `create`, `update`, `patch`, `delete`.
    pub verb: String,
    /// `resource/subresource namespace/name`.
    pub target: String,
    /// HTTP status.
    pub code: u64,
}

/// Users that are Weir: the controller's and the daemon's service accounts.
pub const WEIR_USERS: [&str; 2] =
    ["system:serviceaccount:kube-system:ovn", "system:serviceaccount:kube-system:kube-ovn-cni"];

/// The end of the log now.
pub fn mark(lab: &Lab) -> Result<Mark> {
    Ok(Mark(std::fs::metadata(lab.path("log/audit.json"))?.len()))
}

/// Writes of Weir since `mark`, Lease renewals left out.
pub fn weir_writes_since(lab: &Lab, mark: &Mark) -> Result<Vec<Write>> {
    let mut file = File::open(lab.path("log/audit.json"))?;
    file.seek(SeekFrom::Start(mark.0))?;
    let mut writes = Vec::new();
    for line in BufReader::new(file).lines() {
        // The last line may be half written.
        let Ok(entry) = serde_json::from_str::<Value>(&line?) else { continue };
        let text =
            |pointer: &str| entry.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let write = Write {
            user: text("/user/username"),
            verb: text("/verb"),
            target: format!(
                "{}/{} {}/{}",
                text("/objectRef/resource"),
                text("/objectRef/subresource"),
                text("/objectRef/namespace"),
                text("/objectRef/name")
            ),
            code: entry.pointer("/responseStatus/code").and_then(Value::as_u64).unwrap_or_default(),
        };
        let writes_something = matches!(write.verb.as_str(), "create" | "update" | "patch" | "delete");
        let lease = text("/objectRef/resource") == "leases";
        if writes_something && !lease && WEIR_USERS.contains(&write.user.as_str()) {
            writes.push(write);
        }
    }
    Ok(writes)
}
