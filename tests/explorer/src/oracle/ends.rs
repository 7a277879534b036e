//! What the plan and the documents say of a notice: which Node it drains, when that may end, and whether it is over.

use super::returns::is_successor;
use super::{Ends, Oracle, Seen, Sent, comes_back, drains, leaves, ms, s};
use crate::harness::instance;
use crate::plan::{Kind, NodePlan, Plan, PodKind, PodPlan, Span, Target, Teller};
use ebbtide_sim::aws::ActionState;

/// Without an answer a hook's times are unknown, and count as the shortest.
const LOOK_UP: &str = "DescribeLifecycleHooks";

impl Oracle {
    pub(super) fn is_drained(&self, seen: &Seen, node: usize) -> bool {
        !self.plan.nodes[node].ignored && self.drains_of(seen, node).next().is_some()
    }

    /// Returns the notices that have this Node drained.
    pub(super) fn drains_of<'a>(&'a self, seen: &'a Seen, node: usize) -> impl Iterator<Item = &'a Sent> {
        self.told_drains(seen, node).filter(move |sent| self.is_due(seen, sent))
    }

    /// Returns the same, and those that are not due yet, or no longer.
    pub(super) fn told_drains<'a>(&'a self, seen: &'a Seen, node: usize) -> impl Iterator<Item = &'a Sent> {
        seen.sent.iter().filter(move |sent| {
            let notice = &self.plan.notices[sent.notice];
            notice.target == Target::Node(node) && drains(notice.kind, &self.plan.flags)
        })
    }

    /// Returns the earliest begin of the Node's drains and the earliest end of one; `None` if nothing is known of them, because calls fail, or
    /// AWS may not confirm a notice.
    pub(super) fn earliest(&self, seen: &Seen, node: usize) -> Option<(i64, i64)> {
        let told = || self.told_drains(seen, node);
        if !self.plan.faults.is_empty() || told().any(|sent| self.may_be_refused(sent)) {
            return None;
        }
        let ends = told().flat_map(|sent| {
            let Ends { hard, soft } = self.ends(seen, sent);
            hard.into_iter().chain(soft)
        });
        let begun = told().map(|sent| self.begins(sent)).min()?;
        Some((begun, ends.chain(self.hard_ends(seen, node)).min()?))
    }

    /// Returns the earliest times at which a notice's drain may end: docs/deadlines.md, "Deadlines".
    pub(super) fn ends(&self, seen: &Seen, sent: &Sent) -> Ends {
        let moved = self.moved(seen, sent);
        let Ends { hard, soft } = self.ends_without_absence(sent);
        Ends { hard: hard.map(|end| end + moved), soft: soft.map(|end| end + moved) }
    }

    fn ends_without_absence(&self, sent: &Sent) -> Ends {
        let notice = &self.plan.notices[sent.notice];
        let event = sent.at - s(notice.age);
        let patience = self.plan.flags.drain_timeout.map(s);
        let shortened = |hard| Ends { hard: Some(hard), soft: patience.map(|time| sent.at + time) };
        let soft = |at| Ends { hard: None, soft: Some(at) };
        match notice.kind {
            Kind::Spot("hibernate") => shortened(sent.at),
            Kind::Spot(_) => shortened(event + s(120)),
            Kind::Reservation(after) => shortened(event + s(after)),
            Kind::Rebalance => soft(sent.at + patience.unwrap_or(s(3600))),
            Kind::State(_) => soft(sent.at + patience.unwrap_or(s(120)).min(s(120))),
            Kind::Change(code, after) => {
                let begins = self.begins(sent);
                let soft = soft(begins + patience.unwrap_or(s(3600)));
                let start = event + after * 1000;
                match start > begins {
                    // Read late, it has begun already.
                    true if code.contains("RETIREMENT") || code.contains("STOP") => Ends { hard: Some(start), ..soft },
                    true => Ends { soft: Some(start.min(soft.soft.unwrap_or(start))), hard: None },
                    false => soft,
                }
            }
            Kind::Terminate(timeout, ..) => {
                // The metadata name neither the hook nor its time.
                let unnamed = (notice.teller == Teller::Node).then(|| sent.at + patience.unwrap_or(s(3600)));
                // Without heartbeats an instance at another hook can't be told from one at this: docs/agent.md, "Limits".
                let may_be_found = notice.hook.is_some() && self.plan.flags.heartbeat == Some("off");
                if let (Some(unnamed), None, false) = (unnamed, &sent.token, may_be_found) {
                    return soft(unnamed);
                }
                let off = self.plan.flags.heartbeat == Some("off");
                let window = s(timeout);
                let limit = if off { window } else { window * 100 };
                let wanted = patience.unwrap_or(window.max(s(900)).min(limit));
                let margin = (window / 10).clamp(3_000, 30_000);
                let end = event + wanted.min(limit) - margin;
                // If the timeout can't be read, it counts as 30 s.
                let unknown = event + wanted.min(if off { s(30) } else { s(3000) }) - 3_000;
                let first = end.min(unknown).min(unnamed.unwrap_or(end));
                // docs/security.md, "Limits": at half-time a heartbeat shows that the action is made up.
                let is_made_up = self.plan.flags.asks_aws() && notice.proof.is_none() && !off;
                let is_shown = self.plan.faults.is_empty() && self.now() > event + window / 2 + s(30);
                let hard = (wanted >= window.min(limit) && !(is_made_up && is_shown)).then_some(end);
                Ends { hard, soft: Some(first) }
            }
            Kind::Condition => soft(self.begins(sent) + patience.unwrap_or(s(3600))),
            Kind::Launch(_) | Kind::Shift(..) | Kind::Garbage(_) => Ends::default(),
        }
    }

    /// Returns the earliest hard deadlines of a Node's drain. A lifecycle action that has ended is one: docs/lifecycle-hooks.md, "Lifecycle
    /// hooks".
    pub(super) fn hard_ends(&self, seen: &Seen, node: usize) -> Vec<i64> {
        // All hooks of an instance end with the first.
        let lookups_fail = self.may_fail(LOOK_UP);
        let of = |sent: &Sent| {
            let ends = self.ends(seen, sent);
            let unknown = ends.soft.filter(|_| lookups_fail && sent.token.is_some());
            ends.hard.into_iter().chain(unknown).chain(self.ended(sent))
        };
        // An action that is left to others ends the instance as well.
        let is_here = |sent: &&Sent| self.plan.notices[sent.notice].target == Target::Node(node);
        let over = seen.sent.iter().filter(is_here).filter_map(|sent| self.ended(sent));
        self.drains_of(seen, node).flat_map(of).chain(over).chain(self.ended_elsewhere(seen, node)).collect()
    }

    /// Whether calls of this operation meet faults at some time.
    pub(super) fn may_fail(&self, operation: &str) -> bool {
        self.plan.faults.iter().any(|span| span.trouble.meets(operation))
    }

    /// Returns when an action of the Node's instance ended at a hook that no message announces: the instance is terminated then.
    fn ended_elsewhere(&self, seen: &Seen, node: usize) -> Option<i64> {
        let is_announced = |token: &String| seen.sent.iter().any(|sent| sent.token.as_ref() == Some(token));
        let of_node =
            self.world.aws.autoscaling.actions().into_iter().filter(|action| action.instance == instance(node));
        of_node.filter(|action| !is_announced(&action.token)).find_map(|action| ended_at(&action.state))
    }

    /// Returns when the notice's lifecycle action ended, if it has.
    pub(super) fn ended(&self, sent: &Sent) -> Option<i64> {
        ended_at(&self.world.aws.autoscaling.action(sent.token.as_ref()?)?.state)
    }

    /// Returns the pods that a drain of this Node has still to wait for. Those that come back, and a Deployment's new ones, are not: how many of
    /// the former are evicted is [judged by itself](Self::ended_pods), and the next may come after the last list.
    pub(super) fn left(&self, node: usize) -> Vec<String> {
        // A silent kubelet is not waited for long: docs/deadlines.md, "Special cases".
        if self.is_lost(node) {
            return Vec::new();
        }
        let pods = self.world.kube.pods_on(&format!("node-{node}")).into_iter();
        let names = pods.filter_map(|pod| pod.metadata.name);
        let waited = |name: &String| {
            let waits = |pod: &PodPlan| pod.kind != PodKind::Finished && leaves(pod, &self.plan.flags);
            self.is_first(name) && self.pod(name).is_some_and(|(_, pod)| waits(pod))
        };
        names.filter(waited).collect()
    }

    fn is_first(&self, name: &str) -> bool {
        match Plan::deployment_of(name) {
            Some(_) => self.placed.lock().contains_key(name),
            None => !is_successor(name),
        }
    }

    /// Returns whether the node has started since an interruption that should be over (docs/deadlines.md, "Late notice"), or since
    /// one from which it comes back ("Undo").
    pub(super) fn is_late(&self, seen: &Seen, sent: &Sent, node: usize) -> bool {
        let notice = &self.plan.notices[sent.notice];
        let event = sent.at - s(notice.age);
        let (begins, goes) = match notice.kind {
            Kind::Change(_, after) => (event + after * 1000, Some(event + after * 1000)),
            Kind::State(_) => (event, Some(event + s(120))),
            Kind::Terminate(..) if self.may_fail(LOOK_UP) => (event, self.ends_without_absence(sent).soft),
            _ => (event, self.ends_without_absence(sent).hard),
        };
        let started = seen.started.get(&node).copied().unwrap_or_default();
        // What has started again was not terminated, whatever was told.
        let returns = comes_back(notice.kind) || matches!(notice.kind, Kind::State(_));
        // A restart counts from when a replica sees it.
        let down = self.plan.replicas.iter().map(|ends| ends.iter().map(|end| end.down).sum()).min().map_or(0, s);
        let blinds = |span: &&Span| span.trouble.meets("watch nodes");
        let blind: u64 = self.plan.faults.iter().filter(blinds).map(|span| span.to - span.from).sum();
        if returns && seen.booted.get(&node).is_some_and(|at| self.restart_ends(seen, sent, at + down + s(blind))) {
            return true;
        }
        goes.is_some_and(|at| self.now() + self.slack() > at + s(60)) && started + self.slack() >= begins
    }
    /// Whether a restart that is seen then may end the notice: docs/marks.md, "A restart before a change" and "Marks on the Node". It counts
    /// from the announcement of an interruption that names no start.
    pub(super) fn restart_ends(&self, seen: &Seen, sent: &Sent, restarted: i64) -> bool {
        let notice = &self.plan.notices[sent.notice];
        let event = sent.at - s(notice.age);
        match notice.kind {
            Kind::Change(_, after) => {
                // A stop and start has ended what EC2 does not list.
                let asks = self.plan.flags.looks || self.plan.flags.limit.is_some();
                let is_listed = notice.teller == Teller::Looks || seen.shown.contains(&sent.notice);
                restarted + self.slack() >= event + after * 1000 - 60_000 || asks && !is_listed
            }
            Kind::Rebalance | Kind::State(_) => restarted >= event,
            _ => restarted >= sent.at,
        }
    }

    /// Returns the drains that are left to do of what Nodes say: such a notice has no message that says so.
    pub fn left_to_do(&self) -> Vec<String> {
        let seen = &self.seen();
        let is_said = |sent: &&Sent| {
            let notice = &self.plan.notices[sent.notice];
            let is_told = matches!(notice.teller, Teller::Node | Teller::Looks);
            is_told && drains(notice.kind, &self.plan.flags) && self.stands(notice.target)
        };
        let left = |sent| self.not_over(seen, sent).or_else(|| self.hook_left(seen, sent));
        let said = seen.sent.iter().filter(is_said).filter_map(left);
        // Who starts again looks for what is left.
        let down = (seen.alive == 0).then(|| "no process lives".to_owned());
        said.chain(self.plans_left(seen)).chain(down).collect()
    }

    /// Whether whoever told of the notice has taken it back: the Node, AWS, or both.
    pub(super) fn is_taken_back(&self, seen: &Seen, sent: &Sent) -> bool {
        let by_node = || seen.taken_back.contains_key(&sent.notice);
        let by_message = || seen.called_off.contains_key(&sent.notice);
        match self.plan.notices[sent.notice].teller {
            Teller::Queue => by_message(),
            Teller::Node | Teller::Looks => by_node(),
            Teller::Both => by_node() && by_message(),
        }
    }

    /// Returns why a notice's drain is not over, if it is not.
    pub(super) fn not_over(&self, seen: &Seen, sent: &Sent) -> Option<String> {
        let notice = &self.plan.notices[sent.notice];
        let Target::Node(node) = notice.target else { return None };
        let let_go = self.plan.nodes[node].ignored || seen.let_go.contains_key(&node);
        let left = self.left(node);
        let is_over = self.ended(sent).is_some() || self.is_late(seen, sent, node) || self.is_taken_back(seen, sent);
        let is_over = is_over || notice.kind == Kind::Condition && self.may_be_left(seen, node);
        if let_go || left.is_empty() || is_over || self.may_be_refused(sent) {
            return None;
        }
        let text = || {
            format!(
                "{notice:?}, pods left {left:?}, {:?}, hard {:?}",
                self.ends(seen, sent),
                self.hard_ends(seen, node)
            )
        };
        (self.is_tried_again(seen, sent) || !self.may_be_over(seen, sent, node)).then(text)
    }

    /// Whether the notice is of a change that is ahead, and no mark of it was ever on a Node: docs/deadlines.md, "A change ahead whose work
    /// fails".
    fn is_tried_again(&self, seen: &Seen, sent: &Sent) -> bool {
        let notice = &self.plan.notices[sent.notice];
        let Kind::Change(_, after) = notice.kind else { return false };
        let start = sent.at - s(notice.age) + after * 1000;
        let is_marked = sent.messages.iter().any(|message| seen.marked.contains_key(message));
        notice.teller == Teller::Queue && self.now() + self.slack() < start && !is_marked
    }

    /// Returns whether the notice's drain may have ended with pods that are left.
    pub(super) fn may_be_over(&self, seen: &Seen, sent: &Sent, node: usize) -> bool {
        let first = self.hard_ends(seen, node).into_iter().chain(self.ends(seen, sent).soft).min();
        first.is_some_and(|end| self.now() + self.slack() >= end)
    }

    /// Returns when the Node that is ignored joined.
    pub(super) fn ignored_since(&self, node: usize) -> Option<i64> {
        let NodePlan { ignored, joins, .. } = &self.plan.nodes[node];
        ignored.then(|| joins.map_or(0, s))
    }

    /// Whether the target is a Node that is there.
    pub fn stands(&self, target: Target) -> bool {
        matches!(target, Target::Node(n) if self.world.kube.node(&format!("node-{n}")).is_some())
    }
}

/// Returns when an action in this state ended, if it has.
fn ended_at(state: &ActionState) -> Option<i64> {
    match state {
        ActionState::Waiting { .. } => None,
        ActionState::Completed { at, .. } | ActionState::Expired { at } => Some(ms(*at)),
    }
}
