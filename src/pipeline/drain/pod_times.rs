//! The times of the pods that are left on a node. Pure.

use super::grace::{MAX_EVICTION_TIME, REMOVAL_TIME};
use super::remaining::{MAX_ADDED_GRACE, Remaining};
use super::select::{Departure, Selection};
use super::stuck::RUNNING_GIVEN_UP_AFTER;
use super::tier::Tier;
use jiff::Timestamp;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum time for which the pod of this process waits for the other drains: the warning time of a spot instance.
pub(super) const MAX_WAIT_FOR_OTHERS: Duration = Duration::from_mins(2);

/// Time after the end of a pod's grace period, or after the last pod has gone, for the list that shows so.
const LIST_AFTER: Duration = Duration::from_secs(30);

/// Time after the end of its grace period at which a listed pod is overdue. The API server truncates that end to a second.
const END_TOLERANCE: Duration = Duration::from_secs(5);

/// Maximum time after that end until a list has shown the overdue pod and the drain gives it up as stuck.
const STUCK_TIME: Duration = RUNNING_GIVEN_UP_AFTER.unsigned_abs().saturating_add(LIST_AFTER);

/// Maximum time between a pod's first eviction and its deletion, plus the time for its removal.
const EVICTION_TIME: Duration = MAX_EVICTION_TIME.saturating_add(REMOVAL_TIME);

/// The pods that are left, by UID.
#[derive(Debug, Default)]
pub(super) struct PodTimes(HashMap<Arc<str>, PodTime>);

#[derive(Clone, Copy, Debug)]
struct PodTime {
    turn: Turn,
    end: PodEnd,
}

/// The place of a pod in the order in which pods leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    /// With the other pods of its tier.
    Tier(Tier),
    /// Last: the pod of this process.
    Own,
}

/// The end of a pod.
#[derive(Clone, Copy, Debug)]
enum PodEnd {
    /// This duration after its termination signal. The pod was first listed at `seen`.
    After { grace: Duration, seen: Instant },
    /// This time: it terminates.
    At(Instant),
}

impl PodEnd {
    /// Returns the latest time at which the pod is gone, or the drain gives it up.
    fn gone(self, now: Instant) -> Instant {
        match self {
            Self::After { grace, seen } => seen + EVICTION_TIME + grace,
            Self::At(ends) if now < ends + END_TOLERANCE => ends + LIST_AFTER,
            Self::At(ends) => ends + STUCK_TIME,
        }
    }

    /// Returns the time that the pod needs from `now` on until it has stopped.
    fn needed(self, now: Instant) -> Duration {
        match self {
            Self::After { grace, .. } => MAX_EVICTION_TIME + grace.min(MAX_ADDED_GRACE),
            Self::At(ends) => ends.saturating_duration_since(now),
        }
    }
}

impl PodTimes {
    /// Sets the pods that a list shows at `now`. `wanted` is the grace period of every pod, if the user sets one; `instant` turns the end of
    /// a terminating pod into an instant.
    pub fn list(
        &mut self,
        selection: &Selection,
        wanted: Option<Duration>,
        now: Instant,
        instant: impl Fn(Timestamp) -> Instant,
    ) {
        let Selection { evict, terminating, own_pod, .. } = selection;
        let time = |departure: &Departure, turn| {
            let uid = &departure.pod.uid;
            // The list may be older than the answer to an eviction.
            let known = self.0.get(uid).map(|time| time.end);
            let listed = departure.ends.map(|ends| PodEnd::At(instant(ends)));
            let grace = departure.grace_with(wanted).full();
            let end = listed.or(known).unwrap_or(PodEnd::After { grace, seen: now });
            (Arc::clone(uid), PodTime { turn, end })
        };
        let others = evict.iter().chain(terminating).map(|departure| time(departure, Turn::Tier(departure.tier)));
        let own = own_pod.as_deref().map(|departure| time(departure, Turn::Own));
        self.0 = others.chain(own).collect();
    }

    /// Notes that a pod terminates, and should be gone at `ends`.
    pub fn terminates(&mut self, uid: &str, ends: Instant) {
        if let Some(time) = self.0.get_mut(uid) {
            time.end = PodEnd::At(ends);
        }
    }

    /// Notes that a pod is gone.
    pub fn gone(&mut self, uid: &str) {
        self.0.remove(uid);
    }

    /// Returns the time that the pods need at `now`. When other pods have left, a drain that would have ended at `end` still gives each
    /// remaining pod its grace period, tier after tier.
    pub fn remaining(&self, now: Instant, end: Option<Instant>) -> Remaining {
        let ends = || self.0.values().map(|time| time.end);
        let grace = ends().filter_map(|end| match end {
            PodEnd::After { grace, .. } => Some(grace),
            PodEnd::At(_) => None,
        });
        let not_before = end.map(|end| match needed(self.0.values(), now) {
            Some(needed) => end.min(now + needed + REMOVAL_TIME),
            None => now + LIST_AFTER,
        });
        Remaining { grace: grace.max(), gone: ends().map(|end| end.gone(now)).max(), not_before }
    }

    /// Returns the time in which the pods of this tier and of later ones can stop from `now` on, tier after tier.
    pub fn needed_from(&self, tier: Tier, now: Instant) -> Duration {
        let pods = self.0.values().filter(|time| time.turn >= Turn::Tier(tier));
        needed(pods, now).unwrap_or_default() + REMOVAL_TIME
    }
}

/// Returns the time in which these pods can stop from `now` on, one turn after the other; `None` without pods.
fn needed<'a>(pods: impl Iterator<Item = &'a PodTime>, now: Instant) -> Option<Duration> {
    let mut turns = BTreeMap::<Turn, Duration>::new();
    for PodTime { turn, end } in pods {
        let wait = if *turn == Turn::Own { MAX_WAIT_FOR_OTHERS } else { Duration::ZERO };
        let longest = turns.entry(*turn).or_default();
        *longest = (wait + end.needed(now)).max(*longest);
    }
    (!turns.is_empty()).then(|| turns.into_values().sum())
}

#[cfg(test)]
mod tests {
    use super::super::wire::PodId;
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    const WEEK: u64 = 604_800;

    fn pod(name: &str, grace: u64, tier: Tier) -> Departure {
        Departure {
            pod: PodId { namespace: "default".into(), name: name.into(), uid: name.into() },
            grace: i64::try_from(grace).ok(),
            tier,
            ready: true,
            protection: None,
            deleted: None,
            ends: None,
            runs: true,
            owner: None,
            replica_set: None,
            tolerates_cordon: false,
        }
    }

    fn selection(pods: &[(&str, u64, Tier)]) -> Selection {
        let evict = pods.iter().map(|(name, grace, tier)| pod(name, *grace, *tier)).collect();
        Selection { evict, ..Selection::default() }
    }

    fn listed(start: Instant, pods: &[(&str, u64, Tier)]) -> PodTimes {
        let mut times = PodTimes::default();
        times.list(&selection(pods), None, start, |_| unreachable!());
        times
    }

    /// Returns the end of the drain in seconds after `start`, at `now` seconds, if pods may be held back for 900 s, and it would have ended
    /// at `end` seconds.
    fn end(times: &PodTimes, start: Instant, now: u64, end: u64) -> Option<u64> {
        let remaining = times.remaining(start + s(now), Some(start + s(end)));
        remaining.after(start + s(900)).map(|end| (end - start).as_secs())
    }

    const WEB: (&str, u64, Tier) = ("web", 30, Tier::ORDINARY);
    const QUEUE: (&str, u64, Tier) = ("queue", WEEK, Tier::ORDINARY);

    #[test]
    fn only_the_pods_that_are_left_put_off_the_end() {
        let start = Instant::now();
        let mut times = listed(start, &[QUEUE, WEB]);
        assert_eq!(end(&times, start, 0, 870), Some(900 + 7200), "two hours at most");
        times.terminates("queue", start + s(WEEK));
        assert_eq!(end(&times, start, 0, 8100), Some(8100), "it terminates, and is cut there");
        times.gone("queue");
        assert_eq!(end(&times, start, 60, 8100), Some(930), "it has stopped");
        times.terminates("web", start + s(95));
        assert_eq!(end(&times, start, 65, 930), Some(125), "a list shows whether it is gone");
        times.gone("web");
        assert_eq!(end(&times, start, 90, 930), Some(120), "before the drain's own end");
        assert_eq!(end(&times, start, 929, 930), Some(959), "the drain ends when a list shows that none is left");
    }

    #[test]
    fn no_pod_is_cut_because_another_has_gone() {
        let start = Instant::now();
        let mut times = listed(start, &[QUEUE, WEB]);
        times.gone("queue");
        assert_eq!(end(&times, start, 4000, 8100), Some(4042), "an eviction, and its grace period");
        assert_eq!(end(&times, start, 4010, 4042), Some(4042), "nothing else puts that off");
        let mut tiers = listed(start, &[QUEUE, WEB, ("dns", 10, Tier::CRITICAL)]);
        tiers.gone("queue");
        assert_eq!(end(&tiers, start, 4000, 8100), Some(4062), "tier after tier");
    }

    #[test]
    fn a_pod_that_comes_late_has_its_grace_period() {
        let start = Instant::now();
        let mut times = listed(start, &[QUEUE]);
        times.terminates("queue", start + s(WEEK));
        times.gone("queue");
        assert_eq!(end(&times, start, 3000, 8100), Some(3030));
        times.list(&selection(&[("late", 300, Tier::ORDINARY)]), None, start + s(3001), |_| unreachable!());
        assert_eq!(end(&times, start, 3001, 3030), Some(3313));
    }

    #[test]
    fn a_pod_that_is_overdue_is_given_up_before_the_end() {
        let start = Instant::now();
        let mut times = listed(start, &[WEB]);
        times.terminates("web", start + s(1800));
        assert_eq!(end(&times, start, 1000, 930), Some(1830));
        assert_eq!(end(&times, start, 1805, 1830), Some(1800 + 15 * 60 + 30));
    }

    #[test]
    fn a_list_that_is_older_than_an_eviction_forgets_no_end() {
        let start = Instant::now();
        let slow = [("web", 3600, Tier::ORDINARY)];
        let mut times = listed(start, &slow);
        times.terminates("web", start + s(20));
        times.list(&selection(&slow), None, start, |_| unreachable!());
        assert_eq!(end(&times, start, 1, 4500), Some(50));
    }
}
