//! The order of tiers: a tier waits until the tiers before it have left, but no longer than until its share of the time begins.

use super::deadline::Plan;
use super::grace::tier_begins;
use super::select::Tier;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// The order of one drain's tiers.
#[derive(Debug)]
pub(super) struct TierOrder {
    begun: Instant,
    tiers: watch::Sender<[TierCount; Tier::ALL.len()]>,
}

/// The pods of a tier.
#[derive(Clone, Copy, Debug, Default)]
struct TierCount {
    /// Number of pods that have not left yet.
    left: usize,
    /// Whether the tier has, or had, pods.
    used: bool,
}

impl TierOrder {
    /// Returns an order without pods.
    pub(super) fn new(begun: Instant) -> Self {
        Self { begun, tiers: watch::Sender::default() }
    }

    /// Notes a pod of `tier`.
    pub(super) fn added(&self, tier: Tier) {
        self.tiers.send_modify(|tiers| {
            let count = &mut tiers[tier as usize];
            *count = TierCount { left: count.left + 1, used: true };
        });
    }

    /// Notes that a pod of `tier` has left.
    pub(super) fn left(&self, tier: Tier) {
        self.tiers.send_modify(|tiers| tiers[tier as usize].left -= 1);
    }

    /// Waits for the turn of `tier`. `earliest_end` is the earliest end of the drain, even if its deadline has passed.
    pub(super) async fn turn(&self, tier: Tier, mut plan: watch::Receiver<Plan>, earliest_end: Instant) {
        let mut tiers = self.tiers.subscribe();
        loop {
            let counts = *tiers.borrow_and_update();
            if counts[..tier as usize].iter().all(|count| count.left == 0) {
                return;
            }
            let end = plan.borrow_and_update().first().max(earliest_end);
            let begins = begins_by(tier, counts.map(|count| count.used), self.begun, end);
            tokio::select! {
                biased;
                () = sleep_until(begins) => return,
                Ok(()) = tiers.changed() => {}
                Ok(()) = plan.changed() => {}
            }
        }
    }
}

/// Returns the time at which the turn of `tier` begins at the latest. `used` says which tiers have pods.
pub(super) fn begins_by(tier: Tier, used: [bool; Tier::ALL.len()], begun: Instant, end: Instant) -> Instant {
    let count = |used: &[bool]| u32::try_from(used.iter().filter(|used| **used).count()).unwrap_or(0);
    tier_begins(begun, end, count(&used[..tier as usize]), count(&used))
}

#[cfg(test)]
mod tests {
    use super::super::Deadline;
    use super::*;
    use std::time::Duration;

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
        order.turn(Tier::Ordinary, deadline.subscribe(), now).await;
        let mut critical = Box::pin(order.turn(Tier::Critical, deadline.subscribe(), now));
        assert!(futures_util::poll!(&mut critical).is_pending());
        order.left(Tier::Ordinary);
        critical.await;
        assert_eq!(now.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_blocked_tier_leaves_the_next_its_share() {
        let (order, deadline, now) = order(&[Tier::Ordinary, Tier::Critical, Tier::Daemon]);
        order.turn(Tier::Critical, deadline.subscribe(), now).await;
        assert_eq!(now.elapsed(), s(40));
        let daemon = order.turn(Tier::Daemon, deadline.subscribe(), now);
        let nearer = async {
            tokio::time::sleep(s(5)).await;
            deadline.send_replace(Deadline::hard(now + s(60)).into());
        };
        tokio::join!(daemon, nearer);
        assert_eq!(now.elapsed(), s(45), "the deadline moved, and the tier's share has begun already");
    }

    #[tokio::test(start_paused = true)]
    async fn with_no_time_left_a_tier_still_has_a_share() {
        let (order, deadline, now) = order(&[Tier::Ordinary, Tier::Critical]);
        deadline.send_replace(Deadline::hard(now).into());
        order.turn(Tier::Critical, deadline.subscribe(), now + s(2)).await;
        assert_eq!(now.elapsed(), s(1));
    }
}
