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
    /// Its type and its status, `TYPE=STATUS`, or with its reason, `TYPE=STATUS/REASON`; a reason may end with `*`.
    pub name: Box<str>,
    /// Time for which a Node may have it.
    pub toleration: Duration,
    /// What is done then.
    pub action: Action,
}

impl ConditionRule {
    /// Whether it is for a condition of this type, with this status and this reason.
    #[must_use]
    pub fn is_for(&self, kind: &str, status: &str, reason: &str) -> bool {
        let Some((own, rest)) = self.name.split_once('=') else { return false };
        let (wanted, of_reason) = rest.split_once('/').map_or((rest, None), |(status, reason)| (status, Some(reason)));
        own == kind
            && wanted == status
            && of_reason.is_none_or(|own| match own.strip_suffix('*') {
                Some(prefix) => reason.starts_with(prefix),
                None => own == reason,
            })
    }

    /// Returns its place among the rules, whose first for a condition counts: those with a reason come first.
    #[must_use]
    pub fn rank(&self) -> usize {
        match self.name.split_once('=').and_then(|(_, rest)| rest.split_once('/')) {
            Some((_, reason)) => usize::from(reason.ends_with('*')),
            None => 2,
        }
    }
}

/// A condition that a Node has, and for which there is a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The name of its rule.
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
