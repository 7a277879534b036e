//! The clock: tokio's time for all waits, and wall time computed from it.
//!
//! Wall time is the machine's time at the start plus the time that has passed on tokio's clock. So a test that advances tokio's time
//! also advances AWS's deadlines and request signatures.

use aws_smithy_async::time::TimeSource;
use jiff::{SignedDuration, Timestamp};
use std::time::{Duration, SystemTime};
use tokio::time::{Instant, sleep_until};

/// Maximum age of a notice. SQS keeps messages for 14 days at most; an older time comes from a wrong clock.
const MAX_NOTICE_AGE: Duration = Duration::from_hours(14 * 24);

/// Maximum distance between an instant and the clock's start. It keeps arithmetic on instants from overflowing.
const MAX_DISTANCE: Duration = Duration::from_hours(366 * 24);

/// Wall time and tokio's time, related at one instant. Copies agree.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    base: Timestamp,
    start: Instant,
}

impl Clock {
    /// A clock that shows the machine's time now.
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "the only place that reads the machine's time")]
    pub fn system() -> Self {
        Self::showing(Timestamp::now())
    }

    /// A clock that shows `now` at this instant, for tests that share a simulation's wall time.
    #[must_use]
    pub fn showing(now: Timestamp) -> Self {
        Self { base: now, start: Instant::now() }
    }

    /// Returns wall time now.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.timestamp_of(Instant::now())
    }

    /// Returns the wall time at `instant`.
    #[must_use]
    pub fn timestamp_of(&self, instant: Instant) -> Timestamp {
        let forward = SignedDuration::try_from(instant.saturating_duration_since(self.start)).unwrap_or_default();
        let back = SignedDuration::try_from(self.start.saturating_duration_since(instant)).unwrap_or_default();
        self.base.checked_add(forward - back).unwrap_or(Timestamp::MAX)
    }

    /// Returns the instant of a wall time within a year of the clock's start. An earlier instant than the platform can express becomes
    /// the clock's start.
    #[must_use]
    pub fn instant_of(&self, time: Timestamp) -> Instant {
        let distance = time.duration_since(self.base);
        let length = distance.unsigned_abs().min(MAX_DISTANCE);
        if distance.is_negative() { self.start.checked_sub(length).unwrap_or(self.start) } else { self.start + length }
    }

    /// Returns the time of a notice as an instant, clamped against clock skew: a future time becomes now, and the age is at most
    /// [`MAX_NOTICE_AGE`].
    #[must_use]
    pub fn notice_instant(&self, at: Timestamp) -> Instant {
        let now = Instant::now();
        self.instant_of(at).clamp(now.checked_sub(MAX_NOTICE_AGE).unwrap_or(self.start), now)
    }
}

/// Waits until `at`; without an instant, forever.
pub async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

impl TimeSource for Clock {
    fn now(&self) -> SystemTime {
        SystemTime::from(Self::now(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn wall_time_follows_tokio() {
        let noon: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        let clock = Clock::showing(noon);
        tokio::time::advance(Duration::from_secs(90)).await;
        assert_eq!(clock.now().to_string(), "2026-11-21T12:01:30Z");
        let ahead = clock.instant_of("2026-11-21T12:02:00Z".parse().unwrap());
        assert_eq!(ahead - Instant::now(), Duration::from_secs(30));
        assert_eq!(clock.timestamp_of(ahead).to_string(), "2026-11-21T12:02:00Z");
    }

    #[tokio::test(start_paused = true)]
    async fn a_notice_from_the_future_counts_from_now() {
        let clock = Clock::showing("2026-11-21T12:00:00Z".parse().unwrap());
        let ahead = clock.notice_instant("2026-11-21T12:01:00Z".parse().unwrap());
        assert_eq!(ahead, Instant::now());
        let behind = clock.notice_instant("2026-11-21T11:59:00Z".parse().unwrap());
        assert_eq!(Instant::now() - behind, Duration::from_mins(1));
    }
}
