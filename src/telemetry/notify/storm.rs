//! The notifications of a storm: one at its start, one when a drain is blocked, one at its end. Pure.

use super::episode::{End, Episode, Verdict};
use super::notification::BlockedPod;
use super::phases::Phases;
use crate::fact::{NoticeOutcome, NotificationPhase};
use crate::runtime::clock::Clock;
use crate::telemetry::history::report;
use crate::telemetry::history::storm::{Storm, WINDOW};
use jiff::{SignedDuration, Timestamp};
use std::time::Duration;
use tokio::time::Instant;

/// Time between a storm's recognition, or its first blocked drain, and the message about it: others follow within seconds.
const COLLECT: Duration = Duration::from_secs(10);

/// Time after the last notice after which a storm is reported, whatever still runs. A lifecycle hook may last for two days.
const MAX_TAIL: SignedDuration = SignedDuration::from_mins(15);

/// Maximum number of blocked pods that are named.
const MAX_BLOCKED: usize = 20;

/// A storm in progress.
#[derive(Debug)]
pub(super) struct FoldedStorm {
    storm: Storm,
    /// When its start was seen, as the name of the storm.
    pub since: Timestamp,
    newest: Timestamp,
    running: usize,
    /// Number of nodes that another replica continues.
    elsewhere: usize,
    failed: usize,
    /// Number of drains that have been blocked.
    pub blocked_drains: usize,
    pub is_test: bool,
    /// The phases that the user wants.
    chosen: Phases,
    pub sent: Phases,
    begin_due: Option<Instant>,
    blocked_due: Option<Instant>,
    blocked: Vec<BlockedPod>,
    blocked_more: usize,
}

impl FoldedStorm {
    pub(super) fn new(since: Timestamp) -> Self {
        Self {
            storm: Storm::new(0, since),
            since,
            newest: since,
            running: 0,
            elsewhere: 0,
            failed: 0,
            blocked_drains: 0,
            is_test: true,
            chosen: Phases::NONE,
            sent: Phases::NONE,
            begin_due: Some(Instant::now() + COLLECT),
            blocked_due: None,
            blocked: Vec::new(),
            blocked_more: 0,
        }
    }

    /// Whether a node whose work begins now belongs to it.
    pub(super) fn includes(&self, now: Timestamp) -> bool {
        self.storm.includes(now)
    }

    /// Takes a node, which may have ended.
    pub(super) fn take(&mut self, episode: &mut Episode, clock: Clock) {
        episode.is_folded = true;
        episode.notice_due = None;
        self.chosen = self.chosen.or(episode.chosen);
        self.is_test &= episode.is_test;
        let at = clock.timestamp_of(episode.begun);
        self.newest = self.newest.max(at);
        self.storm.begins(episode.about.kind, at);
        self.running += 1;
        if episode.is_over() {
            self.end(episode, clock);
        }
    }

    /// A drain has been blocked for long enough.
    pub(super) fn block(&mut self, episode: &Episode) {
        let (blocked, more) = episode.blocked(MAX_BLOCKED.saturating_sub(self.blocked.len()));
        self.blocked.extend(blocked);
        self.blocked_more += more;
        self.blocked_drains += 1;
        self.blocked_due.get_or_insert_with(|| Instant::now() + COLLECT);
    }

    /// All notices of a node have ended.
    pub(super) fn end(&mut self, episode: &Episode, clock: Clock) {
        let now = clock.timestamp_of(Instant::now());
        self.running = self.running.saturating_sub(1);
        let Some(End { kind, outcome, .. }) = &episode.end else { return };
        if *outcome == NoticeOutcome::HandedOver {
            self.elsewhere += 1;
            return;
        }
        self.failed += usize::from(Verdict::on(*outcome) == Verdict::Failed);
        let times = (clock.timestamp_of(episode.begun), now);
        self.storm.ends(episode.name(), *kind, *outcome, times);
    }

    /// Returns whether it is over: no new notice comes, and all nodes have ended, or it is reported without them.
    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        let calm = now.duration_since(self.newest);
        calm > WINDOW && (self.running == 0 || calm > MAX_TAIL)
    }

    /// Returns when to look at it next.
    pub(super) fn due(&self, clock: Clock) -> Instant {
        let calm = if self.running == 0 { WINDOW } else { MAX_TAIL };
        let end = clock.instant_of(self.newest + calm) + Duration::from_secs(1);
        [self.begin_due, self.blocked_due].into_iter().flatten().fold(end, Instant::min)
    }

    /// Returns the phase to send now, during the storm.
    pub(super) fn phase(&mut self) -> Option<NotificationPhase> {
        let now = Instant::now();
        let is_due = |due: &mut Option<Instant>| due.take_if(|due| *due <= now).is_some();
        if is_due(&mut self.begin_due) && self.claim(NotificationPhase::Notice) {
            return Some(NotificationPhase::Notice);
        }
        (is_due(&mut self.blocked_due) && self.claim(NotificationPhase::Blocked)).then_some(NotificationPhase::Blocked)
    }

    /// Whether all its nodes have ended here.
    pub(super) const fn is_whole(&self) -> bool {
        self.running == 0 && self.elsewhere == 0
    }

    /// Whether a failure of it is to be reported.
    pub(super) const fn has_failed(&self) -> bool {
        self.failed > 0
    }

    /// Returns the phase of its end.
    pub(super) fn last_phase(&mut self) -> Option<NotificationPhase> {
        let phase = if self.failed > 0 { NotificationPhase::Failed } else { NotificationPhase::Done };
        self.claim(phase).then_some(phase)
    }

    fn claim(&mut self, phase: NotificationPhase) -> bool {
        let is_wanted = self.chosen.has(phase) && !self.sent.has(phase);
        self.sent = self.sent.with(phase);
        is_wanted
    }

    /// Returns its blocked pods, and the number of the others.
    pub(super) fn blocked(&self) -> (Vec<BlockedPod>, usize) {
        (self.blocked.clone(), self.blocked_more)
    }

    pub(super) fn report(&self, id: &str, replica: &str) -> report::Storm {
        self.storm.report(id.to_owned(), replica)
    }
}
