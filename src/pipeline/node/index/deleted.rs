//! Records of Nodes that were deleted: planned changes, and cancellations by AWS. Their messages were deleted when they were recorded, so nothing
//! else announces them to the instance's next Node. A Node that is deleted while its kubelet runs registers again: the usual cure for a stuck
//! one.

use crate::pipeline::event::{InstanceId, Notice, NoticeKey};
use crate::pipeline::node::Node;
use crate::pipeline::node::plan;
use crate::pipeline::node::record::{NoticeRecord, Withdrawal, Work, whole_seconds};
use crate::pipeline::node::release::NodeRelease;
use jiff::Timestamp;
use std::collections::VecDeque;
use std::sync::Arc;

/// Maximum number of deleted Nodes that are remembered: the instances of most get no other Node.
const MAX_NODES: usize = 64;

/// The deleted Nodes with records of changes, the first to be deleted first.
#[derive(Debug, Default)]
pub(super) struct DeletedNodes(VecDeque<DeletedNode>);

#[derive(Debug)]
struct DeletedNode {
    instance: InstanceId,
    records: Vec<(NoticeKey, NoticeRecord)>,
}

impl DeletedNodes {
    /// Remembers the changes that a Node that is gone has recorded as planned or cancelled. One that was worked on is planned again. `nodes` are
    /// those that its instance has now: if one has another name, the Node that is gone may have been a forged one.
    pub(super) fn remember(&mut self, gone: &Node, nodes: &[Arc<Node>]) {
        let change = |known: &NoticeRecord| match known.work {
            Work::Planned | Work::Withdrawn => Some(known.clone()),
            Work::Open => plan::again(known),
            Work::Ended | Work::Handled => None,
        };
        let records: Vec<_> = gone.record.all().filter_map(|(key, known)| Some((key, change(known)?))).collect();
        if records.is_empty() || nodes.iter().any(|node| node.name != gone.name) {
            return;
        }
        if self.0.len() == MAX_NODES {
            self.0.pop_front();
        }
        self.0.push_back(DeletedNode { instance: gone.instance.clone(), records });
        for node in nodes {
            self.settle(node);
        }
    }

    /// Records that AWS has cancelled this notice, unless a newer copy of it was planned.
    pub(super) fn withdraw(&mut self, notice: &Notice) {
        let by = Withdrawal::of(notice);
        let is_same = |key: NoticeKey, known: &NoticeRecord| {
            let start = known.start.map(whole_seconds);
            // EC2's list names the same change by its start. What the agent alone has reported is withdrawn by the agent.
            let is_by_start = by.start.is_some() && by.start == start && !known.is_only_reported();
            (key == notice.key() || known.also.has(notice.key()) || is_by_start) && known.since <= Some(by.at)
        };
        for gone in self.0.iter_mut().filter(|gone| gone.instance == notice.instance) {
            for (_, known) in gone.records.iter_mut().filter(|(key, known)| is_same(*key, known)) {
                *known = by.record(Some(known));
            }
        }
    }

    /// Forgets the records that this Node of the same instance has, whichever replica has written them, and those that are older than its own.
    pub(super) fn settle(&mut self, node: &Node) {
        self.0.retain_mut(|gone| {
            if gone.instance == node.instance {
                gone.records.retain(|(key, known)| !is_settled(*key, known, node));
            }
            !gone.records.is_empty()
        });
    }

    /// Returns the records of changes that are ahead at `now`, and forgets the others.
    pub(super) fn ahead(&mut self, now: Timestamp) -> impl Iterator<Item = (&InstanceId, NoticeKey, &NoticeRecord)> {
        self.0.retain_mut(|gone| {
            gone.records.retain(|(_, known)| known.start > Some(now));
            !gone.records.is_empty()
        });
        self.0.iter().flat_map(|gone| gone.records.iter().map(|(key, known)| (&gone.instance, *key, known)))
    }
}

fn is_settled(key: NoticeKey, known: &NoticeRecord, node: &Node) -> bool {
    if let Some(by) = Withdrawal::recorded(known) {
        return NodeRelease::of_withdrawn(node, key, by, true).is_none();
    }
    let is_recorded = |notice: Notice| node.record.of(&notice).is_some();
    plan::notice(known, &node.instance).is_none_or(is_recorded) && plan::patch(known, node).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::event::{Detail, Identity, Notice, NoticeTime, ScheduledChange};
    use std::time::Duration;

    fn at(hour: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + hour * 3600).unwrap()
    }

    fn instance(n: usize) -> InstanceId {
        InstanceId::new(&format!("i-{n:017x}")).unwrap()
    }

    fn notice(n: usize, hour: i64, time: Timestamp, withdrawn: bool) -> Notice {
        let identity = Identity::of_change("arn:event".to_owned(), instance(n));
        let start = Some(at(hour));
        let change = ScheduledChange { code: String::new(), start, hard: true, withdrawn, is_issue: false };
        Notice::new(identity, instance(n), NoticeTime::Announced(time), Detail::ScheduledChange(change))
    }

    /// Returns the record of a change at this hour, announced at hour 0.
    fn planned(n: usize, hour: i64) -> NoticeRecord {
        plan::of(&notice(n, hour, at(0), false), "m-1").unwrap()
    }

    /// Returns the cancellation of such a change at this time.
    fn cancelled(n: usize, hour: i64, time: Timestamp) -> Notice {
        notice(n, hour, time, true)
    }

    /// Returns the n-th node, with this plan.
    fn node(n: usize, plan: Option<&NoticeRecord>) -> Node {
        let mut node = Node { instance: instance(n), ..Node::for_tests(&format!("node-{n}")) };
        if let Some(plan) = plan {
            let patch = plan::patch(plan, &node).unwrap();
            for (name, text) in patch["metadata"]["annotations"].as_object().unwrap() {
                node.record.insert(name.clone(), text.as_str().unwrap());
            }
        }
        node
    }

    fn count(deleted: &mut DeletedNodes, now: Timestamp) -> usize {
        deleted.ahead(now).count()
    }

    #[test]
    fn a_plan_is_remembered_until_a_node_of_the_instance_has_it_or_its_start() {
        let plan = planned(1, 5);
        let mut deleted = DeletedNodes::default();
        deleted.remember(&node(1, None), &[]);
        assert_eq!(count(&mut deleted, at(1)), 0, "nothing is planned");
        deleted.remember(&node(1, Some(&plan)), &[node(1, None).into()]);
        deleted.settle(&node(2, Some(&planned(2, 5))));
        assert_eq!(count(&mut deleted, at(1)), 1);
        let moved = NoticeRecord { start: Some(at(3)), since: Some(at(0) - Duration::from_secs(1)), ..plan.clone() };
        deleted.settle(&node(1, Some(&moved)));
        assert_eq!(count(&mut deleted, at(1)), 1, "the Node has an older copy");
        deleted.settle(&node(1, Some(&plan)));
        assert_eq!(count(&mut deleted, at(1)), 0);
        deleted.remember(&node(1, Some(&plan)), &[node(1, Some(&plan)).into()]);
        assert_eq!(count(&mut deleted, at(1)), 0, "the next Node has it already");
        let twin = Node { name: "twin".into(), ..node(1, None) };
        deleted.remember(&node(1, Some(&plan)), &[twin.into()]);
        assert_eq!(count(&mut deleted, at(1)), 0, "one of the two may be forged");
        deleted.remember(&node(1, Some(&plan)), &[]);
        assert_eq!(count(&mut deleted, at(5)), 0);
        assert!(deleted.0.is_empty());
    }

    #[test]
    fn what_aws_cancels_meanwhile_is_remembered_so_until_the_next_node_has_it() {
        let (plan, by) = (planned(1, 5), |time| cancelled(1, 5, time));
        let mut deleted = DeletedNodes::default();
        deleted.remember(&node(1, Some(&plan)), &[]);
        deleted.withdraw(&cancelled(2, 5, at(1)));
        deleted.withdraw(&by(at(0) - Duration::from_secs(1)));
        let works =
            |deleted: &mut DeletedNodes| deleted.ahead(at(1)).map(|(_, _, known)| known.work).collect::<Vec<_>>();
        assert_eq!(works(&mut deleted), [Work::Planned], "of another instance, and older than the plan");
        deleted.withdraw(&by(at(1)));
        deleted.settle(&node(1, Some(&plan)));
        assert_eq!(works(&mut deleted), [Work::Withdrawn], "another replica has written the plan");
        let mut next = node(1, None);
        let (_, key, known) = deleted.ahead(at(1)).next().unwrap();
        next.record.insert(format!("ebbtide/notice.{key}"), serde_json::to_string(known).unwrap());
        deleted.settle(&next);
        assert_eq!(works(&mut deleted), []);
        deleted.remember(&next, &[]);
        assert_eq!(works(&mut deleted), [Work::Withdrawn], "it is deleted as well");
        assert_eq!(count(&mut deleted, at(5)), 0);
    }

    #[test]
    fn of_many_deleted_nodes_the_last_are_remembered() {
        let mut deleted = DeletedNodes::default();
        (0..=MAX_NODES).for_each(|n| deleted.remember(&node(n, Some(&planned(n, 5))), &[]));
        assert_eq!(deleted.ahead(at(1)).map(|(instance, ..)| instance.clone()).next(), Some(instance(1)));
        assert_eq!(count(&mut deleted, at(1)), MAX_NODES);
    }
}
