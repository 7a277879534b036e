//! The grace period of a pod, and how a deadline shortens it. Pure.

use super::deadline::Deadline;
use super::remaining::MAX_ADDED_GRACE;
use clap::ValueEnum;
use std::time::Duration;
use tokio::time::Instant;

/// Time kept free before a hard deadline: the kubelet must see a deletion, and the API server the pod's end.
pub(super) const REMOVAL_TIME: Duration = Duration::from_secs(2);

/// Maximum time for which an eviction is tried before the pod is deleted; a quarter of the time left, if that is less.
pub(super) const MAX_EVICTION_TIME: Duration = Duration::from_secs(10);

/// Minimum time for which an eviction is tried, however little time is left.
const MIN_EVICTION_TIME: Duration = Duration::from_millis(500);

/// Minimum time between a pod's end and a hard deadline. A pod that ends later is brought forward.
const DEADLINE_MARGIN: Duration = Duration::from_secs(1);

/// Maximum grace period: the API takes any number.
const MAX_GRACE: Duration = Duration::from_hours(24 * 366);

/// Grace period of a pod that names none: Kubernetes' default.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(30);

/// The treatment of pods that are left on the node before a hard deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AtDeadline {
    /// Delete them in time to stop by themselves, regardless of their budgets: otherwise they are killed with the node.
    Delete,
    /// Leave them.
    Leave,
}

/// The grace period of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grace {
    /// The grace period of every pod, if the user sets one, in whole seconds.
    pub wanted: Option<Duration>,
    /// The pod's own grace period, in seconds.
    pub own: Option<i64>,
}

impl Grace {
    /// Returns the grace period without a deadline. It is never 0, which would remove the pod from the API while its containers run.
    #[must_use]
    pub fn full(self) -> Duration {
        let own = || self.own.map_or(DEFAULT_GRACE.as_secs(), |own| u64::try_from(own).unwrap_or(1));
        Duration::from_secs(self.wanted.map_or_else(own, |wanted| wanted.as_secs()).max(1)).min(MAX_GRACE)
    }

    /// Returns the part of the grace period that this deadline makes room for: by default a hook's drain is lengthened by up to two hours.
    fn within(self, deadline: Deadline) -> Duration {
        if deadline.has_room() { self.full().min(MAX_ADDED_GRACE) } else { self.full() }
    }

    /// Returns the grace period at `now`: before a hard deadline at most the time left, less the time of the removal, and at least 1 s.
    #[must_use]
    pub fn at(self, now: Instant, deadline: Deadline) -> Duration {
        let full = self.full();
        if !deadline.is_hard() {
            return full;
        }
        Duration::from_secs(full.as_secs().min(whole_seconds_left(now, deadline)))
    }

    /// Returns the grace period that an eviction must send at `now`; `None` if the pod's own is right.
    #[must_use]
    pub fn to_send(self, now: Instant, deadline: Deadline) -> Option<Duration> {
        let given = self.at(now, deadline);
        (self.wanted.is_some() || given < self.full()).then_some(given)
    }

    /// Returns the time at which a pod that can't be evicted is deleted, if its eviction was first sent at `tried`: as late as its
    /// grace period allows, but only after the eviction was tried for some time. `None` if the deadline is soft.
    #[must_use]
    pub fn deleted_at(self, deadline: Deadline, tried: Instant) -> Option<Instant> {
        let latest = self.signal_by(deadline)?;
        let fair =
            tried + MAX_EVICTION_TIME.min(deadline.at().saturating_duration_since(tried) / 4).max(MIN_EVICTION_TIME);
        Some(latest.max(fair))
    }

    /// Returns the latest time for the pod's termination signal, so that the pod can stop before a hard deadline; `None` if the deadline is
    /// soft.
    #[must_use]
    pub fn signal_by(self, deadline: Deadline) -> Option<Instant> {
        deadline.is_hard().then(|| earlier(deadline.at(), self.within(deadline) + REMOVAL_TIME))
    }

    /// Returns the end of the time in which a pod that asks not to be disturbed is left alone: the end of its protection, if that is
    /// limited, or before a hard deadline the time that leaves just enough to try an eviction, and to delete the pod. `None` if neither
    /// ends it.
    #[must_use]
    pub fn undisturbed_until(self, deadline: Deadline, protection_ends: Option<Instant>) -> Option<Instant> {
        let needed = self.within(deadline) + REMOVAL_TIME + MAX_EVICTION_TIME;
        deadline.is_hard().then(|| earlier(deadline.at(), needed)).into_iter().chain(protection_ends).min()
    }

    /// Returns the latest time until which the pod can wait for its new pod and still be evicted, or deleted, in time for its grace period;
    /// `None` if that is longer ago than there is time.
    #[must_use]
    pub fn surge_until(self, deadline: Deadline) -> Option<Instant> {
        deadline.at().checked_sub(self.within(deadline) + REMOVAL_TIME + MAX_EVICTION_TIME)
    }

    /// Returns the grace period that brings the end of a pod, expected at `ends`, forward to a hard deadline; `None` if the pod ends
    /// in time anyway, or can't end sooner.
    #[must_use]
    pub fn shortened(ends: Instant, now: Instant, deadline: Deadline) -> Option<Duration> {
        let shorter = Duration::from_secs(whole_seconds_left(now, deadline));
        (deadline.is_hard() && ends > earlier(deadline.at(), DEADLINE_MARGIN) && now + shorter < ends)
            .then_some(shorter)
    }
}

/// Returns the time left before a deadline, less the time of a pod's removal, at least 1 s. The time is rounded to the nearest
/// second, so that a call that is some milliseconds late does not cost the pod a second.
fn whole_seconds_left(now: Instant, deadline: Deadline) -> u64 {
    let left = deadline.at().saturating_duration_since(now).saturating_sub(REMOVAL_TIME);
    (left + Duration::from_millis(500)).as_secs().max(1)
}

fn earlier(at: Instant, by: Duration) -> Instant {
    // An instant before the machine's start has no representation. The deadline is as good: both have passed.
    at.checked_sub(by).unwrap_or(at)
}

/// Returns the latest time at which the tier of this `rank` begins, if `tiers` share the time from `begun` to `deadline`. Each has
/// an equal share, so that a blocked tier leaves the next its own.
#[must_use]
pub fn tier_begins(begun: Instant, deadline: Instant, rank: u32, tiers: u32) -> Instant {
    begun + deadline.saturating_duration_since(begun) * rank / tiers.max(1)
}

#[cfg(test)]
mod tests {
    use super::super::deadline::HookEnd;
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
    fn a_pod_is_deleted_as_late_as_its_grace_allows_and_only_after_an_eviction() {
        let now = Instant::now();
        let table = [
            // grace, time left at the first eviction → milliseconds from that to the deletion
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
    fn a_hook_with_room_holds_a_pod_until_two_hours_before_its_end() {
        let now = Instant::now();
        let from = now + s(900);
        let ends = from + MAX_ADDED_GRACE;
        let hook = HookEnd { ends, latest: now + s(30_000), grace_from: Some(from), assumed: false };
        let week = Grace { wanted: None, own: Some(604_800) };
        assert_eq!(week.deleted_at(Deadline::Hook(hook), now), Some(from - REMOVAL_TIME));
        assert_eq!(week.undisturbed_until(Deadline::Hook(hook), None), Some(from - REMOVAL_TIME - MAX_EVICTION_TIME));
        let chosen = Deadline::Hook(HookEnd { grace_from: None, ..hook });
        assert_eq!(
            week.deleted_at(chosen, now),
            Some(now + MAX_EVICTION_TIME),
            "a time that the user has chosen has no room"
        );
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
            "a soft deadline shortens nothing"
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
    fn the_grace_period_is_bounded() {
        assert_eq!(Grace { wanted: None, own: Some(i64::MAX) }.full(), MAX_GRACE);
    }
}
