//! The state of one drain, and what is written about it next. Pure: one step for each fact, and no call.

use super::waits::{WaitState, WaitsEnd};
use super::{BlockedPod, DrainDeadline, DrainEnd, ObjectRef, Scope, text};
use crate::runtime::clock::Clock;
use std::sync::Arc;

/// An announcement about a drain.
#[derive(Debug)]
pub(super) enum Announcement {
    /// The drain begins.
    Begun { message: String },
    /// The drain has been blocked for a while. `first` is one of the blocked pods; `until` names the deadline and its effect.
    Blocked { message: String, first: BlockedPod, until: String },
    /// The interruption has waited for a while.
    Waiting { message: String },
    /// The waits ended.
    Waited(WaitsEnd),
    /// The drain ended. `has_condition`: the Node's condition was True.
    Ended { end: DrainEnd, report: String, has_condition: bool, is_notable: bool },
    /// The Node is in use again.
    Returned,
}

/// The objects that this process has written about a drain.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// The name of the Node's last Event.
    pub event: Option<String>,
    /// Whether this process has set the condition to True.
    pub condition: bool,
}

/// The phase of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The drain runs.
    Running,
    /// The drain ended here.
    Ended,
    /// This process gave the drain up, and another replica continues it.
    Abandoned,
}

/// The state of one drain.
#[derive(Debug)]
pub(super) struct DrainState {
    pub node: Arc<ObjectRef>,
    pub phase: Phase,
    pub deadline: DrainDeadline,
    /// `None` while a write, which owns the record, is under way.
    pub record: Option<Record>,
    /// Whether an announcement has reported the drain as blocked.
    is_block_announced: bool,
    pub waits: WaitState,
    pending: PendingAnnouncements,
}

/// The announcements still to be made.
#[derive(Debug, Default)]
struct PendingAnnouncements {
    /// The start, with the number of pods.
    begun: Option<usize>,
    /// The block, with the pods.
    blocked: Vec<BlockedPod>,
    ended: Option<PendingEnd>,
    returned: bool,
}

#[derive(Debug)]
struct PendingEnd {
    end: DrainEnd,
    report: String,
    has_condition: bool,
    is_notable: bool,
}

impl DrainState {
    pub(super) fn new(node: ObjectRef, phase: Phase, deadline: DrainDeadline) -> Self {
        Self {
            node: Arc::new(node),
            phase,
            waits: WaitState::default(),
            deadline,
            record: Some(Record::default()),
            is_block_announced: false,
            pending: PendingAnnouncements::default(),
        }
    }

    /// A drain of the Node begins. The end of this drain settles what an earlier one has left in the record.
    pub(super) fn begin(&mut self, pods: Option<usize>, deadline: DrainDeadline) {
        self.enter(Phase::Running);
        self.is_block_announced = false;
        self.deadline = deadline;
        self.pending.begun = pods;
    }

    /// The drain is blocked. That is announced once.
    pub(super) fn block(&mut self, pods: Vec<BlockedPod>, deadline: DrainDeadline) {
        if self.phase == Phase::Running && !self.is_block_announced {
            (self.pending.blocked, self.deadline) = (pods, deadline);
        }
    }

    /// The drain is no longer blocked.
    pub(super) fn unblock(&mut self) {
        self.pending.blocked.clear();
    }

    /// The drain ended. `has_condition`: the Node's condition is True, whichever replica set it. `is_notable`: the end is announced in each
    /// scope.
    pub(super) fn end(&mut self, end: DrainEnd, report: String, has_condition: bool, is_notable: bool) {
        self.enter(Phase::Ended);
        self.waits.forget_given_up();
        self.pending.ended = Some(PendingEnd { end, report, has_condition, is_notable });
    }

    /// The Node is in use again. What is still pending about its drain comes first.
    pub(super) fn come_back(&mut self) {
        self.pending.returned = true;
    }

    /// This process gave the drain up.
    pub(super) fn abandon(&mut self) {
        self.enter(Phase::Abandoned);
    }

    /// Changes the phase. What was pending in the phase before is out of date.
    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.pending = PendingAnnouncements::default();
    }

    pub(super) fn has_more(&self) -> bool {
        let PendingAnnouncements { begun, blocked, ended, returned } = &self.pending;
        begun.is_some() || !blocked.is_empty() || ended.is_some() || *returned || self.waits.has_more()
    }

    /// Returns the next announcement, and the record, which comes back after the write. `None` while a write is under way: announcements
    /// are written one at a time, in order.
    pub(super) fn next_announcement(&mut self, scope: Scope, clock: Clock) -> Option<(Announcement, Record)> {
        let record = self.record.take()?;
        let Some(announcement) = self.announcement(scope, clock, &record) else {
            self.record = Some(record);
            return None;
        };
        Some((announcement, record))
    }

    fn announcement(&mut self, scope: Scope, clock: Clock, record: &Record) -> Option<Announcement> {
        let deadline = clock.timestamp_of(self.deadline.at);
        // Ends are announced before starts.
        if let Some(end) = self.waits.ended() {
            return Some(Announcement::Waited(end));
        }
        if let Some(PendingEnd { end, report, has_condition, is_notable }) = self.pending.ended.take() {
            let wanted = scope.has_all() || has_condition || is_notable || record.condition || record.event.is_some();
            return wanted.then_some(Announcement::Ended { end, report, has_condition, is_notable });
        }
        if std::mem::take(&mut self.pending.returned) {
            return Some(Announcement::Returned);
        }
        if let Some(pods) = self.pending.begun.take() {
            return Some(Announcement::Begun { message: text::begun(pods, deadline) });
        }
        let blocked = std::mem::take(&mut self.pending.blocked);
        if !blocked.is_empty() {
            let until = text::until(deadline, self.deadline.is_hard);
            let message = text::blocked(&blocked, &until);
            self.is_block_announced = true;
            return blocked.into_iter().next().map(|first| Announcement::Blocked { message, first, until });
        }
        self.waits.begun(clock).map(|message| Announcement::Waiting { message })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fact::DrainOutcome;
    use std::time::Duration;
    use tokio::time::Instant;

    const DRAINED: DrainEnd = DrainEnd::Of(DrainOutcome::Drained);

    fn object(uid: &str) -> ObjectRef {
        ObjectRef { kind: "Pod", namespace: "default".into(), name: uid.into(), uid: uid.into() }
    }

    fn blocked(uid: &str) -> BlockedPod {
        BlockedPod { pod: object(uid), reason: "budget".into() }
    }

    fn begun() -> (DrainState, DrainDeadline, Clock) {
        let deadline = DrainDeadline { at: Instant::now() + Duration::from_mins(2), is_hard: true };
        let clock = Clock::showing("2026-11-21T12:00:00Z".parse().unwrap());
        (DrainState::new(object("node"), Phase::Running, deadline), deadline, clock)
    }

    /// Takes the next announcement, and returns the record as after its write.
    fn write(drain: &mut DrainState, clock: Clock) -> Option<Announcement> {
        let (announcement, _) = drain.next_announcement(Scope::Blocked, clock)?;
        drain.record = Some(Record { event: Some("event".to_owned()), condition: true });
        Some(announcement)
    }

    #[tokio::test(start_paused = true)]
    async fn a_block_is_announced_once_and_not_when_it_is_over() {
        let (mut drain, deadline, clock) = begun();
        drain.block(vec![blocked("a")], deadline);
        drain.unblock();
        assert!(!drain.has_more() && write(&mut drain, clock).is_none(), "unblocked while it waited for its write");
        drain.block(vec![blocked("a"), blocked("b")], deadline);
        assert!(matches!(write(&mut drain, clock), Some(Announcement::Blocked { .. })));
        drain.unblock();
        drain.block(vec![blocked("c")], deadline);
        assert!(write(&mut drain, clock).is_none(), "a block is announced once");
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_without_announcements_needs_no_end() {
        let (mut drain, deadline, clock) = begun();
        drain.block(vec![blocked("a")], deadline);
        drain.end(DRAINED, "1 of 1 pods gone".to_owned(), false, false);
        assert!(drain.next_announcement(Scope::Blocked, clock).is_none() && !drain.has_more());
        drain.end(DRAINED, "1 of 1 pods gone".to_owned(), true, false);
        let ended = drain.next_announcement(Scope::Blocked, clock);
        assert!(matches!(ended, Some((Announcement::Ended { has_condition: true, .. }, _))));
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_the_next_drain_settles_a_waiting_end() {
        let (mut drain, deadline, clock) = begun();
        drain.block(vec![blocked("a")], deadline);
        let Some((_, record)) = drain.next_announcement(Scope::Blocked, clock) else { panic!("an announcement") };
        assert_eq!((record.condition, record.event), (false, None));
        drain.end(DrainEnd::Of(DrainOutcome::Blocked), "0 of 1 pods gone".to_owned(), false, false);
        assert!(drain.next_announcement(Scope::Blocked, clock).is_none() && drain.has_more(), "one at a time");
        drain.begin(None, deadline);
        drain.record = Some(Record { event: None, condition: true });
        assert!(!drain.has_more() && drain.phase == Phase::Running);
        drain.end(DRAINED, "1 of 1 pods gone".to_owned(), false, false);
        assert!(matches!(write(&mut drain, clock), Some(Announcement::Ended { end: DRAINED, .. })));
    }
}
