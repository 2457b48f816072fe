//! Leadership: one replica writes, the others keep warm caches.
//!
//! Flows in: the Lease `kube-ovn-controller` of the API server. Flows out:
//! [`Change`]s of leadership, and [`Authority`], which every writer asks right
//! before it writes. [`elector`] decides, this file talks to the API server.
//!
//! Losing the Lease is final for a process: it stops writing and exits, so no code
//! path has to cope with a second leadership on top of the remains of the first.
//! The database is fenced besides by the epoch token, which is new for every
//! leadership (DESIGN "Two controllers").

pub mod elector;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::kube_io::client::{Api, ApiError};
pub use elector::Timing;
use elector::{Attempt, Elector, Next, Record};

/// Name of the Lease (contract §8.2).
pub const LEASE_NAME: &str = "kube-ovn-controller";

/// How long one request about the Lease may take: two attempts fit into a renew
/// deadline.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);

/// A change of leadership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// We lead, with this epoch token.
    Elected(Arc<str>),
    /// We lead no more and never will in this process.
    Deposed(&'static str),
}

/// The permission to write, with its end. Cheap to clone and to ask.
///
/// The election task renews it; it runs out by itself when that task is stuck, or
/// when the whole process was paused: a writer that wakes up too late is refused
/// before it sends anything.
#[derive(Clone, Debug)]
pub struct Authority {
    start: Instant,
    until_ms: Arc<AtomicU64>,
}

impl Default for Authority {
    fn default() -> Self {
        Self { start: Instant::now(), until_ms: Arc::new(AtomicU64::new(0)) }
    }
}

impl Authority {
    /// Writing is allowed now.
    pub fn valid(&self) -> bool {
        self.now_ms() < self.until_ms.load(Ordering::Acquire)
    }

    /// Milliseconds since the start, the clock of the election.
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Takes the permission away.
    pub fn revoke(&self) {
        self.until_ms.store(0, Ordering::Release);
    }

    /// Grants the permission until that time of [`Self::now_ms`].
    pub fn grant_until(&self, until_ms: u64) {
        self.until_ms.store(until_ms, Ordering::Release);
    }
}

/// What the election needs.
#[derive(Clone)]
pub struct Candidate {
    /// The API server.
    pub api: Api,
    /// Namespace of the Lease.
    pub namespace: String,
    /// Unique to the pod, the same after a restart of its container.
    pub identity: String,
    /// Timings.
    pub timing: Timing,
    /// The permission that this task keeps.
    pub authority: Authority,
}

/// Takes part in the election until leadership was won and lost, or `stop`.
/// Releases the Lease before it returns, if it holds it. Every change of
/// leadership goes to `changes`; `holder` is told who leads.
pub async fn run(
    candidate: Candidate,
    stop: CancellationToken,
    changes: mpsc::Sender<Change>,
    holder: impl Fn(&str) + Send,
) {
    let Candidate { api, namespace, identity, timing, authority } = candidate;
    let lease = LeaseObject { api, namespace, identity: identity.clone(), timing };
    let mut elector = Elector::new(identity.clone(), timing);
    let mut announced = String::new();
    loop {
        let now = authority.now_ms();
        let next = elector.next(now);
        match elector.deadline() {
            Some(until) => authority.grant_until(until),
            None => authority.revoke(),
        }
        if elector.holder() != announced {
            elector.holder().clone_into(&mut announced);
            holder(&announced);
        }
        match next {
            Next::Lost(reason) => {
                warn!(reason, "leadership lost");
                let _ = changes.send(Change::Deposed(reason)).await;
                return;
            }
            Next::Wait(until) => {
                let pause = Duration::from_millis(until.saturating_sub(now).max(1));
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = tokio::time::sleep(pause) => {}
                }
            }
            Next::Read => match lease.read().await {
                Ok(record) => elector.read(authority.now_ms(), record),
                Err(error) => {
                    warn!(%error, "the Lease could not be read");
                    elector.failed(authority.now_ms(), false);
                }
            },
            Next::Write(attempt) => {
                let was_leading = elector.leading();
                match lease.write(&attempt, &identity).await {
                    Ok(record) => {
                        elector.wrote(now, authority.now_ms(), record);
                        if !was_leading {
                            // Permission first: the core may write as soon as it hears of it.
                            if let Some(until) = elector.deadline() {
                                authority.grant_until(until);
                            }
                            let epoch: Arc<str> = format!("{identity}/{}", uuid::Uuid::new_v4()).into();
                            info!(%epoch, "leadership won");
                            if changes.send(Change::Elected(epoch)).await.is_err() {
                                break;
                            }
                        }
                    }
                    Err(error) => {
                        let conflict = error.is_conflict();
                        if conflict {
                            debug!(%error, "somebody else wrote the Lease");
                        } else {
                            warn!(%error, "the Lease could not be written");
                        }
                        elector.failed(authority.now_ms(), conflict);
                    }
                }
            }
        }
        if stop.is_cancelled() {
            break;
        }
    }
    authority.revoke();
    if let Some(attempt) = elector.release() {
        match lease.write(&attempt, "").await {
            Ok(_) => info!("the Lease is released"),
            Err(error) => warn!(%error, "the Lease could not be released; others wait for its duration"),
        }
    }
}

/// The Lease object behind the API server.
struct LeaseObject {
    api: Api,
    namespace: String,
    identity: String,
    timing: Timing,
}

/// The fields of a Lease that are read.
#[derive(Deserialize)]
struct Wire {
    metadata: WireMeta,
    #[serde(default)]
    spec: WireSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireMeta {
    resource_version: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireSpec {
    holder_identity: Option<String>,
    lease_duration_seconds: Option<u64>,
    acquire_time: Option<String>,
    renew_time: Option<String>,
    lease_transitions: Option<i64>,
}

impl LeaseObject {
    fn path(&self) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.namespace)
    }

    fn decode(body: &[u8]) -> Result<Record, ApiError> {
        let wire: Wire = serde_json::from_slice(body).map_err(|error| ApiError::Decode(error.to_string()))?;
        Ok(Record {
            version: wire.metadata.resource_version,
            holder: wire.spec.holder_identity.unwrap_or_default(),
            duration_s: wire.spec.lease_duration_seconds.unwrap_or_default(),
            acquired: wire.spec.acquire_time,
            renewed: wire.spec.renew_time,
            transitions: wire.spec.lease_transitions.unwrap_or_default(),
        })
    }

    async fn read(&self) -> Result<Option<Record>, ApiError> {
        let path = format!("{}/{LEASE_NAME}", self.path());
        match self.api.get(&path, REQUEST_TIMEOUT).await {
            Ok(body) => Self::decode(&body).map(Some),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn write(&self, attempt: &Attempt, holder: &str) -> Result<Record, ApiError> {
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
        let acquired = if attempt.acquire { Some(now.clone()) } else { attempt.acquired.clone() };
        // A released Lease keeps a duration of one second, as client-go writes it.
        let duration = if holder.is_empty() { 1 } else { self.timing.lease.as_secs().max(1) };
        let body = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": LEASE_NAME,
                "namespace": self.namespace,
                "resourceVersion": attempt.version,
            },
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": duration,
                "acquireTime": acquired,
                "renewTime": now,
                "leaseTransitions": attempt.transitions,
            },
        });
        debug!(identity = self.identity, holder, "writing the Lease");
        let answer = match attempt.version {
            None => self.api.create(&self.path(), &body, REQUEST_TIMEOUT).await?,
            Some(_) => {
                // A merge patch leaves labels and owners that others gave the Lease; the resource
                // version in it makes it conditional.
                self.api.merge_patch(&format!("{}/{LEASE_NAME}", self.path()), &body, REQUEST_TIMEOUT).await?
            }
        };
        Self::decode(&answer)
    }
}
