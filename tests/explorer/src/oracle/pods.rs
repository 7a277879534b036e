//! Rules about pods and Nodes.

use super::{Oracle, Seen, Sent, asks, leaves, ms, s};
use crate::plan::{Kind, Owner, PodKind, PodPlan, Target};
use ebbtide_sim::calls::Call;
use std::time::Duration;

impl Oracle {
    /// docs/draining.md, "Which pods are evicted", "At a hard deadline", "Pods that must not be disturbed"; docs/events.md.
    pub(super) fn ends_pod(&self, seen: &mut Seen, call: &Call, deletes: bool) {
        let (now, flags) = (self.now(), &self.plan.flags);
        let name = call.subject.trim_start_matches("default/");
        let Some((node, pod)) = self.pod(name) else {
            return self.broke(seen, "no end of a pod that nobody planned", &call.subject);
        };
        if seen.begun.insert(node)
            && let Some(other) = self.ahead_in_wave(seen, node)
        {
            let text = format!("node-{node} while node-{other} is drained");
            return self.broke(seen, "no more nodes are drained at once than a wave allows", text);
        }
        let tried = *seen.tried.entry(name.to_owned()).or_insert(now);
        if !self.is_drained(seen, node) {
            return self.broke(seen, "no eviction from a node that no notice names", &call.subject);
        }
        if pod.kind != PodKind::Finished && !leaves(pod, flags) {
            return self.broke(seen, "no eviction of a pod that must stay", format!("{name} {pod:?}"));
        }
        let hard = self.hard_ends(seen, node);
        let grace = ms(Duration::from_secs(flags.pod_grace.unwrap_or(pod.grace)));
        let object = self.world.kube.pod("default", name);
        let ending = object.as_ref().and_then(|pod| pod.metadata.deletion_timestamp.as_ref());
        if asks(pod, flags)
            && pod.kind != PodKind::Finished
            && ending.is_none()
            && !hard.iter().any(|end| now + self.slack() >= end - grace - 12_000)
        {
            let text = format!("{name} {pod:?}, hard deadlines {hard:?}");
            return self.broke(seen, "no eviction of a pod that asks not to be disturbed", text);
        }
        let cordoned = self.world.kube.node(&format!("node-{node}")).and_then(|node| node.spec?.unschedulable);
        if cordoned == Some(false) && hard.is_empty() && !seen.let_go.contains_key(&node) {
            return self.broke(seen, "no eviction before the cordon", name);
        }
        // A terminating pod may be hurried, and a finished one is only removed. One that has just gone has no budget.
        if !deletes || pod.kind == PodKind::Finished || object.is_none() {
            return;
        }
        let fair = |end: i64| tried + ((end - tried) / 4).clamp(500, 10_000);
        let in_time = |end: &i64| now + self.slack() >= (end - grace - 2_000).max(fair(*end));
        if flags.leave_pods || !(hard.iter().any(in_time) || ending.is_some() && !hard.is_empty()) {
            let text = format!("{name} {pod:?}, first tried at {tried}, hard deadlines {hard:?}");
            self.broke(seen, "no budget overridden before a hard deadline", text);
        }
    }

    /// Returns a node whose place in the wave is taken, although this one needs it: docs/draining.md, "Waves". All nodes are in one zone.
    /// Judged without faults, because who can't see the Nodes or write to them may drain too many.
    fn ahead_in_wave(&self, seen: &Seen, node: usize) -> Option<usize> {
        let others = &self.plan.flags.others;
        if !others.contains(&"--wave") || !self.plan.faults.is_empty() || self.plan.clock_ahead != 0 {
            return None;
        }
        let has_time = |node: usize| {
            // Before a hard deadline the longest grace period is kept free.
            let grace = self.plan.nodes[node].pods.iter().map(|pod| s(pod.grace)).max().unwrap_or_default();
            self.drains_of(seen, node).all(|sent| {
                let ends = self.ends(sent);
                let first = ends.hard.map(|end| end - grace).into_iter().chain(ends.soft).min().unwrap_or_default();
                let waits = matches!(
                    self.plan.notices[sent.notice].kind,
                    Kind::Rebalance | Kind::Change(..) | Kind::Terminate(_, _, Owner::Us)
                );
                waits && self.ended(sent).is_none() && self.now() + self.slack() < sent.at + (first - sent.at) / 2
            })
        };
        let is_drained = |other: usize| {
            let is_taken_back = self.drains_of(seen, other).all(|sent| self.is_taken_back(seen, sent));
            let is_over = seen.let_go.contains_key(&other) || seen.booted.contains_key(&other) || is_taken_back;
            !is_over && self.stands(Target::Node(other)) && !self.left(other).is_empty()
        };
        let mut others = seen.begun.iter().copied().filter(|other| *other != node);
        others.find(|other| has_time(node) && has_time(*other) && is_drained(*other))
    }

    /// docs/draining.md, "Marks on the Node"; docs/settings.md, "Notices".
    pub(super) fn patches(&self, seen: &mut Seen, call: &Call) {
        let node = call.subject.trim_start_matches("node-").split('/').next().and_then(|n| n.parse().ok());
        let is_marked = |sent: &Sent| {
            let notice = &self.plan.notices[sent.notice];
            Some(notice.target) == node.map(Target::Node) && !matches!(notice.kind, Kind::Garbage(_))
        };
        if !seen.sent.iter().any(is_marked) {
            self.broke(seen, "no mark on a node that no notice names", &call.subject);
        }
    }

    /// Notes the messages that the Node's marks name: docs/draining.md, "Marks on the Node".
    pub(super) fn marks(&self, seen: &mut Seen, call: &Call) {
        let node = self.world.kube.node(call.subject.split('/').next().unwrap_or_default());
        let annotations = node.and_then(|node| node.metadata.annotations).unwrap_or_default();
        for mark in annotations.iter().filter(|(key, _)| key.starts_with("ebbtide/notice.")).map(|(_, mark)| mark) {
            let sent = seen.sent.iter().flat_map(|sent| &sent.messages);
            for message in sent.filter(|message| mark.contains(message.as_str())) {
                seen.marked.entry(message.clone()).or_insert(self.now());
            }
        }
    }

    pub(super) fn pod(&self, name: &str) -> Option<(usize, &PodPlan)> {
        let (node, number) = name.strip_prefix("pod-")?.split_once('-')?;
        let node = node.parse().ok()?;
        Some((node, self.plan.nodes.get(node)?.pods.get(number.parse::<usize>().ok()?)?))
    }
}
