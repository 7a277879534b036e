//! Rules about pods and Nodes.

use super::{Oracle, Seen, Sent, asks, holds, leaves, ms, numbered};
use crate::plan::{Kind, Plan, PodKind, PodPlan, Target};
use ebbtide_sim::calls::Call;
use std::collections::btree_map::Entry;
use std::time::Duration;

impl Oracle {
    /// docs/draining.md, "Which pods are evicted"; docs/deadlines.md; docs/events.md.
    pub(super) fn ends_pod(&self, seen: &mut Seen, call: &Call, deletes: bool) {
        let (now, flags) = (self.now(), &self.plan.flags);
        let name = call.subject.trim_start_matches("default/");
        let Some((node, pod)) = self.pod(name) else {
            // A Deployment's pod may be gone.
            if Plan::deployment_of(name).is_none() || self.world.kube.pod("default", name).is_some() {
                self.broke(seen, "no end of a pod that nobody planned", &call.subject);
            }
            return;
        };
        if seen.begun.insert(node) {
            if let Some(text) = self.exceeds_limit(seen, node) {
                return self.broke(seen, "no more is drained of what AWS does not show than the limits allow", text);
            }
            if let Some(other) = self.ahead_in_wave(seen, node) {
                let text = format!("node-{node} while node-{other} is drained");
                return self.broke(seen, "no more nodes are drained at once than a wave allows", text);
            }
            if let Some(shift) = self.shifted(seen, node) {
                let text = format!("node-{node} during the shift {shift}");
                return self.broke(seen, "no drain with time begins while traffic is shifted to its zone", text);
            }
        }
        self.paces(seen, call);
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
        if !deletes && pod.kind != PodKind::Finished && object.is_some() && ending.is_none() {
            if let Some(text) = self.is_early(seen, node, pod) {
                return self.broke(seen, "no tier of pods leaves before its turn", format!("{name} {text}"));
            }
            if let Some(text) = self.leaves_gap(seen, node, name) {
                return self.broke(seen, "no single replica leaves while there is time for its new pod", text);
            }
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

    /// docs/marks.md, "Marks on the Node"; docs/settings.md, "Notices".
    pub(super) fn patches(&self, seen: &mut Seen, call: &Call) {
        let node = call.subject.trim_start_matches("node-").split('/').next().and_then(|n| n.parse().ok());
        let is_marked = |sent: &Sent| {
            let notice = &self.plan.notices[sent.notice];
            let acts = match notice.kind {
                Kind::Garbage(_) => false,
                Kind::Condition => self.repairs_nodes() && self.is_due(seen, sent),
                _ => true,
            };
            // Any Node may carry the note of a zonal shift.
            Some(notice.target) == node.map(Target::Node) && acts || matches!(notice.kind, Kind::Shift(..))
        };
        // That of a terminated instance may get a taint before its deletion, and loses it if its kubelet is back.
        let is_lost = node.is_some_and(|node| self.is_lost(node));
        if !is_lost && !seen.sent.iter().any(is_marked) {
            self.broke(seen, "no mark on a node that no notice names", &call.subject);
        }
    }

    /// Notes the messages that the Node's marks name: docs/marks.md, "Marks on the Node".
    pub(super) fn marks(&self, seen: &mut Seen, call: &Call) {
        let node = self.world.kube.node(call.subject.split('/').next().unwrap_or_default());
        let annotations = node.and_then(|node| node.metadata.annotations).unwrap_or_default();
        for (key, mark) in annotations.iter().filter(|(key, mark)| holds(key, mark)) {
            let sent = seen.sent.iter().flat_map(|sent| &sent.messages);
            // A boot ID may be the same text.
            let names = |message: &str| ["message", "by"].map(|field| format!("\"{field}\":\"{message}\""));
            for message in sent.filter(|message| names(message).iter().any(|named| mark.contains(named))) {
                if let Entry::Vacant(entry) = seen.marked.entry(message.clone()) {
                    entry.insert(self.now());
                    let text = format!("{} has {key} of {message}: {mark}", call.subject);
                    seen.notes.push((self.world.clock.elapsed(), text));
                }
            }
        }
    }

    pub(super) fn pod(&self, name: &str) -> Option<(usize, &PodPlan)> {
        if let Some(plan) = Plan::deployment_of(name).and_then(|number| self.plan.deployments.get(number)) {
            let placed = self.placed.lock().get(name).copied();
            let node = placed.or_else(|| numbered(&self.world.kube.pod("default", name)?.spec?.node_name?))?;
            return Some((node, &plan.pod));
        }
        let mut parts = name.strip_prefix("pod-")?.split('-');
        let (node, number): (usize, usize) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let pod = self.plan.nodes.get(node)?.pods.get(number)?;
        // A successor has its predecessor's name and five characters.
        (parts.next().is_none() || pod.returns.is_some()).then_some((node, pod))
    }
}
