//! Writes planned changes on Nodes: an annotation keeps the notice until the change is near, so any replica can act on it after any
//! restart. Pure.

use super::Node;
use super::patch::guarded;
use super::record::{PLAN_PREFIX, Plan, name, text};
use serde_json::{Value, json};

impl Plan {
    /// Returns the patch that writes the plan; `None` if the Node has it, or that of a newer copy of the notice, or no room.
    #[must_use]
    pub fn patch(&self, node: &Node) -> Option<Value> {
        let is_new = self.known(node).is_none_or(|known| known.start != self.start && known.since <= self.since);
        (is_new && self.fits(node))
            .then(|| guarded(node, &json!({ self.name(node): text(self) }), &json!({}), json!({})))
    }

    /// Returns the patch that removes the plan, unless a newer copy of the notice has replaced it. A message may have confirmed it meanwhile.
    #[must_use]
    pub fn removal(&self, node: &Node) -> Option<Value> {
        let is_same = |known: &Self| Self { confirmed_by: self.confirmed_by.clone(), ..known.clone() } == *self;
        let is_there = self.known(node).is_some_and(is_same);
        is_there.then(|| guarded(node, &json!({ self.name(node): Value::Null }), &json!({}), json!({})))
    }

    /// Whether the Node keeps it, or has room for it. A change that is not kept is acted on at once.
    #[must_use]
    pub fn fits(&self, node: &Node) -> bool {
        node.record.has(&self.name(node)) || !node.record.is_full(PLAN_PREFIX)
    }

    /// Returns the plan of this notice that the Node keeps.
    fn known<'a>(&self, node: &'a Node) -> Option<&'a Self> {
        node.record.plan(self.notice(&node.instance).key())
    }

    fn name(&self, node: &Node) -> String {
        name(PLAN_PREFIX, self.notice(&node.instance).key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::event::{Notice, Parsed, parse};

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
        node.record.insert(written.0.clone(), written.1.as_str().unwrap());
        assert_eq!(node.record.plans().map(|plan| plan.notice(&node.instance)).collect::<Vec<_>>(), [notice]);
        assert_eq!(plan.patch(&node), None);
        let later = Plan { start: plan.start + std::time::Duration::from_hours(1), ..plan.clone() };
        assert!(later.patch(&node).is_some() && later.removal(&node).is_none());
        let older = Plan { since: plan.since - std::time::Duration::from_hours(1), ..later };
        assert_eq!(older.patch(&node), None, "AWS has said something else since");
        assert!(plan.removal(&node).is_some());
        node.record.insert(written.0.clone(), "{");
        assert_eq!(node.record.plans().count(), 0);
    }
}
