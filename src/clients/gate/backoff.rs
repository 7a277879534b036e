//! Waiting between tries: exponential, jittered, bounded.

use crate::runtime::random;
use std::time::Duration;

/// The waits of one sequence of tries.
#[derive(Clone, Debug)]
pub struct Backoff {
    next: Duration,
    first: Duration,
    most: Duration,
}

impl Backoff {
    /// Waits that double from `first` to at most `most`.
    #[must_use]
    pub const fn new(first: Duration, most: Duration) -> Self {
        Self { next: first, first, most }
    }

    /// The next wait: between half and all of the step.
    pub fn step(&mut self) -> Duration {
        let step = self.next;
        self.next = (step * 2).min(self.most);
        jittered(step)
    }

    /// Begins again from the first wait, after a success.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

/// Between half and all of `step`, so that many who fail together don't come back together.
pub(super) fn jittered(step: Duration) -> Duration {
    random::jittered(step, 0.5..1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_its_bound_and_starts_over() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(4));
        for step in [1, 2, 4, 4] {
            let wait = backoff.step();
            assert!(wait >= Duration::from_secs(step) / 2 && wait <= Duration::from_secs(step), "{wait:?} for {step}");
        }
        backoff.reset();
        assert!(backoff.step() <= Duration::from_secs(1));
    }
}
