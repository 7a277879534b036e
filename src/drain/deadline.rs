//! When a drain must be over. Pure.

use tokio::time::Instant;

/// A moment, and what happens then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// The moment.
    pub at: Instant,
    /// Whether the capacity goes then, rather than only our patience.
    pub hard: bool,
}

impl Deadline {
    /// The capacity goes at `at`.
    #[must_use]
    pub const fn hard(at: Instant) -> Self {
        Self { at, hard: true }
    }

    /// We wait until `at`.
    #[must_use]
    pub const fn soft(at: Instant) -> Self {
        Self { at, hard: false }
    }

    /// The earliest of several; of two at one moment the hard one.
    #[must_use]
    pub fn earliest(all: impl IntoIterator<Item = Self>) -> Option<Self> {
        all.into_iter().min_by_key(|deadline| (deadline.at, !deadline.hard))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_earliest_counts_and_a_hard_one_wins_a_tie() {
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        assert_eq!(Deadline::earliest([]), None);
        assert_eq!(Deadline::earliest([Deadline::hard(later), Deadline::soft(now)]), Some(Deadline::soft(now)));
        assert_eq!(Deadline::earliest([Deadline::soft(now), Deadline::hard(now)]), Some(Deadline::hard(now)));
    }
}
