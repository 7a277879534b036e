//! The deadline of a drain. Pure.
//!
//! The end of patience and the end of the capacity are two things. A deadline knows both by name, and only the second is hard: only
//! the second overrides a budget.

use tokio::time::Instant;

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
}

impl Deadline {
    /// Returns the deadline of a capacity that ends at `ends`.
    #[must_use]
    pub const fn hard(ends: Instant) -> Self {
        Self::Capacity { ends }
    }

    /// Returns the deadline of a patience that ends at `ends`. The end of the capacity is not known.
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
            Self::Capacity { ends } | Self::Patience { ends, .. } => ends,
        }
    }

    /// Returns whether the capacity ends at the deadline, not only patience.
    #[must_use]
    pub const fn is_hard(self) -> bool {
        matches!(self, Self::Capacity { .. })
    }

    /// Returns the end of the capacity, if it is known.
    #[must_use]
    pub const fn capacity_ends(self) -> Option<Instant> {
        match self {
            Self::Capacity { ends } => Some(ends),
            Self::Patience { capacity_ends, .. } => capacity_ends,
        }
    }

    /// Returns the earlier of two deadlines. The end of the capacity stays known.
    #[must_use]
    pub fn or_earlier(self, other: Self) -> Self {
        Self::first_of(self.at().min(other.at()), earliest(self.capacity_ends(), other.capacity_ends()))
    }

    /// Returns the deadline of a drain that two interruptions share: the longer patience counts, and the earlier end of the capacity.
    fn shared_with(self, other: Self) -> Self {
        Self::first_of(self.at().max(other.at()), earliest(self.capacity_ends(), other.capacity_ends()))
    }

    /// Returns the same deadline, but not before `least`.
    #[must_use]
    pub fn at_least(self, least: Instant) -> Self {
        Self::first_of(self.at().max(least), self.capacity_ends().map(|ends| ends.max(least)))
    }
}

/// The deadlines of all interruptions that share a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    first: Instant,
    end: Deadline,
}

impl Plan {
    /// Returns the plan for several deadlines; `None` without any.
    #[must_use]
    pub fn of(all: impl IntoIterator<Item = Deadline>) -> Option<Self> {
        all.into_iter()
            .map(Self::from)
            .reduce(|plan, next| Self { first: plan.first.min(next.first), end: plan.end.shared_with(next.end) })
    }

    /// Returns the first deadline. Tiers share the time until then.
    #[must_use]
    pub const fn first(self) -> Instant {
        self.first
    }

    /// Returns the end of the drain: the end of the capacity, or of the longest patience. A shorter patience ends only the wait of its
    /// own interruption.
    #[must_use]
    pub const fn end(self) -> Deadline {
        self.end
    }

    /// Returns the same plan with an end of the capacity that is known from an interruption whose patience is over.
    #[must_use]
    pub fn knowing(self, capacity_ends: Option<Instant>) -> Self {
        Self { end: Deadline::first_of(self.end.at(), earliest(self.end.capacity_ends(), capacity_ends)), ..self }
    }
}

impl From<Deadline> for Plan {
    fn from(end: Deadline) -> Self {
        Self { first: end.at(), end }
    }
}

/// Returns the earlier of two times, as far as they are known.
fn earliest(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
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
            // Patience with a spot instance ends before its capacity. The capacity counts, because others are more patient.
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
        assert_eq!((end.at(), end.is_hard()), (now + s(60), false));
        let hook = Plan::from(Deadline::hard(now + s(3600)));
        assert_eq!(
            hook.knowing(spot.capacity_ends()).end(),
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
