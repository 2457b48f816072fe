//! The election against an API server in memory, with paused time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fake;

use std::sync::Arc;
use std::time::Duration;

use controller::kube_io::client::Api;
use controller::lease::{self, Authority, Candidate, Change, Timing};
use fake::{FakeApi, Faults};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-ovn-controller";

struct Member {
    changes: mpsc::Receiver<Change>,
    authority: Authority,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Member {
    fn start(api: &FakeApi, identity: &str) -> Self {
        let (sender, changes) = mpsc::channel(4);
        let (authority, stop) = (Authority::default(), CancellationToken::new());
        let candidate = Candidate {
            api: Api::new(api.client()),
            namespace: "kube-system".to_owned(),
            identity: identity.to_owned(),
            timing: Timing::default(),
            authority: authority.clone(),
        };
        let task = tokio::spawn(lease::run(candidate, stop.clone(), sender, |_| ()));
        Self { changes, authority, stop, task }
    }

    async fn elected(&mut self, within: Duration) -> Arc<str> {
        match tokio::time::timeout(within, self.changes.recv()).await {
            Ok(Some(Change::Elected(epoch))) => epoch,
            other => panic!("expected an election, got {other:?}"),
        }
    }
}

fn holder(api: &FakeApi) -> String {
    api.get(LEASE)
        .map(|lease| lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned())
        .unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn one_leads_and_releases_and_the_other_follows_at_once() {
    let api = FakeApi::new();
    let mut first = Member::start(&api, "a_1");
    let epoch = first.elected(Duration::from_millis(100)).await;
    assert!(first.authority.valid() && epoch.starts_with("a_1/"));
    let mut second = Member::start(&api, "b_2");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(second.changes.try_recv().is_err() && !second.authority.valid());
    assert_eq!(holder(&api), "a_1");

    first.stop.cancel();
    first.task.await.unwrap();
    assert!(!first.authority.valid());
    second.elected(Duration::from_millis(2_100)).await;
    assert_eq!(holder(&api), "b_2");
    assert_eq!(api.get(LEASE).unwrap()["spec"]["leaseTransitions"], 1);
}

#[tokio::test(start_paused = true)]
async fn a_killed_leader_of_the_same_pod_is_replaced_at_once_and_of_another_after_the_duration() {
    let api = FakeApi::new();
    let mut first = Member::start(&api, "a_1");
    let old = first.elected(Duration::from_millis(100)).await;
    first.task.abort();
    let mut again = Member::start(&api, "a_1");
    let new = again.elected(Duration::from_millis(100)).await;
    assert_ne!(old, new, "every leadership has its own epoch");
    tokio::time::sleep(Duration::from_secs(7)).await;
    again.task.abort();
    let died = Instant::now();
    let mut other = Member::start(&api, "b_2");
    other.elected(Duration::from_secs(16)).await;
    assert!(died.elapsed() >= Duration::from_secs(14), "{:?}", died.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_cut_off_loses_its_permission_before_others_may_lead() {
    let api = FakeApi::new();
    let mut first = Member::start(&api, "a_1");
    first.elected(Duration::from_millis(100)).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    api.faults(Faults { mute: true, ..Faults::default() });
    let cut = Instant::now();
    let change = tokio::time::timeout(Duration::from_secs(30), first.changes.recv()).await.unwrap();
    assert!(matches!(change, Some(Change::Deposed(_))), "{change:?}");
    assert!(cut.elapsed() <= Duration::from_secs(10), "{:?}", cut.elapsed());
    assert!(!first.authority.valid());
    first.task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn permission_ends_by_time_alone() {
    let authority = Authority::default();
    assert!(!authority.valid());
    authority.grant_until(10_000);
    assert!(authority.valid());
    // Nobody revokes it: the election task may be stuck, or the process paused.
    tokio::time::advance(Duration::from_secs(11)).await;
    assert!(!authority.valid());
}

#[tokio::test(start_paused = true)]
async fn short_troubles_of_the_api_server_are_survived() {
    let api = FakeApi::new();
    let mut leader = Member::start(&api, "a_1");
    leader.elected(Duration::from_millis(100)).await;
    for code in [500, 429, 503] {
        api.faults(Faults { refuse: Some(code), ..Faults::default() });
        tokio::time::sleep(Duration::from_secs(6)).await;
        api.faults(Faults::default());
        tokio::time::sleep(Duration::from_secs(6)).await;
    }
    assert!(leader.changes.try_recv().is_err() && leader.authority.valid());
}

#[tokio::test(start_paused = true)]
async fn a_stolen_lease_deposes() {
    let api = FakeApi::new();
    let mut leader = Member::start(&api, "a_1");
    leader.elected(Duration::from_millis(100)).await;
    api.patch(LEASE, json!({"spec": {"holderIdentity": "thief"}}));
    let change = tokio::time::timeout(Duration::from_secs(5), leader.changes.recv()).await.unwrap();
    assert!(matches!(change, Some(Change::Deposed(_))));
    assert_eq!(holder(&api), "thief", "nobody else's Lease is released");
}
