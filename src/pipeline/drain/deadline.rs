//! The deadline of a drain. Pure.
//!
//! The end of patience and the end of the capacity are two things. A deadline has both, and only the second is hard: only the second
//! overrides a budget. The end that a lifecycle hook sets is hard too, but heartbeats can put it off.

use super::remaining::Remaining;
use std::time::Duration;
use tokio::time::Instant;

/// Time for the first list of pods, if a hook's default deadline has passed before.
const FIRST_LIST: Duration = Duration::from_secs(30);

/// The deadline of one interruption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deadline {
    /// The capacity ends before patience does, or together with it.
    Capacity {
        /// The end of the capacity.
        ends: Instant,
    },
    /// Patience ends before the capacity does.
    Patience {
        /// The end of patience.
        ends: Instant,
        /// The end of the capacity, if it is known.
        capacity_ends: Option<Instant>,
    },
    /// A lifecycle hook keeps the capacity.
    Hook(HookEnd),
}

/// The end that a lifecycle hook sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookEnd {
    /// The end, as far as the pods are known.
    pub ends: Instant,
    /// The latest time to which heartbeats can put it off.
    pub latest: Instant,
    /// The time until which pods may be held back. The longest grace period must fit after it; `None` if the user has set the end.
    pub grace_from: Option<Instant>,
    /// Whether the times of the hook are unknown so far: the end is then only the end of patience, but the hook may live as long.
    pub assumed: bool,
}

impl HookEnd {
    /// Returns the end that leaves room for these pods.
    fn lengthened(self, pods: Remaining) -> Self {
        let wanted = self.grace_from.and_then(|from| pods.after(from)).unwrap_or(self.ends);
        Self { ends: wanted.min(self.latest).max(self.ends), ..self }
    }
}

impl Deadline {
    /// Returns the deadline of a capacity that ends at `ends`.
    #[must_use]
    pub const fn hard(ends: Instant) -> Self {
        Self::Capacity { ends }
    }

    /// Returns the deadline of a patience that ends at `ends`. The end of the capacity is unknown.
    #[must_use]
    pub const fn soft(ends: Instant) -> Self {
        Self::Patience { ends, capacity_ends: None }
    }

    /// Returns the end of patience or the end of the capacity, whichever comes first.
    fn first_of(patience_ends: Instant, capacity_ends: Option<Instant>) -> Self {
        match capacity_ends {
            Some(ends) if ends <= patience_ends => Self::Capacity { ends },
            capacity_ends => Self::Patience { ends: patience_ends, capacity_ends },
        }
    }

    /// Returns the time of the deadline.
    #[must_use]
    pub const fn at(self) -> Instant {
        match self {
            Self::Capacity { ends } | Self::Patience { ends, .. } | Self::Hook(HookEnd { ends, .. }) => ends,
        }
    }

    /// Returns whether the capacity ends at the deadline, not only patience.
    #[must_use]
    pub const fn is_hard(self) -> bool {
        matches!(self, Self::Capacity { .. } | Self::Hook(HookEnd { assumed: false, .. }))
    }

    /// Returns the end of the capacity, if it is known.
    #[must_use]
    pub const fn capacity_ends(self) -> Option<Instant> {
        match self {
            Self::Capacity { ends } | Self::Hook(HookEnd { ends, assumed: false, .. }) => Some(ends),
            Self::Patience { capacity_ends, .. } => capacity_ends,
            Self::Hook(_) => None,
        }
    }

    /// Whether the deadline leaves room for pods: a hook's does, unless the user has set its end.
    #[must_use]
    pub const fn has_room(self) -> bool {
        matches!(self, Self::Hook(HookEnd { grace_from: Some(_), .. }))
    }

    /// Returns the deadline on a node with these pods: a hook's default leaves room for them.
    #[must_use]
    pub fn lengthened(self, pods: Remaining) -> Self {
        match self {
            Self::Hook(end) => Self::Hook(end.lengthened(pods)),
            others => others,
        }
    }

    /// Returns the deadline if the hook's time for the drain starts later by this: heartbeats put off the end, within the hook's life.
    #[must_use]
    pub fn put_off(self, by: Duration) -> Self {
        match self {
            Self::Hook(end) => {
                let ends = (end.ends + by).min(end.latest).max(end.ends);
                Self::Hook(HookEnd { ends, grace_from: end.grace_from.map(|from| from + by), ..end })
            }
            others => others,
        }
    }

    /// Returns the end of the capacity, if it is known, put off by heartbeats as far as possible.
    #[must_use]
    pub fn latest_end(self) -> Option<Instant> {
        match self {
            Self::Hook(end) => Some(end.latest),
            others => others.capacity_ends(),
        }
    }

    /// Returns the end of the capacity, if it is known and fixed.
    #[must_use]
    pub fn fixed_end(self) -> Option<Instant> {
        self.capacity_ends().filter(|_| !matches!(self, Self::Hook(_)))
    }

    /// Returns the earlier of two deadlines. The end of the capacity stays known.
    #[must_use]
    pub fn or_earlier(self, other: Self) -> Self {
        Self::first_of(self.at().min(other.at()), earliest(self.capacity_ends(), other.capacity_ends()))
    }

    /// Returns the same deadline, but not before `least`.
    #[must_use]
    pub fn at_least(self, least: Instant) -> Self {
        match self {
            Self::Hook(end) => {
                let latest = end.latest.max(least);
                // After a takeover the pods have more room than the new drain knows before its first list.
                let first_list = if end.grace_from.is_some() { FIRST_LIST } else { Duration::ZERO };
                let ends = if end.ends < least { (least + first_list).min(latest) } else { end.ends };
                Self::Hook(HookEnd { ends, latest, ..end })
            }
            others => Self::first_of(others.at().max(least), others.capacity_ends().map(|ends| ends.max(least))),
        }
    }
}

/// The end of a drain that several interruptions share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    first: Instant,
    end: Deadline,
    hooks_end: Option<Instant>,
}

impl Plan {
    /// Returns the plan for several deadlines; `None` without any. `fixed_end` is the earliest known end of the capacity from interruptions
    /// that have left; `elsewhere` is the latest end of a hook that another replica keeps alive.
    ///
    /// AWS waits for every hook of an instance, and each can be kept alive: the latest end counts, within the known lives of all hooks. The
    /// earliest of the other ends of the capacity counts, and the latest end of patience.
    #[must_use]
    pub fn of(
        all: impl Iterator<Item = Deadline> + Clone,
        fixed_end: Option<Instant>,
        elsewhere: Option<Instant>,
    ) -> Option<Self> {
        let hooks = all.clone().filter_map(|deadline| match deadline {
            Deadline::Hook(end) => Some(end),
            _ => None,
        });
        // A hook with assumed times may be forged, and can't end others.
        let all_live_until = hooks.clone().filter(|end| !end.assumed).map(|end| end.latest).min();
        let last = hooks.max_by_key(|end| end.ends);
        let hooks_end = last.map(|end| elsewhere.map_or(end.ends, |elsewhere| end.ends.max(elsewhere)));
        let hooks_end = hooks_end.map(|ends| ends.min(all_live_until.unwrap_or(ends)));
        let hooks_capacity_ends = hooks_end.filter(|_| last.is_some_and(|end| !end.assumed));
        let ends = all.clone().map(|deadline| match deadline {
            Deadline::Hook(end) => hooks_end.unwrap_or(end.ends),
            others => others.at(),
        });
        let capacity_ends = all.filter_map(Deadline::fixed_end).chain(hooks_capacity_ends).chain(fixed_end).min();
        let end = match (Deadline::first_of(ends.clone().max()?, capacity_ends), last) {
            // It includes the room for the pods.
            (Deadline::Capacity { ends }, Some(hook)) if hooks_capacity_ends == Some(ends) => {
                Deadline::Hook(HookEnd { ends, ..hook })
            }
            (end, _) => end,
        };
        Some(Self { first: ends.min()?, end, hooks_end })
    }

    /// Returns the first deadline. Tiers share the time until then.
    #[must_use]
    pub const fn first(self) -> Instant {
        self.first
    }

    /// Returns the end of the drain: the end of the capacity, or the latest end of patience. An earlier one ends only the wait of its own
    /// interruption.
    #[must_use]
    pub const fn end(self) -> Deadline {
        self.end
    }

    /// Returns the latest end of the lifecycle hooks, which keeps the instance until then; `None` without any.
    #[must_use]
    pub const fn hooks_end(self) -> Option<Instant> {
        self.hooks_end
    }
}

impl From<Deadline> for Plan {
    fn from(end: Deadline) -> Self {
        Self { first: end.at(), end: Deadline::first_of(end.at(), end.capacity_ends()), hooks_end: None }
    }
}

/// Returns the earlier of two times, as far as they are known.
fn earliest(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_capacity_ends_a_drain_and_patience_only_the_last() {
        let now = Instant::now();
        let plan = |all: &[Deadline]| Plan::of(all.iter().copied(), None, None);
        let (soft, hard) = (|at| Deadline::soft(now + s(at)), |at| Deadline::hard(now + s(at)));
        let hook = |ends, latest| {
            Deadline::Hook(HookEnd { ends: now + s(ends), latest: now + s(latest), grace_from: None, assumed: false })
        };
        let assumed = |ends| {
            let at = now + s(ends);
            Deadline::Hook(HookEnd { ends: at, latest: at, grace_from: None, assumed: true })
        };
        assert_eq!(plan(&[]), None);
        for (all, first, end) in [
            (vec![soft(60)], 60, soft(60)),
            (vec![soft(60), soft(600)], 60, soft(600)),
            (vec![soft(100), hard(120), soft(600)], 100, hard(120)),
            (vec![hard(3600), hard(120)], 120, hard(120)),
            // Patience with a spot instance ends before its capacity. The capacity counts, because others are more patient.
            (vec![soft(60).or_earlier(hard(120)), hard(3600)], 60, hard(120)),
            (vec![hook(270, 30_000), hook(3570, 172_800)], 3570, hard(3570)),
            (vec![hook(270, 3000), hook(3570, 172_800)], 3000, hard(3000)),
            (vec![hook(270, 30_000), hook(3570, 172_800), hard(120)], 120, hard(120)),
            (vec![hook(270, 30_000), soft(3600)], 270, hard(270)),
            (vec![soft(60), hook(270, 30_000)], 60, hard(270)),
            (vec![hook(270, 30_000), assumed(2997)], 2997, soft(2997)),
            (vec![hook(3570, 172_800), assumed(2997)], 3570, hard(3570)),
        ] {
            let plan = plan(&all).unwrap();
            let found = (plan.first(), plan.end().at(), plan.end().is_hard());
            assert_eq!(found, (now + s(first), end.at(), end.is_hard()), "{all:?}");
        }
    }

    #[test]
    fn a_hook_elsewhere_puts_off_the_end_of_hooks_only() {
        let now = Instant::now();
        let hook = HookEnd { ends: now + s(270), latest: now + s(3000), grace_from: None, assumed: false };
        let end = |deadline: Deadline, elsewhere| {
            let plan = Plan::of([deadline].into_iter(), None, Some(now + s(elsewhere))).unwrap();
            plan.end().at() - now
        };
        assert_eq!(end(Deadline::Hook(hook), 100), s(270));
        assert_eq!(end(Deadline::Hook(hook), 600), s(600));
        assert_eq!(end(Deadline::Hook(hook), 6000), s(3000), "it lives no longer itself");
        assert_eq!(end(Deadline::hard(now + s(120)), 600), s(120));
        assert_eq!(end(Deadline::soft(now + s(120)), 600), s(120));
    }

    #[test]
    fn a_hook_s_default_leaves_room_for_the_longest_grace_period() {
        let now = Instant::now();
        let end =
            HookEnd { ends: now + s(270), latest: now + s(29_970), grace_from: Some(now + s(300)), assumed: false };
        for (end, grace, ends) in [
            (end, 30, 330),
            (end, 600, 900),
            (end, 86_400, 7500),
            (HookEnd { latest: now + s(3000), ..end }, 86_400, 3000),
            (HookEnd { grace_from: None, ..end }, 600, 270),
            (HookEnd { latest: end.ends, ..end }, 600, 270),
        ] {
            let lengthened = Deadline::Hook(end).lengthened(Remaining::of(s(grace)));
            assert_eq!(lengthened, Deadline::Hook(HookEnd { ends: now + s(ends), ..end }), "{grace} {end:?}");
            assert_eq!(lengthened.lengthened(Remaining::of(s(grace))), lengthened, "once is enough");
        }
        assert_eq!(Deadline::Hook(end).lengthened(Remaining::default()), Deadline::Hook(end), "no pod");
        let spot = Deadline::hard(now + s(120));
        assert_eq!(spot.lengthened(Remaining::of(s(600))), spot);
    }

    #[test]
    fn only_a_hook_s_end_is_put_off_and_within_its_life() {
        let now = Instant::now();
        let end =
            HookEnd { ends: now + s(270), latest: now + s(29_970), grace_from: Some(now + s(300)), assumed: false };
        let after = |by, pods| (Deadline::Hook(end).put_off(s(by)).lengthened(pods).at() - now).as_secs();
        assert_eq!([0, 1000, 40_000].map(|by| after(by, Remaining::default())), [270, 1270, 29_970]);
        assert_eq!(after(1000, Remaining::of(s(600))), 1900, "with the room for its pods");
        let fixed = Deadline::hard(now + s(120));
        assert_eq!(fixed.put_off(s(60)), fixed);
        assert_eq!(Deadline::soft(now).put_off(s(60)), Deadline::soft(now));
    }

    #[test]
    fn patience_alone_ends_as_patience() {
        let now = Instant::now();
        let spot = Deadline::hard(now + s(120)).or_earlier(Deadline::soft(now + s(60)));
        let end = Plan::from(spot).end();
        assert_eq!((end.at(), end.is_hard()), (now + s(60), false));
        let others = Deadline::hard(now + s(3600));
        assert_eq!(
            Plan::of([others].into_iter(), spot.fixed_end(), None).unwrap().end(),
            Deadline::hard(now + s(120)),
            "the end of the capacity stays known after patience is over"
        );
    }

    #[test]
    fn of_two_ends_at_one_time_the_capacity_s_counts() {
        let now = Instant::now();
        assert_eq!(Deadline::soft(now).or_earlier(Deadline::hard(now)), Deadline::hard(now));
        let spot = Deadline::hard(now + s(120)).or_earlier(Deadline::soft(now + s(60)));
        assert_eq!(spot.at_least(now + s(90)).capacity_ends(), Some(now + s(120)));
        assert_eq!(spot.at_least(now + s(150)), Deadline::hard(now + s(150)), "both have passed");
    }
}
