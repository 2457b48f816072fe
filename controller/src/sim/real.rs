//! The core against a real ovsdb-server: what the in-memory database may get wrong
//! (the fence above all) is checked here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ovsdb::testing::real::Server;
use ovsdb::{Event, EventStream, Operation, Options, Schema, Session, Value};

use super::Api;
use super::api::{Change, decode};
use super::bench::{config, pod};
use crate::core::Core;
use crate::facts::{Kind, ObjectRef, Table};
use crate::io::{Input, Output};
use crate::world::NEEDED;

/// Far more than the test needs on a busy machine.
const LONGEST: Duration = Duration::from_secs(120);

struct Driver {
    core: Core,
    api: Api,
    cursors: BTreeMap<Kind, usize>,
    session: Session,
    events: EventStream,
    schema: Option<Arc<Schema>>,
    fenced: bool,
    start: Instant,
}

fn session(server: &Server) -> (Session, EventStream) {
    let mut options = Options::new(vec![server.endpoint()], "OVN_Northbound");
    for table in Table::ALL {
        options = options.table(table.name(), Vec::<&str>::new());
    }
    Session::connect(options)
}

impl Driver {
    fn new(server: &Server) -> Self {
        let mut api = Api::new();
        api.create(&ObjectRef::cluster(Kind::Namespace, "web"), serde_json::json!({})).unwrap();
        let node = serde_json::json!({
            "metadata": { "annotations": { "ovn.kubernetes.io/chassis": "c-1" } },
            "status": { "addresses": [{ "type": "InternalIP", "address": "192.0.2.11" }] },
        });
        api.create(&ObjectRef::cluster(Kind::Node, "n-1"), node).unwrap();
        let (session, events) = session(server);
        let core = Core::new(config(), crate::compile::compile);
        Self {
            core,
            api,
            cursors: BTreeMap::new(),
            session,
            events,
            schema: None,
            fenced: false,
            start: Instant::now(),
        }
    }

    fn add_pod(&mut self, name: &str) {
        let body = serde_json::json!({ "spec": { "nodeName": "n-1" } });
        self.api.create(&pod("web", name), body).unwrap();
    }

    fn input(&mut self, input: Input) {
        let now_ms = u64::try_from(self.start.elapsed().as_millis()).unwrap();
        for output in self.core.handle(now_ms, super::api::EPOCH_S, input) {
            match output {
                Output::Transact { tag, operations } => self.session.submit(tag, operations),
                Output::Kube { id, write } => {
                    let result = self.api.write(&write);
                    self.input(Input::KubeReply { id, result });
                }
                Output::Refresh(kind, number) => {
                    self.cursors.insert(kind, self.api.log.get(&kind).map_or(0, Vec::len));
                    self.input(Input::Listed(kind, self.api.list(kind)));
                    self.input(Input::Fresh(kind, number));
                }
                Output::Fenced => self.fenced = true,
                Output::Event(_) | Output::WakeAt(_) => {}
            }
        }
    }

    fn watches(&mut self) {
        loop {
            let before = self.cursors.clone();
            for kind in NEEDED {
                let log = self.api.log.get(&kind).cloned().unwrap_or_default();
                let Some(at) = self.cursors.insert(kind, log.len()) else {
                    self.input(Input::Listed(kind, self.api.list(kind)));
                    continue;
                };
                for change in &log[at..] {
                    self.input(match change {
                        Change::Applied(text) => Input::Applied(decode(kind, text)),
                        Change::Deleted(object) => Input::Deleted(object.clone()),
                    });
                }
            }
            if self.cursors == before {
                return;
            }
        }
    }

    /// Runs until `done`, which a lost case would never be.
    async fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        loop {
            self.watches();
            if done(self) {
                return;
            }
            assert!(self.start.elapsed() < LONGEST, "{what} never came: {:#}", self.core.status());
            let event = tokio::time::timeout(Duration::from_millis(100), self.events.next()).await;
            let Ok(event) = event.map(Option::unwrap) else {
                self.input(Input::Tick);
                continue;
            };
            match event {
                Event::Connected { schema, .. } => self.schema = Some(schema),
                Event::Replaced { replica, changes } => {
                    let schema = self.schema.clone().unwrap();
                    self.input(Input::NbLoaded { replica, changes, schema });
                }
                Event::Updated { replica, changes } => self.input(Input::NbChanged { replica, changes }),
                Event::Reply { tag, result } => self.input(Input::NbReply { tag, result }),
                Event::Disconnected { .. } => self.input(Input::NbLost),
                Event::Resync { reason } => panic!("{reason}"),
                Event::SchemaChanged { .. } | Event::Lock { .. } => {}
            }
        }
    }

    fn routed(&self, name: &str) -> bool {
        self.api.annotation(&pod("web", name), "ovn.kubernetes.io/routed") == Some("true")
    }
}

#[tokio::test]
async fn the_fence_holds_on_a_real_server() {
    let server = Server::northbound().unwrap();
    let mut first = Driver::new(&server);
    first.input(Input::Elected { epoch: "epoch-1".into() });
    first.add_pod("a-0");
    first.until("the pod", |d| d.routed("a-0") && d.core.quiet()).await;
    assert_eq!(first.core.counters().commit.failures, 0);

    // Another process takes over; the first does not look at what the database says
    // and goes on with what it has in mind.
    let mut second = Driver::new(&server);
    second.input(Input::Elected { epoch: "epoch-2".into() });
    second.until("leadership", |d| d.core.leading() && d.core.quiet()).await;
    first.add_pod("b-0");
    let sent = first.core.counters().commit.transactions;
    first.watches();
    assert!(first.core.counters().commit.transactions > sent && !first.fenced);
    first.until("the fence", |d| d.fenced).await;
    assert!(!first.routed("b-0"));
    // Its transaction, sent before it knew, changed nothing.
    let port = Value::string("b-0.web");
    let absent = |d: &Driver| {
        let replica = d.core.replica().unwrap();
        replica.table("Logical_Switch_Port").unwrap().find_one("name", &port).is_none()
    };
    assert!(absent(&first) && absent(&second));

    // Taking the token away by hand stops the second one, too.
    let (third, mut events) = session(&server);
    while !matches!(events.next().await, Some(Event::Replaced { .. })) {}
    let table = Table::NbGlobal.name();
    let wipe = Operation::mutate(table).delete_map_keys("external_ids", ["weir-epoch"]).build();
    third.transact(vec![wipe]).await.unwrap();
    second.until("the fence", |d| d.fenced).await;
}
