//! Rules about nodes that are broken: docs/repair.md.

use super::{Oracle, Seen, Sent, holds, s};
use crate::harness::instance;
use crate::plan::{Kind, Plan, Target};
use ebbtide_sim::calls::Call;
use std::collections::BTreeSet;

/// Time within which the calls of one request follow each other: EC2 may be too busy to take it.
const REPEATED: i64 = s(180);

/// Time within which no instance is rebooted again.
const HOUR: i64 = s(3600);

impl Oracle {
    /// Whether a condition does more than to be reported.
    pub(super) fn repairs_nodes(&self) -> bool {
        self.plan.flags.condition.is_some_and(|(_, action)| action != "report")
    }

    /// No repair begins while much is broken: docs/repair.md, "When it stops". Judged without faults, because others see less.
    pub(super) fn repairs(&self, seen: &mut Seen, call: &Call) {
        let name = call.subject.split('/').next().unwrap_or_default();
        let Some(node) = name.strip_prefix("node-").and_then(|n| n.parse().ok()) else { return };
        let annotations = self.world.kube.node(name).and_then(|node| node.metadata.annotations).unwrap_or_default();
        let is_mark =
            |(key, text): (&String, &String)| holds(key, text) && text.contains("\"kind\":\"node-condition\"");
        if !annotations.iter().any(is_mark) {
            seen.repaired.remove(&node);
        } else if seen.repaired.insert(node) && self.plan.faults.is_empty() {
            let broken = self.broken(seen, true);
            // Who has begun may not have seen yet that another is gone.
            let lately = |n: usize| seen.gone.get(&n).is_some_and(|at| at + self.slack() > self.now());
            if self.stops(node, &broken, lately) {
                self.broke(seen, "no repair begins while much is broken", format!("node-{node} of {broken:?}"));
            }
        }
    }

    /// Only a broken node is rebooted, and once within an hour: docs/repair.md, "Reboot". A call whose answer is lost is tried again at once.
    pub(super) fn reboots(&self, seen: &mut Seen, call: &Call) {
        let now = self.now();
        let first = *seen.rebooted.entry(call.subject.clone()).or_insert(now);
        let is_broken = |sent: &Sent| {
            let notice = &self.plan.notices[sent.notice];
            notice.kind == Kind::Condition
                && matches!(notice.target, Target::Node(node) if instance(node) == call.subject)
        };
        let asks = self.plan.flags.condition.is_some_and(|(_, action)| action == "reboot");
        if !asks || !seen.sent.iter().any(is_broken) {
            self.broke(seen, "only a broken node is rebooted, and only if the user wants that", call.subject.clone());
        } else if (REPEATED..HOUR).contains(&(now - first)) {
            self.broke(seen, "no instance is rebooted twice in an hour", call.subject.clone());
        } else if now - first >= HOUR {
            seen.rebooted.insert(call.subject.clone(), now);
        }
    }

    /// Whether a broken node may be left alone: it goes for another reason, or too much is broken.
    pub(super) fn may_be_left(&self, seen: &Seen, node: usize) -> bool {
        self.is_going(seen, node) || self.stops(node, &self.broken(seen, false), |_| false)
    }

    /// Returns the nodes that are broken: for sure, or perhaps, because they were once.
    fn broken(&self, seen: &Seen, surely: bool) -> BTreeSet<usize> {
        let is_broken = |sent: &&Sent| {
            let notice = &self.plan.notices[sent.notice];
            let lasts = sent.at + self.slack() <= self.now() && !seen.taken_back.contains_key(&sent.notice);
            notice.kind == Kind::Condition && self.stands(notice.target) && (lasts || !surely)
        };
        let of = |sent: &Sent| match self.plan.notices[sent.notice].target {
            Target::Node(node) => Some(node),
            _ => None,
        };
        let nodes: BTreeSet<usize> = seen.sent.iter().filter(is_broken).filter_map(of).collect();
        let is_left = |node: &usize| surely && (self.plan.nodes[*node].ignored || self.is_going(seen, *node));
        nodes.into_iter().filter(|node| !is_left(node)).collect()
    }

    /// Whether a message, or the Node, has told that the node goes.
    fn is_going(&self, seen: &Seen, node: usize) -> bool {
        let goes = |sent: &Sent| {
            let notice = &self.plan.notices[sent.notice];
            notice.target == Target::Node(node) && !matches!(notice.kind, Kind::Condition | Kind::Garbage(_))
        };
        seen.sent.iter().any(goes) || seen.let_go.contains_key(&node)
    }

    /// Whether more is broken than a fifth of all, or of the node's group, or in most zones: docs/repair.md, "When it stops".
    fn stops(&self, node: usize, broken: &BTreeSet<usize>, stood: impl Fn(usize) -> bool) -> bool {
        let counts = |n: &usize| self.stands(Target::Node(*n)) || stood(*n);
        let all: BTreeSet<usize> = (0..self.plan.nodes.len()).filter(counts).collect();
        let count =
            |nodes: &BTreeSet<usize>, is_in: &dyn Fn(usize) -> bool| nodes.iter().filter(|n| is_in(**n)).count();
        // The node of the replicas' own pods is one more, in the first zone and in no group.
        if broken.len() > (all.len() + 1).div_ceil(5) {
            return true;
        }
        if !self.plan.has_groups() {
            return false;
        }
        let of_group = |n: usize| Plan::place(n).1 == Plan::place(node).1;
        let shares = |zone: usize| {
            let is_in = |n: usize| Plan::place(n).0 == zone;
            (count(broken, &is_in), count(&all, &is_in) + usize::from(zone == 0))
        };
        let zones: Vec<_> = (0..3).map(shares).filter(|(_, of)| *of > 0).collect();
        let hit = zones.iter().filter(|(broken, of)| *broken > 0 && broken * 5 >= *of).count();
        count(broken, &of_group) > count(&all, &of_group).div_ceil(5) || hit >= 2 && 2 * hit > zones.len()
    }
}
