//! One wait, as it is told: what it waits for, how it ended, or that somebody else goes on with it. And what the waits of one
//! interruption leave behind.

use crate::fact::{Fact, HoldPoint, NodeRef, Wait, WaitOutcome};
use crate::pipeline::interruption::Case;
use crate::pipeline::node::Node;
use crate::runtime::duration::Words;
use parking_lot::Mutex;
use std::fmt::Write;
use tokio::time::Instant;

/// A wait that runs. Dropped before its end, it tells that it was given up.
pub(in crate::pipeline::interruption) struct Waiting<'a> {
    case: &'a Case,
    pub log: &'a WaitLog,
    pub wait: Wait,
    pub until: Instant,
    begun: Instant,
    reason: Mutex<Reason>,
    ended: bool,
}

/// What is waited for now.
#[derive(Debug, Default)]
struct Reason {
    /// In words. Empty as long as there is nothing to tell.
    text: String,
    is_told: bool,
}

impl<'a> Waiting<'a> {
    /// Begins a wait, or goes on with one that was dropped.
    pub(in crate::pipeline::interruption) fn new(case: &'a Case, log: &'a WaitLog, wait: Wait, until: Instant) -> Self {
        let dropped = log.0.lock().dropped.extract_if(.., |dropped| dropped.wait == wait).next();
        let (begun, text) = dropped.map_or_else(|| (Instant::now(), String::new()), |it| (it.begun, it.reason));
        Self { case, log, wait, until, begun, reason: Mutex::new(Reason { text, is_told: false }), ended: false }
    }

    /// Says what is waited for now. The first time its begin is told; if the time is over, the last is what was left undone.
    pub(in crate::pipeline::interruption) fn says(&self, reason: impl Into<String>) {
        let mut known = self.reason.lock();
        let before = std::mem::replace(&mut known.text, reason.into());
        let at_most = self.until.saturating_duration_since(Instant::now());
        let (about, on, wait, reason) = (self.case.about(), self.case.on(), self.wait, &*known.text);
        if !known.is_told {
            self.case.tell(&Fact::WaitBegun { about, on, wait, reason, at_most });
        } else if *before != *reason {
            self.case.tell(&Fact::WaitChanged { about, wait, reason, at_most });
        }
        known.is_told = true;
    }

    /// Tells the end.
    pub(in crate::pipeline::interruption) fn end(mut self, outcome: WaitOutcome) {
        self.ended = true;
        let reason = std::mem::take(&mut self.reason.lock().text);
        self.case.tell_end(self.log, self.wait, outcome, self.begun, &reason);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let reason = std::mem::take(&mut *self.reason.lock());
        if self.ended || reason.text.is_empty() {
            return;
        }
        if let Some(on) = self.case.on().filter(|_| reason.is_told) {
            self.case.tell(&Fact::WaitAbandoned { about: self.case.about(), on, wait: self.wait });
        }
        self.log.0.lock().dropped.push(Dropped { wait: self.wait, begun: self.begun, reason: reason.text });
    }
}

impl Case {
    /// Tells the ends of the waits that were dropped and not begun again.
    pub(in crate::pipeline::interruption) fn end_dropped(&self, log: &WaitLog, outcome: WaitOutcome) {
        let all = std::mem::take(&mut log.0.lock().dropped);
        for Dropped { wait, begun, reason } in all {
            self.tell_end(log, wait, outcome, begun, &reason);
        }
    }

    fn tell_end(&self, log: &WaitLog, wait: Wait, outcome: WaitOutcome, begun: Instant, reason: &str) {
        let undone = matches!(outcome, WaitOutcome::TimeOver | WaitOutcome::CutShort) && !reason.is_empty();
        let left = undone.then_some(reason);
        let (about, on, took) = (self.about(), self.on(), begun.elapsed());
        self.tell(&Fact::WaitEnded { about, on, wait, outcome, took, left });
        if !reason.is_empty() {
            log.add(&format_args!("{wait}: {outcome} after {}", Words(took)), left);
        }
    }

    fn on(&self) -> Option<NodeRef<'_>> {
        self.node.as_deref().map(Node::named)
    }
}

/// What the waits of one interruption leave behind. Allocates nothing without a wait.
#[derive(Debug, Default)]
pub struct WaitLog(Mutex<Record>);

#[derive(Debug, Default)]
struct Record {
    /// How they ended, in words.
    text: String,
    /// Those that were dropped after they had been told, until they are begun again.
    dropped: Vec<Dropped>,
    /// The point at which the Node says that it is held.
    hold: Option<HoldPoint>,
    /// What the Node's note of a replacement does not say.
    note: ReplacementNote,
}

/// What the Node's note of a replacement does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ReplacementNote {
    /// Nothing.
    #[default]
    Right,
    /// The group may not have been asked.
    Unasked,
    /// The replacement did not come in time.
    Late,
}

#[derive(Debug)]
struct Dropped {
    wait: Wait,
    begun: Instant,
    reason: String,
}

impl WaitLog {
    /// Maximum length of the text, in bytes: an interruption may begin again many times.
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

    /// Returns the point at which the Node says that it is held.
    pub(super) fn hold(&self) -> Option<HoldPoint> {
        self.0.lock().hold
    }

    /// Remembers what the Node says.
    pub(super) fn set_hold(&self, hold: Option<HoldPoint>) {
        self.0.lock().hold = hold;
    }

    /// Returns what the Node's note of a replacement does not say.
    pub(super) fn note(&self) -> ReplacementNote {
        self.0.lock().note
    }

    /// Remembers it.
    pub(super) fn set_note(&self, note: ReplacementNote) {
        self.0.lock().note = note;
    }

    /// Returns how the waits ended, in words.
    pub fn into_text(self) -> String {
        self.0.into_inner().text
    }
}
