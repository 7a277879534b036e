//! Planned changes of Nodes that were deleted. Their messages were deleted when they were planned, so nothing else announces them to the
//! instance's next Node. A Node that is deleted while its kubelet runs registers again: the usual cure for a stuck one.

use crate::pipeline::event::InstanceId;
use crate::pipeline::node::Node;
use crate::pipeline::node::plan;
use crate::pipeline::node::record::{NoticeRecord, Work};
use jiff::Timestamp;
use std::collections::VecDeque;
use std::sync::Arc;

/// Maximum number of deleted Nodes that are remembered: the instances of most get no other Node.
const MAX_NODES: usize = 64;

/// The deleted Nodes that kept planned changes, the first to be deleted first.
#[derive(Debug, Default)]
pub(super) struct DeletedNodes(VecDeque<DeletedNode>);

#[derive(Debug)]
struct DeletedNode {
    instance: InstanceId,
    plans: Vec<NoticeRecord>,
}

impl DeletedNodes {
    /// Remembers the planned changes of a Node that is gone. `nodes` are those that its instance has now: if one has another name, the Node
    /// that is gone may have been a forged one.
    pub(super) fn remember(&mut self, gone: &Node, nodes: &[Arc<Node>]) {
        let plans: Vec<NoticeRecord> = gone.record.kept().filter(|kept| kept.work == Work::Planned).cloned().collect();
        if plans.is_empty() || nodes.iter().any(|node| node.name != gone.name) {
            return;
        }
        if self.0.len() == MAX_NODES {
            self.0.pop_front();
        }
        self.0.push_back(DeletedNode { instance: gone.instance.clone(), plans });
        for node in nodes {
            self.settle(node);
        }
    }

    /// Forgets the changes that this Node of the same instance records, whichever replica has written them, and those that it records as
    /// cancelled by AWS.
    pub(super) fn settle(&mut self, node: &Node) {
        self.0.retain_mut(|gone| {
            if gone.instance == node.instance {
                gone.plans.retain(|plan| !is_settled(plan, node));
            }
            !gone.plans.is_empty()
        });
    }

    /// Returns the changes that are ahead at `now`, and forgets the others.
    pub(super) fn ahead(&mut self, now: Timestamp) -> impl Iterator<Item = (&InstanceId, &NoticeRecord)> {
        self.0.retain_mut(|gone| {
            gone.plans.retain(|plan| plan.start > Some(now));
            !gone.plans.is_empty()
        });
        self.0.iter().flat_map(|gone| gone.plans.iter().map(|plan| (&gone.instance, plan)))
    }
}

fn is_settled(plan: &NoticeRecord, node: &Node) -> bool {
    let Some(notice) = plan::notice(plan, &node.instance) else { return true };
    node.record.get(notice.key()).is_some() && plan::patch(plan, node).is_none()
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

    /// Returns the record of a change at this hour, announced at hour 0.
    fn planned(n: usize, hour: i64) -> NoticeRecord {
        let identity = Identity::of_change("arn:event".to_owned(), instance(n));
        let change = ScheduledChange {
            code: String::new(),
            start: Some(at(hour)),
            hard: true,
            withdrawn: false,
            is_issue: false,
        };
        let time = NoticeTime::Announced(at(0));
        plan::of(&Notice::new(identity, instance(n), time, Detail::ScheduledChange(change)), "m-1").unwrap()
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
    fn of_many_deleted_nodes_the_last_are_remembered() {
        let mut deleted = DeletedNodes::default();
        (0..=MAX_NODES).for_each(|n| deleted.remember(&node(n, Some(&planned(n, 5))), &[]));
        assert_eq!(deleted.ahead(at(1)).map(|(instance, _)| instance.clone()).next(), Some(instance(1)));
        assert_eq!(count(&mut deleted, at(1)), MAX_NODES);
    }
}
