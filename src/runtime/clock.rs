//! The clock: tokio's time for all waits, and wall time computed from it.
//!
//! Wall time is the machine's time plus the time that has passed on tokio's clock since it was read. So a test that advances tokio's
//! time also advances AWS's deadlines and request signatures. The machine's time is read again now and then: it is set, or a suspended
//! machine's tokio time has stood still. Only a server's time shows which of the two happened. Where AWS's time certainly differs from
//! the machine's, AWS's counts, because deadlines are AWS's.

use aws_smithy_async::time::TimeSource;
use jiff::{SignedDuration, Timestamp};
use parking_lot::{Mutex, MutexGuard};
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

/// Maximum age of a notice. SQS keeps messages for 14 days at most; an older time comes from a wrong clock.
const MAX_NOTICE_AGE: Duration = Duration::from_hours(14 * 24);

/// Maximum distance between an instant and the clock's start. It keeps arithmetic on instants from overflowing.
const MAX_DISTANCE: Duration = Duration::from_hours(366 * 24);

/// Minimum change of the machine's time that counts as a step.
const STEP: SignedDuration = SignedDuration::from_secs(2);

/// Minimum difference from AWS's time that counts. AWS's servers differ among themselves by less.
const SKEW: SignedDuration = SignedDuration::from_secs(5);

/// Minimum jump of wall time that ends [`Clock::jumped`]. AWS's time is not known better than by [`SKEW`], so work that begins again
/// after a shorter jump gains nothing.
const JUMP: SignedDuration = SKEW;

/// Wall time and tokio's time. Copies agree.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    base: Timestamp,
    start: Instant,
    /// Leaked: a process has one clock, and copies of it everywhere.
    wall: &'static Wall,
}

/// The relation of wall time to tokio's time.
struct Wall {
    /// Nanoseconds that wall time is ahead of the clock's base plus tokio's time.
    shift: AtomicI64,
    /// Reads the machine's time.
    machine: Box<dyn Fn() -> Timestamp + Send + Sync>,
    last: Mutex<ClockReference>,
    /// `shift` after each of its changes by more than [`STEP`].
    jumps: watch::Sender<i64>,
    /// Whether the clock is trusted: see [`Clock::trust`].
    trusted: watch::Sender<bool>,
}

/// A reading of the machine's time.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    machine: Timestamp,
    at: Instant,
}

/// The reading that wall time follows.
#[derive(Clone, Copy)]
struct ClockReference {
    reading: Reading,
    /// How much the machine is ahead of AWS, if that counts.
    ahead: SignedDuration,
}

/// The change that a reading of the machine's time has made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "a change is reported as a fact"]
pub struct ClockChange {
    /// How much the machine's time was set forward, or for how long the machine was suspended.
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
        let reading = Reading { machine: base, at: start };
        let last = Mutex::new(ClockReference { reading, ahead: SignedDuration::ZERO });
        let wall = Wall {
            shift: AtomicI64::new(0),
            machine: Box::new(machine),
            last,
            jumps: watch::Sender::new(0),
            trusted: watch::Sender::new(false),
        };
        Self { base, start, wall: Box::leak(Box::new(wall)) }
    }

    /// Reads the machine's time, before a server is asked for its own: see [`Clock::compare`].
    #[must_use]
    pub fn read(&self) -> Reading {
        Reading { machine: (self.wall.machine)(), at: Instant::now() }
    }

    /// Returns whether the machine's time has been set, or the machine been suspended, since wall time followed it last.
    #[must_use]
    pub fn has_stepped(&self) -> bool {
        self.last().reading.step_to(self.read()).abs() > STEP
    }

    /// Follows the machine's time, less what it was ahead of AWS's before: a step takes that back at most.
    pub fn follow(&self) -> ClockChange {
        let last = self.last();
        let now = self.read();
        let step = last.reading.step_to(now);
        // A machine that was set is ahead by the step more; what was suspended, as before.
        let set = last.ahead + step;
        let ahead = if set.abs() < last.ahead.abs() && step.abs() > STEP { set } else { last.ahead };
        self.adopt(last, ClockReference { reading: now, ahead })
    }

    /// Marks the clock as trusted: AWS, or the API server when asked for its time, has answered, with or without a time, or no server's
    /// answers are compared with it. Before that, the machine's time may be wrong.
    pub fn trust(&self) {
        self.wall.trusted.send_replace(true);
    }

    /// Whether the clock is trusted: see [`Clock::trust`].
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        *self.wall.trusted.borrow()
    }

    /// Waits until the clock is trusted, but not longer than `at_most`: then the machine's time counts.
    pub async fn trusted(&self, at_most: Duration) {
        // The sender lives as long as the process.
        let _ = timeout(at_most, self.wall.trusted.subscribe().wait_for(|trusted| *trusted)).await;
    }

    /// Follows the machine's time, less what it is certainly ahead of AWS's. To be called when AWS's answer has arrived: it states the
    /// time `date`, and `asked` was read before the question. An answer that took too long to distinguish a set clock from a suspended
    /// machine changes nothing.
    pub fn compare(&self, date: Timestamp, asked: Reading) -> ClockChange {
        let last = self.last();
        let now = self.read();
        let step = last.reading.step_to(now);
        // By tokio's time, which stands still in a suspended machine, or by the machine's, which may have been set: the earlier one.
        let passed = SignedDuration::try_from(now.at.duration_since(asked.at)).unwrap_or_default();
        let asked = asked.machine.min(now.machine.checked_sub(passed).unwrap_or(now.machine));
        let (least, most) = ahead_of(date, asked, now.machine).into_inner();
        let fits = |ahead: &SignedDuration| (least - SKEW..=most + SKEW).contains(ahead);
        // A machine that was suspended is ahead by as much as before; one that was set, by the step more.
        let set = last.ahead + step;
        if step.abs() > JUMP && fits(&last.ahead) && fits(&set) {
            return ClockChange::default();
        }
        // The known value is kept while it fits, so that long polls, which are imprecise, don't move it.
        let known = [Some(last.ahead), Some(SignedDuration::ZERO), (step.abs() > STEP).then_some(set)];
        let ahead = known.into_iter().flatten().find(fits).unwrap_or_else(|| last.ahead.clamp(least, most));
        self.adopt(last, ClockReference { reading: now, ahead })
    }

    fn adopt(&self, mut last: MutexGuard<'_, ClockReference>, now: ClockReference) -> ClockChange {
        let step = last.reading.step_to(now.reading);
        let change = ClockChange {
            stepped: (step.abs() > STEP).then_some(step),
            ahead: (now.ahead != last.ahead).then_some(now.ahead),
        };
        *last = now;
        let unshifted = self.base + now.reading.at.duration_since(self.start);
        let shift = now.reading.machine.duration_since(unshifted) - now.ahead;
        let shift = i64::try_from(shift.as_nanos()).unwrap_or_default();
        self.wall.shift.store(shift, Ordering::Relaxed);
        self.wall.jumps.send_if_modified(|known| {
            let stepped = between(*known, shift) > STEP;
            if stepped {
                *known = shift;
            }
            stepped
        });
        change
    }

    /// Returns a future that ends when wall time has jumped by more than [`JUMP`] since this call: instants that were computed from
    /// times before are wrong by as much.
    pub fn jumped(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut jumps = self.wall.jumps.subscribe();
        let before = self.wall.shift.load(Ordering::Relaxed);
        async move {
            // The sender is never dropped.
            let _ = jumps.wait_for(|shift| between(before, *shift) > JUMP).await;
        }
    }

    fn last(&self) -> MutexGuard<'static, ClockReference> {
        self.wall.last.lock()
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

impl Reading {
    /// Returns how much more time has passed by the machine until `later` than by tokio.
    fn step_to(self, later: Self) -> SignedDuration {
        let passed = SignedDuration::try_from(later.at.duration_since(self.at)).unwrap_or_default();
        later.machine.duration_since(self.machine) - passed
    }
}

/// Returns by how much a clock is ahead of a server's: at least and at most. By that clock the server was asked and has answered at
/// these times; it wrote `date`, which has whole seconds, at some time in between. A server may write the date of a long poll's
/// answer at the poll's beginning.
#[must_use]
pub fn ahead_of(date: Timestamp, asked: Timestamp, answered: Timestamp) -> RangeInclusive<SignedDuration> {
    asked.duration_since(date) - SignedDuration::from_secs(1)..=answered.duration_since(date)
}

/// Returns the difference of two shifts, in nanoseconds.
fn between(a: i64, b: i64) -> SignedDuration {
    SignedDuration::from_nanos(a.saturating_sub(b)).abs()
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
mod tests;
