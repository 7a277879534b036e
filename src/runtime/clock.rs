//! The one clock: tokio's time for all waiting, and wall time made from it.
//!
//! Wall time is a base taken once plus what tokio's clock says has passed since, so that a test which advances tokio's
//! time advances AWS's deadlines and request signatures with it.

use aws_smithy_async::time::TimeSource;
use jiff::{SignedDuration, Timestamp};
use std::time::{Duration, SystemTime};
use tokio::time::{Instant, sleep_until};

/// How far back a notice's time may lie. Retention on SQS is 14 days at most; an older time is a broken clock.
const OLDEST: Duration = Duration::from_hours(14 * 24);

/// Farther in the future than anything that waits here; keeps arithmetic on instants from overflowing.
const FAR: Duration = Duration::from_hours(366 * 24);

/// Wall time and tokio's time, tied together at one moment. Copies agree.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    base: Timestamp,
    start: Instant,
}

impl Clock {
    /// A clock that shows the machine's time now.
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "the one place that asks the machine for its time")]
    pub fn system() -> Self {
        Self::showing(Timestamp::now())
    }

    /// A clock that shows `now` at this moment; for tests that share a simulation's wall time.
    #[must_use]
    pub fn showing(now: Timestamp) -> Self {
        Self { base: now, start: Instant::now() }
    }

    /// Wall time now.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.timestamp_of(Instant::now())
    }

    /// The wall time at `instant`.
    #[must_use]
    pub fn timestamp_of(&self, instant: Instant) -> Timestamp {
        let forward = SignedDuration::try_from(instant.saturating_duration_since(self.start)).unwrap_or_default();
        let back = SignedDuration::try_from(self.start.saturating_duration_since(instant)).unwrap_or_default();
        self.base.checked_add(forward - back).unwrap_or(Timestamp::MAX)
    }

    /// The instant of a wall time, within a year of now. Times before the clock began map to before its start as far as the
    /// platform can express that.
    #[must_use]
    pub fn instant_of(&self, time: Timestamp) -> Instant {
        let distance = time.duration_since(self.base);
        let length = distance.unsigned_abs().min(FAR);
        if distance.is_negative() { self.start.checked_sub(length).unwrap_or(self.start) } else { self.start + length }
    }

    /// The time of a notice as an instant, clamped against skew: a time that lies ahead is now, and one older than any
    /// queue's retention is as old as that.
    #[must_use]
    pub fn notice_instant(&self, at: Timestamp) -> Instant {
        let now = Instant::now();
        self.instant_of(at).clamp(now.checked_sub(OLDEST).unwrap_or(self.start), now)
    }
}

/// Waits until `at`; for ever, where there is no such moment.
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
