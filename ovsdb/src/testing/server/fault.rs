//! What can be made to go wrong.

use std::collections::{BTreeMap, VecDeque};

/// A fault that befalls one request, see [`super::MemoryServer::on`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection is lost before the request is looked at.
    DropBefore,
    /// The request is carried out, then the connection is lost: neither the reply nor
    /// the updates that it caused come to this client.
    DropAfter,
    /// The request is carried out, its updates come, and then the connection is
    /// lost instead of the reply.
    DropBeforeReply,
    /// The request is carried out and its updates come, but never a reply.
    NeverAnswer,
    /// The request is read and forgotten.
    Ignore,
    /// The request is answered by this error.
    Refuse(String),
    /// The request is carried out; so many bytes of the reply come, then the connection is
    /// lost.
    Partial(usize),
    /// The request is carried out, but updates that it causes come twice to this client.
    RepeatUpdate,
    /// After the reply every monitor gets the deletion of a row that never was.
    UnknownRow,
    /// After the reply the next member leads.
    MoveLeader,
}

/// Faults to come, by method.
#[derive(Debug, Default)]
pub(super) struct Script {
    /// How many requests go well before each.
    faults: BTreeMap<String, VecDeque<(u64, Fault)>>,
}

impl Script {
    /// After `skip` more requests of that method this fault comes.
    pub(super) fn add(&mut self, method: &str, skip: u64, fault: Fault) {
        self.faults.entry(method.to_owned()).or_default().push_back((skip, fault));
    }

    /// The fault for a request that came.
    pub(super) fn take(&mut self, method: &str) -> Option<Fault> {
        let queue = self.faults.get_mut(method)?;
        match queue.front_mut() {
            Some((0, _)) => queue.pop_front().map(|(_, fault)| fault),
            Some((skip, _)) => {
                *skip -= 1;
                None
            }
            None => None,
        }
    }

    /// No fault is left.
    pub(super) fn is_empty(&self) -> bool {
        self.faults.values().all(VecDeque::is_empty)
    }
}
