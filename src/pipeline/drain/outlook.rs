//! The outlook of pods that must leave: the times of an undisturbed drain that starts now. Pure.

use super::deadline::Deadline;
use super::grace::AtDeadline;
use super::select::{Departure, Protection};
use super::tier::{Tier, begins_by};
use jiff::Timestamp;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

/// The outlook of one pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// Latest time of its eviction; `None` if the pod asks not to be disturbed and the deadline is soft.
    pub evicted_by: Option<Instant>,
    /// The grace period that the eviction gives.
    pub grace: Duration,
    /// The time at which the pod is deleted if it could not be evicted before.
    pub deleted_at: Option<Instant>,
}

/// Returns the outlook of each departure, in a drain from `begun` to `end`. `wanted` is the grace period of every pod, if the user
/// sets one. `instant` turns the end of a pod's protection into an instant.
#[must_use]
pub fn outlook(
    departures: &[Departure],
    begun: Instant,
    end: Deadline,
    wanted: Option<Duration>,
    at_deadline: AtDeadline,
    instant: impl Fn(Timestamp) -> Instant,
) -> Vec<Outlook> {
    let tiers: BTreeSet<Tier> = departures.iter().map(|departure| departure.tier).collect();
    let of = |departure: &Departure| {
        let grace = departure.grace_with(wanted);
        let turn = begins_by(departure.tier, tiers.iter().copied(), begun, end.at());
        let evicted_by = match departure.protection {
            Some(Protection { ends, .. }) => {
                grace.undisturbed_until(end, ends.map(&instant)).map(|until| until.max(turn))
            }
            None => Some(turn),
        };
        let deleted_at = match at_deadline {
            AtDeadline::Delete => evicted_by.and_then(|evicted| grace.deleted_at(end, evicted)),
            AtDeadline::Leave => None,
        };
        Outlook { evicted_by, grace: grace.at(evicted_by.unwrap_or(begun), end), deleted_at }
    };
    departures.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::super::wire::PodId;
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn departure(tier: Tier, grace: i64, protection: Option<Protection>) -> Departure {
        let pod = PodId { namespace: "default".into(), name: "web".into(), uid: "u".into() };
        Departure {
            pod,
            grace: Some(grace),
            tier,
            ready: true,
            protection,
            deleted: None,
            runs: true,
            ends: None,
            owner: None,
            replica_set: None,
            tolerates_cordon: false,
        }
    }

    const UNLIMITED: Protection = Protection { annotation: "x", ends: None };

    /// Returns the seconds until the eviction, of the grace period, and until the deletion.
    fn seconds(
        departures: &[Departure],
        end: Deadline,
        now: Instant,
        at: AtDeadline,
    ) -> Vec<(Option<u64>, u64, Option<u64>)> {
        let from_now = |at: Instant| (at - now).as_secs();
        let all = outlook(departures, now, end, None, at, |_| now + s(50)).into_iter();
        all.map(|pod| (pod.evicted_by.map(from_now), pod.grace.as_secs(), pod.deleted_at.map(from_now))).collect()
    }

    #[test]
    fn before_a_hard_deadline_each_pod_leaves_in_its_turn() {
        let now = Instant::now();
        let departures = [
            departure(Tier::ORDINARY, 30, None),
            departure(Tier::CRITICAL, 300, None),
            departure(Tier::ORDINARY, 30, Some(UNLIMITED)),
        ];
        let hard = Deadline::hard(now + s(120));
        let expected = [(Some(0), 30, Some(88)), (Some(60), 58, Some(70)), (Some(78), 30, Some(88))];
        assert_eq!(seconds(&departures, hard, now, AtDeadline::Delete), expected);
        let kept = expected.map(|(evicted, grace, _)| (evicted, grace, None));
        assert_eq!(seconds(&departures, hard, now, AtDeadline::Leave), kept);
    }

    #[test]
    fn a_limited_protection_ends_before_the_deadline() {
        let now = Instant::now();
        let departures =
            [departure(Tier::ORDINARY, 30, Some(Protection { ends: Some(Timestamp::UNIX_EPOCH), ..UNLIMITED }))];
        let evicted_by = |end| seconds(&departures, end, now, AtDeadline::Leave)[0].0;
        assert_eq!(evicted_by(Deadline::hard(now + s(120))), Some(50));
        assert_eq!(evicted_by(Deadline::soft(now + s(120))), Some(50));
        assert_eq!(evicted_by(Deadline::hard(now + s(80))), Some(38), "the deadline comes first");
    }

    #[test]
    fn before_a_soft_deadline_no_pod_is_deleted() {
        let now = Instant::now();
        let departures = [departure(Tier::ORDINARY, 300, None), departure(Tier::Daemon, 30, Some(UNLIMITED))];
        let soft = Deadline::soft(now + s(120));
        assert_eq!(seconds(&departures, soft, now, AtDeadline::Delete), [(Some(0), 300, None), (None, 30, None)]);
    }
}
