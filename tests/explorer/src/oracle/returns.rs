//! Rules about pods that were evicted or deleted: how often those that come back, how often it was tried, and with which grace period.

use super::{Oracle, Seen, ms, s};
use crate::plan::{PodKind, Target};
use ebbtide_sim::calls::Call;
use ebbtide_sim::kube::{By, Placement};

/// Maximum number of successors of one pod that one drain evicts: the one that the first list shows, the one that comes before the list that
/// is newer than the cordon, two that came back, and one more before the node goes. docs/draining.md, "Which pods are evicted".
const MAX_SUCCESSORS: usize = 5;

/// Maximum number of those that are bound past the scheduler in the five seconds in which this may be the scheduler's delay.
const MAX_UNAWARES: usize = 8;

/// Maximum number of tries to end one pod in ten seconds, for each process.
const MAX_TRIES: u32 = 15;

/// Whether a pod of this name has come back.
pub(super) fn is_successor(name: &str) -> bool {
    name.strip_prefix("pod-").is_some_and(|rest| rest.split('-').count() > 2)
}

impl Oracle {
    /// Forgets the successors of a Node's pods when it is uncordoned: those that are there were bound by right.
    pub(super) fn uncordons(&self, seen: &mut Seen, call: &Call) {
        let name = call.subject.split('/').next().unwrap_or_default();
        let cordoned = self.world.kube.node(name).and_then(|node| node.spec?.unschedulable);
        if let (Some(node), true) = (name.strip_prefix("node-"), cordoned != Some(true)) {
            seen.evicted_again.retain(|pod, _| !pod.starts_with(&format!("pod-{node}-")));
        }
    }

    /// Judges the evictions and deletions that were accepted since the last time.
    pub(super) fn ended_pods(&self, seen: &mut Seen) {
        let all = self.world.kube.evictions();
        for ended in &all[seen.ended..] {
            let Some((node, pod)) = self.pod(&ended.name) else { continue };
            if pod.kind == PodKind::Finished {
                continue;
            }
            let own = self.plan.flags.pod_grace.unwrap_or(pod.grace);
            let given = ended.grace.map_or(s(pod.grace), |given| given * 1000);
            let first = self.hard_ends(seen, node).into_iter().min();
            let bears = first.map_or(i64::MAX, |end| end - ms(ended.at) - 3_000 - self.slack());
            if given < s(own).min(bears) {
                let text = format!("{ended:?}, {pod:?}, first hard deadline {first:?}");
                self.broke(seen, "no grace period shorter than a hard deadline requires", text);
            }
            if let (Some((placement, _)), true, By::Eviction) = (pod.returns, is_successor(&ended.name), ended.by) {
                let of = ended.name.rsplit_once('-').map_or("", |(of, _)| of).to_owned();
                let evicted = seen.evicted_again.entry(of).or_default();
                *evicted += 1;
                let evicted = *evicted;
                if evicted > self.max_successors(seen, node, placement) {
                    let text = format!("{}, the {evicted}th, {pod:?}", ended.name);
                    self.broke(seen, "no pod that comes back is evicted again and again", text);
                }
            }
        }
        seen.ended = all.len();
    }

    /// Returns how many successors of one pod may be evicted. Each process counts, and each message may begin a drain of its own; so may a hook
    /// that is found after the drain for the Node's word, which knew of none: docs/agent.md, "Lifecycle hooks".
    fn max_successors(&self, seen: &Seen, node: usize, placement: Placement) -> usize {
        let unawares = if placement == Placement::ByName { MAX_UNAWARES } else { 0 };
        let of_node = seen.sent.iter().filter(|sent| self.plan.notices[sent.notice].target == Target::Node(node));
        let drains =
            of_node.map(|sent| sent.messages.len().max(1) + usize::from(self.plan.notices[sent.notice].hook.is_some()));
        let drains: usize = drains.sum();
        let at_once = usize::try_from(seen.starts).unwrap_or(usize::MAX) * drains * (MAX_SUCCESSORS + unawares);
        // Without the cordon that only a watch of the Nodes shows, or may keep from it, pods come by right: docs/deadlines.md, "At a hard
        // deadline".
        let blind = self
            .plan
            .faults
            .iter()
            .filter(|span| span.trouble.meets("watch nodes") || span.trouble.meets("patch nodes"));
        let blind: u64 = blind.map(|span| span.to - span.from + 30).sum();
        let is_let_go = seen.let_go.contains_key(&node);
        if is_let_go { usize::MAX } else { at_once + usize::try_from(blind).unwrap_or(usize::MAX) }
    }

    /// A try that is refused, or fails, is followed by a pause: docs/deadlines.md, "At a hard deadline".
    pub(super) fn paces(&self, seen: &mut Seen, call: &Call) {
        let span = self.now() / 10_000;
        let tries = seen.tries.entry(call.subject.clone()).or_default();
        *tries = if tries.0 == span { (span, tries.1 + 1) } else { (span, 1) };
        if tries.1 > MAX_TRIES * seen.starts {
            let text = format!("{} {}", call.operation, call.subject);
            self.broke(seen, "no pod is tried again without a pause", text);
        }
    }
}
