//! The tiers of pods, and their order: a tier waits until the tiers before it have left, but no longer than until its share of the time
//! begins.

use super::deadline::Plan;
use super::grace::tier_begins;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Minimum priority of critical pods: that of `system-cluster-critical`, the lower of the two built-in classes.
const CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// The tier of a pod. Tiers leave in this order: each waits for those before it, but no longer than until its share of the time
/// begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Pods with this priority or a higher one, up to that of the next tier.
    From(i32),
    /// Pods of DaemonSets, which serve all others: logs, networks, volumes.
    Daemon,
}

impl Tier {
    /// Pods without a priority class, and those before the next tier.
    pub const ORDINARY: Self = Self::From(0);

    /// Pods that others depend on.
    pub const CRITICAL: Self = Self::From(CRITICAL_PRIORITY);
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ORDINARY => f.write_str("ordinary"),
            Self::CRITICAL => f.write_str("critical"),
            Self::From(priority) => write!(f, "{priority}"),
            Self::Daemon => f.write_str("daemon"),
        }
    }
}

/// The tiers of pods that belong to no `DaemonSet`, by the priorities from which they begin, in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tiers(Vec<i32>);

impl Tiers {
    /// Returns the tier of a pod with this priority. Pods below all tiers belong to the first.
    pub(super) fn of(&self, priority: i32) -> Tier {
        let begun = self.0.iter().rev().find(|from| **from <= priority);
        begun.or(self.0.first()).map_or(Tier::ORDINARY, |from| Tier::From(*from))
    }
}

impl From<Vec<i32>> for Tiers {
    fn from(mut priorities: Vec<i32>) -> Self {
        priorities.sort_unstable();
        Self(priorities)
    }
}

impl Default for Tiers {
    fn default() -> Self {
        Self(vec![0, CRITICAL_PRIORITY])
    }
}

/// The order of one drain's tiers.
#[derive(Debug)]
pub(super) struct TierOrder {
    /// When the drain began.
    begun: Instant,
    /// The tiers that have, or had, pods.
    tiers: watch::Sender<BTreeMap<Tier, TierState>>,
}

/// The state of a tier.
#[derive(Clone, Copy, Debug, Default)]
struct TierState {
    /// Number of pods that have not left yet.
    left: usize,
    /// When its turn started, or when the end of the drain was last brought forward in its turn.
    begun: Option<Instant>,
}

impl TierOrder {
    /// Returns an order without pods.
    pub(super) fn new(begun: Instant) -> Self {
        Self { begun, tiers: watch::Sender::default() }
    }

    /// Notes a pod of `tier`.
    pub(super) fn added(&self, tier: Tier) {
        self.tiers.send_modify(|tiers| tiers.entry(tier).or_default().left += 1);
    }

    /// Notes that a pod of `tier` has left.
    pub(super) fn left(&self, tier: Tier) {
        self.tiers.send_modify(|tiers| tiers.entry(tier).or_default().left -= 1);
    }

    /// Waits for the turn of `tier`. `earliest_end` is the earliest end of the drain, even if its deadline has passed. `needed` is the time
    /// in which the pods of this tier and of later ones can stop: they keep it when the end is brought forward.
    pub(super) async fn turn(
        &self,
        tier: Tier,
        mut plan: watch::Receiver<Plan>,
        earliest_end: Instant,
        needed: impl Fn() -> Duration,
    ) {
        let mut tiers = self.tiers.subscribe();
        let (mut known, mut is_nearer) = (None, false);
        loop {
            let end = plan.borrow_and_update().first().max(earliest_end);
            if known.replace(end).is_some_and(|known| end < known) {
                is_nearer = true;
                self.share_anew();
            }
            let share = {
                let states = tiers.borrow_and_update();
                if states.range(..tier).all(|(_, state)| state.left == 0) {
                    break;
                }
                // The tiers share the time from the start of the last turn on, or from when the end was brought forward.
                let mut turns = states.range(..=tier).rev();
                let last = turns.find_map(|(tier, state)| Some((*tier, state.begun?)));
                let (from, begun) = last.unwrap_or((Tier::From(i32::MIN), self.begun));
                begins_by(tier, states.range(from..).map(|(tier, _)| *tier), begun, end)
            };
            let begins =
                if is_nearer { end.checked_sub(needed()).map_or(share, |latest| latest.min(share)) } else { share };
            tokio::select! {
                biased;
                () = sleep_until(begins) => break,
                Ok(()) = tiers.changed() => {}
                Ok(()) = plan.changed() => {}
            }
        }
        // Pods that come later belong to the same turn.
        self.tiers.send_if_modified(|tiers| {
            let begun = &mut tiers.entry(tier).or_default().begun;
            let is_first = begun.is_none();
            begun.get_or_insert_with(Instant::now);
            is_first
        });
    }

    /// Shares the time between the tiers from now on. All that wait for their turn do so at the same time.
    fn share_anew(&self) {
        self.tiers.send_if_modified(|tiers| {
            if let Some(last) = tiers.values_mut().rev().find_map(|state| state.begun.as_mut()) {
                *last = Instant::now();
            }
            false
        });
    }
}

/// Returns the latest start of the turn of `tier`, if these tiers, `tier` among them, share the time from `begun` to `end`.
pub(super) fn begins_by(tier: Tier, all: impl Iterator<Item = Tier>, begun: Instant, end: Instant) -> Instant {
    let (rank, tiers) = all.fold((0, 0), |(rank, tiers), each| (rank + u32::from(each < tier), tiers + 1));
    tier_begins(begun, end, rank, tiers)
}

#[cfg(test)]
mod tests {
    use super::super::Deadline;
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn order(tiers: &[Tier]) -> (TierOrder, watch::Sender<Plan>, Instant) {
        let now = Instant::now();
        let order = TierOrder::new(now);
        for tier in tiers {
            order.added(*tier);
        }
        (order, watch::Sender::new(Deadline::hard(now + s(120)).into()), now)
    }

    #[tokio::test(start_paused = true)]
    async fn a_tier_follows_the_end_of_those_before_it() {
        let (order, deadline, now) = order(&[Tier::ORDINARY, Tier::CRITICAL]);
        order.turn(Tier::ORDINARY, deadline.subscribe(), now, || Duration::ZERO).await;
        let mut critical = Box::pin(order.turn(Tier::CRITICAL, deadline.subscribe(), now, || Duration::ZERO));
        assert!(futures_util::poll!(&mut critical).is_pending());
        order.left(Tier::ORDINARY);
        critical.await;
        assert_eq!(now.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_blocked_tier_leaves_the_next_its_share() {
        let (order, deadline, now) = order(&[Tier::ORDINARY, Tier::CRITICAL, Tier::Daemon]);
        order.turn(Tier::CRITICAL, deadline.subscribe(), now, || Duration::ZERO).await;
        assert_eq!(now.elapsed(), s(40));
        let daemon = order.turn(Tier::Daemon, deadline.subscribe(), now, || Duration::ZERO);
        let nearer = async {
            tokio::time::sleep(s(5)).await;
            deadline.send_replace(Deadline::hard(now + s(60)).into());
        };
        tokio::join!(daemon, nearer);
        assert_eq!(now.elapsed(), s(52) + s(1) / 2, "the deadline moved, and the last two share what is left");
    }

    /// The end comes nearer late, when a turn that counts from the begin would be over.
    #[tokio::test(start_paused = true)]
    async fn an_end_that_comes_nearer_begins_no_turn_but_in_time_for_its_pods() {
        for (needed, begins) in [(30, 75), (50, 70)] {
            let (order, deadline, now) = order(&[Tier::ORDINARY, Tier::CRITICAL]);
            deadline.send_replace(Deadline::hard(now + s(1000)).into());
            order.turn(Tier::ORDINARY, deadline.subscribe(), now, || Duration::ZERO).await;
            let critical = order.turn(Tier::CRITICAL, deadline.subscribe(), now, || s(needed));
            let nearer = async {
                tokio::time::sleep(s(30)).await;
                deadline.send_replace(Deadline::hard(now + s(120)).into());
                // Another ordinary pod comes.
                tokio::time::sleep(s(10)).await;
                order.turn(Tier::ORDINARY, deadline.subscribe(), now, || Duration::ZERO).await;
                order.added(Tier::ORDINARY);
            };
            tokio::join!(critical, nearer);
            assert_eq!(now.elapsed(), s(begins));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn with_no_time_left_a_tier_still_has_a_share() {
        let (order, deadline, now) = order(&[Tier::ORDINARY, Tier::CRITICAL]);
        deadline.send_replace(Deadline::hard(now).into());
        order.turn(Tier::CRITICAL, deadline.subscribe(), now + s(2), || Duration::ZERO).await;
        assert_eq!(now.elapsed(), s(1));
    }

    #[test]
    fn a_pod_belongs_to_the_highest_tier_that_it_reaches() {
        let table = [
            (Tiers::default(), &[(0, "ordinary"), (-5, "ordinary"), (1_999_999_999, "ordinary")][..]),
            (Tiers::default(), &[(CRITICAL_PRIORITY, "critical"), (i32::MAX, "critical")]),
            (Tiers::from(vec![10_000, 0, 1_000_000]), &[(-5, "ordinary"), (9_999, "ordinary"), (10_000, "10000")]),
            (Tiers::from(vec![10_000, 0, 1_000_000]), &[(999_999, "10000"), (CRITICAL_PRIORITY, "1000000")]),
            (Tiers::from(vec![1000, -10]), &[(i32::MIN, "-10"), (0, "-10"), (1000, "1000")]),
        ];
        for (tiers, pods) in table {
            for (priority, tier) in pods {
                assert_eq!(tiers.of(*priority).to_string(), *tier, "{tiers:?} {priority}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn tiers_of_the_user_share_the_time_and_daemons_are_last() {
        let all = [Tier::From(-10), Tier::ORDINARY, Tier::From(10_000), Tier::Daemon];
        let (order, deadline, now) = order(&all);
        for (tier, begins) in all.into_iter().zip([0, 30, 60, 90]) {
            order.turn(tier, deadline.subscribe(), now, || Duration::ZERO).await;
            assert_eq!(now.elapsed(), s(begins), "{tier}");
        }
    }
}
