//! Hints take a fifth of the nodes at most: docs/settings.md, "Notices".

use super::{Oracle, Seen, holds};
use k8s_openapi::api::core::v1::Node;
use std::collections::BTreeSet;

/// Time in milliseconds for which two replicas may exceed the limit, and until each sees what the other has cordoned.
const EXCEEDED: i64 = 3_000;

impl Oracle {
    /// No node is cordoned for a hint while others hold a fifth. Judged without faults, because others see less, and where no node counts again
    /// because its kubelet is back.
    pub(super) fn hints(&self, seen: &mut Seen) {
        let nodes = self.world.kube.nodes();
        let may_be_ours = |node: &&Node| is_ready(node) && annotation(node, "ebbtide/ignore").is_none();
        let nodes: Vec<&Node> = nodes.iter().filter(may_be_ours).collect();
        let held: BTreeSet<String> =
            nodes.iter().filter(|node| is_hinted(node)).filter_map(|node| node.metadata.name.clone()).collect();
        let of = nodes.iter().filter(|node| !is_cordoned(node) || is_hinted(node)).count();
        let limit = (of / 5).max(1);
        let is_new = held.iter().any(|node| !seen.hinted.contains(node));
        let is_full = seen.hinted.intersection(&held).count() >= limit;
        let lasts = seen.full_of_hints.is_some_and(|since| since + EXCEEDED + self.slack() < self.now());
        let is_calm = self.plan.faults.is_empty() && self.plan.nodes.iter().all(|node| node.lost.is_none());
        if is_new && is_full && lasts && is_calm {
            self.broke(seen, "hints take a fifth of the nodes at most", format!("{held:?} of {of}"));
        }
        let since = seen.full_of_hints.unwrap_or_else(|| self.now());
        seen.full_of_hints = (held.len() >= limit).then_some(since);
        seen.hinted = held;
    }
}

fn annotation<'a>(node: &'a Node, key: &str) -> Option<&'a String> {
    node.metadata.annotations.as_ref()?.get(key)
}

fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or_default()
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.filter(|condition| condition.type_ == "Ready").any(|condition| condition.status == "True")
}

/// Whether only marks of cordons for hints keep the node from being schedulable.
fn is_hinted(node: &Node) -> bool {
    let marks = || {
        let all = node.metadata.annotations.iter().flatten();
        all.filter(|(key, text)| holds(key, text)).map(|(_, text)| text)
    };
    let is_ours = annotation(node, "ebbtide/undo").is_some_and(|undo| undo.contains("\"cordon\":true"));
    let is_hint = |text: &String| text.contains("\"kind\":\"rebalance\"") && !text.contains("\"deadline\":");
    is_cordoned(node) && is_ours && marks().next().is_some() && marks().all(is_hint)
}
