//! A pod's grace period, and what a deadline makes of it. Pure.

use super::deadline::Deadline;
use std::time::Duration;
use tokio::time::Instant;

/// Time kept free before a hard deadline: a kubelet has to see a deletion, and the API server its end.
const REAP: Duration = Duration::from_secs(2);

/// Maximum time that an eviction is tried before the pod is deleted; a quarter of the time left, if that is less.
const TRIAL: Duration = Duration::from_secs(10);

/// Minimum time that an eviction is tried, however little time is left.
const MIN_TRIAL: Duration = Duration::from_millis(500);

/// Maximum distance between a pod's end and a hard deadline at which the pod's end is not brought forward.
const CLOSE: Duration = Duration::from_secs(1);

/// Maximum grace period: the API takes any number.
const MAX_GRACE: Duration = Duration::from_hours(24 * 366);

/// Grace period of a pod that names none, in seconds: Kubernetes' default.
const DEFAULT_GRACE: u64 = 30;

/// The treatment of pods that a hard deadline finds on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtDeadline {
    /// Delete them in time to stop by themselves, whatever their budgets say: otherwise the node takes them along.
    Delete,
    /// Leave them.
    Leave,
}

/// How long a pod's end takes. Pure arithmetic on what it was given and what the user wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grace {
    /// Every pod's, if the user says so, in whole seconds.
    pub wanted: Option<Duration>,
    /// The pod's own, in seconds.
    pub own: Option<i64>,
}

impl Grace {
    /// What the pod is given when nothing presses; never 0, which would take it from the API while its containers run.
    #[must_use]
    pub fn full(self) -> Duration {
        let own = || self.own.map_or(DEFAULT_GRACE, |own| u64::try_from(own).unwrap_or(1));
        Duration::from_secs(self.wanted.map_or_else(own, |wanted| wanted.as_secs()).max(1)).min(MAX_GRACE)
    }

    /// What the pod is given at `now`: before a hard deadline no longer than the time left, less what its removal takes. At least 1 s.
    #[must_use]
    pub fn at(self, now: Instant, deadline: Deadline) -> Duration {
        let full = self.full();
        if !deadline.is_hard() {
            return full;
        }
        Duration::from_secs(full.as_secs().min(whole_seconds_left(now, deadline)))
    }

    /// What an eviction says at `now`: nothing, where the pod's own will do.
    #[must_use]
    pub fn to_send(self, now: Instant, deadline: Deadline) -> Option<Duration> {
        let given = self.at(now, deadline);
        (self.wanted.is_some() || given < self.full()).then_some(given)
    }

    /// When a pod that may not be evicted is deleted, if its eviction was first tried at `tried`: as late as its grace period allows,
    /// but never before the eviction was tried for a while. Never, where the deadline is soft.
    #[must_use]
    pub fn deleted_at(self, deadline: Deadline, tried: Instant) -> Option<Instant> {
        let latest = self.told_by(deadline)?;
        let fair = tried + TRIAL.min(deadline.at().saturating_duration_since(tried) / 4).max(MIN_TRIAL);
        Some(latest.max(fair))
    }

    /// When the pod must be told at the latest that it is to end, so that it can before a hard deadline; `None`, where that is soft.
    #[must_use]
    pub fn told_by(self, deadline: Deadline) -> Option<Instant> {
        deadline.is_hard().then(|| earlier(deadline.at(), self.full() + REAP))
    }

    /// Until when a pod that asks not to be disturbed is left in peace: then there is just time to try an eviction, and to
    /// delete it. Without end, where the deadline is soft.
    #[must_use]
    pub fn peace_until(self, deadline: Deadline) -> Option<Instant> {
        deadline.is_hard().then(|| earlier(deadline.at(), self.full() + REAP + TRIAL))
    }

    /// The grace period that brings the end of a pod, expected at `ends`, forward to where a hard deadline wants it; `None` if it
    /// ends in time anyway, or can't end any sooner.
    #[must_use]
    pub fn shortened(ends: Instant, now: Instant, deadline: Deadline) -> Option<Duration> {
        let shorter = Duration::from_secs(whole_seconds_left(now, deadline));
        (deadline.is_hard() && ends > earlier(deadline.at(), CLOSE) && now + shorter < ends).then_some(shorter)
    }
}

/// The time to a deadline, less what a pod's removal takes. To the nearest second: a call that is some milliseconds late must not cost
/// the pod a whole one. At least 1.
fn whole_seconds_left(now: Instant, deadline: Deadline) -> u64 {
    let left = deadline.at().saturating_duration_since(now).saturating_sub(REAP);
    (left + Duration::from_millis(500)).as_secs().max(1)
}

fn earlier(at: Instant, by: Duration) -> Instant {
    // An instant before the machine's start can't be written; it has passed, too.
    at.checked_sub(by).unwrap_or(at)
}

/// When the tier of this `rank` begins at the latest, of `tiers` that share the time from `begun` to `deadline`: each has an equal
/// part, so that one that is blocked leaves the next its own.
#[must_use]
pub fn tier_begins(begun: Instant, deadline: Instant, rank: u32, tiers: u32) -> Instant {
    begun + deadline.saturating_duration_since(begun) * rank / tiers.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_grace_sent() {
        let now = Instant::now();
        let table = [
            // wanted, own, left, hard → sent
            (None, Some(30), 120, true, None),
            (None, Some(300), 120, true, Some(118)),
            (None, None, 20, true, Some(18)),
            (None, Some(300), 120, false, None),
            (Some(s(10)), Some(30), 120, true, Some(10)),
            (Some(s(200)), Some(30), 120, true, Some(118)),
            (Some(s(0)), Some(30), 120, false, Some(1)),
            (None, Some(30), 0, true, Some(1)),
            (None, Some(0), 0, true, None),
        ];
        for (wanted, own, left, hard, sent) in table {
            let deadline = if hard { Deadline::hard(now + s(left)) } else { Deadline::soft(now + s(left)) };
            let found = Grace { wanted, own }.to_send(now, deadline);
            assert_eq!(found, sent.map(s), "{wanted:?} {own:?} {left:?} {hard}");
        }
    }

    #[test]
    fn a_pod_is_deleted_as_late_as_its_grace_allows_and_never_untried() {
        let now = Instant::now();
        let table = [
            // grace, left at the first try → deleted so many milliseconds after it
            (30, 120, 88_000),
            (300, 120, 10_000),
            (30, 20, 5_000),
            (1, 4, 1_000),
            (30, 0, 500),
        ];
        for (own, left, after) in table {
            let at = Grace { wanted: None, own: Some(own) }.deleted_at(Deadline::hard(now + s(left)), now);
            assert_eq!(at, Some(now + Duration::from_millis(after)), "{own} {left}");
        }
        assert_eq!(Grace { wanted: None, own: Some(30) }.deleted_at(Deadline::soft(now + s(120)), now), None);
    }

    #[test]
    fn an_end_that_comes_too_late_is_brought_forward_once() {
        let now = Instant::now();
        let shortened = |ends: u64, left: u64| Grace::shortened(now + s(ends), now, Deadline::hard(now + s(left)));
        assert_eq!(shortened(600, 120), Some(s(118)));
        assert_eq!(shortened(118, 120), None, "in time");
        assert_eq!(shortened(119, 120), None, "near enough");
        assert_eq!(shortened(30, 1), Some(s(1)), "never 0");
        assert_eq!(shortened(1, 0), None, "can't end sooner");
        assert_eq!(
            Grace::shortened(now + s(600), now, Deadline::soft(now + s(120))),
            None,
            "a soft one presses nobody"
        );
    }

    #[test]
    fn tiers_share_the_time() {
        let now = Instant::now();
        assert_eq!(tier_begins(now, now + s(120), 0, 3), now);
        assert_eq!(tier_begins(now, now + s(120), 2, 3), now + s(80));
        assert_eq!(tier_begins(now + s(9), now, 1, 2), now + s(9), "no time is left");
    }

    #[test]
    fn no_grace_is_without_end() {
        assert_eq!(Grace { wanted: None, own: Some(i64::MAX) }.full(), MAX_GRACE);
    }
}
