//! The waits of one Node's interruptions, and when they have lasted for long enough to be announced. Pure.

use super::{MIN_BLOCKED_TIME, text};
use crate::fact::Wait;
use crate::runtime::clock::Clock;
use tokio::time::Instant;

/// A wait that runs.
#[derive(Debug)]
pub(super) struct RunningWait {
    pub wait: Wait,
    /// What is waited for.
    pub reason: Box<str>,
    /// The latest end.
    pub until: Instant,
}

/// The waits of one Node.
#[derive(Debug, Default)]
pub(super) struct WaitState {
    running: Vec<RunningWait>,
    /// The ends of those that were announced, in words.
    ended: Vec<String>,
    /// The time at which they will have lasted for long enough.
    due: Option<Instant>,
    is_announced: bool,
    /// Whether another replica has announced what ended here.
    is_others: bool,
}

impl WaitState {
    /// A wait begins. If it is the first, returns the time at which it will have lasted for long enough.
    pub(super) fn begin(&mut self, wait: RunningWait, at: Instant) -> Option<Instant> {
        self.running.retain(|known| known.wait != wait.wait);
        self.running.push(wait);
        if self.due.is_some() || self.is_announced {
            return None;
        }
        self.due = Some(at + MIN_BLOCKED_TIME);
        self.due
    }

    /// A wait ended, as `how` says. `is_known`: the Node's condition is True because of another replica.
    pub(super) fn end(&mut self, wait: Wait, how: String, is_known: bool) {
        self.running.retain(|known| known.wait != wait);
        self.is_others |= is_known;
        if self.is_announced || self.is_others {
            self.ended.push(how);
        }
        if self.running.is_empty() {
            self.due = None;
        }
    }

    /// A wait was given up: somebody else goes on with it.
    pub(super) fn abandon(&mut self, wait: Wait) {
        self.running.retain(|known| known.wait != wait);
        if self.running.is_empty() {
            *self = Self::default();
        }
    }

    /// Whether the timer of this time is theirs.
    pub(super) fn is_due(&self, at: Instant) -> bool {
        self.due == Some(at)
    }

    /// Whether no wait runs, and none is to be announced.
    pub(super) const fn is_over(&self) -> bool {
        self.running.is_empty() && self.ended.is_empty()
    }

    /// Whether something is to be announced at `now`.
    pub(super) fn has_more(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| due <= now) || self.running.is_empty() && !self.ended.is_empty()
    }

    /// Returns what is waited for, once it has lasted for long enough at `now`.
    pub(super) fn begun(&mut self, now: Instant, clock: Clock) -> Option<String> {
        self.due.take_if(|due| *due <= now)?;
        self.is_announced = true;
        let waits = self.running.iter().map(|RunningWait { wait, reason, until }| {
            let until = clock.timestamp_of(*until).strftime("%Y-%m-%dT%H:%M:%SZ");
            format!("{wait}, until {until} at the latest: {reason}")
        });
        Some(text::joined(waits))
    }

    /// Returns how the announced waits ended, when none runs any more, and whether another replica has announced them.
    pub(super) fn ended(&mut self) -> Option<(String, bool)> {
        if !self.running.is_empty() || self.ended.is_empty() {
            return None;
        }
        let ended = std::mem::take(self);
        Some((text::joined(ended.ended), ended.is_others))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn volumes(now: Instant) -> RunningWait {
        RunningWait { wait: Wait::Volumes, reason: "attached: pv-1".into(), until: now + Duration::from_mins(1) }
    }

    #[tokio::test(start_paused = true)]
    async fn waits_are_announced_once_and_so_is_their_end() {
        let (now, clock) = (Instant::now(), Clock::showing("2026-11-21T12:00:00Z".parse().unwrap()));
        let mut waits = WaitState::default();
        let due = waits.begin(volumes(now), now).unwrap();
        let hold = RunningWait { wait: Wait::HoldBeforeCompletion, reason: "unreleased".into(), ..volumes(now) };
        assert_eq!((due, waits.begin(hold, now)), (now + MIN_BLOCKED_TIME, None));
        assert_eq!(waits.begun(now, clock), None, "too early");
        let expected = "volumes, until 2026-11-21T12:01:00Z at the latest: attached: pv-1; \
                        hold-before-completion, until 2026-11-21T12:01:00Z at the latest: unreleased";
        assert_eq!(waits.begun(due, clock).as_deref(), Some(expected));
        waits.end(Wait::Volumes, "volumes: met".to_owned(), false);
        assert!(!waits.has_more(due), "the other goes on");
        waits.end(Wait::HoldBeforeCompletion, "hold: met".to_owned(), true);
        assert_eq!(waits.ended(), Some(("volumes: met; hold: met".to_owned(), true)));
        assert!(waits.is_over());
    }

    #[tokio::test(start_paused = true)]
    async fn what_ends_soon_or_is_given_up_is_not_announced() {
        let (now, clock) = (Instant::now(), Clock::showing("2026-11-21T12:00:00Z".parse().unwrap()));
        let mut waits = WaitState::default();
        let due = waits.begin(volumes(now), now).unwrap();
        waits.end(Wait::Volumes, "volumes: met".to_owned(), false);
        assert!(waits.is_over() && !waits.is_due(due));
        assert_eq!((waits.begun(due, clock), waits.ended()), (None, None));
        let due = waits.begin(volumes(now), now).unwrap();
        assert!(waits.begun(due, clock).is_some());
        waits.abandon(Wait::Volumes);
        assert!(waits.is_over());
    }
}
