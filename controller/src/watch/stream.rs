//! One kind's list and watch.
//!
//! Flows in: pages and event lines of one collection. Flows out: inputs for the
//! core, and the kind's [`super::WatchStatus`].
//!
//! The loop has two states. Without a resource version it lists. With one it watches
//! from there, window after window, and falls back to listing when the server says
//! that the version is gone, or when watching failed several times in a row.

mod follow;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::decode::{BadObject, Decoder};
use super::wire::{Discovery, Page, escape};
use super::{Delivery, Statuses, fingerprint, plural};
use crate::facts::Kind;
use crate::io::Input;
use crate::kube_io::client::{Api, ApiError};
use crate::kube_io::resource::Resource;
use crate::objects::Object;

/// Objects per page of a list.
const PAGE: usize = 500;
/// How long a page may take.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the head of a watch's answer may take.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// First and longest pause after failures. The longest one is short: it is part
/// of the time between "the network healed" and "deletions are known".
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));
/// Pause between looks for a kind that is not installed.
const ABSENT_PAUSE: Duration = Duration::from_secs(30);
/// The same for a kind that discovery is asked about (contract §8.3).
const DISCOVERY_PAUSE: Duration = Duration::from_secs(10);
/// So often in a row such a kind with objects must be missing before it counts as gone
/// with them: a server that starts serves its own kinds first.
const DISCOVERY_LOOKS: u32 = 6;
/// Watches that fail in a row before listing again.
const WATCH_ATTEMPTS: u32 = 3;
/// What to do about a refusal.
const GRANT: &str =
    "; grant get, list and watch to the controller's ClusterRole (deploy/ has the complete one)";
/// A line longer than this is no event (etcd's limit for an object is 1.5 MiB).
const LINE_LIMIT: usize = 32 << 20;

type Key = (Arc<str>, Arc<str>);

/// The watch of one kind.
pub(super) struct Watch {
    api: Api,
    resource: Resource,
    inputs: mpsc::Sender<Delivery>,
    statuses: Statuses,
    decoder: Decoder,
    objects: HashMap<Key, Object>,
    checksum: u64,
    version: Option<String>,
    failures: u32,
    failing_since: Option<Instant>,
    announced_absent: bool,
    /// Looks in a row at which the kind was not installed.
    missed: u32,
    /// Number of the list that is asked for, and of the one that was delivered.
    asked: watch::Receiver<u64>,
    answered: u64,
}

/// Why following stopped.
#[derive(Debug)]
enum Stop {
    /// Nobody takes inputs any more.
    Closed,
    /// The window is over: go on.
    Window,
    /// A list is asked for.
    Refresh,
    /// Failed: pause, then go on.
    Failed(ApiError),
}

impl From<ApiError> for Stop {
    fn from(error: ApiError) -> Self {
        Self::Failed(error)
    }
}

/// Kinds that the controller can't work without. The others may be not installed.
fn required(kind: Kind) -> bool {
    !matches!(
        kind,
        Kind::IpPool
            | Kind::Vip
            | Kind::ProviderNetwork
            | Kind::OvnEip
            | Kind::Vlan
            | Kind::Nad
            | Kind::Other(_)
    )
}

/// Answers by which the API server says that a kind is not there. Addresses are
/// kept for workloads: not being allowed to see those is no reason to think that
/// there are none.
fn means_absent(kind: Kind, code: Option<u16>) -> bool {
    match kind {
        Kind::StatefulSet
        | Kind::Deployment
        | Kind::VirtualMachine
        | Kind::VirtualMachineInstance
        | Kind::Migration => code == Some(404),
        _ => !required(kind) && matches!(code, Some(403 | 404)),
    }
}

impl Watch {
    pub(super) fn new(
        api: Api,
        resource: Resource,
        inputs: mpsc::Sender<Delivery>,
        statuses: Statuses,
        asked: watch::Receiver<u64>,
    ) -> Self {
        Self {
            api,
            resource,
            inputs,
            statuses,
            decoder: Decoder::new(resource.kind),
            objects: HashMap::new(),
            checksum: 0,
            version: None,
            failures: 0,
            failing_since: None,
            announced_absent: false,
            missed: 0,
            asked,
            answered: 0,
        }
    }

    /// Runs until nobody takes inputs any more.
    pub(super) async fn run(mut self) {
        loop {
            let result = if self.version.is_none() { self.list().await } else { self.until_asked().await };
            match result {
                Ok(()) | Err(Stop::Window) => self.recovered(),
                Err(Stop::Refresh) => self.version = None,
                Err(Stop::Closed) => return,
                Err(Stop::Failed(error)) => {
                    let pause = match self.failed(error).await {
                        Ok(pause) => pause,
                        Err(Closed) => return,
                    };
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    /// Follows until a list is asked for. What is cut off then is in the list.
    async fn until_asked(&mut self) -> Result<(), Stop> {
        let (mut asked, answered) = (self.asked.clone(), self.answered);
        tokio::select! {
            result = self.follow() => result,
            // Without an error: when nobody can ask any more there is nothing to wait for.
            Ok(_) = asked.wait_for(|number| *number != answered) => Err(Stop::Refresh),
        }
    }

    fn recovered(&mut self) {
        self.failures = 0;
        if let Some(since) = self.failing_since.take() {
            self.statuses.with(self.resource.kind, |status| status.problem = None);
            debug!(kind = plural(self.resource.kind), after = ?since.elapsed(), "watch works again");
            if !self.statuses.any_failing() {
                info!(after = ?since.elapsed(), "all watches work");
            }
        }
    }

    /// Notes a failure and says how long to pause.
    async fn failed(&mut self, error: ApiError) -> Result<Duration, Closed> {
        let kind = self.resource.kind;
        if error.is_expired() {
            debug!(kind = plural(kind), %error, "listing again");
            self.version = None;
            return Ok(BACKOFF.0);
        }
        if means_absent(kind, error.code()) {
            let discovered = self.resource.discovery().is_some();
            self.missed = self.missed.saturating_add(1);
            if discovered && !self.objects.is_empty() && self.missed < DISCOVERY_LOOKS {
                self.version = None;
                return Ok(DISCOVERY_PAUSE);
            }
            let pause = if discovered { DISCOVERY_PAUSE } else { ABSENT_PAUSE };
            return self.absent(&error).await.map(|()| pause);
        }
        self.failures += 1;
        if self.version.is_some() && self.failures >= WATCH_ATTEMPTS {
            self.version = None;
        }
        let remedy = match error.code() {
            Some(404) => "; apply the CRDs of deploy/",
            Some(401 | 403) => {
                "; grant get, list and watch to the controller's ClusterRole (deploy/ has the complete one)"
            }
            _ => "",
        };
        let problem = format!("{error}{remedy}");
        if self.failing_since.is_none() {
            self.failing_since = Some(Instant::now());
            // An outage of the API server fails all watches: one of them says so. A refusal is
            // each kind's own.
            if error.code().is_some_and(|code| code < 500) || !self.statuses.any_failing() {
                warn!(kind = plural(kind), problem, "watch failed, trying again");
            } else {
                debug!(kind = plural(kind), problem, "watch failed too");
            }
        } else {
            debug!(kind = plural(kind), problem, failures = self.failures, "watch failed again");
        }
        self.statuses.with(kind, |status| {
            status.failures += 1;
            status.problem = Some(problem);
        });
        let pause = BACKOFF.0.saturating_mul(1 << (self.failures - 1).min(8)).min(BACKOFF.1);
        // Spread, so that 28 watches do not knock at once.
        Ok(pause.mul_f64(rand::random_range(0.5..1.0)))
    }

    /// A kind that is not needed is not installed, or not ours to see: a role made
    /// for an older Kube-OVN knows fewer kinds, and the API server says "forbidden" before it
    /// would say "no such kind".
    async fn absent(&mut self, error: &ApiError) -> Result<(), Closed> {
        let kind = self.resource.kind;
        let forbidden = !error.is_not_found();
        if !self.announced_absent {
            self.announced_absent = true;
            if forbidden {
                warn!(kind = plural(kind), %error, "not allowed to see this kind: its objects get no conditions, and what they hold is not known");
            } else if self.resource.discovery().is_some() {
                debug!(kind = plural(kind), "KubeVirt is not installed, looking again later");
            } else {
                info!(kind = plural(kind), "kind is not installed, looking again later");
            }
            self.version = None;
            // With its kind an object is gone; without permission nothing new is known of it.
            if !forbidden {
                self.objects.clear();
                self.checksum = 0;
            }
            self.send(Input::Listed(kind, self.objects.values().cloned().collect())).await?;
            self.publish_content();
        }
        self.statuses.with(kind, |status| {
            status.loaded = true;
            status.absent = true;
            status.problem = forbidden.then(|| format!("{error}{GRANT}"));
            status.proof = Some(Instant::now());
        });
        Ok(())
    }

    /// Whether the kind is installed, where that is asked first.
    async fn discover(&self) -> Result<(), ApiError> {
        let Some(group) = self.resource.discovery() else { return Ok(()) };
        let body = match self.api.get(group, LIST_TIMEOUT).await {
            // Who may not ask learns it from the kind itself.
            Err(error) if error.code() == Some(403) => return Ok(()),
            answer => answer?,
        };
        let known: Discovery =
            serde_json::from_slice(&body).map_err(|error| ApiError::Decode(error.to_string()))?;
        if known.resources.iter().any(|resource| resource.name == self.resource.plural) {
            return Ok(());
        }
        Err(ApiError::from_answer(404, b""))
    }

    async fn send(&self, input: Input) -> Result<(), Closed> {
        self.inputs.send(Delivery { at: Instant::now(), input }).await.map_err(|_| Closed)
    }

    /// Lists everything, page by page. Nothing is passed on before the list is
    /// complete, since it tells deletions too.
    async fn list(&mut self) -> Result<(), Stop> {
        let kind = self.resource.kind;
        let asked = *self.asked.borrow();
        self.discover().await?;
        let mut objects: HashMap<Key, Object> = HashMap::new();
        let mut next: Option<String> = None;
        let version = loop {
            let mut path = format!("{}?limit={PAGE}", self.resource.collection());
            if let Some(token) = &next {
                path.push_str("&continue=");
                path.push_str(&escape(token));
            }
            let body = self.api.get(&path, LIST_TIMEOUT).await?;
            self.statuses.with(kind, |status| status.proof = Some(Instant::now()));
            let page: Page<'_> =
                serde_json::from_slice(&body).map_err(|error| ApiError::Decode(error.to_string()))?;
            for item in page.items.unwrap_or_default() {
                match self.decoder.object(item.get()) {
                    Ok(object) => {
                        objects.insert(key(&object), object);
                    }
                    Err(bad) => {
                        self.skip(&bad);
                        // It exists, so it must not look deleted: its last good version stays.
                        if let Ok(meta) = self.decoder.metadata(item.get()) {
                            let key = (meta.namespace, meta.name);
                            if let Some(known) = self.objects.get(&key) {
                                objects.insert(key, known.clone());
                            }
                        }
                    }
                }
            }
            match page.metadata.r#continue.filter(|token| !token.is_empty()) {
                Some(token) => next = Some(token),
                None => break page.metadata.resource_version,
            }
        };
        self.checksum = objects.values().map(|o| fingerprint(o.meta())).fold(0, u64::wrapping_add);
        self.objects = objects;
        self.version = Some(version.clone());
        (self.announced_absent, self.missed) = (false, 0);
        let listed = self.objects.values().cloned().collect();
        self.send(Input::Listed(kind, listed)).await?;
        if asked != self.answered {
            self.answered = asked;
            self.send(Input::Fresh(kind, asked)).await?;
        }
        self.statuses.with(kind, |status| {
            status.loaded = true;
            status.absent = false;
            status.problem = None;
            status.lists += 1;
            status.version = version;
        });
        self.publish_content();
        Ok(())
    }

    fn publish_content(&self) {
        self.statuses.with(self.resource.kind, |status| {
            status.objects = self.objects.len();
            status.checksum = self.checksum;
        });
    }

    fn skip(&self, bad: &BadObject) {
        let kind = self.resource.kind;
        warn!(kind = plural(kind), object = bad.object, problem = bad.problem, "bad object, skipped");
        self.statuses.with(kind, |status| status.bad += 1);
    }
}

/// Nobody takes inputs any more.
struct Closed;

impl From<Closed> for Stop {
    fn from(_: Closed) -> Self {
        Self::Closed
    }
}

fn key(object: &Object) -> Key {
    let meta = object.meta();
    (meta.namespace.clone(), meta.name.clone())
}
