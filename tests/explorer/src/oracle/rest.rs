//! Rules about a world that has come to rest.

use super::{Oracle, Seen, Sent, comes_back, holds, remembers, s};
use crate::plan::{Kind, NodePlan, Owner, Target};
use ebbtide_sim::aws::ActionState;
use ebbtide_sim::kube::By;
use std::collections::BTreeSet;
use std::time::Duration;

impl Oracle {
    /// Returns how long a mark that expires may stand: `--uncordon-after`, docs/settings.md.
    #[must_use]
    pub fn expiry(&self) -> Option<Duration> {
        let cordons = |sent: &Sent| {
            let notice = &self.plan.notices[sent.notice];
            !self.plan.flags.rebalance_drains && notice.kind == Kind::Rebalance && self.stands(notice.target)
        };
        let after = Duration::from_secs(self.plan.flags.uncordon_after.unwrap_or(20 * 60) + 120);
        self.seen().sent.iter().any(cordons).then_some(after)
    }

    /// Returns how long it takes until a failed removal of marks is tried again, if there are marks.
    #[must_use]
    pub fn retry(&self) -> Option<Duration> {
        let annotations = |n| self.world.kube.node(&format!("node-{n}")).and_then(|node| node.metadata.annotations);
        let marks = (0..self.plan.nodes.len()).filter_map(annotations).flatten();
        marks.into_iter().any(|(key, mark)| holds(&key, &mark)).then_some(Duration::from_mins(6))
    }

    /// Judges the world at its end.
    pub fn judge_end(&self) {
        let seen = &mut self.seen();
        let (lost, dead) = (self.world.aws.sqs.expired(), self.world.aws.sqs.dead_letters());
        let open = seen.sent.iter().filter(|sent| !sent.open.is_empty()).count();
        if !lost.is_empty() || !dead.is_empty() || open > 0 {
            self.broke(seen, "no message lost", format!("expired {lost:?}, dead letters {dead:?}, open {open}"));
        }
        for (n, plan) in self.plan.nodes.iter().enumerate() {
            self.judge_marks(seen, n, plan);
        }
        self.judge_collected(seen);
        if self.plan.has_only_outages() {
            self.judge_calm(seen);
        }
    }

    /// No mark stays on a Node that stays: docs/draining.md, "Undo".
    fn judge_marks(&self, seen: &mut Seen, n: usize, plan: &NodePlan) {
        let Some(node) = self.world.kube.node(&format!("node-{n}")) else { return };
        if plan.ignored || seen.let_go.contains_key(&n) || self.silent_for(n).is_some() {
            return;
        }
        let booted = seen.booted.get(&n).copied().unwrap_or_default();
        // A mark that is set after the restart waits for the next: a lost or late message, or an API server that refused the mark.
        let joined = plan.joins.map_or(0, s);
        let marked = |sent: &Sent| sent.messages.iter().filter_map(|message| seen.marked.get(message)).min();
        let over = |sent: &Sent| match self.plan.notices[sent.notice].kind {
            Kind::Rebalance if !self.plan.flags.rebalance_drains => true,
            Kind::Condition if !self.repairs_nodes() => true,
            Kind::Launch(_)
            | Kind::Garbage(_)
            | Kind::State("pending" | "terminated")
            | Kind::Terminate(_, _, Owner::Others) => true,
            _ if self.is_taken_back(seen, sent) => true,
            // It is stopped all the same, and a message that comes again after the restart sets the mark again.
            Kind::Spot(_) if booted < sent.at + s(120) => false,
            Kind::Change(..) if !self.restart_ends(seen, sent, booted - self.slack()) => false,
            kind => comes_back(kind) && marked(sent).is_some_and(|at| booted > *at.max(&joined)),
        };
        let of_node = |sent: &&Sent| self.plan.notices[sent.notice].target == Target::Node(n);
        if !seen.sent.iter().filter(of_node).all(over) || self.plan.flags.others.contains(&"--out-of-service-taint") {
            return;
        }
        let mut marks = node.metadata.annotations.unwrap_or_default();
        // What a Node says, and that it has been handled, stays until it is taken back.
        let stays = ["ebbtide/booted", "ebbtide/reboot", "ebbtide/says.", "ebbtide/shift."];
        let stays = |key: &str, text: &str| stays.iter().any(|known| key.starts_with(known)) || remembers(key, text);
        marks.retain(|key, text| key.starts_with("ebbtide/") && !stays(key, text));
        let cordoned = node.spec.and_then(|spec| spec.unschedulable).unwrap_or_default();
        if !marks.is_empty() || cordoned != plan.cordoned {
            self.broke(seen, "no mark on a node that stays", format!("node-{n}: {marks:?}, cordoned {cordoned}"));
        }
    }

    /// Without faults, and where only outages are, every hook of ours is completed in time, and a process evicts no pod twice:
    /// docs/developers/design.md, rules 1, 5 and 12.
    fn judge_calm(&self, seen: &mut Seen) {
        for sent in seen.sent.clone() {
            let notice = &self.plan.notices[sent.notice];
            let left = match notice.target {
                Target::Node(n) => {
                    let let_go = self.plan.nodes[n].ignored || seen.let_go.contains_key(&n);
                    // Without heartbeats nothing tells when an action has begun.
                    let is_hidden = notice.hook.is_some() && self.plan.flags.heartbeat == Some("off");
                    // What has started again was not terminated.
                    let is_back = notice.hook.is_some() && seen.booted.contains_key(&n);
                    let let_go = let_go || is_hidden || is_back || notice.taken_back.is_some();
                    let_go || self.plan.flags.on_failed == Some("leave") || notice.age > 0
                }
                _ => notice.age > 0,
            };
            let left = left || self.may_be_refused(&sent) || self.may_expire(&sent);
            let action = sent.token.as_ref().and_then(|token| self.world.aws.autoscaling.action(token));
            let expired = action.is_some_and(|action| matches!(action.state, ActionState::Expired { .. }));
            let open = Sent { open: sent.messages.iter().cloned().collect(), ..sent };
            let ours = matches!(notice.kind, Kind::Terminate(..)) && self.not_ours(seen, Some(&open)).is_none();
            if ours && expired && !left {
                self.broke(seen, "a hook is completed in time", format!("{notice:?}"));
            }
        }
        let mut evicted = BTreeSet::new();
        let evictions = self.world.kube.evictions();
        let mut evictions = evictions.iter().filter(|end| end.by == By::Eviction);
        if let Some(again) = evictions.find(|end| !evicted.insert(&end.uid))
            && self.plan.replicas.len() == 1
        {
            self.broke(seen, "no pod is evicted twice", format!("{again:?}"));
        }
    }
}
