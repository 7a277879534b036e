//! The order of tiers: a tier waits until the tiers before it have left, but no longer than until its share of the time begins.

use super::deadline::Plan;
use super::grace::tier_begins;
use super::select::Tier;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// The order of one drain's tiers.
#[derive(Debug)]
pub(super) struct TierOrder {
    /// When the drain began.
    begun: Instant,
    tiers: watch::Sender<[TierState; Tier::ALL.len()]>,
}

/// The state of a tier.
#[derive(Clone, Copy, Debug, Default)]
struct TierState {
    /// Number of pods that have not left yet.
    left: usize,
    /// Whether the tier has, or had, pods.
    used: bool,
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
        self.tiers.send_modify(|tiers| {
            let state = &mut tiers[tier as usize];
            (state.left, state.used) = (state.left + 1, true);
        });
    }

    /// Notes that a pod of `tier` has left.
    pub(super) fn left(&self, tier: Tier) {
        self.tiers.send_modify(|tiers| tiers[tier as usize].left -= 1);
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
            let states = *tiers.borrow_and_update();
            if states[..tier as usize].iter().all(|state| state.left == 0) {
                break;
            }
            // The tiers share the time from the start of the last turn on, or from when the end was brought forward.
            let mut turns = states[..=tier as usize].iter().enumerate().rev();
            let last = turns.find_map(|(rank, state)| Some((rank, state.begun?)));
            let (from, begun) = last.unwrap_or((0, self.begun));
            let mut used = states.map(|state| state.used);
            used[..from].fill(false);
            let share = begins_by(tier, used, begun, end);
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
            let begun = &mut tiers[tier as usize].begun;
            let is_first = begun.is_none();
            begun.get_or_insert_with(Instant::now);
            is_first
        });
    }

    /// Shares the time between the tiers from now on. All that wait for their turn do so at the same time.
    fn share_anew(&self) {
        self.tiers.send_if_modified(|tiers| {
            if let Some(last) = tiers.iter_mut().rev().find_map(|state| state.begun.as_mut()) {
                *last = Instant::now();
            }
            false
        });
    }
}

/// Returns the latest start of the turn of `tier`, if the tiers with pods (`used`) share the time from `begun` to `end`.
pub(super) fn begins_by(tier: Tier, used: [bool; Tier::ALL.len()], begun: Instant, end: Instant) -> Instant {
    let count = |used: &[bool]| u32::try_from(used.iter().filter(|used| **used).count()).unwrap_or(0);
    tier_begins(begun, end, count(&used[..tier as usize]), count(&used))
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
        let (order, deadline, now) = order(&[Tier::Ordinary, Tier::Critical]);
        order.turn(Tier::Ordinary, deadline.subscribe(), now, || Duration::ZERO).await;
        let mut critical = Box::pin(order.turn(Tier::Critical, deadline.subscribe(), now, || Duration::ZERO));
        assert!(futures_util::poll!(&mut critical).is_pending());
        order.left(Tier::Ordinary);
        critical.await;
        assert_eq!(now.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_blocked_tier_leaves_the_next_its_share() {
        let (order, deadline, now) = order(&[Tier::Ordinary, Tier::Critical, Tier::Daemon]);
        order.turn(Tier::Critical, deadline.subscribe(), now, || Duration::ZERO).await;
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
            let (order, deadline, now) = order(&[Tier::Ordinary, Tier::Critical]);
            deadline.send_replace(Deadline::hard(now + s(1000)).into());
            order.turn(Tier::Ordinary, deadline.subscribe(), now, || Duration::ZERO).await;
            let critical = order.turn(Tier::Critical, deadline.subscribe(), now, || s(needed));
            let nearer = async {
                tokio::time::sleep(s(30)).await;
                deadline.send_replace(Deadline::hard(now + s(120)).into());
                // Another ordinary pod comes.
                tokio::time::sleep(s(10)).await;
                order.turn(Tier::Ordinary, deadline.subscribe(), now, || Duration::ZERO).await;
                order.added(Tier::Ordinary);
            };
            tokio::join!(critical, nearer);
            assert_eq!(now.elapsed(), s(begins));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn with_no_time_left_a_tier_still_has_a_share() {
        let (order, deadline, now) = order(&[Tier::Ordinary, Tier::Critical]);
        deadline.send_replace(Deadline::hard(now).into());
        order.turn(Tier::Critical, deadline.subscribe(), now + s(2), || Duration::ZERO).await;
        assert_eq!(now.elapsed(), s(1));
    }
}
