//! The times of the pods that are left on a node. Pure.

use super::grace::REMOVAL_TIME;
use super::remaining::Remaining;
use super::select::{Departure, Selection, Tier};
use jiff::Timestamp;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Time for the list that shows that no pod is left, after the last has gone: the end for which others were waited for may have come.
const LAST_LIST: Duration = Duration::from_secs(30);

/// The pods that are left, by UID.
#[derive(Debug, Default)]
pub(super) struct PodTimes(HashMap<Arc<str>, PodTime>);

#[derive(Clone, Copy, Debug)]
struct PodTime {
    /// Its place in the order in which pods leave.
    turn: usize,
    end: PodEnd,
}

/// The end of a pod.
#[derive(Clone, Copy, Debug)]
enum PodEnd {
    /// This long after it is told to stop.
    After(Duration),
    /// This time: it terminates.
    At(Instant),
}

impl PodTimes {
    /// Takes the pods that a list shows. `wanted` is the grace period of every pod, if the user sets one; `instant` turns the end of a
    /// terminating pod into an instant.
    pub fn list(&mut self, selection: &Selection, wanted: Option<Duration>, instant: impl Fn(Timestamp) -> Instant) {
        let Selection { evict, terminating, own_pod, .. } = selection;
        let time = |departure: &Departure, turn| {
            let uid = &departure.pod.uid;
            // The list may be older than the answer to an eviction.
            let known = self.0.get(uid).map(|time| time.end).filter(|end| matches!(end, PodEnd::At(_)));
            let listed = departure.ends.map(|ends| PodEnd::At(instant(ends)));
            let end = listed.or(known).unwrap_or(PodEnd::After(departure.grace_with(wanted).full()));
            (Arc::clone(uid), PodTime { turn, end })
        };
        let others = evict.iter().chain(terminating).map(|departure| time(departure, departure.tier as usize));
        let own = own_pod.iter().map(|departure| time(departure, Tier::ALL.len()));
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

    /// Returns the time that the pods need at `now`. A drain that would have ended at `end` leaves each its grace period still, tier after
    /// tier, though others have gone for which it would have lasted longer.
    pub fn remaining(&self, now: Instant, end: Option<Instant>) -> Remaining {
        let grace = self.0.values().filter_map(|time| match time.end {
            PodEnd::After(grace) => Some(grace),
            PodEnd::At(_) => None,
        });
        let ends = self.0.values().filter_map(|time| match time.end {
            PodEnd::After(_) => None,
            PodEnd::At(ends) => Some(ends),
        });
        let not_before = end.map(|end| match self.needed(now, 0) {
            Some(needed) => end.min(now + needed + REMOVAL_TIME),
            None => now + LAST_LIST,
        });
        let gone = ends.max().map(|ends| ends + REMOVAL_TIME);
        Remaining { grace: grace.max(), gone, not_before }
    }

    /// Returns the time in which the pods of this turn and of later ones can stop from `now` on, one turn after the other.
    pub fn needed_from(&self, turn: usize, now: Instant) -> Duration {
        self.needed(now, turn).unwrap_or_default() + REMOVAL_TIME
    }

    /// Returns the time in which all from this turn on can stop from `now` on, tier after tier; `None` without pods.
    fn needed(&self, now: Instant, from: usize) -> Option<Duration> {
        let mut turns = [Duration::ZERO; Tier::ALL.len() + 1];
        for time in self.0.values() {
            let left = match time.end {
                PodEnd::After(grace) => grace,
                PodEnd::At(ends) => ends.saturating_duration_since(now),
            };
            turns[time.turn] = turns[time.turn].max(left);
        }
        (!self.0.is_empty()).then(|| turns.into_iter().skip(from).sum())
    }
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
            tolerates_cordon: false,
        }
    }

    fn listed(pods: &[(&str, u64, Tier)]) -> PodTimes {
        let evict = pods.iter().map(|(name, grace, tier)| pod(name, *grace, *tier)).collect();
        let mut times = PodTimes::default();
        times.list(&Selection { evict, ..Selection::default() }, None, |_| unreachable!());
        times
    }

    /// Returns the end of the drain in seconds after `start`, at `now` seconds, if pods may be held back for 900 s, and it would have ended
    /// at `end` seconds.
    fn end(times: &PodTimes, start: Instant, now: u64, end: u64) -> Option<u64> {
        let remaining = times.remaining(start + s(now), Some(start + s(end)));
        remaining.after(start + s(900)).map(|end| (end - start).as_secs())
    }

    #[test]
    fn only_the_pods_that_are_left_put_off_the_end() {
        let start = Instant::now();
        let mut times = listed(&[("queue", WEEK, Tier::Ordinary), ("web", 30, Tier::Ordinary)]);
        assert_eq!(end(&times, start, 0, 870), Some(900 + 7200), "two hours at most");
        times.terminates("queue", start + s(WEEK));
        assert_eq!(end(&times, start, 0, 8100), Some(8100), "it terminates, and is cut there");
        times.gone("queue");
        assert_eq!(end(&times, start, 60, 8100), Some(930), "it has stopped");
        times.terminates("web", start + s(95));
        assert_eq!(end(&times, start, 65, 930), Some(97), "no later than its end; the drain's own end stays");
        times.gone("web");
        assert_eq!(end(&times, start, 90, 930), Some(120), "before the drain's own end");
        assert_eq!(end(&times, start, 929, 930), Some(959), "the drain ends when a list shows that none is left");
    }

    #[test]
    fn no_pod_is_cut_because_another_has_gone() {
        let start = Instant::now();
        let mut times = listed(&[("queue", WEEK, Tier::Ordinary), ("web", 30, Tier::Ordinary)]);
        times.gone("queue");
        assert_eq!(end(&times, start, 4000, 8100), Some(4032), "its grace period from now on");
        assert_eq!(end(&times, start, 4010, 4032), Some(4032), "nothing else puts that off");
        let mut tiers =
            listed(&[("queue", WEEK, Tier::Ordinary), ("web", 30, Tier::Ordinary), ("dns", 10, Tier::Critical)]);
        tiers.gone("queue");
        assert_eq!(end(&tiers, start, 4000, 8100), Some(4042), "tier after tier");
    }

    #[test]
    fn a_list_that_is_older_than_an_eviction_forgets_no_end() {
        let start = Instant::now();
        let mut times = listed(&[("web", 3600, Tier::Ordinary)]);
        times.terminates("web", start + s(20));
        let evict = vec![pod("web", 3600, Tier::Ordinary)];
        times.list(&Selection { evict, ..Selection::default() }, None, |_| unreachable!());
        assert_eq!(end(&times, start, 1, 4500), Some(22));
    }
}
