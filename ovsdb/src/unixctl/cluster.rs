//! What a member of a raft cluster says of it (`cluster/status`).

use std::time::Duration;

use super::Error;
use super::daemon::unreadable;

/// What a member does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// It takes writes.
    Leader,
    /// It hands writes to the leader.
    Follower,
    /// It wants to become the leader.
    Candidate,
    /// What a newer server may say.
    Other(String),
}

/// A member's view of its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterStatus {
    /// Name of the database.
    pub database: String,
    /// Id of the cluster, as long as it is known; short ids are its beginnings.
    pub cluster_id: String,
    /// Id of this member.
    pub server_id: String,
    /// Its address within the cluster.
    pub address: String,
    /// Its membership: `cluster member`, `joining cluster`, `left cluster`, …
    pub status: String,
    /// What it does.
    pub role: Role,
    /// The term it is in.
    pub term: u64,
    /// The leader's short id, `self`, or `unknown`.
    pub leader: String,
    /// For whom it voted in this term, likewise.
    pub vote: String,
    /// How long followers wait for the leader.
    pub election_timer: Option<Duration>,
    /// First and next index of its log.
    pub log: (u64, u64),
    /// Entries that are not yet committed.
    pub not_committed: u64,
    /// Committed entries that are not yet applied.
    pub not_applied: u64,
    /// Members, this one included.
    pub servers: Vec<ClusterServer>,
}

/// A member as another sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterServer {
    /// Its short id.
    pub id: String,
    /// Its address within the cluster.
    pub address: String,
    /// Whether it is the one that was asked.
    pub is_self: bool,
    /// The next entry to send to it; told by a leader.
    pub next_index: Option<u64>,
    /// The last entry that it is known to have; told by a leader.
    pub match_index: Option<u64>,
    /// How long ago it was last heard of, by a leader that has heard of it.
    pub last_message: Option<Duration>,
}

impl ClusterStatus {
    /// Whether the member is of the cluster and knows a leader.
    pub fn has_leader(&self) -> bool {
        self.role == Role::Leader || !matches!(self.leader.as_str(), "unknown" | "")
    }

    /// Reads what `cluster/status` prints.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let field = |name: &str| {
            text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
        };
        let required =
            |name: &str| field(name).ok_or_else(|| unreadable(&format!("cluster/status ({name})"), text));
        let number = |name: &str| {
            required(name)?.parse::<u64>().map_err(|_| unreadable(&format!("cluster/status ({name})"), text))
        };
        // "abcd (abcd1234-…)": the long form, if there is one.
        let id = |value: &str| match value.split_once('(') {
            Some((_, long)) => long.trim_end_matches(')').to_owned(),
            None => value.to_owned(),
        };
        let milliseconds = |value: &str| value.parse().ok().map(Duration::from_millis);
        let log = field("Log").and_then(range).unwrap_or_default();
        let servers = text.lines().skip_while(|l| !l.starts_with("Servers:")).skip(1).filter_map(server);
        Ok(Self {
            database: required("Name")?.to_owned(),
            cluster_id: id(field("Cluster ID").unwrap_or_default()),
            server_id: id(required("Server ID")?),
            address: required("Address")?.to_owned(),
            status: required("Status")?.to_owned(),
            role: match required("Role")? {
                "leader" => Role::Leader,
                "follower" => Role::Follower,
                "candidate" => Role::Candidate,
                other => Role::Other(other.to_owned()),
            },
            term: number("Term")?,
            leader: required("Leader")?.to_owned(),
            vote: field("Vote").unwrap_or("unknown").to_owned(),
            election_timer: field("Election timer").and_then(milliseconds),
            log,
            not_committed: number("Entries not yet committed")?,
            not_applied: number("Entries not yet applied")?,
            servers: servers.collect(),
        })
    }
}

/// `[2, 15]`
fn range(text: &str) -> Option<(u64, u64)> {
    let (first, next) = text.strip_prefix('[')?.strip_suffix(']')?.split_once(',')?;
    Some((first.trim().parse().ok()?, next.trim().parse().ok()?))
}

/// `    abcd (abcd at tcp:1.2.3.4:6643) (self) next_index=2 match_index=14 last msg 12 ms ago`
fn server(line: &str) -> Option<ClusterServer> {
    let (id, rest) = line.strip_prefix(char::is_whitespace)?.trim_start().split_once(" (")?;
    let (place, rest) = rest.split_once(')')?;
    let (_, address) = place.split_once(" at ")?;
    let after = |key: &str| rest.split_once(key).and_then(|(_, v)| v.split_whitespace().next()?.parse().ok());
    Some(ClusterServer {
        id: id.to_owned(),
        address: address.to_owned(),
        is_self: rest.contains("(self)"),
        next_index: after("next_index="),
        match_index: after("match_index="),
        last_message: after("last msg ").map(Duration::from_millis),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEADER: &str = "1ba5
Name: OVN_Northbound
Cluster ID: 3bf1 (3bf1f3a5-a6ee-4ec6-b9d8-b8d1a4a0b0ce)
Server ID: 1ba5 (1ba57b7e-2b0c-4c8d-9b9f-4f5d7d3c1a10)
Address: tcp:10.0.0.1:6643
Status: cluster member
Role: leader
Term: 3
Leader: self
Vote: self

Last Election started 4433 ms ago, reason: timeout
Last Election won: 4432 ms ago
Election timer: 1000
Log: [2, 15]
Entries not yet committed: 1
Entries not yet applied: 0
Connections: ->0000 <-c0de <-0b0e
Disconnections: 0
Servers:
    1ba5 (1ba5 at tcp:10.0.0.1:6643) (self) next_index=5 match_index=14
    c0de (c0de at tcp:10.0.0.2:6643) next_index=15 match_index=14 last msg 12 ms ago
    0b0e (0b0e at ssl:[fd00::3]:6643)
";

    #[test]
    fn a_leaders_view() {
        let status = ClusterStatus::parse(LEADER).unwrap();
        assert_eq!(status.cluster_id, "3bf1f3a5-a6ee-4ec6-b9d8-b8d1a4a0b0ce");
        assert_eq!((status.role.clone(), status.term, status.log), (Role::Leader, 3, (2, 15)));
        assert_eq!((status.not_committed, status.not_applied), (1, 0));
        assert_eq!(status.election_timer, Some(Duration::from_secs(1)));
        assert!(status.has_leader());
        let [own, second, third] = status.servers.as_slice() else { panic!("{status:?}") };
        assert!(own.is_self && !second.is_self && !third.is_self);
        assert_eq!((own.match_index, second.match_index, third.match_index), (Some(14), Some(14), None));
        assert_eq!(second.last_message, Some(Duration::from_millis(12)));
        assert_eq!(third.address, "ssl:[fd00::3]:6643");
    }

    #[test]
    fn without_a_leader_and_without_sense() {
        let lost =
            LEADER.replace("Role: leader", "Role: candidate").replace("Leader: self", "Leader: unknown");
        let lost = ClusterStatus::parse(&lost).unwrap();
        assert_eq!((lost.role.clone(), lost.has_leader()), (Role::Candidate, false));
        for missing in ["Role: leader\n", "Term: 3\n", "Entries not yet applied: 0\n", "Server ID"] {
            let error = ClusterStatus::parse(&LEADER.replace(missing, "")).unwrap_err();
            assert!(error.to_string().contains("cluster/status"), "{error}");
        }
    }
}
