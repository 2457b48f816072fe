//! A raft cluster of real ovsdb-servers on this machine.

use std::path::Path;
use std::time::{Duration, Instant};

use super::server::{PATIENCE, Place, Server};
use super::{RealError, Root, io};
use crate::endpoint::Endpoint;
use crate::replica::Replica;

/// Pause between looks at something that is to come.
const GLANCE: Duration = Duration::from_millis(10);

/// A clustered database: one ovsdb-server per member, each with directory, sockets
/// and log of its own, so that clusters of parallel tests never meet. All end, and
/// leave nothing, when it is dropped.
///
/// ```no_run
/// use ovsdb::testing::real::Cluster;
/// # fn demo() -> Result<(), ovsdb::testing::real::RealError> {
/// let mut cluster = Cluster::northbound(3)?;
/// let old = cluster.wait_leader()?;
/// let new = cluster.transfer_leadership()?;
/// assert_ne!(old, new);
/// cluster.member_mut(new).kill();
/// let third = cluster.wait_leader()?;
/// cluster.member_mut(new).resume()?;
/// cluster.wait_connected(new)?;
/// println!("{} rows", cluster.dump(third)?.row_count());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Cluster {
    database: String,
    members: Vec<Server>,
}

/// What a member says of itself (`cluster/status`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its server id.
    pub sid: String,
    /// `cluster member`, `joining cluster`, `leaving cluster`, …
    pub status: String,
    /// `leader`, `follower` or `candidate`.
    pub role: String,
    /// The raft term that it is in.
    pub term: u64,
    /// Addresses of the members that it knows.
    pub addresses: Vec<String>,
}

impl MemberStatus {
    fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        // `    a1b2 (a1b2 at tcp:1.2.3.4:6643) …`
        let servers = text.lines().skip_while(|l| !l.starts_with("Servers:")).skip(1);
        let address = |line: &str| Some(line.split_once(" at ")?.1.split_once(')')?.0.to_owned());
        Some(Self {
            sid: field("Server ID:")?.split_once('(')?.1.trim_end_matches(')').to_owned(),
            status: field("Status:")?.to_owned(),
            role: field("Role:")?.to_owned(),
            term: field("Term:")?.parse().ok()?,
            addresses: servers.filter_map(address).collect(),
        })
    }
}

impl Cluster {
    /// A northbound database with so many members, on unix sockets.
    pub fn northbound(members: usize) -> Result<Self, RealError> {
        Self::start(&Root::from_env()?.northbound_schema()?, members)
    }

    /// A database of this schema file with so many members, on unix sockets.
    pub fn start(schema: &Path, members: usize) -> Result<Self, RealError> {
        Self::start_at(schema, vec![Place::default(); members], None)
    }

    /// A database of this schema file with a member in each place. The election
    /// timer is ovsdb-server's own (one second) if not given.
    pub fn start_at(
        schema: &Path,
        places: Vec<Place>,
        election_timer: Option<Duration>,
    ) -> Result<Self, RealError> {
        let text = std::fs::read_to_string(schema).map_err(io(schema.display()))?;
        let parsed = crate::Schema::parse_str(&text).map_err(|e| RealError::Failed(e.to_string()))?;
        let mut cluster = Self { database: parsed.name, members: Vec::new() };
        for place in places {
            if cluster.members.is_empty() {
                cluster.members.push(Server::first_member(schema, place, election_timer)?);
                cluster.wait_leader()?;
            } else {
                cluster.join(place)?;
            }
        }
        Ok(cluster)
    }

    /// The database's name.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// Number of members, running or not.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether all members were removed.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Where clients connect, by member.
    pub fn endpoints(&self) -> Vec<Endpoint> {
        self.members.iter().map(Server::endpoint).collect()
    }

    /// A member.
    ///
    /// # Panics
    /// If there is no such member.
    pub fn member(&self, index: usize) -> &Server {
        &self.members[index]
    }

    /// A member to kill, stop, pause or resume.
    ///
    /// # Panics
    /// If there is no such member.
    pub fn member_mut(&mut self, index: usize) -> &mut Server {
        &mut self.members[index]
    }

    /// The member at this endpoint.
    pub fn position(&self, endpoint: &Endpoint) -> Option<usize> {
        self.members.iter().position(|m| m.endpoint() == *endpoint)
    }

    /// What a member says of itself.
    pub fn status(&self, index: usize) -> Result<MemberStatus, RealError> {
        let text = self.members[index].control("cluster/status", &[&self.database])?;
        MemberStatus::parse(&text).ok_or_else(|| RealError::Failed(format!("unreadable status: {text}")))
    }

    /// The leader: of the running members that say they lead the one of the newest
    /// term (a leader that is cut off does not know better for a while).
    pub fn leader(&mut self) -> Option<usize> {
        let running: Vec<usize> = (0..self.len()).filter(|&i| self.members[i].is_running()).collect();
        let statuses = running.into_iter().filter_map(|i| Some((i, self.status(i).ok()?)));
        let leaders = statuses.filter(|(_, s)| s.role == "leader");
        leaders.max_by_key(|(_, s)| s.term).map(|(i, _)| i)
    }

    /// Waits for a leader.
    pub fn wait_leader(&mut self) -> Result<usize, RealError> {
        self.wait("a leader", Self::leader)
    }

    /// Waits until a member takes part in the cluster and its clients may use it.
    pub fn wait_connected(&self, index: usize) -> Result<(), RealError> {
        let member = &self.members[index];
        let socket = format!("unix:{}", member.socket().display());
        let args = ["--timeout=30", "wait", &socket, &self.database, "connected"];
        member.root().run("usr/bin/ovsdb-client", member.directory(), &args).map(drop)
    }

    /// Makes the leader hand over to another member, without an election timeout;
    /// the new leader.
    pub fn transfer_leadership(&mut self) -> Result<usize, RealError> {
        let old = self.wait_leader()?;
        self.wait("another leader", |cluster| {
            match cluster.leader() {
                Some(new) if new != old => return Some(new),
                // The one it chose may have been unable to take over: ask again.
                Some(_) => {
                    drop(cluster.members[old].control("cluster/failure-test", &["transfer-leadership"]))
                }
                None => {}
            }
            None
        })
    }

    /// Adds a member and waits until it takes part; its index.
    pub fn join(&mut self, place: Place) -> Result<usize, RealError> {
        let remotes: Vec<String> = self.members.iter().map(Server::raft_address).collect();
        self.members.push(Server::joining(&self.database, place, &remotes)?);
        let index = self.len() - 1;
        self.wait_connected(index)?;
        Ok(index)
    }

    /// A member leaves of its own accord, then ends; those after it move up.
    pub fn leave(&mut self, index: usize) -> Result<(), RealError> {
        self.members[index].control("cluster/leave", &[&self.database])?;
        let address = self.members[index].raft_address();
        self.wait("the member to leave", |cluster| cluster.is_unknown(index, &address))?;
        self.members.remove(index);
        Ok(())
    }

    /// Takes a member away for good: its process, its database, its address. The
    /// others are told nothing ([`Self::kick`]). Those after it move up.
    pub fn lose(&mut self, index: usize) -> Lost {
        let member = self.members.remove(index);
        Lost { address: member.raft_address() }
    }

    /// Removes a lost member from the list of members, by way of the leader, and
    /// waits until every running member has taken it off its list.
    pub fn kick(&mut self, lost: &Lost) -> Result<(), RealError> {
        self.wait("the lost member to be taken off the lists", |cluster| {
            let leader = cluster.leader()?;
            // Refused while another change of members is under way, or by an old leader.
            let _ = cluster.members[leader].control("cluster/kick", &[&cluster.database, &lost.address]);
            cluster.is_unknown(usize::MAX, &lost.address)
        })
    }

    /// Whether no running member but `except` lists an address.
    fn is_unknown(&mut self, except: usize, address: &str) -> Option<()> {
        for index in (0..self.len()).filter(|&i| i != except) {
            if self.members[index].is_running()
                && self.status(index).ok()?.addresses.iter().any(|a| a == address)
            {
                return None;
            }
        }
        Some(())
    }

    /// Everything in the database, as one member has it. A follower may be behind.
    pub fn dump(&self, index: usize) -> Result<Replica, RealError> {
        self.members[index].dump(&self.database)
    }

    fn wait<T>(&mut self, what: &str, mut look: impl FnMut(&mut Self) -> Option<T>) -> Result<T, RealError> {
        let begin = Instant::now();
        loop {
            if let Some(found) = look(self) {
                return Ok(found);
            }
            if begin.elapsed() > PATIENCE {
                let logs: Vec<String> = self.members.iter().map(Server::log).collect();
                return Err(RealError::Failed(format!(
                    "waited in vain for {what}:\n{}",
                    logs.join("\n---\n")
                )));
            }
            std::thread::sleep(GLANCE);
        }
    }
}

/// A member that is gone for good, see [`Cluster::lose`].
#[derive(Clone, Debug)]
pub struct Lost {
    /// Where it was.
    pub address: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_members_say() {
        let text = "1279\nName: OVN_Northbound\nCluster ID: 0a56 (0a56b6bd-2502-495d-ab1c-d49beed4d578)\nServer ID: 1279 (12794150-ceb8-47c8-9c9a-7dd58e3e3913)\nAddress: unix:/t/a/db.raft\nStatus: cluster member\nRole: follower\nTerm: 12\nLeader: 77aa\n\nConnections: ->77aa <-77aa\nServers:\n    1279 (1279 at unix:/t/a/db.raft) (self)\n    77aa (77aa at tcp:[::1]:6643) last msg 37 ms ago\n";
        let status = MemberStatus::parse(text).unwrap();
        assert_eq!(status.sid, "12794150-ceb8-47c8-9c9a-7dd58e3e3913");
        assert_eq!((&*status.status, &*status.role, status.term), ("cluster member", "follower", 12));
        assert_eq!(status.addresses, ["unix:/t/a/db.raft", "tcp:[::1]:6643"]);
        assert_eq!(MemberStatus::parse("Term: x"), None);
    }
}
