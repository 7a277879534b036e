//! What waits for the receiver, and the limit of what it gets. Pure.
//!
//! What does not fit is folded: counted in the next notification. Failures and storms go first and are folded last; the notifications of
//! one key keep their order. `PagerDuty`'s resolutions are never folded for others, because an alert must not stay open: they take the
//! room that nothing else needs, and one whose alert is raised again is not sent.

use super::format::Format;
use super::notification::{Notification, counts};
use crate::fact::NotificationPhase::{self, Blocked, Done, Failed};
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of requests in [`WINDOW`], repeated ones included: the receiver may have taken those, too.
const MAX_REQUESTS: usize = 10;

/// Time in which requests are counted.
const WINDOW: Duration = Duration::from_mins(1);

/// Maximum number of notifications that wait if one of them is of less importance than a failure: those of the next minute.
const MAX_WAITING: usize = MAX_REQUESTS;

/// Maximum number of failures that wait, and of resolutions.
const MAX_KEPT: usize = 256;

/// The notifications that wait.
#[derive(Debug)]
pub(super) struct Queue {
    format: Format,
    waiting: VecDeque<Notification>,
    resolutions: VecDeque<Notification>,
    /// The times of the last requests.
    requests: VecDeque<Instant>,
    /// The number of notifications that no other one has counted yet, by phase.
    folded: BTreeMap<String, usize>,
}

impl Queue {
    pub(super) const fn new(format: Format) -> Self {
        Self {
            format,
            waiting: VecDeque::new(),
            resolutions: VecDeque::new(),
            requests: VecDeque::new(),
            folded: BTreeMap::new(),
        }
    }

    /// Adds a notification. Returns the phases of those that are folded for it.
    pub(super) fn push(&mut self, notification: Notification) -> Vec<NotificationPhase> {
        let is_resolution = self.format == Format::PagerDuty && notification.phase == Done;
        // What waits about the same alert has no effect any more.
        let outdated = if is_resolution { &mut self.waiting } else { &mut self.resolutions };
        let mut folded: Vec<_> =
            outdated.iter().filter(|other| other.key == notification.key).map(|other| other.phase).collect();
        outdated.retain(|other| other.key != notification.key);
        if is_resolution && notification.storm.is_some() {
            self.resolutions.push_front(notification);
        } else if is_resolution {
            self.resolutions.push_back(notification);
        } else {
            self.waiting.push_back(notification);
        }
        let least = (0..self.waiting.len()).min_by_key(|n| importance(&self.waiting[*n]));
        let excess = least.filter(|n| {
            let max = if importance(&self.waiting[*n]) == Importance::Failure { MAX_KEPT } else { MAX_WAITING };
            self.waiting.len() > max
        });
        folded.extend(excess.and_then(|n| self.waiting.remove(n)).map(|other| other.phase));
        if self.resolutions.len() > MAX_KEPT {
            folded.extend(self.resolutions.pop_back().map(|other| other.phase));
        }
        for phase in &folded {
            *self.folded.entry(phase.to_string()).or_default() += 1;
        }
        folded
    }

    /// Returns when the next request may be made; `None` if nothing waits.
    pub(super) fn due(&self) -> Option<Instant> {
        (self.len() > 0).then(|| self.opens())
    }

    /// Returns the time from which on the receiver may get one more request.
    pub(super) fn opens(&self) -> Instant {
        let first = self.requests.front().filter(|_| self.requests.len() >= MAX_REQUESTS);
        first.map_or_else(Instant::now, |first| *first + WINDOW)
    }

    /// Takes the next to send, with the number of those that were folded.
    pub(super) fn pop(&mut self) -> Option<Notification> {
        let next = (0..self.waiting.len()).max_by_key(|n| (importance(&self.waiting[*n]), Reverse(*n)));
        let Some(next) = next else { return self.resolutions.pop_front() };
        let first = self.waiting.iter().position(|other| other.key == self.waiting[next].key);
        let mut notification = self.waiting.remove(first.unwrap_or(next))?;
        notification.folded = std::mem::take(&mut self.folded);
        if !notification.folded.is_empty() {
            let left_out = counts(&notification.folded);
            // Writing to a String can't fail.
            let _ = write!(
                notification.text,
                " Left out before this, because of the limit of {MAX_REQUESTS} a minute: {left_out}."
            );
        }
        Some(notification)
    }

    /// Counts a request that is made now.
    pub(super) fn count_request(&mut self) {
        self.requests.push_back(Instant::now());
        if self.requests.len() > MAX_REQUESTS {
            self.requests.pop_front();
        }
    }

    /// The receiver has not got these numbers: the next notification has them.
    pub(super) fn count_again(&mut self, folded: &BTreeMap<String, usize>) {
        for (phase, number) in folded {
            *self.folded.entry(phase.clone()).or_default() += number;
        }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.resolutions.len()
    }
}

/// What is sent first, and folded last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Importance {
    Routine,
    Block,
    Failure,
}

fn importance(notification: &Notification) -> Importance {
    match notification.phase {
        // A storm's messages are about many nodes.
        _ if notification.storm.is_some() => Importance::Failure,
        Failed => Importance::Failure,
        Blocked => Importance::Block,
        NotificationPhase::Notice | Done => Importance::Routine,
    }
}

#[cfg(test)]
mod tests;
