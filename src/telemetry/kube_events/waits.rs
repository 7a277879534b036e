//! The waits of one Node's interruptions, and which of them have lasted for long enough to be announced. Pure.

use super::text;
use crate::fact::{MIN_BLOCKED_TIME, Wait, WaitOutcome};
use crate::runtime::clock::Clock;
use tokio::time::Instant;

/// A wait of one notice: two notices of a Node may wait for the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WaitKey {
    /// The notice's message.
    pub message: Box<str>,
    pub wait: Wait,
}

/// A wait that runs.
#[derive(Debug)]
pub(super) struct RunningWait {
    pub key: WaitKey,
    /// The subject of the wait.
    pub reason: Box<str>,
    pub begun: Instant,
    /// The latest end.
    pub until: Instant,
    pub announcement: AnnouncementState,
}

/// Whether a wait is announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnnouncementState {
    /// Once it has lasted for long enough.
    Later,
    /// Now.
    Next,
    /// It has been.
    Done,
    /// Not at all: too many others are.
    Never,
}

impl RunningWait {
    fn is_due(&self, now: Instant) -> bool {
        self.announcement == AnnouncementState::Later && self.begun + MIN_BLOCKED_TIME <= now
    }
}

/// The end of the announced waits of one Node.
#[derive(Debug)]
pub(super) struct WaitsEnd {
    /// How they ended.
    pub message: String,
    /// Whether a drain follows.
    pub drain_follows: bool,
    /// Whether one of them timed out.
    pub timed_out: bool,
}

/// The waits of one Node.
#[derive(Debug, Default)]
pub(super) struct WaitState {
    running: Vec<RunningWait>,
    /// The ends of those that were announced, in words.
    ended: Vec<String>,
    /// Whether a drain follows the last of them.
    drain_follows: bool,
    /// Whether one of them timed out.
    timed_out: bool,
    /// Whether an announced wait was given up. The replica that continues it announces its end.
    given_up: bool,
}

impl WaitState {
    /// A wait begins. Returns the time at which it will have lasted for long enough.
    pub(super) fn begin(&mut self, wait: RunningWait) -> Instant {
        let due = wait.begun + MIN_BLOCKED_TIME;
        self.running.retain(|known| known.key != wait.key);
        self.running.push(wait);
        due
    }

    /// A wait ended; `how` describes it.
    pub(super) fn end(&mut self, key: &WaitKey, outcome: WaitOutcome, how: String) {
        let announced = self.take(key);
        if announced || self.given_up {
            self.ended.push(how);
            self.timed_out |= outcome == WaitOutcome::TimeOver;
            self.drain_follows = match key.wait {
                Wait::Admission => outcome == WaitOutcome::Met,
                Wait::Delay | Wait::HoldBeforeDrain | Wait::Replacement | Wait::ZonalShift | Wait::Wave => {
                    outcome != WaitOutcome::CalledOff
                }
                _ => false,
            };
        }
    }

    /// A wait was given up: another replica continues it.
    pub(super) fn abandon(&mut self, key: &WaitKey) {
        self.given_up |= self.take(key);
    }

    /// The end of a drain is announced, and with it the end of what was given up before.
    pub(super) const fn forget_given_up(&mut self) {
        self.given_up = false;
    }

    /// Removes a wait. Returns whether it has been announced.
    fn take(&mut self, key: &WaitKey) -> bool {
        self.running
            .extract_if(.., |known| known.key == *key)
            .any(|known| known.announcement == AnnouncementState::Done)
    }

    /// Whether a wait is announced, or about to be, and its end is not.
    pub(super) fn is_announced(&self) -> bool {
        let announced =
            |wait: &RunningWait| matches!(wait.announcement, AnnouncementState::Next | AnnouncementState::Done);
        self.given_up || !self.ended.is_empty() || self.running.iter().any(announced)
    }

    /// Whether some wait has lasted for long enough at `now`, and nothing is decided about it.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.running.iter().any(|wait| wait.is_due(now))
    }

    /// Decides about the waits that are due at `now`.
    pub(super) fn decide(&mut self, now: Instant, announcement: AnnouncementState) {
        self.running.iter_mut().filter(|wait| wait.is_due(now)).for_each(|wait| wait.announcement = announcement);
    }

    /// Whether no wait runs, and none is to be announced.
    pub(super) const fn is_over(&self) -> bool {
        self.running.is_empty() && self.ended.is_empty() && !self.given_up
    }

    /// Whether something is to be announced.
    pub(super) fn has_more(&self) -> bool {
        self.has_begun() || self.has_ended()
    }

    fn has_begun(&self) -> bool {
        self.running.iter().any(|wait| wait.announcement == AnnouncementState::Next)
    }

    /// Whether all that were announced have ended.
    fn has_ended(&self) -> bool {
        !self.ended.is_empty() && self.running.iter().all(|wait| wait.announcement != AnnouncementState::Done)
    }

    /// Returns what is waited for, if that is to be announced.
    pub(super) fn begun(&mut self, clock: Clock) -> Option<String> {
        if !self.has_begun() {
            return None;
        }
        let waits = self.running.iter_mut().map(|RunningWait { key, reason, until, announcement, .. }| {
            *announcement = AnnouncementState::Done;
            let until = clock.timestamp_of(*until).strftime("%Y-%m-%dT%H:%M:%SZ");
            format!("{} (until {until} at the latest): {reason}", key.wait)
        });
        Some(text::joined(waits))
    }

    /// Returns how the announced waits ended, when none of them runs any more.
    pub(super) fn ended(&mut self) -> Option<WaitsEnd> {
        self.has_ended().then(|| {
            self.given_up = false;
            let message = text::joined(std::mem::take(&mut self.ended));
            WaitsEnd { message, drain_follows: self.drain_follows, timed_out: std::mem::take(&mut self.timed_out) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const S: Duration = Duration::from_secs(1);

    fn key(message: &str, wait: Wait) -> WaitKey {
        WaitKey { message: message.into(), wait }
    }

    fn running(key: WaitKey, begun: Instant) -> RunningWait {
        RunningWait {
            key,
            reason: "attached: pv-1".into(),
            begun,
            until: begun + 60 * S,
            announcement: AnnouncementState::Later,
        }
    }

    fn state() -> (WaitState, Instant, Clock) {
        (WaitState::default(), Instant::now(), Clock::showing("2026-11-21T12:00:00Z".parse().unwrap()))
    }

    /// Has what is due announced.
    fn announced(waits: &mut WaitState, now: Instant, clock: Clock) -> Option<String> {
        waits.decide(now, AnnouncementState::Next);
        waits.begun(clock)
    }

    #[tokio::test(start_paused = true)]
    async fn waits_are_announced_once_and_so_is_their_end() {
        let (mut waits, now, clock) = state();
        let (volumes, hold) = (key("a", Wait::Volumes), key("a", Wait::HoldBeforeCompletion));
        let due = waits.begin(running(volumes.clone(), now));
        waits.begin(running(hold.clone(), now + 4 * S));
        assert!(due == now + MIN_BLOCKED_TIME && !waits.is_due(now + 4 * S), "too early");
        let expected = "volumes (until 2026-11-21T12:01:00Z at the latest): attached: pv-1; \
                        hold-before-completion (until 2026-11-21T12:01:04Z at the latest): attached: pv-1";
        assert_eq!(announced(&mut waits, due, clock).as_deref(), Some(expected));
        waits.end(&volumes, WaitOutcome::Met, "volumes: met".to_owned());
        assert!(!waits.has_more() && !waits.is_due(due + 60 * S), "the other goes on");
        waits.end(&hold, WaitOutcome::Met, "hold: met".to_owned());
        assert_eq!(
            (waits.ended().map(|end| end.message).as_deref(), waits.is_over()),
            (Some("volumes: met; hold: met"), true)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_ends_soon_is_not_announced_and_what_begins_later_is() {
        let (mut waits, now, clock) = state();
        let (first, second) = (key("a", Wait::Delay), key("b", Wait::Delay));
        let due = waits.begin(running(first.clone(), now));
        let later = waits.begin(running(second.clone(), now + 3 * S));
        waits.end(&first, WaitOutcome::Met, "delay: met".to_owned());
        assert!(!waits.is_due(due) && waits.is_due(later), "each has its own time");
        assert!(announced(&mut waits, later, clock).is_some());
        waits.begin(running(first.clone(), later));
        waits.end(&second, WaitOutcome::Met, "delay: met".to_owned());
        assert_eq!(waits.ended().map(|end| end.message).as_deref(), Some("delay: met"));
        assert!(!waits.is_over() && announced(&mut waits, later + MIN_BLOCKED_TIME, clock).is_some());
        waits.end(&first, WaitOutcome::TimeOver, "delay: time-over".to_owned());
        assert_eq!(
            (waits.ended().map(|end| end.message).as_deref(), waits.is_over()),
            (Some("delay: time-over"), true)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_silenced_wait_is_not_announced_nor_its_end() {
        let (mut waits, now, clock) = state();
        let volumes = key("a", Wait::Volumes);
        let due = waits.begin(running(volumes.clone(), now));
        waits.decide(due, AnnouncementState::Never);
        assert_eq!((waits.begun(clock), waits.is_announced()), (None, false));
        waits.end(&volumes, WaitOutcome::Met, "volumes: met".to_owned());
        assert_eq!((waits.ended().is_none(), waits.is_over()), (true, true));
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_goes_on_announces_the_end() {
        let (mut waits, now, clock) = state();
        let volumes = key("a", Wait::Volumes);
        let due = waits.begin(running(volumes.clone(), now));
        assert!(announced(&mut waits, due, clock).is_some());
        waits.abandon(&volumes);
        assert!(!waits.is_over(), "its announcement stands");
        waits.begin(running(volumes.clone(), due));
        waits.end(&volumes, WaitOutcome::Met, "volumes: met".to_owned());
        assert_eq!((waits.ended().map(|end| end.message).as_deref(), waits.is_over()), (Some("volumes: met"), true));
    }
}
