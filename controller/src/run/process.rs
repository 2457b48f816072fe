//! The whole process: starts every part, waits for a reason to end, and ends in
//! order (SIGTERM → no new inputs → work in flight → Lease → exit).
//!
//! Flows in: [`Settings`] and signals. Flows out: an [`Exit`] code.

use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::BoxFuture;
use ovsdb::Session;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::changes::Changes;
use super::{Engine, Exit, Query, Sinks, Sources};
use crate::chassis;
use crate::core::Core;
use crate::diagnostics;
use crate::events::Recorder;
use crate::facts::ObjectRef;
use crate::flags::settings::Settings;
use crate::health::{self, Health};
use crate::kube_io::Writer;
use crate::kube_io::client::{Api, load_config};
use crate::kube_io::resource::Resource;
use crate::lease::{self, Authority, Candidate};
use crate::metrics::{Metrics, Shared};
use crate::nb_io;
use crate::view::Compile;
use crate::watch::{Statuses, Watches, plural};

/// Deliveries of watches that may wait for the core.
const WATCH_QUEUE: usize = 1_024;
/// How long a look at the own pod may take.
const POD_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the controller until it is told to stop or has to.
///
/// # Errors
/// Settings that can't be used, each with its remedy.
pub async fn run(settings: Settings, compile: Compile) -> Result<ExitCode, String> {
    let config = load_config(settings.kubeconfig.as_deref()).await?;
    info!(api = %config.cluster_url, database = settings.nb_endpoints, "starting");
    if let Some(proxy) = &config.proxy_url {
        warn!(%proxy, "proxies are not used, the API server is reached directly; remove proxy-url or HTTPS_PROXY");
    }
    let latency: Arc<OnceLock<Arc<Metrics>>> = Arc::default();
    let api = Api::connect(&config)
        .map_err(|error| {
            format!("API server: {}; check the credentials", crate::kube_io::client::chain(&error))
        })?
        .observed(latency.clone());
    let nb_options = nb_io::options(&settings)?;

    let mut terminate = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| error.to_string())?;
    let stop = CancellationToken::new();
    let shared = Shared::default();
    let changes = Changes::default();
    let (deliver, watches_in) = mpsc::channel(WATCH_QUEUE);
    let watches_stop = stop.child_token();
    let watches = Watches::start(&api, Resource::watched(), &deliver, &watches_stop);
    drop(deliver);
    let metrics = Arc::new(Metrics::new().with_state(shared.clone(), watches.statuses.clone()));
    let _ = latency.set(metrics.clone());
    let unhonoured = crate::compile::globals::unhonoured(&settings.core);
    if !unhonoured.is_empty() {
        warn!(options = ?unhonoured, "stock OVN does not honour these options; they need Kube-OVN's patched OVN, see docs/compatibility.md");
        metrics.patched_options(&unhonoured);
    }

    // Probes first: a controller that can't reach anything yet must be able to say so.
    let servers_stop = CancellationToken::new();
    let health = Health {
        shared: shared.clone(),
        watches: watches.statuses.clone(),
        metrics: settings.metrics.then(|| metrics.clone()),
        stopping: stop.clone(),
    };
    let listeners = health::bind(&settings.listen).await?;
    let listening =
        listeners.iter().filter_map(|listener| listener.local_addr().ok()).map(|at| at.to_string()).collect();
    let secure = settings.secure.clone().map(|config| {
        let access = secure::Access::new(api.kube());
        health::Secure { config, access }
    });
    tokio::spawn(health::serve(listeners, health.clone(), secure, servers_stop.clone()));

    let identity: Arc<OnceLock<String>> = Arc::default();
    let authority = Authority::default();
    let (queries_out, queries) = mpsc::channel(64);
    let view = Arc::new(Diagnostics {
        started: Instant::now(),
        identity: identity.clone(),
        version: settings.core.version.to_string(),
        listening,
        health: health.clone(),
        changes: changes.clone(),
        queries: queries_out,
    });
    let methods = diagnostics::module(view).map_err(|error| error.to_string())?;
    let diagnostics = tokio::spawn({
        let (path, stop) = (settings.diagnostics_socket.clone(), servers_stop.clone());
        async move { diagnostics::run(&path, methods, stop).await }
    });

    let sb_options = chassis::session::options(&settings)?;
    let (session, database) = Session::connect(nb_options);
    let (replies_out, replies) = mpsc::unbounded_channel();
    let sinks = Sinks {
        session,
        writer: Writer::new(api.clone(), authority.clone(), metrics.clone(), replies_out),
        recorder: Recorder::start(api.clone(), authority.clone(), metrics.clone(), settings.pod_name.clone()),
        authority: authority.clone(),
        refresher: watches.refresher.clone(),
    };
    match sb_options {
        Some(options) => {
            let parts = chassis::session::Parts {
                nodes: shared.nodes(),
                authority: authority.clone(),
                recorder: sinks.recorder.clone(),
                metrics: metrics.clone(),
                shared: shared.clone(),
            };
            tokio::spawn(chassis::session::run(options, parts, stop.clone()));
        }
        None => warn!(
            "no southbound database is named, so chassis are not tagged; set OVN_SB_ADDR or --ovn-sb-addr"
        ),
    }
    let gateways_authority = authority.clone();
    let (leadership_out, leadership) = mpsc::channel(4);
    let election_stop = CancellationToken::new();
    let election = tokio::spawn({
        let (stop, metrics, shared) = (election_stop.clone(), metrics.clone(), shared.clone());
        let (api, namespace, timing) = (api.clone(), settings.namespace.clone(), settings.lease);
        let (name, uid) = (settings.pod_name.clone(), settings.pod_uid.clone());
        async move {
            let found = tokio::select! {
                () = stop.cancelled() => return,
                found = find_identity(&api, &namespace, &name, uid) => found,
            };
            let _ = identity.set(found.clone());
            let candidate = Candidate { api, namespace, identity: found, timing, authority };
            let note = move |holder: &str| {
                metrics.lease_holder(holder);
                shared.set_holder(holder);
            };
            lease::run(candidate, stop, leadership_out, note).await;
        }
    });

    let (silent_out, silent) = mpsc::channel(4);
    let join = settings.core.node_switch.clone();
    tokio::spawn(crate::gateways::run(shared.clone(), gateways_authority, join, silent_out, stop.clone()));
    let engine = Engine::new(Core::new(settings.core.clone(), compile), sinks, shared, metrics, changes);
    let sources = Sources { watches: watches_in, database, leadership, replies, silent, queries };
    // On a thread of its own: a long compile must delay neither probes nor the renewal of the Lease.
    let runtime = tokio::runtime::Handle::current();
    let engine_stop = stop.clone();
    let mut engine = tokio::task::spawn_blocking(move || runtime.block_on(engine.run(sources, engine_stop)));

    let exit = tokio::select! {
        result = &mut engine => result,
        _ = terminate.recv() => { info!("told to stop"); stop.cancel(); (&mut engine).await }
        _ = interrupt.recv() => { info!("interrupted"); stop.cancel(); (&mut engine).await }
    };
    let exit = exit.unwrap_or(Exit::Broken("the core ended with a bug"));
    stop.cancel();
    // Only now, when nothing of ours can be written any more, may somebody else lead.
    election_stop.cancel();
    if tokio::time::timeout(Duration::from_secs(5), election).await.is_err() {
        warn!("the election did not end in time");
    }
    servers_stop.cancel();
    let _ = tokio::time::timeout(Duration::from_secs(1), diagnostics).await;
    Ok(match exit {
        Exit::Stopped => {
            info!("stopped");
            ExitCode::SUCCESS
        }
        Exit::Deposed(reason) => {
            error!(reason, "leadership lost, leaving; a fresh process takes part in the next election");
            ExitCode::FAILURE
        }
        Exit::Fenced => {
            error!("another leader has taken over the database, leaving");
            ExitCode::FAILURE
        }
        Exit::Broken(reason) => {
            error!(reason, "leaving");
            ExitCode::FAILURE
        }
    })
}

/// Name of this candidate: the pod's name and UID, so that a restarted container
/// of the same pod takes its Lease back at once and nobody else does.
///
/// Without the UID in the environment the API server is asked until it answers,
/// since nothing could be led without it anyway.
async fn find_identity(api: &Api, namespace: &str, name: &str, uid: Option<String>) -> String {
    #[derive(Deserialize)]
    struct Pod {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        uid: String,
    }
    if let Some(uid) = uid {
        return format!("{name}_{uid}");
    }
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
    loop {
        let problem = match api.get(&path, POD_TIMEOUT).await {
            Ok(body) => match serde_json::from_slice::<Pod>(&body) {
                Ok(pod) => return format!("{name}_{}", pod.metadata.uid),
                Err(error) => error.to_string(),
            },
            Err(error) if error.code().is_some_and(|code| code < 500 && code != 429) => error.to_string(),
            Err(_) => {
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        info!(
            problem,
            "own pod not found, so a restart waits for the Lease to expire; set POD_UID from metadata.uid"
        );
        return format!("{name}_{}", uuid::Uuid::new_v4());
    }
}

/// What diagnostics look at.
struct Diagnostics {
    started: Instant,
    /// Known once the election has begun.
    identity: Arc<OnceLock<String>>,
    version: String,
    /// Addresses of probes and metrics.
    listening: Vec<String>,
    health: Health,
    changes: Changes,
    queries: mpsc::Sender<Query>,
}

impl Diagnostics {
    async fn ask(&self, query: impl FnOnce(oneshot::Sender<Value>) -> Query) -> Option<Value> {
        let (answer, answered) = oneshot::channel();
        self.queries.send(query(answer)).await.ok()?;
        answered.await.ok()
    }

    fn watches(&self) -> Value {
        watches_json(&self.health.watches)
    }
}

/// The state of watches for people and tests.
fn watches_json(statuses: &Statuses) -> Value {
    let rows = statuses.all().into_iter().map(|(kind, status)| {
        json!({
            "kind": plural(kind),
            "loaded": status.loaded,
            "absent": status.absent,
            "age_s": status.proof.map(|proof| proof.elapsed().as_secs_f64()),
            "objects": status.objects,
            "checksum": format!("{:016x}", status.checksum),
            "version": status.version,
            "lists": status.lists,
            "events": status.events,
            "bad_objects": status.bad,
            "failures": status.failures,
            "problem": status.problem,
        })
    });
    rows.collect()
}

impl diagnostics::Source for Diagnostics {
    fn status(&self) -> BoxFuture<'_, Option<Value>> {
        Box::pin(async move {
            let core = self.ask(Query::Status).await?;
            let snapshot = self.health.shared.snapshot();
            let database = self.health.shared.database();
            Some(json!({
                "version": self.version,
                "identity": self.identity.get(),
                "listening": self.listening,
                "uptime_s": self.started.elapsed().as_secs_f64(),
                "ready": self.health.unready().is_empty(),
                "unready": self.health.unready(),
                "leadership": {
                    "elected": snapshot.elected,
                    "writing": snapshot.leading,
                    "holder": self.health.shared.holder(),
                },
                "lag_s": snapshot.lag.as_secs_f64(),
                "in_flight": {
                    "transactions": snapshot.transactions_in_flight,
                    "writes": snapshot.writes_in_flight,
                },
                "watches": self.watches(),
                "database": {
                    "synced": database.synced,
                    "endpoint": database.endpoint,
                    "connections": database.connections,
                    "resyncs": database.resyncs,
                    "missing_columns": database.missing,
                    "last_error": database.last_error,
                },
                "southbound": self.health.shared.southbound(),
                "core": core,
            }))
        })
    }

    fn plan(&self) -> BoxFuture<'_, Option<Value>> {
        Box::pin(self.ask(Query::Plan))
    }

    fn verify(&self) -> BoxFuture<'_, Option<Value>> {
        Box::pin(self.ask(Query::Verify))
    }

    fn explain(&self, object: ObjectRef) -> BoxFuture<'_, Option<Value>> {
        Box::pin(self.ask(move |answer| Query::Explain(object, answer)))
    }

    fn counters(&self) -> BoxFuture<'_, Option<Value>> {
        Box::pin(self.ask(Query::Counters))
    }

    fn changes(&self) -> broadcast::Receiver<Arc<Value>> {
        self.changes.subscribe()
    }
}
