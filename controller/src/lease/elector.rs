//! The decision part of leader election: no clock, no I/O.
//!
//! Flows in: what the Lease says, how writes ended, and the time (milliseconds of
//! a clock that never goes back). Flows out: what to do next. The rules are those
//! of client-go, so replicas of Kube-OVN and Weir respect each other: a Lease is
//! stale when *this process* has seen it unchanged for its duration (clocks of
//! other machines are never compared), and a leader stops when it could not renew
//! for the renew deadline, which is shorter.

use std::time::Duration;

/// Timings of the election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long others wait for a silent leader.
    pub lease: Duration,
    /// How long a leader may go without a renewal.
    pub renew: Duration,
    /// Time between attempts.
    pub retry: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { lease: seconds(15), renew: seconds(10), retry: seconds(2) }
    }
}

/// The fields of a Lease that matter. Times stay the API server's text: they are
/// compared for change only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// `metadata.resourceVersion`.
    pub version: String,
    /// `spec.holderIdentity`, empty when released.
    pub holder: String,
    /// `spec.leaseDurationSeconds`.
    pub duration_s: u64,
    /// `spec.acquireTime`.
    pub acquired: Option<String>,
    /// `spec.renewTime`.
    pub renewed: Option<String>,
    /// `spec.leaseTransitions`.
    pub transitions: i64,
}

/// A write to try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The version that must still be there; `None` creates the Lease.
    pub version: Option<String>,
    /// `true`: a new leadership, so acquireTime becomes now.
    pub acquire: bool,
    /// acquireTime of a leadership that goes on.
    pub acquired: Option<String>,
    /// leaseTransitions to write.
    pub transitions: i64,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Read the Lease.
    Read,
    /// Write it.
    Write(Attempt),
    /// Nothing before this time.
    Wait(u64),
    /// We led and lead no more: stop.
    Lost(&'static str),
}

/// One candidate.
#[derive(Clone, Debug)]
pub struct Elector {
    identity: String,
    timing: Timing,
    /// The Lease as seen last, and when it was first seen like that.
    seen: Option<(Option<Record>, u64)>,
    /// The record may be outdated: read before deciding.
    stale: bool,
    /// Start of the last successful write while leading.
    renewed_at: Option<u64>,
    /// Do nothing before this time.
    not_before: u64,
    lost: Option<&'static str>,
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Elector {
    /// A candidate that leads nothing yet. `identity` must be unique to the pod
    /// (its UID is in it) and the same after a restart of its container.
    pub fn new(identity: impl Into<String>, timing: Timing) -> Self {
        Self {
            identity: identity.into(),
            timing,
            seen: None,
            stale: true,
            renewed_at: None,
            not_before: 0,
            lost: None,
        }
    }

    /// We lead, as far as we know.
    pub fn leading(&self) -> bool {
        self.renewed_at.is_some() && self.lost.is_none()
    }

    /// Until when what we know of the Lease allows to write; `None` for followers.
    pub fn deadline(&self) -> Option<u64> {
        if self.lost.is_some() { None } else { self.renewed_at.map(|at| at + ms(self.timing.renew)) }
    }

    /// Who holds the Lease, as seen last.
    pub fn holder(&self) -> &str {
        match &self.seen {
            Some((Some(record), _)) => &record.holder,
            _ => "",
        }
    }

    /// The decision at this time.
    pub fn next(&self, now: u64) -> Next {
        if let Some(reason) = self.lost {
            return Next::Lost(reason);
        }
        if self.deadline().is_some_and(|deadline| now >= deadline) {
            return Next::Lost("the Lease could not be renewed in time");
        }
        if now < self.not_before {
            // A leader has to notice its deadline even while it waits.
            return Next::Wait(self.deadline().map_or(self.not_before, |at| at.min(self.not_before)));
        }
        let (Some((record, since)), false) = (&self.seen, self.stale) else { return Next::Read };
        let Some(record) = record else {
            return Next::Write(Attempt { version: None, acquire: true, acquired: None, transitions: 0 });
        };
        let version = Some(record.version.clone());
        if record.holder == self.identity {
            // Ours: a renewal, or the Lease of this pod's container before its restart, which is
            // gone for certain, so there is nothing to wait for.
            let acquire = self.renewed_at.is_none();
            let acquired = record.acquired.clone();
            return Next::Write(Attempt { version, acquire, acquired, transitions: record.transitions });
        }
        let expires = since.saturating_add(record.duration_s.saturating_mul(1_000));
        if record.holder.is_empty() || now >= expires {
            let transitions = record.transitions.saturating_add(1);
            return Next::Write(Attempt { version, acquire: true, acquired: None, transitions });
        }
        Next::Wait(expires)
    }

    /// The Lease was read (`None`: there is none).
    pub fn read(&mut self, now: u64, record: Option<Record>) {
        if self.leading() && record.as_ref().is_none_or(|record| record.holder != self.identity) {
            self.lost = Some("another candidate holds the Lease");
        }
        let foreign = record.as_ref().is_some_and(|r| !r.holder.is_empty() && r.holder != self.identity);
        self.stale = false;
        match &self.seen {
            Some((same, _)) if *same == record => {}
            _ => self.seen = Some((record, now)),
        }
        if foreign && let Next::Wait(expires) = self.next(now) {
            // Somebody else leads: look again after the retry period, or when the Lease would expire.
            self.pause_until((now + ms(self.timing.retry)).min(expires));
        }
    }

    /// A write that was started at `started` succeeded. One that is answered after the deadline of a leader comes too
    /// late: between the two it had no permission, and what it was to write then is lost.
    pub fn wrote(&mut self, started: u64, now: u64, record: Record) {
        if self.deadline().is_some_and(|deadline| now >= deadline) {
            self.lost = Some("the Lease was renewed only after its time");
        }
        self.renewed_at = Some(started);
        self.seen = Some((Some(record), now));
        self.stale = false;
        self.not_before = started + ms(self.timing.retry);
    }

    /// A read or write failed. `conflict`: somebody else wrote in between, so what
    /// we know is outdated.
    pub fn failed(&mut self, now: u64, conflict: bool) {
        // The outcome of a write that failed otherwise is unknown, so read in that case too.
        self.stale = true;
        // A leader tries again soon, since its deadline runs; conflicts are answered by a look at once.
        let delay = if conflict { 100 } else { ms(self.timing.retry) / 2 };
        self.not_before = now + delay;
    }

    fn pause_until(&mut self, at: u64) {
        self.not_before = at;
        self.stale = true;
    }

    /// What to write to release the Lease; `None` when we don't hold it. Leads no
    /// more afterwards.
    pub fn release(&mut self) -> Option<Attempt> {
        let held = self.leading();
        self.lost = Some("released");
        match &self.seen {
            Some((Some(record), _)) if held && record.holder == self.identity => Some(Attempt {
                version: Some(record.version.clone()),
                acquire: false,
                acquired: record.acquired.clone(),
                transitions: record.transitions,
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: &str = "controller-a_uid-a";
    const OTHER: &str = "controller-b_uid-b";

    fn elector() -> Elector {
        Elector::new(ME, Timing::default())
    }

    fn record(holder: &str, version: &str) -> Record {
        Record {
            version: version.into(),
            holder: holder.into(),
            duration_s: 15,
            acquired: Some("t0".into()),
            renewed: Some(format!("t{version}")),
            transitions: 3,
        }
    }

    fn attempt(next: Next) -> Attempt {
        match next {
            Next::Write(attempt) => attempt,
            other => panic!("expected a write, got {other:?}"),
        }
    }

    fn leader(now: u64) -> Elector {
        let mut elector = elector();
        elector.read(now, None);
        elector.wrote(now, now, record(ME, "1"));
        elector
    }

    #[test]
    fn a_missing_lease_is_created_and_a_released_one_taken_at_once() {
        let mut elector = elector();
        assert_eq!(elector.next(0), Next::Read);
        elector.read(0, None);
        assert_eq!(attempt(elector.next(0)).version, None);
        elector.read(0, Some(record("", "7")));
        let attempt = attempt(elector.next(0));
        assert_eq!((attempt.version.as_deref(), attempt.acquire, attempt.transitions), (Some("7"), true, 4));
    }

    #[test]
    fn the_same_pod_takes_its_lease_back_at_once() {
        let mut elector = elector();
        elector.read(0, Some(record(ME, "7")));
        let attempt = attempt(elector.next(0));
        assert!(attempt.acquire, "a restarted container is a new leadership");
        assert_eq!(attempt.transitions, 3, "the holder does not change");
    }

    #[test]
    fn a_foreign_lease_is_respected_until_it_was_unchanged_for_its_duration() {
        let mut elector = elector();
        elector.read(1_000, Some(record(OTHER, "7")));
        assert_eq!(elector.next(1_000), Next::Wait(3_000));
        assert_eq!(elector.next(3_000), Next::Read);
        elector.read(3_000, Some(record(OTHER, "8")));
        for now in (5_000..18_000).step_by(2_000) {
            assert_eq!(elector.next(now), Next::Read);
            elector.read(now, Some(record(OTHER, "8")));
            assert!(matches!(elector.next(now), Next::Wait(_)), "{now}");
        }
        // Seen unchanged since 3 s: the last look is at 18 s sharp, not a retry period later.
        assert_eq!(elector.next(17_500), Next::Wait(18_000));
        assert_eq!(elector.next(18_000), Next::Read);
        elector.read(18_000, Some(record(OTHER, "8")));
        assert!(attempt(elector.next(18_000)).acquire);
    }

    #[test]
    fn a_lease_that_asks_for_longer_is_given_longer() {
        let mut elector = elector();
        let mut long = record(OTHER, "7");
        long.duration_s = 30;
        elector.read(0, Some(long.clone()));
        elector.read(29_000, Some(long.clone()));
        assert!(matches!(elector.next(29_000), Next::Wait(30_000)));
        elector.read(30_000, Some(long));
        assert!(matches!(elector.next(30_000), Next::Write(_)));
    }

    #[test]
    fn a_leader_renews_every_retry_period() {
        let mut elector = leader(0);
        assert!(elector.leading());
        assert_eq!(elector.next(0), Next::Wait(2_000));
        let renewal = attempt(elector.next(2_000));
        assert_eq!((renewal.acquire, renewal.version.as_deref()), (false, Some("1")));
        assert_eq!(renewal.acquired.as_deref(), Some("t0"), "acquireTime stays");
        elector.wrote(2_000, 2_100, record(ME, "2"));
        assert_eq!(elector.deadline(), Some(12_000), "counted from the start of the write");
    }

    #[test]
    fn a_leader_that_can_not_renew_stops_before_others_start() {
        let mut elector = leader(0);
        for now in [3_000, 5_000, 8_000, 9_000] {
            elector.failed(now, false);
            assert!(matches!(elector.next(now), Next::Wait(at) if at <= 10_000));
        }
        assert!(matches!(elector.next(10_000), Next::Lost(_)));
        // Also when it only wakes up much later (paused process, paused machine).
        assert!(matches!(elector.next(500_000), Next::Lost(_)));
        assert!(elector.timing.renew < elector.timing.lease, "others wait for longer");
    }

    #[test]
    fn a_renewal_that_is_answered_too_late_is_none() {
        let mut elector = leader(0);
        elector.wrote(9_500, 11_500, record(ME, "2"));
        assert!(matches!(elector.next(11_500), Next::Lost(_)));
        assert!(!elector.leading() && elector.deadline().is_none());
        // Of a candidate that leads nothing yet, no answer is too late.
        let mut candidate = self::elector();
        candidate.read(0, None);
        candidate.wrote(0, 500_000, record(ME, "1"));
        assert!(candidate.leading());
        assert!(matches!(candidate.next(500_000), Next::Lost(_)), "counted from the start of the write");
    }

    #[test]
    fn a_leader_that_sees_another_holder_is_lost_for_good() {
        let mut elector = leader(0);
        elector.failed(2_000, true);
        assert_eq!(elector.next(2_100), Next::Read);
        elector.read(2_100, Some(record(OTHER, "9")));
        assert!(matches!(elector.next(2_100), Next::Lost(_)));
        elector.read(2_200, Some(record("", "10")));
        assert!(matches!(elector.next(2_200), Next::Lost(_)), "the process must exit, not lead again");
        assert!(!elector.leading() && elector.deadline().is_none());
    }

    #[test]
    fn an_unknown_outcome_is_read_again() {
        let mut elector = leader(0);
        elector.failed(4_000, false);
        assert_eq!(elector.next(5_000), Next::Read);
        elector.read(5_000, Some(record(ME, "2")));
        assert_eq!(attempt(elector.next(5_000)).version.as_deref(), Some("2"));
    }

    #[test]
    fn only_a_holder_releases() {
        assert_eq!(elector().release(), None);
        let mut elector = leader(0);
        assert_eq!(elector.release().unwrap().version.as_deref(), Some("1"));
        assert!(matches!(elector.next(1), Next::Lost(_)));
        assert_eq!(elector.release(), None, "once");
    }
}
