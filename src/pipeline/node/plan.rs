//! A change that a Node is drained for later. An annotation keeps its notice until then, so any replica can act on it after any restart.
//! Pure.

use super::Node;
use super::mark::{PLAN_PREFIX, guarded, is_full, key_of, text};
use super::names::is_from_node;
use crate::pipeline::event::{Detail, Identity, InstanceId, Notice, NoticeKey, NoticeTime, ScheduledChange};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The notice of a change that is not near yet.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Plan {
    code: String,
    /// Begin of the change.
    pub start: Timestamp,
    /// AWS's time of the notice.
    since: Timestamp,
    /// Whether the capacity ends at the start.
    hard: bool,
    /// ARN of the Health event; of a change that EC2 lists, its id there.
    pub event: String,
    /// The message that brought the notice; the same id, if none did.
    pub message: String,
    /// The message that has told what only the Node had said before.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    told: String,
}

impl Plan {
    /// Returns the plan for a notice of a change whose begin is known.
    #[must_use]
    pub fn of(notice: &Notice, message: &str) -> Option<Self> {
        let (Identity::HealthEvent { arn: id, .. } | Identity::Ec2Event { id, .. }, Detail::ScheduledChange(change)) =
            (&notice.identity, &notice.detail)
        else {
            return None;
        };
        Some(Self {
            code: change.code.clone(),
            start: change.start?,
            since: notice.at(),
            hard: change.hard,
            event: id.clone(),
            message: message.to_owned(),
            told: String::new(),
        })
    }

    /// Returns the plans on the Node. An annotation that somebody has edited beyond parsing is none.
    pub fn all(node: &Node) -> impl Iterator<Item = Self> {
        let plans = node.annotations.iter().filter(|(key, _)| key.starts_with(PLAN_PREFIX));
        plans.filter_map(|(_, value)| serde_json::from_str(value).ok())
    }

    /// Returns the notice for the instance of the Node.
    #[must_use]
    pub fn notice(&self, instance: &InstanceId) -> Notice {
        let change = ScheduledChange {
            code: self.code.clone(),
            start: Some(self.start),
            hard: self.hard,
            withdrawn: false,
            is_issue: false,
        };
        let identity = Identity::of_change(self.event.clone(), instance.clone());
        Notice::new(identity, instance.clone(), NoticeTime::Announced(self.since), Detail::ScheduledChange(change))
    }

    /// Returns the patch that writes the plan; `None` if the Node has it, or that of a newer copy of the notice, or no room.
    #[must_use]
    pub fn patch(&self, node: &Node) -> Option<Value> {
        let is_new = self.known(node).is_none_or(|known| known.start != self.start && known.since <= self.since);
        (is_new && self.fits(node))
            .then(|| guarded(node, &json!({ self.key(node): text(self) }), &json!({}), json!({})))
    }

    /// Returns the patch that removes the plan, unless a newer copy of the notice has replaced it. A message may have told of it meanwhile.
    #[must_use]
    pub fn removal(&self, node: &Node) -> Option<Value> {
        let is_there = self.known(node).is_some_and(|known| Self { told: self.told.clone(), ..known } == *self);
        is_there.then(|| guarded(node, &json!({ self.key(node): Value::Null }), &json!({}), json!({})))
    }

    /// Returns the plan of this notice that the Node keeps.
    fn known(&self, node: &Node) -> Option<Self> {
        node.annotations.get(&self.key(node)).and_then(|value| serde_json::from_str(value).ok())
    }

    /// Whether only the Node's word has left it.
    pub(super) fn is_only_said(&self) -> bool {
        is_from_node(&self.message) && self.told.is_empty()
    }

    /// Whether the Node keeps it, or has room for it. A change that is not kept is acted on at once.
    #[must_use]
    pub fn fits(&self, node: &Node) -> bool {
        node.annotations.contains_key(&self.key(node)) || !is_full(node, PLAN_PREFIX)
    }

    fn key(&self, node: &Node) -> String {
        plan_key(self.notice(&node.instance).key())
    }
}

/// Returns the name of the annotation for the notice with this identity.
pub(super) fn plan_key(key: NoticeKey) -> String {
    key_of(PLAN_PREFIX, key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::event::{Parsed, parse};

    fn notice() -> Notice {
        let body = include_str!("../../../tests/fixtures/events/health-stop.json");
        let Parsed::Notices(mut notices) = parse(body) else { panic!("{body}") };
        notices.next().unwrap()
    }

    #[test]
    fn a_plan_keeps_the_notice_on_the_node() {
        let notice = notice();
        let mut node = Node { instance: notice.instance.clone(), ..Node::for_tests("node-1") };
        let plan = Plan::of(&notice, "m-1").unwrap();
        let patch = plan.patch(&node).unwrap();
        assert!(patch.get("spec").is_none(), "no cordon: {patch}");
        let written = patch["metadata"]["annotations"].as_object().unwrap().iter().next().unwrap();
        node.annotations.insert(written.0.clone(), written.1.as_str().unwrap().to_owned());
        assert_eq!(Plan::all(&node).map(|plan| plan.notice(&node.instance)).collect::<Vec<_>>(), [notice]);
        assert_eq!(plan.patch(&node), None);
        let later = Plan { start: plan.start + std::time::Duration::from_hours(1), ..plan.clone() };
        assert!(later.patch(&node).is_some() && later.removal(&node).is_none());
        let older = Plan { since: plan.since - std::time::Duration::from_hours(1), ..later };
        assert_eq!(older.patch(&node), None, "AWS has said something else since");
        assert!(plan.removal(&node).is_some());
        node.annotations.insert(written.0.clone(), "{".to_owned());
        assert_eq!(Plan::all(&node).count(), 0);
    }
}
