//! Notices of the conditions of Nodes. Pure.

use super::Node;
use super::condition::{Condition, ConditionRule};
use super::handled::{NodeNotice, is_handled};
use super::names::FROM_NODE;
use crate::pipeline::event::{Detail, Identity, InstanceId, Notice, NoticeKind, NoticeTime};
use crate::runtime::clock::Clock;
use jiff::Timestamp;

/// Kind in the id that stands for a message in the mark of a condition's notice: `node/condition/TYPE=STATUS`.
pub(super) const CONDITION: &str = "condition";

impl Node {
    /// Takes over from the `known` version of the Node since when it has its conditions. `is_watched`: no change was missed since.
    pub(super) fn remember_conditions(&mut self, known: &Self, is_watched: bool) {
        for condition in &mut self.conditions {
            condition.remember(known.conditions.iter().find(|known| known.name == condition.name), is_watched);
        }
    }

    /// Whether the Node has the condition of the rule with this name.
    #[must_use]
    pub fn has_condition(&self, name: &str) -> bool {
        self.conditions.iter().any(|condition| *condition.name == *name)
    }

    /// Returns the notices of the Node's conditions, each with the time from which it is due. Work that has begun continues, even if the
    /// clock of the replica that began it differs.
    pub fn condition_notices<'a>(
        &'a self,
        rules: &'a [ConditionRule],
        clock: &'a Clock,
    ) -> impl Iterator<Item = (NodeNotice, Timestamp)> + 'a {
        let of = |condition: &Condition| {
            let rule = rules.iter().find(|rule| rule.name == condition.name)?;
            let due = condition.since(self.created, clock).checked_add(rule.toleration).unwrap_or(Timestamp::MAX);
            let detail = Detail::Condition(rule.name.to_string());
            let reported = notice_of(&rule.name, &self.instance, due.min(clock.now()), detail);
            let is_known = self.record.notice(reported.notice.key()).is_some() || is_handled(self, &reported.notice);
            Some((reported, if is_known { Timestamp::MIN } else { due }))
        };
        self.conditions.iter().filter_map(of)
    }
}

/// Returns the withdrawal of the notice of this condition.
pub(super) fn gone(name: &str, instance: &InstanceId, now: Timestamp) -> NodeNotice {
    notice_of(name, instance, now, Detail::TakenBack(NoticeKind::NodeCondition))
}

fn notice_of(name: &str, instance: &InstanceId, at: Timestamp, detail: Detail) -> NodeNotice {
    let identity = Identity::Condition { condition: name.to_owned(), instance: instance.clone() };
    let notice = Notice::new(identity, instance.clone(), NoticeTime::Seen(at), detail);
    NodeNotice { notice, message: message(name) }
}

/// Returns the id that stands for a message in the mark of a condition's notice.
pub(super) fn message(name: &str) -> String {
    format!("{FROM_NODE}{CONDITION}/{name}")
}
