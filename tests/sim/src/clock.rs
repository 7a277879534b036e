//! The simulation's wall time: a fixed base plus the time that has passed on tokio's clock.

use jiff::Timestamp;
use std::time::Duration;
use tokio::time::Instant;

/// Wall time for the simulated services. Clones agree.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    base: Timestamp,
    start: Instant,
}

impl Clock {
    /// Starts at the machine's wall time, cut to whole seconds, so that a sandbox shows familiar times.
    #[must_use]
    pub fn new() -> Self {
        let now = Timestamp::now();
        Self {
            base: Timestamp::from_second(now.as_second()).expect("the current second must be a valid time"),
            start: Instant::now(),
        }
    }

    /// Returns the wall time now.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.base + self.elapsed()
    }

    /// Returns the time since the world's start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}
