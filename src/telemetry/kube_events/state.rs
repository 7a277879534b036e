//! What is known of one drain, and what is to be told of it next. Pure: a step for each piece of news, and no call.

use super::{BLOCKED_FOR, DrainEnd, Held, Scope, Subject, Until, words};
use crate::runtime::clock::Clock;
use std::sync::Arc;
use tokio::time::Instant;

/// Something to be told of a drain.
#[derive(Debug)]
pub(super) enum Story {
    /// It begins.
    Begun { message: String },
    /// It has been blocked for a while. `first` is one of the pods that block it; `until` says what becomes of it.
    Blocked { message: String, first: Held, until: String },
    /// It ended. `condition`: whether that was True in the end. `always`: an Event tells it, even if none told of the drain before.
    Ended { end: DrainEnd, report: String, condition: bool, always: bool },
}

/// What this process has written about a drain.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// The name of the Node's last Event.
    pub event: Option<String>,
    /// Whether the condition is True by us.
    pub condition: bool,
}

/// Where a drain stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It runs.
    Runs,
    /// It ended, here.
    Ended,
    /// It was given up here, and another replica goes on.
    Left,
}

/// One drain.
#[derive(Debug)]
pub(super) struct Drain {
    pub node: Arc<Subject>,
    pub phase: Phase,
    pub until: Until,
    /// What was written; `None` while a story is being told, which has it.
    pub written: Option<Written>,
    /// Who is held back now, in the order of the news; nobody any more once it was told.
    held: Vec<Held>,
    /// When it will have been blocked for long enough, if it is blocked.
    due: Option<Instant>,
    /// That it is blocked was told.
    told: bool,
    next: Next,
}

/// What is still to be told.
#[derive(Debug, Default)]
struct Next {
    /// That it begins to evict so many pods.
    begun: Option<usize>,
    /// That it is blocked.
    blocked: bool,
    /// That it ended.
    ended: Option<(DrainEnd, String, bool)>,
}

impl Drain {
    pub(super) fn new(node: Subject, until: Until) -> Self {
        Self {
            node: Arc::new(node),
            phase: Phase::Runs,
            until,
            written: Some(Written::default()),
            held: Vec::new(),
            due: None,
            told: false,
            next: Next::default(),
        }
    }

    /// A drain of the Node begins. Of an earlier one something may still be unsettled: that is settled by the end of this one.
    pub(super) fn begins(&mut self, pods: Option<usize>, until: Until) {
        self.enters(Phase::Runs);
        self.told = false;
        self.until = until;
        self.next.begun = pods;
    }

    /// A pod is held back. If with it the drain begins to be blocked: when it will have been for long enough.
    pub(super) fn holds(&mut self, held: Held, until: Until, at: Instant) -> Option<Instant> {
        let known = self.held.iter().any(|known| known.pod.uid == held.pod.uid);
        if self.phase != Phase::Runs || self.told || known {
            return None;
        }
        self.held.push(held);
        self.until = until;
        if self.due.is_some() {
            return None;
        }
        self.due = Some(at + BLOCKED_FOR);
        self.due
    }

    /// A pod is no longer held back.
    pub(super) fn lets_go(&mut self, pod: &str) {
        self.held.retain(|held| &*held.pod.uid != pod);
        if self.held.is_empty() {
            self.due = None;
            self.next.blocked = false;
        }
    }

    /// This time has come. Says whether it has been blocked for long enough by now.
    pub(super) fn is_due(&mut self, at: Instant) -> bool {
        let due = self.due == Some(at);
        self.next.blocked |= due;
        due
    }

    /// It ended so. `told`: the Node's condition is True, by whomever.
    pub(super) fn ends(&mut self, end: DrainEnd, report: String, told: bool) {
        self.enters(Phase::Ended);
        self.next.ended = Some((end, report, told));
    }

    /// It was given up.
    pub(super) fn is_left(&mut self) {
        self.enters(Phase::Left);
    }

    /// What was to be told in the phase before is news no longer.
    fn enters(&mut self, phase: Phase) {
        self.phase = phase;
        self.held = Vec::new();
        self.due = None;
        self.next = Next::default();
    }

    pub(super) const fn has_more(&self) -> bool {
        let Next { begun, blocked, ended } = &self.next;
        begun.is_some() || *blocked || ended.is_some()
    }

    /// What is to be told next, in words of now, together with what was written, which comes back when it was told. `None` while a
    /// story is being told: one at a time, in their order.
    pub(super) fn story(&mut self, scope: Scope, clock: Clock) -> Option<(Story, Written)> {
        let written = self.written.take()?;
        let Some(story) = self.next_story(scope, clock, &written) else {
            self.written = Some(written);
            return None;
        };
        Some((story, written))
    }

    fn next_story(&mut self, scope: Scope, clock: Clock, written: &Written) -> Option<Story> {
        let until = clock.timestamp_of(self.until.at);
        if let Some((end, report, condition)) = self.next.ended.take() {
            let always = scope == Scope::All;
            let wanted = always || condition || written.condition || written.event.is_some();
            return wanted.then_some(Story::Ended { end, report, condition, always });
        }
        if let Some(pods) = self.next.begun.take() {
            return Some(Story::Begun { message: words::begun(pods, until) });
        }
        if std::mem::take(&mut self.next.blocked) {
            let until = words::until(until, self.until.hard);
            let message = words::held_back(&self.held, &until);
            let first = std::mem::take(&mut self.held).into_iter().next()?;
            (self.told, self.due) = (true, None);
            return Some(Story::Blocked { message, first, until });
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fact::DrainOutcome;
    use std::time::Duration;

    const DRAINED: DrainEnd = DrainEnd::Of(DrainOutcome::Drained);

    fn subject(uid: &str) -> Subject {
        Subject { kind: "Pod", namespace: "default".into(), name: uid.into(), uid: uid.into() }
    }

    fn held(uid: &str) -> Held {
        Held { pod: subject(uid), by: "budget".into() }
    }

    fn begun() -> (Drain, Until, Instant, Clock) {
        let now = Instant::now();
        let until = Until { at: now + Duration::from_mins(2), hard: true };
        let clock = Clock::showing("2026-11-21T12:00:00Z".parse().unwrap());
        (Drain::new(subject("node"), until), until, now, clock)
    }

    /// Takes the next story, and gives back what is written after it.
    fn tell(drain: &mut Drain, clock: Clock) -> Option<Story> {
        let (story, _) = drain.story(Scope::Blocked, clock)?;
        drain.written = Some(Written { event: Some("event".to_owned()), condition: true });
        Some(story)
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_begins_anew_when_nobody_is_held_back_any_more() {
        let (mut drain, until, now, clock) = begun();
        let due = drain.holds(held("a"), until, now);
        assert_eq!(due, Some(now + BLOCKED_FOR));
        assert_eq!(drain.holds(held("b"), until, now + BLOCKED_FOR / 2), None, "it was blocked before");
        drain.lets_go("a");
        assert!(drain.is_due(now + BLOCKED_FOR), "b still is held back");
        drain.lets_go("b");
        assert!(tell(&mut drain, clock).is_none(), "while it waited for its turn, it was let go");
        let later = now + BLOCKED_FOR * 2;
        assert_eq!(drain.holds(held("a"), until, later), Some(later + BLOCKED_FOR));
        assert!(!drain.is_due(now + BLOCKED_FOR), "a timer of before");
        assert!(drain.is_due(later + BLOCKED_FOR));
        assert!(matches!(tell(&mut drain, clock), Some(Story::Blocked { .. })));
        assert_eq!(drain.holds(held("c"), until, later), None, "told is told");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_never_told_needs_no_end() {
        let (mut drain, until, now, clock) = begun();
        let due = drain.holds(held("a"), until, now).unwrap();
        assert!(drain.is_due(due));
        drain.ends(DRAINED, "1 of 1 pods gone".to_owned(), false);
        assert!(drain.story(Scope::Blocked, clock).is_none() && !drain.has_more());
        drain.ends(DRAINED, "1 of 1 pods gone".to_owned(), true);
        assert!(matches!(drain.story(Scope::Blocked, clock), Some((Story::Ended { condition: true, .. }, _))));
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_that_waits_for_its_turn_is_made_good_by_the_next_drain() {
        let (mut drain, until, now, clock) = begun();
        let due = drain.holds(held("a"), until, now).unwrap();
        assert!(drain.is_due(due));
        let Some((_, written)) = drain.story(Scope::Blocked, clock) else { panic!("a story") };
        assert_eq!((written.condition, written.event), (false, None));
        drain.ends(DrainEnd::Of(DrainOutcome::Blocked), "0 of 1 pods gone".to_owned(), false);
        assert!(drain.story(Scope::Blocked, clock).is_none() && drain.has_more(), "one story at a time");
        drain.begins(None, until);
        drain.written = Some(Written { event: None, condition: true });
        assert!(!drain.has_more() && drain.phase == Phase::Runs);
        drain.ends(DRAINED, "1 of 1 pods gone".to_owned(), false);
        assert!(matches!(tell(&mut drain, clock), Some(Story::Ended { end: DRAINED, .. })));
    }
}
