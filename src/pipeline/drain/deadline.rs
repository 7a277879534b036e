//! When a drain must be over, and what that means for its pods. Pure.

use std::time::Duration;
use tokio::time::Instant;

/// What is kept free before a hard deadline: a kubelet has to see a deletion, and the API server its end.
const REAP: Duration = Duration::from_secs(2);

/// An eviction is tried for so long before the pod is deleted; less, where a quarter of the time is less.
const TRIAL: Duration = Duration::from_secs(10);

/// A pod whose end comes so close to a hard deadline is not pressed once more.
const CLOSE: Duration = Duration::from_secs(1);

/// An eviction is tried for so long at the least, however little time is left.
const A_TRY: Duration = Duration::from_millis(500);

/// A grace period may be any number; nobody waits for longer.
const LONGEST_GRACE: Duration = Duration::from_hours(24 * 366);

/// The grace period of a pod that names none, in seconds: Kubernetes' default.
const DEFAULT_GRACE: u64 = 30;

/// What becomes of pods that a hard deadline finds on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtDeadline {
    /// They are deleted in time to stop by themselves, whatever their budgets say: the node takes them along otherwise.
    Delete,
    /// They are left.
    Leave,
}

/// A moment, and what happens then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// The moment.
    pub at: Instant,
    /// When the capacity goes, if that is known: then, or later.
    pub goes: Option<Instant>,
}

impl Deadline {
    /// The capacity goes at `at`.
    #[must_use]
    pub const fn hard(at: Instant) -> Self {
        Self { at, goes: Some(at) }
    }

    /// We wait until `at`.
    #[must_use]
    pub const fn soft(at: Instant) -> Self {
        Self { at, goes: None }
    }

    /// Whether the capacity goes then, rather than only our patience ends.
    #[must_use]
    pub fn is_hard(self) -> bool {
        self.goes == Some(self.at)
    }

    /// The earlier of two; of two at one moment the hard one. When the capacity goes is known still.
    #[must_use]
    pub fn or_earlier(self, other: Self) -> Self {
        let goes = self.goes.into_iter().chain(other.goes).min();
        Self { at: self.at.min(other.at), goes }
    }

    /// The same, but not before `least`.
    #[must_use]
    pub fn at_least(self, least: Instant) -> Self {
        Self { at: self.at.max(least), goes: self.goes.map(|goes| goes.max(least)) }
    }
}

/// The deadlines of all that a drain runs for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The first of all.
    first: Instant,
    /// The last of all.
    last: Instant,
    /// When the capacity goes, if that is known.
    goes: Option<Instant>,
}

impl Plan {
    /// What several deadlines come to; `None` without any.
    #[must_use]
    pub fn of(all: impl IntoIterator<Item = Deadline>) -> Option<Self> {
        all.into_iter().map(Self::from).reduce(|plan, next| Self {
            first: plan.first.min(next.first),
            last: plan.last.max(next.last),
            goes: plan.goes.into_iter().chain(next.goes).min(),
        })
    }

    /// The first deadline, by which the tiers share the time.
    #[must_use]
    pub const fn first(self) -> Instant {
        self.first
    }

    /// When the drain is over: with the capacity, or when the last patience has ended. What is soft and earlier ends only the waiting of
    /// the one whose patience it was.
    #[must_use]
    pub fn end(self) -> Deadline {
        match self.goes {
            Some(goes) if goes <= self.last => Deadline::hard(goes),
            goes => Deadline { at: self.last, goes },
        }
    }

    /// Keeps in mind that the capacity goes at `goes`, though the one who knew has run out of patience.
    #[must_use]
    pub fn knowing(self, goes: Option<Instant>) -> Self {
        Self { goes: self.goes.into_iter().chain(goes).min(), ..self }
    }
}

impl From<Deadline> for Plan {
    fn from(Deadline { at, goes }: Deadline) -> Self {
        Self { first: at, last: at, goes }
    }
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
        Duration::from_secs(self.wanted.map_or_else(own, |wanted| wanted.as_secs()).max(1)).min(LONGEST_GRACE)
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
        let fair = tried + TRIAL.min(deadline.at.saturating_duration_since(tried) / 4).max(A_TRY);
        Some(latest.max(fair))
    }

    /// When the pod must be told at the latest that it is to end, so that it can before a hard deadline; `None`, where that is soft.
    #[must_use]
    pub fn told_by(self, deadline: Deadline) -> Option<Instant> {
        deadline.is_hard().then(|| earlier(deadline.at, self.full() + REAP))
    }

    /// Until when a pod that asks not to be disturbed is left in peace: then there is just time to try an eviction, and to
    /// delete it. Without end, where the deadline is soft.
    #[must_use]
    pub fn peace_until(self, deadline: Deadline) -> Option<Instant> {
        deadline.is_hard().then(|| earlier(deadline.at, self.full() + REAP + TRIAL))
    }

    /// The grace period that brings the end of a pod, expected at `ends`, forward to where a hard deadline wants it; `None` if it
    /// ends in time anyway, or can't end any sooner.
    #[must_use]
    pub fn shortened(ends: Instant, now: Instant, deadline: Deadline) -> Option<Duration> {
        let shorter = Duration::from_secs(whole_seconds_left(now, deadline));
        (deadline.is_hard() && ends > earlier(deadline.at, CLOSE) && now + shorter < ends).then_some(shorter)
    }
}

/// The time to a deadline, less what a pod's removal takes. To the nearest second: a call that is some milliseconds late must not cost
/// the pod a whole one. At least 1.
fn whole_seconds_left(now: Instant, deadline: Deadline) -> u64 {
    let left = deadline.at.saturating_duration_since(now).saturating_sub(REAP);
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
    fn the_capacity_ends_a_drain_and_patience_only_the_last() {
        let now = Instant::now();
        let plan = |all: &[Deadline]| Plan::of(all.iter().copied());
        let (soft, hard) = (|at| Deadline::soft(now + s(at)), |at| Deadline::hard(now + s(at)));
        assert_eq!(plan(&[]), None);
        for (all, first, end) in [
            (vec![soft(60)], 60, soft(60)),
            (vec![soft(60), soft(600)], 60, soft(600)),
            (vec![soft(100), hard(120), soft(600)], 100, hard(120)),
            (vec![hard(3600), hard(120)], 120, hard(120)),
            // Patience with a spot instance ends before its capacity goes; it counts where others are more patient.
            (vec![soft(60).or_earlier(hard(120)), hard(3600)], 60, hard(120)),
        ] {
            let plan = plan(&all).unwrap();
            assert_eq!((plan.first(), plan.end()), (now + s(first), end), "{all:?}");
        }
    }

    #[test]
    fn patience_alone_ends_as_patience() {
        let now = Instant::now();
        let spot = Deadline::hard(now + s(120)).or_earlier(Deadline::soft(now + s(60)));
        let end = Plan::from(spot).end();
        assert_eq!((end.at, end.is_hard()), (now + s(60), false));
        let hook = Plan::from(Deadline::hard(now + s(3600)));
        assert_eq!(hook.knowing(spot.goes).end(), Deadline::hard(now + s(120)), "what it knew outlives its patience");
    }

    #[test]
    fn no_grace_is_without_end() {
        assert_eq!(Grace { wanted: None, own: Some(i64::MAX) }.full(), LONGEST_GRACE);
    }
}
