//! The time during which the API server is away: calls have no answer, or only that it is overloaded or has failed.

use crate::fact::Category;
use crate::runtime::clock;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// Maximum time after a call that has failed for which the server counts as away: without another call nothing is known of it.
const UNKNOWN_AFTER: Duration = Duration::from_secs(15);

/// Interval at which an absence in progress is counted.
const STEP: Duration = Duration::from_secs(1);

/// How long the API server was away, as the calls of one gate show. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Absence(Arc<watch::Sender<Absences>>);

#[derive(Clone, Copy, Debug, Default)]
struct Absences {
    /// Sum of those that are over.
    over: Duration,
    outage: Option<Outage>,
    /// Writes that have failed since the last answer, and no read: the admission webhooks that the server asks may be what is away.
    doubted: Option<Outage>,
    /// The last answer.
    answered: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Outage {
    /// The start of the first call that has failed since the last answer, or that answer, if it came later.
    since: Instant,
    /// The end of the last call that has failed.
    failed: Instant,
}

impl Outage {
    /// Whether the calls until now are known to have failed.
    fn is_current(&self, now: Instant) -> bool {
        now <= self.failed + UNKNOWN_AFTER
    }

    fn lasted(self, now: Instant) -> Duration {
        now.min(self.failed + UNKNOWN_AFTER).saturating_duration_since(self.since)
    }
}

impl Absences {
    fn total(self, now: Instant) -> Duration {
        self.over + self.outage.map_or(Duration::ZERO, |outage| outage.lasted(now))
    }

    /// Ends the absence that runs. Returns whether one ran.
    fn end(&mut self, now: Instant) -> bool {
        let total = self.total(now);
        self.over = total;
        self.outage.take().is_some()
    }
}

impl Absence {
    /// Takes the result of a call that began at `begun`. A refusal is an answer. A failed write counts from its start, but only when a read
    /// has failed, too.
    pub(super) fn note(&self, begun: Instant, is_read: bool, failed: Option<Category>) {
        let now = Instant::now();
        let is_away = failed.is_some_and(Category::is_away);
        self.0.send_if_modified(|absences| {
            if !is_away {
                absences.answered = Some(now);
                return absences.doubted.take().is_some() | absences.end(now);
            }
            if let Some(outage) = absences.outage.as_mut().filter(|outage| outage.is_current(now)) {
                outage.failed = now;
                return false;
            }
            absences.end(now);
            let doubted = absences.doubted.take().filter(|doubted| doubted.is_current(now));
            let since = absences.answered.map_or(begun, |answered| answered.max(begun));
            let failing = Outage { since: doubted.map_or(since, |doubted| doubted.since), failed: now };
            let known = if is_read { &mut absences.outage } else { &mut absences.doubted };
            *known = Some(failing);
            is_read || doubted.is_none()
        });
    }

    /// Returns the sum of all absences until now.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.0.borrow().total(Instant::now())
    }

    /// Returns the absences from now on.
    #[must_use]
    pub fn since_now(&self) -> AbsenceSince {
        AbsenceSince { absence: self.clone(), before: self.total() }
    }

    /// Waits until the sum has grown beyond `counted`: at the end of an absence, and about each second while one runs.
    pub async fn grown(&self, counted: Duration) {
        let mut changes = self.0.subscribe();
        loop {
            let absences = *changes.borrow_and_update();
            let ahead = absences.total(Instant::now()).saturating_sub(counted);
            if ahead >= STEP || absences.outage.is_none() && !ahead.is_zero() {
                return;
            }
            let next = absences.outage.map(|_| Instant::now() + (STEP - ahead));
            tokio::select! {
                biased;
                // The sender is here.
                _ = changes.changed() => {}
                () = clock::until(next) => {}
            }
        }
    }

    /// Waits until the server has been away for this long.
    pub async fn lasted(&self, time: Duration) {
        let mut changes = self.0.subscribe();
        loop {
            let lasted = changes.borrow_and_update().outage.map(|outage| outage.lasted(Instant::now()));
            if lasted.is_some_and(|lasted| lasted >= time) {
                return;
            }
            let left = lasted.map(|lasted| Instant::now() + (time - lasted));
            tokio::select! {
                biased;
                _ = changes.changed() => {}
                () = clock::until(left) => {}
            }
        }
    }

    /// Makes a read at once and then again and again while the server is, or may be, away, so that its absence and its return are noted
    /// though no other call is made. Never ends.
    pub async fn probe<F: Future<Output = ()>>(&self, interval: Duration, read: impl Fn() -> F) -> Infallible {
        let mut changes = self.0.subscribe();
        let may_be_away = |absences: &Absences| absences.outage.is_some() || absences.doubted.is_some();
        loop {
            // The sender is here.
            let _ = changes.wait_for(may_be_away).await;
            read().await;
            if may_be_away(&changes.borrow_and_update()) {
                sleep(interval).await;
            }
        }
    }
}

/// The server's absences since some time.
#[derive(Clone, Debug)]
pub struct AbsenceSince {
    absence: Absence,
    before: Duration,
}

impl AbsenceSince {
    /// Returns their sum.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.absence.total().saturating_sub(self.before)
    }

    /// As [`Absence::grown`].
    pub async fn grown(&self, counted: Duration) {
        self.absence.grown(self.before + counted).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    const FAILED: Option<Category> = Some(Category::Unavailable);

    #[tokio::test(start_paused = true)]
    async fn an_absence_counts_from_its_first_call_to_the_next_answer() {
        let absence = Absence::default();
        let hung = Instant::now();
        advance(s(10)).await;
        absence.note(hung, true, Some(Category::TimedOut));
        assert_eq!(absence.total(), s(10), "from the start of the call");
        advance(s(7)).await;
        absence.note(Instant::now(), true, Some(Category::Denied));
        advance(s(100)).await;
        assert_eq!(absence.total(), s(17), "a refusal is an answer");
        let begun = Instant::now();
        absence.note(begun, true, None);
        advance(s(1)).await;
        absence.note(hung, true, FAILED);
        absence.note(begun, true, FAILED);
        advance(s(2)).await;
        assert_eq!(absence.total(), s(20), "not before the last answer, however early the call began");
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_fails_counts_only_when_a_read_fails_too() {
        let absence = Absence::default();
        let hung = Instant::now();
        advance(s(10)).await;
        absence.note(hung, false, Some(Category::TimedOut));
        advance(s(1)).await;
        assert_eq!(absence.total(), s(0), "an admission webhook may hang");
        absence.note(Instant::now(), true, None);
        advance(s(1)).await;
        absence.note(Instant::now(), true, FAILED);
        assert_eq!(absence.total(), s(0), "the read before was answered");
        absence.note(Instant::now(), true, None);
        let hung = Instant::now();
        for _ in 0..2 {
            advance(s(10)).await;
            absence.note(Instant::now() - s(10), false, Some(Category::TimedOut));
        }
        absence.note(Instant::now(), true, FAILED);
        assert_eq!(absence.total(), hung.elapsed(), "from the begin of the first");
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_call_nothing_is_known() {
        let absence = Absence::default();
        absence.note(Instant::now(), true, FAILED);
        advance(s(1000)).await;
        assert_eq!(absence.total(), UNKNOWN_AFTER);
        absence.note(Instant::now(), true, FAILED);
        advance(s(10)).await;
        absence.note(Instant::now(), true, FAILED);
        advance(s(10)).await;
        assert_eq!(absence.total(), UNKNOWN_AFTER + s(20));
    }

    #[tokio::test(start_paused = true)]
    async fn growth_is_told_each_second_and_at_the_end() {
        let absence = Absence::default();
        let begun = Instant::now();
        absence.note(begun, true, FAILED);
        absence.grown(Duration::ZERO).await;
        assert_eq!(begun.elapsed(), STEP);
        let grown = absence.grown(STEP);
        let ended = async {
            sleep(Duration::from_millis(300)).await;
            absence.note(Instant::now(), true, None);
        };
        tokio::join!(grown, ended);
        assert_eq!((begun.elapsed(), absence.total()), (Duration::from_millis(1300), Duration::from_millis(1300)));
        absence.note(Instant::now(), true, FAILED);
        absence.lasted(s(12)).await;
        assert_eq!(begun.elapsed(), Duration::from_millis(13_300));
    }
}
