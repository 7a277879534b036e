//! The clock: tokio's time for all waits, and wall time computed from it.
//!
//! Wall time is the machine's time plus the time that has passed on tokio's clock since it was read. So a test that advances tokio's
//! time also advances AWS's deadlines and request signatures. The machine's time is read again now and then: it is set, or a suspended
//! machine's tokio time has stood still. Where AWS's time is known to differ, that counts, because deadlines are AWS's.

use aws_smithy_async::time::TimeSource;
use jiff::{SignedDuration, Timestamp};
use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::time::{Instant, sleep_until};

/// Maximum age of a notice. SQS keeps messages for 14 days at most; an older time comes from a wrong clock.
const MAX_NOTICE_AGE: Duration = Duration::from_hours(14 * 24);

/// Maximum distance between an instant and the clock's start. It keeps arithmetic on instants from overflowing.
const MAX_DISTANCE: Duration = Duration::from_hours(366 * 24);

/// Minimum change of the machine's time that counts as a step.
const STEP: SignedDuration = SignedDuration::from_secs(2);

/// Minimum difference from AWS's time that counts. AWS's servers differ among themselves by less.
const SKEW: SignedDuration = SignedDuration::from_secs(5);

/// Wall time and tokio's time. Copies agree.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    base: Timestamp,
    start: Instant,
    /// Leaked: a process has one clock, and copies of it everywhere.
    wall: &'static Wall,
}

/// What relates wall time to tokio's time.
struct Wall {
    /// Nanoseconds by which wall time is ahead of the clock's base plus tokio's time.
    shift: AtomicI64,
    /// Reads the machine's time.
    machine: Box<dyn Fn() -> Timestamp + Send + Sync>,
    last: Mutex<Reading>,
}

/// A reading of the machine's time.
#[derive(Clone, Copy)]
struct Reading {
    machine: Timestamp,
    at: Instant,
    /// How much the machine is ahead of AWS, if that counts.
    ahead: SignedDuration,
}

/// What a reading of the machine's time has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockChange {
    /// How much the machine's time was set forward.
    pub stepped: Option<SignedDuration>,
    /// How much the machine's time is ahead of AWS's now.
    pub ahead: Option<SignedDuration>,
}

impl Clock {
    /// A clock that shows the machine's time.
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "the only place that reads the machine's time")]
    pub fn system() -> Self {
        Self::reading(Timestamp::now)
    }

    /// A clock that shows `now` at this instant, for tests that share a simulation's wall time.
    #[must_use]
    pub fn showing(now: Timestamp) -> Self {
        let start = Instant::now();
        Self::reading(move || now + start.elapsed())
    }

    /// A clock for a machine whose time `machine` reads.
    #[must_use]
    pub fn reading(machine: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        let (base, start) = (machine(), Instant::now());
        let last = Mutex::new(Reading { machine: base, at: start, ahead: SignedDuration::ZERO });
        let wall = Wall { shift: AtomicI64::new(0), machine: Box::new(machine), last };
        Self { base, start, wall: Box::leak(Box::new(wall)) }
    }

    /// Reads the machine's time again, and adopts it. `aws` is AWS's time at some instant of the past `within`, if it is known: a
    /// machine that differs from it by more than can be explained is corrected by the difference, until its time is set.
    pub fn adjust(&self, aws: Option<Timestamp>, within: Duration) -> ClockChange {
        let (machine, at) = ((self.wall.machine)(), Instant::now());
        let mut last = self.wall.last.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = SignedDuration::try_from(at.duration_since(last.at)).unwrap_or_default();
        let step = machine.duration_since(last.machine) - passed;
        let stepped = (step.abs() > STEP).then_some(step);
        let mut ahead = if stepped.is_some() { SignedDuration::ZERO } else { last.ahead };
        if let Some(aws) = aws {
            let skew = machine.duration_since(aws);
            let certain = skew - SignedDuration::try_from(within).unwrap_or_default() > SKEW || skew < -SKEW;
            let found = if certain { skew } else { SignedDuration::ZERO };
            // The answers of AWS take longer at times.
            ahead = if (found - ahead).abs() > STEP { found } else { ahead };
        }
        let change = ClockChange { stepped, ahead: (ahead != last.ahead).then_some(ahead) };
        *last = Reading { machine, at, ahead };
        let unshifted = self.base + at.duration_since(self.start);
        let shift = machine.duration_since(unshifted) - ahead;
        self.wall.shift.store(i64::try_from(shift.as_nanos()).unwrap_or_default(), Ordering::Relaxed);
        change
    }

    /// Returns wall time at the clock's start, by what is known now.
    fn base(&self) -> Timestamp {
        let shift = SignedDuration::from_nanos(self.wall.shift.load(Ordering::Relaxed));
        self.base.checked_add(shift).unwrap_or(self.base)
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
        self.base().checked_add(forward - back).unwrap_or(Timestamp::MAX)
    }

    /// Returns the instant of a wall time within a year of the clock's start. An earlier instant than the platform can express becomes
    /// the clock's start.
    #[must_use]
    pub fn instant_of(&self, time: Timestamp) -> Instant {
        let distance = time.duration_since(self.base());
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

impl fmt::Debug for Wall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wall").field("shift", &self.shift).finish_non_exhaustive()
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

    /// A clock of a machine that is set by `set`, and the number of seconds by which it is set.
    fn machine() -> (Clock, std::sync::Arc<AtomicI64>) {
        let set = std::sync::Arc::new(AtomicI64::new(0));
        let (noon, start, offset) = (noon(), Instant::now(), std::sync::Arc::clone(&set));
        let machine = move || noon + start.elapsed() + SignedDuration::from_secs(offset.load(Ordering::Relaxed));
        (Clock::reading(machine), set)
    }

    fn noon() -> Timestamp {
        "2026-11-21T12:00:00Z".parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_whose_time_is_set_is_followed() {
        let (clock, set) = machine();
        tokio::time::advance(Duration::from_mins(1)).await;
        assert_eq!(clock.adjust(None, Duration::ZERO), ClockChange::default());
        set.store(600, Ordering::Relaxed);
        let stepped = ClockChange { stepped: Some(SignedDuration::from_mins(10)), ahead: None };
        assert_eq!(clock.adjust(None, Duration::ZERO), stepped);
        assert_eq!(clock.now(), noon() + Duration::from_mins(11));
        assert_eq!(clock.instant_of(clock.now()), Instant::now());
        assert_eq!(clock.adjust(None, Duration::ZERO), ClockChange::default());
    }

    #[tokio::test(start_paused = true)]
    async fn aws_s_time_counts_where_it_certainly_differs() {
        let s = SignedDuration::from_secs;
        for (machine_ahead, within, ahead) in
            [(3, 0, 0), (-3, 0, 0), (15, 20, 0), (600, 20, 600), (-600, 20, -600), (-15, 20, -15)]
        {
            let (clock, set) = machine();
            set.store(machine_ahead, Ordering::Relaxed);
            clock.adjust(None, Duration::ZERO);
            let change = clock.adjust(Some(noon()), Duration::from_secs(within));
            assert_eq!(change.ahead, (ahead != 0).then_some(s(ahead)), "{machine_ahead} {within}");
            assert_eq!(clock.now(), noon() + s(machine_ahead - ahead));
            assert_eq!(clock.adjust(None, Duration::ZERO), ClockChange::default(), "the correction stays");
            assert_eq!(clock.now(), noon() + s(machine_ahead - ahead));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_correction_ends_when_the_machine_s_time_is_set() {
        let (clock, set) = machine();
        set.store(600, Ordering::Relaxed);
        clock.adjust(Some(noon()), Duration::ZERO);
        set.store(0, Ordering::Relaxed);
        let change = clock.adjust(None, Duration::ZERO);
        assert_eq!((change.stepped, change.ahead), (Some(-SignedDuration::from_mins(10)), Some(SignedDuration::ZERO)));
        assert_eq!(clock.now(), noon());
    }
}
