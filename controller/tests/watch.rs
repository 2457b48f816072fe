//! Watches against an API server in memory, with paused time: what is lost, mute,
//! missing, bad or refused on the way must not be lost, mute or missing here.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fake;

use std::collections::BTreeSet;
use std::time::Duration;

use controller::facts::{Kind, ObjectRef};
use controller::io::Input;
use controller::kube_io::client::Api;
use controller::kube_io::resource::Resource;
use controller::watch::{Delivery, WINDOW, WINDOW_GRACE, WatchStatus, Watches};
use fake::{FakeApi, Faults};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

struct Rig {
    api: FakeApi,
    inputs: mpsc::Receiver<Delivery>,
    watches: Watches,
    stop: CancellationToken,
}

impl Rig {
    fn start(api: FakeApi, kinds: &[Kind]) -> Self {
        let (sender, inputs) = mpsc::channel(1_024);
        let stop = CancellationToken::new();
        let resources = kinds.iter().map(|kind| Resource::of(*kind).unwrap()).collect();
        let watches = Watches::start(&Api::new(api.client()), resources, &sender, &stop);
        Self { api, inputs, watches, stop }
    }

    async fn next(&mut self) -> Input {
        let next = tokio::time::timeout(Duration::from_secs(600), self.inputs.recv()).await;
        next.expect("an input within ten minutes").expect("watches run").input
    }

    async fn silent_for(&mut self, time: Duration) {
        if let Ok(input) = tokio::time::timeout(time, self.inputs.recv()).await {
            panic!("unexpected {:?}", input.map(|delivery| delivery.input));
        }
    }

    fn status(&self, kind: Kind) -> WatchStatus {
        self.watches.statuses.all()[&kind].clone()
    }
}

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name, "uid": format!("uid-{name}")}, "spec": {"nodeName": "n1"}})
}

fn subnet(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"cidrBlock": "10.1.0.0/16"}})
}

const PODS: &str = "/api/v1/namespaces/a/pods";
const SUBNETS: &str = "/apis/kubeovn.io/v1/subnets";

fn listed(input: Input) -> BTreeSet<String> {
    match input {
        Input::Listed(_, objects) => objects.iter().map(|object| object.meta().name.to_string()).collect(),
        other => panic!("expected a list, got {other:?}"),
    }
}

fn names(list: &[&str]) -> BTreeSet<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn lists_page_by_page_then_follows() {
    let api = FakeApi::new();
    for number in 0..1_234 {
        api.create(PODS, pod(&format!("p{number}")));
    }
    let mut rig = Rig::start(api, &[Kind::Pod]);
    assert_eq!(listed(rig.next().await).len(), 1_234);
    let pages = rig.api.requests().iter().filter(|request| *request == "GET /api/v1/pods").count();
    assert!(pages >= 3, "{pages}");

    rig.api.create(PODS, pod("new"));
    assert!(matches!(rig.next().await, Input::Applied(object) if &*object.meta().name == "new"));
    rig.api.patch(&format!("{PODS}/new"), json!({"metadata": {"labels": {"a": "b"}}}));
    assert!(matches!(rig.next().await, Input::Applied(object) if object.meta().labels.len() == 1));
    rig.api.delete(&format!("{PODS}/new"));
    let Input::Deleted(gone) = rig.next().await else { panic!() };
    assert_eq!(gone, ObjectRef::namespaced(Kind::Pod, "a", "new"));
    let status = rig.status(Kind::Pod);
    assert_eq!((status.objects, status.lists, status.events, status.bad), (1_234, 1, 3, 0));
}

#[tokio::test(start_paused = true)]
async fn events_arrive_whole_however_they_are_cut() {
    let api = FakeApi::new();
    api.faults(Faults { chop: true, ..Faults::default() });
    let mut rig = Rig::start(api, &[Kind::Pod]);
    assert!(listed(rig.next().await).is_empty());
    for number in 0..50 {
        rig.api.create(PODS, pod(&format!("p\u{e9}-{number}")));
    }
    for number in 0..50 {
        let Input::Applied(object) = rig.next().await else { panic!() };
        assert_eq!(&*object.meta().name, format!("p\u{e9}-{number}"));
    }
    assert_eq!(rig.status(Kind::Pod).failures, 0);
}

#[tokio::test(start_paused = true)]
async fn a_list_whose_pages_expire_starts_again() {
    let api = FakeApi::new();
    for number in 0..1_234 {
        api.create(PODS, pod(&format!("p{number}")));
    }
    api.faults(Faults { expire_page: true, ..Faults::default() });
    let mut rig = Rig::start(api, &[Kind::Pod]);
    assert_eq!(listed(rig.next().await).len(), 1_234, "complete, or not at all");
}

#[tokio::test(start_paused = true)]
async fn windows_end_without_lists_or_inputs() {
    let api = FakeApi::new();
    api.create(PODS, pod("p"));
    let mut rig = Rig::start(api, &[Kind::Pod]);
    rig.next().await;
    let before = rig.status(Kind::Pod).checksum;
    rig.silent_for(WINDOW * 20).await;
    let status = rig.status(Kind::Pod);
    assert_eq!((status.lists, status.failures, status.checksum), (1, 0, before));
    assert!(status.proof.unwrap().elapsed() <= WINDOW);
}

#[tokio::test(start_paused = true)]
async fn what_was_deleted_unseen_is_told_by_the_next_list() {
    let api = FakeApi::new();
    for name in ["stays", "goes"] {
        api.create(PODS, pod(name));
    }
    let mut rig = Rig::start(api, &[Kind::Pod]);
    assert_eq!(listed(rig.next().await), names(&["goes", "stays"]));
    rig.api.faults(Faults { mute: true, ..Faults::default() });
    rig.api.delete(&format!("{PODS}/goes"));
    rig.api.compact();
    rig.silent_for(Duration::from_secs(60)).await;
    rig.api.faults(Faults::default());
    assert_eq!(listed(rig.next().await), names(&["stays"]));
}

#[tokio::test(start_paused = true)]
async fn a_mute_connection_is_noticed_and_missed_events_come_soon_after_healing() {
    let api = FakeApi::new();
    for name in ["stays", "goes"] {
        api.create(PODS, pod(name));
    }
    let mut rig = Rig::start(api, &[Kind::Pod]);
    rig.next().await;
    // Nothing arrives and nothing ends: no error, no RST, and the old stream never speaks again.
    rig.api.faults(Faults { mute: true, ..Faults::default() });
    rig.api.delete(&format!("{PODS}/goes"));
    rig.silent_for(Duration::from_secs(60)).await;
    let status = rig.status(Kind::Pod);
    assert!(status.problem.is_some(), "noticed: {status:?}");
    assert!(status.proof.unwrap().elapsed() >= Duration::from_secs(60 - 1), "silence is no proof of life");
    rig.api.faults(Faults::default());
    let healed = tokio::time::Instant::now();
    match rig.next().await {
        Input::Deleted(gone) => assert_eq!(&*gone.name, "goes"),
        other => assert_eq!(listed(other), names(&["stays"])),
    }
    assert!(healed.elapsed() < Duration::from_secs(10), "{:?}", healed.elapsed());
    assert!(rig.status(Kind::Pod).problem.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_short_silence_is_survived_within_one_window() {
    let api = FakeApi::new();
    api.create(PODS, pod("p"));
    let mut rig = Rig::start(api, &[Kind::Pod]);
    rig.next().await;
    rig.api.faults(Faults { mute: true, ..Faults::default() });
    rig.api.delete(&format!("{PODS}/p"));
    tokio::time::sleep(Duration::from_secs(2)).await;
    rig.api.faults(Faults::default());
    let healed = tokio::time::Instant::now();
    assert!(matches!(rig.next().await, Input::Deleted(_)));
    assert!(healed.elapsed() <= WINDOW + WINDOW_GRACE, "even when the sockets noticed nothing");
}

#[tokio::test(start_paused = true)]
async fn bad_objects_are_skipped_counted_and_keep_their_last_good_version() {
    let api = FakeApi::new();
    api.create(SUBNETS, subnet("good"));
    api.create(SUBNETS, subnet("turns-bad"));
    let mut bad = subnet("bad");
    bad["spec"]["cidrBlock"] = json!({"not": "text"});
    api.create(SUBNETS, bad);
    let mut rig = Rig::start(api, &[Kind::Subnet]);
    assert_eq!(listed(rig.next().await), names(&["good", "turns-bad"]));
    assert_eq!(rig.status(Kind::Subnet).bad, 1);

    rig.api.patch(&format!("{SUBNETS}/turns-bad"), json!({"spec": {"cidrBlock": 7}}));
    rig.api.patch(&format!("{SUBNETS}/good"), json!({"metadata": {"labels": {"a": "b"}}}));
    assert!(matches!(rig.next().await, Input::Applied(object) if &*object.meta().name == "good"));
    assert_eq!(rig.status(Kind::Subnet).bad, 2);

    // It must not look deleted in a list either.
    rig.api.compact();
    assert_eq!(listed(rig.next().await), names(&["good", "turns-bad"]));

    rig.api.patch(&format!("{SUBNETS}/bad"), json!({"spec": {"cidrBlock": "10.9.0.0/16"}}));
    assert!(matches!(rig.next().await, Input::Applied(object) if &*object.meta().name == "bad"), "it heals");
    rig.api.delete(&format!("{SUBNETS}/turns-bad"));
    assert!(
        matches!(rig.next().await, Input::Deleted(gone) if &*gone.name == "turns-bad"),
        "deletions need no spec"
    );
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_not_installed_is_tolerated_and_found_later() {
    let vips = "/apis/kubeovn.io/v1/vips";
    let kind = Kind::Other("vips");
    let api = FakeApi::new();
    api.uninstall(vips);
    let mut rig = Rig::start(api, &[kind]);
    assert!(listed(rig.next().await).is_empty());
    assert!(rig.status(kind).loaded && rig.status(kind).absent);
    rig.silent_for(Duration::from_secs(300)).await;
    rig.api.install(vips);
    rig.api.create(vips, json!({"metadata": {"name": "v"}}));
    assert_eq!(listed(rig.next().await), names(&["v"]));
    assert!(!rig.status(kind).absent);
    rig.api.uninstall(vips);
    rig.api.compact();
    assert!(listed(rig.next().await).is_empty(), "with its kind, an object is gone");
}

/// KubeVirt is not there, then it is, then it goes.
#[tokio::test(start_paused = true)]
async fn kinds_of_kubevirt_are_looked_for_by_discovery() {
    let machines = "/apis/kubevirt.io/v1/virtualmachines";
    let kind = Kind::VirtualMachine;
    let api = FakeApi::new();
    // Whoever has no KubeVirt has no role for it either.
    api.faults(Faults { forbid: Some("/virtualmachines".to_owned()), ..Faults::default() });
    let mut rig = Rig::start(api, &[kind]);
    assert!(listed(rig.next().await).is_empty());
    rig.silent_for(Duration::from_secs(100)).await;
    let status = rig.status(kind);
    assert!(status.loaded && status.absent && status.problem.is_none() && status.failures == 0, "{status:?}");
    let asked = rig.api.requests();
    assert!(asked.iter().all(|request| request == "GET /apis/kubevirt.io/v1"), "{asked:?}");
    assert!((9..=12).contains(&asked.len()), "every ten seconds: {}", asked.len());
    // Another kind of the group comes first.
    rig.api.install("/apis/kubevirt.io/v1/kubevirts");
    rig.silent_for(Duration::from_secs(30)).await;
    rig.api.install(machines);
    rig.silent_for(Duration::from_secs(30)).await;
    let problem = rig.status(kind).problem.unwrap();
    assert!(problem.contains("ClusterRole"), "what one may not see is not taken for empty: {problem}");
    rig.api.faults(Faults::default());
    rig.api
        .create("/apis/kubevirt.io/v1/namespaces/web/virtualmachines", json!({"metadata": {"name": "vm"}}));
    let healed = tokio::time::Instant::now();
    // Whichever comes first, the list or the machine.
    while rig.status(kind).objects == 0 {
        rig.next().await;
    }
    assert!(healed.elapsed() <= Duration::from_secs(10));
    assert!(!rig.status(kind).absent && rig.status(kind).problem.is_none());
    // A server that forgets the kind for a moment (it starts, or is upgraded) takes nothing away.
    rig.api.uninstall(machines);
    rig.api.compact();
    rig.silent_for(Duration::from_secs(30)).await;
    assert_eq!(rig.status(kind).objects, 1);
    rig.api.install(machines);
    assert_eq!(listed(rig.next().await), names(&["vm"]));
    rig.api.uninstall(machines);
    rig.api.compact();
    assert!(listed(rig.next().await).is_empty(), "after a minute its objects are gone with it");
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_needed_is_never_taken_for_empty() {
    let api = FakeApi::new();
    api.uninstall(SUBNETS);
    let mut rig = Rig::start(api, &[Kind::Subnet]);
    rig.silent_for(Duration::from_secs(60)).await;
    let status = rig.status(Kind::Subnet);
    assert!(!status.loaded && status.problem.unwrap().contains("CRDs"));
    rig.api.install(SUBNETS);
    rig.api.create(SUBNETS, subnet("s"));
    assert_eq!(listed(rig.next().await), names(&["s"]));
    // A server that forgets the kind for a while (an upgrade of its own) is no reason to delete networks.
    rig.api.uninstall(SUBNETS);
    rig.api.compact();
    rig.silent_for(Duration::from_secs(120)).await;
    assert_eq!(rig.status(Kind::Subnet).objects, 1);
}

#[tokio::test(start_paused = true)]
async fn a_role_of_an_older_kube_ovn_does_not_stop_the_rest() {
    let kind = Kind::Other("bgp-confs");
    let api = FakeApi::new();
    api.faults(Faults { forbid: Some("/bgp-confs".to_owned()), ..Faults::default() });
    let mut rig = Rig::start(api, &[kind]);
    assert!(listed(rig.next().await).is_empty());
    assert!(rig.status(kind).loaded && rig.status(kind).problem.unwrap().contains("ClusterRole"));
    rig.silent_for(Duration::from_secs(300)).await;
    rig.api.create("/apis/kubeovn.io/v1/bgp-confs", json!({"metadata": {"name": "b"}}));
    rig.api.faults(Faults::default());
    assert_eq!(listed(rig.next().await), names(&["b"]));
    assert!(rig.status(kind).problem.is_none());
}

#[tokio::test(start_paused = true)]
async fn refusals_are_retried_with_the_remedy_in_the_status() {
    let api = FakeApi::new();
    api.create(PODS, pod("p"));
    api.faults(Faults { forbid: Some("/pods".to_owned()), ..Faults::default() });
    let mut rig = Rig::start(api, &[Kind::Pod]);
    rig.silent_for(Duration::from_secs(30)).await;
    let attempts = rig.api.requests().len();
    assert!((10..60).contains(&attempts), "neither a storm nor a sleep: {attempts}");
    assert!(rig.status(Kind::Pod).problem.unwrap().contains("ClusterRole"));
    rig.api.faults(Faults::default());
    assert_eq!(listed(rig.next().await), names(&["p"]));
}

#[tokio::test(start_paused = true)]
async fn checksums_depend_on_content_alone() {
    let api = FakeApi::new();
    for name in ["a", "b", "c"] {
        api.create(PODS, pod(name));
    }
    let mut rig = Rig::start(api, &[Kind::Pod]);
    rig.next().await;
    rig.api.create(PODS, pod("d"));
    rig.api.delete(&format!("{PODS}/a"));
    rig.next().await;
    rig.next().await;
    let mut other = Rig::start(rig.api.clone(), &[Kind::Pod]);
    other.next().await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    let (one, two) = (rig.status(Kind::Pod), other.status(Kind::Pod));
    assert_eq!((one.objects, one.checksum), (3, two.checksum));
}

/// Asked for a list: it comes, from the server, and behind it the number; whatever the watch
/// was doing, and once for each number.
#[tokio::test(start_paused = true)]
async fn a_list_that_is_asked_for_comes_with_its_number_behind() {
    let api = FakeApi::new();
    api.create(SUBNETS, subnet("s1"));
    let mut rig = Rig::start(api, &[Kind::Subnet, Kind::Pod]);
    for _ in 0..2 {
        rig.next().await;
    }
    let refresher = rig.watches.refresher.clone();
    let fresh = |input: Input, number: u64| matches!(input, Input::Fresh(Kind::Subnet, n) if n == number);
    // While it follows; of a connection that has become mute too.
    for (number, mute) in [(1, false), (2, true)] {
        if mute {
            rig.api.faults(Faults { mute: true, ..Faults::default() });
            rig.api.delete(&format!("{SUBNETS}/s1"));
        }
        refresher.ask(Kind::Subnet, number);
        if mute {
            rig.silent_for(Duration::from_secs(5)).await;
            rig.api.faults(Faults::default());
        }
        assert_eq!(listed(rig.next().await), names(if mute { &[] } else { &["s1"] }));
        assert!(fresh(rig.next().await, number));
        rig.silent_for(Duration::from_secs(120)).await;
    }
    // Before the first list is there: it counts, if it began after.
    let mut rig = Rig::start(FakeApi::new(), &[Kind::Subnet]);
    rig.watches.refresher.ask(Kind::Subnet, 7);
    assert!(listed(rig.next().await).is_empty());
    assert!(fresh(rig.next().await, 7));
    rig.silent_for(Duration::from_secs(120)).await;
}

#[tokio::test(start_paused = true)]
async fn watches_end_when_told() {
    let rig = Rig::start(FakeApi::new(), &[Kind::Pod, Kind::Node]);
    rig.stop.cancel();
    rig.watches.ended().await;
}
