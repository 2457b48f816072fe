//! What it means that the API server refuses a kind that the agent can do without.
//!
//! In: refusals (403, 404) one after another, and what is known of the kind. Out: whether the kind is absent, is kept from
//! the agent, or whether to go on asking. The rule behind it: "there is none" is concluded only from an answer that says
//! so, since consumers take away from the node what is gone.
//!
//! A server that starts refuses what it has not loaded the permissions for yet, and an upgrade may replace a ClusterRole in
//! two steps; both pass. Who deletes a CustomResourceDefinition deletes its objects: the watch tells of each, and the
//! refusals that follow only confirm it.

use std::time::{Duration, Instant};

use kube::runtime::watcher;

use super::fact::Fact;
use super::reflect::Loaded;

/// The agent may not see the kind.
pub(super) const FORBIDDEN: u16 = 403;
/// There is no such kind.
const NOT_FOUND: u16 = 404;

/// How long refusals are only a disturbance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// A kind that was never seen and is forbidden; longer than a starting server or an upgrade takes.
    pub(super) forbidden: Duration,
    /// A kind that was there and is not found.
    pub(super) gone: Duration,
    /// Pause after which a kind that is absent or denied is asked for again; also the longest between refusals that count
    /// as one row of them.
    pub(super) again: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            forbidden: Duration::from_secs(20),
            gone: Duration::from_secs(300),
            again: Duration::from_secs(60),
        }
    }
}

/// What follows from a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing yet.
    Retry,
    /// Nothing is going to be known of the kind, until somebody permits it.
    Denied,
    /// There is no object of the kind.
    Absent,
}

/// Refusals without another answer between them.
#[derive(Debug)]
pub(super) struct Refusals {
    bounds: Bounds,
    row: Option<Row>,
    absent: bool,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    code: u16,
    since: Instant,
    last: Instant,
}

impl Refusals {
    /// None so far.
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { bounds, row: None, absent: false }
    }

    /// The server shows the kind.
    pub(super) fn over(&mut self) {
        (self.row, self.absent) = (None, false);
    }

    /// Judges one refusal.
    pub(super) fn judge<T: Fact>(&mut self, code: u16, known: &Loaded<T>, now: Instant) -> Verdict {
        // A watch that is resumed and has nothing to tell says nothing, so silence may be success.
        let goes_on = |row: &Row| row.code == code && now.duration_since(row.last) <= self.bounds.again;
        let since = self.row.filter(goes_on).map_or(now, |row| row.since);
        self.row = Some(Row { code, since, last: now });
        let lasts = now.duration_since(since);
        let verdict = match code {
            NOT_FOUND if !known.synced || self.absent || lasts >= self.bounds.gone => Verdict::Absent,
            FORBIDDEN if !known.synced && (known.denied || lasts >= self.bounds.forbidden) => Verdict::Denied,
            _ => Verdict::Retry,
        };
        self.absent = verdict == Verdict::Absent;
        verdict
    }
}

/// The status of a refusal; `None` if the server, or the network, has another trouble.
pub(super) fn code(error: &watcher::Error) -> Option<u16> {
    use watcher::Error::{InitialListFailed, WatchStartFailed};
    match error {
        InitialListFailed(kube::Error::Api(status)) | WatchStartFailed(kube::Error::Api(status)) => {
            Some(status.code).filter(|code| matches!(*code, FORBIDDEN | NOT_FOUND))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::facts::SubnetFacts;
    use super::*;

    /// Verdicts of a row of refusals: seconds since the start, status.
    fn verdicts(known: &Loaded<SubnetFacts>, row: &[(u64, u16)]) -> Vec<Verdict> {
        let start = Instant::now();
        let mut refusals = Refusals::new(Bounds::default());
        row.iter().map(|(at, code)| refusals.judge(*code, known, start + Duration::from_secs(*at))).collect()
    }

    #[test]
    fn only_a_lasting_answer_that_there_is_no_such_kind_means_none() {
        use Verdict::{Absent, Denied, Retry};
        let never = Loaded::<SubnetFacts>::default();
        let synced = Loaded::<SubnetFacts> { synced: true, ..Loaded::default() };
        let denied = Loaded::<SubnetFacts> { denied: true, ..Loaded::default() };
        assert_eq!(verdicts(&never, &[(0, 404), (60, 404)]), [Absent, Absent]);
        assert_eq!(verdicts(&never, &[(0, 403), (19, 403), (20, 403)]), [Retry, Retry, Denied]);
        assert_eq!(verdicts(&denied, &[(0, 403), (1, 404)]), [Denied, Absent]);
        assert_eq!(verdicts(&synced, &[(0, 403), (60, 403), (9999, 403)]), [Retry; 3], "it was seen");
        let minutes: Vec<_> = (0..=10).map(|n| (n * 30, 404)).collect();
        let mut wanted = vec![Retry; 10];
        wanted.push(Absent);
        assert_eq!(verdicts(&synced, &minutes), wanted);
        // What breaks the row: another answer, or a silence in which the watch may have worked.
        assert_eq!(verdicts(&synced, &[(0, 404), (60, 403), (120, 404), (300, 404)]), [Retry; 4]);
        assert_eq!(verdicts(&never, &[(0, 403), (61, 403)]), [Retry; 2]);
    }

    #[test]
    fn a_kind_that_is_absent_stays_so_until_it_is_shown() {
        let mut refusals = Refusals::new(Bounds::default());
        let (never, start) = (Loaded::<SubnetFacts>::default(), Instant::now());
        let synced = Loaded::<SubnetFacts> { synced: true, ..Loaded::default() };
        assert_eq!(refusals.judge(404, &never, start), Verdict::Absent);
        assert_eq!(refusals.judge(404, &synced, start), Verdict::Absent);
        refusals.over();
        assert_eq!(refusals.judge(404, &synced, start), Verdict::Retry);
    }
}
