//! The failures of the last hour: how many, and the newest.

use super::report::Last;
use crate::fact::{NoticeOutcome, NoticeRef};
use crate::telemetry::bounded::bounded;
use jiff::{SignedDuration, Timestamp};
use std::collections::VecDeque;

/// Time for which a failure counts as new.
const RECENT: SignedDuration = SignedDuration::from_hours(1);

/// Time in which failures are counted together.
const SPAN: SignedDuration = SignedDuration::from_mins(1);

/// Maximum length of a name.
const MAX_NAME: usize = 96;

#[derive(Debug, Default)]
pub(super) struct Failures {
    /// Numbers, each with the time of its first.
    spans: VecDeque<(Timestamp, usize)>,
    last: Option<Last>,
}

impl Failures {
    pub(super) fn add(&mut self, about: &NoticeRef<'_>, outcome: NoticeOutcome, now: Timestamp) {
        self.spans.pop_front_if(|(at, _)| now.duration_since(*at) > RECENT);
        match self.spans.back_mut() {
            Some((at, number)) if now.duration_since(*at) < SPAN => *number += 1,
            _ => self.spans.push_back((now, 1)),
        }
        let name = bounded(&about.node.unwrap_or(about.instance), MAX_NAME);
        self.last = Some(Last { name, outcome: outcome.to_string(), at: now });
    }

    /// Returns the number of failures in the last hour, and the newest of all.
    pub(super) fn recent(&self, now: Timestamp) -> (usize, Option<Last>) {
        let recent = self.spans.iter().filter(|(at, _)| now.duration_since(*at) <= RECENT);
        (recent.map(|(_, number)| number).sum(), self.last.clone())
    }
}
