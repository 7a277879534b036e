//! The notifications of a storm: one at its start, one when a drain is blocked, one at its end; and at intervals its failures. Pure.

use super::episode::{End, Episode, Verdict};
use super::notification::BlockedPod;
use super::phases::Phases;
use crate::fact::NoticeOutcome;
use crate::fact::NotificationPhase::{self, Blocked, Done, Failed, Notice};
use crate::runtime::clock::Clock;
use crate::telemetry::history::report;
use crate::telemetry::history::storm::Storm;
use jiff::Timestamp;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of nodes that begin in [`WINDOW`], or still run after [`MAX_TAIL`], and are reported one by one.
pub(super) const MAX_CALM: usize = 5;

/// Time in which nodes are counted. A storm is over for new ones when none has come for as long.
pub(super) const WINDOW: Duration = Duration::from_mins(1);

/// Time between a storm's recognition, or its first blocked drain, and the message about it: others follow within seconds.
const COLLECT: Duration = Duration::from_secs(10);

/// Maximum time until a failure is reported during a storm.
const MAX_SILENCE: Duration = Duration::from_mins(5);

/// Time after the last notice after which a storm is reported, although few nodes still run. A lifecycle hook may last for two days.
pub(super) const MAX_TAIL: Duration = Duration::from_mins(15);

/// Maximum number of blocked pods that are named.
const MAX_BLOCKED: usize = 20;

/// A storm in progress.
#[derive(Debug)]
pub(super) struct FoldedStorm {
    storm: Storm,
    /// When its start was seen, as the name of the storm.
    pub since: Timestamp,
    newest: Instant,
    /// Number of nodes that something is to be reported of.
    nodes: usize,
    running: usize,
    /// Number of nodes that another replica continues.
    elsewhere: usize,
    failed: usize,
    /// Number of drains that have been blocked.
    pub blocked_drains: usize,
    pub is_test: bool,
    /// The phases that the user wants.
    chosen: Phases,
    begin_due: Option<Instant>,
    blocked_due: Option<Instant>,
    failed_due: Option<Instant>,
    blocked: Vec<BlockedPod>,
    blocked_more: usize,
}

impl FoldedStorm {
    pub(super) fn new(since: Timestamp) -> Self {
        Self {
            storm: Storm::new(0, since),
            since,
            newest: Instant::now(),
            nodes: 0,
            running: 0,
            elsewhere: 0,
            failed: 0,
            blocked_drains: 0,
            is_test: true,
            chosen: Phases::NONE,
            begin_due: Some(Instant::now() + COLLECT),
            blocked_due: None,
            failed_due: None,
            blocked: Vec::new(),
            blocked_more: 0,
        }
    }

    /// Whether a node whose work begins now belongs to it.
    pub(super) fn includes_new(&self) -> bool {
        self.newest.elapsed() <= WINDOW
    }

    /// Takes a node, which may have ended.
    pub(super) fn take(&mut self, episode: &mut Episode, clock: Clock) {
        episode.is_folded = true;
        episode.hold = None;
        self.chosen = self.chosen.or(episode.chosen);
        self.is_test &= episode.is_test;
        self.newest = self.newest.max(episode.begun);
        self.storm.begins(episode.about.kind, clock.timestamp_of(episode.begun));
        self.nodes += 1;
        self.running += 1;
        self.block(episode);
        if episode.is_over() {
            self.end(episode, clock);
        }
    }

    /// Counts a node whose drain is blocked, once.
    pub(super) fn block(&mut self, episode: &mut Episode) {
        if episode.blocked.is_empty() || episode.sent.has(Blocked) {
            return;
        }
        episode.sent = episode.sent.with(Blocked);
        let (blocked, more) = episode.blocked(MAX_BLOCKED.saturating_sub(self.blocked.len()));
        self.blocked.extend(blocked);
        self.blocked_more += more;
        self.blocked_drains += 1;
        if self.blocked_drains == 1 {
            self.blocked_due = Some(Instant::now() + COLLECT);
        }
    }

    /// All notices of a node have ended.
    pub(super) fn end(&mut self, episode: &Episode, clock: Clock) {
        let now = clock.timestamp_of(Instant::now());
        self.running = self.running.saturating_sub(1);
        let Some(End { kind, outcome, .. }) = &episode.end else { return };
        match Verdict::on(*outcome) {
            Verdict::Silent if *outcome == NoticeOutcome::HandedOver => {
                self.elsewhere += 1;
                return;
            }
            Verdict::Silent => {
                self.nodes -= 1;
                return self.storm.takes_back(*kind, now);
            }
            Verdict::Failed => {
                self.failed += 1;
                self.failed_due.get_or_insert_with(|| Instant::now() + MAX_SILENCE);
            }
            Verdict::Settled | Verdict::Done => {}
        }
        let times = (clock.timestamp_of(episode.begun), now);
        self.storm.ends(episode.name(), *kind, *outcome, times);
    }

    /// Returns when it is over: no new notice comes, and all nodes have ended, or the few that run are reported by themselves.
    fn ends_at(&self) -> Option<Instant> {
        let tail = if self.running == 0 { WINDOW } else { MAX_TAIL };
        (self.running <= MAX_CALM).then(|| self.newest + tail)
    }

    pub(super) fn is_over(&self) -> bool {
        self.ends_at().is_some_and(|at| at <= Instant::now())
    }

    /// Returns when to look at it next.
    pub(super) fn due(&self) -> Option<Instant> {
        [self.ends_at(), self.begin_due, self.blocked_due, self.failed_due].into_iter().flatten().min()
    }

    /// Returns the phase to send now, during the storm.
    pub(super) fn phase(&mut self) -> Option<NotificationPhase> {
        let (now, chosen) = (Instant::now(), self.chosen);
        let phases = [(Notice, &mut self.begin_due), (Blocked, &mut self.blocked_due), (Failed, &mut self.failed_due)];
        let due = |(phase, due): (_, &mut Option<Instant>)| due.take_if(|due| *due <= now).map(|_| phase);
        phases.into_iter().filter_map(due).find(|phase| chosen.has(*phase) && self.nodes > 0)
    }

    /// Whether all its nodes have ended here.
    pub(super) const fn is_whole(&self) -> bool {
        self.running == 0 && self.elsewhere == 0
    }

    /// Returns the phases of its end. With `pages` the end of the alert is one of its own, because a failure has another alert.
    pub(super) fn last_phases(&self, pages: bool) -> impl Iterator<Item = NotificationPhase> {
        let (failed, chosen) = (self.failed > 0, if self.nodes > 0 { self.chosen } else { Phases::NONE });
        let phases = [failed.then_some(Failed), (!failed || pages).then_some(Done)];
        phases.into_iter().flatten().filter(move |phase| chosen.has(*phase))
    }

    /// Returns its blocked pods, and the number of the others.
    pub(super) fn blocked(&self) -> (Vec<BlockedPod>, usize) {
        (self.blocked.clone(), self.blocked_more)
    }

    pub(super) fn report(&self, id: &str, replica: &str) -> report::Storm {
        self.storm.report(id.to_owned(), replica)
    }
}
