//! A wait and its reports: its reason, and how it ended or that it was given up. And the log of one interruption's waits.

use crate::fact::{Fact, HoldPoint, NodeRef, Wait, WaitOutcome};
use crate::pipeline::interruption::Case;
use crate::pipeline::node::Node;
use crate::runtime::duration::Words;
use parking_lot::Mutex;
use std::fmt::Write;
use tokio::time::Instant;

/// A wait in progress. Dropping it before its end reports that it was given up.
pub(in crate::pipeline::interruption) struct ActiveWait<'a> {
    case: &'a Case,
    pub log: &'a WaitLog,
    pub wait: Wait,
    pub until: Instant,
    begun: Instant,
    reason: Mutex<Reason>,
    ended: bool,
}

/// The current reason of a wait.
#[derive(Debug, Default)]
struct Reason {
    /// In words. Empty while there is none to report.
    text: String,
    is_reported: bool,
}

impl<'a> ActiveWait<'a> {
    /// Starts a wait, or continues one that was dropped.
    pub(in crate::pipeline::interruption) fn new(case: &'a Case, log: &'a WaitLog, wait: Wait, until: Instant) -> Self {
        let dropped = log.0.lock().dropped.extract_if(.., |dropped| dropped.wait == wait).next();
        let (begun, text) = dropped.map_or_else(|| (Instant::now(), String::new()), |it| (it.begun, it.reason));
        Self { case, log, wait, until, begun, reason: Mutex::new(Reason { text, is_reported: false }), ended: false }
    }

    /// Sets the reason of the wait. The first one reports the start of the wait; if the wait times out, the last one is reported as left
    /// undone.
    pub(in crate::pipeline::interruption) fn set_reason(&self, reason: impl Into<String>) {
        let mut known = self.reason.lock();
        let before = std::mem::replace(&mut known.text, reason.into());
        let at_most = self.until.saturating_duration_since(Instant::now());
        let (about, on, wait, reason) = (self.case.about(), self.case.on(), self.wait, &*known.text);
        if !known.is_reported {
            self.case.emit(&Fact::WaitBegun { about, on, wait, reason, at_most });
        } else if *before != *reason {
            self.case.emit(&Fact::WaitChanged { about, wait, reason, at_most });
        }
        known.is_reported = true;
    }

    /// Reports the end.
    pub(in crate::pipeline::interruption) fn end(mut self, outcome: WaitOutcome) {
        self.ended = true;
        let reason = std::mem::take(&mut self.reason.lock().text);
        self.case.report_end(self.log, self.wait, outcome, self.begun, &reason);
    }
}

impl Drop for ActiveWait<'_> {
    fn drop(&mut self) {
        let reason = std::mem::take(&mut *self.reason.lock());
        if self.ended || reason.text.is_empty() {
            return;
        }
        if let Some(on) = self.case.on().filter(|_| reason.is_reported) {
            self.case.emit(&Fact::WaitAbandoned { about: self.case.about(), on, wait: self.wait });
        }
        self.log.0.lock().dropped.push(DroppedWait { wait: self.wait, begun: self.begun, reason: reason.text });
    }
}

impl Case {
    /// Reports the ends of the waits that were dropped and not continued.
    pub(in crate::pipeline::interruption) fn end_dropped(&self, log: &WaitLog, outcome: WaitOutcome) {
        let all = std::mem::take(&mut log.0.lock().dropped);
        for DroppedWait { wait, begun, reason } in all {
            self.report_end(log, wait, outcome, begun, &reason);
        }
    }

    fn report_end(&self, log: &WaitLog, wait: Wait, outcome: WaitOutcome, begun: Instant, reason: &str) {
        let undone = matches!(outcome, WaitOutcome::TimeOver | WaitOutcome::CutShort) && !reason.is_empty();
        let left = undone.then_some(reason);
        let (about, on, took) = (self.about(), self.on(), begun.elapsed());
        self.emit(&Fact::WaitEnded { about, on, wait, outcome, took, left });
        if !reason.is_empty() {
            log.add(&format_args!("{wait}: {outcome} after {}", Words(took)), left);
        }
    }

    fn on(&self) -> Option<NodeRef<'_>> {
        self.node.as_deref().map(Node::named)
    }
}

/// The log of one interruption's waits, and the notes that they have left on the Node. Allocates nothing without a wait.
#[derive(Debug, Default)]
pub struct WaitLog(Mutex<Record>);

#[derive(Debug, Default)]
struct Record {
    /// The ends of the waits, in words.
    text: String,
    /// Waits that were dropped after they had been reported, until they are continued.
    dropped: Vec<DroppedWait>,
    /// The hold point that the Node's annotation shows.
    hold: Option<HoldPoint>,
    /// The correction that the Node's note of a replacement needs.
    note: ReplacementNote,
}

/// The correction that the Node's note of a replacement needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ReplacementNote {
    /// None.
    #[default]
    Right,
    /// The group may not have been asked for it.
    Unasked,
    /// The replacement did not come in time.
    Late,
}

#[derive(Debug)]
struct DroppedWait {
    wait: Wait,
    begun: Instant,
    reason: String,
}

impl WaitLog {
    /// Maximum length of the text, in bytes: an interruption may restart many times.
    const MAX_LENGTH: usize = 1024;

    fn add(&self, ended: &dyn std::fmt::Display, left: Option<&str>) {
        let text = &mut self.0.lock().text;
        if text.len() >= Self::MAX_LENGTH {
            return;
        }
        let between = if text.is_empty() { "" } else { "; " };
        // Writing to a String can't fail.
        let _ = write!(text, "{between}{ended}");
        if let Some(left) = left {
            let _ = write!(text, ", left: {left}");
        }
        let end = text.floor_char_boundary(Self::MAX_LENGTH);
        text.truncate(end);
    }

    /// Returns the hold point that the Node's annotation shows.
    pub(super) fn hold(&self) -> Option<HoldPoint> {
        self.0.lock().hold
    }

    /// Remembers the hold point that the Node's annotation shows.
    pub(super) fn set_hold(&self, hold: Option<HoldPoint>) {
        self.0.lock().hold = hold;
    }

    /// Returns the correction that the Node's note of a replacement needs.
    pub(super) fn note(&self) -> ReplacementNote {
        self.0.lock().note
    }

    /// Remembers that correction.
    pub(super) fn set_note(&self, note: ReplacementNote) {
        self.0.lock().note = note;
    }

    /// Returns how the waits ended, in words.
    pub fn into_text(self) -> String {
        self.0.into_inner().text
    }
}
