//! Storms: many notices in a short time, which the history keeps as one entry.

use super::entry::Entry;
use super::report;
use crate::fact::{NoticeKind, NoticeOutcome};
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of notices in [`WINDOW`] that are kept one by one.
const MAX_CALM: usize = 20;

/// Time in which notices are counted. A storm is over for new notices when none has come for as long.
const WINDOW: SignedDuration = SignedDuration::from_mins(1);

/// Maximum number of failed interruptions that are named.
const MAX_FAILURES: usize = 20;

/// Maximum number of storms that are kept.
pub(super) const MAX_STORMS: usize = 20;

/// Counts notices, and recognises a storm.
#[derive(Debug, Default)]
pub(super) struct Gauge {
    /// The times of the newest notices, at most one more than [`MAX_CALM`].
    times: VecDeque<Timestamp>,
}

impl Gauge {
    /// Counts a notice. Returns the start of a storm, if this notice completes one.
    pub(super) fn count(&mut self, now: Timestamp) -> Option<Timestamp> {
        self.times.push_back(now);
        if self.times.len() > MAX_CALM + 1 {
            self.times.pop_front();
        }
        let first = *self.times.front()?;
        (self.times.len() > MAX_CALM && now.duration_since(first) <= WINDOW).then_some(first)
    }
}

/// One storm.
#[derive(Debug)]
pub(in crate::telemetry) struct Storm {
    pub number: u64,
    pub since: Timestamp,
    /// Its last notice.
    pub newest: Timestamp,
    until: Option<Timestamp>,
    notices: usize,
    ended: usize,
    in_time: usize,
    failed: usize,
    kinds: BTreeMap<NoticeKind, usize>,
    slowest: Option<(Box<str>, SignedDuration)>,
    failures: Vec<(Box<str>, NoticeKind, NoticeOutcome)>,
    /// When it changed last, by the history's count of changes.
    pub revision: u64,
}

impl Storm {
    pub(in crate::telemetry) fn new(number: u64, since: Timestamp) -> Self {
        Self {
            number,
            since,
            newest: since,
            until: None,
            notices: 0,
            ended: 0,
            in_time: 0,
            failed: 0,
            kinds: BTreeMap::new(),
            slowest: None,
            failures: Vec::new(),
            revision: 0,
        }
    }

    /// Whether a notice that comes now belongs to it.
    pub(super) fn includes(&self, now: Timestamp) -> bool {
        now.duration_since(self.newest) <= WINDOW
    }

    pub(in crate::telemetry) fn begins(&mut self, kind: NoticeKind, at: Timestamp) {
        self.notices += 1;
        *self.kinds.entry(kind).or_default() += 1;
        self.newest = self.newest.max(at);
        self.until = None;
    }

    pub(in crate::telemetry) fn ends(
        &mut self,
        name: &str,
        kind: NoticeKind,
        outcome: NoticeOutcome,
        times: (Timestamp, Timestamp),
    ) {
        let (since, at) = times;
        self.ended += 1;
        if outcome.is_failure() {
            self.failed += 1;
            if self.failures.len() < MAX_FAILURES {
                self.failures.push((name.into(), kind, outcome));
            }
        } else if outcome != NoticeOutcome::HandedOver {
            self.in_time += 1;
        }
        let took = at.duration_since(since);
        if self.slowest.as_ref().is_none_or(|(_, most)| took > *most) {
            self.slowest = Some((name.into(), took));
        }
        self.until = (self.ended >= self.notices).then_some(at);
    }

    /// Takes back a notice that nothing is to be reported about.
    pub(in crate::telemetry) fn takes_back(&mut self, kind: NoticeKind, at: Timestamp) {
        self.notices = self.notices.saturating_sub(1);
        self.kinds.entry(kind).and_modify(|number| *number = number.saturating_sub(1));
        self.kinds.retain(|_, number| *number > 0);
        self.until = (self.ended >= self.notices).then_some(at);
    }

    /// Takes an entry that has ended already.
    pub(super) fn takes(&mut self, entry: &Entry) {
        self.begins(entry.kind, entry.since);
        if let Some(end) = entry.end() {
            self.ends(entry.name(), entry.kind, end.outcome, (entry.since, end.at));
        }
    }

    pub(in crate::telemetry) fn report(&self, id: String, replica: &str) -> report::Storm {
        let failure = |(name, kind, outcome): &(Box<str>, NoticeKind, NoticeOutcome)| report::Failure {
            node: name.to_string(),
            kind: kind.to_string(),
            outcome: outcome.to_string(),
        };
        report::Storm {
            id,
            replica: replica.to_owned(),
            since: self.since,
            until: self.until,
            notices: self.notices,
            running: self.notices.saturating_sub(self.ended),
            ended: self.ended,
            in_time: self.in_time,
            failed: self.failed,
            kinds: self.kinds.iter().map(|(kind, number)| (kind.to_string(), *number)).collect(),
            slowest: self
                .slowest
                .as_ref()
                .map(|(node, took)| report::Slowest { node: node.to_string(), seconds: took.as_secs_f64() }),
            failures: self.failures.iter().map(failure).collect(),
            failures_more: self.failed.saturating_sub(self.failures.len()),
        }
    }
}
