//! One wait, as it is told: what it waits for, how it ended, or that somebody else goes on with it.

use crate::fact::{Fact, NodeRef, Wait, WaitOutcome};
use crate::pipeline::interruption::Case;
use crate::pipeline::node::Node;
use crate::runtime::duration::Words;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::time::Instant;

/// A wait that runs. Dropped before its end, it tells that it was given up.
pub(super) struct Waiting<'a> {
    case: &'a Case,
    pub wait: Wait,
    pub until: Instant,
    begun: Instant,
    /// What is waited for now, in words. Empty as long as there is nothing to tell.
    reason: Mutex<String>,
    ended: bool,
}

impl<'a> Waiting<'a> {
    pub(super) fn new(case: &'a Case, wait: Wait, until: Instant) -> Self {
        Self { case, wait, until, begun: Instant::now(), reason: Mutex::default(), ended: false }
    }

    /// Says what is waited for now. The first time this is told; if the time is over, the last is what was left undone.
    pub(super) fn says(&self, reason: impl Into<String>) {
        let mut known = lock(&self.reason);
        let is_first = known.is_empty();
        *known = reason.into();
        if is_first {
            let at_most = self.until.saturating_duration_since(Instant::now());
            let (about, on) = (self.case.about(), self.on());
            self.case.tell(&Fact::WaitBegun { about, on, wait: self.wait, reason: &known, at_most });
        }
    }

    /// Tells the end.
    pub(super) fn end(mut self, outcome: WaitOutcome, log: &WaitLog) {
        self.ended = true;
        let reason = std::mem::take(&mut *lock(&self.reason));
        let left = Some(&*reason).filter(|left| outcome == WaitOutcome::TimeOver && !left.is_empty());
        let (about, on, wait, took) = (self.case.about(), self.on(), self.wait, self.begun.elapsed());
        // Another replica may have begun it.
        let known = self.case.node.as_ref().and_then(|node| self.case.interrupter.index.newest(node));
        let has_condition = !reason.is_empty() && known.is_some_and(|node| node.draining);
        self.case.tell(&Fact::WaitEnded { about, on, wait, outcome, took, left, has_condition });
        if !reason.is_empty() {
            log.add(&format_args!("{wait}: {outcome} after {}", Words(took)), left);
        }
    }

    fn on(&self) -> Option<NodeRef<'_>> {
        self.case.node.as_deref().map(Node::named)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(on) = self.on().filter(|_| !self.ended && !lock(&self.reason).is_empty()) {
            self.case.tell(&Fact::WaitAbandoned { on, wait: self.wait });
        }
    }
}

/// How the waits of one interruption ended, in words. Allocates nothing without a wait.
#[derive(Debug, Default)]
pub struct WaitLog(Mutex<String>);

impl WaitLog {
    /// Maximum length of the text, in bytes: an interruption may begin again many times.
    const MAX_LENGTH: usize = 1024;

    fn add(&self, ended: &dyn std::fmt::Display, left: Option<&str>) {
        let mut text = lock(&self.0);
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

    /// Returns the text.
    pub fn into_text(self) -> String {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

fn lock(text: &Mutex<String>) -> MutexGuard<'_, String> {
    text.lock().unwrap_or_else(PoisonError::into_inner)
}
