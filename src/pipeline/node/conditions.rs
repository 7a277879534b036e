//! The conditions of Nodes that the settings name: which a Node has, for how long, and the notices that they give. Pure.
//!
//! The clock that wrote a condition's time may be wrong. What the watch saw begin has begun then; else that time counts, but no condition
//! is older than its Node, or begins after it was seen.

use super::Node;
use super::handled::is_handled;
use super::mark::newest_copy;
use super::names::FROM_NODE;
use super::says::NodeNotice;
use crate::fact::Action;
use crate::pipeline::event::{Detail, Identity, InstanceId, Notice, NoticeKind};
use crate::runtime::clock::Clock;
use jiff::Timestamp;
use std::time::Duration;
use tokio::time::Instant;

/// Type of the condition by which Ebbtide reports a drain.
pub const DRAINING_CONDITION: &str = "EbbtideDraining";

/// What the mark of a condition's notice has in place of a message, without the condition: `node/condition/TYPE=STATUS`.
pub(super) const CONDITION: &str = "condition";

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
    /// The time of its last transition, by the clock of whoever wrote it.
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

    /// Returns since when the Node has it.
    fn since(&self, node: &Node, clock: &Clock) -> Timestamp {
        let seen = clock.timestamp_of(self.seen);
        let written = self.since.max(node.created).filter(|_| !self.began);
        written.map_or(seen, |written| written.min(seen))
    }
}

impl Node {
    /// Takes over what is known of the conditions of this Node. `is_watched`: it has not changed unseen since it was `known`.
    pub(super) fn remember_conditions(&mut self, known: &Self, is_watched: bool) {
        for condition in &mut self.conditions {
            match known.conditions.iter().find(|known| known.name == condition.name) {
                // A writer may renew the time of a condition that stays.
                Some(known) if is_watched || known.since == condition.since => condition.clone_from(known),
                Some(_) => {}
                None => condition.began = is_watched,
            }
        }
    }

    /// Whether the Node has this condition, `TYPE=STATUS`.
    #[must_use]
    pub fn has_condition(&self, name: &str) -> bool {
        self.conditions.iter().any(|condition| *condition.name == *name)
    }

    /// Returns the notices of the Node's conditions, each with the time from which it is due. Work that has begun goes on, whatever the
    /// clocks of this replica and of the one before say.
    pub fn condition_notices<'a>(
        &'a self,
        rules: &'a [ConditionRule],
        clock: &'a Clock,
    ) -> impl Iterator<Item = (NodeNotice, Timestamp)> + 'a {
        let of = |condition: &Condition| {
            let rule = rules.iter().find(|rule| rule.name == condition.name)?;
            let due = condition.since(self, clock).checked_add(rule.toleration).unwrap_or(Timestamp::MAX);
            let detail = Detail::Condition(rule.name.to_string());
            let said = said(&rule.name, &self.instance, due.min(clock.now()), detail);
            let is_known =
                newest_copy(self, &said.notice.identity.to_string()).is_some() || is_handled(self, &said.notice);
            Some((said, if is_known { Timestamp::MIN } else { due }))
        };
        self.conditions.iter().filter_map(of)
    }
}

/// Returns the withdrawal of the notice of this condition.
pub(super) fn gone(name: &str, instance: &InstanceId, now: Timestamp) -> NodeNotice {
    said(name, instance, now, Detail::TakenBack(NoticeKind::NodeCondition))
}

fn said(name: &str, instance: &InstanceId, at: Timestamp, detail: Detail) -> NodeNotice {
    let identity = Identity::Condition { condition: name.to_owned(), instance: instance.clone() };
    let notice = Notice { identity, instance: instance.clone(), at, detail };
    NodeNotice { notice, message: message(name) }
}

/// Returns what the mark of a condition's notice has in place of a message.
pub(super) fn message(name: &str) -> String {
    format!("{FROM_NODE}{CONDITION}/{name}")
}
