//! Rules about Nodes that are deleted because their instances have ended: docs/repair.md, "Nodes of terminated instances".

use super::{Broken, Oracle, Seen, holds, numbered, s};
use ebbtide_sim::calls::Call;
use jiff::Timestamp;
use std::collections::BTreeMap;

/// What EC2 shows of an instance whose Node may be deleted, and the minimum silence of its kubelet.
const ENDS: [(Option<&str>, i64); 2] = [(Some("terminated"), s(300)), (None, s(3600))];

/// The rule about what is deleted.
const ENDED: &str = "no Node is deleted but that of an instance that has ended";

/// Minimum silence during a drain.
const IN_DRAIN: i64 = s(900);

/// Minimum time between EC2's two answers.
const CONFIRMED: i64 = s(120);

/// Time in which a fifth of the Nodes is deleted at most.
const LIMITED: i64 = s(600);

impl Oracle {
    /// Returns for how long the node's kubelet has been silent, if it is.
    pub fn silent_for(&self, node: usize) -> Option<i64> {
        let loss = self.plan.nodes.get(node)?.lost?;
        let silent = self.now() - s(loss.at);
        (silent >= 0 && loss.returns.is_none_or(|after| silent < s(after))).then_some(silent)
    }

    /// Whether the node's kubelet is silent, or was.
    pub(super) fn is_lost(&self, node: usize) -> bool {
        let lost = self.plan.nodes.get(node).and_then(|node| node.lost);
        lost.is_some_and(|loss| s(loss.at) <= self.now())
    }

    /// Notes why a Node should stay that is to be deleted. A change of the Node from now on has the deletion refused.
    pub(super) fn deletes_node(&self, seen: &mut Seen, call: &Call) {
        let Some(node) = numbered(&call.subject) else { return self.broke(seen, ENDED, &call.subject) };
        match self.world.kube.node(&call.subject) {
            Some(found) => {
                let annotations = found.metadata.annotations.unwrap_or_default();
                let of_ended = |why| Broken { rule: ENDED, text: format!("{}: {why}", call.subject) };
                let in_drain = |text| Broken { rule: "no Node is deleted in the middle of a drain", text };
                let is_ignored = annotations.get("ebbtide/ignore").is_some_and(|value| value == "true");
                let why = self.stays_there(node).or(is_ignored.then_some("it is ignored"));
                let drain = self.drain_on(node, &annotations);
                seen.deleting.insert(node, why.map(of_ended).or_else(|| drain.map(in_drain)));
            }
            None => drop(seen.deleting.remove(&node)),
        }
    }

    /// Judges a deletion that has had its effect.
    pub(super) fn deleted_node(&self, seen: &mut Seen, call: &Call) {
        let (now, Some(node)) = (self.now(), numbered(&call.subject)) else { return };
        let is_there = self.world.kube.node(&call.subject).is_some() || seen.gone.contains_key(&node);
        let Some(should_stay) = seen.deleting.remove(&node).filter(|_| !is_there) else { return };
        seen.gone.insert(node, now);
        if let Some(Broken { rule, text }) = should_stay {
            return self.broke(seen, rule, text);
        }
        let begun = seen.tainted.get(&node).copied().unwrap_or(now);
        seen.collected.push(begun);
        let within = |from: i64| {
            let same = seen.collected.iter().filter(|at| (from..from + LIMITED - self.slack()).contains(*at));
            same.count()
        };
        let most = seen.collected.iter().map(|from| within(*from)).max().unwrap_or_default();
        // The node of the replicas' own pods is one more.
        let fifth = (self.plan.nodes.len() + 1).div_ceil(5);
        // With this flag the taint may have come earlier, for another reason.
        let is_known = !self.plan.flags.others.contains(&"--out-of-service-taint");
        if is_known && most > fifth {
            let text = format!("{most} within ten minutes, not {fifth}: {:?}", seen.collected);
            self.broke(seen, "no more than a fifth of the Nodes is deleted in ten minutes", text);
        }
    }

    /// Returns why nothing shows that the node's instance has ended, if so.
    fn stays_there(&self, node: usize) -> Option<&'static str> {
        let plan = self.plan.nodes.get(node)?;
        let (Some(loss), Some(silent)) = (plan.lost, self.silent_for(node)) else { return Some("its kubelet reports") };
        let known = ENDS.iter().find(|(state, _)| *state == loss.state);
        let reasons = [
            (!self.plan.flags.collect_nodes(), "--collect-nodes is not set"),
            (plan.ignored, "it is ignored"),
            (known.is_none(), "its instance has not ended"),
            (known.is_some_and(|(_, least)| silent + self.slack() < *least), "its kubelet may come back"),
            (silent + self.slack() < s(loss.shown) + CONFIRMED, "EC2 has not confirmed the end"),
        ];
        reasons.into_iter().find_map(|(stands, why)| stands.then_some(why))
    }

    /// Returns the record of a drain that has time, and that has not given up the pods of a silent kubelet yet.
    fn drain_on(&self, node: usize, annotations: &BTreeMap<String, String>) -> Option<String> {
        let (silent, now) = (self.silent_for(node).unwrap_or_default(), self.world.clock.now());
        let ago = |at: Timestamp| i64::try_from(now.duration_since(at).as_millis()).unwrap_or(i64::MAX);
        let is_drain = |(name, text): &(&String, &String)| {
            let end = ["deadline", "ends"].into_iter().filter_map(|field| time_of(text, field)).max();
            let known = time_of(text, "since").map_or(silent, |since| ago(since).min(silent));
            let goes_on = holds(name, text) && !text.contains("\"work\":\"ended\"");
            goes_on && end.is_some_and(|end| ago(end) + self.slack() < 0) && known + self.slack() < IN_DRAIN
        };
        annotations.iter().find(is_drain).map(|(_, text)| text.clone())
    }

    /// Notes the taint that comes before the deletion of a Node with volumes.
    pub(super) fn taints(&self, seen: &mut Seen, call: &Call) {
        let name = call.subject.split('/').next().unwrap_or_default();
        let Some(node) = numbered(name).filter(|node| self.is_lost(*node)) else { return };
        let taints = self.world.kube.node(name).and_then(|node| node.spec?.taints).unwrap_or_default();
        if !taints.iter().any(|taint| taint.key == "node.kubernetes.io/out-of-service") {
            seen.tainted.remove(&node);
            return;
        }
        let is_new = !seen.tainted.contains_key(&node);
        seen.tainted.entry(node).or_insert(self.now());
        let is_ours = is_new && !self.plan.flags.others.contains(&"--out-of-service-taint");
        if let Some(why) = self.stays_there(node).filter(|_| is_ours) {
            let text = format!("{name}: {why}");
            self.broke(seen, "no Node is tainted as out of service before its instance has ended", text);
        }
    }

    /// The Node of an instance that has ended is gone in the end. Judged where nothing fails.
    pub(super) fn judge_collected(&self, seen: &mut Seen) {
        let is_calm = self.plan.faults.is_empty() && self.plan.replicas.iter().all(Vec::is_empty);
        if !is_calm || !self.plan.flags.collect_nodes() {
            return;
        }
        for (n, plan) in self.plan.nodes.iter().enumerate() {
            let has_ended = plan
                .lost
                .is_some_and(|loss| loss.returns.is_none() && ENDS.iter().any(|(state, _)| *state == loss.state));
            let is_free = plan.ignored || seen.let_go.contains_key(&n);
            if has_ended && !is_free && self.world.kube.node(&format!("node-{n}")).is_some() {
                return self.broke(seen, "the Node of an instance that has ended is deleted", format!("node-{n}"));
            }
        }
    }
}

/// Returns the time in this field of a record.
fn time_of(text: &str, field: &str) -> Option<Timestamp> {
    text.split_once(&format!("\"{field}\":\""))?.1.split('"').next()?.parse().ok()
}
