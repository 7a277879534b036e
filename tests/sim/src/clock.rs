//! The simulation's wall time: a fixed base plus the time that has passed on tokio's clock, and while that stood still.

use jiff::Timestamp;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Wall time for the simulated services. Clones agree.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    base: Timestamp,
    start: Instant,
    /// Milliseconds that passed while tokio's clock stood still. Leaked: copies agree.
    skipped: &'static AtomicU64,
}

impl Clock {
    /// Starts at the machine's wall time, cut to whole seconds, so that a sandbox shows familiar times.
    #[must_use]
    pub fn new() -> Self {
        let now = Timestamp::now();
        Self::at(Timestamp::from_second(now.as_second()).expect("the current second must be a valid time"))
    }

    /// Starts at a wall time.
    #[must_use]
    pub fn at(base: Timestamp) -> Self {
        Self { base, start: Instant::now(), skipped: Box::leak(Box::default()) }
    }

    /// Returns the wall time now.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.base + self.elapsed()
    }

    /// Returns the time since the world's start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed() + Duration::from_millis(self.skipped.load(Ordering::Relaxed))
    }

    /// Lets wall time pass while tokio's clock stands still, as for a machine that is suspended. The services expire what has become
    /// due when they are asked next.
    pub fn skip(&self, time: Duration) {
        let time = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.skipped.fetch_add(time, Ordering::Relaxed);
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}
