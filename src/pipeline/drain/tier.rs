//! Whose turn it is: a tier waits until those before it have gone, but no longer than its share of the time.

use super::deadline::Plan;
use super::grace::tier_begins;
use super::select::Tier;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// The turns of one drain's pods.
#[derive(Debug)]
pub(super) struct Turns {
    begun: Instant,
    tiers: watch::Sender<[Count; Tier::ALL.len()]>,
}

/// The pods of a tier.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    /// Those that have not gone yet.
    left: usize,
    /// Whether there were any.
    any: bool,
}

impl Turns {
    /// Nobody has come yet.
    pub(super) fn new(begun: Instant) -> Self {
        Self { begun, tiers: watch::Sender::default() }
    }

    /// A pod of `tier` has come.
    pub(super) fn come(&self, tier: Tier) {
        self.tiers.send_modify(|tiers| {
            let count = &mut tiers[tier as usize];
            *count = Count { left: count.left + 1, any: true };
        });
    }

    /// A pod of `tier` has gone.
    pub(super) fn gone(&self, tier: Tier) {
        self.tiers.send_modify(|tiers| tiers[tier as usize].left -= 1);
    }

    /// Waits until it is this tier's turn. `least` is what the drain has, even if its deadline has passed.
    pub(super) async fn of(&self, tier: Tier, mut plan: watch::Receiver<Plan>, least: Instant) {
        let mut tiers = self.tiers.subscribe();
        loop {
            let counts = *tiers.borrow_and_update();
            if counts[..tier as usize].iter().all(|count| count.left == 0) {
                return;
            }
            let until = plan.borrow_and_update().first().max(least);
            let begins = begins_by(tier, counts.map(|count| count.any), self.begun, until);
            tokio::select! {
                biased;
                () = sleep_until(begins) => return,
                Ok(()) = tiers.changed() => {}
                Ok(()) = plan.changed() => {}
            }
        }
    }
}

/// When a tier's turn is at the latest, where those of which `any` says so have pods.
pub(super) fn begins_by(tier: Tier, any: [bool; Tier::ALL.len()], begun: Instant, until: Instant) -> Instant {
    let ranks = |any: &[bool]| u32::try_from(any.iter().filter(|any| **any).count()).unwrap_or(0);
    tier_begins(begun, until, ranks(&any[..tier as usize]), ranks(&any))
}

#[cfg(test)]
mod tests {
    use super::super::Deadline;
    use super::*;
    use std::time::Duration;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn turns(tiers: &[Tier]) -> (Turns, watch::Sender<Plan>, Instant) {
        let now = Instant::now();
        let turns = Turns::new(now);
        for tier in tiers {
            turns.come(*tier);
        }
        (turns, watch::Sender::new(Deadline::hard(now + s(120)).into()), now)
    }

    #[tokio::test(start_paused = true)]
    async fn a_tier_follows_the_end_of_those_before_it() {
        let (turns, deadline, now) = turns(&[Tier::Ordinary, Tier::Critical]);
        turns.of(Tier::Ordinary, deadline.subscribe(), now).await;
        let mut critical = Box::pin(turns.of(Tier::Critical, deadline.subscribe(), now));
        assert!(futures_util::poll!(&mut critical).is_pending());
        turns.gone(Tier::Ordinary);
        critical.await;
        assert_eq!(now.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_blocked_tier_leaves_the_next_its_share() {
        let (turns, deadline, now) = turns(&[Tier::Ordinary, Tier::Critical, Tier::Daemon]);
        turns.of(Tier::Critical, deadline.subscribe(), now).await;
        assert_eq!(now.elapsed(), s(40));
        let daemon = turns.of(Tier::Daemon, deadline.subscribe(), now);
        let nearer = async {
            tokio::time::sleep(s(5)).await;
            deadline.send_replace(Deadline::hard(now + s(60)).into());
        };
        tokio::join!(daemon, nearer);
        assert_eq!(now.elapsed(), s(45), "the deadline moved, and its share has begun already");
    }

    #[tokio::test(start_paused = true)]
    async fn with_no_time_left_a_tier_still_has_its_moment() {
        let (turns, deadline, now) = turns(&[Tier::Ordinary, Tier::Critical]);
        deadline.send_replace(Deadline::hard(now).into());
        turns.of(Tier::Critical, deadline.subscribe(), now + s(2)).await;
        assert_eq!(now.elapsed(), s(1));
    }
}
