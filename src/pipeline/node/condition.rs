//! A condition for which there is a rule, and since when a Node has it.
//!
//! The clock that wrote a condition's time may be wrong. If the watch saw the condition begin, that moment counts; else the written time,
//! but never before the Node's registration, nor after the condition was first seen. Without a written time, the time of first
//! observation counts.

use crate::fact::Action;
use crate::runtime::clock::Clock;
use jiff::Timestamp;
use std::time::Duration;
use tokio::time::Instant;

/// A condition that becomes a notice when a Node has had it for longer than it may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionRule {
    /// Its type and its status, `TYPE=STATUS`.
    pub name: Box<str>,
    /// Time for which a Node may have it.
    pub toleration: Duration,
    /// What is done then.
    pub action: Action,
}

/// A condition that a Node has, and for which there is a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Its type and its status, `TYPE=STATUS`.
    pub name: Box<str>,
    /// The time of its last transition, by its writer's clock.
    since: Option<Timestamp>,
    /// When it was first seen.
    seen: Instant,
    /// Whether the watch saw it begin.
    began: bool,
}

impl Condition {
    /// The condition with this name and this time, which is seen now.
    pub(super) fn new(name: &str, since: Option<Timestamp>) -> Self {
        Self { name: name.into(), since, seen: Instant::now(), began: false }
    }

    /// Takes over what is known of it. `is_watched`: its Node has not changed unseen since then, when the condition was there as `known`,
    /// or was not.
    pub(super) fn remember(&mut self, known: Option<&Self>, is_watched: bool) {
        match known {
            // A writer may renew the time of a condition that stays.
            Some(known) if is_watched || known.since == self.since => self.clone_from(known),
            Some(_) => {}
            None => self.began = is_watched,
        }
    }

    /// Returns since when a Node that was created then has it.
    pub(super) fn since(&self, created: Option<Timestamp>, clock: &Clock) -> Timestamp {
        let seen = clock.timestamp_of(self.seen);
        let written = self.since.filter(|_| !self.began);
        written.map_or(seen, |written| created.map_or(written, |created| written.max(created)).min(seen))
    }
}
